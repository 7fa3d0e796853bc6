//! The pauses between attempts: [`Backoff`].

use std::time::Duration;

use crate::clock::Moment;
use crate::entropy;

/// Jittered back-off: for outages, for waits that fail, and for waits that wake for nothing.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    outages: u32,
    failed_waits: u32,
    idle_wakes: u32,
    /// The end of the holder's lease, as reported at the first of these wake-ups.
    expires_at: Option<Moment>,
    early_rechecks: u32,
}

impl Backoff {
    pub(super) const LONGEST: Duration = Duration::from_secs(1);
    const SHORT_WAIT: Duration = Duration::from_millis(5);
    /// The tolerance within which two reported ends are of the same lease.
    const SAME: Duration = Duration::from_millis(10);
    const SOON: Duration = Duration::from_millis(50);
    const IDLE_WAKES_FOR_FREE: u32 = 8;

    /// Records the end of the holder's lease. Another end means another holder or a renewal: such a
    /// wake-up is not idle, however often it comes.
    pub(super) fn note_expiry(&mut self, expires_in: Option<Duration>) {
        let at = expires_in.map(|expires_in| Moment::now() + expires_in);
        let is_same = match (at, self.expires_at) {
            (Some(at), Some(before)) => at <= before + Self::SAME && before <= at + Self::SAME,
            (at, before) => at.is_some() == before.is_some(),
        };
        if !is_same {
            self.expires_at = at;
            self.idle_wakes = 0;
        }
    }

    /// Returns the next pause while the backend fails.
    pub(super) fn next_outage_pause(&mut self) -> Duration {
        self.outages += 1;
        jittered(Duration::from_millis(10), self.outages)
    }

    pub(super) fn reset_outages(&mut self) {
        self.outages = 0;
    }

    /// Returns the next pause while waits fail.
    pub(super) fn next_failed_wait_pause(&mut self) -> Duration {
        self.failed_waits += 1;
        jittered(Duration::from_millis(10), self.failed_waits)
    }

    /// Returns the pause that is added to a poll that is due in `recheck`. It is zero, unless the
    /// end of the lease was reported as near many times in a row and did not come.
    pub(super) fn before_recheck(&mut self, recheck: Duration) -> Duration {
        if recheck > Self::SOON {
            self.early_rechecks = 0;
            return Duration::ZERO;
        }
        self.early_rechecks += 1;
        match self.early_rechecks.checked_sub(Self::IDLE_WAKES_FOR_FREE) {
            Some(excess) => jittered(Duration::from_millis(1), excess),
            None => Duration::ZERO,
        }
    }

    /// Returns a pause after a wait that ended at once, many times in a row.
    pub(super) fn after_wait(&mut self, waited: Duration) -> Option<Duration> {
        if waited > Self::SHORT_WAIT {
            self.idle_wakes = 0;
            self.failed_waits = 0;
            return None;
        }
        self.idle_wakes += 1;
        let excess = self.idle_wakes.checked_sub(Self::IDLE_WAKES_FOR_FREE)?;
        Some(jittered(Duration::from_millis(1), excess))
    }
}

fn jittered(first: Duration, doublings: u32) -> Duration {
    jittered_up_to(Backoff::LONGEST, first, doublings)
}

pub(super) fn jittered_up_to(longest: Duration, first: Duration, doublings: u32) -> Duration {
    let pause = (first * 2_u32.pow(doublings.min(16))).min(longest);
    entropy::between(pause / 2, pause)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Returns whether a pause begins at `first` and was doubled so often.
    fn is_doubled(pause: Duration, first: Duration, doublings: u32) -> bool {
        let longest = (first * 2_u32.pow(doublings)).min(Backoff::LONGEST);
        (longest / 2..=longest).contains(&pause)
    }

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew_when_all_is_well() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(backoff.next_outage_pause(), millis(10), doublings.min(16)));
            }
            backoff.reset_outages();
        }
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(
                    backoff.next_failed_wait_pause(),
                    millis(10),
                    doublings.min(16)
                ));
            }
            assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn waits_that_wake_for_nothing_are_free_eight_times_in_a_row() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for _ in 1..Backoff::IDLE_WAKES_FOR_FREE {
                assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT), None);
            }
            for doublings in 0..12 {
                let pause = backoff.after_wait(Duration::ZERO).expect("it is not free any more");
                assert!(is_doubled(pause, millis(1), doublings));
            }
            assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn polls_that_are_due_soon_are_free_eight_times_in_a_row() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for _ in 1..Backoff::IDLE_WAKES_FOR_FREE {
                assert_eq!(backoff.before_recheck(Backoff::SOON), Duration::ZERO);
            }
            for doublings in 0..12 {
                assert!(is_doubled(backoff.before_recheck(Duration::ZERO), millis(1), doublings));
            }
            assert_eq!(backoff.before_recheck(Backoff::SOON + millis(1)), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_was_for_nothing_only_if_the_same_lease_is_in_the_way() {
        let mut backoff = Backoff::default();
        let mut was_for_nothing = |expires_in: Option<u64>| {
            backoff.idle_wakes = 5;
            backoff.note_expiry(expires_in.map(millis));
            backoff.idle_wakes == 5
        };
        assert!(was_for_nothing(None));
        assert!(!was_for_nothing(Some(1000)));
        assert!(was_for_nothing(Some(1000)) && was_for_nothing(Some(1010)));
        assert!(was_for_nothing(Some(990)));
        assert!(!was_for_nothing(Some(989)) && !was_for_nothing(Some(1000)));
        tokio::time::advance(millis(600)).await;
        assert!(was_for_nothing(Some(400)) && !was_for_nothing(Some(1000)));
        assert!(!was_for_nothing(None) && was_for_nothing(None));
    }
}
