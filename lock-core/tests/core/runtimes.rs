//! Locks and the runtimes of their callers: idle, blocked, ended, without timers. On the real
//! clock.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, Lease, Renewal, Ticket};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::layer::{Layer, Layered};
use lock_core::{
    Backend, Capabilities, Effect, ErrorKind, Executor, LockGuard, LockName, Locker, Loss, Memory,
    RenewalPolicy, Support, Takeover,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::support::{Altered, millis, pass, runtime, secs};

fn single() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Waits for a condition, with a deadline.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Moment::now() + secs(10);
    let clock = single();
    while !condition() {
        assert!(!end.has_passed(), "{what}: did not happen within ten seconds");
        clock.block_on(sleep(millis(2)));
    }
}

fn is_free(memory: &Memory) -> bool {
    let name = LockName::new("n").unwrap();
    single().block_on(memory.inspect(&name)).unwrap().holders.is_empty()
}

/// Ends a runtime, or leaves it as it is.
type End = fn(Runtime) -> Option<Runtime>;
type Make = fn() -> Runtime;

/// All fates of a runtime after it has acquired a lock.
const ENDS: [(&str, Make, End); 5] = [
    ("is idle", single, Some),
    ("was dropped", single, |it| {
        drop(it);
        None
    }),
    ("was dropped, with threads", runtime, |it| {
        drop(it);
        None
    }),
    ("was shut down in the background", runtime, |it| {
        it.shutdown_background();
        None
    }),
    ("had its only thread blocked", runtime, |it| {
        it.spawn(async { pass(secs(10)) });
        Some(it)
    }),
];

#[test]
fn a_lock_outlives_the_runtime_that_won_it_by_ten_leases() {
    let ttl = millis(800);
    let kept = ENDS.map(|(what, runtime, end)| {
        let memory = Memory::new();
        let locks = Locker::new(memory.clone());
        let won_by = runtime();
        let guard = won_by.block_on(locks.lock("n").unwrap().ttl(ttl).acquire()).unwrap();
        (what, memory, guard, end(won_by))
    });
    let here = single();
    here.block_on(sleep(ttl * 10));
    for (what, memory, guard, won_by) in kept {
        assert_eq!(guard.loss(), None, "the runtime that won it {what}");
        let mut work = Box::pin(guard.run(async { "done" }));
        assert_eq!(here.block_on(&mut work).unwrap(), "done");
        drop(work);
        here.block_on(guard.verify()).unwrap();
        here.block_on(guard.release()).unwrap();
        assert!(is_free(&memory));
        let _ = won_by.map(Runtime::shutdown_background);
    }
}

#[test]
fn a_lock_outlives_the_local_set_that_won_it() {
    let locks = Locker::new(Memory::new());
    let (here, set) = (single(), tokio::task::LocalSet::new());
    let lock = locks.lock("n").unwrap().ttl(secs(1));
    let winning = async { tokio::task::spawn_local(async move { lock.acquire().await }).await };
    let guard = set.block_on(&here, winning).unwrap().unwrap();
    drop(set);
    pass(secs(4));
    assert_eq!(guard.loss(), None);
}

#[test]
fn a_loss_is_notified_at_the_deadline_after_any_fate_of_the_acquiring_runtime() {
    for (what, runtime, end) in ENDS {
        let locks = Locker::new(Memory::new());
        let lock = locks.lock("n").unwrap().ttl(millis(300)).renewal(RenewalPolicy::off());
        let won_by = runtime();
        let guard = won_by.block_on(lock.acquire()).unwrap();
        let signal = guard.loss_signal();
        let won_by = end(won_by);
        // Neither has timers of its own.
        let bare = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let work =
            bare.spawn(async move { guard.run(pending::<()>()).await.map_err(|e| e.kind()) });
        let lost = bare.spawn(async move { signal.lost().await });
        until(&format!("told, though the runtime that won it {what}"), || {
            work.is_finished() && lost.is_finished()
        });
        assert_eq!(bare.block_on(lost).unwrap(), Loss::Expired);
        assert_eq!(bare.block_on(work).unwrap(), Err(ErrorKind::Lost));
        let _ = won_by.map(Runtime::shutdown_background);
    }
}

