//! Local hand-over: a holder passes its lock to the next waiter of the same process, without a
//! request.
//!
//! The backend sees no change: the granted claim goes on, and its last local holder renews and
//! releases it. The claim passes on with its acknowledged lease, never with an assumed one. The
//! idea is known as *lock cohorting* from Dice, Marathe and Shavit, "Lock cohorting: a general
//! technique for designing NUMA locks", PPoPP 2012.

use std::fmt;
use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use super::hold::{ClaimState, Hold, HolderInfo};
use super::local_queue::HandoverKey;
use super::release::PendingRelease;
use super::shared::Held;
use crate::backend::{Claim, Grant, HoldKind};
use crate::clock::Moment;
use crate::loss::Loss;

/// A successor starts with at least this part of the lease, so that a renewal can be answered in
/// time.
const LEAST_PART_LEFT: u32 = 4;

impl Held for Hold {
    type Handover = Handover;
}

/// A lock that its holder passes to the next waiter of its local queue. If none takes it, it is
/// released.
pub(crate) struct Handover(Option<EndedHold>);

struct EndedHold {
    /// The hold of the former holder: ended, but not lost.
    hold: Arc<Hold>,
    claim_state: OwnedMutexGuard<ClaimState>,
}

/// A lock that was taken over: how it is held from here on.
pub(crate) struct TakenOver {
    pub(crate) claim_state: ClaimState,
    pub(crate) grant: Grant,
    pub(crate) holder: HolderInfo,
}

impl Handover {
    /// Ends `hold`, which is not lost, and passes its lock to the next waiter of this process.
    /// Returns false if that is not possible: then the caller releases the lock.
    pub(crate) fn offer(hold: &Arc<Hold>) -> bool {
        if hold.holder.handed_over >= hold.engine.settings.local_handovers {
            return false;
        }
        // Busy: a renewal is under way, and its answer is unknown.
        let Ok(claim_state) = Arc::clone(&hold.claim_state).try_lock_owned() else {
            return false;
        };
        let may_pass_on = claim_state.claim.hold == HoldKind::Guarded
            && !claim_state.renewal_unknown
            && hold.all_waiters_want(HandoverKey::of(&claim_state.claim))
            && hold.not_before().is_none()
            && has_enough_left(hold, &claim_state);
        if !may_pass_on || !hold.end(Loss::Released) {
            return false;
        }
        let Some(head) = hold.take_head() else {
            return false;
        };
        hold.record_duration(Moment::now);
        head.hand_over(Box::new(Self(Some(EndedHold { hold: Arc::clone(hold), claim_state }))));
        true
    }

    /// Takes the lock over for `claim`, if that claim can use it.
    pub(crate) fn accept(&mut self, claim: &Claim) -> Option<TakenOver> {
        let (holder, grant) = self.0.as_ref()?.holder_for(claim)?;
        self.0.take().map(|ended| {
            ended.hold.engine.metrics.handed_over(ended.hold.class);
            ended.take(holder, grant)
        })
    }

    /// Returns the release of a lock that the next claim cannot use.
    pub(crate) fn take_release(&mut self) -> Option<PendingRelease> {
        self.0.take().map(EndedHold::release)
    }
}

impl Drop for Handover {
    /// Releases the lock, because no waiter has taken it.
    fn drop(&mut self) {
        if let Some(ended) = self.0.take() {
            let engine = Arc::clone(&ended.hold.engine);
            engine.spawn(async move { ended.release().release_until_expiry().await });
        }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handover").field(&self.0.as_ref().map(|ended| &ended.hold)).finish()
    }
}

impl EndedHold {
    /// Returns the holder and grant that `claim` would have, if it asks for the same and enough of
    /// the lease is left.
    fn holder_for(&self, claim: &Claim) -> Option<(HolderInfo, Grant)> {
        let ours = &self.claim_state.claim;
        // A claim that came later may ask for another lease, or come too late.
        if HandoverKey::of(claim) != HandoverKey::of(ours)
            || !has_enough_left(&self.hold, &self.claim_state)
        {
            return None;
        }
        let holder = self.hold.holder.next(claim.owner);
        let mut grant = self.hold.acknowledged();
        grant.ticket.clone_from(&ours.ticket);
        grant.token = self.hold.token.map(|token| token.of_successor(holder.handed_over));
        // A higher one was seen: another claim has held the lock since.
        let has_grown =
            grant.token.is_none_or(|token| self.hold.engine.has_grown(&claim.name, token));
        has_grown.then_some((holder, grant))
    }

    fn release(self) -> PendingRelease {
        PendingRelease::of_hold(&self.hold, self.claim_state, None, Moment::now())
            .already_reported()
    }

    fn take(mut self, holder: HolderInfo, grant: Grant) -> TakenOver {
        let claim_state = self.claim_state.clone();
        // A second copy would delay the state's end, which comes when its last holder drops it.
        self.claim_state.claim.ticket = None;
        TakenOver { claim_state, grant, holder }
    }
}

/// Returns true if enough of the acknowledged lease is left for a successor, and no more than it
/// asked for. A short lease means that the lock should be free soon after a crash. A renewal
/// without an answer may have prolonged the lease.
fn has_enough_left(hold: &Hold, claim_state: &ClaimState) -> bool {
    let grant = hold.acknowledged();
    let Some(expires) = Hold::deadline_of_lease(&hold.engine, &grant) else {
        return true;
    };
    let now = Moment::now();
    if !Hold::leaves_enough(&hold.engine, &grant, claim_state.claim.ttl, now) {
        return false;
    }
    let ends = hold.lease_ends().max(claim_state.latest_expiry);
    let lease = expires.saturating_since(grant.since);
    ends <= Some(now + claim_state.claim.ttl) && now + lease / LEAST_PART_LEFT <= expires
}
