//! How long a lock is held and renewed: minimum holds, longest holds, renewal policies.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use lock_core::backend::Lease;
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{ErrorKind, Locker, Loss, Memory, RenewalPolicy, Support};
use tokio::time::timeout;

use crate::support::{Altered, millis, secs};

/// A backend that knows of each grant only that it was made within the last 600 ms.
fn vague(memory: &Memory) -> Altered {
    Altered::new(memory.clone(), |_| ()).grants(|mut grant| {
        grant.since = grant.since.saturating_sub(millis(600));
        grant
    })
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_counts_from_the_arrival_of_the_grant() {
    let memory = Memory::new();
    let (locks, others) = (Locker::new(vague(&memory)), Locker::new(memory));
    let first = others.lock("n").unwrap().acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().min_hold(secs(10));
    let second = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    let released = Moment::now();
    first.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
    sleep_until(released + millis(9_999)).await;
    let early = others.lock("n").unwrap().try_acquire().await.unwrap();
    assert!(early.is_none(), "free before the minimum hold was over");
    sleep_until(released + millis(10_101)).await;
    let late = others.lock("n").unwrap().try_acquire().await.unwrap();
    assert!(late.is_some(), "kept for more than one per cent longer");
}

#[tokio::test(start_paused = true)]
async fn a_server_keeps_a_minimum_hold_for_one_per_cent_longer() {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&kept);
    let backend = Altered::new(Memory::new(), |caps| caps.margin = millis(2))
        .releases(move |_, how| seen.lock().unwrap().push(how.keep));
    let locks = Locker::new(backend);
    let lock = locks.lock("n").unwrap().min_hold(secs(10));
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(*kept.lock().unwrap(), [Some(millis(10_102))]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_keeps_what_is_left_of_its_minimum_hold() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let lock = locks.lock("n").unwrap().ttl(secs(100)).renewal(RenewalPolicy::off());
    let guard = lock.min_hold(secs(100)).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    drop(guard); // nobody has to learn of the loss any more
    sleep(millis(900)).await;
    let other = Locker::new(memory).lock("n").unwrap().try_acquire().await.unwrap();
    assert!(other.is_none(), "lost at 99 s, and free before the minimum hold of 100 s was over");
}

#[tokio::test(start_paused = true)]
async fn a_longest_hold_counts_from_the_arrival_of_the_grant() {
    let locks = Locker::new(vague(&Memory::new()));
    let policy = RenewalPolicy::default().max_hold(millis(500));
    let guard = locks.lock("n").unwrap().renewal(policy).acquire().await.unwrap();
    let won = Moment::now();
    assert_eq!(guard.loss(), None, "over before it began");
    assert_eq!(guard.lost().await, Loss::HoldLimit);
    let held = Moment::now().saturating_since(won);
    assert!((millis(500)..millis(505)).contains(&held), "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn without_renewals_a_lock_ends_with_its_lease_however_late_the_grant_arrived() {
    let locks = Locker::new(vague(&Memory::new()));
    let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    sleep(millis(29_200)).await;
    assert_eq!(guard.loss(), Some(Loss::Expired), "renewed although the policy is off");
}

#[tokio::test(start_paused = true)]
async fn renewals_after_an_extension_ask_for_the_original_ttl() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        if call.verb == Verb::Renew {
            seen.lock().unwrap().push(call.claim.ttl);
        }
        Injection::None
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    guard.extend(secs(60)).await.unwrap();
    sleep(secs(60)).await;
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked[0], secs(60));
    assert!(asked.len() > 3 && asked[1..].iter().all(|ttl| *ttl == secs(30)), "{asked:?}");
}

/// A backend that counts renewals; without leases if so asked.
fn counted(renewals: &Arc<AtomicU32>, lease: Option<Lease>) -> Altered {
    let counted = Arc::clone(renewals);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        counted.fetch_add(u32::from(call.verb == Verb::Renew), Ordering::SeqCst);
        Injection::None
    });
    Altered::new(faulty, |caps| caps.minimum_hold = Support::Absent).grants(move |mut grant| {
        grant.lease = lease.unwrap_or(grant.lease);
        grant
    })
}

#[tokio::test(start_paused = true)]
async fn off_renews_nothing_also_with_a_longest_hold() {
    for (limit, loss, after) in
        [(25, Loss::HoldLimit, millis(25_000)), (60, Loss::Expired, millis(29_700))]
    {
        let renewals = Arc::default();
        let locks = Locker::new(counted(&renewals, None));
        let policy = RenewalPolicy::off().max_hold(secs(limit));
        let guard = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
        let won = Moment::now();
        assert_eq!(guard.lost().await, loss);
        let held = Moment::now().saturating_since(won);
        assert!((after..after + millis(5)).contains(&held), "{held:?}");
        assert_eq!(renewals.load(Ordering::SeqCst), 0, "renewed although the policy is off");
    }
}

