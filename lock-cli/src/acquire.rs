//! Waiting for a lock, for `run` and `acquire`.

use std::time::Duration;

use lock_any::clock::{Moment, sleep};
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
        acquired = acquire_when_ready(lock, options, progress) => acquired?,
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

/// Acquires the lock. Waits while the backend is known to become ready by itself, as a quorum of
/// restarted members.
async fn acquire_when_ready(
    lock: &Lock,
    options: &WaitOptions,
    progress: &Progress<'_>,
) -> Result<Option<LockGuard>, lock_any::Error> {
    // Another server may be back earlier.
    const LONGEST_PAUSE: Duration = Duration::from_secs(2);
    let end = options.wait.map(|wait| Moment::now() + wait);
    loop {
        let left = end.map(Moment::remaining);
        let acquired = match left {
            _ if options.no_wait => return lock.try_acquire().await,
            Some(left) => lock.try_acquire_for(left).await,
            None => lock.acquire().await.map(Some),
        };
        let left = end.map_or(Duration::MAX, Moment::remaining);
        let error = match acquired {
            Err(error) if error.retry_after().is_some() && !left.is_zero() => error,
            ended => return ended,
        };
        let pause = error.retry_after().unwrap_or_default().min(LONGEST_PAUSE).min(left);
        progress.set_not_ready(Some(error));
        sleep(pause).await;
        progress.set_not_ready(None);
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
