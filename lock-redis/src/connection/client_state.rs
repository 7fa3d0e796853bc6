//! The state that all connections of a client share.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::{Order, OwnerId};

use crate::config::Config;
use crate::connection::health::Health;
use crate::keys::{Keys, LockKeys};
use crate::queue::Queues;
use crate::recent::RecentLocks;
use crate::scripts::{self, Scripts};
use crate::signal_waiters::SignalWaiters;

/// The state that all connections of a client share.
pub(crate) struct ClientState {
    pub(crate) keys: Keys,
    pub(crate) waiters: SignalWaiters,
    pub(crate) queues: Queues,
    pub(crate) recent: RecentLocks,
    /// The unguessable id of this client in its channels, on which it receives its grants, if it
    /// queues.
    pub(crate) id: Option<String>,
    /// Its channel, but for a cluster, where there is one in each slot.
    pub(crate) channel: Option<Arc<str>>,
    /// The order in which waiters are served. The first connection decides it, and every other one
    /// has to support it.
    pub(crate) order: OnceLock<Order>,
    /// How long a release leaves the lock free for clients that poll.
    pub(crate) polling_share: Option<Duration>,
    /// Locks are on several servers, each in its slot.
    pub(crate) in_cluster: bool,
    /// How many were made so far.
    pub(crate) connections: AtomicU64,
}

impl ClientState {
    /// Creates the state, with the keys and the order that `config` asks for.
    pub(crate) fn new(config: &Config) -> Self {
        let is_fifo = config.order != Some(Order::PerProcess);
        let (keys, in_cluster) = (config.keys.clone(), !config.members.is_empty());
        let id = is_fifo.then(|| OwnerId::mint().expose());
        let channel = id.as_deref().filter(|_| !in_cluster).map(|id| keys.channel(id).into());
        Self {
            keys,
            waiters: SignalWaiters::default(),
            queues: Queues::default(),
            recent: RecentLocks::default(),
            id,
            channel,
            order: OnceLock::new(),
            polling_share: config.polling_share,
            in_cluster,
            connections: AtomicU64::new(0),
        }
    }

    /// Returns the order in which waiters are served.
    pub(crate) fn order(&self) -> Order {
        self.order.get().copied().unwrap_or(Order::PerProcess)
    }

    /// Returns true if waiters are served in the order in which they came.
    pub(crate) fn is_fifo(&self) -> bool {
        self.order() == Order::Fifo
    }

    /// Returns the channel on which this client receives messages about the lock with these keys.
    pub(crate) fn channel(&self, keys: &LockKeys) -> Option<Arc<str>> {
        match self.in_cluster {
            true => self.channel_in(keys.slot()).map(Arc::from),
            false => self.channel.clone(),
        }
    }

    pub(crate) fn channel_in(&self, slot: u16) -> Option<String> {
        Some(self.keys.channel_in(slot, self.id.as_deref()?))
    }

    pub(crate) fn scripts(&self) -> &'static Scripts {
        if self.in_cluster { &scripts::SHARDED } else { &scripts::PLAIN }
    }

    /// Returns the number of the next connection: 1 to 999, in turn.
    pub(crate) fn next_number(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) % 999 + 1
    }

    /// Marks the connection as unusable, and wakes the waiters that depend on it.
    pub(crate) fn mark_broken(&self, connection: &Health) {
        connection.broken.store(true, Ordering::Release);
        self.waiters.signal_all();
        self.queues.connection_lost(connection.id);
    }
}

impl fmt::Debug for ClientState {
    /// Shows nothing: some of it are rights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ours").finish_non_exhaustive()
    }
}
