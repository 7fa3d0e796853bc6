//! What verbs share that wait for a lock.

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

/// A place in line, or what is left of a lost lock, goes in the background: waits for that. If it
/// cannot be done in time, it ends with the lease, and there is nothing that the caller could do.
pub(crate) async fn leave(locks: &Locker, failure: Failure) -> Result<Exit, Failure> {
    let _ = locks.close().await;
    Err(failure)
}
