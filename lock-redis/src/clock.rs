//! The server's clock, as far as one of its answers tells it.

use std::future::Future;
use std::time::Duration;

use lock_core::clock::{Moment, sleep};
use lock_core::metrics::record_server_clock;

/// The server's time at some moment after one of ours.
///
/// `asked` was read before the request was written, and `time` when it ran. So an event at the
/// server's time `said + x` happens at our `asked + x` at the earliest, except for clocks that run
/// at different rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerTime {
    pub(crate) asked: Moment,
    /// In µs.
    pub(crate) time: u64,
}

impl ServerTime {
    /// Returns the latest local moment at which the server can have acted at its time `at`, in µs.
    /// Returns `None` if `at` is before this reading, or more than `reach` after it.
    pub(crate) fn local(self, at: u64, reach: Duration) -> Option<Moment> {
        let passed = Duration::from_micros(at.checked_sub(self.time)?);
        (passed <= reach).then(|| self.asked + (passed - passed / 100))
    }
}

/// Reports the server's time, in µs, to the metrics.
pub(crate) fn report(asked: Moment, time: u64) {
    record_server_clock("redis", asked, Duration::from_micros(time));
}

/// Returns the result of `work`, or `None` after `limit`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep(limit) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_moment_is_later_than_the_true_one() {
        let asked = Moment::now();
        let ms = Duration::from_millis;
        // The answer was made 30 ms later; the server's clock is wrong by days, and runs fast or
        // slow.
        for rate in [0.99, 1.0, 1.01] {
            let time = ServerTime { asked, time: 1_000_000 };
            for passed in [0_u32, 1, 500, 10_000] {
                let at = 1_000_000 + (f64::from(passed) * 1000.0 * rate) as u64;
                let truth = asked + ms(30) + ms(u64::from(passed));
                let local = time.local(at, ms(20_000)).unwrap();
                assert!(local <= truth, "{passed} at {rate}");
                let early = truth.saturating_since(local);
                assert!(early <= ms(31) + ms(u64::from(passed) / 49), "{early:?} too early");
            }
        }
    }

    #[test]
    fn a_distant_time_has_no_local_moment() {
        let time = ServerTime { asked: Moment::now(), time: 1_000_000 };
        let reach = Duration::from_secs(1);
        assert!(time.local(2_000_000, reach).is_some());
        assert!(time.local(2_000_001, reach).is_none());
        assert!(time.local(999_999, reach).is_none(), "before it was asked, the clock was set");
    }
}
