//! Locks of one locker on several runtimes, of which one ends. On the real clock.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, Identity, Lease, LetGo, Listed, LockState, Release, Renewal, Ticket,
    Wake,
};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Disturbance, Faulty, Verb};
use lock_core::{
    Backend, Capabilities, Effect, ErrorKind, LockGuard, LockName, Locker, Loss, Memory, OwnerId,
    Support, Takeover,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::support::{Altered, millis, runtime, secs};

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

/// A guard of a runtime of its own, while the renewals of its locker run on the first one.
fn elsewhere(locks: &Locker, ttl: Duration) -> (Runtime, LockGuard, Runtime, LockGuard) {
    let (first, second) = (runtime(), runtime());
    let kept = first.block_on(locks.lock("first").unwrap().acquire()).unwrap();
    let guard = second.block_on(locks.lock("n").unwrap().ttl(ttl).acquire()).unwrap();
    (first, kept, second, guard)
}

#[test]
fn a_lock_is_lost_with_the_runtime_that_won_it() {
    for dies in [runtime as fn() -> Runtime, single] {
        let locks = Locker::new(Memory::new());
        let (first, second) = (runtime(), dies());
        let kept = first.block_on(locks.lock("first").unwrap().acquire()).unwrap();
        let guard = second.block_on(locks.lock("n").unwrap().acquire()).unwrap();
        drop(second);
        assert_eq!(guard.loss(), Some(Loss::RuntimeGone));
        let signal = guard.loss_signal();
        assert_eq!(first.block_on(signal.lost()), Loss::RuntimeGone);
        let late = first.block_on(guard.extend(secs(60)));
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Lost);
        assert!(kept.is_held(), "its own runtime lives");
    }
}

#[test]
fn work_under_a_lock_whose_runtime_is_gone_ends_and_does_not_panic() {
    let locks = Locker::new(Memory::new());
    let (first, _kept, second, guard) = elsewhere(&locks, secs(30));
    second.shutdown_timeout(secs(5));
    let work = first.spawn(async move { guard.run(pending::<()>()).await.map_err(|e| e.kind()) });
    assert_eq!(first.block_on(work).expect("it does not panic"), Err(ErrorKind::Lost));
}

#[test]
fn work_under_way_ends_when_the_runtime_of_its_lock_does() {
    // With a lease, and without: then no timer wakes the one that waits for the loss.
    for lease in [Lease::For(secs(30)), Lease::WhileProcessLives] {
        let backend = Altered::new(Memory::new(), |_| ()).grants(move |mut grant| {
            grant.lease = lease;
            grant
        });
        let locks = Locker::new(backend);
        let (first, _kept, second, guard) = elsewhere(&locks, secs(30));
        let signal = guard.loss_signal();
        let told = first.spawn(async move { signal.lost().await });
        let began = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&began);
        let work = first.spawn(async move {
            let work = async move {
                begun.store(true, Ordering::SeqCst);
                pending::<()>().await;
            };
            guard.run(work).await.map_err(|error| error.kind())
        });
        until("the work begins", || began.load(Ordering::SeqCst));
        second.shutdown_timeout(secs(5));
        let ended = first.block_on(async { timeout(secs(5), work).await });
        assert_eq!(ended.expect("in time").expect("no panic"), Err(ErrorKind::Lost));
        let told = first.block_on(async { timeout(secs(5), told).await });
        assert_eq!(told.expect("in time").expect("no panic"), Loss::RuntimeGone);
    }
}

#[test]
fn a_lock_whose_runtime_is_gone_is_renewed_no_more() {
    let memory = Memory::new();
    let renewals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&renewals);
    let faulty = Faulty::new(Arc::new(memory.clone()), move |call| {
        let is_renewed = call.verb == Verb::Renew && call.claim.name.as_str() == "n";
        counted.fetch_add(u32::from(is_renewed), Ordering::SeqCst);
        Disturbance::None
    });
    let locks = Locker::new(faulty);
    let (_first, _kept, second, guard) = elsewhere(&locks, millis(300));
    until("a renewal", || renewals.load(Ordering::SeqCst) > 0);
    second.shutdown_timeout(secs(5));
    until("the end of the lease", || is_free(&memory));
    drop(guard);
}

