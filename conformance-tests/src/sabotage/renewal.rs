//! Saboteurs of chapter 2.

use async_trait::async_trait;
use lock_core::Backend;
use lock_core::backend::{Attempt, Claim, Fault, Grant, Lease, Renewal};
use lock_core::clock::Moment;
use lock_core::layer::Layer;

use super::saboteur::{Saboteur, saboteur};
use super::tools::{Expiries, forged_grant, holder, map_attempt, map_renewals, unavailable};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(OnlyAcknowledgesRenewals, "2.1"),
    saboteur!(RenewRecreates, "2.2"),
    saboteur!(RenewAdopts, "2.3", "9.4"),
    saboteur!(RenewShortens, "2.4"),
    saboteur!(AnswersOutOfOrder, "2.5"),
    saboteur!(LeavesNextToNothing, "2.6"),
];

#[derive(Debug, Default)]
struct OnlyAcknowledgesRenewals;
#[async_trait]
impl Layer for OnlyAcknowledgesRenewals {
    async fn renew(&self, _: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        claims.iter().map(|claim| Ok(Renewal::Held(forged_grant(claim.ttl)))).collect()
    }
}

#[derive(Debug, Default)]
struct RenewRecreates;
#[async_trait]
impl Layer for RenewRecreates {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(inner.try_acquire(claim).await.map(|attempt| match attempt {
                Attempt::Acquired(grant) => Renewal::Held(grant),
                Attempt::Contended { .. } => Renewal::NotHeld,
            }));
        }
        answers
    }
}

#[derive(Debug, Default)]
struct RenewAdopts;
#[async_trait]
impl Layer for RenewAdopts {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::new();
        for claim in claims {
            let mut found = (*claim).clone();
            found.owner = holder(inner, &claim.name).await.unwrap_or(claim.owner);
            answers.extend(inner.renew(&[&found]).await);
        }
        answers
    }
}

#[derive(Debug, Default)]
struct RenewShortens(Expiries);
#[async_trait]
impl Layer for RenewShortens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.end_expired(inner).await?;
        inner.try_acquire(claim).await
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        for claim in claims {
            self.0.set(claim, Moment::now() + claim.ttl);
        }
        inner.renew(claims).await
    }
}

#[derive(Debug, Default)]
struct AnswersOutOfOrder;
#[async_trait]
impl Layer for AnswersOutOfOrder {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = inner.renew(claims).await;
        answers.sort_by_key(|answer| matches!(answer, Ok(Renewal::NotHeld)));
        answers
    }
}

/// Reports only the first moment of each lease.
#[derive(Debug, Default)]
struct LeavesNextToNothing;
impl LeavesNextToNothing {
    fn shorten(mut grant: Grant) -> Grant {
        if let Lease::For(lease) = grant.lease {
            grant.lease = Lease::For(lease / 200);
        }
        grant
    }
}
#[async_trait]
impl Layer for LeavesNextToNothing {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, Self::shorten)
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        map_renewals(inner.renew(claims).await, Self::shorten)
    }
}

#[derive(Debug, Default)]
pub(super) struct NeverRenews;
#[async_trait]
impl Layer for NeverRenews {
    async fn renew(&self, _: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        claims.iter().map(|_| Err(unavailable())).collect()
    }
}
