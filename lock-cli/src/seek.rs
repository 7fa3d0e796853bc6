//! What verbs share that wait for a lock.

use std::time::Duration;

use lock_any::clock::sleep;
use lock_any::{Lock, LockGuard, Locker};

use crate::cli::Patience;
use crate::exit::{Exit, Failure};
use crate::signals::Signals;

/// Waits for the lock for as long as `patience` says. After a failure, [`leave`].
pub(crate) async fn win(
    lock: &Lock,
    patience: &Patience,
    signals: &mut Signals,
) -> Result<LockGuard, Failure> {
    let won = tokio::select! {
        won = seek(lock, patience) => won?,
        signal = signals.next() => return Err(Failure::signalled(signal)),
    };
    won.ok_or_else(|| {
        let message = format!("lock {} is held by somebody else", lock.name());
        Failure::new(patience.conflict_exit_code, message)
    })
}

async fn seek(lock: &Lock, patience: &Patience) -> Result<Option<LockGuard>, lock_any::Error> {
    match patience.wait {
        _ if patience.no_wait => lock.try_acquire().await,
        Some(wait) => lock.try_acquire_for(wait).await,
        None => lock.acquire().await.map(Some),
    }
}

/// Waits a moment until the place in line is given up, and the lock with it. A server that does not
/// answer must not keep lockctl: what is left there ends by itself, as after a crash.
pub(crate) async fn leave(locks: &Locker, failure: Failure) -> Result<Exit, Failure> {
    const MOMENT: Duration = Duration::from_millis(500);
    tokio::select! {
        biased;
        _ = locks.close() => {}
        () = sleep(MOMENT) => {}
    }
    Err(failure)
}
