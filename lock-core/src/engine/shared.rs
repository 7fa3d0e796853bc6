//! The state that all acquisitions of one locker share, and the call of a backend's verbs.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SetOnce};
use tokio_util::task::TaskTracker;

use super::local_queue::LocalQueues;
use super::schedule::{Schedule, Scheduled};
use crate::backend::{Backend, Capabilities, Fault, FaultKind, HoldKind, Order, Support};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::executor::Executor;
use crate::metrics::{Classes, Metrics};
use crate::name::LockName;
use crate::owner::Label;
use crate::policy::HoldPolicy;
use crate::token::FencingToken;

/// Turns for releases that are repeated in the background.
pub(crate) const MAX_RELEASES: usize = 64;

/// The time from one poll of a process, for lost notifications, to the next.
const RECHECK: Duration = Duration::from_secs(30);

/// A hold, as far as the state that all acquisitions share depends on it.
pub(crate) trait Held: Scheduled + fmt::Debug {
    /// A lock that is passed to the next waiter of the process.
    type Handover: fmt::Debug + Send;
}

/// One backend and everything that its locks have in common. Lives as long as its lockers, locks
/// and guards.
#[derive(Debug)]
pub(crate) struct SharedEngine<H: Held> {
    pub(crate) backend: Arc<dyn Backend>,
    /// The capabilities of the backend, as far as the settings leave them.
    pub(crate) caps: Capabilities,
    /// Whether waiters are queued on the backend.
    pub(crate) has_server_queue: bool,
    pub(crate) settings: Settings,
    /// The default policy of locks.
    pub(crate) default_policy: Arc<HoldPolicy>,
    pub(crate) queues: Arc<LocalQueues<H::Handover>>,
    pub(crate) schedule: Arc<Schedule<H>>,
    executor: OnceLock<Executor>,
    pub(crate) pending: Arc<Semaphore>,
    /// Turns for releases in the background.
    pub(crate) release_turns: Semaphore,
    /// Shared by the releases that are repeated, which counts them.
    pub(crate) repeated_releases: Arc<()>,
    pub(crate) tasks: TaskTracker,
    /// When the locker was closed.
    pub(crate) closing: SetOnce<Moment>,
    pub(crate) metrics: Metrics,
    seen_tokens: Mutex<SeenTokens>,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) timeout: Duration,
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) max_ttl: Duration,
    pub(crate) outage_timeout: Duration,
    pub(crate) max_pending: usize,
    pub(crate) executor: Option<Executor>,
    pub(crate) label: Option<Label>,
    /// How often in a row a lock may be handed over inside this process.
    pub(crate) local_handovers: u8,
    /// The classes of names in metrics.
    pub(crate) classes: Classes,
}

impl<H: Held> SharedEngine<H> {
    pub(crate) fn new(backend: Arc<dyn Backend>, mut settings: Settings) -> Self {
        let mut caps = backend.capabilities();
        let has_server_queue = caps.order == Order::Fifo;
        if caps.polling_share.is_some() {
            // A lock that stays in the process is never free for clients that poll.
            settings.local_handovers = 0;
        }
        if settings.local_handovers > 0 {
            // Waiters of this process overtake earlier ones of other processes.
            caps.order = Order::PerProcess;
        }
        Self {
            metrics: Metrics::new(caps.backend, &settings.classes),
            caps,
            has_server_queue,
            backend,
            default_policy: Arc::default(),
            queues: Arc::default(),
            schedule: Arc::default(),
            executor: OnceLock::new(),
            pending: Arc::new(Semaphore::new(settings.max_pending)),
            release_turns: Semaphore::new(MAX_RELEASES),
            repeated_releases: Arc::default(),
            tasks: TaskTracker::new(),
            closing: SetOnce::new(),
            seen_tokens: Mutex::default(),
            settings,
        }
    }

    /// Returns the longest time for which a waiter relies on notifications. With any number of
    /// waiters, the process polls about once in [`RECHECK`].
    pub(crate) fn recheck_every(&self) -> Duration {
        let pending = self.settings.max_pending - self.pending.available_permits();
        RECHECK * u32::try_from(pending.max(1)).unwrap_or(u32::MAX)
    }

