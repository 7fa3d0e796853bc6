//! The `Backend` trait.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Identity, Listed, LockState, Release, ReleaseMode, Renewal,
    Wake,
};
use lock_core::{
    Capabilities, Durability, Error, Executor, Fencing, LockName, Order, OwnerId, Reach, Support,
    Takeover, Wakeup,
};

use crate::config::Config;
use crate::names::Names;
use crate::session::manager::SessionManager;
use crate::verbs::{acquire, inspect, release, renew, wait};

/// The client enforces a ttl that is shorter than the session.
const TTL_MIN: Duration = Duration::from_millis(10);
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Locks on a ZooKeeper ensemble. Clones share one session.
///
/// See the [crate's documentation](crate) for the guarantees.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    names: Names,
    sessions: SessionManager,
    executor: Executor,
}

impl ZooKeeper {
    /// Opens a session with an ensemble, at a URL as in [`Config::new`] or with a [`Config`].
    ///
    /// The session is the locks' own and cannot be one that the program has: leases rest on it, so
    /// it must end with the locks alone, and at times that this backend measures.
    ///
    /// When the last clone is dropped, the session is closed. Its locks and queue entries end at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): no server can be reached,
    ///   or the server has no quorum, refuses another connection, or does not answer;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or no right to
    ///   read the chroot (without one, `/`), which heartbeat writes check;
    /// * [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid): the chroot does not exist, or
    ///   sessions are local to their member (`localSessionsEnabled`) and are not upgraded for
    ///   ephemeral nodes (`localSessionsUpgradingEnabled`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the attempt.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let config = config.try_into().map_err(Error::from)?;
        let names = config.names.clone();
        let executor = Executor::current_or_new()?;
        let sessions = executor.within(SessionManager::open(config)).await?;
        Ok(Self { inner: Arc::new(Inner { names, sessions, executor }) })
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        let timeout = self.inner.sessions.timeout();
        Capabilities::minimal("zookeeper")
            .fencing(Fencing::Durable)
            .order(Order::Fifo)
            .wakeup(Wakeup::HandOff)
            .durability(Durability::Durable)
            .reach(Reach::Network)
            .ttl_min(TTL_MIN)
            .ttl_max(TTL_MAX)
            // The session lease includes it.
            .margin(Duration::ZERO)
            // The server keeps the lock until the session times out, rounded up to a tick, for any
            // ttl. A timeout has at least two ticks. The other half is for an election.
            .takeover(Takeover::LeasePlus(timeout * 2))
            .loss_push(Support::Present)
            .inspecting(Support::Present)
            .listing(Support::Present)
            .breaking(Support::Present)
    }

    /// Returns `None`: the members share their locks, and no request names the ensemble.
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        acquire::try_acquire(&self.inner.names, &self.inner.sessions, claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        wait::wait(&self.inner.sessions, claim).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        wait::wait_lost(&self.inner.sessions, claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        renew::renew(&self.inner.sessions, claims).await
    }

    async fn release(&self, claim: &Claim, _how: ReleaseMode) -> Result<Release, Fault> {
        release::release(&self.inner.sessions, claim).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        inspect::inspect(&self.inner.names, &self.inner.sessions, name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        inspect::list(&self.inner.names, &self.inner.sessions, prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        inspect::break_lock(&self.inner.names, &self.inner.sessions, name, expected).await
    }
}
