//! Renewals: when they are sent, and the effect of their answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use lock_core::backend::{Fault, FaultKind, Lease, Ticket};
use lock_core::clock::sleep;
use lock_core::faults::{Call, FaultInjector, Injection, Verb};
use lock_core::{ErrorKind, Locker, Memory, RenewalPolicy};
use tokio::runtime::Handle;

use crate::support::{Altered, millis, secs};

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_won_while_nothing_is_renewed_is_renewed() {
    let locks = Locker::new(Memory::new());
    drop(locks.lock("n").unwrap().acquire().await.unwrap());
    // Longer than the renewals linger.
    sleep(secs(60)).await;
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(300)).await;
    assert!(guard.is_held(), "{:?}", guard.loss());
}

#[tokio::test(start_paused = true)]
async fn the_task_of_the_renewals_ends_with_its_locker() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    guard.release().await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
    drop(locks);
    sleep(secs(1)).await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "it waits without end");
}

/// Answers of `verb` come when less than a tenth of a lease of 1 s is left, the first `times` of
/// them.
fn slow_answers(verb: Verb, times: u32) -> FaultInjector {
    let answered = AtomicU32::new(0);
    FaultInjector::new(Arc::new(Memory::new()), move |call: &Call<'_>| {
        let is_slow = call.verb == verb && answered.fetch_add(1, Ordering::SeqCst) < times;
        if is_slow { Injection::DelayReply(millis(950)) } else { Injection::None }
    })
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_nearly_over_when_the_answer_comes_is_asked_for_once_more() {
    let locks = |verb| Locker::builder(slow_answers(verb, 1)).timeout(secs(20)).build();
    let lock = locks(Verb::TryAcquire).lock("n").unwrap().ttl(secs(1));
    let guard = lock.acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() > millis(900), "acquired with {:?} left", guard.valid_for());
    let lock = locks(Verb::Renew).lock("n").unwrap().ttl(secs(1)).renewal(RenewalPolicy::off());
    for verifies in [true, false] {
        let guard = lock.acquire().await.unwrap();
        match verifies {
            true => guard.verify().await.unwrap(),
            false => guard.extend(secs(1)).await.unwrap(),
        }
        assert!(
            guard.valid_for().unwrap() > millis(900),
            "renewed with {:?} left",
            guard.valid_for()
        );
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_is_ok_that_leaves_less_than_a_tenth_of_the_ttl() {
    let locks = |verb| Locker::builder(slow_answers(verb, 9)).timeout(secs(20)).build();
    let lock = locks(Verb::TryAcquire).lock("n").unwrap().ttl(secs(1));
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let lock = locks(Verb::Renew).lock("n").unwrap().ttl(secs(1)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    let error = guard.verify().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "its lease ends before the second answer: {error}");
}

#[tokio::test(start_paused = true)]
async fn verbs_carry_the_ticket_of_the_last_renewal() {
    let (last, seen) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(None)));
    let (number, shown) = (Arc::clone(&last), Arc::clone(&seen));
    let backend = Altered::new(Memory::new(), |_| ())
        .grants(move |grant| {
            grant.with_ticket(Ticket::new(number.fetch_add(1, Ordering::SeqCst) + 1))
        })
        .releases(move |claim, _| {
            *shown.lock().unwrap() = claim.ticket.as_ref().and_then(Ticket::get::<u32>).copied();
        });
    let locks = Locker::new(backend);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(60)).await;
    guard.release().await.unwrap();
    let last = last.load(Ordering::SeqCst);
    assert!(last > 4, "{last} grants in two leases");
    assert_eq!(*seen.lock().unwrap(), Some(last), "the release carries an old ticket");
}

#[tokio::test(start_paused = true)]
async fn one_claim_that_times_out_discards_no_answer_of_the_others() {
    let asked: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let counted = Arc::clone(&asked);
    let backend = Altered::new(Memory::new(), |_| ()).renewals(move |claims, mut answers| {
        for (claim, answer) in claims.iter().zip(&mut answers) {
            *counted.lock().unwrap().entry(claim.name.as_str().to_owned()).or_default() += 1;
            if claim.name.as_str() == "slow" {
                *answer = Err(Fault::unknown(FaultKind::TimedOut, "this one only"));
            }
        }
        answers
    });
    let locks = Locker::new(backend);
    let mut guards = Vec::new();
    for name in ["a", "b", "slow", "c"] {
        guards.push(locks.lock(name).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    sleep(millis(10_100)).await;
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked["slow"], 1, "the batch was sent once: {asked:?}");
    for name in ["a", "b", "c"] {
        assert_eq!(asked[name], 1, "{name} was answered, and asked again: {asked:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_times_out_is_asked_again_one_by_one() {
    let backend = Altered::new(Memory::new(), |_| ()).renewals(|claims, answers| {
        let late = || Fault::unknown(FaultKind::TimedOut, "too many at once");
        match claims.len() {
            1 => answers,
            _ => claims.iter().map(|_| Err(late())).collect(),
        }
    });
    let locks = Locker::new(backend);
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.lock(name).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    sleep(millis(10_100)).await;
    for guard in &guards {
        let left = guard.valid_for().unwrap();
        assert!(left > secs(28), "{:?} has {left:?} left, renewed by no request", guard.name());
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_not_answered_leaves_time_for_another_one() {
    let renewals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&renewals);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew if counted.fetch_add(1, Ordering::SeqCst) == 0 => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(300)).build();
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(guard.loss(), None, "the first renewal has used up the lease");
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_nearly_over_is_asked_for_once_more_and_not_released() {
    let (grants, releases) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&releases);
    let backend = Altered::new(Memory::new(), |_| ())
        .grants(move |mut grant| {
            if grants.fetch_add(1, Ordering::SeqCst) == 0 {
                grant.lease = Lease::For(millis(50));
            }
            grant
        })
        .releases(move |_, _| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
    let locks = Locker::new(backend);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    assert!(guard.valid_for() > Some(secs(29)));
    assert_eq!(releases.load(Ordering::SeqCst), 0, "another client may have had it in between");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_not_answered_is_not_repeated_at_once() {
    let renewals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&renewals);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::Hang
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(1)).build();
    let _guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    while renewals.load(Ordering::SeqCst) == 0 {
        sleep(millis(1)).await;
    }
    sleep(millis(1100)).await;
    assert_eq!(renewals.load(Ordering::SeqCst), 1, "repeated when the first one timed out");
}
