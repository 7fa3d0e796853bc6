//! One member: its connection, its server, and how fast it has answered.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::Moment;
use lock_core::dial::Dialer;
use lock_core::{Backend, Capabilities, Error, ErrorKind, Support, Wakeup};
use tokio::sync::Semaphore;

use crate::capabilities::mismatch;
use crate::server::Server;

/// The maximum number of calls of one member in flight. A member that has stopped answering must
/// not accumulate more.
const MAX_IN_FLIGHT: usize = 16_384;

/// The maximum number of releases that are retried at one member in the background, and how many of
/// them run at the same time.
const MAX_RETRIES: usize = 1024;
const MAX_CONCURRENT_RETRIES: usize = 64;

/// How long the quorum does not wait for a slow member: doubled each time that it is slow again
/// without an answer in between.
const SLOW_FOR: Duration = Duration::from_secs(1);
const LONGEST_SLOW: Duration = Duration::from_secs(8);

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, Error>> + Send>>;
pub(crate) type Connect = Box<dyn Fn() -> Connecting + Send + Sync>;

/// A member of a quorum.
pub(crate) struct Member {
    /// Its name in messages; without credentials.
    pub(crate) name: String,
    dialer: Dialer<Arc<dyn Backend>>,
    /// `None`: it was connected when the quorum was built, and reconnects by itself.
    connect: Option<Connect>,
    in_flight: AtomicUsize,
    /// Slots for releases to retry here, and the permits to run them.
    pub(crate) retry_slots: Arc<Semaphore>,
    pub(crate) retry_turns: Semaphore,
    seen: Mutex<Seen>,
}

/// The observed state of a member.
#[derive(Default)]
struct Seen {
    /// The server, as it identified itself last.
    server: Option<Arc<Server>>,
    slow: Option<SlowPeriod>,
    /// How long it counted as slow last, if no round had its answer in time since.
    slow_for: Option<Duration>,
    /// True if it has answered no call since it was slow.
    silent: bool,
}

/// The time for which a member counts as slow.
#[derive(Clone, Copy)]
struct SlowPeriod {
    since: Moment,
    until: Moment,
}

impl Member {
    pub(crate) fn new(
        name: String,
        backend: Option<Arc<dyn Backend>>,
        connect: Option<Connect>,
    ) -> Self {
        let dialer = Dialer::default();
        if let Some(backend) = backend {
            dialer.put(backend);
        }
        Self {
            name,
            dialer,
            connect,
            in_flight: AtomicUsize::new(0),
            retry_slots: Arc::new(Semaphore::new(MAX_RETRIES)),
            retry_turns: Semaphore::new(MAX_CONCURRENT_RETRIES),
            seen: Mutex::default(),
        }
    }

    /// Returns the backend, if it has been connected.
    pub(crate) fn current(&self) -> Option<Arc<dyn Backend>> {
        self.dialer.current()
    }

    /// Returns true if waiters can queue here and see which claim is served. A release hands the
    /// vote to the next one.
    pub(crate) fn has_queue(&self) -> bool {
        self.current().is_some_and(|backend| {
            let caps = backend.capabilities();
            caps.wakeup == Wakeup::HandOff && caps.inspecting == Support::Present
        })
    }

    /// Returns the backend. Connects it first if necessary, and refuses one that contradicts the
    /// `declared` capabilities.
    pub(crate) async fn backend(&self, declared: &Capabilities) -> Result<Arc<dyn Backend>, Fault> {
        if let Some(backend) = self.current() {
            return Ok(backend);
        }
        let Some(connect) = &self.connect else {
            return Err(Fault::not_applied(FaultKind::Broken, "a member without a backend"));
        };
        let declared = *declared;
        let dial = || {
            let connecting = connect();
            async move {
                let backend = connecting.await.map_err(not_connected)?;
                match mismatch(&declared, &backend.capabilities()) {
                    None => Ok(backend),
                    Some(how) => {
                        let why = format!("it cannot join those that were there first: {how}");
                        Err(Fault::not_applied(FaultKind::Unsupported, why))
                    }
                }
            }
        };
        self.dialer.get(|_| true, dial).await
    }

