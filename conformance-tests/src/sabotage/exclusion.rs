//! Saboteurs of chapter 1.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, Renewal, Wake};
use lock_core::clock::Moment;
use lock_core::layer::Layer;
use lock_core::{Backend, Capabilities, Takeover};

use super::saboteur::{Saboteur, saboteur};
use super::tools::{Expiries, forged_grant, holder, map_attempt, map_renewals, map_wake};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(GrantsEveryone, "1.1", "6.5", "14.1"),
    saboteur!(ForgetsItsOwner, "1.2", "8.1"),
    saboteur!(AttemptShortens, "1.2"),
    saboteur!(CountsFromTheReply, "1.3"),
    saboteur!(CountsFromThePush, "1.3"),
    saboteur!(HidesItsLeases, "1.3", "2.1", "2.4", "3.2"),
    saboteur!(ExpiresEarly, "1.4", "6.6", "14.8"),
];

#[derive(Debug, Default)]
struct GrantsEveryone;
#[async_trait]
impl Layer for GrantsEveryone {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        match inner.try_acquire(claim).await? {
            Attempt::Contended { .. } => Ok(Attempt::Acquired(forged_grant(claim.ttl))),
            acquired => Ok(acquired),
        }
    }
}

#[derive(Debug, Default)]
struct ForgetsItsOwner;
#[async_trait]
impl Layer for ForgetsItsOwner {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if holder(inner, &claim.name).await == Some(claim.owner) {
            return Ok(Attempt::Contended { expires_in: None });
        }
        inner.try_acquire(claim).await
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        // Nor does it know to which claim it handed the lock.
        inner.wait(claim).await?;
        Ok(Wake::Retry)
    }
}

#[derive(Debug, Default)]
struct AttemptShortens(Expiries);
#[async_trait]
impl Layer for AttemptShortens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.end_expired(inner).await?;
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            self.0.set(claim, Moment::now() + claim.ttl);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct CountsFromThePush;
#[async_trait]
impl Layer for CountsFromThePush {
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        map_wake(inner.wait(claim).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct CountsFromTheReply;
#[async_trait]
impl Layer for CountsFromTheReply {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        map_renewals(inner.renew(claims).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct HidesItsLeases;
#[async_trait]
impl Layer for HidesItsLeases {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities().takeover(Takeover::AtOnce)
    }
}

#[derive(Debug, Default)]
struct ExpiresEarly(Expiries);
#[async_trait]
impl Layer for ExpiresEarly {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.end_expired(inner).await?;
        match inner.try_acquire(claim).await? {
            Attempt::Acquired(grant) => {
                self.0.set(claim, Moment::now() + claim.ttl / 2);
                Ok(Attempt::Acquired(grant))
            }
            contended @ Attempt::Contended { .. } => Ok(contended),
        }
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        loop {
            self.0.end_expired(inner).await?;
            let tick = tokio::time::timeout(Duration::from_millis(10), inner.wait(claim));
            if let Ok(wake) = tick.await {
                self.0.set(claim, Moment::now() + claim.ttl / 2);
                return wake;
            }
        }
    }
}
