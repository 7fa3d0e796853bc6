//! Saboteurs of chapter 8.

use async_trait::async_trait;
use lock_core::Backend;
use lock_core::backend::{Attempt, Claim, Fault, Release, ReleaseMode};
use lock_core::layer::Layer;

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(SwallowsUnknownOutcomes, "8.1", "12.1", "12.5", "13.1"),
    saboteur!(CallsFaultsContention, "8.2", "12.9"),
];

#[derive(Debug, Default)]
struct SwallowsUnknownOutcomes;
#[async_trait]
impl Layer for SwallowsUnknownOutcomes {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if how.expects_late_attempt() {
            return Ok(Release::NotHeld);
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct CallsFaultsContention;
#[async_trait]
impl Layer for CallsFaultsContention {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(inner.try_acquire(claim).await.unwrap_or(Attempt::Contended { expires_in: None }))
    }
}
