//! The state of one claim: at which members it was attempted, which of them voted for it, and on
//! which terms.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::backend::{Claim, Grant, OnContention, Ticket};
use lock_core::clock::Moment;
use lock_core::{FencingToken, OwnerId};
use tokio::sync::Mutex as AsyncMutex;

use crate::server::Origin;

/// A claim at all members. It lives as long as its ticket and its calls in flight and, while it
/// waits, until its release.
pub(crate) struct QuorumClaim {
    owner: OwnerId,
    /// Each is locked while a verb of the claim is at that member. Verbs of one claim are not
    /// called concurrently, and a release comes after the attempt that it undoes.
    pub(crate) records: Box<[AsyncMutex<MemberRecord>]>,
    status: Mutex<ClaimStatus>,
    registry: Weak<Registry>,
}

/// The state of the claim at one member.
#[derive(Debug, Default)]
pub(crate) struct MemberRecord {
    /// An attempt was sent, so there may be something to release.
    pub(crate) asked: bool,
    /// An attempt has an unknown outcome and may still be granted.
    pub(crate) may_arrive_late: bool,
    /// A release has an unknown outcome, and may still arrive until then.
    pub(crate) release_arrives_by: Option<Moment>,
    pub(crate) vote: Option<Vote>,
    /// The claim has asked to queue at this member. From then on it queues there whenever it asks
    /// for the vote, so that the member knows where to send a grant.
    pub(crate) queue_entry: Option<QueueEntry>,
}

/// The part of a queue entry that is not the same for all members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    /// A member may store it in the entry, so it stays.
    pub(crate) min_token: Option<FencingToken>,
}

/// A member's grant.
#[derive(Clone, Debug)]
pub(crate) struct Vote {
    /// The server that voted.
    pub(crate) origin: Origin,
    pub(crate) token: Option<FencingToken>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) since: Moment,
    /// When this process learned of the vote. The vote existed by then, and no earlier release can
    /// end it any more.
    pub(crate) known_since: Moment,
    /// `None`: as long as the process lives.
    pub(crate) ends: Option<Moment>,
    /// Whether it counts in the next renewal: see [`Confirmation`].
    pub(crate) confirmation: Confirmation,
}

/// Whether a vote counts when the claim is renewed.
///
/// A vote that was granted after others may have been lost must not replace them. A member that
/// forgets the claim and another one that grants it make a majority of votes, but no majority that
/// has held all the time. Such a vote counts only after a renewal that began when the vote was
/// known, and that a majority of the older votes has confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Of the majority that granted the lock, of the other members of its round, or confirmed
    /// since.
    Confirmed,
    /// Regained, or of an attempt that arrived late.
    Unconfirmed,
}

/// The state of the claim as a whole.
#[derive(Debug, Default)]
pub(crate) struct ClaimStatus {
    /// Of the grant.
    pub(crate) token: Option<FencingToken>,
    /// A majority has granted the lock.
    pub(crate) granted: bool,
    /// Released: no more votes are asked for.
    pub(crate) released: bool,
    /// Votes expired while they were being released.
    pub(crate) expired_during_release: bool,
    /// Only answers to a renewal or release are known: another process got the grant.
    pub(crate) granted_elsewhere: bool,
    /// The first member is to be asked alone: it has notified of a release, or it is probed.
    pub(crate) ask_first_alone: bool,
    /// The member at which the claim has queued, or whose vote it keeps, until its grant.
    pub(crate) queued_at: Option<usize>,
    /// Since when the claim has kept the vote of the first member, while it waits for the others.
    pub(crate) kept_since: Option<Moment>,
    /// The token with which the first member has handed over its vote. The others are asked for
    /// the same one.
    pub(crate) handed_over: Option<FencingToken>,
    /// All members are to be asked, although the first one may refuse: it does not serve its queue.
    pub(crate) asks_all: bool,
    /// The members that refused the claim last.
    pub(crate) refused_by: Vec<usize>,
    /// The backoff after split votes.
    pub(crate) backoff: Option<Duration>,
    pub(crate) split_votes: u32,
    /// The number of attempts that found another holder.
    pub(crate) refusals: u32,
    /// How long the members took to refuse the last attempt. It grows with the number of
    /// contenders.
    pub(crate) took: Duration,
    /// The holder had only just acquired the lock.
    pub(crate) changes_often: bool,
}

