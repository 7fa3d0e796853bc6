//! The verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Identity, Listed, LockState, Release, ReleaseMode, Renewal,
    Wake,
};
use lock_core::{
    Capabilities, Durability, Error, Executor, Fencing, LockName, OwnerId, Reach, Support, Takeover,
};

use crate::client::Client;
use crate::config::Config;
use crate::lease::{MAX_EXCESS, TTL_MAX, TTL_MIN};
use crate::waiters::LONGEST_PAUSE;

/// Locks on memcached servers. Clones share one connection to each server.
///
/// See the [crate's documentation](crate) for the guarantees and their limits: the locks are
/// advisory.
#[derive(Clone, Debug)]
pub struct Memcached {
    client: Arc<Client>,
}

impl Memcached {
    /// Connects to all servers of a URL as in [`Config::new`], or of a [`Config`].
    ///
    /// The connections are the locks' own and cannot be those of the program. Leases rest on them:
    /// no answer may be late for one request and count for another.
    ///
    /// Servers that are down do not keep the others from being used. They are warned about by
    /// `tracing`, their locks fail as unavailable, and they are connected to when they are needed
    /// and back.
    ///
    /// Where there is no counter of fencing tokens yet, one is started, which takes a second or
    /// two. Also warns of servers that may evict locks, or have evicted something.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): no server can be reached,
    ///   or none answers;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or none;
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): a server is older than 1.6,
    ///   or runs without CAS numbers (`-C`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the connections.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let client = Client::connect(config.try_into().map_err(Error::from)?).await?;
        Ok(Self { client: Arc::new(client) })
    }
}

#[async_trait]
impl Backend for Memcached {
    fn executor(&self) -> Option<Executor> {
        Some(self.client.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("memcache")
            .fencing(Fencing::Seeded)
            .durability(Durability::Advisory)
            .reach(Reach::Network)
            .ttl_min(TTL_MIN)
            .ttl_max(TTL_MAX)
            .margin(Duration::from_millis(2))
            .takeover(Takeover::LeasePlus(MAX_EXCESS + LONGEST_PAUSE * 2))
            .detached(Support::Present)
            .min_token_supported(Support::Present)
            .inspecting(Support::Present)
            .breaking(Support::Present)
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.client.identity().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.client.try_acquire(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.client.wait(claim).await
    }

    async fn wait_lost(&self, _: &Claim) -> Result<(), Fault> {
        Err(Fault::unsupported("notifications of a loss"))
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.client.renew(claims).await
    }

    async fn release(&self, claim: &Claim, mode: ReleaseMode) -> Result<Release, Fault> {
        self.client.release(claim, mode).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.client.inspect(name).await
    }

    /// Returns an error: servers have no index of keys, and list them all only to clients that may
    /// slow them down.
    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.client.break_lock(name, expected).await
    }
}
