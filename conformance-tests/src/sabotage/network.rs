//! Saboteurs of chapter 12.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::Backend;
use lock_core::backend::{
    Attempt, Claim, Fault, FaultKind, Grant, Lease, Release, ReleaseMode, Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::layer::Layer;
use tokio::runtime::Handle;

use super::saboteur::{Saboteur, saboteur};
use super::tools::unavailable;

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(AssumesItsRenewals, "12.3", "13.2", "14.4"),
    saboteur!(GivesUpAtOnce, "12.4"),
    saboteur!(RepeatsItsLastAnswer, "12.6"),
    saboteur!(NeverReconnects, "12.7", "12.12", "13.3"),
    saboteur!(BlocksItsThread, "12.10"),
    saboteur!(ForgetsFailedReleases, "12.11"),
    saboteur!(CountsFromTheNotification, "12.13"),
    saboteur!(DependsOnOneRuntime, "12.14"),
];

#[derive(Debug, Default)]
struct AssumesItsRenewals;
#[async_trait]
impl Layer for AssumesItsRenewals {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let since = Moment::now();
        match tokio::time::timeout(Duration::from_millis(200), inner.renew(claims)).await {
            Ok(answers) => answers,
            Err(_) => {
                let held = |claim: &&Claim| {
                    let grant = Grant::new(Lease::For(claim.ttl), since);
                    Ok(Renewal::Held(match &claim.ticket {
                        Some(ticket) => grant.with_ticket(ticket.clone()),
                        None => grant,
                    }))
                };
                claims.iter().map(held).collect()
            }
        }
    }
}

#[derive(Debug, Default)]
struct GivesUpAtOnce;
#[async_trait]
impl Layer for GivesUpAtOnce {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let answers = inner.renew(claims).await.into_iter();
        answers.map(|answer| Ok(answer.unwrap_or(Renewal::NotHeld))).collect()
    }
}

/// Behaves as a connection that is out of step.
#[derive(Debug, Default)]
struct RepeatsItsLastAnswer {
    last: Mutex<Option<Release>>,
}
#[async_trait]
impl Layer for RepeatsItsLastAnswer {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let answer = inner.release(claim, how).await?;
        let last = self.last.lock().expect("no holder of this mutex panics").replace(answer);
        Ok(last.unwrap_or(answer))
    }
}

#[derive(Debug, Default)]
struct NeverReconnects {
    broken: AtomicBool,
}
impl NeverReconnects {
    fn pass(&self) -> Result<(), Fault> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Fault::not_applied(FaultKind::Unavailable, "the connection is gone"));
        }
        Ok(())
    }

    fn note<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if answer.is_err() {
            self.broken.store(true, Ordering::SeqCst);
        }
        answer
    }
}
#[async_trait]
impl Layer for NeverReconnects {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.pass()?;
        self.note(inner.try_acquire(claim).await)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        self.pass()?;
        self.note(inner.wait(claim).await)
    }
    /// Fails while the server is down, even where each wait survives that without an error.
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        match self.pass() {
            Ok(()) => inner.renew(claims).await.into_iter().map(|one| self.note(one)).collect(),
            Err(_) => claims.iter().map(|_| Err(unavailable())).collect(),
        }
    }
}

#[derive(Debug, Default)]
struct BlocksItsThread;
#[async_trait]
impl Layer for BlocksItsThread {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        match tokio::time::timeout(Duration::from_secs(1), inner.try_acquire(claim)).await {
            Ok(answer) => answer,
            Err(_) => {
                #[expect(clippy::disallowed_methods, reason = "that is the sabotage")]
                std::thread::sleep(Duration::from_secs(8));
                Err(Fault::unknown(FaultKind::TimedOut, "at last"))
            }
        }
    }
}

/// Renews by a task of the runtime that connected last, like a connection that lives there.
#[derive(Debug, Default)]
struct DependsOnOneRuntime(Mutex<Option<Handle>>);
#[async_trait]
impl Layer for DependsOnOneRuntime {
    fn attach(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Handle::try_current().ok();
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let runtime = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_alive = match runtime {
            Some(runtime) => runtime.spawn(async {}).await.is_ok(),
            None => true,
        };
        match is_alive {
            true => inner.renew(claims).await,
            false => {
                let fault = || Fault::unknown(FaultKind::Unavailable, "no connection");
                claims.iter().map(|_| Err(fault())).collect()
            }
        }
    }
}

#[derive(Debug, Default)]
struct CountsFromTheNotification;
#[async_trait]
impl Layer for CountsFromTheNotification {
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        let mut wake = inner.wait(claim).await?;
        if let Wake::Granted(grant) = &mut wake {
            grant.since = Moment::now();
        }
        Ok(wake)
    }
}

#[derive(Debug, Default)]
struct ForgetsFailedReleases;
#[async_trait]
impl Layer for ForgetsFailedReleases {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        match tokio::time::timeout(Duration::from_millis(200), inner.release(claim, how)).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Ok(Release::Released),
        }
    }
}
