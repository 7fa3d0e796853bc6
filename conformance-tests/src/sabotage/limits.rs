//! Saboteurs of chapter 10.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault};
use lock_core::layer::Layer;
use lock_core::{Backend, LockName};

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(FoldsCase, "10.1"),
    saboteur!(CutsNames, "10.1"),
    saboteur!(ReadsLongLeasesAsDates, "10.2"),
    saboteur!(RoundsShortLeasesToForever, "10.2"),
];

#[derive(Debug, Default)]
struct FoldsCase;
#[async_trait]
impl Layer for FoldsCase {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        attempt_renamed(str::to_lowercase, inner, claim).await
    }
}

#[derive(Debug, Default)]
struct CutsNames;
#[async_trait]
impl Layer for CutsNames {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        attempt_renamed(|name| name.chars().take(250).collect(), inner, claim).await
    }
}

#[derive(Debug, Default)]
struct ReadsLongLeasesAsDates;
#[async_trait]
impl Layer for ReadsLongLeasesAsDates {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let answer = inner.try_acquire(claim).await?;
        if claim.ttl > Duration::from_secs(30 * 24 * 3600) {
            inner.break_lock(&claim.name, &claim.owner).await?;
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct RoundsShortLeasesToForever;
#[async_trait]
impl Layer for RoundsShortLeasesToForever {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        if claim.ttl < Duration::from_secs(1) {
            claim.ttl = inner.capabilities().ttl_max;
        }
        inner.try_acquire(&claim).await
    }
}

/// Attempts under a changed name.
async fn attempt_renamed(
    change: fn(&str) -> String,
    inner: &dyn Backend,
    claim: &Claim,
) -> Result<Attempt, Fault> {
    let mut claim = claim.clone();
    claim.name = LockName::new(change(claim.name.as_str())).expect("still a name");
    inner.try_acquire(&claim).await
}
