//! Short words for what the tests of a backend do and see.

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

/// Longer than anything takes on a busy machine. A test that works does not wait for it.
const BOUND: Duration = Duration::from_secs(30);

/// What this thread tells from now on goes to `subscriber`, until the guard is dropped.
///
/// Everywhere else somebody listens, too, and wants nothing: a place in the code that is first come to where nobody
/// listens would else count as one that nobody listens to, for all threads.
#[must_use]
pub fn listen(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static EVERYWHERE: Once = Once::new();
    EVERYWHERE.call_once(|| {
        let nothing = dynamic_filter_fn(|_, _| false);
        // Refused if there is one already. That does as well.
        let _ = dispatcher::set_global_default(registry().with(nothing).into());
    });
    dispatcher::set_default(&subscriber.into())
}

/// A lock's name.
///
/// # Panics
///
/// It is none.
#[must_use]
pub fn name(text: &str) -> LockName {
    LockName::new(text).expect("tests use good names")
}

/// A claim of an owner of its own.
///
/// # Panics
///
/// The name is none.
#[must_use]
pub fn claim(text: &str, ttl_ms: u64) -> Claim {
    Claim::new(name(text), OwnerId::mint(), Duration::from_millis(ttl_ms))
}

/// The grant.
///
/// # Panics
///
/// There is none. The message says what there was instead.
#[track_caller]
pub fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// What is left of the holder's lease, if somebody holds the lock.
///
/// # Panics
///
/// Nobody does. The message says what there was instead.
#[track_caller]
pub fn contended(answer: Result<Attempt, Fault>) -> Option<Duration> {
    match answer {
        Ok(Attempt::Contended { expires_in }) => expires_in,
        other => panic!("not contended: {other:?}"),
    }
}

/// Has a claim win at the first attempt, and tells it its ticket.
///
/// # Panics
///
/// It does not win.
pub async fn win(backend: &dyn Backend, claim: &mut Claim) -> Grant {
    let grant = granted(backend.try_acquire(claim).await);
    claim.ticket.clone_from(&grant.ticket);
    grant
}

/// Renews one claim.
///
/// # Errors
///
/// What the backend answers.
///
/// # Panics
///
/// It does not answer once for one claim.
pub async fn renew(backend: &dyn Backend, claim: &Claim) -> Result<Renewal, Fault> {
    let mut answers = backend.renew(&[claim]).await;
    assert_eq!(answers.len(), 1, "one answer for one claim");
    answers.remove(0)
}

/// Waits until `holds` says so, for half a minute at most.
///
/// # Panics
///
/// It did not happen. The message says where it was waited for.
#[track_caller]
pub fn eventually(mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = Location::caller();
    async move { until(&caller.to_string(), async || holds()).await }
}

/// Waits until `holds` says so, for half a minute at most.
///
/// # Panics
///
/// It did not happen. The message says `what`.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Moment::now() + BOUND;
    while !holds().await {
        assert!(!deadline.has_passed(), "it did not happen within {BOUND:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Where traces go, to be looked through.
#[derive(Clone, Debug, Default)]
pub struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    /// What this thread tells from now on is written here, until the guard is dropped.
    #[must_use]
    pub fn listen(&self) -> DefaultGuard {
        listen(tracing_subscriber::fmt().with_writer(self.clone()).with_ansi(false).finish())
    }

    /// All that was written.
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
