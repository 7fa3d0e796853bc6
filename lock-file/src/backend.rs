//! The backend trait.
//!
//! All verbs are a few system calls on a local file system and run where they are polled. There is
//! no server to wait for, and no call blocks until it has a lock. Work that waits for a disk, once
//! in a minute of a busy lock, runs on a [thread of its own](crate::disk_thread).

use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Identity, Listed, LockState, Release, ReleaseMode, Renewal,
    Wake,
};
use lock_core::{
    Capabilities, Durability, Fencing, LockName, OwnerId, Reach, Support, Takeover, Wakeup,
};

use crate::config::FileLocks;
use crate::file_watch;

#[async_trait]
impl Backend for FileLocks {
    fn capabilities(&self) -> Capabilities {
        let listed_by_kernel = cfg!(any(target_os = "linux", target_os = "android"));
        Capabilities::minimal("file")
            .fencing(if self.inner.durable { Fencing::Durable } else { Fencing::Seeded })
            .wakeup(if file_watch::IS_SUPPORTED { Wakeup::Signal } else { Wakeup::Poll })
            .durability(Durability::Durable)
            .reach(match self.inner.directory.share() {
                Some(_) => Reach::Host,
                None => Reach::User,
            })
            .ttl_max(Duration::from_secs(365 * 24 * 3600))
            .takeover(Takeover::AtOnce)
            .detached(if self.inner.boot.is_some() { Support::Present } else { Support::Absent })
            .late_attempts_refused(Support::Present)
            .min_token_supported(Support::Present)
            .loss_push(if file_watch::IS_SUPPORTED { Support::Present } else { Support::Absent })
            .inspecting(if listed_by_kernel { Support::Present } else { Support::Absent })
            .listing(if listed_by_kernel { Support::Present } else { Support::Absent })
            .breaking(Support::Present)
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Self::identity(self).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        Self::try_acquire(self, claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        Self::wait(self, claim).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        Self::wait_lost(self, claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        Self::renew(self, claims).await
    }

    async fn release(&self, claim: &Claim, mode: ReleaseMode) -> Result<Release, Fault> {
        Self::release(self, claim, mode).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        Self::inspect(self, name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Self::list(self, prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        Self::break_lock(self, name, expected).await
    }
}
