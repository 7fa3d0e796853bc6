//! The line inside one process: waiters of one name are served first come, first served, and only
//! the head of the line talks to a backend that keeps no line of its own, or whose locks are handed over
//! inside the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::bequest::{Bequest, Wish};
use crate::clock::Moment;
use crate::error::Error;
use crate::name::LockName;

/// The lines of one locker. A name has an entry only while somebody stands in its line.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<LockName, Arc<Line>>>);

#[derive(Debug)]
struct Line {
    name: LockName,
    /// How many stand in it or look at it: changed by who has locked the lines.
    visits: AtomicUsize,
    /// One permit: who takes it is the head, until its [`Place`] is dropped.
    head: Semaphore,
    state: Mutex<State>,
    /// Notifies those who look at the line that the head has asked or learned something.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    standing: Standing,
    /// When the head has sent the request that has no answer yet.
    asked_since: Option<Moment>,
    /// What those who wait for the permit ask for, and how many ask for the same.
    waiting: Vec<(Wish, usize)>,
    /// What the head before has left to the next one. If nobody comes any more, it goes with the line.
    bequest: Option<Box<Bequest>>,
}

/// What the head of a line has learned last. It outlives the head: the next one goes on from there.
#[derive(Clone, Debug, Default)]
pub(crate) enum Standing {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It holds the lock.
    Held,
    /// Somebody else holds the lock, or just held it.
    Contended,
    /// The backend fails, since then.
    Outage(Moment, Error),
}

