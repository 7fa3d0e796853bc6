//! The thread of a locker: blocked by a backend, through panics, to its end, and in a fork.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use lock_core::backend::FaultKind;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{Executor, LockGuard, Locker, Loss, Memory, RenewalPolicy};
use tokio::runtime::{Builder, Handle, Id};
use tracing::{Level, Metadata, Subscriber, span};

use crate::support::{Altered, millis, pass, runtime, secs};

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Moment::now() + secs(10);
    let clock = Builder::new_current_thread().enable_all().build().unwrap();
    while !condition() {
        assert!(!end.has_passed(), "{what}: did not happen within ten seconds");
        clock.block_on(sleep(millis(2)));
    }
}

/// Holds a lock on a runtime that has ended since. The lease is long enough for a busy machine.
fn hold(locks: &Locker) -> LockGuard {
    runtime().block_on(locks.lock("n").unwrap().ttl(secs(3)).acquire()).unwrap()
}

/// Waits until the lock outlasts the lease that it was granted with. Fails if it is lost.
fn outlasts_its_first_lease(guard: &LockGuard, granted_until: Moment) {
    until("it outlasts its first lease", || {
        assert_eq!(guard.loss(), None);
        granted_until.has_passed()
    });
}

#[test]
fn a_backend_that_blocks_its_thread_costs_no_other_locker_its_locks() {
    let (ends, end) = channel::<()>();
    let (end, blocked) = (Mutex::new(end), Arc::new(AtomicBool::new(false)));
    let blocks = Arc::clone(&blocked);
    let blocking = Altered::new(Memory::new(), |_| ()).renewals(move |_, answers| {
        blocks.store(true, Ordering::SeqCst);
        // As a resolver or a lock of the system's does.
        let _ = Receiver::recv_timeout(&end.lock().unwrap(), secs(10));
        answers
    });
    let (bad, good) = (Locker::new(blocking), Locker::new(Memory::new()));
    let (blocked_guard, kept) = (hold(&bad), hold(&good));
    let granted_until = kept.deadline().unwrap();
    until("it blocks", || blocked.load(Ordering::SeqCst));
    outlasts_its_first_lease(&kept, granted_until);
    assert_eq!(blocked_guard.loss(), Some(Loss::Expired), "by its own clock");
    drop(kept);
    drop(ends);
}

#[test]
fn a_backend_that_panics_loses_nothing_that_a_later_renewal_keeps() {
    let panics = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&panics);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        // Of two in a row, which are two twelfths of the lease apart.
        Verb::Renew if counted.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => Injection::Panic,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = hold(&locks);
    until("six renewals", || panics.load(Ordering::SeqCst) >= 6 || guard.loss().is_some());
    assert_eq!(guard.loss(), None);
}

/// A caller's waker that panics, on the thread that wakes it.
struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        panic!("a waker of the caller's");
    }
}

#[test]
fn the_thread_goes_on_after_a_panic() {
    let executor = Executor::new().unwrap();
    let locks = Locker::builder(Memory::new()).executor(executor.clone()).build();
    let guard = hold(&locks);
    let off = locks.lock("m").unwrap().ttl(millis(300)).renewal(RenewalPolicy::off());
    let short = runtime().block_on(off.acquire()).unwrap();
    // Woken by the clock, and by the end of a lock.
    let wakers = [(); 2].map(|()| Arc::new(Panics(AtomicBool::new(false))));
    let mut timer = Box::pin(executor.within(async { sleep(millis(50)).await }));
    let mut lost = Box::pin(short.lost());
    let [clock, ends] = wakers.clone().map(Waker::from);
    assert_eq!(timer.as_mut().poll(&mut Context::from_waker(&clock)), Poll::Pending);
    assert_eq!(lost.as_mut().poll(&mut Context::from_waker(&ends)), Poll::Pending);
    until("both panic", || wakers.iter().all(|waker| waker.0.load(Ordering::SeqCst)));
    // Those of before have ended by then: it is renewed by the same thread.
    outlasts_its_first_lease(&guard, guard.deadline().unwrap());
}

#[test]
fn wakers_that_panic_when_a_renewal_ends_cost_no_other_lock() {
    let renewing = Arc::new(AtomicBool::new(false));
    let renews = Arc::clone(&renewing);
    let slow = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew => {
            renews.store(true, Ordering::SeqCst);
            Injection::DelayReply(millis(400))
        }
        _ => Injection::None,
    });
    let locks = Locker::new(slow);
    let here = runtime();
    let lock = |name: &str| locks.lock(name).unwrap().ttl(secs(3)).detachable();
    let [a, b, kept] = ["a", "b", "kept"].map(|name| here.block_on(lock(name).acquire()).unwrap());
    until("they are renewed", || renewing.load(Ordering::SeqCst));
    let waker = Arc::new(Panics(AtomicBool::new(false)));
    let panics = Waker::from(Arc::clone(&waker));
    // A panic while another one unwinds would be the end of the process.
    let mut waiting = [a, b].map(|guard| Box::pin(guard.detach()));
    for detaching in &mut waiting {
        let polled = detaching.as_mut().poll(&mut Context::from_waker(&panics));
        assert!(polled.is_pending(), "set-up: the renewal is under way");
    }
    until("they panic", || waker.0.load(Ordering::SeqCst));
    pass(secs(4));
    assert_eq!(kept.loss(), None);
}

