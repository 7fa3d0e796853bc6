//! Waiting for a lock, for `run` and `acquire`.

use std::time::Duration;

use lock_any::clock::sleep;
use lock_any::{Lock, LockGuard, Locker};

use crate::cli::WaitOptions;
use crate::connect::directory_of;
use crate::exit::{Exit, Failure};
use crate::progress::{self, Progress};
use crate::signals::Signals;

/// Acquires the lock within the time that `options` allow. After a failure, call [`close_after`].
pub(crate) async fn acquire_within(
    url: &str,
    locks: &Locker,
    lock: &Lock,
    options: &WaitOptions,
    progress: &Progress<'_>,
    signals: &mut Signals,
) -> Result<LockGuard, Failure> {
    let acquired = tokio::select! {
        biased;
        acquired = acquire_lock(lock, options) => acquired?,
        signal = signals.next() => return Err(Failure::signalled(signal)),
        never = progress.show_wait(locks) => match never {},
    };
    match acquired {
        Some(guard) => Ok(guard),
        None if options.quiet => Err(Failure::silent(options.conflict_exit_code)),
        None => {
            let state = progress::inspect_briefly(locks, lock.name()).await;
            let held = progress::held_by(&state.holders);
            let held = held.unwrap_or_else(|| "held by another client".to_owned());
            let directory = directory_of(url).map(|it| format!(", in {it}")).unwrap_or_default();
            let message = format!("lock {} is {held}{directory}", lock.name());
            Err(Failure::new(options.conflict_exit_code, message))
        }
    }
}

async fn acquire_lock(
    lock: &Lock,
    options: &WaitOptions,
) -> Result<Option<LockGuard>, lock_any::Error> {
    match options.wait {
        _ if options.no_wait => lock.try_acquire().await,
        Some(wait) => lock.try_acquire_for(wait).await,
        None => lock.acquire().await.map(Some),
    }
}

/// Waits a short time until the queue entry and the lock are released, and returns the failure. A
/// server that does not answer must not delay lockctl longer: then they expire, as after a crash.
pub(crate) async fn close_after(locks: &Locker, failure: Failure) -> Result<Exit, Failure> {
    const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
    tokio::select! {
        biased;
        _ = locks.close() => {}
        () = sleep(CLOSE_TIMEOUT) => {}
    }
    Err(failure)
}
