//! Votes that were not needed for the grant, asked for if the lock is still held after a short
//! delay. Most locks are released before. So each costs only an entry in a list, and one task
//! serves all entries.

use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::Claim;
use lock_core::clock::{Moment, sleep_until};
use tokio::runtime::Handle;

use crate::calls::Calls;
use crate::claim::{Confirmation, QuorumClaim};
use crate::deferred::DeferredAttempt;
use crate::quorum::Inner;

/// How long a lock is held before the remaining members are asked.
const DEFERRAL: Duration = Duration::from_millis(5);

impl Inner {
    /// Asks `members` as well, if `claim` is still held after the delay.
    pub(crate) fn defer_attempts(
        self: &Arc<Self>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        token: Option<FencingToken>,
        members: Vec<usize>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (at, quorum_claim) = (Moment::now() + DEFERRAL, Arc::downgrade(quorum_claim));
        let has_task = {
            let mut list = self.deferred.list();
            list.due.push_back(DeferredAttempt {
                at,
                quorum_claim,
                claim: claim.clone(),
                token,
                members,
            });
            std::mem::replace(&mut list.has_task, true)
        };
        if !has_task {
            let task = DeferredTask { inner: Arc::clone(self), is_done: false };
            runtime.spawn(task.run());
        }
    }

    async fn start_deferred(self: &Arc<Self>, due: DeferredAttempt) {
        let Some(quorum_claim) = due.quorum_claim.upgrade() else { return };
        let in_time = due.at + self.settings.member_timeout;
        // If the process was stopped meanwhile, the votes of the majority may be gone: a late vote
        // must not replace them.
        let confirmation =
            if in_time.has_passed() { Confirmation::Unconfirmed } else { Confirmation::Confirmed };
        let mut calls = Calls::new(drop);
        // A member that may hang is asked with the next renewal: an unanswered attempt would have
        // to be released.
        for member in due.members.into_iter().filter(|&member| !self.members[member].is_silent()) {
            let (inner, quorum_claim) = (Arc::clone(self), Arc::clone(&quorum_claim));
            let claim = due.claim.clone();
            calls.begin(member, async move {
                inner
                    .attempt_in_background(&quorum_claim, &claim, member, due.token, confirmation)
                    .await;
            });
        }
        while calls.next().await.is_some() {}
    }
}

/// The task that serves the list until it is empty. If its runtime ends before, another task can be
/// started.
struct DeferredTask {
    inner: Arc<Inner>,
    is_done: bool,
}

impl DeferredTask {
    async fn run(mut self) {
        while let Some(due) = self.next() {
            sleep_until(due.at).await;
            if due.is_held() {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move { inner.start_deferred(due).await });
            }
        }
    }

    /// Returns the next entry that is still held. The others need no timer: most were released
    /// during the wait for an earlier one.
    fn next(&mut self) -> Option<DeferredAttempt> {
        let mut list = self.inner.deferred.list();
        let mut next = list.due.pop_front();
        while next.as_ref().is_some_and(|due| !due.is_held()) {
            next = list.due.pop_front();
        }
        self.is_done = next.is_none();
        list.has_task = next.is_some();
        next
    }
}

impl Drop for DeferredTask {
    fn drop(&mut self) {
        if !self.is_done {
            self.inner.deferred.list().has_task = false;
        }
    }
}