impl QuorumClaim {
    pub(crate) fn status(&self) -> MutexGuard<'_, ClaimStatus> {
        lock(&self.status)
    }

    /// Lets the claim queue at a member from its next request on. Returns false if it does already.
    pub(crate) fn queue_at(
        &self,
        member: usize,
        record: &mut MemberRecord,
        min_token: Option<FencingToken>,
    ) -> bool {
        let is_new = record.queue_entry.is_none();
        if is_new {
            record.queue_entry = Some(QueueEntry { min_token });
            self.status().queued_at = Some(member);
        }
        is_new
    }

    /// Returns true for a claim of which only another process knows the grant. With a ticket of
    /// ours, its state is in the records.
    pub(crate) fn is_unknown(&self, claim: &Claim) -> bool {
        claim.ticket.is_none() && self.status().granted_elsewhere
    }
}

impl fmt::Debug for QuorumClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumClaim").field("owner", &self.owner).finish_non_exhaustive()
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
    /// Returns a vote that becomes known now.
    pub(crate) fn of(grant: &Grant, origin: Origin, confirmation: Confirmation) -> Self {
        let ends = grant.ends();
        let (token, ticket) = (grant.token, grant.ticket.clone());
        let (since, known_since) = (grant.since, Moment::now());
        Self { origin, token, ticket, since, known_since, ends, confirmation }
    }

    /// Returns true if the vote existed at `began` and may have expired since. A member's clock
    /// runs up to one per cent faster than ours, so it may be ahead by that; the doubled value is
    /// used to be sure.
    pub(crate) fn may_have_expired_since(&self, began: Moment) -> bool {
        self.ends.is_some_and(|ends| {
            let ahead = ends.saturating_since(self.since) / 50;
            began < ends && ends.saturating_sub(ahead).has_passed()
        })
    }

    /// Returns the same vote with a new end.
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
    /// Returns the vote, if the server that answers now is the one that cast it. The address may
    /// lead to another server by now, or the server was restarted and remembers. That vote is as
    /// good, unless a late attempt may have been granted there.
    pub(crate) fn vote_of(&self, origin: &Origin) -> Option<&Vote> {
        self.vote.as_ref().filter(|vote| !self.may_arrive_late || vote.origin.may_be(origin))
    }

    /// Returns until when an earlier release may still end a vote for this claim.
    pub(crate) fn may_be_released_until(&self) -> Option<Moment> {
        self.release_arrives_by.filter(|end| !end.has_passed())
    }

    /// Doubts the vote, if an earlier release may still end it: then it replaces no other one.
    pub(crate) fn doubt_vote(&mut self) {
        if let Some(end) = self.may_be_released_until() {
            self.doubt_vote_until(end);
        }
    }

    /// Doubts the vote, which a release may end until then.
    pub(crate) fn doubt_vote_until(&mut self, end: Moment) {
        if let Some(vote) = &mut self.vote {
            (vote.confirmation, vote.known_since) = (Confirmation::Unconfirmed, end);
        }
    }

    /// Returns the claim as this member is asked.
    pub(crate) fn claim(&self, claim: &Claim, min_token: Option<FencingToken>) -> Claim {
        let mut asked = claim.clone();
        (asked.on_contention, asked.min_token) = match self.queue_entry {
            Some(entry) if self.vote.is_none() => (OnContention::Queue, entry.min_token),
            _ => (OnContention::Return, min_token),
        };
        asked.ticket = self.vote.as_ref().and_then(|vote| vote.ticket.clone());
        asked
    }
}

/// The claims of this process. A claim removes itself when it is dropped, so it is dropped while
/// the registry is not locked.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<RegistryState>);

#[derive(Debug, Default)]
struct RegistryState {
    entries: HashMap<OwnerId, Entry>,
    /// The retained claims, by the end of their retention. The number distinguishes claims with
    /// equal ends.
    retained: BTreeMap<(Moment, u64), Arc<QuorumClaim>>,
    retained_so_far: u64,
}

#[derive(Debug)]
struct Entry {
    quorum_claim: Weak<QuorumClaim>,
    /// The key in `retained`.
    retained: Option<(Moment, u64)>,
}

impl Registry {
    /// Returns the state of `claim`; its ticket is preferred.
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

    /// Retains a claim without a ticket: until its release or grant, and until `end` at most. Core
    /// abandons a release that no majority answers without calling the backend again.
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

    /// Ends the retention: the claim has a ticket, or is released.
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

    /// Forgets a claim whose release core abandons when the lease has expired, since the backend
    /// gets no further call for it.
    #[tokio::test(start_paused = true)]
    async fn claims_without_a_released_majority_leave_no_state() {
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
