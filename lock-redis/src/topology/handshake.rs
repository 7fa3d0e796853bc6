//! The set-up of a new connection: protocol, role, channels, key tracking, and features of the
//! server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lock_core::Order;
use lock_core::backend::Fault;
use lock_core::backend::FaultKind::Unavailable;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, ErrorKind as RedisKind, RedisError, Value as Answer};

use crate::connection::address::ServerLocation;
use crate::connection::batcher::Batcher;
use crate::connection::clients::Opened;
use crate::connection::handle::{Connection, ConnectionParts};
use crate::connection::health::Health;
use crate::fault;
use crate::scripts::DELETE_IF_EQUAL;
use crate::slots::slot_of;
use crate::topology::link::Link;
use crate::topology::pushes::Pushes;

/// How many requests and batches may wait to be written.
const AT_ONCE: usize = 4096;

impl Link {
    pub(crate) async fn connect_to(
        self: &Arc<Self>,
        server: &ServerLocation,
    ) -> Result<Connection, Fault> {
        let (config, address) = (&self.config, &server.address);
        // Files that are just being replaced are no reason to give up.
        let opener = config.opener(address, &config.login, config.database).await;
        let opener = opener.map_err(|error| Fault::not_applied(Unavailable, error))?;
        let health = Arc::new(Health::of(server, self.client.next_number()));
        let (client, link) = (Arc::clone(&self.client), Arc::downgrade(self));
        let pushes = Pushes { client, health: Arc::clone(&health), link };
        // Core bounds each call, and this link the making of a connection.
        let settings =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        // One that finds no room is woken twice: to be sent, and with the answer.
        let settings = settings.set_pipeline_buffer_size(AT_ONCE);
        let speaking = settings.clone().set_push_sender(pushes);
        let failed = |error: RedisError| fault::no_connection(address, &error);
        let parts = |Opened { redis, driver }, health| ConnectionParts {
            batcher: Batcher::over(redis.clone()),
            redis,
            _driver: driver,
            health,
            has_signals: false,
            has_channel: false,
        };
        match opener.with_pushes(&speaking).await {
            Ok(opened) => {
                let [mut redis, mut other] = [opened.redis.clone(), opened.redis.clone()];
                // Before any claim queues through this connection.
                let subscribing =
                    async { self.subscribe_channels(&mut other, &health).await.map_err(failed) };
                // All in one round trip: a renewal may be waiting for this.
                let checking = self.require_primary(redis.clone(), server);
                let finding = self.probe_delete(redis.clone(), &health);
                let finding = async { finding.await.map_err(failed) };
                let asking = async { self.enable_tracking(&mut redis).await.map_err(failed) };
                let ((), has_channel, has_signals, ()) =
                    tokio::try_join!(checking, subscribing, asking, finding)?;
                let parts = parts(opened, health);
                Ok(ConnectionParts { has_signals, has_channel, ..parts }.into())
            }
            Err(error) if is_too_old(&error) && self.client.order.get() == Some(&Order::Fifo) => {
                let why = "the server at this address used to send messages of its own accord, and \
                           does not any more";
                Err(Fault::not_applied(Unavailable, why))
            }
            Err(error) if is_too_old(&error) => {
                // The pushes are gone with the connection, and have marked it as broken.
                let health = Arc::new(Health::of(server, self.client.next_number()));
                let opened = opener.without_pushes(&settings).await.map_err(failed)?;
                self.require_primary(opened.redis.clone(), server).await?;
                Ok(parts(opened, health).into())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Requires that a server that sentinels name is a primary: a demoted one may not know it yet,
    /// nor the one that replaces it. A user without the right to ask detects it at the
    /// first write.
    async fn require_primary(
        &self,
        mut redis: MultiplexedConnection,
        server: &ServerLocation,
    ) -> Result<(), Fault> {
        if server.epoch.is_none() {
            return Ok(());
        }
        match redis::cmd("ROLE").query_async::<Vec<Answer>>(&mut redis).await {
            Ok(role) if role.first() == Some(&Answer::BulkString(b"master".to_vec())) => Ok(()),
            Ok(_) => {
                let why = format!(
                    "{} is a replica, though sentinels name it as the primary",
                    server.address
                );
                Err(Fault::not_applied(Unavailable, why))
            }
            Err(error) if fault::is_broken(&error) => {
                Err(fault::no_connection(&server.address, &error))
            }
            Err(error) => {
                // Only the first connection warns.
                if self.client.order.get().is_none() {
                    tracing::warn!(
                        redis.address = %server.address,
                        %error,
                        "the server does not answer ROLE to this user: a replica that sentinels name is found out by its first \
                         refusal; grant +role"
                    );
                }
                Ok(())
            }
        }
    }

    /// Subscribes to the channel of this client. Returns false if the server does not offer that to
    /// this user.
    async fn subscribe_channels(
        &self,
        redis: &mut MultiplexedConnection,
        health: &Health,
    ) -> Result<bool, RedisError> {
        if self.client.id.is_none() {
            return Ok(false);
        }
        if let Some(channel) = &self.client.channel {
            redis.subscribe(health.channel(channel)).await?;
            return Ok(true);
        }
        // The command without a channel fails; the error shows whether the server knows it, as
        // Redis 7 and later do. There is a channel in each slot. Those with waiters are needed from
        // the start; others are on their own members.
        let (mut pipe, channels) = (redis::pipe(), self.client.queues.channels());
        pipe.cmd("SSUBSCRIBE");
        for channel in &channels {
            pipe.cmd("SSUBSCRIBE").arg(health.channel(channel));
        }
        let answers = redis.req_packed_commands(&pipe, 0, pipe.len()).await?;
        let mut answers = answers.into_iter().map(Answer::extract_error);
        match answers.next() {
            Some(Err(error)) if fault::is_transient(&error) => return Err(error),
            Some(Err(error)) if error.to_string().contains("unknown command") => return Ok(false),
            _ => {}
        }
        let heard = channels.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
        health.slots().extend(heard.map(|(channel, _)| slot_of(channel)));
        Ok(true)
    }

    /// Enables key tracking: the server remembers the keys of reads that ask for it, and notifies
    /// once when such a key changes. Returns false if the server does not offer that to this user.
    async fn enable_tracking(&self, redis: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").ignore();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        // The line before this one applies to this command, which reads nothing.
        pipe.cmd("HELLO").ignore();
        match pipe.query_async::<()>(redis).await {
            Ok(()) => Ok(true),
            // It says nothing about signals that the server is busy.
            Err(error) if fault::is_broken(&error) || fault::is_transient(&error) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "no signals from this server: waiters look from time to time");
                Ok(false)
            }
        }
    }

    /// Finds out whether the server can delete a key that has some value, without a script.
    async fn probe_delete(
        &self,
        mut redis: MultiplexedConnection,
        health: &Health,
    ) -> Result<(), RedisError> {
        // The missing arguments are refused before the rights and the slot are checked.
        match redis::cmd(DELETE_IF_EQUAL).query_async::<Answer>(&mut redis).await {
            Err(error) if fault::is_broken(&error) || fault::is_transient(&error) => Err(error),
            Err(error) if error.to_string().contains("wrong number of arguments") => {
                health.deletes.store(true, Ordering::Relaxed);
                health.may_delete.store(true, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn is_too_old(error: &RedisError) -> bool {
    let hides_hello = || {
        let said = error.to_string().to_lowercase();
        said.contains("unknown command") && said.contains("hello")
    };
    error.kind() == RedisKind::RESP3NotSupported || error.code() == Some("NOPROTO") || hides_hello()
}
