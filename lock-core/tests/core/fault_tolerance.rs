//! Promises of core under adversity: silent backends, outages, dying runtimes, late answers.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::*;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::layer::{Layer, Layered};
use lock_core::*;

use crate::support::Altered;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A backend with changed capabilities; without a queue if order is not FIFO.
#[derive(Debug)]
struct Caps(fn(&mut Capabilities));
#[async_trait]
impl Layer for Caps {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut caps = inner.capabilities();
        (self.0)(&mut caps);
        caps
    }

    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        if self.capabilities(inner).order == Order::PerProcess {
            sleep(millis(20)).await;
            return Ok(Wake::Retry);
        }
        inner.wait(claim).await
    }
}
fn lineless(inner: impl Backend) -> Layered<Caps> {
    let caps = Caps(|caps| {
        caps.order = Order::PerProcess;
        caps.wakeup = Wakeup::Poll;
        caps.loss_push = Support::Absent;
    });
    Layered::new(Arc::new(inner), caps)
}

#[test]
fn max_ttl_below_the_backends_minimum_does_not_panic() {
    let locks = Locker::builder(Memory::new()).max_ttl(Duration::from_micros(1)).build();
    let _ = locks.lock("n");
}

#[tokio::test(start_paused = true)]
async fn two_tries_on_a_dead_backend_are_two_faults() {
    let down = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::TryAcquire => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(lineless(down));
    let (a, b) = (locks.lock("n").unwrap(), locks.lock("n").unwrap());
    let (a, b) = tokio::join!(a.try_acquire(), b.try_acquire());
    assert_eq!(a.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(b.is_err(), "nobody holds the lock, the backend is dead, and the try says {b:?}");
}

#[tokio::test(start_paused = true)]
async fn a_local_waiter_in_an_outage_gets_the_outage() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = down.clone();
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |c| match c.verb {
        Verb::TryAcquire if asked.load(Ordering::SeqCst) => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::new(lineless(faulty));
    let _holder = Locker::new(memory).lock("n").unwrap().acquire().await.unwrap();
    let head = locks.lock("n").unwrap();
    tokio::spawn(async move { head.acquire().await });
    sleep(secs(1)).await;
    down.store(true, Ordering::SeqCst);
    sleep(secs(1)).await;
    let bounded = locks.lock("n").unwrap().try_acquire_for(secs(60)).await;
    assert!(bounded.is_err(), "down for a minute, and the answer is {bounded:?}");
    down.store(false, Ordering::SeqCst);
    let bounded = locks.lock("n").unwrap().try_acquire_for(secs(60)).await;
    assert!(matches!(bounded, Ok(None)), "held for a minute, and the answer is {bounded:?}");
}

#[tokio::test(start_paused = true)]
async fn contention_until_the_end_of_the_wait_is_not_a_fault() {
    let slow = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::TryAcquire => Injection::DelayReply(millis(100)),
        _ => Injection::None,
    });
    let locks = Locker::new(lineless(slow));
    let holder = locks.lock("n").unwrap().acquire().await.unwrap();
    let lock = locks.lock("n").unwrap();
    let waiter = tokio::spawn(async move { lock.try_acquire_for(secs(10)).await });
    sleep(millis(9950)).await;
    holder.release().await.unwrap();
    let answer = waiter.await.unwrap();
    assert!(answer.is_ok(), "a healthy backend, a neighbour until the end, and: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_behind_a_local_holder_sends_a_request_only_if_the_backend_is_silent() {
    let slow = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(lineless(slow.clone())).timeout(secs(4)).build();
    let holder = locks.lock("n").unwrap().ttl(secs(60)).acquire().await.unwrap();
    let releasing = tokio::spawn(holder.release());
    sleep(secs(1)).await;
    let sent = slow.calls();
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(slow.calls(), sent, "the holder is known");
    sleep(secs(2)).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(slow.calls(), sent + 1, "the backend may be down");
    releasing.abort();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_local_holder_sends_no_request() {
    let counted = FaultInjector::new(Arc::new(Memory::new()), |_| Injection::None);
    let locks = Locker::new(lineless(counted.clone()));
    let holder = locks.lock("n").unwrap().ttl(secs(60)).acquire().await.unwrap();
    let lock = locks.lock("n").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    // Before the first renewal.
    sleep(secs(5)).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(counted.calls(), 1, "the grant, and nothing since");
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_local_queue_does_not_multiply_the_outage_timeout() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = down.clone();
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |c| match c.verb {
        Verb::TryAcquire if asked.load(Ordering::SeqCst) => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(lineless(faulty)).outage_timeout(secs(60)).build();
    let _holder = Locker::new(memory).lock("n").unwrap().acquire().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        let lock = locks.lock("n").unwrap();
        waiters.push(tokio::spawn(async move { lock.acquire().await }));
        sleep(millis(10)).await;
    }
    down.store(true, Ordering::SeqCst);
    let since = Moment::now();
    for waiter in waiters {
        assert!(waiter.await.unwrap().is_err());
    }
    let took = Moment::now().saturating_since(since);
    assert!(
        took < secs(130),
        "outage_timeout is 60 s, and the last waiter was told after {took:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_too_late_is_not_contention() {
    let slow = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::TryAcquire => Injection::DelayReply(secs(2)),
        Verb::Release => Injection::DelayReply(millis(1)),
        _ => Injection::None,
    });
    let locks = Locker::new(slow);
    let answer = locks.lock("n").unwrap().ttl(secs(1)).try_acquire_for(millis(100)).await;
    assert!(answer.is_err(), "nobody had the lock, and the answer is {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn free_within_depends_on_the_session_the_fault_and_the_takeover() {
    const MORE: Duration = secs(7);
    let bound = async |in_session: bool, fault: FaultKind, takeover: Takeover| {
        let refuses = FaultInjector::new(Arc::new(Memory::new()), move |c| match c.verb {
            Verb::Release => Injection::Refuse(fault),
            _ => Injection::None,
        });
        let caps: fn(&mut Capabilities) = match takeover {
            Takeover::AtOnce => |caps| caps.takeover = Takeover::AtOnce,
            Takeover::LeasePlus(_) => |caps| caps.takeover = Takeover::LeasePlus(MORE),
        };
        let backend = Altered::new(refuses, caps).grants(move |grant| match in_session {
            true => grant.with_limit(LeaseLimit::new(Moment::now() + secs(60))),
            false => grant,
        });
        let lock = Locker::new(backend).lock("n").unwrap().ttl(secs(30));
        lock.acquire().await.unwrap().release().await.unwrap_err().free_within()
    };
    let (down, denied) = (FaultKind::Unavailable, FaultKind::Denied);
    let plus = Takeover::LeasePlus(MORE);
    // After a refusal that stays, a session keeps the lock for as long as it goes on.
    assert_eq!(bound(true, denied, plus).await, None);
    for (in_session, fault) in [(true, down), (false, down), (false, denied)] {
        let [soon, late] = [
            bound(in_session, fault, Takeover::AtOnce).await.unwrap(),
            bound(in_session, fault, plus).await.unwrap(),
        ];
        assert!((secs(20)..secs(32)).contains(&soon), "{in_session} {fault:?}: {soon:?}");
        let differs = late.saturating_sub(soon);
        assert!((secs(5)..secs(9)).contains(&differs), "{in_session} {fault:?}: {soon:?} {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn free_within_covers_the_minimum_hold() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::Release => Injection::LoseReply,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard =
        locks.lock("n").unwrap().ttl(secs(30)).min_hold(secs(3600)).acquire().await.unwrap();
    let bound = guard.release().await.unwrap_err().free_within().unwrap();
    sleep(bound).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_some(), "bound was {bound:?}");
}

#[tokio::test(start_paused = true)]
async fn free_within_covers_a_renewal_that_was_not_answered() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::Release => Injection::Hang,
        Verb::Renew => Injection::LoseReply,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(15)).await;
    let bound = guard.release().await.unwrap_err().free_within().unwrap();
    sleep(bound).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_some(), "bound was {bound:?}");
}

