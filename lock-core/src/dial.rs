//! For backends with a connection: many verbs need it, one attempt makes it.
//!
//! A verb belongs to its caller, which may drop it, or keep it and not poll it. So a task of its
//! own makes the connection that all verbs wait for, with a doubling pause between failures.
//! Whether a connection is still good, and how one is made, is the backend's business.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::SetOnce;

use crate::backend::fault::{Fault, FaultKind};
use crate::clock::{Moment, sleep_between};

/// The pause after a failed attempt doubles from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Work that runs once for all callers that want its result meanwhile.
pub struct SingleFlight<T>(Mutex<Option<Outcome<T>>>);

type Outcome<T> = Arc<SetOnce<Result<T, Fault>>>;

impl<T: Clone + Send + Sync + 'static> SingleFlight<T> {
    /// Waits for the work that is under way, or begins it: in a task of its own, which goes on if
    /// all its callers go away.
    ///
    /// # Errors
    ///
    /// The fault of the work, for each caller that waited. [`Effect`](crate::Effect) is its own; if
    /// its runtime ends before it does, nothing is known to have been applied by it for the caller.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the work alone.
    pub async fn join<F>(&self, work: impl FnOnce() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>> + Send + 'static,
    {
        let outcome = {
            let mut current = self.current();
            let is_under_way = |outcome: &Outcome<T>| outcome.get().is_none();
            current.clone().filter(is_under_way).unwrap_or_else(|| {
                let outcome = Outcome::<T>::default();
                let (work, completion) = (work(), Completion(Arc::clone(&outcome)));
                tokio::spawn(async move { completion.complete(work.await) });
                *current = Some(Arc::clone(&outcome));
                outcome
            })
        };
        // Callers are woken in the order in which they came.
        match outcome.wait().await {
            Ok(done) => Ok(done.clone()),
            Err(fault) => Err(fault.repeated()),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Outcome<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The completion of the work, which ends with a fault if it is dropped before.
struct Completion<T>(Outcome<T>);

impl<T> Completion<T> {
    fn complete(&self, outcome: Result<T, Fault>) {
        // Only this value completes it.
        let _ = self.0.set(outcome);
    }
}

impl<T> Drop for Completion<T> {
    fn drop(&mut self) {
        if self.0.get().is_none() {
            let why = "the runtime on which a connection was being made has ended";
            self.complete(Err(Fault::not_applied(FaultKind::Unavailable, why)));
        }
    }
}

impl<T> Default for SingleFlight<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> fmt::Debug for SingleFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SingleFlight(..)")
    }
}

/// In the place of a count: the connection is not the dialer's any more.
const OVER: u64 = u64::MAX;

/// The time for which all verbs use one connection. The identity of its server holds for all of
/// them.
///
/// A verb that begins and ends in one epoch was answered by the server of that connection, and by
/// no other one: a connection that is replaced ends the epoch before a verb can use the next one.
#[derive(Clone, Debug)]
pub struct Epoch(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fixed,
    Unknown,
    Counted { count: Arc<AtomicU64>, at: u64 },
}

impl Epoch {
    /// Creates an epoch that never ends: for backends that have no connection and are their own
    /// server.
    #[must_use]
    pub fn fixed() -> Self {
        Self(Kind::Fixed)
    }

    /// Creates an epoch that is over: for backends that cannot tell when another server answers.
    #[must_use]
    pub fn unknown() -> Self {
        Self(Kind::Unknown)
    }

    /// Returns true while verbs use the same connection.
    #[must_use]
    pub fn is_current(&self) -> bool {
        match &self.0 {
            Kind::Fixed => true,
            Kind::Unknown => false,
            Kind::Counted { count, at } => count.load(Ordering::SeqCst) == *at,
        }
    }

    /// Returns true if no third connection can have been used between this epoch and the `next`
    /// one, as far as the backend can tell.
    #[must_use]
    pub fn is_next_to(&self, next: &Self) -> bool {
        match (&self.0, &next.0) {
            (Kind::Counted { at, .. }, Kind::Counted { at: next, .. }) => {
                *next != OVER && next.checked_sub(*at).is_some_and(|between| between <= 1)
            }
            _ => true,
        }
    }
}

/// The connection that all verbs share, made anew when it is needed and not good any more.
pub struct Dialer<C> {
    state: Arc<Mutex<DialState<C>>>,
    attempt: SingleFlight<C>,
}

struct DialState<C> {
    connection: Option<C>,
    failure: Option<Failure>,
    /// How many connections there have been, and attempts that failed. It changes while the state
    /// is locked.
    count: Arc<AtomicU64>,
}

struct Failure {
    at: Moment,
    pause: Duration,
}

impl<C> Default for Dialer<C> {
    fn default() -> Self {
        let state = DialState { connection: None, failure: None, count: Arc::default() };
        Self { state: Arc::new(Mutex::new(state)), attempt: SingleFlight::default() }
    }
}

impl<C: Clone + Send + Sync + 'static> Dialer<C> {
    /// Replaces the connection by one that was made without the dialer.
    pub fn put(&self, connection: C) {
        lock(&self.state).note(&Ok(connection));
    }

    /// Returns the current connection, good or not.
    #[must_use]
    pub fn current(&self) -> Option<C> {
        lock(&self.state).connection.clone()
    }

    /// Returns the epoch of the connection that `is_it`; one that is over, if the dialer has
    /// another one by now.
    pub fn epoch_of(&self, is_it: impl FnOnce(&C) -> bool) -> Epoch {
        let state = lock(&self.state);
        let at = match state.connection.as_ref().is_some_and(is_it) {
            true => state.count.load(Ordering::SeqCst),
            false => OVER,
        };
        Epoch(Kind::Counted { count: Arc::clone(&state.count), at })
    }

    /// Returns the connection if it `is_good`, or the result of the one attempt to `dial` that all
    /// callers share.
    ///
    /// # Errors
    ///
    /// The fault of the attempt. Later callers wait for the next one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the attempt alone.
    pub async fn get<F>(
        &self,
        is_good: impl Fn(&C) -> bool,
        dial: impl FnOnce() -> F,
    ) -> Result<C, Fault>
    where
        F: Future<Output = Result<C, Fault>> + Send + 'static,
    {
        if let Some(connection) = self.current().filter(is_good) {
            return Ok(connection);
        }
        let begin = || {
            let (state, dial) = (Arc::clone(&self.state), dial());
            async move {
                let pause = lock(&state).failure.as_ref().map(|f| (f.at + f.pause).remaining());
                if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
                    sleep_between(pause / 2, pause).await;
                }
                let made = dial.await;
                lock(&state).note(&made);
                made
            }
        };
        // Seldom, so it takes no room in the future of each verb.
        Box::pin(self.attempt.join(begin)).await
    }
}

