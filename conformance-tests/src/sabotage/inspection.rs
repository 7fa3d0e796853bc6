//! Saboteurs of chapter 9.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Claim, Fault, HoldKind, Listed, LockState, Release, ReleaseMode, Renewal,
};
use lock_core::layer::Layer;
use lock_core::{Backend, Capabilities, LockName, OwnerId, Support};

use super::saboteur::{Saboteur, saboteur};
use super::tools::holder;

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(HidesWhatItCan, "9.1", "9.2", "9.3", "9.4"),
    saboteur!(InspectSeesNothing, "9.1"),
    saboteur!(InspectTakesTheLock, "9.1"),
    saboteur!(BreaksAnyone, "9.2"),
    saboteur!(ListsInAnyOrder, "9.3"),
    saboteur!(ListsWithoutLimit, "9.3"),
    saboteur!(ListsShortPages, "9.3"),
    saboteur!(ReleasesOnlyWhatItRenewed, "9.4"),
];

#[derive(Debug, Default)]
struct HidesWhatItCan;
#[async_trait]
impl Layer for HidesWhatItCan {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner
            .capabilities()
            .detached(Support::Absent)
            .inspecting(Support::Absent)
            .listing(Support::Absent)
            .breaking(Support::Absent)
    }
}

#[derive(Debug, Default)]
struct InspectSeesNothing;
#[async_trait]
impl Layer for InspectSeesNothing {
    async fn inspect(&self, _: &dyn Backend, _: &LockName) -> Result<LockState, Fault> {
        Ok(LockState::default())
    }
}

#[derive(Debug, Default)]
struct InspectTakesTheLock;
#[async_trait]
impl Layer for InspectTakesTheLock {
    async fn inspect(&self, inner: &dyn Backend, name: &LockName) -> Result<LockState, Fault> {
        // The usual way to inspect a kernel lock: try it.
        let state = inner.inspect(name).await?;
        inner
            .try_acquire(&Claim::new(name.clone(), OwnerId::mint(), Duration::from_secs(60)))
            .await?;
        Ok(state)
    }
}

#[derive(Debug, Default)]
struct BreaksAnyone;
#[async_trait]
impl Layer for BreaksAnyone {
    async fn break_lock(
        &self,
        inner: &dyn Backend,
        name: &LockName,
        _: &OwnerId,
    ) -> Result<bool, Fault> {
        match holder(inner, name).await {
            Some(owner) => inner.break_lock(name, &owner).await,
            None => Ok(false),
        }
    }
}

#[derive(Debug, Default)]
struct ListsInAnyOrder;
#[async_trait]
impl Layer for ListsInAnyOrder {
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let mut listed = inner.list(prefix, after, limit).await?;
        listed.reverse();
        Ok(listed)
    }
}

#[derive(Debug, Default)]
struct ListsWithoutLimit;
#[async_trait]
impl Layer for ListsWithoutLimit {
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        _: usize,
    ) -> Result<Vec<Listed>, Fault> {
        inner.list(prefix, after, usize::MAX).await
    }
}

/// Drops the locks that a scan found free from a page, without looking for others.
#[derive(Debug, Default)]
struct ListsShortPages;
#[async_trait]
impl Layer for ListsShortPages {
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let mut listed = inner.list(prefix, after, limit).await?;
        if listed.len() == limit {
            listed.pop();
        }
        Ok(listed)
    }
}

/// Learns from renewals alone which detached locks it can release.
#[derive(Debug, Default)]
struct ReleasesOnlyWhatItRenewed(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Layer for ReleasesOnlyWhatItRenewed {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.0.lock().unwrap().extend(claims.iter().map(|claim| claim.owner));
        inner.renew(claims).await
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if claim.hold == HoldKind::Detached && !self.0.lock().unwrap().contains(&claim.owner) {
            return Ok(Release::NotHeld);
        }
        inner.release(claim, how).await
    }
}
