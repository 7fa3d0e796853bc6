//! Core's clock: the only clock that core and its backends ask.
//!
//! A [`Moment`] is the runtime's clock plus the time that the machine spent suspended. Linux'
//! `CLOCK_MONOTONIC`, and with it `Instant`, stands still while a machine sleeps; a lease on a
//! server does not. A deadline kept in moments has passed when the machine wakes up after it.
//! Under a paused tokio clock moments are paused too.

use std::num::NonZeroU64;
use std::ops::Add;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A point in time on core's clock.
///
/// Comparable within one process only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(NonZeroU64);

impl Moment {
    /// Now.
    ///
    /// The value lies between the call and the return of this function, even if the process is
    /// stopped half-way: read it before a request is written and it is never later than the
    /// request.
    #[must_use]
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the clock that the others are told to ask"
    )]
    pub fn now() -> Self {
        // The runtime's clock first: a stop in between may make the moment early, never late.
        let running = since_epoch(Instant::now().into_std());
        Self(NonZeroU64::MIN.saturating_add(running).saturating_add(suspended(running)))
    }

    /// Returns by how much this moment is later than `earlier`; zero if it is not later.
    #[must_use]
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// Returns the time from now until this moment; zero if it has passed.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.saturating_since(Self::now())
    }

    /// Returns true once this moment has come.
    #[must_use]
    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }

    /// Returns this moment moved earlier, to the beginning of the clock at most.
    #[must_use]
    pub fn saturating_sub(self, by: Duration) -> Self {
        let nanos = self.0.get().saturating_sub(nanos(by));
        Self(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Adds without overflow: the clock ends after five centuries, which is as good as never.
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(duration.subsec_nanos().into())
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

/// Seeds the random pauses of this thread, so that they repeat with the seed. For simulations on a
/// paused clock and a runtime of one thread. Owner ids stay random, since they must not be guessed.
pub fn repeat_pauses(seed: u64) {
    crate::entropy::repeat(seed);
}

/// Sleeps until `deadline` on core's clock.
///
/// The timer itself stands still while the machine is suspended: after a suspension it may fire
/// later than `deadline`, never earlier. Code that must know at once compares moments.
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

/// Returns true in a runtime whose clock is paused: the machine's goes on, and tokio's does not.
#[allow(clippy::disallowed_methods, reason = "both clocks are compared")]
pub(crate) fn is_paused() -> bool {
    let (before, machine) = (Instant::now(), std::time::Instant::now());
    while std::time::Instant::now() == machine {}
    Instant::now() == before
}

/// Returns the wall clock, as time since 1970. For seeding fencing tokens and for showing dates,
/// never for leases.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since this machine booted, including suspensions: the same for all its
/// processes. Processes exchange it; within a process, use moments. Not paused with tokio's clock.
#[must_use]
pub fn since_boot() -> Duration {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

    Duration::try_from(rustix::time::clock_gettime(CLOCK)).unwrap_or_default()
}

/// Two clocks at one moment: the one that stands still while the machine is suspended, and the one
/// that goes on. Moments are counted from the first such pair.
struct Clocks {
    running: std::time::Instant,
    booted: u64,
}

static EPOCH: LazyLock<Clocks> = LazyLock::new(Clocks::read);

/// The value of the first pair. It is not zero, because the clock of a runtime may be paused at an
/// earlier time.
const EPOCH_NANOS: u64 = 24 * 3600 * 1_000_000_000;

impl Clocks {
    #[allow(clippy::disallowed_methods, reason = "the runtime's own clock may be paused")]
    fn read() -> Self {
        const TIGHT: Duration = Duration::from_millis(1);
        loop {
            let clocks = Self { running: std::time::Instant::now(), booted: nanos(since_boot()) };
            // Unless this thread was stopped in between.
            if clocks.running.elapsed() < TIGHT {
                return clocks;
            }
        }
    }
}

fn since_epoch(running: std::time::Instant) -> u64 {
    let epoch = EPOCH.running;
    match running.checked_duration_since(epoch) {
        Some(after) => EPOCH_NANOS.saturating_add(nanos(after)),
        None => EPOCH_NANOS.saturating_sub(nanos(epoch.duration_since(running))),
    }
}

/// Returns the advance of the clock that counts suspensions since the epoch.
fn gap(running: u64, booted: u64) -> u64 {
    (EPOCH_NANOS + booted.saturating_sub(EPOCH.booted)).saturating_sub(running)
}

/// Returns for how many nanoseconds this machine was suspended since the epoch, to ten
/// milliseconds.
///
/// The gap between two clocks that are read one after the other jitters; a moment must not. So the
/// gap counts only once it has grown by more than any jitter.
fn suspended(running: u64) -> u64 {
    const NOTICEABLE: u64 = 10_000_000;
    static KNOWN: AtomicU64 = AtomicU64::new(0);

    let known = KNOWN.load(Ordering::Acquire);
    if gap(running, nanos(since_boot())) < known + NOTICEABLE {
        return known + pretended();
    }
    // A suspension; or this thread was stopped in between, or `running` stands still: then read
    // both clocks again.
    let clocks = Clocks::read();
    let gap = gap(since_epoch(clocks.running), clocks.booted);
    if gap >= known + NOTICEABLE {
        KNOWN.fetch_max(gap, Ordering::AcqRel);
    }
    KNOWN.load(Ordering::Acquire) + pretended()
}

#[cfg(not(test))]
fn pretended() -> u64 {
    0
}

#[cfg(test)]
thread_local! {
    static PRETENDED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn pretended() -> u64 {
    PRETENDED.get()
}

/// Makes this thread believe that the machine was suspended for `by`. The runtime's own timers
/// stand still meanwhile, as they do in a real suspension.
#[cfg(test)]
pub(crate) fn pretend_suspended(by: Duration) {
    PRETENDED.set(PRETENDED.get() + nanos(by));
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

    #[test]
    fn moments_before_the_first_reading_are_distinct() {
        let first = since_epoch(EPOCH.running);
        let second = 1_000_000_000;
        assert_eq!(since_epoch(EPOCH.running - Duration::from_secs(2)), first - 2 * second);
        assert_eq!(since_epoch(EPOCH.running + Duration::from_secs(2)), first + 2 * second);
    }

    #[test]
    fn the_gap_is_what_one_clock_is_ahead_by() {
        let (running, booted) = (since_epoch(EPOCH.running), EPOCH.booted);
        assert_eq!(gap(running + 5, booted + 9), 4);
        assert_eq!(
            gap(running + 9, booted + 5),
            0,
            "a paused clock that was moved on is no suspension"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_stands_still_is_no_suspension() {
        let before = Moment::now();
        // On the machine's own clock, more than is noticeable.
        let end = Clocks::read().running + Duration::from_millis(30);
        while end.saturating_duration_since(Clocks::read().running) > Duration::ZERO {}
        assert_eq!(Moment::now(), before);
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