#[test]
fn a_minimum_hold_that_is_kept_here_ends_with_its_runtime() {
    let memory = Memory::new();
    let backend = Altered::new(memory.clone(), |caps| caps.minimum_hold = Support::Absent);
    let locks = Locker::new(backend);
    let (first, second) = (runtime(), runtime());
    let _kept = first.block_on(locks.lock("first").unwrap().acquire()).unwrap();
    let lock = locks.lock("n").unwrap().ttl(millis(300)).release_no_earlier_than(secs(3600));
    let guard = second.block_on(lock.acquire()).unwrap();
    let signal = guard.loss_signal();
    drop(guard);
    assert_eq!(signal.loss(), None, "it is kept");
    second.shutdown_timeout(secs(5));
    assert_eq!(signal.loss(), Some(Loss::RuntimeGone));
    until("the end of the lease", || is_free(&memory));
}

#[test]
fn an_extension_that_was_interrupted_changes_no_renewal() {
    let ttls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ttls);
    let faulty = Faulty::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew if call.claim.name.as_str() == "n" => {
            seen.lock().unwrap().push(call.claim.ttl);
            if call.claim.ttl > secs(1) { Disturbance::Hang } else { Disturbance::None }
        }
        _ => Disturbance::None,
    });
    let locks = Locker::new(faulty);
    let (first, _kept, second, guard) = elsewhere(&locks, secs(1));
    let asked = Arc::clone(&ttls);
    let extending = first.spawn(async move {
        let extended = guard.extend(secs(3600)).await.map_err(|e| e.kind());
        (guard, extended)
    });
    until("the extension is sent", || asked.lock().unwrap().contains(&secs(3600)));
    second.shutdown_timeout(secs(5));
    let (guard, extended) = first.block_on(extending).expect("it does not panic");
    assert!(extended.is_err());
    assert_eq!(guard.loss(), Some(Loss::RuntimeGone));
}

/// Grants a ticket with each lock, and answers no renewal.
#[derive(Debug)]
struct Ticketed {
    inner: Memory,
    ticket: Arc<()>,
    renewing: Arc<AtomicBool>,
}

#[async_trait]
impl Backend for Ticketed {
    fn capabilities(&self) -> Capabilities {
        Capabilities { takeover: Takeover::AtOnce, ..self.inner.capabilities() }
    }
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.identity().await
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match self.inner.try_acquire(claim).await? {
            Attempt::Acquired(mut grant) => {
                grant.lease = Lease::WhileProcessLives;
                grant.ticket = Some(Ticket::new(Arc::clone(&self.ticket)));
                Attempt::Acquired(grant)
            }
            contended @ Attempt::Contended { .. } => contended,
        })
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.inner.wait(claim).await
    }
    async fn renew(&self, _: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.renewing.store(true, Ordering::SeqCst);
        pending().await
    }
    async fn release(&self, claim: &Claim, how: LetGo) -> Result<Release, Fault> {
        self.inner.release(claim, how).await
    }
    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.inner.inspect(name).await
    }
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.inner.list(prefix, after, limit).await
    }
    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.inner.break_lock(name, expected).await
    }
}

#[test]
fn a_ticket_goes_with_the_runtime_also_while_a_renewal_is_under_way() {
    for dies in [single as fn() -> Runtime, runtime] {
        let (ticket, renewing) = (Arc::new(()), Arc::new(AtomicBool::new(false)));
        let backend = Ticketed {
            inner: Memory::new(),
            ticket: Arc::clone(&ticket),
            renewing: Arc::clone(&renewing),
        };
        let locks = Locker::new(backend);
        let home = dies();
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
fn every_verb_on_a_runtime_without_timers_is_an_error() {
    let memory = Memory::new();
    let locks = Locker::new(memory);
    let detached = runtime().block_on(async {
        let lock = locks.lock("n").unwrap().detachable();
        lock.acquire().await.unwrap().detach().await.unwrap()
    });
    let (name, owner) = (detached.name.clone(), detached.owner);
    let bare = Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        let seen = [
            locks.lock("m").unwrap().acquire().await.err(),
            locks.inspect(&name).await.err(),
            locks.list("", None, 1).await.err(),
            locks.break_lock(&name, &owner).await.err(),
            locks.identity().await.err(),
            locks.renew_detached(&detached).await.err(),
            locks.release_detached(&detached).await.err(),
            locks.adopt(detached).await.err(),
            locks.close().await.err(),
        ];
        let kinds = seen.map(|error| error.map(|error| error.kind()));
        assert_eq!(kinds, [Some(ErrorKind::NoRuntime); 9]);
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
    let faulty = Faulty::new(Arc::new(Memory::new()), move |_| {
        if hanging.load(Ordering::SeqCst) { Disturbance::Hang } else { Disturbance::None }
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
