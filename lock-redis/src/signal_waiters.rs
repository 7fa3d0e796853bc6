//! The claims that wait for a signal of the server, each under the key that it watches.
//!
//! The table is as large as the number of claims that wait, and core bounds those.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::OwnerId;
use tokio::sync::Notify;

use crate::owners::ByOwner;

/// The time between two polls where there are no signals doubles from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(crate) struct SignalWaiters {
    table: Mutex<SignalTable>,
}

#[derive(Debug, Default)]
struct SignalTable {
    by_owner: ByOwner<SignalWaiter>,
    by_key: BTreeMap<String, Vec<OwnerId>>,
}

#[derive(Debug)]
struct SignalWaiter {
    key: String,
    wake: Arc<Notify>,
    /// The server is going to tell when the key changes.
    armed: bool,
    /// The number of signals so far.
    signals: u64,
    pause: Duration,
}

/// A registration that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct WatchGuard<'a> {
    waiters: &'a SignalWaiters,
    owner: OwnerId,
}

impl SignalWaiters {
    /// Lets `owner` wait for a change of `key`, and of no other key.
    pub(crate) fn enter(&self, owner: OwnerId, key: &str) {
        let mut table = self.table();
        if table.by_owner.get(&owner).is_some_and(|waiter| waiter.key == key) {
            return;
        }
        table.remove(&owner);
        table.by_key.entry(key.to_owned()).or_default().push(owner);
        let (key, wake, pause) = (key.to_owned(), Arc::default(), SHORTEST_PAUSE);
        table.by_owner.insert(owner, SignalWaiter { key, wake, armed: false, signals: 0, pause });
    }

    /// Lets `owner` wait for a change of `key`, unless it already waits for a key. A new wait ends
    /// when the guard is dropped.
    pub(crate) fn watch_until_dropped(&self, owner: OwnerId, key: &str) -> Option<WatchGuard<'_>> {
        let is_new = !self.table().by_owner.contains_key(&owner);
        is_new.then(|| {
            self.enter(owner, key);
            self.leave_when_dropped(owner)
        })
    }

    /// Ends the wait of `owner`, if there is one then, when the guard is dropped.
    pub(crate) fn leave_when_dropped(&self, owner: OwnerId) -> WatchGuard<'_> {
        WatchGuard { waiters: self, owner }
    }

    /// Ends the wait of `owner`, and wakes it: no later signal finds it.
    pub(crate) fn leave(&self, owner: &OwnerId) {
        let mut table = self.table();
        if let Some(waiter) = table.by_owner.get(owner) {
            waiter.wake.notify_one();
        }
        table.remove(owner);
    }

    /// Returns the key to watch before `owner` may rest, and the argument for [`arm`](Self::arm).
    /// Returns `None` if the key is already watched.
    pub(crate) fn not_armed(&self, owner: &OwnerId) -> Option<(String, u64)> {
        let table = self.table();
        let waiter = table.by_owner.get(owner).filter(|waiter| !waiter.armed)?;
        Some((waiter.key.clone(), waiter.signals))
    }

    /// Waits for a signal. An early signal is kept.
    pub(crate) async fn woken(&self, owner: &OwnerId) {
        let wake = self.table().by_owner.get(owner).map(|waiter| Arc::clone(&waiter.wake));
        if let Some(wake) = wake {
            wake.notified().await;
        }
    }

    /// Records that the server watches the key since before `signals` was read. A change since then
    /// ended the watch, because the server notifies once.
    pub(crate) fn arm(&self, owner: &OwnerId, signals: u64) {
        if let Some(waiter) = self.table().by_owner.get_mut(owner) {
            waiter.armed = waiter.signals == signals;
        }
    }

    /// Returns the time between two polls of `owner` where there are no signals; it grows with each
    /// call.
    pub(crate) fn next_pause(&self, owner: &OwnerId) -> Duration {
        let mut table = self.table();
        let Some(waiter) = table.by_owner.get_mut(owner) else { return SHORTEST_PAUSE };
        let next = (waiter.pause * 2).min(LONGEST_PAUSE);
        std::mem::replace(&mut waiter.pause, next)
    }

    /// Wakes the waiters for `key`.
    pub(crate) fn signal(&self, key: &str) {
        let mut table = self.table();
        let SignalTable { by_owner, by_key } = &mut *table;
        for owner in by_key.get(key).into_iter().flatten() {
            if let Some(waiter) = by_owner.get_mut(owner) {
                waiter.signal();
            }
        }
    }

    /// Wakes all waiters: their keys may have changed without notice, and are not watched any more.
    pub(crate) fn signal_all(&self) {
        let mut table = self.table();
        let SignalTable { by_owner, by_key } = &mut *table;
        // In an order that is repeatable.
        for owner in by_key.values().flatten() {
            by_owner.get_mut(owner).into_iter().for_each(SignalWaiter::signal);
        }
    }

    #[cfg(test)]
    fn len(&self) -> (usize, usize) {
        let table = self.table();
        (table.by_owner.len(), table.by_key.len())
    }

    fn table(&self) -> MutexGuard<'_, SignalTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        self.waiters.leave(&self.owner);
    }
}

impl SignalTable {
    fn remove(&mut self, owner: &OwnerId) {
        let Some(waiter) = self.by_owner.remove(owner) else { return };
        if let Some(owners) = self.by_key.get_mut(&waiter.key) {
            owners.retain(|other| other != owner);
            if owners.is_empty() {
                self.by_key.remove(&waiter.key);
            }
        }
    }
}

impl SignalWaiter {
    fn signal(&mut self) {
        self.armed = false;
        self.signals += 1;
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_between_watching_and_resting_is_not_missed() {
        let (waiters, owner) = (SignalWaiters::default(), OwnerId::mint());
        waiters.enter(owner, "k");
        let (key, signals) = waiters.not_armed(&owner).unwrap();
        waiters.signal(&key);
        waiters.arm(&owner, signals);
        assert!(waiters.not_armed(&owner).is_some(), "it has to be watched anew");
        let (_, signals) = waiters.not_armed(&owner).unwrap();
        waiters.arm(&owner, signals);
        assert!(waiters.not_armed(&owner).is_none());
        waiters.signal_all();
        assert!(waiters.not_armed(&owner).is_some());
    }

    #[tokio::test]
    async fn a_wait_ends_when_its_claim_leaves() {
        let (waiters, owner) = (SignalWaiters::default(), OwnerId::mint());
        waiters.enter(owner, "k");
        let mut waiting = std::pin::pin!(waiters.woken(&owner));
        tokio::select! {
            biased;
            () = &mut waiting => panic!("nothing has happened"),
            () = std::future::ready(()) => waiters.leave(&owner),
        }
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it ends");
    }

    #[test]
    fn a_claim_that_leaves_leaves_no_state() {
        let waiters = SignalWaiters::default();
        let owners = [OwnerId::mint(), OwnerId::mint()];
        for owner in owners {
            waiters.enter(owner, "k");
            waiters.enter(owner, "k");
            waiters.enter(owner, "other");
        }
        assert_eq!(waiters.len(), (2, 1));
        owners.iter().for_each(|owner| waiters.leave(owner));
        assert_eq!(waiters.len(), (0, 0));
        drop(waiters.watch_until_dropped(owners[0], "k"));
        assert_eq!(waiters.len(), (0, 0));
    }

    #[test]
    fn pauses_grow_to_a_limit() {
        let (waiters, owner) = (SignalWaiters::default(), OwnerId::mint());
        waiters.enter(owner, "k");
        let pauses: Vec<_> = (0..7).map(|_| waiters.next_pause(&owner).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 100, 100]);
    }
}
