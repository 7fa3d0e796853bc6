//! Saboteurs of chapter 3.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, Grant, Lease, Release, ReleaseMode, Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::layer::Layer;
use lock_core::{Backend, OwnerId};

use super::saboteur::{Saboteur, saboteur};
use super::tools::{Expiries, forged_grant, map_attempt, map_wake};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(RenewAlwaysHeld, "3.1", "2.2", "2.3", "14.5"),
    saboteur!(ExaggeratesItsLease, "3.2", "1.4"),
    saboteur!(NotifiesNoLoss, "3.3"),
    saboteur!(ReleasesAtTheDeadline, "3.4"),
    saboteur!(WatchesWithoutYielding, "3.5"),
];

/// Answers with the token of the grant, since another token would give it away.
#[derive(Debug, Default)]
struct RenewAlwaysHeld(Mutex<HashMap<OwnerId, Grant>>);
impl RenewAlwaysHeld {
    fn note(&self, claim: &Claim, grant: Grant) -> Grant {
        self.0.lock().unwrap().insert(claim.owner, grant.clone());
        grant
    }
}
#[async_trait]
impl Layer for RenewAlwaysHeld {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |grant| self.note(claim, grant))
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        map_wake(inner.wait(claim).await, |grant| self.note(claim, grant))
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let answers = inner.renew(claims).await.into_iter().zip(claims);
        answers
            .map(|(answer, claim)| match answer {
                Ok(Renewal::NotHeld) => {
                    let mut grant = forged_grant(claim.ttl);
                    if let Some(won) = self.0.lock().unwrap().get(&claim.owner) {
                        grant.token = won.token;
                    }
                    Ok(Renewal::Held(grant))
                }
                other => other,
            })
            .collect()
    }
}

#[derive(Debug, Default)]
struct ExaggeratesItsLease;
impl ExaggeratesItsLease {
    fn exaggerate(mut grant: Grant) -> Grant {
        if let Lease::For(lease) = grant.lease {
            grant.lease = Lease::For(lease * 3);
        }
        grant
    }
}
#[async_trait]
impl Layer for ExaggeratesItsLease {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, Self::exaggerate)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        map_wake(inner.wait(claim).await, Self::exaggerate)
    }
}

/// Releases a lock as soon as the deadline of its first lease has passed.
#[derive(Debug, Default)]
struct ReleasesAtTheDeadline(Expiries);
#[async_trait]
impl Layer for ReleasesAtTheDeadline {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let attempt = inner.try_acquire(claim).await?;
        if let Attempt::Acquired(grant) = &attempt {
            let margin = claim.ttl / 100 + inner.capabilities().margin;
            self.0.set(claim, grant.since + claim.ttl.saturating_sub(margin));
        }
        Ok(attempt)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        loop {
            self.0.end_expired(inner).await?;
            let tick = tokio::time::timeout(Duration::from_millis(1), inner.wait(claim));
            if let Ok(wake) = tick.await {
                return wake;
            }
        }
    }
}

#[derive(Debug, Default)]
struct NotifiesNoLoss;
#[async_trait]
impl Layer for NotifiesNoLoss {
    async fn wait_lost(&self, _: &dyn Backend, _: &Claim) -> Result<(), Fault> {
        std::future::pending().await
    }
}

/// Blocks the thread of a loss watch after the release of its claim, for longer than the check
/// waits.
#[derive(Debug, Default)]
struct WatchesWithoutYielding(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Layer for WatchesWithoutYielding {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        self.0.lock().unwrap().insert(claim.owner);
        inner.release(claim, how).await
    }
    async fn wait_lost(&self, inner: &dyn Backend, claim: &Claim) -> Result<(), Fault> {
        const BLOCKS: Duration = Duration::from_secs(25);

        let is_released = || self.0.lock().unwrap().contains(&claim.owner);
        while !is_released() {
            let tick = tokio::time::timeout(Duration::from_millis(1), inner.wait_lost(claim));
            if let Ok(lost) = tick.await
                && !is_released()
            {
                return lost;
            }
        }
        let until = Moment::now() + BLOCKS;
        while !until.has_passed() {
            std::thread::park_timeout(until.remaining());
        }
        Ok(())
    }
}