#[tokio::test(start_paused = true)]
async fn the_background_release_outlives_an_extension_that_was_not_answered() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = down.clone();
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |c| match c.verb {
        Verb::Release if asked.load(Ordering::SeqCst) => Injection::Refuse(FaultKind::Unavailable),
        Verb::Renew => Injection::LoseReply,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    assert!(guard.extend(secs(3600)).await.is_err());
    down.store(true, Ordering::SeqCst);
    drop(guard);
    sleep(secs(40)).await; // an outage of 40 s
    down.store(false, Ordering::SeqCst);
    sleep(secs(60)).await;
    assert!(
        locks.lock("n").unwrap().try_acquire().await.unwrap().is_some(),
        "a minute after the outage nobody has let the lock go"
    );
}

#[test]
fn release_outside_of_a_runtime() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let rt =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = rt.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    let outcome = std::thread::spawn(move || {
        let mut release = Box::pin(guard.release());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..100 {
            if let std::task::Poll::Ready(r) = release.as_mut().poll(&mut cx) {
                return r.map_err(|e| e.kind());
            }
            nap(millis(1));
        }
        panic!("pending");
    })
    .join();
    nap(millis(300));
    assert!(memory.is_empty(), "panicked: {}, and the lock is still held", outcome.is_err());
    assert!(outcome.is_ok());
}
#[test]
fn verify_lost_inspect_close_outside_of_a_runtime() {
    let locks = Locker::new(Memory::new());
    let rt =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = rt.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    fn panics<F: Future>(f: F) -> bool {
        let mut f = Box::pin(f);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = f.as_mut().poll(&mut cx);
        }))
        .is_err()
    }
    let name = LockName::new("n").unwrap();
    let seen = [
        ("verify", panics(guard.verify())),
        ("lost", panics(guard.lost())),
        ("run", panics(guard.run(std::future::pending::<()>()))),
        ("inspect", panics(locks.inspect(&name))),
        ("close", panics(locks.close())),
    ];
    assert!(seen.iter().all(|(_, p)| !p), "{seen:?}");
}
#[test]
fn a_runtime_without_timers() {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let locks = Locker::new(Memory::new());
    let guard = rt.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    assert!(guard.is_held());
}

