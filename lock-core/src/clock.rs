//! Core's clock: the only clock that core and its backends ask.
//!
//! A [`Moment`] is the runtime's clock plus the time that the machine spent suspended. Linux'
//! `CLOCK_MONOTONIC`, and with it `Instant`, stands still while a machine sleeps; a lease on a
//! server does not. A deadline kept in moments has passed when the machine wakes up after it.
//! Under a paused tokio clock moments are paused too.

use std::ops::Add;
use std::time::Duration;

use tokio::time::Instant;

/// Far enough to mean "never", near enough that no arithmetic overflows.
const FAR_AWAY: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A point in time on core's clock.
///
/// Comparable within one process only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Instant);

impl Moment {
    /// Now.
    ///
    /// The value lies between the call and the return of this function, even if the process is
    /// stopped half-way: read it before a request is written and it is never later than the request.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the clock that the others are told to ask"
    )]
    pub fn now() -> Self {
        // The runtime's clock first: a stop in between may make the moment early, never late.
        let running = Instant::now();
        Self(running + suspended())
    }

    /// How much later this moment is than `earlier`; zero if it is not later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// The time from now until this moment; zero if it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_since(Self::now())
    }

    /// True once this moment has come.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// This moment moved earlier; stays put where the clock cannot express it.
    #[must_use]
    pub fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.checked_sub(by).unwrap_or(self.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Never overflows: more than thirty years is as good as for ever.
    fn add(self, by: Duration) -> Self {
        Self(self.0 + by.min(FAR_AWAY))
    }
}

/// Sleeps for `duration` on core's clock.
///
/// # Cancel safety
///
/// Dropping the future stops the timer and does nothing else.
pub async fn sleep(duration: Duration) {
    sleep_until(Moment::now() + duration).await;
}

/// Sleeps for a duration drawn evenly between `from` and `to`: pauses of many clients must not
/// fall together.
///
/// # Cancel safety
///
/// Dropping the future stops the timer and does nothing else.
pub async fn sleep_between(from: Duration, to: Duration) {
    sleep(crate::entropy::between(from, to)).await;
}

/// From now on, the pauses that are drawn at random on this thread repeat with the seed. For simulations
/// on a paused clock and a runtime of one thread. Owner ids, which nobody may guess, stay random.
pub fn repeat_pauses(seed: u64) {
    crate::entropy::repeat(seed);
}

/// Sleeps until `deadline` on core's clock.
///
/// The timer itself stands still while the machine is suspended: after a suspension it may fire
/// later than `deadline`, never earlier. Who must know at once compares moments.
///
/// # Cancel safety
///
/// Dropping the future stops the timer and does nothing else.
#[allow(clippy::disallowed_methods, reason = "this is the sleep that the others are told to use")]
pub async fn sleep_until(deadline: Moment) {
    loop {
        let left = deadline.remaining();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

/// The wall clock, as time since 1970. For seeding fencing tokens and for showing dates, never for
/// leases.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// How long this machine has been suspended since it booted, to ten milliseconds.
///
/// The gap between two clocks that are read one after the other jitters; a moment must not. So the
/// gap counts only once it has grown by more than any jitter.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn suspended() -> Duration {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::time::{ClockId, Timespec, clock_gettime};

    const NOTICEABLE: u64 = 10_000_000;
    const TIGHT: u64 = 1_000_000;
    static KNOWN: AtomicU64 = AtomicU64::new(0);

    fn nanos(time: Timespec) -> u64 {
        let secs = u64::try_from(time.tv_sec).unwrap_or(0);
        secs.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    let known = KNOWN.load(Ordering::Acquire);
    loop {
        let before = nanos(clock_gettime(ClockId::Monotonic));
        let gap = nanos(clock_gettime(ClockId::Boottime)).saturating_sub(before);
        if gap < known + NOTICEABLE {
            break;
        }
        // A suspension, or this thread was stopped in between: then look again.
        if nanos(clock_gettime(ClockId::Monotonic)) - before < TIGHT {
            KNOWN.fetch_max(gap, Ordering::AcqRel);
            break;
        }
    }
    Duration::from_nanos(KNOWN.load(Ordering::Acquire)).min(FAR_AWAY) + pretended()
}

/// Other systems: their monotonic clocks are taken as they are.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn suspended() -> Duration {
    pretended()
}

#[cfg(not(test))]
fn pretended() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
}

#[cfg(test)]
fn pretended() -> Duration {
    PRETENDED.get()
}

/// Makes this thread believe that the machine was suspended for `by`. The runtime's own timers
/// stand still meanwhile, as they do in a real suspension.
#[cfg(test)]
pub(crate) fn pretend_suspended(by: Duration) {
    PRETENDED.set(PRETENDED.get() + by);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_for_ever_does_not_overflow() {
        let now = Moment::now();
        assert!(now + Duration::MAX > now);
        assert_eq!(now.saturating_since(now + Duration::MAX), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_suspension_moves_the_clock_but_not_the_timers() {
        let deadline = Moment::now() + Duration::from_secs(10);
        assert!(!deadline.has_passed());
        pretend_suspended(Duration::from_secs(11));
        assert!(deadline.has_passed(), "a machine that slept past the deadline finds it passed");
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_until_is_never_early() {
        let deadline = Moment::now() + Duration::from_millis(1500);
        sleep_until(deadline).await;
        assert!(deadline.has_passed());
    }
}
