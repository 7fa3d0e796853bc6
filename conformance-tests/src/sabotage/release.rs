//! Saboteurs of chapter 4.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, Grant, LateAttempt, Lease, Release, ReleaseMode, Renewal,
};
use lock_core::layer::Layer;
use lock_core::{Backend, Capabilities, OwnerId, Takeover};

use super::saboteur::{Saboteur, saboteur};
use super::tools::{holder, map_attempt, map_renewals, unavailable};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(OnlyAcknowledgesReleases, "4.1", "7.2", "14.3", "14.6"),
    saboteur!(ReleasesAnyone, "4.2", "4.7"),
    saboteur!(AlwaysReleased, "4.3", "4.7", "12.2"),
    saboteur!(LeavesStaleQueueEntries, "4.4", "7.1"),
    saboteur!(AdmitsLateAttempts, "4.5"),
    saboteur!(ForgetsFormerHolders, "4.5"),
    saboteur!(IgnoresMinimumHolds, "4.6", "14.7"),
    saboteur!(KeepsTheWholeLease, "4.6"),
    saboteur!(HoldsForLongerThanItSays, "4.8", "12.15"),
    saboteur!(GivesBackAnyGrant, "4.9"),
];

#[derive(Debug, Default)]
struct OnlyAcknowledgesReleases;
#[async_trait]
impl Layer for OnlyAcknowledgesReleases {
    async fn release(&self, _: &dyn Backend, _: &Claim, _: ReleaseMode) -> Result<Release, Fault> {
        Ok(Release::Released)
    }
}

#[derive(Debug, Default)]
struct ReleasesAnyone;
#[async_trait]
impl Layer for ReleasesAnyone {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let answer = inner.release(claim, how).await?;
        if let (Release::NotHeld, Some(owner)) = (answer, holder(inner, &claim.name).await) {
            inner.break_lock(&claim.name, &owner).await?;
            return Ok(Release::Released);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
pub(super) struct NeverReleases;
#[async_trait]
impl Layer for NeverReleases {
    async fn release(&self, _: &dyn Backend, _: &Claim, _: ReleaseMode) -> Result<Release, Fault> {
        Err(unavailable())
    }
}

/// Breaks the lock after a release without an answer.
///
/// That release may have been applied, and another client may hold the lock by now.
#[derive(Debug, Default)]
pub(super) struct RetriesReleasesBlindly;
#[async_trait]
impl Layer for RetriesReleasesBlindly {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let failed = match inner.release(claim, how).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        match holder(inner, &claim.name).await {
            Some(owner) if inner.break_lock(&claim.name, &owner).await? => Ok(Release::Released),
            _ => Err(failed),
        }
    }
}

#[derive(Debug, Default)]
struct AlwaysReleased;
#[async_trait]
impl Layer for AlwaysReleased {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        inner.release(claim, how).await.map(|_| Release::Released)
    }
}

#[derive(Debug, Default)]
struct LeavesStaleQueueEntries;
#[async_trait]
impl Layer for LeavesStaleQueueEntries {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if holder(inner, &claim.name).await == Some(claim.owner) {
            return inner.release(claim, how).await;
        }
        Ok(Release::NotHeld)
    }
}

#[derive(Debug, Default)]
struct AdmitsLateAttempts;
#[async_trait]
impl Layer for AdmitsLateAttempts {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: ReleaseMode,
    ) -> Result<Release, Fault> {
        how.late_attempt = LateAttempt::Excluded;
        inner.release(claim, how).await
    }
}

/// Refuses late attempts only of claims that never held the lock.
#[derive(Debug, Default)]
struct ForgetsFormerHolders;
#[async_trait]
impl Layer for ForgetsFormerHolders {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if holder(inner, &claim.name).await == Some(claim.owner) {
            how.late_attempt = LateAttempt::Excluded;
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct IgnoresMinimumHolds;
#[async_trait]
impl Layer for IgnoresMinimumHolds {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: ReleaseMode,
    ) -> Result<Release, Fault> {
        how.keep = None;
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct KeepsTheWholeLease;
#[async_trait]
impl Layer for KeepsTheWholeLease {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if how.keep.is_some() {
            return Ok(Release::Released);
        }
        inner.release(claim, how).await
    }
}

/// Takes the lock back from a claim that was released before, as if that were its earlier grant.
#[derive(Debug, Default)]
struct GivesBackAnyGrant(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Layer for GivesBackAnyGrant {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let answer = inner.try_acquire(claim).await?;
        let was_released = self.0.lock().expect("no panic").contains(&claim.owner);
        if let (true, Attempt::Acquired(grant)) = (was_released, &answer) {
            let mut given_back = claim.clone();
            given_back.ticket.clone_from(&grant.ticket);
            inner.release(&given_back, ReleaseMode::now()).await?;
        }
        Ok(answer)
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        self.0.lock().expect("no panic").insert(claim.owner);
        inner.release(claim, how).await
    }
}

/// Asks for twice the lease, and declares that the server keeps no lock beyond what it was asked
/// for.
#[derive(Debug, Default)]
struct HoldsForLongerThanItSays;
impl HoldsForLongerThanItSays {
    fn twice(claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        claim.ttl *= 2;
        claim
    }

    fn half(mut grant: Grant) -> Grant {
        if let Lease::For(lease) = &mut grant.lease {
            *lease /= 2;
        }
        grant
    }
}
#[async_trait]
impl Layer for HoldsForLongerThanItSays {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities().takeover(Takeover::LeasePlus(Duration::ZERO))
    }
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(&Self::twice(claim)).await, Self::half)
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let claims: Vec<_> = claims.iter().map(|claim| Self::twice(claim)).collect();
        map_renewals(inner.renew(&claims.iter().collect::<Vec<_>>()).await, Self::half)
    }
}