#[derive(Debug)]
struct Gated {
    gate: Arc<tokio::sync::Semaphore>,
    shut: Verb,
}
#[async_trait]
impl Layer for Gated {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut caps = inner.capabilities();
        caps.order = Order::PerProcess;
        caps
    }

    async fn wait(&self, _: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        let _ = claim;
        std::future::pending().await
    }

    async fn wait_lost(&self, _: &dyn Backend, claim: &Claim) -> Result<(), Fault> {
        let _ = claim;
        std::future::pending().await
    }

    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if self.shut == Verb::Renew {
            let _ = self.gate.acquire().await;
        }
        inner.renew(claims).await
    }

    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        if self.shut == Verb::Release {
            let _ = self.gate.acquire().await;
        }
        inner.release(claim, how).await
    }
}
fn rt() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
#[test]
fn a_release_dropped_on_a_short_lived_runtime_is_finished() {
    let memory = Memory::new();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let locks = Locker::new(Layered::new(
        Arc::new(memory.clone()),
        Gated { gate: gate.clone(), shut: Verb::Release },
    ));
    let home = rt();
    let guard = home.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    let visit = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    visit.block_on(async {
        assert!(tokio::time::timeout(millis(20), guard.release()).await.is_err());
    });
    drop(visit);
    nap(millis(50));
    gate.add_permits(10);
    nap(millis(300));
    assert!(memory.is_empty(), "the release was not finished although its runtime lives");
}