    /// Counts a call that begins; `None` if too many are in flight.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<InFlight> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let call = InFlight(Arc::clone(self));
        (before < MAX_IN_FLIGHT).then_some(call)
    }

    /// Returns true if the member was slow lately. Only callers that need its vote wait for it.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow().is_some()
    }

    /// Returns true if that was known at `moment`, and still holds.
    pub(crate) fn was_slow_before(&self, moment: Moment) -> bool {
        self.slow().is_some_and(|slow| slow.since < moment)
    }

    /// Marks the member as slow. Many calls can find that together: calls that began after the
    /// first of them knew it.
    pub(crate) fn mark_slow(&self) {
        let (now, mut seen) = (Moment::now(), self.seen());
        let known = seen.slow.filter(|slow| !slow.until.has_passed());
        let slow_for = match (known, seen.slow_for) {
            (Some(_), Some(slow_for)) => slow_for,
            (None, Some(before)) => (before * 2).min(LONGEST_SLOW),
            (_, None) => SLOW_FOR,
        };
        let since = known.map_or(now, |slow| slow.since);
        seen.slow = Some(SlowPeriod { since, until: now + slow_for });
        seen.slow_for = Some(slow_for);
        seen.silent = true;
    }

    /// Returns true if the member was slow lately, and has answered nothing since: it may hang.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_slow() && self.seen().silent
    }

    /// Notes an answer, however late.
    pub(crate) fn is_heard(&self) {
        self.seen().silent = false;
    }

    /// Notes an answer that arrived while a round waited for it.
    pub(crate) fn has_answered(&self) {
        let mut seen = self.seen();
        if seen.slow_for.take().is_some()
            && let Some(slow) = &mut seen.slow
        {
            slow.until = slow.until.min(Moment::now() + SLOW_FOR);
        }
    }

    fn slow(&self) -> Option<SlowPeriod> {
        self.seen().slow.filter(|slow| !slow.until.has_passed())
    }

    /// Returns the server to which its connection leads. A new connection is asked for the
    /// identity.
    pub(crate) async fn server(&self, backend: &dyn Backend) -> Result<Arc<Server>, Fault> {
        let known = self.seen().server.clone();
        if let Some(server) = known.filter(|server| server.is_current()) {
            return Ok(server);
        }
        // Boxed: it is rare, and takes no space in the future of each verb.
        let identity = Box::pin(backend.identity()).await?;
        let server = Arc::new(Server::new(backend.capabilities().backend, identity));
        self.seen().server = Some(Arc::clone(&server));
        Ok(server)
    }

    /// Returns the server as it identified itself last.
    pub(crate) fn known_server(&self) -> Option<Arc<Server>> {
        self.seen().server.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Member").field(&self.name).finish()
    }
}

/// A call of a member in flight.
pub(crate) struct InFlight(Arc<Member>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn not_connected(error: Error) -> Fault {
    let kind = match error.kind() {
        ErrorKind::Denied => FaultKind::Denied,
        ErrorKind::Unsupported => FaultKind::Unsupported,
        ErrorKind::Invalid => FaultKind::Invalid,
        ErrorKind::Timeout => FaultKind::TimedOut,
        _ => FaultKind::Unavailable,
    };
    Fault::not_applied(kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_member_is_slow_since_the_first_late_answer() {
        let member = Member::new("m".into(), None, None);
        let before = Moment::now();
        let advance = |millis| tokio::time::advance(Duration::from_millis(millis));
        advance(1).await;
        member.mark_slow();
        advance(1).await;
        let began = Moment::now();
        assert!(member.was_slow_before(began) && !member.was_slow_before(before));
        // Other calls find it as well.
        advance(1).await;
        member.mark_slow();
        assert!(member.was_slow_before(began));
        tokio::time::advance(SLOW_FOR).await;
        assert!(!member.is_slow() && !member.was_slow_before(Moment::now()));
        member.mark_slow();
        assert!(!member.was_slow_before(began));
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_lags_repeatedly_is_asked_last_for_longer() {
        let member = Member::new("m".into(), None, None);
        for seconds in [1, 2, 4, 8, 8] {
            // Several calls find it together.
            member.mark_slow();
            member.mark_slow();
            tokio::time::advance(Duration::from_millis(seconds * 1000 - 1)).await;
            assert!(member.is_slow(), "for {seconds} s");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(!member.is_slow(), "for {seconds} s");
        }
        member.mark_slow();
        assert!(member.is_silent());
        member.is_heard();
        assert!(member.is_slow() && !member.is_silent(), "it lags, and does not hang");
        member.has_answered();
        tokio::time::advance(SLOW_FOR).await;
        assert!(!member.is_slow());
        member.mark_slow();
        tokio::time::advance(SLOW_FOR).await;
        assert!(!member.is_slow());
    }
}
