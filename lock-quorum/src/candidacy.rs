//! What is known of one claim: at which members it was asked for, which ones voted for it, and on what
//! terms.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::backend::{Claim, Grant, OnContention, Ticket};
use lock_core::clock::Moment;
use lock_core::{FencingToken, OwnerId};
use tokio::sync::Mutex as Lane;

use crate::origin::Origin;

/// One claim at all members. Lives as long as its ticket, its calls that are under way, and, while it
/// waits, until it is let go.
pub(crate) struct Candidacy {
    owner: OwnerId,
    /// A seat is locked while a verb of the claim is at that member: verbs of one claim are not called
    /// concurrently, and a release comes after the attempt that it undoes.
    pub(crate) seats: Box<[Lane<Seat>]>,
    notes: Mutex<Notes>,
    book: Weak<Book>,
}

/// What the claim has at one member.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    /// An attempt was sent: there may be something to let go.
    pub(crate) asked: bool,
    /// An attempt went unanswered and may still land.
    pub(crate) uncertain: bool,
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
    /// It counts in the next renewal: see [`Standing`].
    pub(crate) standing: Standing,
}

/// How a vote counts when the claim is renewed.
///
/// A vote that was won after others may have been lost must not replace them: a member that forgets us and
/// another one that lets us in make a majority of votes, and no majority that has held all the time. So such
/// a vote counts only after a renewal that began when it was known, and that a majority of the older ones has
/// confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Of the majority that won, of the rest of its round, or confirmed since.
    Full,
    /// Won back, or by an attempt that landed late.
    New,
}

/// What is known of the claim as a whole.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Of the grant.
    pub(crate) token: Option<FencingToken>,
    /// A majority has granted it to us.
    pub(crate) won: bool,
    /// Let go: nothing is to be won for it any more.
    pub(crate) parted: bool,
    /// Votes of it ended by themselves while they were to be let go.
    pub(crate) lapsed_meanwhile: bool,
    /// All that is known of it are answers to a renewal or release: it was won elsewhere.
    pub(crate) stranger: bool,
    /// The first member is to be asked alone: it has told that the lock may be free there, or it is just tried.
    pub(crate) called: bool,
    /// Who refused it last.
    pub(crate) refused_by: Vec<usize>,
    /// How long to keep away after votes were split.
    pub(crate) keep_away: Option<Duration>,
    pub(crate) splits: u32,
    /// How often it looked, and somebody else had the lock.
    pub(crate) refusals: u32,
    /// How long the members took to say so last: the longer, the more are asking.
    pub(crate) took: Duration,
    /// Whoever had it then had just got it.
    pub(crate) changes_hands: bool,
}

impl Candidacy {
    pub(crate) fn notes(&self) -> MutexGuard<'_, Notes> {
        lock(&self.notes)
    }

    /// True while nothing is known of `claim` that was won elsewhere. With our ticket, what is known stands in the seats.
    pub(crate) fn is_unknown(&self, claim: &Claim) -> bool {
        claim.ticket.is_none() && self.notes().stranger
    }
}

impl fmt::Debug for Candidacy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidacy").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        if let Some(book) = self.book.upgrade() {
            let mut pages = book.pages();
            let entry = pages.entries.get(&self.owner);
            if entry.is_some_and(|entry| entry.candidacy.strong_count() == 0) {
                pages.entries.remove(&self.owner);
            }
        }
    }
}

impl Vote {
    /// One that we learn of now.
    pub(crate) fn of(grant: &Grant, origin: Origin, standing: Standing) -> Self {
        let ends = grant.ends();
        let (token, ticket) = (grant.token, grant.ticket.clone());
        let (since, known_since) = (grant.since, Moment::now());
        Self { origin, token, ticket, since, known_since, ends, standing }
    }

    /// True if it was there at `began`, and may have ended by itself since. Members' clocks run up to a hundredth faster than
    /// ours, so they may be ahead by that; to be sure it is taken twice.
    pub(crate) fn may_have_lapsed_since(&self, began: Moment) -> bool {
        self.ends.is_some_and(|ends| {
            let ahead = ends.saturating_since(self.since) / 50;
            began < ends && ends.saturating_sub(ahead).has_passed()
        })
    }