#[test]
fn a_verify_under_way_at_shutdown_does_not_block_the_local_queue() {
    let memory = Memory::new();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (a, b) = (rt(), rt());
    let gated =
        Layered::new(Arc::new(memory.clone()), Gated { gate: gate.clone(), shut: Verb::Renew });
    let locks = Locker::builder(gated).executor(Executor::of(a.handle().clone())).build();
    let guard = Arc::new(a.block_on(locks.lock("n").unwrap().ttl(millis(1000)).acquire()).unwrap());
    let signal = guard.loss_signal();
    let verifying = b.spawn({
        let guard = guard.clone();
        async move { guard.verify().await.map_err(|e| e.kind()) }
    });
    nap(millis(50));
    a.shutdown_timeout(secs(5));
    assert_eq!(signal.loss(), Some(Loss::RuntimeGone));
    gate.add_permits(10);
    println!("verify: {:?}", b.block_on(verifying).unwrap());
    drop(guard);
    nap(millis(1500));
    let next =
        b.block_on(async { locks.lock("n").unwrap().try_acquire().await.map(|g| g.is_some()) });
    assert_eq!(
        next.map_err(|e| e.kind()),
        Ok(true),
        "guard dropped, lease over, only a LossSignal is left"
    );
    drop(signal);
}

#[tokio::test(start_paused = true)]
async fn renewals_of_locks_won_at_different_moments_share_a_call() {
    let renewals = Arc::new(AtomicU32::new(0));
    let counted = renewals.clone();
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |c| {
        if c.verb == Verb::Renew {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        Injection::None
    });
    let locks = Locker::new(faulty);
    let mut guards = Vec::new();
    for i in 0..64 {
        guards.push(locks.lock(&*format!("n{i}")).unwrap().ttl(secs(30)).acquire().await.unwrap());
        sleep(millis(15)).await; // 64 locks within one second: the grid is 1.07 s
    }
    sleep(secs(100)).await;
    let calls = renewals.load(Ordering::SeqCst);
    assert!(calls < 64, "{calls} calls for ten rounds of 64 locks");
}

#[tokio::test(start_paused = true)]
async fn release_is_bounded_by_two_timeouts() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::Renew => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(5)).build();
    let guard = locks.lock("n").unwrap().ttl(secs(3600)).acquire().await.unwrap();
    for _ in 0..60 {
        // a heartbeat
        assert!(tokio::time::timeout(secs(1), guard.verify()).await.is_err());
    }
    let started = Moment::now();
    let end = guard.release().await;
    let took = Moment::now().saturating_since(started);
    assert!(took <= secs(10), "released ({end:?}) after {took:?}, the bound is two times 5 s");
}

#[tokio::test(start_paused = true)]
async fn release_during_a_batch_that_hangs_is_bounded() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |c| match c.verb {
        Verb::Renew | Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(5)).build();
    let a = locks.lock("a").unwrap().ttl(secs(300)).acquire().await.unwrap();
    let _b = locks.lock("b").unwrap().ttl(secs(300)).acquire().await.unwrap();
    sleep(secs(100) + millis(20)).await; // the renewal of both is under way
    let started = Moment::now();
    let _ = a.release().await;
    let took = Moment::now().saturating_since(started);
    assert!(took <= secs(10) + millis(100), "released after {took:?}, the bound is two times 5 s");
}

