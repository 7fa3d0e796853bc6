//! Local hand-over: a lock that passes from waiter to waiter of one locker, and the backend is not
//! asked.

use std::collections::HashSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::backend::FaultKind;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{
    ErrorKind, LockGuard, LockName, Locker, LockerBuilder, Loss, Memory, Order, OwnerId,
    RenewalPolicy, Requirements,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::Altered;

const TTL: Duration = Duration::from_secs(30);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// The requests, with their owners.
type Calls = Arc<Mutex<Vec<(Verb, OwnerId)>>>;

/// A locker whose calls are noted, and injected as `script` says.
fn noted(
    memory: &Memory,
    script: impl Fn(Verb) -> Injection + Send + Sync + 'static,
) -> (LockerBuilder, Calls) {
    let calls = Calls::default();
    let noting = Arc::clone(&calls);
    let backend = FaultInjector::new(Arc::new(memory.clone()), move |call| {
        noting.lock().unwrap().push((call.verb, call.claim.owner));
        script(call.verb)
    });
    (Locker::builder(backend), calls)
}

fn handing_over(memory: &Memory, at_most: u8) -> Locker {
    Locker::builder(memory.clone()).local_handovers(at_most).build()
}

async fn acquire(locks: &Locker) -> LockGuard {
    locks.lock("n").unwrap().ttl(TTL).acquire().await.unwrap()
}

/// A waiter that is queued when this returns.
async fn waiter(locks: &Locker) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    let (queued, is_queued) = oneshot::channel();
    let waiter = tokio::spawn(async move {
        let mut acquisition = pin!(acquire(&locks));
        let first = poll_fn(|context| Poll::Ready(acquisition.as_mut().poll(context))).await;
        let _ = queued.send(());
        match first {
            Poll::Ready(guard) => guard,
            Poll::Pending => acquisition.await,
        }
    });
    is_queued.await.unwrap();
    waiter
}

async fn waiters(locks: &Locker, number: usize) -> Vec<JoinHandle<LockGuard>> {
    let mut waiting = Vec::new();
    for _ in 0..number {
        waiting.push(waiter(locks).await);
    }
    waiting
}

async fn holder_in(memory: &Memory) -> Option<OwnerId> {
    let state = Locker::new(memory.clone()).inspect(&LockName::new("n").unwrap()).await.unwrap();
    state.holders.first().and_then(|holder| holder.owner)
}

