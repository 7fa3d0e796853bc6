//! Saboteurs of chapter 7.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, Release, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::layer::Layer;
use lock_core::{Backend, OwnerId};

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[saboteur!(KeepsTheCancelled, "7.1", "7.3")];

/// Acknowledges the release of a claim that was granted a moment ago, and leaves it to its lease.
#[derive(Debug, Default)]
struct KeepsTheCancelled(Mutex<HashMap<OwnerId, Moment>>);
#[async_trait]
impl Layer for KeepsTheCancelled {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let answer = inner.try_acquire(claim).await?;
        self.0.lock().unwrap().insert(claim.owner, Moment::now());
        Ok(answer)
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let asked = self.0.lock().unwrap().remove(&claim.owner);
        if asked.is_some_and(|at| !(at + Duration::from_millis(10)).has_passed()) {
            return Ok(Release::Released);
        }
        inner.release(claim, how).await
    }
}
