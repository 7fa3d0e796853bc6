//! Saboteurs of chapter 11.

use std::fmt;
use std::sync::Mutex;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault};
use lock_core::layer::Layer;
use lock_core::{Backend, OwnerId};

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[saboteur!(ShowsOwners, "11.1")];

#[derive(Debug, Default)]
struct ShowsOwners(Mutex<Option<OwnerId>>);
#[async_trait]
impl Layer for ShowsOwners {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        *self.0.lock().unwrap() = Some(claim.owner);
        inner.try_acquire(claim).await
    }
    fn debug(&self, inner: &dyn Backend, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.lock().unwrap().map(|owner| owner.expose());
        write!(f, "{inner:?}, last owner {last:?}")
    }
}
