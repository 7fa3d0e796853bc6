//! The local queue: the waiters of one name in one process are served first come, first served.
//! Only its head sends requests, if the backend has no queue or locks are handed over locally.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::backend::{Claim, HoldKind, Mode};
use crate::clock::Moment;
use crate::error::Error;
use crate::name::LockName;

/// The local queues of one locker. A name has an entry only while it has a ticket.
#[derive(Debug)]
pub(crate) struct LocalQueues<T>(Mutex<HashMap<LockName, Arc<LocalQueue<T>>>>);

impl<T> Default for LocalQueues<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

#[derive(Debug)]
struct LocalQueue<T> {
    name: LockName,
    /// The number of tickets; changed only while the map of queues is locked.
    tickets: AtomicUsize,
    /// One permit: its taker is the head, until its [`QueueHead`] is dropped.
    permit: Semaphore,
    state: Mutex<QueueState<T>>,
    /// Notifies the tickets of each request and each change of status of the head.
    changed: Notify,
}

#[derive(Debug)]
struct QueueState<T> {
    status: HeadStatus,
    /// When the head has sent the request that has no answer yet.
    unanswered_since: Option<Moment>,
    /// The keys of the waiters for the permit, with the number of waiters for each.
    waiting: Vec<(HandoverKey, usize)>,
    /// The hand-over of the head before. If no waiter comes any more, it is dropped with the queue.
    handover: Option<Box<T>>,
}

/// The last status of the head of a queue. It outlives the head: the next one goes on from there.
#[derive(Clone, Debug, Default)]
pub(crate) enum HeadStatus {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It holds the lock.
    Held,
    /// Another claim holds the lock, or just held it.
    Contended,
    /// The backend fails, since then.
    Outage(Moment, Error),
}

impl<T> LocalQueues<T> {
    /// Returns a ticket of the queue, which does not wait yet.
    pub(crate) fn ticket(self: &Arc<Self>, name: &LockName) -> QueueTicket<T> {
        let mut queues = self.map();
        let queue =
            queues.entry(name.clone()).or_insert_with(|| Arc::new(LocalQueue::new(name.clone())));
        queue.tickets.fetch_add(1, Ordering::Relaxed);
        QueueTicket { queues: Arc::clone(self), queue: Arc::clone(queue) }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<LockName, Arc<LocalQueue<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reference to a queue, to wait in it or to read its status.
#[derive(Debug)]
pub(crate) struct QueueTicket<T> {
    queues: Arc<LocalQueues<T>>,
    queue: Arc<LocalQueue<T>>,
}

impl<T> QueueTicket<T> {
    /// Waits until this ticket, with `key`, is the head of the queue.
    ///
    /// Cancel safe: dropping the future leaves the queue, and loses the position in it.
    pub(crate) async fn become_head(self, key: HandoverKey) -> QueueHead<T> {
        {
            let permit = pin!(self.queue.permit.acquire());
            // Ends before the permit passes on, also if the waiter is cancelled: the next head
            // counts no waiter that has left.
            let _waiting = WaitingEntry::begin(&self.queue, key);
            permit.await.expect("the semaphore is never closed").forget();
        }
        QueueHead(self)
    }

    /// Becomes the head of the queue if there is none.
    pub(crate) fn try_become_head(self) -> Result<QueueHead<T>, Self> {
        match self.queue.permit.try_acquire().map(SemaphorePermit::forget) {
            Ok(()) => Ok(QueueHead(self)),
            Err(_) => Err(self),
        }
    }

    /// Returns the last status of the head, and since when it waits for an answer.
    pub(crate) fn head_status(&self) -> (HeadStatus, Option<Moment>) {
        let state = self.queue.state();
        (state.status.clone(), state.unanswered_since)
    }

    /// Returns a future that resolves when the status of the head changes after this call.
    pub(crate) fn head_changed(&self) -> Notified<'_> {
        self.queue.changed.notified()
    }

    /// Returns another ticket of the queue, since [`become_head`](Self::become_head) takes this
    /// one.
    pub(crate) fn reissue(&self) -> Self {
        let _lines = self.queues.map();
        self.queue.tickets.fetch_add(1, Ordering::Relaxed);
        Self { queues: Arc::clone(&self.queues), queue: Arc::clone(&self.queue) }
    }
}

impl<T> Drop for QueueTicket<T> {
    fn drop(&mut self) {
        let mut queues = self.queues.map();
        if self.queue.tickets.fetch_sub(1, Ordering::Relaxed) == 1 {
            queues.remove(&self.queue.name);
        }
    }
}

impl<T> LocalQueue<T> {
    fn new(name: LockName) -> Self {
        Self {
            name,
            tickets: AtomicUsize::new(0),
            permit: Semaphore::new(1),
            state: Mutex::new(QueueState {
                status: HeadStatus::default(),
                unanswered_since: None,
                waiting: Vec::new(),
                handover: None,
            }),
            changed: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A waiter that wants to be the head.
struct WaitingEntry<'a, T>(&'a LocalQueue<T>, HandoverKey);

impl<'a, T> WaitingEntry<'a, T> {
    fn begin(queue: &'a LocalQueue<T>, key: HandoverKey) -> Self {
        let mut state = queue.state();
        match state.waiting.iter_mut().find(|(asked, _)| *asked == key) {
            Some((_, many)) => *many += 1,
            None => state.waiting.push((key, 1)),
        }
        Self(queue, key)
    }
}

impl<T> Drop for WaitingEntry<'_, T> {
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

/// The head of a queue. Dropping it makes the next waiter the head.
#[derive(Debug)]
pub(crate) struct QueueHead<T>(QueueTicket<T>);

impl<T> QueueHead<T> {
    pub(crate) fn set_held(&self) {
        self.set_status(HeadStatus::Held);
    }

    pub(crate) fn set_contended(&self) {
        self.set_status(HeadStatus::Contended);
    }

    /// Sets the status to unknown, until the backend answers the next request.
    pub(crate) fn set_unknown(&self) {
        self.0.queue.state().unanswered_since = Some(Moment::now());
        self.set_status(HeadStatus::Unknown);
    }

    /// Sets when the request was sent that has no answer; `None` if none is under way.
    pub(crate) fn set_unanswered_since(&self, since: Option<Moment>) {
        self.0.queue.state().unanswered_since = since;
        self.0.queue.changed.notify_waiters();
    }

    fn set_status(&self, status: HeadStatus) {
        self.0.queue.state().status = status;
        self.0.queue.changed.notify_waiters();
    }

    /// Returns whether there are waiters behind this head, and all of them ask for `key`. The next
    /// head does, then.
    pub(crate) fn all_waiters_want(&self, key: HandoverKey) -> bool {
        let state = self.0.queue.state();
        !state.waiting.is_empty() && state.waiting.iter().all(|(asked, _)| *asked == key)
    }

    /// Leaves the queue, and passes a hand-over to its next head.
    pub(crate) fn hand_over(self, handover: Box<T>) {
        self.0.queue.state().handover = Some(handover);
    }

    /// Takes the hand-over of the head before.
    pub(crate) fn take_handover(&self) -> Option<Box<T>> {
        self.0.queue.state().handover.take()
    }

    /// Records an outage. Returns since when the backend fails, also under former heads.
    pub(crate) fn record_outage(&self, since: Moment, error: &Error) -> Moment {
        let state = self.0.queue.state();
        let since = match state.status {
            HeadStatus::Outage(before, _) => before,
            _ => since,
        };
        drop(state);
        self.set_status(HeadStatus::Outage(since, error.clone()));
        since
    }
}

impl<T> Drop for QueueHead<T> {
    fn drop(&mut self) {
        let mut state = self.0.queue.state();
        if matches!(state.status, HeadStatus::Held) {
            state.status = HeadStatus::Contended;
        }
        state.unanswered_since = None;
        drop(state);
        self.0.queue.changed.notify_waiters();
        self.0.queue.permit.add_permits(1);
    }
}

/// The request of a claim: a lock is handed over only to a claim with the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandoverKey {
    ttl: Duration,
    hold: HoldKind,
    mode: Mode,
}

impl HandoverKey {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self { ttl: claim.ttl, hold: claim.hold, mode: claim.mode }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::owner::OwnerId;