#[test]
fn a_guard_is_released_wherever_it_is_dropped() {
    for (what, runtime, end) in ENDS {
        let memory = Memory::new();
        let locks = Locker::new(memory.clone());
        let won_by = runtime();
        let guard = won_by.block_on(locks.lock("n").unwrap().acquire()).unwrap();
        let won_by = end(won_by);
        drop(guard);
        until(&format!("the release, though the runtime that won it {what}"), || is_free(&memory));
        let _ = won_by.map(Runtime::shutdown_background);
    }
}

#[test]
fn locks_are_renewed_although_the_first_runtime_of_the_locker_is_not_driven() {
    for (what, runtime, end) in ENDS {
        let locks = Locker::new(Memory::new());
        let first = runtime();
        let migrated = first.block_on(locks.lock("first").unwrap().acquire()).unwrap();
        first.block_on(migrated.release()).unwrap();
        let first = end(first);
        let here = single();
        let guard = here.block_on(locks.lock("n").unwrap().ttl(millis(800)).acquire()).unwrap();
        here.block_on(sleep(millis(2500)));
        assert_eq!(guard.loss(), None, "the first runtime {what}");
        let _ = first.map(Runtime::shutdown_background);
    }
}

#[test]
fn a_minimum_hold_that_is_kept_here_outlives_the_runtime_and_ends() {
    let memory = Memory::new();
    let backend = Altered::new(memory.clone(), |caps| caps.minimum_hold = Support::Absent);
    let locks = Locker::new(backend);
    let won_by = runtime();
    let lock = locks.lock("n").unwrap().ttl(millis(300)).min_hold(secs(1));
    let began = Moment::now();
    let guard = won_by.block_on(lock.acquire()).unwrap();
    let signal = guard.loss_signal();
    drop(guard);
    drop(won_by);
    assert_eq!(signal.loss(), None, "it is kept");
    until("the release", || is_free(&memory));
    assert_eq!(signal.loss(), Some(Loss::Released));
    assert!(Moment::now().saturating_since(began) >= secs(1), "kept for as long as was asked");
}

#[test]
fn an_extension_whose_runtime_ends_changes_no_renewal() {
    let ttls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ttls);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        seen.lock().unwrap().push(call.claim.ttl);
        if call.verb == Verb::Renew && call.claim.ttl > secs(1) {
            Injection::Hang
        } else {
            Injection::None
        }
    });
    let locks = Locker::builder(faulty).timeout(millis(100)).build();
    let (first, second) = (runtime(), runtime());
    let guard = first.block_on(locks.lock("n").unwrap().ttl(secs(1)).acquire()).unwrap();
    let guard = Arc::new(guard);
    let extended = Arc::clone(&guard);
    second.spawn(async move { extended.extend(secs(3600)).await });
    until("the extension is sent", || ttls.lock().unwrap().contains(&secs(3600)));
    second.shutdown_timeout(secs(5));
    ttls.lock().unwrap().clear();
    until("two renewals", || ttls.lock().unwrap().len() > 1);
    assert!(ttls.lock().unwrap().iter().all(|ttl| *ttl == secs(1)));
    assert_eq!(guard.loss(), None);
}

