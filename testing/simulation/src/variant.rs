//! A backend as one run has it: with a fast clock, or without a queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, Grant, Identity, Lease, Listed, LockState, OnContention, Release,
    ReleaseMode, Renewal, Wake,
};
use lock_core::{Backend, Capabilities, Executor, LockName, Order, OwnerId, Support, Wakeup};

/// A client of the backend of a run. A server with a fast clock ends a lease before the time that its
/// clients know.
#[derive(Debug)]
pub(super) struct Variant {
    pub(super) inner: Arc<dyn Backend>,
    /// By how many in ten thousand the server's clock is too fast.
    pub(super) drift: u32,
    /// Keeps no queue and no minimum hold: core sees to both.
    pub(super) is_queueless: bool,
}

impl Variant {
    fn on_the_server(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if self.is_queueless {
            claim.on_contention = OnContention::Return;
        }
        claim.ttl = claim.ttl * 10_000 / (10_000 + self.drift);
        claim
    }

    fn told(&self, of_server: Duration) -> Duration {
        of_server * (10_000 + self.drift) / 10_000
    }

    fn grant(&self, mut grant: Grant) -> Grant {
        if let Lease::For(lease) = grant.lease {
            grant.lease = Lease::For(self.told(lease));
        }
        grant
    }
}

#[async_trait]
impl Backend for Variant {
    fn executor(&self) -> Option<Executor> {
        self.inner.executor()
    }

    fn capabilities(&self) -> Capabilities {
        let mut caps = self.inner.capabilities();
        if self.is_queueless {
            caps.order = Order::PerProcess;
            caps.wakeup = Wakeup::Signal;
            caps.minimum_hold = Support::Absent;
        }
        caps
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.identity().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match self.inner.try_acquire(&self.on_the_server(claim)).await? {
            Attempt::Acquired(grant) => Attempt::Acquired(self.grant(grant)),
            Attempt::Contended { expires_in } => {
                Attempt::Contended { expires_in: expires_in.map(|left| self.told(left)) }
            }
        })
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        Ok(match self.inner.wait(&self.on_the_server(claim)).await? {
            Wake::Granted(grant) => Wake::Granted(self.grant(grant)),
            other => other,
        })
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.inner.wait_lost(claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let claims: Vec<Claim> = claims.iter().map(|claim| self.on_the_server(claim)).collect();
        let answers = self.inner.renew(&claims.iter().collect::<Vec<_>>()).await;
        let told = |renewal| match renewal {
            Renewal::Held(grant) => Renewal::Held(self.grant(grant)),
            Renewal::NotHeld => Renewal::NotHeld,
        };
        answers.into_iter().map(|answer| answer.map(told)).collect()
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        self.inner.release(claim, how).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.inner.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.inner.list(prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.inner.break_lock(name, expected).await
    }
}