impl<C: Clone> DialState<C> {
    fn note(&mut self, made: &Result<C, Fault>) {
        let last = self.failure.take();
        self.count.fetch_add(1, Ordering::SeqCst);
        self.connection = made.as_ref().ok().cloned();
        if made.is_err() {
            let pause = last.map_or(SHORTEST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
            self.failure = Some(Failure { at: Moment::now(), pause });
        }
    }
}

impl<C> fmt::Debug for Dialer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer(..)")
    }
}

fn lock<C>(state: &Mutex<DialState<C>>) -> MutexGuard<'_, DialState<C>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::clock::sleep;

    #[tokio::test(start_paused = true)]
    async fn all_callers_share_one_attempt_and_none_can_stop_it() {
        let (dialer, dialled) = (Dialer::default(), Arc::new(AtomicU32::new(0)));
        let dial = || {
            let dialled = Arc::clone(&dialled);
            async move {
                sleep(Duration::from_secs(1)).await;
                Ok(dialled.fetch_add(1, Ordering::SeqCst) + 1)
            }
        };
        dialer.put(0);
        let is_good = |made: &u32| *made > 0;
        let dropped = tokio::time::timeout(SHORTEST_PAUSE, dialer.get(is_good, dial)).await;
        assert!(dropped.is_err());
        let (one, other) = tokio::join!(dialer.get(is_good, dial), dialer.get(is_good, dial));
        assert_eq!((one.unwrap(), other.unwrap(), dialer.current()), (1, 1, Some(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_epoch_is_over_with_its_connection() {
        let dialer = Dialer::default();
        dialer.put(1);
        let first = dialer.epoch_of(|made| *made == 1);
        assert!(first.is_current() && dialer.current() == Some(1));
        // Known of the old connection when there is a new one: known of none.
        dialer.put(2);
        let late = dialer.epoch_of(|made| *made == 1);
        assert!(!first.is_current() && !late.is_current() && !first.is_next_to(&late));
        let second = dialer.epoch_of(|made| *made == 2);
        assert!(second.is_current() && first.is_next_to(&second));
        let refused = || async { Err(Fault::not_applied(FaultKind::Unavailable, "refused")) };
        dialer.get(|_| false, refused).await.unwrap_err();
        assert!(!second.is_current());
        dialer.get(|_| false, || async { Ok(3) }).await.unwrap();
        let third = dialer.epoch_of(|made| *made == 3);
        assert!(third.is_current() && !second.is_next_to(&third));
        assert!(Epoch::fixed().is_current() && !Epoch::unknown().is_current());
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_paused_after_and_reported_to_all() {
        let dialer = Dialer::default();
        dialer.put(false);
        let refused = || async { Err(Fault::not_applied(FaultKind::Unavailable, "refused")) };
        let began = Moment::now();
        for _ in 0..20 {
            let error = dialer.get(|good| *good, refused).await.unwrap_err();
            assert_eq!(error.kind(), FaultKind::Unavailable);
        }
        let took = Moment::now().saturating_since(began);
        assert!(took > LONGEST_PAUSE * 5 && took < LONGEST_PAUSE * 20, "{took:?}");
        assert!(dialer.get(|good| *good, || async { Ok(true) }).await.unwrap());
    }
}
