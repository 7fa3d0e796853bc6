//! Votes that were not needed: asked for if the lock is still held in a moment. Most are let go before, so nothing but
//! a place in a list is spent on them, and one task sees to all.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::Claim;
use lock_core::clock::{Moment, sleep_until};
use tokio::runtime::Handle;

use crate::calls::Calls;
use crate::candidacy::{Candidacy, Standing};
use crate::quorum::Inner;

/// How long a lock is held before the rest of the members is asked.
const A_MOMENT: Duration = Duration::from_millis(5);

/// Grants of which some members do not know yet.
#[derive(Default)]
pub(crate) struct Later(Mutex<List>);

#[derive(Default)]
struct List {
    due: VecDeque<Due>,
    is_seen_to: bool,
}

struct Due {
    at: Moment,
    candidacy: Weak<Candidacy>,
    claim: Claim,
    token: Option<FencingToken>,
    members: Vec<usize>,
}

impl Due {
    fn is_held(&self) -> bool {
        self.candidacy.upgrade().is_some_and(|candidacy| !candidacy.notes().parted)
    }
}

impl Inner {
    /// `members` are asked as well, if `claim` is still held in a moment.
    pub(crate) fn ask_later(
        self: &Arc<Self>,
        candidacy: &Arc<Candidacy>,
        claim: &Claim,
        token: Option<FencingToken>,
        members: Vec<usize>,
    ) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (at, candidacy) = (Moment::now() + A_MOMENT, Arc::downgrade(candidacy));
        let is_seen_to = {
            let mut list = self.later.list();
            list.due.push_back(Due { at, candidacy, claim: claim.clone(), token, members });
            std::mem::replace(&mut list.is_seen_to, true)
        };
        if !is_seen_to {
            let clerk = Clerk { inner: Arc::clone(self), is_done: false };
            runtime.spawn(clerk.see_to_all());
        }
    }

    async fn ask_now(self: &Arc<Self>, due: Due) {
        let Some(candidacy) = due.candidacy.upgrade() else { return };
        let in_time = due.at + self.settings.member_timeout;
        // In a process that was stopped meanwhile, the votes that won may be gone: a late one must not replace them.
        let standing = if in_time.has_passed() { Standing::New } else { Standing::Full };
        let mut calls = Calls::new(drop);
        // Who is behind is asked with the next renewal: what goes unanswered now would have to be let go.
        for member in due.members.into_iter().filter(|&member| !self.members[member].is_slow()) {
            let (inner, candidacy) = (Arc::clone(self), Arc::clone(&candidacy));
            let claim = due.claim.clone();
            calls.begin(member, async move {
                inner.ask_behind(&candidacy, &claim, member, due.token, standing).await;
            });
        }
        while calls.next().await.is_some() {}
    }
}

impl Later {
    fn list(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sees to the list until it is empty. If its runtime ends before, somebody else can.
struct Clerk {
    inner: Arc<Inner>,
    is_done: bool,
}

impl Clerk {
    async fn see_to_all(mut self) {
        while let Some(due) = self.next() {
            sleep_until(due.at).await;
            if due.is_held() {
                let inner = Arc::clone(&self.inner);
                tokio::spawn(async move { inner.ask_now(due).await });
            }
        }
    }

    /// The next one that is still held. The others need no timer: most were let go while one was waited for.
    fn next(&mut self) -> Option<Due> {
        let mut list = self.inner.later.list();
        let mut next = list.due.pop_front();
        while next.as_ref().is_some_and(|due| !due.is_held()) {
            next = list.due.pop_front();
        }
        self.is_done = next.is_none();
        list.is_seen_to = next.is_some();
        next
    }
}

impl Drop for Clerk {
    fn drop(&mut self) {
        if !self.is_done {
            self.inner.later.list().is_seen_to = false;
        }
    }
}
