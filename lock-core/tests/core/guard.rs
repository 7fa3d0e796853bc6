//! The promises of a guard, on the memory backend with a paused clock. The promises of each backend
//! are checked in `conformance-tests`; here is core's own part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, FaultKind};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{Backend, Error, ErrorKind, Label, Locker, Loss, Memory, RenewalPolicy};
use tokio::sync::Notify;

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_renewed_for_as_long_as_its_guard_lives() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(24 * 3600)).await;
    assert!(guard.is_held());
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_some());
}

/// Returns a locker whose first renewal hangs, and whose calls have five seconds.
fn whose_first_renewal_hangs() -> Locker {
    let hung = AtomicBool::new(false);
    let backend = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew if !hung.swap(true, Ordering::SeqCst) => Injection::Hang,
        _ => Injection::None,
    });
    Locker::builder(backend).timeout(secs(5)).build()
}

/// The timeout of a call is longer than the lease, and the renewals that follow are answered.
#[tokio::test(start_paused = true)]
async fn a_verification_that_is_not_answered_loses_no_lock() {
    for verifies in [false, true] {
        let locks = whose_first_renewal_hangs();
        let guard = locks.lock("n").unwrap().ttl(secs(3)).acquire().await.unwrap();
        if verifies {
            guard.verify().await.unwrap_err();
        }
        sleep(secs(10)).await;
        assert!(guard.is_held(), "verifies: {verifies}");
    }
}

/// A lock that was handed over has a short lease, which is renewed under any policy.
#[tokio::test(start_paused = true)]
async fn a_verification_that_is_not_answered_leaves_time_for_the_first_renewal() {
    let locks = whose_first_renewal_hangs();
    let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(RenewalPolicy::off());
    let holder = lock.acquire().await.unwrap();
    let released = async {
        sleep(secs(1)).await;
        holder.release().await.unwrap();
    };
    let (guard, ()) = tokio::join!(lock.acquire(), released);
    let guard = guard.unwrap();
    guard.verify().await.unwrap_err();
    sleep(secs(10)).await;
    assert!(guard.is_held());
}

/// A call has no more time than its lock: both end in the same millisecond. Another lock makes the
/// renewer set its timer anew, so that the timer of the call is the first.
#[tokio::test(start_paused = true)]
async fn a_verification_without_an_answer_by_the_end_of_the_hold_reports_the_loss() {
    for has_other in [false, true] {
        let locks = whose_first_renewal_hangs();
        let policy = RenewalPolicy::default().max_hold(millis(500));
        let guard = locks.lock("n").unwrap().ttl(secs(3)).renewal(policy).acquire().await.unwrap();
        sleep(millis(400)).await;
        let other = async {
            sleep(millis(1)).await;
            let other = locks.lock("m").unwrap().ttl(millis(150));
            if has_other { Some(other.acquire().await.unwrap()) } else { None }
        };
        let (verified, _other) = tokio::join!(guard.verify(), other);
        let error = verified.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "another lock: {has_other}, {error}");
        assert_eq!(guard.loss(), Some(Loss::HoldLimit));
    }
}

