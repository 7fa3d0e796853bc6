//! The answer to a caller that does not get the lock: contention, or a fault, and never one for the
//! other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lock_core::backend::{Effect, FaultKind};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Call, FaultInjector, Injection, Verb};
use lock_core::{ErrorKind, Locker, Loss, Memory};

use crate::support::{Altered, millis, secs};

/// A switch that a test and a script share.
#[derive(Clone, Default)]
struct Switch(Arc<AtomicBool>);

impl Switch {
    fn set(&self, on: bool) {
        self.0.store(on, Ordering::SeqCst);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn scripted(
    memory: &Memory,
    script: impl Fn(&Call<'_>) -> Injection + Send + Sync + 'static,
) -> FaultInjector {
    FaultInjector::new(Arc::new(memory.clone()), script)
}

#[tokio::test(start_paused = true)]
async fn a_try_behind_a_lost_local_hold_asks_the_backend() {
    let down = Switch::default();
    let asked = down.clone();
    let faulty = scripted(&Memory::new(), move |_| match asked.is_on() {
        true => Injection::Hang,
        false => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    down.set(true);
    assert_eq!(guard.lost().await, Loss::Expired);
    let answer = locks.lock("n").unwrap().try_acquire().await;
    assert!(answer.is_err(), "the backend is down, the lock is lost, and the try says {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_behind_a_lost_local_hold_is_a_fault() {
    let down = Switch::default();
    let asked = down.clone();
    let faulty = scripted(&Memory::new(), move |_| match asked.is_on() {
        true => Injection::Hang,
        false => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    down.set(true);
    assert_eq!(guard.lost().await, Loss::Expired);
    let began = Moment::now();
    let error = locks.lock("n").unwrap().try_acquire_for(millis(10)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::NotApplied));
    assert!(Moment::now().saturating_since(began) <= secs(5), "longer than a call may take");
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_local_attempt_is_no_contention() {
    // (how long the neighbour's attempt is unanswered, whether that is a fault)
    for (silence, is_fault) in [(millis(4_500), true), (millis(2_000), false)] {
        let down = Switch::default();
        let asked = down.clone();
        let faulty = scripted(&Memory::new(), move |call| match call.verb {
            Verb::TryAcquire if asked.is_on() => Injection::Hang,
            _ => Injection::None,
        });
        let locks = Locker::new(Altered::polled(faulty));
        let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
        let head = locks.lock("n").unwrap();
        tokio::spawn(async move { head.acquire().await });
        sleep(millis(10)).await;
        let behind = locks.lock("n").unwrap();
        let behind = tokio::spawn(async move { behind.try_acquire_for(secs(5)).await });
        sleep(secs(5) - silence).await;
        down.set(true);
        guard.release().await.unwrap();
        let answer = behind.await.unwrap();
        assert_eq!(answer.is_err(), is_fault, "free, and silent for {silence:?}: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_local_release_is_no_contention() {
    let faulty = scripted(&Memory::new(), |call| match call.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    drop(locks.lock("n").unwrap().acquire().await.unwrap());
    let answer = locks.lock("n").unwrap().try_acquire_for(secs(3)).await;
    assert!(answer.is_err(), "a release is unanswered for three seconds: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_behind_a_local_attempt_gets_its_answer() {
    let wins = |_: &Call<'_>| Injection::DelayReply(millis(50));
    let fails = |call: &Call<'_>| match call.verb {
        Verb::TryAcquire => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    };
    let slow = Altered::polled(scripted(&Memory::new(), wins));
    let locks = Locker::new(slow);
    let (first, second) = (locks.lock("n").unwrap(), locks.lock("n").unwrap());
    let began = Moment::now();
    let (first, second) = tokio::join!(first.acquire(), async {
        let answer = second.try_acquire_for(millis(10)).await;
        (answer, Moment::now().saturating_since(began))
    });
    assert!(first.is_ok());
    let (answer, waited) = second;
    assert!(matches!(answer, Ok(None)), "the neighbour has the lock: {answer:?}");
    assert!(waited < millis(60), "{waited:?}");

    let locks = Locker::new(Altered::polled(scripted(&Memory::new(), fails)));
    let error = locks.lock("n").unwrap().try_acquire_for(millis(10)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_ends_with_its_first_answer() {
    let memory = Memory::new();
    let _held = Locker::new(memory.clone()).lock("n").unwrap().acquire().await.unwrap();
    let locks = Locker::new(scripted(&memory, |call| match call.verb {
        Verb::TryAcquire => Injection::DelayReply(millis(50)),
        _ => Injection::None,
    }));
    let began = Moment::now();
    let answer = locks.lock("n").unwrap().try_acquire_for(millis(10)).await;
    let waited = Moment::now().saturating_since(began);
    assert!(matches!(answer, Ok(None)), "another client has the lock: {answer:?}");
    assert!(waited < millis(60), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_behind_an_unanswered_local_attempt_is_a_fault_in_time() {
    let faulty = scripted(&Memory::new(), |call| match call.verb {
        Verb::TryAcquire => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    let head = locks.lock("n").unwrap();
    tokio::spawn(async move { head.acquire().await });
    sleep(secs(1)).await;
    let began = Moment::now();
    let error = locks.lock("n").unwrap().try_acquire_for(millis(10)).await.unwrap_err();
    let waited = Moment::now().saturating_since(began);
    // Nothing was sent for this one, and the neighbour has asked for a second already.
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::NotApplied));
    assert!((millis(3_990)..millis(4_010)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_is_over_by_the_end_of_a_wait_is_contention() {
    let polled: fn(FaultInjector) -> Altered = Altered::polled;
    for backend in [polled, |faulty| Altered::new(faulty, |_| ())] {
        let memory = Memory::new();
        let down = Switch::default();
        let asked = down.clone();
        let faulty = scripted(&memory, move |call| match call.verb {
            Verb::TryAcquire if asked.is_on() => Injection::Refuse(FaultKind::Unavailable),
            Verb::Wait => Injection::Refuse(FaultKind::Unavailable),
            _ => Injection::None,
        });
        let _held = Locker::new(memory).lock("n").unwrap().acquire().await.unwrap();
        let locks = Locker::new(backend(faulty));
        let lock = locks.lock("n").unwrap();
        let wait = tokio::spawn(async move { lock.try_acquire_for(secs(20)).await });
        sleep(secs(1)).await;
        down.set(true);
        sleep(secs(10)).await;
        down.set(false);
        let answer = wait.await.unwrap();
        assert!(matches!(answer, Ok(None)), "held by another one, and reported as {answer:?}");
    }
}

/// The first answer grants the lock with too little of the lease left, and the wait ends while the
/// lease is asked for again.
#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_no_contention() {
    let attempts = AtomicU32::new(0);
    let late = scripted(&Memory::new(), move |call| match call.verb {
        Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 0 => {
            Injection::DelayReply(millis(950))
        }
        Verb::TryAcquire => Injection::DelayReply(millis(500)),
        _ => Injection::None,
    });
    let locks = Locker::new(late);
    let lock = locks.lock("n").unwrap().ttl(secs(1));
    let error = lock.try_acquire_for(millis(960)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_next_one_of_a_process_asks_when_the_release_before_was_sent() {
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let faulty = scripted(&Memory::new(), move |call| match call.verb {
        Verb::Release => Injection::DelayRequest(secs(1)),
        Verb::TryAcquire => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::None
        }
        _ => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    for is_dropped in [true, false] {
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        let lock = locks.lock("n").unwrap();
        let next = tokio::spawn(async move { lock.acquire().await });
        sleep(millis(1)).await;
        attempts.store(0, Ordering::SeqCst);
        if is_dropped {
            drop(guard);
        } else {
            tokio::spawn(async move { guard.release().await });
        }
        sleep(Duration::from_millis(500)).await;
        assert_eq!(attempts.load(Ordering::SeqCst), 0, "it competes with its own process");
        next.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(attempts.load(Ordering::SeqCst), 1, "one attempt after the release");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_missed_its_signal_asks_again_soon_however_long_the_lease() {
    let memory = Memory::new();
    let deaf = scripted(&memory, |call| match call.verb {
        Verb::Wait => Injection::Hang,
        _ => Injection::None,
    });
    let holder = Locker::new(memory).lock("n").unwrap().ttl(secs(3600)).acquire().await.unwrap();
    let lock = Locker::new(deaf).lock("n").unwrap().ttl(secs(3600));
    let waiter = tokio::spawn(async move { lock.acquire().await.map(|_| Moment::now()) });
    sleep(secs(1)).await;
    holder.release().await.unwrap();
    let freed = Moment::now();
    let waited = waiter.await.unwrap().unwrap().saturating_since(freed);
    assert!(waited < secs(31), "{waited:?} beside a free lock");
}

#[tokio::test(start_paused = true)]
async fn many_waiters_of_a_process_ask_again_as_often_as_one() {
    let memory = Memory::new();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let deaf = scripted(&memory, move |call| match call.verb {
        Verb::Wait => Injection::Hang,
        Verb::TryAcquire => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::None
        }
        _ => Injection::None,
    });
    let holder = Locker::new(memory).lock("n").unwrap().ttl(secs(3600)).acquire().await.unwrap();
    let locks = Locker::new(deaf);
    for _ in 0..100 {
        let lock = locks.lock("n").unwrap().ttl(secs(3600));
        tokio::spawn(async move { lock.acquire().await });
    }
    sleep(secs(60)).await;
    attempts.store(0, Ordering::SeqCst);
    sleep(secs(3000)).await;
    let attempts = attempts.load(Ordering::SeqCst);
    assert!(attempts <= 110, "{attempts} requests in 100 times half a minute");
    drop(holder);
}

/// Each pause of the network makes one answer late: the lease of its grant is over by then, and
/// another client has the lock.
#[tokio::test(start_paused = true)]
async fn grants_that_come_late_now_and_then_do_not_end_a_wait() {
    let (memory, is_slow) = (Memory::new(), Switch::default());
    let slow = is_slow.clone();
    let faulty = scripted(&memory, move |call| match call.verb {
        Verb::TryAcquire if slow.is_on() => Injection::DelayReply(secs(3)),
        _ => Injection::None,
    });
    let locks = Locker::new(Altered::polled(faulty));
    let other = Locker::new(memory).lock("n").unwrap().ttl(secs(2));
    let mut held = other.acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(secs(2));
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    for _ in 0..4 {
        sleep(secs(600)).await;
        is_slow.set(true);
        held.release().await.unwrap();
        sleep(secs(1)).await;
        is_slow.set(false);
        held = other.try_acquire_for(secs(10)).await.unwrap().unwrap();
        assert!(!waiter.is_finished(), "{:?}", waiter.await);
    }
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap();
}