#[test]
fn a_lock_is_lost_with_the_runtime_that_was_given_to_its_locker() {
    for dies in [runtime as fn() -> Runtime, single] {
        let given = dies();
        let executor = Executor::of(given.handle().clone());
        let locks = Locker::builder(Memory::new()).executor(executor).build();
        let here = runtime();
        let guard = given.block_on(locks.lock("n").unwrap().acquire()).unwrap();
        let signal = guard.loss_signal();
        let told = here.spawn(async move { signal.lost().await });
        let guard = Arc::new(guard);
        let working = Arc::clone(&guard);
        let work = here
            .spawn(async move { working.run(pending::<()>()).await.map_err(|error| error.kind()) });
        // The task of the renewals is dropped with it.
        given.block_on(tokio::task::yield_now());
        drop(given);
        until("told", || told.is_finished() && work.is_finished());
        assert_eq!(here.block_on(told).unwrap(), Loss::RuntimeGone);
        assert_eq!(here.block_on(work).unwrap(), Err(ErrorKind::Lost));
        let late = here.block_on(guard.extend(secs(60)));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[test]
fn a_locker_with_a_paused_clock_needs_no_setting() {
    let paused = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    paused.block_on(async {
        let locks = Locker::new(Memory::new());
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        sleep(secs(24 * 3600)).await;
        assert!(guard.is_held(), "renewed by the paused clock");
    });
}

#[test]
fn a_policy_ends_the_lock_of_a_runtime_that_does_not_respond() {
    let locks = Locker::new(Memory::new());
    let policy = RenewalPolicy::default().while_runtime_responds(secs(1));
    let lock = |name: &str| locks.lock(name).unwrap().ttl(secs(1)).renewal(policy.clone());
    let (idle, runs, ended) = (single(), runtime(), runtime());
    let [hung, gone] = [(&idle, "hung"), (&ended, "gone")]
        .map(|(runtime, name)| runtime.block_on(lock(name).acquire()).unwrap());
    let kept = runs.block_on(lock("kept").acquire()).unwrap();
    drop(ended);
    let signals = [hung.loss_signal(), gone.loss_signal()];
    let told = runs.block_on(async {
        let both = async { [signals[0].lost().await, signals[1].lost().await] };
        timeout(secs(10), both).await
    });
    assert_eq!(told.expect("in time"), [Loss::Expired; 2]);
    assert_eq!(kept.loss(), None, "its runtime responds");
    let outside = lock("n");
    let outside = std::pin::pin!(outside.acquire());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let refused = Future::poll(outside, &mut cx);
    assert!(matches!(refused, std::task::Poll::Ready(Err(e)) if e.kind() == ErrorKind::Invalid));
}

/// Grants a ticket with each lock, and answers no renewal.
#[derive(Debug)]
struct Ticketed {
    ticket: Arc<()>,
    renewing: Arc<AtomicBool>,
}

#[async_trait]
impl Layer for Ticketed {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities().takeover(Takeover::AtOnce)
    }

    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Acquired(mut grant) => {
                grant.lease = Lease::WhileProcessLives;
                grant.ticket = Some(Ticket::new(Arc::clone(&self.ticket)));
                Attempt::Acquired(grant)
            }
            contended @ Attempt::Contended { .. } => contended,
        })
    }

    async fn renew(&self, _: &dyn Backend, _: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.renewing.store(true, Ordering::SeqCst);
        pending().await
    }
}

#[test]
fn a_ticket_goes_with_the_runtime_also_while_a_renewal_is_under_way() {
    for dies in [single as fn() -> Runtime, runtime] {
        let (ticket, renewing) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let layer = Ticketed { ticket: Arc::clone(&ticket), renewing: Arc::clone(&renewing) };
        let backend = Layered::new(Arc::new(Memory::new()), layer);
        let home = dies();
        let locks_on = Executor::of(home.handle().clone());
        let locks = Locker::builder(backend).executor(locks_on).build();
        let guard = home.block_on(locks.lock("n").unwrap().ttl(millis(60)).acquire()).unwrap();
        let end = Moment::now() + secs(10);
        while !renewing.load(Ordering::SeqCst) {
            assert!(!end.has_passed(), "no renewal within ten seconds");
            home.block_on(sleep(millis(2)));
        }
        drop(home);
        assert_eq!(guard.loss(), Some(Loss::RuntimeGone));
        // The one here, and the backend's own.
        assert_eq!(Arc::strong_count(&ticket), 2, "the guard of a lost lock keeps its ticket");
    }
}