#[tokio::test(start_paused = true)]
async fn off_ends_with_the_ttl_also_without_leases() {
    let renewals = Arc::default();
    let locks = Locker::new(counted(&renewals, Some(Lease::WhileProcessLives)));
    let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    sleep(secs(20)).await;
    assert!(guard.is_held());
    guard.extend(secs(60)).await.unwrap();
    let extended = Moment::now();
    assert_eq!(timeout(secs(600), guard.lost()).await, Ok(Loss::Expired));
    let held = Moment::now().saturating_since(extended);
    assert!((millis(59_400)..millis(59_405)).contains(&held), "{held:?}");
    assert_eq!(renewals.load(Ordering::SeqCst), 1, "only the extension");
    sleep(secs(1)).await;
    assert!(lock.try_acquire().await.unwrap().is_some(), "lost, and not released");
}

#[tokio::test(start_paused = true)]
async fn off_keeps_a_minimum_hold_of_the_whole_ttl_in_this_process() {
    for lease in [None, Some(Lease::WhileProcessLives)] {
        let locks = Locker::new(counted(&Arc::default(), lease));
        let lock = locks.lock("n").unwrap().ttl(secs(100)).renewal(RenewalPolicy::off());
        drop(lock.clone().min_hold(secs(100)).acquire().await.unwrap());
        let won = Moment::now();
        sleep_until(won + millis(99_999)).await;
        assert!(
            lock.try_acquire().await.unwrap().is_none(),
            "free before the minimum hold was over"
        );
        sleep_until(won + millis(100_010)).await;
        assert!(lock.try_acquire().await.unwrap().is_some(), "kept for longer");
    }
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_beyond_the_longest_is_refused() {
    let lock = Locker::new(Memory::new()).lock("n").unwrap().min_hold(secs(60));
    let policy = |limit| RenewalPolicy::default().max_hold(limit);
    let error = lock.clone().renewal(policy(secs(59))).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("59s"), "{error}");
    assert!(lock.renewal(policy(secs(60))).acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn policies_that_cannot_be_kept_are_refused() {
    let lock = |supported| {
        let backend = match supported {
            true => Altered::new(Memory::new(), |_| ()),
            false => Altered::new(Memory::new(), |caps| caps.minimum_hold = Support::Absent),
        };
        Locker::new(backend).lock("n").unwrap().ttl(secs(10)).renewal(RenewalPolicy::off())
    };
    // Without renewals, this process can keep the lock no longer than its lease. A server can.
    for (supported, min_hold, is_kept) in
        [(false, 10, true), (false, 5, true), (false, 11, false), (true, 11, true), (true, 5, true)]
    {
        let answer = lock(supported).min_hold(secs(min_hold)).acquire().await;
        assert_eq!(answer.is_ok(), is_kept, "{supported} {min_hold}: {answer:?}");
        if let Err(error) = answer {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("outlasts the ttl of 10s"), "{error}");
        }
    }
    let detachable = || Locker::new(Memory::new()).lock("n").unwrap().detachable();
    let longest = RenewalPolicy::default().max_hold(secs(60));
    for refused in [detachable().min_hold(secs(1)), detachable().renewal(longest.clone())] {
        let error = refused.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("a detachable lock has no minimum"), "{error}");
    }
    assert!(detachable().acquire().await.is_ok());
    let usual = Locker::new(Memory::new()).lock("n").unwrap();
    assert!(usual.renewal(longest).min_hold(secs(1)).acquire().await.is_ok());
}

/// As of a caller that hangs.
#[tokio::test(start_paused = true)]
async fn a_local_minimum_hold_ends_although_the_release_is_not_polled() {
    for without_leases in [false, true] {
        let memory = Memory::new();
        let backend = Altered::new(memory.clone(), |caps| caps.minimum_hold = Support::Absent);
        let backend = backend.grants(move |mut grant| {
            if without_leases {
                grant.lease = Lease::WhileProcessLives;
            }
            grant
        });
        let lock = Locker::new(backend).lock("n").unwrap().ttl(secs(300));
        let guard = lock.min_hold(secs(60)).acquire().await.unwrap();
        let signal = guard.loss_signal();
        let mut releasing = Box::pin(guard.release());
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(releasing.as_mut().poll(&mut nobody).is_pending());
        sleep(secs(59)).await;
        assert_eq!(signal.loss(), None);
        sleep(secs(2)).await;
        assert_eq!(signal.loss(), Some(Loss::Released));
        assert!(memory.is_empty());
        releasing.await.unwrap();
    }
}
