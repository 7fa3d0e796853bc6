//! A connection that all verbs share.

use crate::clock::ServerTime;
use crate::connection::health::Health;
use crate::connection::health::PendingRequest;
use lock_core::clock::Moment;
use redis::Cmd;
use redis::FromRedisValue;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection. Cloning is cheap; clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) redis: MultiplexedConnection,
    #[cfg(feature = "simulation")]
    pub(crate) _driver: Option<Arc<crate::simulation::Driver>>,
    pub(crate) health: Arc<Health>,
    /// Whether the server tells of changes of the keys that we watch.
    pub(crate) has_signals: bool,
    /// Whether the server sends what is said on our channel.
    pub(crate) has_channel: bool,
}

impl Connection {
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let mut redis = self.redis.clone();
        self.health.watch(command.query_async(&mut redis)).await.1
    }

    /// The server's clock said so in the answer to what was asked then.
    pub(crate) fn record_server_time(&self, asked: Moment, said: u64) {
        let mut clock = self.health.clock();
        if clock.is_none_or(|before| before.asked <= asked) {
            *clock = Some(ServerTime { asked, time: said });
        }
    }

    /// Returns the part of `channel` on which this connection listens.
    pub(crate) fn channel(&self, channel: &str) -> String {
        self.health.channel(channel)
    }

    /// No other connection has it.
    pub(crate) fn id(&self) -> u64 {
        self.health.id
    }

    /// Does some work with the server, for as long as it has the locks.
    pub(crate) async fn while_current<T>(
        &self,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.health.while_current(work).await
    }

    /// The server is about to be asked by another connection. If that does not answer, this one may not either.
    pub(crate) fn track_exclusive(&self) -> PendingRequest<'_> {
        PendingRequest { beside: true, ..PendingRequest::on(&self.health) }
    }

    /// True if the server can [delete without a script](DELETE_IF_EQUAL), whoever has the right to it.
    pub(crate) fn deletes_if_equal(&self) -> bool {
        self.health.deletes.load(Ordering::Relaxed)
    }

    /// The same, and it has not refused us that.
    pub(crate) fn may_delete_if_equal(&self) -> bool {
        self.health.may_delete.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Acquire)
    }

    /// We are subscribed to the channel of `slot`.
    pub(crate) fn listens_in(&self, slot: u16) {
        self.health.slots().insert(slot);
    }

    pub(crate) fn is_listening_in(&self, slot: u16) -> bool {
        self.health.slots().contains(&slot)
    }
}
