//! Work under a lock: [`Lock::run`] acquires, runs and releases.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::guard::LockGuard;
use crate::locker::Lock;

/// The failure of [`Lock::run`], by the step that failed.
#[derive(Debug)]
pub enum RunError<T, E> {
    /// The lock was not acquired. The work did not begin.
    Acquire(Error),
    /// The work failed. The lock is released.
    Work(E),
    /// The lock was lost before the work ended. The work was dropped at an await, half-way.
    Lost(Error),
    /// The work ended, and the release failed. Its error says whether the lock was lost before
    /// ([`Lost`](crate::ErrorKind::Lost) or [`NotHeld`](crate::ErrorKind::NotHeld)), is free and
    /// may have been lost ([`Gone`](crate::ErrorKind::Gone)), or is not known to be free yet.
    Release {
        /// The result of the work.
        value: T,
        /// The reason.
        error: Error,
    },
}

impl<T, E: From<Error>> RunError<T, E> {
    /// Returns the error of the work, or that of the lock as an error of the same type:
    /// `lock.run(…).await.map_err(RunError::flatten)?`. Drops the value of work that has ended.
    #[must_use]
    pub fn flatten(self) -> E {
        match self {
            Self::Work(error) => error,
            Self::Acquire(error) | Self::Lost(error) | Self::Release { error, .. } => error.into(),
        }
    }
}

impl<T, E: fmt::Display> fmt::Display for RunError<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire(error) | Self::Lost(error) => error.fmt(f),
            // Some errors show their causes only so.
            Self::Work(error) => write!(f, "{error:#}"),
            Self::Release { error, .. } => {
                f.write_str("the work is done, and then: ")?;
                error.fmt(f)
            }
        }
    }
}

/// The work's own error is shown, and is no source: it need not be an error type, as
/// `anyhow::Error` and a boxed error are not.
impl<T: fmt::Debug, E: fmt::Debug + fmt::Display> StdError for RunError<T, E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Acquire(error) | Self::Lost(error) | Self::Release { error, .. } => {
                error.source()
            }
            Self::Work(_) => None,
        }
    }
}

impl Lock {
    /// Waits for the lock, runs `work` under it, and releases it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_core::Locker::new(lock_core::Memory::new());
    /// let paid = locks
    ///     .lock("orders/42")?
    ///     .run(async |guard| Ok::<_, lock_core::Error>(guard.require_token()?.as_i64()))
    ///     .await?;
    /// assert!(paid > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// If the lock is lost, `work` is dropped at its next await, as by [`LockGuard::run`]. Tasks
    /// that it spawned and blocking code go on. With a [minimum hold](Self::min_hold) that the
    /// backend does not keep by itself, this returns only when the hold is over.
    ///
    /// # Errors
    ///
    /// A [`RunError`], which separates the error of the work from the loss of the lock and from a
    /// failed release.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases the lock in the background.
    pub async fn run<T, E>(
        &self,
        work: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, RunError<T, E>> {
        run_under(self.acquire().await.map_err(RunError::Acquire)?, work).await
    }

    /// Runs `work` under the lock if the lock is free; `None` if another claim holds it.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). Contention is `None`, and never an error.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T, E>(
        &self,
        work: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<Option<T>, RunError<T, E>> {
        match self.try_acquire().await.map_err(RunError::Acquire)? {
            Some(guard) => run_under(guard, work).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits for the lock for at most `wait`, and runs `work` under it; `None` if the wait ended
    /// without the lock.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run). Contention is `None`, and never an error.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run_for<T, E>(
        &self,
        wait: Duration,
        work: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<Option<T>, RunError<T, E>> {
        match self.try_acquire_for(wait).await.map_err(RunError::Acquire)? {
            Some(guard) => run_under(guard, work).await.map(Some),
            None => Ok(None),
        }
    }
}

async fn run_under<T, E>(
    guard: LockGuard,
    work: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
) -> Result<T, RunError<T, E>> {
    match guard.run(work(&guard)).await {
        Err(lost) => Err(RunError::Lost(lost)),
        Ok(Ok(value)) => match guard.release().await {
            Ok(()) => Ok(value),
            Err(error) => Err(RunError::Release { value, error }),
        },
        Ok(Err(error)) => {
            // The error of the work matters more; an unconfirmed release goes on in the background.
            let _ = guard.release().await;
            Err(RunError::Work(error))
        }
    }
}
