//! The trait, with one line for each verb that needs more.

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, HoldKind, Identity, Listed, LockState, Release, ReleaseMode,
    Renewal, Wake,
};
use lock_core::{Capabilities, Executor, LockName, OwnerId, Support};

use crate::quorum::Quorum;
use crate::round::Round;

#[async_trait]
impl Backend for Quorum {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.caps
    }

    /// Returns none: a quorum is not a server.
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let caps = &self.inner.caps;
        claim.must_be_exclusive()?;
        if claim.hold == HoldKind::Detached && caps.detached == Support::Absent {
            return Err(Fault::unsupported("detached holds"));
        }
        let quorum_claim = self.inner.registry.find_or_open(claim, self.inner.members.len());
        Round::new(&self.inner, &quorum_claim, claim).run().await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.inner.wait(claim).await.map(|()| Wake::Retry)
    }

    async fn wait_lost(&self, _: &Claim) -> Result<(), Fault> {
        Err(Fault::unsupported("notifications of a loss"))
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if claims.is_empty() {
            return Vec::new();
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        self.inner.release(claim, how).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        if self.inner.caps.inspecting == Support::Absent {
            return Err(Fault::unsupported("inspect"));
        }
        self.inner.inspect(name).await
    }

    /// Refuses to list, because the pages of several members do not make one page.
    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        if self.inner.caps.breaking == Support::Absent {
            return Err(Fault::unsupported("break"));
        }
        self.inner.break_lock(name, expected).await
    }
}
