//! Checks of a server before its first lock: rights of the user, mode, and eviction policy.

use std::sync::Arc;

use lock_core::backend::Fault;
use lock_core::{Error, ErrorKind, OwnerId};
use redis::{Cmd, Value as Answer};

use crate::clock::within;
use crate::connection::handle::Connection;
use crate::fault;
use crate::keys::LockKeys;
use crate::limits::CONNECT_TIMEOUT;
use crate::scripts::Call;
use crate::topology::link::Link;

const TRY_OUT: &str = "try out the rights of this user";

impl Link {
    /// Finds out whether replicas can be waited for.
    pub(crate) async fn check_wait(self: &Arc<Self>) -> Result<(), Error> {
        // For none, so at once.
        self.check_right("WAIT", redis::cmd("WAIT").arg(0).arg(1)).await
    }

    /// Finds out whether this user may send a command that changes nothing.
    async fn check_right(self: &Arc<Self>, name: &str, command: &Cmd) -> Result<(), Error> {
        let connection = self.connection().await.map_err(fault::error)?;
        let mut redis = connection.redis.clone();
        match within(CONNECT_TIMEOUT, command.query_async::<Answer>(&mut redis)).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) if error.code() == Some("NOPERM") => {
                Err(fault::missing_rights(&[name.to_owned()]))
            }
            Some(Err(error)) => Err(fault::error(fault::fault(TRY_OUT, &error))),
            None => Err(fault::error(fault::unanswered(&self.address))),
        }
    }

    /// Names the rights that this user lacks, found out with keys for a trial that this server has.
    pub(crate) async fn check_rights(self: &Arc<Self>, keys: &LockKeys) -> Result<(), Error> {
        if self.client.in_cluster {
            // Else it would be missed when a slot is moved, and not before.
            self.check_right("ASKING", &redis::cmd("ASKING")).await?;
        }
        let connection = self.connection().await.map_err(fault::error)?;
        let queues = self.client.is_fifo();
        let missing = self.missing_in_scripts(&connection, keys, queues).await;
        let missing = missing.map_err(fault::error)?;
        if !missing.is_empty() {
            return Err(fault::missing_rights(&missing));
        }
        if self.client.in_cluster && queues {
            self.listen_in_time(&connection, keys.slot()).await.map_err(fault::error)?;
        }
        Ok(())
    }

    /// Returns the names of the commands that scripts of this user may not call.
    pub(crate) async fn missing_in_scripts(
        &self,
        connection: &Connection,
        keys: &LockKeys,
        queues: bool,
    ) -> Result<Vec<String>, Fault> {
        let channel = self.client.channel(keys).filter(|_| queues);
        let ([lock, token_key, queue, processes, _], tombstone) =
            (keys.all(), keys.tombstone(&OwnerId::mint()));
        let share = keys.share();
        let keys = [lock, token_key, queue, processes, &tombstone, &share];
        let count = if queues && self.client.polling_share.is_some() { 6 } else { 5 };
        let keys = keys.get(..count).unwrap_or_default();
        let mut trial = Call::new(&self.client.scripts().rights, keys);
        trial.arg(channel.as_deref().unwrap_or_default());
        let redis = &connection.redis;
        let work = async {
            trial.load(redis).await?;
            trial.run_alone::<Vec<String>>(redis).await
        };
        within(CONNECT_TIMEOUT, work)
            .await
            .ok_or_else(|| fault::unanswered(&self.address))?
            .map_err(|error| fault::fault(TRY_OUT, &error))
    }

    /// Subscribes to the channel of `slot`, as far as the server answers.
    pub(crate) async fn listen_in_time(
        &self,
        connection: &Connection,
        slot: u16,
    ) -> Result<(), Fault> {
        let listening = within(CONNECT_TIMEOUT, self.listen(connection, slot)).await;
        listening.unwrap_or_else(|| Err(fault::unanswered(&self.address)))
    }

    /// Refuses a member of a cluster that is taken for a server of its own, and warns of a server
    /// that may throw locks away.
    pub(crate) async fn check_server(self: &Arc<Self>) -> Result<(), Error> {
        let asking = async {
            let connection = self.connection().await?;
            Ok((self.info(&connection, "server").await?, self.info(&connection, "memory").await?))
        };
        let (server, memory) = within(CONNECT_TIMEOUT, asking)
            .await
            .unwrap_or_else(|| Err(fault::unanswered(&self.address)))
            .map_err(fault::error)?;
        let in_cluster = self.client.in_cluster;
        if let Some(why) = server.as_ref().and_then(|info| info.wrong_mode(in_cluster)) {
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if server.is_none() || memory.is_none() {
            tracing::warn!(
                redis.address = %self.address,
                "the server does not answer INFO to this user: whether the server throws keys away at its memory limit, and \
                 locks with them, is not known; grant +info, or make sure that maxmemory-policy is noeviction"
            );
        }
        let policy = memory.as_ref().and_then(|info| info.get("maxmemory_policy"));
        if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                redis.address = %self.address,
                redis.maxmemory_policy = policy,
                "at its memory limit this server throws keys away, and locks with them; \
                 set maxmemory-policy to noeviction"
            );
        }
        Ok(())
    }
}