#[tokio::test(start_paused = true)]
async fn after_a_failed_probe_nothing_is_renewed() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    let policy =
        RenewalPolicy::default().only_while(move || count.fetch_add(1, Ordering::SeqCst) != 0);
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
    sleep(secs(15)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "it has said false");
    guard.verify().await.unwrap();
    let loss = tokio::time::timeout(secs(600), guard.lost()).await;
    assert!(
        loss.is_ok(),
        "renewed again and again; the probe was asked {} times",
        asked.load(Ordering::SeqCst)
    );
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_when_a_kept_minimum_hold_ends() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().ttl(secs(300)).min_hold(secs(5)).acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(secs(300));
    let started = Moment::now();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    guard.release().await.unwrap();
    drop(waiter.await.unwrap().unwrap());
    let took = Moment::now().saturating_since(started);
    assert!(took < secs(6), "free after 5 s, served after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_token_is_not_a_grant() {
    #[derive(Debug)]
    struct Same;
    let locks = Locker::new(Layered::new(Arc::new(Memory::new()), Repeats));
    let _ = Same;
    let a = locks.lock("n").unwrap().acquire().await.unwrap();
    let first = a.fencing_token();
    a.release().await.unwrap();
    let b = locks.lock("n").unwrap().acquire().await;
    assert!(b.is_err(), "two grants with the token {first:?}: {b:?}");
}
#[derive(Debug)]
struct Repeats;
#[async_trait]
impl Layer for Repeats {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Acquired(mut g) => {
                g.token = FencingToken::from_backend(7);
                Attempt::Acquired(g)
            }
            c => c,
        })
    }

    async fn renew(&self, _: &dyn Backend, _: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        Vec::new()
    }
}
#[tokio::test(start_paused = true)]
async fn adopt_of_a_backend_that_does_not_answer_is_broken_not_notheld() {
    let locks = Locker::new(Layered::new(Arc::new(Memory::new()), Repeats));
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    assert_eq!(locks.adopt(detached).await.unwrap_err().kind(), ErrorKind::BackendBroken);
}

#[tokio::test(start_paused = true)]
async fn memory_forgets_what_is_over() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    for i in 0..1000 {
        let guard = locks
            .lock(&*format!("job-{i}"))
            .unwrap()
            .ttl(secs(30))
            .min_hold(secs(60))
            .acquire()
            .await
            .unwrap();
        guard.release().await.unwrap();
    }
    sleep(secs(3600)).await;
    locks.lock("x").unwrap().acquire().await.unwrap().release().await.unwrap();
    assert!(memory.is_empty(), "{} entries of locks that nobody holds or waits for", memory.len());
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_lease_is_said_to_be_over_does_not_cause_a_storm() {
    let counted = FaultInjector::new(Arc::new(Memory::new()), |_| Injection::None);
    let locks = Locker::new(Layered::new(Arc::new(counted.clone()), ZeroLapse));
    let holder = locks.lock("n").unwrap().acquire().await.unwrap();
    let before = counted.calls();
    assert!(locks.lock("n").unwrap().try_acquire_for(secs(60)).await.unwrap().is_none());
    let per_second = (counted.calls() - before) / 60;
    assert!(per_second < 30, "{per_second} calls a second while waiting");
    drop(holder);
}
#[derive(Debug)]
struct ZeroLapse;
#[async_trait]
impl Layer for ZeroLapse {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Contended { .. } => Attempt::Contended { expires_in: Some(Duration::ZERO) },
            a => a,
        })
    }
}