impl Lines {
    /// Looks at the line, without standing in it yet.
    pub(crate) fn visit(self: &Arc<Self>, name: &LockName) -> Visit {
        let mut lines = self.map();
        let line = lines.entry(name.clone()).or_insert_with(|| Arc::new(Line::new(name.clone())));
        line.visits.fetch_add(1, Ordering::Relaxed);
        Visit { lines: Arc::clone(self), line: Arc::clone(line) }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who stands in a line, or looks at it.
#[derive(Debug)]
pub(crate) struct Visit {
    lines: Arc<Lines>,
    line: Arc<Line>,
}

impl Visit {
    /// Waits until this visitor, who asks for `wish`, is the head of the line.
    ///
    /// Cancel safe: dropping the future leaves the line, and loses the place in it.
    pub(crate) async fn enter(self, wish: Wish) -> Place {
        let waiting = Waiting::begin(&self.line, wish);
        self.line.head.acquire().await.expect("lines are never closed").forget();
        drop(waiting);
        Place(self)
    }

    /// Becomes the head of the line if nobody else is.
    pub(crate) fn try_enter(self) -> Result<Place, Self> {
        match self.line.head.try_acquire().map(SemaphorePermit::forget) {
            Ok(()) => Ok(Place(self)),
            Err(_) => Err(self),
        }
    }

    /// What the head has learned last, and since when it waits for an answer.
    pub(crate) fn standing(&self) -> (Standing, Option<Moment>) {
        let state = self.line.state();
        (state.standing.clone(), state.asked_since)
    }

    /// Resolves when the head has asked or learned something since this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.line.changed.notified()
    }

    /// For who waits in the line: [`enter`](Self::enter) takes the visit itself.
    pub(crate) fn again(&self) -> Self {
        let _lines = self.lines.map();
        self.line.visits.fetch_add(1, Ordering::Relaxed);
        Self { lines: Arc::clone(&self.lines), line: Arc::clone(&self.line) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut lines = self.lines.map();
        if self.line.visits.fetch_sub(1, Ordering::Relaxed) == 1 {
            lines.remove(&self.line.name);
        }
    }
}

impl Line {
    fn new(name: LockName) -> Self {
        Self {
            name,
            visits: AtomicUsize::new(0),
            head: Semaphore::new(1),
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits to be the head.
struct Waiting<'a>(&'a Line, Wish);

impl<'a> Waiting<'a> {
    fn begin(line: &'a Line, wish: Wish) -> Self {
        let mut state = line.state();
        match state.waiting.iter_mut().find(|(asked, _)| *asked == wish) {
            Some((_, many)) => *many += 1,
            None => state.waiting.push((wish, 1)),
        }
        Self(line, wish)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if let Some(at) = state.waiting.iter().position(|(asked, _)| *asked == self.1) {
            state.waiting[at].1 -= 1;
            if state.waiting[at].1 == 0 {
                state.waiting.swap_remove(at);
            }
        }
    }
}

/// The head of a line. Dropping it lets the next one move up.
#[derive(Debug)]
pub(crate) struct Place(Visit);

impl Place {
    pub(crate) fn holds(&self) {
        self.learns(Standing::Held);
    }

    pub(crate) fn is_contended(&self) {
        self.learns(Standing::Contended);
    }

    /// Who has the lock now is unknown until the backend answers what is asked from here on.
    pub(crate) fn is_lost(&self) {
        self.0.line.state().asked_since = Some(Moment::now());
        self.learns(Standing::Unknown);
    }

    /// A request was sent then and has no answer yet; or none is under way.
    pub(crate) fn asks(&self, since: Option<Moment>) {
        self.0.line.state().asked_since = since;
        self.0.line.changed.notify_waiters();
    }

    fn learns(&self, standing: Standing) {
        self.0.line.state().standing = standing;
        self.0.line.changed.notify_waiters();
    }

    /// Whether somebody waits behind, and everybody who does asks for `wish`: whoever of them is the head next
    /// does, then.
    pub(crate) fn is_awaited_for(&self, wish: Wish) -> bool {
        let state = self.0.line.state();
        !state.waiting.is_empty() && state.waiting.iter().all(|(asked, _)| *asked == wish)
    }

    /// Leaves the line, and something to whoever is its head next.
    pub(crate) fn leave_to_the_next(self, bequest: Box<Bequest>) {
        self.0.line.state().bequest = Some(bequest);
    }

    /// What the head before has left.
    pub(crate) fn bequest(&self) -> Option<Box<Bequest>> {
        self.0.line.state().bequest.take()
    }

    /// Tells since when the backend fails, whoever was the head then.
    pub(crate) fn fails(&self, since: Moment, error: &Error) -> Moment {
        let state = self.0.line.state();
        let since = match state.standing {
            Standing::Outage(before, _) => before,
            _ => since,
        };
        drop(state);
        self.learns(Standing::Outage(since, error.clone()));
        since
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.0.line.state();
        if matches!(state.standing, Standing::Held) {
            state.standing = Standing::Contended;
        }
        state.asked_since = None;
        drop(state);
        self.0.line.changed.notify_waiters();
        self.0.line.head.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::backend::Claim;
    use crate::owner::OwnerId;

    fn wish(name: &LockName, secs: u64) -> Wish {
        Wish::of(&Claim::new(name.clone(), OwnerId::mint(), Duration::from_secs(secs)))
    }

    #[tokio::test]
    async fn the_line_is_served_in_order_and_leaves_nothing_behind() {
        let lines = Arc::new(Lines::default());
        let name = LockName::new("n").unwrap();
        let head = lines.visit(&name).try_enter().unwrap();
        assert!(lines.visit(&name).try_enter().is_err());

        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..5 {
            let (lines, name, served) = (Arc::clone(&lines), name.clone(), Arc::clone(&served));
            waiting.push(tokio::spawn(async move {
                let _place = lines.visit(&name).enter(wish(&name, 30)).await;
                served.lock().unwrap().push(i);
            }));
            tokio::task::yield_now().await;
        }
        waiting.remove(2).abort();
        drop(head);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), [0, 1, 3, 4]);
        assert!(lines.map().is_empty());
    }

    #[tokio::test]
    async fn the_head_knows_whether_all_behind_it_ask_for_the_same() {
        let lines = Arc::new(Lines::default());
        let name = LockName::new("n").unwrap();
        let head = lines.visit(&name).try_enter().unwrap();
        let asked = || [30, 10].map(|secs| head.is_awaited_for(wish(&name, secs)));
        assert_eq!(asked(), [false, false], "nobody waits");
        let wait = |secs| tokio::spawn(lines.visit(&name).enter(wish(&name, secs)));
        let others = [wait(30), wait(30)];
        tokio::task::yield_now().await;
        assert_eq!(asked(), [true, false]);
        let last = wait(10);
        tokio::task::yield_now().await;
        assert_eq!(asked(), [false, false]);
        for gone in others {
            gone.abort();
            assert!(gone.await.is_err());
        }
        assert_eq!(asked(), [false, true]);
        drop(head);
        let next = last.await.unwrap();
        assert!(!next.is_awaited_for(wish(&name, 10)), "it does not wait behind itself");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn waiters_that_are_cancelled_at_any_time_leave_one_head() {
        let lines = Arc::new(Lines::default());
        let name = LockName::new("n").unwrap();
        let heads = Arc::new(AtomicUsize::new(0));
        let mut served = 0;
        for round in 0..200 {
            let mut waiting = Vec::new();
            for _ in 0..32 {
                let (lines, name, heads) = (Arc::clone(&lines), name.clone(), Arc::clone(&heads));
                waiting.push(tokio::spawn(async move {
                    let place = lines.visit(&name).enter(wish(&name, 30)).await;
                    assert_eq!(heads.fetch_add(1, Ordering::SeqCst), 0, "two heads of one line");
                    std::thread::yield_now();
                    heads.fetch_sub(1, Ordering::SeqCst);
                    drop(place);
                }));
            }
            // While they wait, are about to be the head, or are it.
            let cancelled = waiting.iter().enumerate().filter(|(i, _)| (i + round) % 3 != 0);
            cancelled.for_each(|(_, task)| task.abort());
            for task in waiting {
                match task.await {
                    Ok(()) => served += 1,
                    Err(error) => assert!(error.is_cancelled(), "{error}"),
                }
            }
            assert!(lines.map().is_empty(), "round {round} left a line behind");
        }
        assert!(served > 2000, "{served} were served");
    }

    #[test]
    fn visitors_that_leave_together_leave_nothing_behind() {
        let lines = Arc::new(Lines::default());
        for round in 0..20_000 {
            let name = LockName::new(round.to_string()).unwrap();
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let visit = lines.visit(&name);
                        barrier.wait();
                        drop(visit);
                    });
                }
            });
        }
        let left = lines.map().len();
        assert_eq!(left, 0, "{left} of 20000 lines stay for ever");
    }
}
