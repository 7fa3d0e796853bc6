//! Short helpers for the tests of a backend.

use std::io;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, Grant, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, LockName, OwnerId};
use tracing::dispatcher::{self, DefaultGuard, Dispatch};
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

/// A time that no step exceeds on a busy machine. A passing test does not wait for it.
const BOUND: Duration = Duration::from_secs(30);

/// Sends the traces of this thread to `subscriber` until the guard is dropped.
///
/// All other threads get a subscriber that filters everything. Without one, `tracing` caches a call
/// site that is first reached there as disabled, for all threads.
#[must_use]
pub fn listen(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static EVERYWHERE: Once = Once::new();
    EVERYWHERE.call_once(|| {
        let nothing = dynamic_filter_fn(|_, _| false);
        // It fails if there is a subscriber already, which serves as well.
        let _ = dispatcher::set_global_default(registry().with(nothing).into());
    });
    dispatcher::set_default(&subscriber.into())
}

/// Makes the name of a lock.
///
/// # Panics
///
/// Panics if the text is no valid name.
#[must_use]
pub fn name(text: &str) -> LockName {
    LockName::new(text).expect("tests use good names")
}

/// Makes a claim with a new owner id.
///
/// # Panics
///
/// Panics if the text is no valid name.
#[must_use]
pub fn claim(text: &str, ttl_ms: u64) -> Claim {
    Claim::new(name(text), OwnerId::mint(), Duration::from_millis(ttl_ms))
}

/// Returns the grant of an attempt.
///
/// # Panics
///
/// Panics with the answer if it is no grant.
#[track_caller]
pub fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Returns the rest of the holder's lease, if a contended attempt reports it.
///
/// # Panics
///
/// Panics with the answer if the attempt was not contended.
#[track_caller]
pub fn contended(answer: Result<Attempt, Fault>) -> Option<Duration> {
    match answer {
        Ok(Attempt::Contended { expires_in }) => expires_in,
        other => panic!("not contended: {other:?}"),
    }
}

/// Acquires the lock of a claim at the first attempt, and stores the ticket in the claim.
///
/// # Panics
///
/// Panics if the attempt is not granted.
pub async fn win(backend: &dyn Backend, claim: &mut Claim) -> Grant {
    let grant = granted(backend.try_acquire(claim).await);
    claim.ticket.clone_from(&grant.ticket);
    grant
}

/// Renews one claim.
///
/// # Errors
///
/// Returns the fault that the backend answers.
///
/// # Panics
///
/// Panics if there is not exactly one answer.
pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Result<Renewal, Fault> {
    let mut answers = backend.renew(&[claim]).await;
    assert_eq!(answers.len(), 1, "one answer for one claim");
    answers.remove(0)
}

/// Waits until `holds` returns true, for 30 s at most.
///
/// # Panics
///
/// Panics with the caller's location after that.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move { until(&caller.to_string(), async || holds()).await }
}

/// Waits until `holds` returns true, for 30 s at most.
///
/// # Panics
///
/// Panics with `event` after that.
pub async fn until(event: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Moment::now() + BOUND;
    while !holds().await {
        assert!(!deadline.has_passed(), "it did not happen within {BOUND:?}: {event}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// A buffer of traces, for tests that search them.
#[derive(Clone, Debug, Default)]
pub struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    /// Collects the traces of this thread until the guard is dropped.
    #[must_use]
    pub fn listen(&self) -> DefaultGuard {
        listen(tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false).finish())
    }

    /// Returns the whole text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
