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
    /// One claim for the leases of all earlier ones, until it was granted.
    former: Option<Claim>,
}

impl Seen {
    fn note(&mut self, claim: &Claim, server: Option<String>) -> Option<Claim> {
        if self.server.is_some() && self.server != server {
            let ttl = self.claims.iter().map(|claim| claim.ttl).sum();
            self.former = self.claims.drain(..).next();
            self.former.iter_mut().for_each(|former| former.ttl = ttl);
        }
        self.server = server;
        self.claims.push(claim.clone());
        self.former.clone()
    }
}

#[async_trait]
impl Layer for ServesFormerWaitersAgain {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let server = inner.identity().await?.map(|identity| identity.id);
        let former = self.0.lock().unwrap().note(claim, server);
        if let Some(former) = former {
            // Servers that have just started may refuse it.
            inner.try_acquire(&former).await?;
            self.0.lock().unwrap().former = None;
        }
        inner.try_acquire(claim).await
    }
}