/// Polls once.
fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_takes_over_without_a_request() {
    let (locks, calls) = noted(&Memory::new(), |_| Injection::None);
    let locks = locks.local_handovers(3).build();
    let mut guard = acquire(&locks).await;
    let first = *guard.owner();
    let (mut tokens, mut owners) = (vec![guard.fencing_token()], vec![first]);
    for waiter in waiters(&locks, 3).await {
        let signal = guard.loss_signal();
        // Either way of letting go.
        if tokens.len() % 2 == 0 {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        assert_eq!(signal.loss(), Some(Loss::Released));
        guard = waiter.await.unwrap();
        tokens.push(guard.fencing_token());
        owners.push(*guard.owner());
    }
    assert_eq!(calls.lock().unwrap().len(), 1, "{calls:?}");
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let number = tokens[0].unwrap().backend_number();
    assert!(tokens.iter().all(|token| token.unwrap().backend_number() == number));
    let distinct: HashSet<_> = owners.iter().collect();
    assert_eq!(distinct.len(), 4, "each holder is an owner of its own");

    // The fourth one gives it back, by the only claim that the backend knows.
    let fifth = waiter(&locks).await;
    guard.release().await.unwrap();
    let fifth = fifth.await.unwrap();
    assert!(fifth.fencing_token() > tokens[3], "and the next grant has a higher one");
    assert_eq!(calls.lock().unwrap()[1], (Verb::Release, first));
}

/// A claim with another key comes when the lock was handed over already, to a waiter that is gone
/// by now.
#[tokio::test(start_paused = true)]
async fn a_useless_hand_over_is_released_at_once() {
    let (builder, calls) = noted(&Memory::new(), |_| Injection::None);
    let locks = builder.local_handovers(9).build();
    let guard = acquire(&locks).await;
    let mut successor = Box::pin(acquire(&locks));
    assert!(poll(successor.as_mut()).is_pending());
    guard.release().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(secs(10));
    let other = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(Duration::from_millis(1)).await;
    drop(successor);
    let guard = tokio::time::timeout(secs(1), other).await.expect("nobody has the lock").unwrap();
    assert!(guard.valid_for().is_some_and(|lease| lease <= secs(10)));
    let verbs: Vec<_> = calls.lock().unwrap().iter().map(|(verb, _)| *verb).collect();
    assert_eq!(
        verbs,
        [Verb::TryAcquire, Verb::Release, Verb::TryAcquire],
        "it competed with itself"
    );
}

#[tokio::test]
async fn the_next_waiter_runs_first() {
    let locks = handing_over(&Memory::new(), 16);
    let guard = acquire(&locks).await;
    let next = waiter(&locks).await;
    guard.release().await.unwrap();
    // Both tasks are on one thread: before this one goes on, the other one has had its turn.
    assert!(next.is_finished());
}

#[tokio::test(start_paused = true)]
async fn after_so_many_hand_overs_others_have_their_turn() {
    let memory = Memory::new();
    let (ours, others) = (handing_over(&memory, 2), handing_over(&memory, 2));
    let guard = acquire(&ours).await;
    let mut waiting = vec![waiter(&ours).await, waiter(&others).await];
    waiting.extend(waiters(&ours, 4).await);
    waiting.push(waiter(&others).await);
    let served = Arc::new(Mutex::new(Vec::new()));
    let each = waiting.into_iter().zip(["a1", "b1", "a2", "a3", "a4", "a5", "b2"]);
    let each = each.map(|(waiter, who)| {
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            let guard = waiter.await.unwrap();
            served.lock().unwrap().push(who);
            sleep(Duration::from_millis(10)).await;
            drop(guard);
        })
    });
    let each: Vec<_> = each.collect();
    drop(guard);
    for done in each {
        done.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), ["a1", "a2", "b1", "b2", "a3", "a4", "a5"]);
}

#[tokio::test(start_paused = true)]
async fn the_order_that_is_declared_is_that_of_one_process() {
    let memory = Memory::new();
    let fifo = Requirements { order: Order::Fifo, ..Default::default() };
    assert!(handing_over(&memory, 0).require(&fifo).is_ok());
    let locks = handing_over(&memory, 1);
    assert_eq!(locks.capabilities().order, Order::PerProcess);
    let refused = locks.require(&fifo).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("order is PerProcess"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_successor_has_what_is_left_of_the_lease_and_renews_it() {
    let (locks, calls) = noted(&Memory::new(), |_| Injection::None);
    let locks = locks.local_handovers(9).build();
    let guard = acquire(&locks).await;
    let first = *guard.owner();
    let successor = waiter(&locks).await;
    sleep(secs(5)).await;
    let left = guard.valid_for().unwrap();
    drop(guard);
    let successor = successor.await.unwrap();
    let inherited = successor.valid_for().unwrap();
    assert!(inherited <= left && inherited >= left - secs(1), "{inherited:?} of {left:?}");
    // At the time at which it would have been renewed anyway.
    sleep(secs(6)).await;
    assert!(successor.valid_for().unwrap() > secs(24), "{:?}", successor.valid_for());
    sleep(secs(3600)).await;
    assert!(successor.is_held());
    successor.verify().await.unwrap();
    successor.release().await.unwrap();
    assert!(
        calls.lock().unwrap().iter().all(|(_, owner)| *owner == first),
        "one claim does it all"
    );
}

#[tokio::test(start_paused = true)]
async fn a_successor_of_a_backend_that_is_silent_gives_up_in_time() {
    let memory = Memory::new();
    let (locks, _) = noted(&memory, |verb| match verb {
        Verb::Renew => Injection::Hang,
        _ => Injection::None,
    });
    let locks = locks.local_handovers(9).build();
    let began = Moment::now();
    let guard = acquire(&locks).await;
    let successor = waiter(&locks).await;
    sleep(secs(9)).await;
    drop(guard);
    let successor = successor.await.unwrap();
    assert_eq!(successor.lost().await, Loss::Expired);
    assert!(Moment::now() < began + TTL, "before anyone else can get in");
    let after = waiter(&locks).await;
    // A lost lock is not handed over.
    drop(successor);
    assert_ne!(holder_in(&memory).await, None);
    let after = after.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*after.owner()), "with a claim of its own");
}

