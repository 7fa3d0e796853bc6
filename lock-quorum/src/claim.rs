//! What is known of one claim: at which members it was asked for, which ones voted for it, and on what
//! terms.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::backend::{Claim, Grant, OnContention, Ticket};
use lock_core::clock::Moment;
use lock_core::{FencingToken, OwnerId};
use tokio::sync::Mutex as AsyncMutex;

use crate::server::Origin;

/// One claim at all members. Lives as long as its ticket, its calls that are under way, and, while it
/// waits, until it is let go.
pub(crate) struct QuorumClaim {
    owner: OwnerId,
    /// A seat is locked while a verb of the claim is at that member: verbs of one claim are not called
    /// concurrently, and a release comes after the attempt that it undoes.
    pub(crate) records: Box<[AsyncMutex<MemberRecord>]>,
    status: Mutex<ClaimStatus>,
    registry: Weak<Registry>,
}

/// What the claim has at one member.
#[derive(Debug, Default)]
pub(crate) struct MemberRecord {
    /// An attempt was sent: there may be something to let go.
    pub(crate) asked: bool,
    /// An attempt went unanswered and may still land.
    pub(crate) may_arrive_late: bool,
    pub(crate) vote: Option<Vote>,
}

/// A member's grant.
#[derive(Clone, Debug)]
pub(crate) struct Vote {
    /// Which server has voted.
    pub(crate) origin: Origin,
    pub(crate) token: Option<FencingToken>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) since: Moment,
    /// When we learned of it first: it was there by then.
    pub(crate) known_since: Moment,
    /// `None`: as long as the process lives.
    pub(crate) ends: Option<Moment>,
    /// It counts in the next renewal: see [`Confirmation`].
    pub(crate) confirmation: Confirmation,
}

/// How a vote counts when the claim is renewed.
///
/// A vote that was won after others may have been lost must not replace them: a member that forgets us and
/// another one that lets us in make a majority of votes, and no majority that has held all the time. So such
/// a vote counts only after a renewal that began when it was known, and that a majority of the older ones has
/// confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Of the majority that won, of the rest of its round, or confirmed since.
    Confirmed,
    /// Won back, or by an attempt that landed late.
    Unconfirmed,
}

/// What is known of the claim as a whole.
#[derive(Debug, Default)]
pub(crate) struct ClaimStatus {
    /// Of the grant.
    pub(crate) token: Option<FencingToken>,
    /// A majority has granted it to us.
    pub(crate) granted: bool,
    /// Let go: nothing is to be won for it any more.
    pub(crate) released: bool,
    /// Votes of it ended by themselves while they were to be let go.
    pub(crate) expired_during_release: bool,
    /// All that is known of it are answers to a renewal or release: it was won elsewhere.
    pub(crate) granted_elsewhere: bool,
    /// The first member is to be asked alone: it has told that the lock may be free there, or it is just tried.
    pub(crate) ask_first_alone: bool,
    /// Who refused it last.
    pub(crate) refused_by: Vec<usize>,
    /// How long to keep away after votes were split.
    pub(crate) backoff: Option<Duration>,
    pub(crate) split_votes: u32,
    /// How often it looked, and somebody else had the lock.
    pub(crate) refusals: u32,
    /// How long the members took to say so last: the longer, the more are asking.
    pub(crate) took: Duration,
    /// Whoever had it then had just got it.
    pub(crate) changes_often: bool,
}

impl QuorumClaim {
    pub(crate) fn status(&self) -> MutexGuard<'_, ClaimStatus> {
        lock(&self.status)
    }

    /// True while nothing is known of `claim` that was won elsewhere. With our ticket, what is known stands in the seats.
    pub(crate) fn is_unknown(&self, claim: &Claim) -> bool {
        claim.ticket.is_none() && self.status().granted_elsewhere
    }
}

impl fmt::Debug for QuorumClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Drop for QuorumClaim {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.upgrade() {
            let mut state = registry.state();
            let entry = state.entries.get(&self.owner);
            if entry.is_some_and(|entry| entry.quorum_claim.strong_count() == 0) {
                state.entries.remove(&self.owner);
            }
        }
    }
}

impl Vote {
    /// One that we learn of now.
    pub(crate) fn of(grant: &Grant, origin: Origin, confirmation: Confirmation) -> Self {
        let ends = grant.ends();
        let (token, ticket) = (grant.token, grant.ticket.clone());
        let (since, known_since) = (grant.since, Moment::now());
        Self { origin, token, ticket, since, known_since, ends, confirmation }
    }

    /// True if it was there at `began`, and may have ended by itself since. Members' clocks run up to a hundredth faster than
    /// ours, so they may be ahead by that; to be sure it is taken twice.
    pub(crate) fn may_have_expired_since(&self, began: Moment) -> bool {
        self.ends.is_some_and(|ends| {
            let ahead = ends.saturating_since(self.since) / 50;
            began < ends && ends.saturating_sub(ahead).has_passed()
        })
    }

    /// The same vote, with a new end.
    pub(crate) fn renewed(&self, grant: &Grant, origin: Origin) -> Self {
        let before = self.clone();
        let mut vote =
            Self { known_since: self.known_since, ..Self::of(grant, origin, self.confirmation) };
        vote.ticket = vote.ticket.or(before.ticket);
        vote.token = vote.token.or(before.token);
        vote
    }
}

