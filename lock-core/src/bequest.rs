//! Local hand-over: a holder leaves its lock to the next waiter of the same process, and nobody else is asked.
//!
//! For the backend nothing happens: the claim that won the lock goes on, is renewed and let go by whoever
//! holds the lock last. What passes on is that claim with the lease that was acknowledged for it; never a
//! lease that somebody has to believe in. The idea is known as *lock cohorting* from Dice, Marathe and Shavit,
//! "Lock cohorting: a general technique for designing NUMA locks", PPoPP 2012.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::backend::{Claim, Grant, HoldKind, Mode};
use crate::clock::Moment;
use crate::hold::{Hold, Loss, Tenure, Wire};
use crate::keeper::Leaving;

/// An heir starts with this part of the lease at least, so that a renewal has the time to be answered.
const LEAST_PART_LEFT: u32 = 4;

/// What a claim asks for: only who asks for the same can take a lock over from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    ttl: Duration,
    hold: HoldKind,
    mode: Mode,
}

impl Wish {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self { ttl: claim.ttl, hold: claim.hold, mode: claim.mode }
    }
}

/// A lock that its holder has left to the next one in its line. If nobody takes it, it is given back.
pub(crate) struct Bequest(Option<Estate>);

struct Estate {
    /// Of the one who has left: ended, but not lost.
    hold: Arc<Hold>,
    wire: OwnedMutexGuard<Wire>,
}

/// A lock that was taken over: how it is held from here on.
pub(crate) struct Inherited {
    pub(crate) wire: Wire,
    pub(crate) grant: Grant,
    pub(crate) tenure: Tenure,
}

impl Bequest {
    /// Ends `hold`, which is not lost, and leaves its lock to who waits behind it in this process. False if that
    /// cannot be: then the lock has to be given back.
    pub(crate) fn leave(hold: &Arc<Hold>) -> bool {
        if hold.tenure.handed_over >= hold.engine.settings.local_handovers {
            return false;
        }
        // Busy: a renewal is under way, and nobody knows yet what it will say.
        let Ok(wire) = Arc::clone(&hold.wire).try_lock_owned() else {
            return false;
        };
        let may_pass_on = wire.claim.hold == HoldKind::Guarded
            && !wire.doubtful
            && hold.is_awaited_for(Wish::of(&wire.claim))
            && hold.not_before().is_none()
            && has_enough_left(hold, &wire);
        if !may_pass_on || !hold.end(Loss::Released) {
            return false;
        }
        let Some(place) = hold.take_place() else {
            return false;
        };
        place.leave_to_the_next(Box::new(Self(Some(Estate { hold: Arc::clone(hold), wire }))));
        true
    }

    /// Takes the lock over for `claim`, if it is of use to that.
    pub(crate) fn accept(&mut self, claim: &Claim) -> Option<Inherited> {
        let (tenure, grant) = self.0.as_ref()?.tenure_of(claim)?;
        self.0.take().map(|estate| estate.pass_on(tenure, grant))
    }

    /// For who does not want it.
    pub(crate) fn give_back(&mut self) -> Option<Leaving> {
        self.0.take().map(Estate::leaving)
    }
}

impl Drop for Bequest {
    /// Nobody has come for it: it goes back.
    fn drop(&mut self) {
        if let Some(estate) = self.0.take() {
            let engine = Arc::clone(&estate.hold.engine);
            engine.spawn(async move { estate.leaving().persist().await });
        }
    }
}

impl fmt::Debug for Bequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bequest").field(&self.0.as_ref().map(|estate| &estate.hold)).finish()
    }
}

impl Estate {
    /// How `claim` would hold the lock, if it asks for what there is, and if it can be sure of it.
    fn tenure_of(&self, claim: &Claim) -> Option<(Tenure, Grant)> {
        let ours = &self.wire.claim;
        // Who came since it was left, or not in time.
        if Wish::of(claim) != Wish::of(ours) || !has_enough_left(&self.hold, &self.wire) {
            return None;
        }
        let tenure = self.hold.tenure.next(claim.owner);
        let mut grant = self.hold.acknowledged();
        grant.ticket.clone_from(&ours.ticket);
        grant.token = self.hold.token.map(|token| token.of_heir(tenure.handed_over));
        // A higher one was seen: somebody else has had the lock since.
        let has_grown =
            grant.token.is_none_or(|token| self.hold.engine.has_grown(&claim.name, token));
        has_grown.then_some((tenure, grant))
    }

    fn leaving(self) -> Leaving {
        Leaving::of_hold(&self.hold, self.wire, None).already_told()
    }

    fn pass_on(mut self, tenure: Tenure, grant: Grant) -> Inherited {
        let wire = self.wire.clone();
        // The old one is only in the way of what the last holder of the ticket does.
        self.wire.claim.ticket = None;
        Inherited { wire, grant, tenure }
    }
}

/// Returns true if enough of the acknowledged lease is left for a successor, and no more than it asked for. A
/// short lease means that the lock should be free soon after a crash. A renewal without an answer may
/// have prolonged the lease.
fn has_enough_left(hold: &Hold, wire: &Wire) -> bool {
    let grant = hold.acknowledged();
    let Some(lapses) = Hold::deadline_of_lease(&hold.engine, &grant) else {
        return true;
    };
    if !Hold::leaves_enough(&hold.engine, &grant, wire.claim.ttl) {
        return false;
    }
    let now = Moment::now();
    let ends = hold.lease_ends().max(wire.may_end);
    let lease = lapses.saturating_since(grant.since);
    ends <= Some(now + wire.claim.ttl) && now + lease / LEAST_PART_LEFT <= lapses
}