    fn key(name: &LockName, secs: u64) -> HandoverKey {
        HandoverKey::of(&Claim::new(name.clone(), OwnerId::mint(), Duration::from_secs(secs)))
    }

    #[tokio::test]
    async fn the_local_queue_is_served_in_order_and_leaves_nothing_behind() {
        let queues = Arc::new(LocalQueues::<()>::default());
        let name = LockName::new("n").unwrap();
        let head = queues.ticket(&name).try_become_head().unwrap();
        assert!(queues.ticket(&name).try_become_head().is_err());

        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..5 {
            let (queues, name, served) = (Arc::clone(&queues), name.clone(), Arc::clone(&served));
            waiting.push(tokio::spawn(async move {
                let _place = queues.ticket(&name).become_head(key(&name, 30)).await;
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
        assert!(queues.map().is_empty());
    }

    #[tokio::test]
    async fn the_head_knows_whether_all_behind_it_ask_for_the_same() {
        let queues = Arc::new(LocalQueues::<()>::default());
        let name = LockName::new("n").unwrap();
        let head = queues.ticket(&name).try_become_head().unwrap();
        let asked = || [30, 10].map(|secs| head.all_waiters_want(key(&name, secs)));
        assert_eq!(asked(), [false, false], "nobody waits");
        let wait = |secs| tokio::spawn(queues.ticket(&name).become_head(key(&name, secs)));
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
        assert!(!next.all_waiters_want(key(&name, 10)), "it does not wait behind itself");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn waiters_that_are_cancelled_at_any_time_leave_one_head() {
        let queues = Arc::new(LocalQueues::<()>::default());
        let name = LockName::new("n").unwrap();
        let heads = Arc::new(AtomicUsize::new(0));
        let mut served = 0;
        for round in 0..200 {
            let mut waiting = Vec::new();
            for _ in 0..32 {
                let (queues, name, heads) = (Arc::clone(&queues), name.clone(), Arc::clone(&heads));
                waiting.push(tokio::spawn(async move {
                    let head = queues.ticket(&name).become_head(key(&name, 30)).await;
                    assert_eq!(heads.fetch_add(1, Ordering::SeqCst), 0, "two heads of one line");
                    std::thread::yield_now();
                    heads.fetch_sub(1, Ordering::SeqCst);
                    drop(head);
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
            assert!(queues.map().is_empty(), "round {round} left a line behind");
        }
        assert!(served > 2000, "{served} were served");
    }

    #[test]
    fn tickets_dropped_together_leave_nothing_behind() {
        let queues = Arc::new(LocalQueues::<()>::default());
        for round in 0..20_000 {
            let name = LockName::new(round.to_string()).unwrap();
            let barrier = std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let ticket = queues.ticket(&name);
                        barrier.wait();
                        drop(ticket);
                    });
                }
            });
        }
        let left = queues.map().len();
        assert_eq!(left, 0, "{left} of 20000 lines stay for ever");
    }
}