#[tokio::test(start_paused = true)]
async fn adopt_after_close() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    locks.close().await.unwrap();
    assert_eq!(locks.adopt(detached).await.map(drop).unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_zero_in_a_renewal_does_not_spin() {
    let calls = Arc::new(AtomicU64::new(0));
    let locks = Locker::new(Layered::new(Arc::new(Memory::new()), ShortRenew(calls.clone())));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    let _ = tokio::time::timeout(secs(20), guard.lost()).await;
    let n = calls.load(Ordering::SeqCst);
    assert!(n < 1000, "{n} renewals");
}
#[derive(Debug)]
struct ShortRenew(Arc<AtomicU64>);
#[async_trait]
impl Layer for ShortRenew {
    async fn renew(&self, _: &dyn Backend, c: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let n = self.0.fetch_add(1, Ordering::SeqCst);
        if n > 100_000 {
            std::future::pending::<()>().await;
        }
        // Time has to go on on a paused clock.
        sleep(millis(1)).await;
        let since = Moment::now();
        c.iter().map(|_| Ok(Renewal::Held(Grant::new(Lease::For(Duration::ZERO), since)))).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn clean_up_after_an_outage_is_bounded() {
    let releases = Arc::new(AtomicU64::new(0));
    let counted = releases.clone();
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |c| match c.verb {
        Verb::TryAcquire => Injection::LandLate(secs(100_000)),
        Verb::Release => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).max_pending(16).build();
    for i in 0..5000 {
        let _ = locks.lock(&*format!("n{i}")).unwrap().ttl(secs(30)).try_acquire().await;
    }
    sleep(secs(10)).await;
    let before = releases.load(Ordering::SeqCst);
    sleep(secs(10)).await;
    let rate = (releases.load(Ordering::SeqCst) - before) / 10;
    assert!(rate < 200, "{rate} releases a second at a dead backend, with max_pending 16");
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_releases_that_are_awaited_elsewhere() {
    let memory = Memory::new();
    let slow = FaultInjector::new(Arc::new(memory.clone()), |c| match c.verb {
        Verb::Release => Injection::DelayRequest(secs(1)),
        _ => Injection::None,
    });
    let locks = Locker::new(slow);
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    tokio::spawn(async move { guard.release().await });
    sleep(millis(1)).await;
    locks.close().await.unwrap();
    assert!(memory.is_empty(), "closed, and a release is still under way");
}

#[derive(Debug)]
struct NoLease(Arc<AtomicU64>);
#[async_trait]
impl Layer for NoLease {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut c = inner.capabilities();
        c.takeover = Takeover::AtOnce;
        c
    }

    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Acquired(mut g) => {
                g.lease = Lease::WhileProcessLives;
                Attempt::Acquired(g)
            }
            c => c,
        })
    }

    async fn renew(&self, _: &dyn Backend, _: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}
#[test]
fn loss_is_told_when_the_runtime_goes_during_a_renewal_without_lease() {
    let renewals = Arc::new(AtomicU64::new(0));
    let a = rt();
    let executor = Executor::of(a.handle().clone());
    let backend = Layered::new(Arc::new(Memory::new()), NoLease(renewals.clone()));
    let locks = Locker::builder(backend).executor(executor).build();
    let guard = a.block_on(locks.lock("n").unwrap().ttl(millis(100)).acquire()).unwrap();
    while renewals.load(Ordering::SeqCst) == 0 {
        nap(millis(1));
    }
    a.shutdown_timeout(secs(5));
    assert_eq!(guard.loss(), Some(Loss::RuntimeGone));
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_not_prolonged_under_another_grant() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let (name, ttl) = (LockName::new("n").unwrap(), secs(30));
    let guard = locks.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    let owner = memory.inspect(&name).await.unwrap().holders[0].owner.unwrap();
    assert!(memory.break_lock(&name, &owner).await.unwrap());
    let rival = Claim::new(name.clone(), OwnerId::mint(), ttl);
    assert!(matches!(memory.try_acquire(&rival).await, Ok(Attempt::Acquired(_))));
    memory.release(&rival, ReleaseMode::now()).await.unwrap();
    // An attempt of the guard's claim that was on its way all the time.
    let late = Claim::new(name.clone(), owner, ttl);
    assert!(matches!(memory.try_acquire(&late).await, Ok(Attempt::Acquired(_))));
    assert_eq!(tokio::time::timeout(ttl, guard.lost()).await, Ok(Loss::NotHeld));
    locks.close().await.unwrap();
    assert!(memory.inspect(&name).await.unwrap().holders.is_empty());
}

/// Lets other threads work.
fn nap(duration: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(sleep(duration));
}
