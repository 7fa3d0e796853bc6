//! Threads for work that waits for a disk.

use lock_core::backend::{Fault, FaultKind};
use tokio::sync::{Semaphore, oneshot};

/// Runs work that waits for a disk, without blocking the runtime.
///
/// Each piece of work has a thread of its own. The runtime's pool panics where the system refuses
/// it a thread.
///
/// # Cancel safety
///
/// Work continues if the future is dropped. Its locks are released when it ends.
pub(crate) async fn on_disk_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    /// Limit of the threads at one time.
    static THREADS: Semaphore = Semaphore::const_new(64);

    let turn = THREADS.acquire().await.expect("it is never closed");
    let (done, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("lock-file-sync".to_owned());
    let started = thread.spawn(move || {
        let _turn = turn;
        done.send(work())
    });
    started.map_err(|why| no_thread(&why))?;
    result.await.unwrap_or_else(|gone| Err(Fault::not_applied(FaultKind::Unavailable, gone)))
}

fn no_thread(why: &std::io::Error) -> Fault {
    let message = format!(
        "cannot start a thread that waits for the disk; raise the limit (ulimit -u): {why}"
    );
    Fault::not_applied(FaultKind::Unavailable, message)
}
