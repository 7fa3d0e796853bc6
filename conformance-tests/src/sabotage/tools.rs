//! Shared parts of saboteurs.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, FaultKind, Grant, Lease, Renewal, Wake};
use lock_core::clock::Moment;
use lock_core::{Backend, FencingToken, LockName, OwnerId};

/// Returns a grant that no server made, with a token above all tokens of a server.
pub(super) fn forged_grant(lease: Duration) -> Grant {
    static NUMBER: AtomicU64 = AtomicU64::new(1 << 54);
    let token = FencingToken::from_backend(NUMBER.fetch_add(1, Ordering::Relaxed));
    let grant = Grant::new(Lease::For(lease), Moment::now());
    token.map_or(grant.clone(), |token| grant.with_token(token))
}

/// Changes the grant in the answer to an attempt.
pub(super) fn map_attempt(
    answer: Result<Attempt, Fault>,
    change: impl Fn(Grant) -> Grant,
) -> Result<Attempt, Fault> {
    answer.map(|attempt| match attempt {
        Attempt::Acquired(grant) => Attempt::Acquired(change(grant)),
        contended @ Attempt::Contended { .. } => contended,
    })
}

/// Changes the grant in the answer to a wait.
pub(super) fn map_wake(
    answer: Result<Wake, Fault>,
    change: impl Fn(Grant) -> Grant,
) -> Result<Wake, Fault> {
    answer.map(|wake| match wake {
        Wake::Granted(grant) => Wake::Granted(change(grant)),
        other => other,
    })
}

/// Changes the grants in the answers to renewals.
pub(super) fn map_renewals(
    answers: Vec<Result<Renewal, Fault>>,
    change: impl Fn(Grant) -> Grant,
) -> Vec<Result<Renewal, Fault>> {
    let each = answers.into_iter().map(|answer| {
        answer.map(|renewal| match renewal {
            Renewal::Held(grant) => Renewal::Held(change(grant)),
            Renewal::NotHeld => Renewal::NotHeld,
        })
    });
    each.collect()
}

/// Returns the owner id of the holder, as the backend shows it.
pub(super) async fn holder(inner: &dyn Backend, name: &LockName) -> Option<OwnerId> {
    inner.inspect(name).await.ok()?.holders.first()?.owner
}

/// Locks that a saboteur breaks at the first call after a moment of its own.
#[derive(Debug, Default)]
pub(super) struct Expiries(Mutex<HashMap<OwnerId, (LockName, Moment)>>);

impl Expiries {
    /// Sets the moment at which a claim ends.
    pub(super) fn set(&self, claim: &Claim, at: Moment) {
        self.0.lock().unwrap().insert(claim.owner, (claim.name.clone(), at));
    }

    /// Breaks the locks whose moment has passed.
    pub(super) async fn end_expired(&self, inner: &dyn Backend) -> Result<(), Fault> {
        let over: Vec<_> = {
            let mut expiries = self.0.lock().unwrap();
            expiries.extract_if(|_, (_, at)| at.has_passed()).collect()
        };
        for (owner, (name, _)) in over {
            inner.break_lock(&name, &owner).await?;
        }
        Ok(())
    }
}

/// Returns a fault that changed nothing.
pub(super) fn unavailable() -> Fault {
    Fault::not_applied(FaultKind::Unavailable, "not now")
}
