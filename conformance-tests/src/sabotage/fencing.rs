//! Saboteurs of chapter 5.

use std::sync::{Mutex, OnceLock};

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, Renewal, Wake};
use lock_core::layer::Layer;
use lock_core::{Backend, Capabilities, Fencing, FencingToken, Support};

use super::saboteur::{Saboteur, saboteur};
use super::tools::{map_attempt, map_renewals, map_wake};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(RepeatsTokens, "5.1", "14.2"),
    saboteur!(LosesTokens, "5.1"),
    saboteur!(HandsOverOldTokens, "5.1"),
    saboteur!(RenewsWithoutToken, "5.1"),
    saboteur!(IssuesUndeclaredTokens, "5.1", "5.3"),
    saboteur!(IgnoresMinimumTokens, "5.2"),
    saboteur!(UsesLowBits, "5.3"),
];

#[derive(Debug, Default)]
struct RepeatsTokens(OnceLock<Option<FencingToken>>);
#[async_trait]
impl Layer for RepeatsTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |mut grant| {
            grant.token = *self.0.get_or_init(|| grant.token);
            grant
        })
    }
}

#[derive(Debug, Default)]
struct HandsOverOldTokens(Mutex<Option<FencingToken>>);
#[async_trait]
impl Layer for HandsOverOldTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |grant| {
            *self.0.lock().unwrap() = grant.token;
            grant
        })
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        map_wake(inner.wait(claim).await, |mut grant| {
            grant.token = *self.0.lock().unwrap();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct RenewsWithoutToken;
#[async_trait]
impl Layer for RenewsWithoutToken {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        map_renewals(inner.renew(claims).await, |mut grant| {
            grant.token = None;
            grant
        })
    }
}

#[derive(Debug, Default)]
struct LosesTokens;
#[async_trait]
impl Layer for LosesTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |mut grant| {
            grant.token = None;
            grant
        })
    }
}

#[derive(Debug, Default)]
struct IssuesUndeclaredTokens;
#[async_trait]
impl Layer for IssuesUndeclaredTokens {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities().fencing(Fencing::None).min_token_supported(Support::Absent)
    }
}

#[derive(Debug, Default)]
struct IgnoresMinimumTokens;
#[async_trait]
impl Layer for IgnoresMinimumTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.min_token = None;
        inner.try_acquire(&claim).await
    }
}

#[derive(Debug, Default)]
struct UsesLowBits;
#[async_trait]
impl Layer for UsesLowBits {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        map_attempt(inner.try_acquire(claim).await, |mut grant| {
            grant.token = grant.token.map(|token| FencingToken::from_u64(token.as_u64() | 1));
            grant
        })
    }
}
