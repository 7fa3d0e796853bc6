//! The trait of the libraries that a worker can lock with.

use std::time::Duration;

/// A way to lock that can be measured.
///
/// Errors are text: they end up in a report and end the run.
pub trait Lib: Send + Sync + 'static {
    /// A lock that was prepared as far as users of this library would.
    type Lock: Clone + Send + Sync + 'static;
    /// A lock that is held.
    type Held: Send + Sync + 'static;

    /// Why it cannot wait for a lock that somebody has, if it cannot. It is then asked for locks only that
    /// nobody has.
    const CANNOT_WAIT: Option<&str> = None;

    /// Why a lock ends although its holder lives and holds on to it, if it does.
    const CANNOT_KEEP: Option<&str> = None;

    /// The lock of that name.
    ///
    /// # Errors
    ///
    /// A name that this library does not take.
    fn lock(&self, name: &str) -> Result<Self::Lock, String>;

    /// Waits for the lock. Floors that cannot wait fail where somebody else has it.
    fn acquire(
        &self,
        lock: &Self::Lock,
        ttl: Duration,
    ) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Lets go, and comes back when that is known to be done.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// The fencing token, if this library has any.
    fn token(_held: &Self::Held) -> Option<u64> {
        None
    }

    /// How long the lock lasts if it is not renewed any more; `Duration::MAX` where locks have no end,
    /// `None` if it was lost.
    fn valid_for(_held: &Self::Held) -> Option<Duration> {
        Some(Duration::MAX)
    }
}