#[tokio::test(start_paused = true)]
async fn a_lock_with_an_unknown_renewal_is_released() {
    let memory = Memory::new();
    let (locks, calls) = noted(&memory, |verb| match verb {
        Verb::Renew => Injection::LoseReply,
        _ => Injection::None,
    });
    let locks = locks.local_handovers(9).build();
    // A renewal was not answered.
    let guard = acquire(&locks).await;
    let next = waiter(&locks).await;
    sleep(secs(11)).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
    assert!(calls.lock().unwrap().iter().any(|(verb, _)| *verb == Verb::Release));
    next.release().await.unwrap();

    // One was given up at the bound of a call, and may still have been refused.
    let (locks, _) = noted(&memory, |verb| match verb {
        Verb::Renew => Injection::Hang,
        _ => Injection::None,
    });
    let locks = locks.local_handovers(9).build();
    let lock = locks.lock("n").unwrap().ttl(TTL).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    let next = waiter(&locks).await;
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Timeout);
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
    next.release().await.unwrap();

    // One is under way.
    let (locks, _) = noted(&memory, |verb| match verb {
        Verb::Renew => Injection::DelayReply(secs(1)),
        _ => Injection::None,
    });
    let locks = locks.local_handovers(9).build();
    let guard = acquire(&locks).await;
    let next = waiter(&locks).await;
    let mut verifying = Box::pin(guard.verify());
    assert!(poll(verifying.as_mut()).is_pending());
    // The task that renews sends it.
    tokio::task::yield_now().await;
    drop(verifying);
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_nearly_over_is_released() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let lock = locks.lock("n").unwrap().ttl(TTL).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    let next = waiter(&locks).await;
    sleep(secs(25)).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
    assert!(next.valid_for().unwrap() > secs(29));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_given_back_is_no_contention() {
    let is_silent = Arc::new(AtomicBool::new(false));
    let silent = Arc::clone(&is_silent);
    let (locks, _) = noted(&Memory::new(), move |_| match silent.load(Ordering::SeqCst) {
        true => Injection::Hang,
        false => Injection::None,
    });
    let locks = locks.local_handovers(9).build();
    let lock = locks.lock("n").unwrap().ttl(TTL).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    let mut successor = pin!(lock.try_acquire_for(secs(26)));
    assert!(poll(successor.as_mut()).is_pending());
    guard.release().await.unwrap();
    is_silent.store(true, Ordering::SeqCst);
    // By now too little of the lease is left for the successor, which releases it first.
    sleep(secs(24)).await;
    let refused = successor.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Timeout, "nobody has said that it is held: {refused}");
}

