//! The schedule: the moments at which the holds of a locker need work. Its memory is the locks that
//! are held, nothing more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;

/// The time for which the renewer keeps its timer when no hold is left.
const LINGER: Duration = Duration::from_millis(100);

/// The key of an entry of a schedule: when it is due, and a number that no other entry has.
pub(crate) type Slot = (Moment, u64);

/// An entry of a schedule.
pub(crate) trait Scheduled: Send + Sync + Sized + 'static {
    /// Returns the moment at which work is due next.
    fn next_check(&self) -> Moment;

    /// Replaces the slot in which the schedule keeps this entry. Only the schedule calls it, under
    /// its own lock.
    fn swap_slot(&self, slot: Option<Slot>) -> Option<Slot>;

    /// Returns true if no work will ever be due again.
    fn has_ended(&self) -> bool;

    /// Starts the task that does the due work of `schedule`.
    fn start(entry: &Arc<Self>, schedule: Arc<Schedule<Self>>);
}

#[derive(Debug)]
pub(crate) struct Schedule<T> {
    epoch: Moment,
    slots: Mutex<Slots<T>>,
    pub(super) wake: Notify,
}

#[derive(Debug)]
pub(super) struct Slots<T> {
    pub(super) due: BTreeMap<Slot, Arc<T>>,
    next_id: u64,
    /// The moment until which the renewer sleeps; `None`: until it is woken.
    asleep_until: Option<Moment>,
    lingering: bool,
    pub(super) running: bool,
    pub(super) stopped: bool,
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        let slots = Slots {
            due: BTreeMap::new(),
            next_id: 0,
            asleep_until: None,
            lingering: false,
            running: false,
            stopped: false,
        };
        Self { epoch: Moment::now(), slots: Mutex::new(slots), wake: Notify::new() }
    }
}

impl<T: Scheduled> Schedule<T> {
    /// Moves `hold` to the moment of its next work. The hold is read under the lock: the second of
    /// two calls sees the result of the first.
    pub(crate) fn update(self: &Arc<Self>, hold: &Arc<T>) {
        let mut slots = self.slots();
        let at = hold.next_check();
        let slot = (at, slots.next_id);
        slots.next_id += 1;
        if let Some(old) = hold.swap_slot(Some(slot)) {
            slots.due.remove(&old);
        }
        // Under the same lock that `remove` takes: a hold that has ended never gets back in.
        if hold.has_ended() {
            hold.swap_slot(None);
            return;
        }
        slots.due.insert(slot, Arc::clone(hold));
        let start = !std::mem::replace(&mut slots.running, true);
        let wake = slots.asleep_until.is_none_or(|until| at < until);
        drop(slots);
        if start {
            // A runtime that was given and has ended drops the runner at once, which ends all
            // holds: outside of the lock.
            T::start(hold, Arc::clone(self));
        } else if wake {
            self.wake.notify_one();
        }
    }

    pub(crate) fn remove(&self, hold: &T) {
        let mut slots = self.slots();
        if let Some(slot) = hold.swap_slot(None) {
            slots.due.remove(&slot);
        }
    }

    /// Returns the first entry that `is_it`.
    pub(crate) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.slots().due.values().find(|entry| is_it(entry)).cloned()
    }

    /// Returns a moment at or a little before `at` at which other renewals happen too: renewals
    /// fall on a grid whose spacing is the largest power of two (in nanoseconds) within an eighth
    /// of their interval, so that finer grids contain the coarser ones.
    pub(crate) fn align(&self, at: Moment, interval: Duration) -> Moment {
        let eighth = u64::try_from((interval / 8).as_nanos()).unwrap_or(u64::MAX);
        let Some(power) = eighth.checked_ilog2() else {
            return at;
        };
        let since_epoch = at.saturating_since(self.epoch).as_nanos();
        let early = u64::try_from(since_epoch % (1_u128 << power)).unwrap_or(0);
        at.saturating_sub(Duration::from_nanos(early))
    }

    /// Ends the runner once its locker and all its guards are gone.
    pub(crate) fn stop(&self) {
        self.slots().stopped = true;
        self.wake.notify_one();
    }

    /// Takes the entries that are due. Returns them, and when the renewer has to check again.
    pub(super) fn take_due(&self, now: Moment) -> (Vec<Arc<T>>, Option<Moment>) {
        let mut slots = self.slots();
        let mut ready = Vec::new();
        while let Some(entry) = slots.due.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let hold = entry.remove();
            hold.swap_slot(None);
            ready.push(hold);
        }
        let mut next = slots.due.first_key_value().map(|(&(at, _), _)| at);
        // Empty: linger once, so that locks which come and go do not nudge the runner each time.
        slots.lingering = next.is_none() && !slots.lingering;
        if slots.lingering {
            next = Some(now + LINGER);
        }
        slots.asleep_until = next;
        (ready, next)
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Entry {
        due: Moment,
        slot: Mutex<Option<Slot>>,
    }

    impl Scheduled for Entry {
        fn next_check(&self) -> Moment {
            self.due
        }

        fn swap_slot(&self, slot: Option<Slot>) -> Option<Slot> {
            std::mem::replace(&mut *self.slot.lock().unwrap(), slot)
        }

        fn has_ended(&self) -> bool {
            false
        }

        fn start(_: &Arc<Self>, _: Arc<Schedule<Self>>) {}
    }

    fn due_at(due: Moment) -> Arc<Entry> {
        Arc::new(Entry { due, slot: Mutex::default() })
    }

    #[test]
    fn the_next_check_is_that_of_the_first_entry() {
        let (schedule, now) = (Arc::<Schedule<Entry>>::default(), Moment::now());
        let (soon, later) = (due_at(now + LINGER * 20), due_at(now + LINGER * 30));
        schedule.update(&later);
        schedule.update(&soon);
        for _ in 0..3 {
            let (ready, next) = schedule.take_due(now);
            assert!(ready.is_empty() && next == Some(soon.due), "{next:?}");
        }
        let (ready, next) = schedule.take_due(soon.due);
        assert!(ready.len() == 1 && next == Some(later.due), "{next:?}");
    }

    #[test]
    fn an_empty_schedule_lingers_once() {
        let (schedule, now) = (Arc::<Schedule<Entry>>::default(), Moment::now());
        assert_eq!(schedule.take_due(now).1, Some(now + LINGER));
        assert_eq!(schedule.take_due(now + LINGER).1, None);
    }

    #[test]
    fn a_removed_entry_is_never_due() {
        let (schedule, now) = (Arc::<Schedule<Entry>>::default(), Moment::now());
        let entry = due_at(now);
        schedule.update(&entry);
        schedule.remove(&entry);
        assert!(schedule.take_due(now).0.is_empty());
        assert_eq!(Arc::strong_count(&entry), 1, "it is kept");
    }
}
