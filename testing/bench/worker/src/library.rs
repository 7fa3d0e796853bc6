//! The trait of the libraries that a worker can lock with.

use std::time::Duration;

/// A lock library that can be measured.
///
/// Errors are text, for a report; they end the run.
pub trait Lib: Send + Sync + 'static {
    /// A handle of a lock, prepared as users of this library would prepare it.
    type Lock: Clone + Send + Sync + 'static;
    /// A lock that is held.
    type Held: Send + Sync + 'static;

    /// Why it cannot wait for a held lock, if it cannot. It is then measured only without
    /// contention.
    const CANNOT_WAIT: Option<&str> = None;

    /// Why a lock ends although its holder lives and does not release it, if it does.
    const CANNOT_KEEP: Option<&str> = None;

    /// Returns the handle of a lock.
    ///
    /// # Errors
    ///
    /// The library does not accept the name.
    fn lock(&self, name: &str) -> Result<Self::Lock, String>;

    /// Waits for the lock. Floors that cannot wait fail if the lock is held.
    fn acquire(
        &self,
        lock: &Self::Lock,
        ttl: Duration,
    ) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Acquires the lock if it is free. Only the fleet's tests need it.
    fn try_acquire(
        &self,
        _lock: &Self::Lock,
        _ttl: Duration,
    ) -> impl Future<Output = Result<Option<Self::Held>, String>> + Send {
        async { Err("this worker cannot try".into()) }
    }

    /// Sets the lease to `ttl` from now. Only the fleet's tests need it.
    fn extend(
        &self,
        _held: &Self::Held,
        _ttl: Duration,
    ) -> impl Future<Output = Result<(), String>> + Send {
        async { Err("this worker cannot extend".into()) }
    }

    /// Releases the lock, and returns when the release is confirmed.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// Returns the fencing token, if this library has tokens.
    fn token(_held: &Self::Held) -> Option<u64> {
        None
    }

    /// Returns the remaining time of the lock without a renewal: `Duration::MAX` if locks have no
    /// end, `None` if it was lost.
    fn valid_for(_held: &Self::Held) -> Option<Duration> {
        Some(Duration::MAX)
    }
}
