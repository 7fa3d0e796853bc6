//! The waiters of each lock. The server sends no notifications, so one waiter of each lock polls,
//! for all of this backend's waiters.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::Fault;
use lock_core::clock::sleep_between;
use tokio::sync::Notify;

/// Pauses between two polls double from the shortest to the longest, and are longer by up to four
/// tenths, so that many processes do not poll together. In the end that is 33 polls a second for
/// each process.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// All waiters.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// From the first contended attempt of a claim until it holds the lock or is released.
    by_owner: HashMap<OwnerId, Arc<KeyWaiters>>,
    by_key: HashMap<String, Weak<KeyWaiters>>,
}

/// The waiters for one lock.
#[derive(Debug)]
pub(crate) struct KeyWaiters {
    /// The next pause of the waiter that polls for all.
    turn: tokio::sync::Mutex<Duration>,
    freed: Notify,
}

impl Waiters {
    /// Adds the claim to the waiters of its key, with their pause.
    pub(crate) fn join(&self, owner: OwnerId, key: &str) -> Arc<KeyWaiters> {
        let mut table = self.table();
        if let Some(waiters) = table.by_owner.get(&owner) {
            return Arc::clone(waiters);
        }
        let waiters = table.by_key.get(key).and_then(Weak::upgrade).unwrap_or_default();
        table.by_key.insert(key.to_owned(), Arc::downgrade(&waiters));
        table.by_owner.insert(owner, Arc::clone(&waiters));
        waiters
    }

    pub(crate) fn leave(&self, owner: &OwnerId, key: &str) {
        let mut table = self.table();
        if !table.by_owner.is_empty()
            && table.by_owner.remove(owner).is_some()
            && table.by_key.get(key).is_some_and(|waiters| waiters.strong_count() == 0)
        {
            table.by_key.remove(key);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for KeyWaiters {
    fn default() -> Self {
        Self { turn: tokio::sync::Mutex::new(SHORTEST_PAUSE), freed: Notify::new() }
    }
}

impl KeyWaiters {
    /// Waits until one of these waiters has seen that the lock `is_free`.
    ///
    /// # Cancel safety
    ///
    /// If the waiter that polls is dropped, the next one polls.
    pub(crate) async fn wait<F>(&self, is_free: impl Fn() -> F) -> Result<(), Fault>
    where
        F: Future<Output = Result<bool, Fault>>,
    {
        let look = async {
            let mut pause = self.turn.lock().await;
            loop {
                sleep_between(*pause, *pause * 7 / 5).await;
                *pause = (*pause * 2).min(LONGEST_PAUSE);
                if is_free().await? {
                    *pause = SHORTEST_PAUSE;
                    self.freed.notify_waiters();
                    return Ok(());
                }
            }
        };
        tokio::select! {
            biased;
            () = self.freed.notified() => Ok(()),
            looked = look => looked,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use lock_core::clock::{Moment, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_polls_for_all_at_a_bounded_rate_and_all_are_woken() {
        let waiters = Waiters::default();
        let (free, looks) = (AtomicBool::new(false), AtomicU32::new(0));
        let is_free = || async {
            looks.fetch_add(1, Ordering::SeqCst);
            Ok(free.load(Ordering::SeqCst))
        };
        let owners = [OwnerId::mint(), OwnerId::mint(), OwnerId::mint()];
        let by_key = owners.map(|owner| waiters.join(owner, "n"));
        let dropped = tokio::time::timeout(Duration::from_secs(10), by_key[0].wait(is_free)).await;
        assert!(dropped.is_err());
        let after_ten_seconds = looks.load(Ordering::SeqCst);
        let (all, ()) = tokio::join!(
            async {
                tokio::join!(
                    by_key[0].wait(is_free),
                    by_key[1].wait(is_free),
                    by_key[2].wait(is_free)
                )
            },
            async {
                sleep(Duration::from_secs(10)).await;
                free.store(true, Ordering::SeqCst);
            }
        );
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok());
        let looks = looks.load(Ordering::SeqCst);
        assert!((270..=400).contains(&after_ten_seconds), "{after_ten_seconds} looks of one");
        assert!((540..=800).contains(&looks), "{looks} looks in all");
        drop(by_key);
        for owner in owners {
            waiters.leave(&owner, "n");
        }
        assert!(waiters.table().by_key.is_empty() && waiters.table().by_owner.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_found_within_three_quarters_of_a_pause_on_average() {
        const ROUNDS: u32 = 400;

        let mut late = Duration::ZERO;
        for round in 0..ROUNDS {
            // The pauses have grown by then, and a round is no multiple of them.
            let freed_in = Duration::from_micros(200_000 + u64::from(round) * 7919 % 60_000);
            let freed_at = Moment::now() + freed_in;
            KeyWaiters::default().wait(|| async { Ok(freed_at.has_passed()) }).await.unwrap();
            late += Moment::now().saturating_since(freed_at);
        }
        let (mean, pause) = (late / ROUNDS, LONGEST_PAUSE * 6 / 5);
        assert!(mean <= pause * 3 / 4, "{mean:?} after the release, with pauses of {pause:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_waiter_polls_if_the_polling_one_is_dropped() {
        let waiters = Waiters::default();
        let began = Moment::now();
        let is_free = || async { Ok((began + Duration::from_secs(2)).has_passed()) };
        let (one, other) = (waiters.join(OwnerId::mint(), "n"), waiters.join(OwnerId::mint(), "n"));
        let (first, second) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(1), one.wait(is_free)),
            tokio::time::timeout(Duration::from_secs(3), other.wait(is_free)),
        );
        assert!(first.is_err() && second.is_ok_and(|woken| woken.is_ok()));
    }
}