impl MemberRecord {
    /// Returns the vote, if the server that answers now is the one that cast it. It may be another
    /// one, to which the address leads by now, or which was started again and remembers: that is as
    /// good, unless an attempt may have landed late there.
    pub(crate) fn vote_of(&self, origin: &Origin) -> Option<&Vote> {
        self.vote.as_ref().filter(|vote| !self.may_arrive_late || vote.origin.may_be(origin))
    }

    /// The claim as this member is asked: never to queue.
    pub(crate) fn claim(&self, claim: &Claim, min_token: Option<FencingToken>) -> Claim {
        let mut asked = claim.clone();
        asked.on_contention = OnContention::Return;
        asked.min_token = min_token;
        asked.ticket = self.vote.as_ref().and_then(|vote| vote.ticket.clone());
        asked
    }
}

/// The claims of this process that are under way. A claim is dropped while the book is not locked: it takes itself out.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    entries: HashMap<OwnerId, Entry>,
    /// Those that are kept, by when that ends; the number tells apart those that end together.
    retained: BTreeMap<(Moment, u64), Arc<QuorumClaim>>,
    retained_so_far: u64,
}

#[derive(Debug)]
struct Entry {
    quorum_claim: Weak<QuorumClaim>,
    /// Where among those that are kept.
    retained: Option<(Moment, u64)>,
}

impl Registry {
    /// What is known of `claim`, whose ticket is preferred.
    pub(crate) fn find(&self, claim: &Claim) -> Option<Arc<QuorumClaim>> {
        let ticket = claim.ticket.as_ref().and_then(|ticket| ticket.get::<Arc<QuorumClaim>>());
        if let Some(quorum_claim) = ticket {
            return Some(Arc::clone(quorum_claim));
        }
        self.state().entries.get(&claim.owner)?.quorum_claim.upgrade()
    }

    pub(crate) fn find_or_open(
        self: &Arc<Self>,
        claim: &Claim,
        members: usize,
    ) -> Arc<QuorumClaim> {
        if let Some(known) = self.find(claim) {
            return known;
        }
        let quorum_claim = Arc::new(QuorumClaim {
            owner: claim.owner,
            records: (0..members).map(|_| AsyncMutex::default()).collect(),
            status: Mutex::default(),
            registry: Arc::downgrade(self),
        });
        let entry = Entry { quorum_claim: Arc::downgrade(&quorum_claim), retained: None };
        let ended = {
            let mut state = self.state();
            state.entries.insert(claim.owner, entry);
            state.take_expired()
        };
        drop(ended);
        quorum_claim
    }

    /// Keeps it in mind although nobody has a ticket: until it is let go or won, and until `end` at most. A release that no
    /// majority answers is given up by core some day, without a word to us.
    pub(crate) fn retain(&self, quorum_claim: &Arc<QuorumClaim>, end: Moment) {
        let RegistryState { entries, retained, retained_so_far } = &mut *self.state();
        if let Some(entry) = entries.get_mut(&quorum_claim.owner) {
            *retained_so_far += 1;
            let place = (end, *retained_so_far);
            if let Some(before) = entry.retained.replace(place) {
                retained.remove(&before);
            }
            retained.insert(place, Arc::clone(quorum_claim));
        }
    }

    /// It has a ticket, or is let go.
    pub(crate) fn stop_retaining(&self, quorum_claim: &QuorumClaim) {
        let retained = {
            let RegistryState { entries, retained, .. } = &mut *self.state();
            let place =
                entries.get_mut(&quorum_claim.owner).and_then(|entry| entry.retained.take());
            place.and_then(|place| retained.remove(&place))
        };
        drop(retained);
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        lock(&self.0)
    }
}

impl RegistryState {
    fn take_expired(&mut self) -> Vec<Arc<QuorumClaim>> {
        let mut ended = Vec::new();
        while let Some(first) =
            self.retained.first_entry().filter(|first| first.key().0.has_passed())
        {
            let quorum_claim = first.remove();
            self.entries.entry(quorum_claim.owner).and_modify(|entry| entry.retained = None);
            ended.push(quorum_claim);
        }
        ended
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use lock_core::clock::sleep;
    use lock_core::faults::{FaultInjector, Injection};
    use lock_core::{Locker, Memory};

    use crate::{Quorum, QuorumBuilder};

    use super::*;

    /// Core gives such a release up when the lease is over, and nobody hears of the claim any more.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_claims_that_no_majority_has_let_go() {
        let away = Arc::new(AtomicBool::new(false));
        let member = |nth: usize| {
            let away = Arc::clone(&away);
            FaultInjector::new(Arc::new(Memory::new()), move |_| {
                match nth > 0 && away.load(Ordering::SeqCst) {
                    true => Injection::LoseReply,
                    false => Injection::None,
                }
            })
        };
        let builder = (0..3).map(member).fold(Quorum::builder(), QuorumBuilder::member);
        let quorum = builder.members_remember().build().await.unwrap();
        let locks = Locker::new(quorum.clone());
        let ttl = Duration::from_secs(10);
        let lock = |name: String| locks.lock(name).unwrap().ttl(ttl);
        away.store(true, Ordering::SeqCst);
        for nth in 0..100 {
            lock(format!("{nth}")).try_acquire().await.unwrap_err();
        }
        let count = || {
            let state = quorum.inner.registry.state();
            (state.entries.len(), state.retained.len())
        };
        assert_eq!(count(), (100, 100), "what may have been left is to be let go");
        sleep(ttl * 3).await;
        away.store(false, Ordering::SeqCst);
        lock("n".into()).acquire().await.unwrap().release().await.unwrap();
        assert_eq!(count(), (0, 0));
    }
}