#[test]
fn every_verb_works_on_a_runtime_without_timers() {
    let locks = Locker::new(Memory::new());
    let bare = Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        let lock = locks.lock("n").unwrap().detachable();
        let detached = lock.acquire().await.unwrap().detach().await.unwrap();
        let (name, owner) = (detached.name.clone(), detached.owner);
        assert_eq!(locks.inspect(&name).await.unwrap().holders.len(), 1);
        assert_eq!(locks.list("", None, 1).await.unwrap().len(), 1);
        locks.identity().await.unwrap();
        locks.renew_detached(&detached).await.unwrap();
        let held = lock.try_acquire_for(millis(20)).await.unwrap();
        assert!(held.is_none(), "detached, and held");
        let guard = locks.adopt(detached.clone()).await.unwrap();
        guard.extend(secs(60)).await.unwrap();
        let detached = guard.detach().await.unwrap();
        assert!(locks.break_lock(&name, &owner).await.unwrap());
        let gone = locks.release_detached(&detached).await;
        assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotHeld);
        locks.close().await.unwrap();
    });
}

#[test]
fn a_guard_in_a_thread_local_is_released_without_a_panic() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<LockGuard>> = const { std::cell::RefCell::new(None) };
    }
    // Once a clock of this process has been paused, tokio's asks a thread-local whether it is.
    drop(Builder::new_current_thread().enable_all().start_paused(true).build().unwrap());
    let memory = Memory::new();
    let home = runtime();
    for handovers in [0, 9] {
        let locks = Locker::builder(memory.clone()).local_handovers(handovers).build();
        let handle = home.handle().clone();
        let ended = std::thread::spawn(move || {
            // Before the runtime's own, which is gone then when this one is dropped.
            KEPT.with(|_| ());
            let guard = handle.block_on(locks.lock("n").unwrap().acquire()).unwrap();
            KEPT.with(|kept| *kept.borrow_mut() = Some(guard));
        });
        assert!(ended.join().is_ok());
        until("the release", || is_free(&memory));
    }
}

#[test]
fn calls_are_bounded_while_the_runtime_that_won_the_lock_is_not_driven() {
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hangs);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |_| {
        if hanging.load(Ordering::SeqCst) { Injection::Hang } else { Injection::None }
    });
    let locks = Locker::builder(faulty).timeout(millis(100)).build();
    let (here, home) = (runtime(), single());
    let lock = |name: &str| locks.lock(name).unwrap().ttl(secs(3600));
    let guard = home.block_on(lock("n").acquire()).unwrap();
    let kept = home.block_on(lock("m").acquire()).unwrap();
    hangs.store(true, Ordering::SeqCst);
    // From here on nothing drives the timers of the home runtime.
    let released = here.block_on(async { timeout(secs(5), guard.release()).await });
    let error = released.expect("release() has no bound").unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown));
    let verified = here.block_on(async { timeout(secs(5), kept.verify()).await });
    let error = verified.expect("verify() has no bound").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(kept.is_held());
}

#[test]
fn a_renewal_that_a_caller_asked_for_needs_no_caller() {
    let asked = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&asked);
    let slow = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew => {
            asks.store(true, Ordering::SeqCst);
            Injection::DelayReply(millis(20))
        }
        _ => Injection::None,
    });
    let locks = Locker::new(slow);
    let here = single();
    let guard = here.block_on(locks.lock("n").unwrap().ttl(secs(1)).acquire()).unwrap();
    {
        let mut verifying = Box::pin(guard.verify());
        let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(verifying.as_mut().poll(&mut nobody).is_pending());
        until("it is sent", || asked.load(Ordering::SeqCst));
        // Neither polled nor dropped: its caller hangs.
        pass(secs(3));
        assert_eq!(guard.loss(), None);
        here.block_on(verifying).unwrap();
    }
    here.block_on(guard.release()).unwrap();
}