#[tokio::test(start_paused = true)]
async fn a_break_ends_the_hold_of_the_current_holder() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let guard = acquire(&locks).await;
    let first = *guard.owner();
    let [successor, next] = [waiter(&locks).await, waiter(&locks).await];
    guard.release().await.unwrap();
    let successor = successor.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(first), "the backend knows the first one only");
    let name = LockName::new("n").unwrap();
    assert!(locks.break_lock(&name, &first).await.unwrap());
    assert_eq!(successor.lost().await, Loss::NotHeld);
    assert_eq!(successor.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
    next.verify().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_ttl_or_an_extension_is_not_handed_over() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let name = LockName::new("n").unwrap();
    let usual = locks.lock("n").unwrap().ttl(TTL);
    for other in [usual.clone().ttl(secs(10)), usual.detachable()] {
        let guard = acquire(&locks).await;
        // An earlier waiter would take the lock over, but may be gone at its release.
        let next = waiter(&locks).await;
        let other = tokio::spawn(async move { other.acquire().await.unwrap() });
        sleep(secs(1)).await;
        guard.release().await.unwrap();
        let next = next.await.unwrap();
        assert_eq!(holder_in(&memory).await, Some(*next.owner()));
        // The release of a lock that is not handed over returns its outcome.
        assert!(locks.break_lock(&name, next.owner()).await.unwrap());
        assert_eq!(next.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
        let other = other.await.unwrap();
        assert_eq!(holder_in(&memory).await, Some(*other.owner()));
        other.release().await.unwrap();
    }

    let guard = acquire(&locks).await;
    guard.extend(secs(600)).await.unwrap();
    let next = waiter(&locks).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(holder_in(&memory).await, Some(*next.owner()));
    drop(next);

    // An adopter needs the owner id that the backend knows.
    let lock = locks.lock("n").unwrap().ttl(TTL).detachable();
    let guard = lock.acquire().await.unwrap();
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(secs(1)).await;
    drop(guard);
    let next = next.await.unwrap();
    assert_eq!(
        holder_in(&memory).await,
        Some(*next.owner()),
        "a detachable lock is not handed over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_of_a_holder_is_kept_by_its_successor() {
    let locks = handing_over(&Memory::new(), 9);
    let lock = locks.lock("n").unwrap().ttl(TTL).min_hold(secs(10));
    let guard = lock.acquire().await.unwrap();
    let successor = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    sleep(secs(10)).await;
    let next = waiter(&locks).await;
    // The first one is over; the successor's begins now.
    drop(guard);
    let successor = successor.await.unwrap();
    let began = Moment::now();
    assert_ne!(successor.fencing_token().unwrap().as_u64() & 0xff, 0, "handed over");
    drop(successor);
    let next = next.await.unwrap();
    let waited = Moment::now().saturating_since(began);
    assert!(waited >= secs(10) && waited < secs(11), "{waited:?}");
    assert_eq!(next.fencing_token().unwrap().as_u64() & 0xff, 0, "given back");
}

#[tokio::test(start_paused = true)]
async fn a_successor_without_renewals_has_the_lock_for_its_ttl_and_no_longer() {
    let locks = handing_over(&Memory::new(), 9);
    let guard = acquire(&locks).await;
    let lock = locks.lock("n").unwrap().ttl(TTL).renewal(RenewalPolicy::off());
    let successor = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(secs(8)).await;
    drop(guard);
    let successor = successor.await.unwrap();
    assert_ne!(successor.fencing_token().unwrap().as_u64() & 0xff, 0, "handed over");
    let began = Moment::now();
    assert_eq!(successor.lost().await, Loss::Expired);
    let held = Moment::now().saturating_since(began);
    assert!(held > secs(29) && held <= TTL, "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn the_tokens_of_local_hand_overs_run_out_in_time() {
    let locks = handing_over(&Memory::new(), u8::MAX);
    let mut guard = acquire(&locks).await;
    let waiting = waiters(&locks, 300).await;
    let mut last = guard.fencing_token();
    for (nth, waiter) in waiting.into_iter().enumerate() {
        drop(guard);
        guard = waiter.await.unwrap();
        assert!(guard.fencing_token() > last, "the hand-over number {nth}");
        last = guard.fencing_token();
        let local = guard.fencing_token().unwrap().as_u64() & 0xff;
        assert_eq!(local, (nth as u64 + 1) % 256);
    }
}

/// At each point at which a successor is dropped, the lock passes on or is released.
#[tokio::test(start_paused = true)]
async fn a_hand_over_without_a_taker_is_released() {
    for (polls, has_neighbour) in [(0, false), (0, true), (1, false), (1, true)] {
        let memory = Memory::new();
        let locks = handing_over(&memory, 9);
        let guard = acquire(&locks).await;
        let mut successor = Box::pin(acquire(&locks));
        assert!(poll(successor.as_mut()).is_pending());
        let neighbour = if has_neighbour { Some(waiter(&locks).await) } else { None };
        drop(guard);
        for _ in 0..polls {
            // It drops its guard at once.
            assert!(poll(successor.as_mut()).is_ready(), "it has been handed the lock");
        }
        drop(successor);
        if let Some(neighbour) = neighbour {
            let guard = neighbour.await.unwrap();
            let local = guard.fencing_token().unwrap().as_u64() & 0xff;
            assert_eq!(local, polls + 1, "passed on");
            drop(guard);
        }
        sleep(Duration::from_millis(10)).await;
        assert_eq!(holder_in(&memory).await, None, "{polls} polls, {has_neighbour}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_successor_lets_the_lease_expire() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let guard = acquire(&locks).await;
    let mut successor = Box::pin(acquire(&locks));
    assert!(poll(successor.as_mut()).is_pending());
    drop(guard);
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    sleep(TTL).await;
    assert_eq!(holder_in(&memory).await, None);
    // It finds out, and gets the lock by itself.
    let successor = successor.await;
    assert_eq!(holder_in(&memory).await, Some(*successor.owner()));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_saw_a_later_grant_refuses_a_hand_over() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let guard = acquire(&locks).await;
    let first = *guard.owner();
    let mut successor = Box::pin(acquire(&locks));
    assert!(poll(successor.as_mut()).is_pending());
    drop(guard);
    assert!(locks.break_lock(&LockName::new("n").unwrap(), &first).await.unwrap());
    let other = locks.lock("n").unwrap().ttl(TTL).try_acquire().await.unwrap().unwrap();
    assert!(poll(successor.as_mut()).is_pending(), "somebody else holds the lock");
    other.verify().await.unwrap();
    let token = other.fencing_token();
    drop(other);
    assert!(successor.await.fencing_token() > token);
}

#[tokio::test(start_paused = true)]
async fn a_locker_that_closes_gives_back() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let guard = acquire(&locks).await;
    let lock = locks.lock("n").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close().await }
    });
    drop(guard);
    closing.await.unwrap().unwrap();
    let refused = waiting.await.unwrap();
    assert!(refused.is_err() || refused.is_ok_and(|guard| guard.is_held()));
    sleep(secs(1)).await;
    assert_eq!(holder_in(&memory).await, None);
}

#[test]
fn a_successor_whose_runtime_is_gone_leaves_the_lock_to_the_next() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build();
    let (ours, gone) = (runtime().unwrap(), runtime().unwrap());
    let guard = ours.block_on(acquire(&locks));
    let successor = gone.block_on(waiter(&locks));
    let next = ours.block_on(waiter(&locks));
    let last = ours.block_on(waiter(&locks));
    gone.shutdown_background();
    while !successor.is_finished() {
        std::thread::yield_now();
    }
    drop(guard);
    ours.block_on(async {
        drop(next.await.unwrap());
        let last = last.await.unwrap();
        assert!(last.is_held());
        last.release().await.unwrap();
        assert_eq!(holder_in(&memory).await, None);
    });
}

