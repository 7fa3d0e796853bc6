//! The quorum, and the state that its verbs share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};
use lock_core::{Backend, Capabilities, Executor, Fencing, LockName};

use crate::claim::Registry;
use crate::deferred::DeferredAttempts;
use crate::member::Member;
use crate::recent_names::RecentNames;

/// A backend on a majority of independent backends. Clones share their state.
///
/// See the [crate's documentation](crate) for the guarantees.
#[derive(Clone, Debug)]
pub struct Quorum {
    pub(crate) inner: Arc<Inner>,
}

/// The options of all members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `None`: members retain their locks across a restart.
    pub(crate) longest_lease: Option<Duration>,
    pub(crate) member_timeout: Duration,
}

pub(crate) struct Inner {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) majority: usize,
    pub(crate) caps: Capabilities,
    pub(crate) settings: Settings,
    pub(crate) registry: Arc<Registry>,
    pub(crate) deferred: DeferredAttempts,
    /// Locks that a claim of this process has found held. The next claims queue at once, and take
    /// no votes from those that wait.
    pub(crate) contended: RecentNames,
    /// Locks whose first member keeps a vote that does no good. Claims do not wait for that one.
    pub(crate) blocked: RecentNames,
    /// One more than the mean, so that zero means unknown.
    usual_round_micros: AtomicU64,
    pub(crate) executor: Executor,
}

impl Inner {
    pub(crate) fn new(
        members: Vec<Arc<Member>>,
        caps: Capabilities,
        settings: Settings,
        executor: Executor,
    ) -> Self {
        Self {
            majority: members.len() / 2 + 1,
            members,
            caps,
            settings,
            registry: Arc::default(),
            deferred: DeferredAttempts::default(),
            contended: RecentNames::new(Duration::from_secs(1)),
            blocked: RecentNames::new(Duration::from_secs(2)),
            usual_round_micros: AtomicU64::new(0),
            executor,
        }
    }

    pub(crate) fn has_tokens(&self) -> bool {
        self.caps.fencing != Fencing::None
    }

    /// Returns the order in which members are asked for a lock. The first one breaks ties. It is
    /// the same for all clients, unless it is slow, and it differs between locks.
    pub(crate) fn order_for(&self, name: &LockName) -> Vec<usize> {
        let (start, size) = (self.first_for_all(name), self.members.len());
        let mut order: Vec<_> = (start..size).chain(0..start).collect();
        order.sort_by_key(|&member| self.members[member].is_slow());
        order
    }

    /// Returns the member at which claims of this lock queue, and with whose vote they wait: the
    /// one that is first for all clients, or none. With two queues, claims would wait for each
    /// other's vote. So a client that finds this member slow queues nowhere.
    pub(crate) fn queue_of(&self, name: &LockName) -> Option<usize> {
        let first = self.first_for_all(name);
        let member = &self.members[first];
        let serves = member.has_queue() && !member.is_slow() && !self.blocked.contains(name);
        serves.then_some(first)
    }

    fn first_for_all(&self, name: &LockName) -> usize {
        // FNV-1a: the same in every build.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        usize::try_from(hash % self.members.len() as u64).unwrap_or(0)
    }

    /// Returns the usual time until a majority has answered; `None` before it is known.
    pub(crate) fn usual_round(&self) -> Option<Duration> {
        let micros = self.usual_round_micros.load(Ordering::Relaxed);
        micros.checked_sub(1).map(Duration::from_micros)
    }

    /// Updates a running mean. Concurrent updates may be lost.
    pub(crate) fn record_round_time(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 8);
        let mean = match self.usual_round().map(|usual| usual.as_micros() as u64) {
            None => took,
            Some(usual) => (7 * usual + took) / 8,
        };
        self.usual_round_micros.store(mean + 1, Ordering::Relaxed);
    }

    pub(crate) async fn backend(
        &self,
        member: usize,
        ttl: Duration,
    ) -> Result<Arc<dyn Backend>, Fault> {
        let member = &self.members[member];
        match member.current() {
            Some(backend) => Ok(backend),
            None => {
                let limit = self.settings.member_timeout.min(ttl);
                let connected = tokio::time::timeout(limit, member.backend(&self.caps)).await;
                connected.unwrap_or_else(|_| {
                    let why = format!("it could not be connected within {limit:?}");
                    Err(Fault::not_applied(FaultKind::TimedOut, why))
                })
            }
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("members", &self.members)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
