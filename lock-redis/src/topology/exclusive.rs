//! Connections that one write has to itself while it waits for replicas.

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::Unavailable;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::clock::within;
use crate::connection::clients::Opened;
use crate::connection::handle::Connection;
use crate::fault;
use crate::limits::CONNECT_TIMEOUT;
use crate::topology::commands::Info;
use crate::topology::handshake::is_too_old;
use crate::topology::link::Link;
use crate::topology::replicas::{ConnectionEnd, ExclusiveConnection};

impl Link {
    /// Opens a connection to the same server that no other request shares.
    pub(crate) async fn exclusive_connection(
        &self,
        shared: &Connection,
    ) -> Result<ExclusiveConnection, Fault> {
        let connecting = async {
            let (config, address) = (&self.config, &shared.health.server.address);
            let opener = config.opener(address, &config.login, config.database).await;
            let opener = opener.map_err(|error| Fault::not_applied(Unavailable, error))?;
            let gone = ConnectionEnd::default();
            let settings = AsyncConnectionConfig::new().set_response_timeout(None);
            let settings = settings.set_connection_timeout(None);
            let heeding = settings.clone().set_push_sender(gone.witness());
            let opened = match opener.with_pushes(&heeding).await {
                Err(error) if is_too_old(&error) => {
                    // No push reports its end: the first request on it fails instead.
                    let gone = ConnectionEnd::default();
                    opener.without_pushes(&settings).await.map(|opened| (opened, gone))
                }
                opened => opened.map(|opened| (opened, gone)),
            };
            let (opened, gone) = opened.map_err(|error| fault::no_connection(address, &error))?;
            self.check_same_server(shared, &opened.redis).await?;
            let Opened { redis, driver } = opened;
            Ok(ExclusiveConnection { redis, _driver: driver, shared: shared.id(), gone })
        };
        let silent = || Err(fault::no_handshake(&self.config.endpoint));
        within(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(silent)
    }

    /// Refuses a new connection that leads to another server than the one `shared` it: the address
    /// has moved. The old one keeps and releases its locks. A user without the right to ask
    /// detects no move.
    async fn check_same_server(
        &self,
        shared: &Connection,
        redis: &MultiplexedConnection,
    ) -> Result<(), Fault> {
        let (mut redis, mut info) = (redis.clone(), redis::cmd("INFO"));
        let info = &*info.arg("server");
        let (here, there) =
            tokio::join!(shared.ask::<String>(info), info.query_async::<String>(&mut redis));
        let (Ok(here), Ok(there)) = (here, there) else { return Ok(()) };
        if Info(here).get("run_id") == Info(there).get("run_id") {
            return Ok(());
        }
        let why = "the address leads to another server than a moment ago";
        Err(Fault::not_applied(Unavailable, why))
    }
}

#[cfg(test)]
mod tests {
    use lock_conformance::helpers::eventually;
    use redis::Value;
    use test_servers::{Redis as Server, RedisOptions};

    use super::*;
    use crate::config::Config;
    use crate::connection::client_state::ClientState;
    use crate::scripts::Call;
    use std::sync::Arc;
    use std::time::Duration;

    #[tokio::test]
    async fn a_hung_connection_puts_the_shared_one_in_doubt() {
        let server = Server::start(RedisOptions::new());
        let url = format!("{}?min_replicas=1&min_replicas_timeout=1ms", server.url());
        let config = Config::new(&url).unwrap();
        let (keys, client) = (config.keys.for_trial(0), Arc::new(ClientState::new(&config)));
        let link = Arc::new(Link::new(config, Arc::clone(&client)));
        let shared = link.first_connection().await.unwrap();
        let call = Call::new(&client.scripts().inspect, &[keys.lock(), keys.queue()]);
        let ask_beside = || async {
            link.send_replicated::<Value>(&shared, &call, None).await.unwrap().answer.unwrap()
        };
        // From here on two are idle. One more would ask the shared one which server it has.
        tokio::join!(ask_beside(), ask_beside());
        assert!(!link.is_in_doubt());
        server.stop();
        let hanging = tokio::time::timeout(Duration::from_millis(10), ask_beside()).await;
        assert!(hanging.is_err(), "it was stopped");
        eventually(|| link.is_in_doubt()).await;
        server.cont();
        ask_beside().await;
        assert!(link.is_in_doubt(), "another connection says nothing of this one");
        link.send::<Value>(&shared, &call, None).await.1.unwrap();
        assert!(!link.is_in_doubt());
    }
}
