//! A backend of one's own: leases on a shared table, no more than the contract asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Grant, HoldKind, Identity, Lease, Listed, LockState, Release,
    ReleaseMode, Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::{Capabilities, Durability, LockName, OwnerId, Takeover};

/// The holder of each lock, and when its lease ends. Clones share it, as clients share a server.
#[derive(Clone, Debug, Default)]
pub struct Table(Arc<Mutex<HashMap<LockName, (OwnerId, Moment)>>>);

impl Table {
    /// Makes the lease of `claim` last at least its ttl from `now` on, if the lock is its own
    /// already, or free and `may_take`. This is the atomic step.
    fn hold(&self, claim: &Claim, now: Moment, may_take: bool) -> Result<Grant, Option<Duration>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = match table.get(&claim.name) {
            Some((who, end)) if *end > now && *who == claim.owner => (*end).max(now + claim.ttl),
            Some((_, end)) if *end > now => return Err(Some(end.saturating_since(now))),
            _ if may_take => now + claim.ttl,
            _ => return Err(None),
        };
        table.insert(claim.name.clone(), (claim.owner, end));
        Ok(Grant::new(Lease::For(end.saturating_since(now)), now))
    }
}

#[async_trait]
impl Backend for Table {
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("table")
            .durability(Durability::Durable)
            .takeover(Takeover::LeasePlus(Duration::from_millis(50)))
    }
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        if claim.hold != HoldKind::Guarded {
            return Err(Fault::unsupported("a detached hold"));
        }
        Ok(match self.hold(claim, Moment::now(), true) {
            Ok(grant) => Attempt::Acquired(grant),
            Err(expires_in) => Attempt::Contended { expires_in },
        })
    }
    async fn wait(&self, _: &Claim) -> Result<Wake, Fault> {
        lock_core::clock::sleep_between(Duration::from_millis(5), Duration::from_millis(20)).await;
        Ok(Wake::Retry)
    }
    async fn wait_lost(&self, _: &Claim) -> Result<(), Fault> {
        Err(Fault::unsupported("notifications of a loss"))
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let now = Moment::now();
        let held = claims.iter().map(|claim| self.hold(claim, now, false));
        held.map(|held| Ok(held.map_or(Renewal::NotHeld, Renewal::Held))).collect()
    }
    async fn release(&self, claim: &Claim, _: ReleaseMode) -> Result<Release, Fault> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = table.get(&claim.name);
        if !held.is_some_and(|(owner, until)| *owner == claim.owner && !until.has_passed()) {
            return Ok(Release::NotHeld);
        }
        table.remove(&claim.name);
        Ok(Release::Released)
    }
    async fn inspect(&self, _: &LockName) -> Result<LockState, Fault> {
        Err(Fault::unsupported("inspect"))
    }
    async fn list(&self, _: &str, _: Option<&LockName>, _: usize) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }
    async fn break_lock(&self, _: &LockName, _: &OwnerId) -> Result<bool, Fault> {
        Err(Fault::unsupported("break"))
    }
}
