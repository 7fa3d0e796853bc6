//! A connection that all verbs share.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lock_core::clock::Moment;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError};

use crate::clock::ServerTime;
use crate::connection::batcher::Batcher;
use crate::connection::clients::Driver;
use crate::connection::health::{Health, PendingRequest};

/// A connection. Cloning is cheap; clones share it.
#[derive(Clone)]
pub(crate) struct Connection(Arc<ConnectionParts>);

/// The parts of a connection. Each verb has a clone, so these are on the heap.
pub(crate) struct ConnectionParts {
    pub(crate) redis: MultiplexedConnection,
    pub(crate) batcher: Batcher,
    pub(crate) _driver: Driver,
    pub(crate) health: Arc<Health>,
    /// Whether the server tells of changes of the keys that we watch.
    pub(crate) has_signals: bool,
    /// Whether the server delivers the messages of this client's channel.
    pub(crate) has_channel: bool,
}

impl From<ConnectionParts> for Connection {
    fn from(parts: ConnectionParts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Deref for Connection {
    type Target = ConnectionParts;

    fn deref(&self) -> &ConnectionParts {
        &self.0
    }
}

impl Connection {
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let mut redis = self.redis.clone();
        self.health.watch(command.query_async(&mut redis)).await.1
    }

    /// Records the server's clock, as the answer to a request sent at `asked` showed it.
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

    /// Returns the id, which no other connection has.
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

    /// Tracks a request on another connection to the same server. If that one does not answer, this
    /// one may not either.
    pub(crate) fn track_exclusive(&self) -> PendingRequest<'_> {
        PendingRequest { beside: true, ..PendingRequest::on(&self.health) }
    }

    /// Returns true if the server can delete without a script, whether or not
    /// this user has the right.
    pub(crate) fn deletes_if_equal(&self) -> bool {
        self.health.deletes.load(Ordering::Relaxed)
    }

    /// Returns true if the server can delete without a script and has not refused this user.
    pub(crate) fn may_delete_if_equal(&self) -> bool {
        self.health.may_delete.load(Ordering::Relaxed)
    }

    /// Returns false if the server has refused this user to increment.
    pub(crate) fn may_count(&self) -> bool {
        !self.health.refuses_to_count.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Acquire)
    }

    /// Records that the connection is subscribed to the channel of `slot`.
    pub(crate) fn listens_in(&self, slot: u16) {
        self.health.slots().insert(slot);
    }

    pub(crate) fn is_listening_in(&self, slot: u16) -> bool {
        self.health.slots().contains(&slot)
    }
}
