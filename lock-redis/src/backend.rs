//! The backend: a connection to a Redis server or cluster, and its verbs.

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
use crate::keys::Keys;
use crate::topology::servers::Servers;
use crate::warned::WarnedLocks;

/// Locks on a Redis server. Clones share one connection.
///
/// See the [crate's documentation](crate) for their guarantees.
#[derive(Clone, Debug)]
pub struct Redis {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) keys: Keys,
    pub(crate) servers: Servers,
    pub(crate) wakeup: Wakeup,
    loss_push: Support,
    /// A lock counts only when replicas know of it.
    pub(crate) waits_for_replicas: bool,
    pub(crate) min_ttl: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) warned: WarnedLocks,
    pub(crate) executor: Executor,
}

impl Redis {
    /// Connects to a server: to a URL as in [`Config::new`], or with a [`Config`].
    ///
    /// The connection is the locks' own. The settings of a client of the crate `redis` are taken
    /// over by `Redis::from_client`, with the Cargo feature `redis-1`.
    ///
    /// Tries out whether this user has the rights that locks need, and warns by `tracing` if the
    /// server is set to evict keys.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): the server cannot be
    ///   reached, does not answer, or refuses work for now;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or rights are
    ///   missing: the error names them;
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): the server is too old, or a
    ///   member of a cluster and the URL does not say so, or the other way round.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let config = config.try_into().map_err(Error::from)?.in_order_if_shared()?;
        let (keys, max_ttl) = (config.keys.clone(), config.max_ttl);
        let waits_for_replicas = config.replicas.is_some();
        let min_ttl = config.min_ttl();
        // Large, and done once.
        let executor = Executor::current_or_new()?;
        let (servers, connection) = executor.within(Box::pin(Servers::connect(config))).await?;
        let wakeup = match servers.client.order() {
            // A client that is handed the lock asks whether replicas know of it.
            Order::Fifo if waits_for_replicas => Wakeup::Signal,
            Order::Fifo => Wakeup::HandOff,
            Order::PerProcess if connection.has_signals => Wakeup::Signal,
            Order::PerProcess => Wakeup::Poll,
        };
        // Where locks can move to another server, holders with long leases are notified of it.
        let loss_push = match servers.may_move() && connection.has_signals {
            true => Support::Present,
            false => Support::Absent,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                keys,
                servers,
                wakeup,
                loss_push,
                waits_for_replicas,
                min_ttl,
                max_ttl,
                warned: WarnedLocks::default(),
                executor,
            }),
        })
    }
}

#[async_trait]
impl Backend for Redis {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("redis")
            .fencing(Fencing::Seeded)
            .order(self.inner.servers.client.order())
            .wakeup(self.inner.wakeup)
            .durability(Durability::UntilRestart)
            .reach(Reach::Network)
            .ttl_min(self.inner.min_ttl)
            .ttl_max(self.inner.max_ttl)
            .margin(Duration::from_millis(2))
            .takeover(Takeover::LeasePlus(Duration::from_millis(50)))
            .polling_share(self.inner.servers.client.polling_share)
            .detached(Support::Present)
            .minimum_hold(Support::Present)
            .late_attempts_refused(Support::Present)
            .min_token_supported(Support::Present)
            .loss_push(self.inner.loss_push)
            .inspecting(Support::Present)
            .listing(Support::Present)
            .breaking(Support::Present)
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.servers.identity().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.acquire_claim(claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.wait_for_claim(claim).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.wait_for_loss(claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.renew_claims(claims).await
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        self.release_claim(claim, how).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.inspect_lock(name).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.break_holder(name, expected).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.list_locks(prefix, after, limit).await
    }
}

#[cfg(test)]
mod tests {
    use lock_core::LockName;
    use test_servers::{Redis as Server, RedisOptions};

    use super::*;
    use lock_core::backend::Effect;

    /// Core does not release a claim whose only attempt certainly did nothing.
    #[tokio::test]
    async fn a_claim_refused_at_its_first_attempt_is_forgotten() {
        let server = Server::start(RedisOptions::new());
        let redis = Redis::connect(server.url()).await.unwrap();
        let limit = ["CONFIG", "SET", "maxmemory", "1"];
        server.connect().unwrap().command(&limit).unwrap();
        let name = LockName::new("n").unwrap();
        let mut claim = Claim::new(name, OwnerId::mint(), Duration::from_secs(30));
        claim.on_contention = lock_core::backend::OnContention::Queue;
        let fault = redis.try_acquire(&claim).await.unwrap_err();
        assert_eq!(fault.effect(), Effect::NotApplied);
        assert!(redis.inner.servers.client.queues.is_empty());
    }
}