    /// Calls a verb: within `limit`, and without letting a panic through.
    ///
    /// A verb that misses the limit is dropped. Its outcome is unknown then.
    pub(crate) async fn call<T>(
        &self,
        limit: Duration,
        verb: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        match tokio::time::timeout(limit, unpanicking(verb)).await {
            Ok(answer) => answer,
            Err(_) => {
                Err(Fault::unknown(FaultKind::TimedOut, format!("no answer within {limit:?}")))
            }
        }
    }

    /// Runs clean-up that [`close`](crate::Locker::close) waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(work, self.executor().handle());
    }

    /// Returns the tasks and the runtime that finish work when its caller drops it.
    pub(crate) fn background(&self) -> (TaskTracker, Handle) {
        (self.tasks.clone(), self.executor().handle().clone())
    }

    /// Returns where the work of this engine runs, and starts it before the first verb.
    pub(crate) fn start(&self) -> Result<&Executor, Error> {
        let executor = match self.executor.get() {
            Some(executor) => executor,
            None => {
                let executor = self.given().map_or_else(Executor::current_or_new, Ok)?;
                self.executor.get_or_init(|| executor)
            }
        };
        executor.check()?;
        Ok(executor)
    }

    fn given(&self) -> Option<Executor> {
        self.settings.executor.clone().or_else(|| self.backend.executor())
    }

    /// Returns where the work of this engine runs, after its first verb.
    pub(crate) fn executor(&self) -> &Executor {
        self.executor.get().expect("started before the first verb")
    }

    /// Polls calls of verbs within the executor.
    pub(crate) async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.start()?.within(work).await
    }

    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match self.closing.get() {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Closed, "the locker was closed")),
        }
    }

    /// Returns the leases that can be asked for.
    pub(crate) fn ttl_range(&self) -> RangeInclusive<Duration> {
        self.caps.ttl_min..=self.caps.ttl_max.min(self.settings.max_ttl)
    }

    /// Checks that `ttl` is a lease that can be asked for.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<(), Error> {
        let range = self.ttl_range();
        if range.contains(&ttl) {
            return Ok(());
        }
        let (backend, min, max) = (self.caps.backend, range.start(), range.end());
        let message = format!(
            "a ttl of {ttl:?} is out of range; with {backend} it is from {min:?} to {max:?}"
        );
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// Checks that a hold can be kept by this policy.
    pub(crate) fn check_policy(
        &self,
        policy: &HoldPolicy,
        ttl: Duration,
        kind: HoldKind,
    ) -> Result<(), Error> {
        let max = self.settings.max_ttl;
        let keeps_by_itself = self.caps.minimum_hold == Support::Present;
        match (policy.min_hold, policy.renewal.limit()) {
            (Some(min_hold), _)
                if min_hold > ttl && policy.renewal.is_off() && !keeps_by_itself =>
            {
                let message = format!(
                    "a minimum hold of {min_hold:?} outlasts the ttl of {ttl:?}, which is not to be renewed"
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Some(min_hold), Some(max_hold)) if min_hold > max_hold => {
                let message = format!(
                    "a minimum hold of {min_hold:?} outlasts the longest hold of {max_hold:?}"
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (Some(min_hold), _) if min_hold > max => {
                let message = format!(
                    "a minimum hold of {min_hold:?} is out of range; it is at most {max:?}"
                );
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (min_hold, max_hold)
                if kind == HoldKind::Detached && (min_hold.is_some() || max_hold.is_some()) =>
            {
                let message = "a detachable lock has no minimum and no longest hold: whoever adopts it would not know";
                Err(Error::new(ErrorKind::Invalid, message))
            }
            (_, Some(Duration::ZERO)) => {
                Err(Error::new(ErrorKind::Invalid, "a longest hold of zero is no hold at all"))
            }
            _ => Ok(()),
        }
    }

    /// Returns by how much the deadline precedes the end of the lease: a hundredth of it for clocks
    /// that run at different rates, and the backend's constant.
    pub(crate) fn margin(&self, lease: Duration) -> Duration {
        lease / 100 + self.caps.margin
    }

    /// Returns false if this token of this lock, or a higher one, was seen before.
    pub(crate) fn has_grown(&self, name: &LockName, token: FencingToken) -> bool {
        self.observe(name, token).is_none_or(|before| token > before)
    }

    /// Returns false if a higher token of this lock was seen before. The same one is the same
    /// grant.
    pub(crate) fn has_not_shrunk(&self, name: &LockName, token: FencingToken) -> bool {
        self.observe(name, token).is_none_or(|before| token >= before)
    }

    fn observe(&self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        self.seen_tokens.lock().unwrap_or_else(PoisonError::into_inner).raise(name, token)
    }

    /// Adds the operation, the lock and the backend to an error.
    pub(crate) fn explain(
        &self,
        error: Error,
        doing: &'static str,
        lock: Option<&LockName>,
    ) -> Error {
        error.during(doing, lock, self.caps.backend)
    }
}

impl<H: Held> Drop for SharedEngine<H> {
    fn drop(&mut self) {
        let executor = self.executor.get().cloned().or_else(|| self.given());
        match executor.is_some_and(|it| it.is_gone()) {
            false => self.schedule.stop(),
            // Its descriptors are the parent's as well: it is never dropped in a fork.
            true => std::mem::forget(Arc::clone(&self.backend)),
        }
    }
}

/// Polls `verb`, turning a panic into a fault. A verb that panicked is not polled again.
pub(crate) async fn unpanicking<T>(
    verb: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let mut verb = pin!(verb);
    std::future::poll_fn(move |cx| {
        catch_unwind(AssertUnwindSafe(|| verb.as_mut().poll(cx))).unwrap_or_else(|_| {
            Poll::Ready(Err(Fault::unknown(FaultKind::Broken, "the backend panicked")))
        })
    })
    .await
}

/// The highest token seen of each lock, for the locks used last: two generations of at most
/// [`Self::GENERATION`] names, so that a million one-off names leave nothing.
#[derive(Debug, Default)]
struct SeenTokens {
    young: HashMap<LockName, FencingToken>,
    old: HashMap<LockName, FencingToken>,
}

impl SeenTokens {
    const GENERATION: usize = 1024;

    /// Returns the highest one before.
    fn raise(&mut self, name: &LockName, token: FencingToken) -> Option<FencingToken> {
        if let Some(highest) = self.young.get_mut(name) {
            return Some(std::mem::replace(highest, token.max(*highest)));
        }
        let before = self.old.get(name).copied();
        if self.young.len() >= Self::GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name.clone(), before.map_or(token, |before| before.max(token)));
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_stay_or_grow_but_not_shrink() {
        let mut seen_tokens = SeenTokens::default();
        let (a, token) = (LockName::new("a").unwrap(), FencingToken::from_u64);
        assert_eq!(seen_tokens.raise(&a, token(2)), None);
        assert_eq!(seen_tokens.raise(&a, token(2)), Some(token(2)));
        assert_eq!(seen_tokens.raise(&a, token(1)), Some(token(2)));
        assert_eq!(seen_tokens.raise(&a, token(3)), Some(token(2)));
        // Nor does a name that is remembered among the old ones.
        seen_tokens.old = std::mem::take(&mut seen_tokens.young);
        assert_eq!(seen_tokens.raise(&a, token(1)), Some(token(3)));
        assert_eq!(seen_tokens.raise(&a, token(2)), Some(token(3)));
    }

    #[test]
    fn a_token_is_remembered_among_those_of_a_thousand_names() {
        let mut seen_tokens = SeenTokens::default();
        let (name, token) = (LockName::new("n").unwrap(), FencingToken::from_u64(9));
        seen_tokens.raise(&name, token);
        for i in 0..1000 {
            let other = LockName::new(format!("other {i}")).unwrap();
            seen_tokens.raise(&other, FencingToken::from_u64(i));
        }
        assert_eq!(seen_tokens.raise(&name, FencingToken::from_u64(3)), Some(token));
    }

    #[test]
    fn a_million_names_leave_two_generations() {
        let mut seen_tokens = SeenTokens::default();
        for i in 0..1_000_000_u64 {
            seen_tokens.raise(&LockName::new(i.to_string()).unwrap(), FencingToken::from_u64(i));
        }
        assert!(seen_tokens.young.len() + seen_tokens.old.len() <= 2 * SeenTokens::GENERATION);
    }
}