/// A subscriber that panics at the first warning.
#[derive(Debug)]
struct PanicsOnce(AtomicBool);

impl Subscriber for PanicsOnce {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        assert!(self.0.swap(true, Ordering::SeqCst), "a subscriber of the user's");
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_panic_in_the_task_of_a_renewal_costs_no_lock() {
    let renewals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&renewals);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew if counted.fetch_add(1, Ordering::SeqCst) == 0 => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    // Everywhere, as a warning that comes first where there is none is never heard again. That one
    // is calm.
    let _ = tracing::subscriber::set_global_default(PanicsOnce(AtomicBool::new(true)));
    let subscriber = Arc::new(PanicsOnce(AtomicBool::new(false)));
    let executor = tracing::subscriber::with_default(Arc::clone(&subscriber), Executor::new);
    let locks = Locker::builder(faulty).executor(executor.unwrap()).build();
    let here = runtime();
    let take = |name| here.block_on(locks.lock(name).unwrap().ttl(secs(2)).acquire()).unwrap();
    let guards = ["a", "b", "c"].map(take);
    until("a failed renewal is warned of", || subscriber.0.load(Ordering::SeqCst));
    pass(secs(3));
    assert_eq!(guards.each_ref().map(LockGuard::loss), [None; 3]);
}

/// Tells when the task that has it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn the_thread_ends_with_its_last_user() {
    let executor = Executor::new().unwrap();
    let ended = Arc::new(AtomicBool::new(false));
    let dropped = Dropped(Arc::clone(&ended));
    executor.handle().spawn(async move {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    });
    let memory = Memory::new();
    let locks = Locker::builder(memory.clone()).executor(executor).build();
    let guard = hold(&locks);
    drop(locks);
    pass(millis(1500));
    assert!(!ended.load(Ordering::SeqCst), "the guard uses it");
    assert_eq!(guard.loss(), None);
    drop(guard);
    until("the release", || memory.is_empty());
    until("the end of the thread", || ended.load(Ordering::SeqCst));
}

/// As of a lock whose last release is under way when its locker is dropped.
#[test]
fn a_task_that_is_under_way_ends_after_the_last_user() {
    let executor = Executor::new().unwrap();
    let (began, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let flags = (Arc::clone(&began), Arc::clone(&done));
    executor.handle().spawn(async move {
        flags.0.store(true, Ordering::SeqCst);
        sleep(millis(50)).await;
        flags.1.store(true, Ordering::SeqCst);
    });
    until("the beginning of the task", || began.load(Ordering::SeqCst));
    drop(executor);
    until("the end of the task", || done.load(Ordering::SeqCst));
}

/// Notes the runtime in which it is dropped.
struct DroppedIn(Arc<Mutex<Option<Id>>>);

impl Drop for DroppedIn {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Handle::try_current().ok().map(|runtime| runtime.id());
    }
}

#[test]
fn work_that_is_given_up_is_dropped_within_its_executor() {
    let executor = Executor::new().unwrap();
    let seen = Arc::default();
    let dropped = DroppedIn(Arc::clone(&seen));
    let mut work = Box::pin(executor.within(async move {
        let _dropped = dropped;
        std::future::pending::<()>().await;
    }));
    assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(work);
    assert_eq!(*seen.lock().unwrap(), Some(executor.handle().id()));
}

#[test]
fn executors_are_told_apart_in_logs() {
    let [one, other] = [(); 2].map(|()| Executor::new().unwrap());
    assert_eq!(format!("{one:?}"), format!("{:?}", one.clone()));
    assert_ne!(format!("{one:?}"), format!("{other:?}"));
}

#[test]
fn a_connection_within_an_executor_shares_it() {
    let executor = Executor::new().unwrap();
    let here = runtime();
    let is_shared = |other: &Executor| other.handle().id() == executor.handle().id();
    let inside = here.block_on(executor.within(async {
        let spawned = tokio::spawn(async { Executor::current_or_new().unwrap() });
        (Executor::current_or_new().unwrap(), spawned.await.unwrap())
    }));
    assert!(is_shared(&inside.0) && is_shared(&inside.1));
    let outside = here.block_on(async { Executor::current_or_new().unwrap() });
    assert!(!is_shared(&outside));
}