/// For each of the two runtimes that may be left, if the successor does not take the lock.
#[test]
fn a_hand_over_without_a_taker_is_released_on_a_living_runtime() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for releaser_lives in [false, true] {
        let memory = Memory::new();
        let locks = handing_over(&memory, 9);
        let (releasers, successors) = (runtime(), runtime());
        let guard = releasers.block_on(acquire(&locks));
        let successor = successors.spawn({
            let locks = locks.clone();
            async move { drop(acquire(&locks).await) }
        });
        successors.block_on(tokio::task::yield_now());
        releasers.block_on(guard.release()).unwrap();
        let living = if releaser_lives {
            drop(successors);
            releasers
        } else {
            drop(releasers);
            successor.abort();
            successors
        };
        living.block_on(async {
            let free = async {
                while holder_in(&memory).await.is_some() {
                    tokio::task::yield_now().await;
                }
            };
            let free = tokio::time::timeout(secs(10), free).await;
            assert!(free.is_ok(), "a lock stays shut though one runtime lives: {releaser_lives}");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_of_a_failing_backend_are_notified() {
    let down = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&down);
    let (locks, _) = noted(&Memory::new(), move |verb| match verb {
        Verb::TryAcquire | Verb::Release if fails.load(Ordering::SeqCst) => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = locks.local_handovers(1).outage_timeout(secs(60)).build();
    let guard = acquire(&locks).await;
    let successor = waiter(&locks).await;
    let lock = locks.lock("n").unwrap().ttl(TTL);
    let next = tokio::spawn(async move { lock.acquire().await });
    down.store(true, Ordering::SeqCst);
    // No claim of the process notices.
    guard.release().await.unwrap();
    let successor = successor.await.unwrap();
    assert!(successor.release().await.is_err());
    assert_eq!(next.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_that_come_and_go_are_one_after_another() {
    let memory = Memory::new();
    let inside = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(Mutex::new(None));
    let mut tasks = Vec::new();
    for locks in [handing_over(&memory, 3), handing_over(&memory, u8::MAX)] {
        for seed in 0..16 {
            let (locks, inside, last) = (locks.clone(), Arc::clone(&inside), Arc::clone(&last));
            tasks.push(tokio::spawn(async move {
                let mut rng = random(seed);
                for _ in 0..300 {
                    let mut acquiring = pin!(acquire(&locks));
                    if rng().is_multiple_of(3) {
                        // Dropped at some await, or having won.
                        let ready = poll_for(&mut acquiring, rng() % 3).await;
                        drop(ready);
                        continue;
                    }
                    let guard = acquiring.await;
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders at once");
                    let before = last.lock().unwrap().replace(guard.fencing_token());
                    assert!(before < Some(guard.fencing_token()), "a token did not grow");
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    let end = Moment::now() + secs(20);
    while holder_in(&memory).await.is_some() {
        assert!(!end.has_passed(), "a lock that nobody has");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a few times, as it is woken or not.
async fn poll_for<F: Future + Unpin>(future: &mut F, polls: u64) -> Option<F::Output> {
    for _ in 0..polls {
        let polled = poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx)));
        if let Poll::Ready(output) = polled.await {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

#[tokio::test(start_paused = true)]
async fn a_successor_releases_what_may_still_land() {
    let memory = Memory::new();
    let attempts = AtomicUsize::new(0);
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        // The second one of the first waiter is still on its way when the third one wins.
        Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 1 => {
            Injection::LandLate(secs(3600))
        }
        Verb::Wait => Injection::Hang,
        _ => Injection::None,
    });
    let releases = Arc::new(Mutex::new(Vec::new()));
    let shown = Arc::clone(&releases);
    let backend = Altered::new(faulty, |_| ())
        .releases(move |_, how| shown.lock().unwrap().push(how.expects_late_attempt()));
    let locks = Locker::builder(backend).local_handovers(9).build();
    let other = Locker::new(memory).lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    let first = waiter(&locks).await;
    other.release().await.unwrap();
    let first = first.await.unwrap();
    let successor = waiter(&locks).await;
    first.release().await.unwrap();
    successor.await.unwrap().release().await.unwrap();
    assert_eq!(*releases.lock().unwrap(), [true], "an attempt that lands later takes the lock");
}

#[tokio::test(start_paused = true)]
async fn a_successor_is_broken_by_its_own_owner_id() {
    let memory = Memory::new();
    let locks = handing_over(&memory, 9);
    let first = acquire(&locks).await;
    let waiting = waiters(&locks, 2).await;
    let name = first.name().clone();
    let earlier = *first.owner();
    first.release().await.unwrap();
    let mut waiting = waiting.into_iter();
    let second = waiting.next().unwrap().await.unwrap();
    let owner = *second.owner();
    assert_ne!(holder_in(&memory).await, Some(owner), "set-up: the backend knows the first one");
    second.release().await.unwrap();
    let third = waiting.next().unwrap().await.unwrap();
    // Of those whose lock has passed on, the backend knows the first: that one is the whole
    // cohort's.
    assert!(
        !locks.break_lock(&name, &owner).await.unwrap(),
        "it has left the lock to the next one"
    );
    assert!(third.verify().await.is_ok());
    assert!(locks.break_lock(&name, third.owner()).await.unwrap());
    assert_eq!(holder_in(&memory).await, None);
    assert_eq!(third.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!locks.break_lock(&name, &earlier).await.unwrap(), "it is broken already");
}
