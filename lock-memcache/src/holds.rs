//! The state of the locks that this process holds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lock_core::OwnerId;
use lock_core::clock::Moment;

/// The holds whose tickets are alive. An attempt that is repeated without its ticket finds its
/// token here: the server may not know it.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<HashMap<OwnerId, Weak<HoldTicket>>>);

/// The state of a held lock, as its ticket.
#[derive(Debug)]
pub(crate) struct HoldTicket {
    owner: OwnerId,
    known: Mutex<HoldState>,
    holds: Arc<Holds>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldState {
    /// The attempt that was granted.
    pub(crate) attempt: u64,
    /// The number of the fencing token.
    pub(crate) number: u64,
    /// The CAS number of the item, and the connection that returned it: a restarted server begins
    /// with the same numbers.
    pub(crate) cas: u64,
    pub(crate) connection: u64,
    /// The earliest end of the lease.
    pub(crate) until: Moment,
}

impl Holds {
    pub(crate) fn get(&self, owner: &OwnerId) -> Option<Arc<HoldTicket>> {
        self.table().get(owner)?.upgrade()
    }

    /// Records the present state.
    pub(crate) fn note(self: &Arc<Self>, owner: OwnerId, known: HoldState) -> Arc<HoldTicket> {
        if let Some(held) = self.get(&owner) {
            *held.lock() = known;
            return held;
        }
        let held =
            Arc::new(HoldTicket { owner, known: Mutex::new(known), holds: Arc::clone(self) });
        self.table().insert(owner, Arc::downgrade(&held));
        held
    }

    fn table(&self) -> MutexGuard<'_, HashMap<OwnerId, Weak<HoldTicket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HoldTicket {
    pub(crate) fn known(&self) -> HoldState {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, HoldState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HoldTicket {
    fn drop(&mut self) {
        let mut table = self.holds.table();
        // Another one may have come in its place.
        if table.get(&self.owner).is_some_and(|held| held.strong_count() == 0) {
            table.remove(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_hold_is_known_as_long_as_its_ticket_lives() {
        let (holds, owner) = (Arc::new(Holds::default()), OwnerId::mint());
        let until = Moment::now() + Duration::from_secs(1);
        let known = HoldState { attempt: 0, number: 1, cas: 2, connection: 3, until };
        let held = holds.note(owner, known);
        let same = holds.note(owner, HoldState { cas: 4, ..known });
        assert_eq!(held.known().cas, 4);
        drop(held);
        assert!(holds.get(&owner).is_some());
        drop(same);
        assert!(holds.get(&owner).is_none() && holds.table().is_empty());
    }
}
