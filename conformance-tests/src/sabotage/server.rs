//! Saboteurs of chapter 13.

use std::sync::Mutex;

use async_trait::async_trait;
use lock_core::Backend;
use lock_core::backend::{Attempt, Claim, Fault};
use lock_core::layer::Layer;

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[saboteur!(ServesFormerWaitersAgain, "13.4")];

/// Gives each earlier claim one more lease when the server has restarted.
#[derive(Debug, Default)]
struct ServesFormerWaitersAgain(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    server: Option<String>,
    claims: Vec<Claim>,
}

#[async_trait]
impl Layer for ServesFormerWaitersAgain {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let server = inner.identity().await?.map(|identity| identity.id);
        let served = {
            let mut seen = self.0.lock().unwrap();
            let has_restarted = seen.server.is_some() && seen.server != server;
            seen.server = server;
            let served = if has_restarted { std::mem::take(&mut seen.claims) } else { Vec::new() };
            seen.claims.push(claim.clone());
            served
        };
        if let Some(first) = served.first() {
            let mut first = first.clone();
            first.ttl = served.iter().map(|claim| claim.ttl).sum();
            inner.try_acquire(&first).await?;
        }
        inner.try_acquire(claim).await
    }
}
