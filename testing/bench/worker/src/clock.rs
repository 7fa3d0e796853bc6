//! `CLOCK_MONOTONIC` in nanoseconds: the same clock in every process of this machine, so that the
//! times of two workers can be compared.

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A microsecond in nanoseconds.
pub const MICRO: u64 = 1_000;
/// A millisecond in nanoseconds.
pub const MILLI: u64 = 1_000_000;
/// A second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;

/// Returns the time in nanoseconds since some time in the past.
#[must_use]
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * SECOND + time.tv_nsec.cast_unsigned()
}

/// Blocks this thread until `at`.
pub fn wait_until(at: u64) {
    // A signal interrupts it before the time is over.
    while now() < at {
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(at));
    }
}

/// Blocks this thread for so many nanoseconds.
pub fn wait(nanos: u64) {
    wait_until(now() + nanos);
}

/// Waits until `at`.
///
/// The runtime's own timers round up to milliseconds, which is more than a hand-off takes, and
/// differ between languages. Those of the kernel do not.
///
/// # Errors
///
/// The kernel has no timer left, for lack of file descriptors.
///
/// # Cancel safety
///
/// Cancel safe: dropping the future frees the timer.
#[allow(deprecated, reason = "sound for a descriptor that we own; its replacement is unsafe")]
pub async fn reach(at: u64) -> std::io::Result<()> {
    if now() >= at {
        return Ok(());
    }
    let timer =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let once =
        Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: timespec(at) };
    timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME, &once)?;
    let timer = AsyncFd::new(timer)?;
    drop(timer.readable().await?);
    Ok(())
}

fn timespec(at: u64) -> Timespec {
    Timespec { tv_sec: (at / SECOND).cast_signed(), tv_nsec: (at % SECOND).cast_signed() }
}