    /// The same vote, with a new end.
    pub(crate) fn renewed(&self, grant: &Grant, origin: Origin) -> Self {
        let before = self.clone();
        let mut vote =
            Self { known_since: self.known_since, ..Self::of(grant, origin, self.standing) };
        vote.ticket = vote.ticket.or(before.ticket);
        vote.token = vote.token.or(before.token);
        vote
    }
}

impl Seat {
    /// Returns the vote, if the server that answers now is the one that cast it. It may be another
    /// one, to which the address leads by now, or which was started again and remembers: that is as
    /// good, unless an attempt may have landed late there.
    pub(crate) fn vote_of(&self, origin: &Origin) -> Option<&Vote> {
        self.vote.as_ref().filter(|vote| !self.uncertain || vote.origin.may_be(origin))
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
pub(crate) struct Book(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    entries: HashMap<OwnerId, Entry>,
    /// Those that are kept, by when that ends; the number tells apart those that end together.
    kept: BTreeMap<(Moment, u64), Arc<Candidacy>>,
    kept_so_far: u64,
}

#[derive(Debug)]
struct Entry {
    candidacy: Weak<Candidacy>,
    /// Where among those that are kept.
    kept: Option<(Moment, u64)>,
}

impl Book {
    /// What is known of `claim`, whose ticket is preferred.
    pub(crate) fn find(&self, claim: &Claim) -> Option<Arc<Candidacy>> {
        let ticket = claim.ticket.as_ref().and_then(|ticket| ticket.get::<Arc<Candidacy>>());
        if let Some(candidacy) = ticket {
            return Some(Arc::clone(candidacy));
        }
        self.pages().entries.get(&claim.owner)?.candidacy.upgrade()
    }

    pub(crate) fn find_or_open(self: &Arc<Self>, claim: &Claim, members: usize) -> Arc<Candidacy> {
        if let Some(known) = self.find(claim) {
            return known;
        }
        let candidacy = Arc::new(Candidacy {
            owner: claim.owner,
            seats: (0..members).map(|_| Lane::default()).collect(),
            notes: Mutex::default(),
            book: Arc::downgrade(self),
        });
        let entry = Entry { candidacy: Arc::downgrade(&candidacy), kept: None };
        let ended = {
            let mut pages = self.pages();
            pages.entries.insert(claim.owner, entry);
            pages.take_what_has_ended()
        };
        drop(ended);
        candidacy
    }

    /// Keeps it in mind although nobody has a ticket: until it is let go or won, and until `end` at most. A release that no
    /// majority answers is given up by core some day, without a word to us.
    pub(crate) fn keep(&self, candidacy: &Arc<Candidacy>, end: Moment) {
        let Pages { entries, kept, kept_so_far } = &mut *self.pages();
        if let Some(entry) = entries.get_mut(&candidacy.owner) {
            *kept_so_far += 1;
            let place = (end, *kept_so_far);
            if let Some(before) = entry.kept.replace(place) {
                kept.remove(&before);
            }
            kept.insert(place, Arc::clone(candidacy));
        }
    }

    /// It has a ticket, or is let go.
    pub(crate) fn let_go(&self, candidacy: &Candidacy) {
        let kept = {
            let Pages { entries, kept, .. } = &mut *self.pages();
            let place = entries.get_mut(&candidacy.owner).and_then(|entry| entry.kept.take());
            place.and_then(|place| kept.remove(&place))
        };
        drop(kept);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.0)
    }
}

impl Pages {
    fn take_what_has_ended(&mut self) -> Vec<Arc<Candidacy>> {
        let mut ended = Vec::new();
        while let Some(first) = self.kept.first_entry().filter(|first| first.key().0.has_passed()) {
            let candidacy = first.remove();
            self.entries.entry(candidacy.owner).and_modify(|entry| entry.kept = None);
            ended.push(candidacy);
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
            let pages = quorum.inner.book.pages();
            (pages.entries.len(), pages.kept.len())
        };
        assert_eq!(count(), (100, 100), "what may have been left is to be let go");
        sleep(ttl * 3).await;
        away.store(false, Ordering::SeqCst);
        lock("n".into()).acquire().await.unwrap().release().await.unwrap();
        assert_eq!(count(), (0, 0));
    }
}
