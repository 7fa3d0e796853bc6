//! Attempts that were not needed for a grant, and are made if the lock is still held in a moment.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use lock_core::FencingToken;
use lock_core::backend::Claim;
use lock_core::clock::Moment;

use crate::claim::QuorumClaim;

/// Grants of which some members do not know yet.
#[derive(Default)]
pub(crate) struct DeferredAttempts(Mutex<DeferredList>);

#[derive(Default)]
pub(crate) struct DeferredList {
    pub(crate) due: VecDeque<DeferredAttempt>,
    pub(crate) has_task: bool,
}

pub(crate) struct DeferredAttempt {
    pub(crate) at: Moment,
    pub(crate) quorum_claim: Weak<QuorumClaim>,
    pub(crate) claim: Claim,
    pub(crate) token: Option<FencingToken>,
    pub(crate) members: Vec<usize>,
}

impl DeferredAttempt {
    pub(crate) fn is_held(&self) -> bool {
        self.quorum_claim.upgrade().is_some_and(|quorum_claim| !quorum_claim.status().released)
    }
}

impl DeferredAttempts {
    pub(crate) fn list(&self) -> MutexGuard<'_, DeferredList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