#[tokio::test(start_paused = true)]
async fn without_renewal_the_lock_ends_with_its_lease_less_the_margin() {
    let locks = Locker::new(Memory::new());
    let started = Moment::now();
    let lock = locks.lock("n").unwrap().ttl(secs(100)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    let held = Moment::now().saturating_since(started);
    assert!((secs(98)..=secs(99) + millis(2)).contains(&held), "{held:?}");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_is_a_bound_whatever_is_renewed() {
    let locks = Locker::new(Memory::new());
    let policy = RenewalPolicy::default().max_hold(secs(100));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
    let started = Moment::now();
    sleep(secs(90)).await;
    guard.extend(secs(3600)).await.unwrap();
    let loss = tokio::time::timeout(secs(60), guard.lost()).await;
    assert_eq!(loss, Ok(Loss::HoldLimit));
    assert!(Moment::now().saturating_since(started) <= secs(101));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_stays_shut_for_the_margin_as_long_as_its_guard_is_there() {
    let memory = Memory::new();
    let others = Locker::new(memory.clone());
    let other = others.lock("n").unwrap();
    for drops in [false, true] {
        let locks = Locker::new(memory.clone());
        // A margin of a second, and most of the lease is left on the server.
        let policy = RenewalPolicy::default().max_hold(secs(10));
        let lock = locks.lock("n").unwrap().ttl(secs(100)).renewal(policy);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(
            guard.run(std::future::pending::<()>()).await.unwrap_err().kind(),
            ErrorKind::Lost
        );
        sleep(millis(980)).await;
        assert!(other.try_acquire().await.unwrap().is_none(), "free within the margin");
        if drops {
            drop(guard);
        }
        // The release is one of the tasks that this waits for.
        let began = Moment::now();
        locks.close().await.unwrap();
        let waited = Moment::now().saturating_since(began);
        assert_eq!(waited < millis(10), drops, "close() has waited for {waited:?}");
        let taken = other.try_acquire().await.unwrap().expect("free after the margin");
        taken.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_or_panics_ends_the_renewals() {
    let healthy = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&healthy);
    let locks = Locker::new(Memory::new());
    let policy = RenewalPolicy::default().only_while(move || asked.load(Ordering::SeqCst));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
    sleep(secs(300)).await;
    assert!(guard.is_held());
    healthy.store(false, Ordering::SeqCst);
    assert_eq!(guard.lost().await, Loss::Expired);

    let policy = RenewalPolicy::default().only_while(|| panic!("sick"));
    let guard = locks.lock("m").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
}

#[tokio::test(start_paused = true)]
async fn run_drops_the_work_when_the_lock_is_lost() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    assert_eq!(guard.run(async { 7 }).await.unwrap(), 7);

    let dropped = Arc::new(AtomicBool::new(false));
    struct SetOnDrop(Arc<AtomicBool>);
    impl Drop for SetOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let flag = SetOnDrop(Arc::clone(&dropped));
    memory.evict(guard.name());
    let result: Result<(), Error> = guard
        .run(async move {
            let _flag = flag;
            std::future::pending::<()>().await;
        })
        .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(guard.loss(), Some(Loss::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn an_extension_is_not_cut_by_the_renewals_that_follow() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    guard.extend(secs(600)).await.unwrap();
    assert!(guard.valid_for().unwrap() > secs(590));
    sleep(secs(300)).await;
    guard.verify().await.unwrap();
    assert!(guard.valid_for().unwrap() > secs(280));
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_keeps_others_out_and_not_longer() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("cron").unwrap().ttl(secs(30)).min_hold(secs(50));
    let started = Moment::now();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(
        Moment::now().saturating_since(started) < secs(1),
        "the server keeps it, not this process"
    );
    let _next = locks.lock("cron").unwrap().acquire().await.unwrap();
    let waited = Moment::now().saturating_since(started);
    assert!((secs(50)..secs(51)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_is_adopted_by_its_owner_id() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).detachable().acquire().await.unwrap();
    let token = guard.fencing_token();
    let signal = guard.loss_signal();
    let detached = guard.detach().await.unwrap();
    assert_eq!(signal.lost().await, Loss::Released);

    let elsewhere = Locker::new(memory);
    assert!(elsewhere.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    let adopted = elsewhere.adopt(detached.clone()).await.unwrap();
    assert_eq!(adopted.fencing_token(), token);
    sleep(secs(300)).await;
    adopted.release().await.unwrap();
    assert_eq!(elsewhere.adopt(detached).await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_is_renewed_and_released_without_adoption() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();

    let elsewhere = Locker::new(memory);
    for _ in 0..3 {
        sleep(secs(20)).await;
        let left = elsewhere.renew_detached(&detached).await.unwrap();
        assert!((secs(29)..secs(30)).contains(&left), "less the margin: {left:?}");
    }
    let mut longer = detached.clone();
    longer.ttl = secs(600);
    elsewhere.renew_detached(&longer).await.unwrap();
    let left = elsewhere.renew_detached(&detached).await.unwrap();
    assert!(left > secs(590), "a renewal shortens nothing: {left:?}");

    elsewhere.release_detached(&detached).await.unwrap();
    let next = locks.lock("n").unwrap().try_acquire().await.unwrap();
    let kinds = [
        elsewhere.renew_detached(&detached).await.map(drop).unwrap_err().kind(),
        elsewhere.release_detached(&detached).await.unwrap_err().kind(),
    ];
    assert_eq!(kinds, [ErrorKind::NotHeld, ErrorKind::NotHeld]);
    assert!(next.is_some_and(|next| next.is_held()), "a newer holder is not touched");
}

#[tokio::test(start_paused = true)]
async fn the_grant_of_a_late_attempt_is_not_the_detached_lock() {
    for adopts in [true, false] {
        let memory = Memory::new();
        let locks = Locker::new(memory.clone());
        let lock = locks.lock("n").unwrap().ttl(secs(30));
        let detached = lock.clone().detachable().acquire().await.unwrap().detach().await.unwrap();
        assert!(locks.break_lock(&detached.name, &detached.owner).await.unwrap());
        lock.acquire().await.unwrap().release().await.unwrap();
        let late = Claim::new(detached.name.clone(), detached.owner, secs(30));
        assert!(matches!(memory.try_acquire(&late).await, Ok(Attempt::Acquired(_))));
        let error = match adopts {
            true => locks.adopt(detached).await.map(drop).unwrap_err(),
            false => locks.renew_detached(&detached).await.map(drop).unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::NotHeld);
        locks.close().await.unwrap();
        assert!(memory.is_empty(), "it keeps the lock shut for nobody");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_a_detached_lock_leaves_it_detached() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let guard = locks.lock("n").unwrap().ttl(secs(30)).detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    let renewing = tokio::time::timeout(secs(1), locks.renew_detached(&detached));
    assert!(renewing.await.unwrap().is_ok());
    sleep(secs(29)).await;
    assert!(!memory.is_empty(), "nobody has let it go");
    sleep(secs(2)).await;
    assert!(locks.renew_detached(&detached).await.is_err(), "and nobody has renewed it");
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_detached_lock_tells_what_it_knows() {
    use Injection::{Hang, LoseReply, None, Refuse};
    let released_by = async |injection: Injection, how_often: u32| {
        let releases = AtomicU32::new(0);
        let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
            Verb::Release if releases.fetch_add(1, Ordering::SeqCst) < how_often => injection,
            _ => None,
        });
        let locks = Locker::new(faulty);
        let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
        let detached = guard.detach().await.unwrap();
        let started = Moment::now();
        let answer = locks.release_detached(&detached).await.map_err(|error| error.kind());
        assert!(Moment::now().saturating_since(started) <= secs(6), "bounded by the timeout");
        answer
    };
    assert_eq!(released_by(None, 0).await, Ok(()));
    assert_eq!(released_by(Refuse(FaultKind::Unavailable), 1).await, Ok(()), "asked again");
    assert_eq!(released_by(LoseReply, 1).await, Err(ErrorKind::Gone), "by whom is unknown");
    assert_eq!(released_by(Refuse(FaultKind::Denied), 1).await, Err(ErrorKind::Denied));
    assert_eq!(released_by(Hang, u32::MAX).await, Err(ErrorKind::Timeout));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_not_asked_for_as_detachable_is_not() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    assert_eq!(guard.detach().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn close_ends_waiters_refuses_newcomers_and_waits_for_releases() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("n").unwrap();
        async move { lock.acquire().await.map(drop) }
    });
    sleep(secs(1)).await;
    drop(guard);
    let other = locks.lock("m").unwrap().acquire().await.unwrap();
    locks.close().await.unwrap();
    let _ = waiter.await.unwrap();
    assert_eq!(memory.len(), 1, "only the guard that is still alive");
    assert!(other.is_held());
    assert_eq!(locks.lock("n").unwrap().acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn close_says_what_it_could_not_finish() {
    let hang = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(hang);
    drop(locks.lock("n").unwrap().acquire().await.unwrap());
    let error = locks.close().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("and 1 releases"), "{error}");
}

/// Lets a release fail for a minute. The server answers again some time `after` it was sent once
/// more, and the locker is closed. Returns how long that took.
async fn close_after_failures(injection: Injection, after: Duration) -> Duration {
    let memory = Memory::new();
    let (is_down, sent) = (Arc::new(AtomicBool::new(true)), Arc::new(Notify::new()));
    let (asked, told) = (Arc::clone(&is_down), Arc::clone(&sent));
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::Release if asked.load(Ordering::SeqCst) => {
            told.notify_waiters();
            injection
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(2)).build();
    drop(locks.lock("n").unwrap().ttl(secs(120)).acquire().await.unwrap());
    // By then several seconds pass from one release to the next.
    sleep(secs(60)).await;
    sent.notified().await;
    sleep(after).await;
    is_down.store(false, Ordering::SeqCst);
    let began = Moment::now();
    locks.close().await.unwrap();
    assert!(memory.is_empty());
    Moment::now().saturating_since(began)
}

#[tokio::test(start_paused = true)]
async fn close_repeats_failed_releases_at_once() {
    let refuse = Injection::Refuse(FaultKind::Unavailable);
    let took = close_after_failures(refuse, millis(100)).await;
    assert!(took < millis(10), "released after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn close_repeats_releases_that_fail_meanwhile_soon() {
    // The call ends after another second, without an answer.
    let took = close_after_failures(Injection::Hang, secs(1)).await;
    assert!(took < millis(1200), "released after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn after_close_has_given_up_releases_are_repeated_as_seldom_as_before() {
    let releases = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&releases);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Release => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(2)).build();
    drop(locks.lock("n").unwrap().ttl(secs(120)).acquire().await.unwrap());
    assert_eq!(locks.close().await.unwrap_err().kind(), ErrorKind::Timeout);
    sleep(secs(15)).await;
    let before = releases.load(Ordering::SeqCst);
    sleep(secs(60)).await;
    let repeated = releases.load(Ordering::SeqCst) - before;
    assert!(repeated <= 11, "{repeated} in a minute, when a tenth of the lease is 12 s");
}

#[tokio::test(start_paused = true)]
async fn more_acquisitions_than_allowed_are_refused() {
    let locks = Locker::builder(Memory::new()).max_pending(1).build();
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let waiting = locks.lock("n").unwrap();
    let mut waiting = Box::pin(waiting.acquire());
    assert!(tokio::time::timeout(secs(1), &mut waiting).await.is_err());
    let refused = locks.lock("m").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted);
    drop(waiting);
    sleep(secs(1)).await;
    assert!(locks.lock("m").unwrap().try_acquire().await.unwrap().is_some());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn absurd_durations_are_refused_before_anything_is_sent() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |_| Injection::Panic);
    let locks = Locker::new(faulty.clone());
    for ttl in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX, secs(24 * 3600 + 1)] {
        let error = locks.lock("n").unwrap().ttl(ttl).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("ttl"), "{error}");
    }
    assert_eq!(faulty.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn labels_are_shown_only_if_asked_for() {
    let memory = Memory::new();
    let quiet = Locker::new(memory.clone());
    let loud = Locker::builder(memory).label(Label::new("web-1:77")).build();
    let _a = quiet.lock("a").unwrap().acquire().await.unwrap();
    let b = loud.lock("b").unwrap().acquire().await.unwrap();
    assert_eq!(quiet.inspect("a").await.unwrap().holders[0].label, None);
    let state = quiet.inspect(b.name()).await.unwrap();
    assert_eq!(state.holders[0].label.as_ref().unwrap().as_str(), "web-1:77");
    assert_eq!(state.holders[0].token, b.fencing_token());
}

#[test]
fn without_a_runtime_there_is_a_lock_all_the_same() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap();
    let mut acquire = Box::pin(lock.acquire());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match acquire.as_mut().poll(&mut cx) {
        std::task::Poll::Ready(Ok(guard)) => assert!(guard.is_held()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_valid_for_no_time() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    assert!(guard.valid_for().is_some_and(|left| left > secs(29)));
    assert!(guard.deadline().is_some_and(|deadline| deadline.remaining() > secs(29)));
    assert_eq!(guard.loss_signal().deadline(), guard.deadline());
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(guard.valid_for(), Some(Duration::ZERO), "None is a lock without a lease");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_refuses_to_be_detached_at_once_while_its_release_is_repeated() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    guard.extend(secs(3600)).await.unwrap();
    assert!(locks.break_lock(guard.name(), guard.owner()).await.unwrap());
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    sleep(secs(1)).await;
    let asked = Moment::now();
    assert!(guard.ticket().await.is_none());
    assert_eq!(guard.detach().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(Moment::now(), asked);
}
