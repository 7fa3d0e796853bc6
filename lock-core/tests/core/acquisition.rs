//! The behaviour of core with backends that misbehave. A backend cannot break these promises, so
//! they are not laws for backends.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, FaultKind, Grant, Lease, LeaseLimit, Renewal, Wake,
};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::layer::{Layer, Layered};
use lock_core::{
    Backend, ErrorKind, FencingToken, LockGuard, LockName, Locker, Loss, Memory, RenewalPolicy,
};

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A memory backend with one verb replaced.
#[derive(Debug)]
struct Odd<F>(F);

fn odd<F: Oddity>(inner: Memory, odd: F) -> Layered<Odd<F>> {
    Layered::new(Arc::new(inner), Odd(odd))
}

trait Oddity: std::fmt::Debug + Send + Sync + 'static {
    fn grant(&self, grant: Grant) -> Grant {
        grant
    }
    fn pushed(&self, grant: Grant) -> Grant {
        grant
    }
    fn spins(&self) -> bool {
        false
    }
    fn answers(&self, answers: Vec<Result<Renewal, Fault>>) -> Vec<Result<Renewal, Fault>> {
        answers
    }
}

#[async_trait]
impl<F: Oddity> Layer for Odd<F> {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Acquired(grant) => Attempt::Acquired(self.0.grant(grant)),
            contended => contended,
        })
    }

    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        if self.0.spins() {
            return Ok(Wake::Retry);
        }
        Ok(match inner.wait(claim).await? {
            Wake::Granted(grant) => Wake::Granted(self.0.pushed(grant)),
            look => look,
        })
    }

    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.0.answers(inner.renew(claims).await)
    }
}

#[derive(Debug)]
struct TokensGoBack(AtomicU32);
impl Oddity for TokensGoBack {
    fn grant(&self, mut grant: Grant) -> Grant {
        let number = 1000 - u64::from(self.0.fetch_add(1, Ordering::SeqCst));
        grant.token = FencingToken::from_backend(number);
        grant
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_that_went_back_is_not_a_grant_and_the_lock_is_given_back() {
    let inner = Memory::new();
    let locks = Locker::new(odd(inner.clone(), TokensGoBack(AtomicU32::new(0))));
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceRegressed);
    locks.close().await.unwrap();
    assert!(inner.is_empty());
}

#[derive(Debug)]
struct TokensMissing;
impl Oddity for TokensMissing {
    fn grant(&self, mut grant: Grant) -> Grant {
        grant.token = None;
        grant
    }
}

#[tokio::test(start_paused = true)]
async fn a_declared_token_that_is_missing_is_not_a_grant() {
    let inner = Memory::new();
    let locks = Locker::new(odd(inner.clone(), TokensMissing));
    let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BackendBroken);
    locks.close().await.unwrap();
    assert!(inner.is_empty());
}

/// Leases are those of a session, however long the lock is asked for.
#[derive(Debug)]
struct ShortLeases;
impl Oddity for ShortLeases {
    fn grant(&self, mut grant: Grant) -> Grant {
        grant.lease = Lease::For(secs(5));
        grant
    }
    fn answers(&self, answers: Vec<Result<Renewal, Fault>>) -> Vec<Result<Renewal, Fault>> {
        let shorten = |answer| match answer {
            Ok(Renewal::Held(grant)) => Ok(Renewal::Held(self.grant(grant))),
            other => other,
        };
        answers.into_iter().map(shorten).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_shorter_than_asked_is_renewed_until_then_and_no_longer() {
    let locks = Locker::new(odd(Memory::new(), ShortLeases));
    let lock = locks.lock("n").unwrap().ttl(secs(100)).renewal(RenewalPolicy::off());
    let started = Moment::now();
    let guard = lock.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    let held = Moment::now().saturating_since(started);
    assert!((secs(98)..=secs(99) + millis(2)).contains(&held), "{held:?}");

    // Also where the lease is a small part of the ttl.
    let long = locks.lock("m").unwrap().ttl(secs(24 * 3600)).acquire().await.unwrap();
    sleep(secs(3600)).await;
    assert!(long.is_held());

    let started = Moment::now();
    let guard = lock.acquire().await.unwrap();
    guard.extend(secs(200)).await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    let held = Moment::now().saturating_since(started);
    assert!((secs(197)..=secs(198) + millis(2)).contains(&held), "{held:?}");
}

/// A pushed grant has a short lease until it is renewed.
#[derive(Debug)]
struct ShortPushes;
impl Oddity for ShortPushes {
    fn pushed(&self, mut grant: Grant) -> Grant {
        grant.lease = Lease::For(secs(3));
        grant
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_to_be_detached_has_its_whole_lease_from_the_start() {
    let locks = Locker::new(odd(Memory::new(), ShortPushes));
    let lock = locks.lock("n").unwrap().ttl(secs(100));
    for (lock, is_whole) in [(lock.clone().detachable(), true), (lock.clone(), false)] {
        let holder = locks.lock("n").unwrap().acquire().await.unwrap();
        let name = lock.name().clone();
        let waiting = tokio::spawn(async move { lock.acquire().await });
        while locks.inspect(&name).await.unwrap().waiting != Some(1) {
            tokio::task::yield_now().await;
        }
        holder.release().await.unwrap();
        let guard = waiting.await.unwrap().unwrap();
        let left = guard.valid_for().unwrap();
        assert_eq!(left > secs(3), is_whole, "{left:?}");
        // In time, it has it in either case.
        sleep(secs(50)).await;
        guard.release().await.unwrap();
    }
}

#[derive(Debug)]
struct GrantsTheDead;
impl Oddity for GrantsTheDead {
    fn grant(&self, mut grant: Grant) -> Grant {
        grant.lease = Lease::For(Duration::ZERO);
        grant
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_over_when_it_arrives_is_given_back() {
    let inner = Memory::new();
    let locks = Locker::new(odd(inner.clone(), GrantsTheDead));
    let error = locks.lock("n").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    locks.close().await.unwrap();
    assert!(inner.is_empty());
}

#[derive(Debug)]
struct Spins;
impl Oddity for Spins {
    fn spins(&self) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_wakes_for_nothing_does_not_become_a_storm() {
    let spinning = odd(Memory::new(), Spins);
    let counted = FaultInjector::new(Arc::new(spinning), |_| Injection::None);
    let locks = Locker::new(counted.clone());
    let holder = locks.lock("n").unwrap().acquire().await.unwrap();
    let before = counted.calls();
    let waited = locks.lock("n").unwrap().try_acquire_for(secs(60)).await.unwrap();
    assert!(waited.is_none());
    let per_second = (counted.calls() - before) / 60;
    assert!(per_second < 30, "{per_second} calls a second while waiting");
    drop(holder);
}

#[derive(Debug)]
struct AnswersTooFew;
impl Oddity for AnswersTooFew {
    fn answers(&self, mut answers: Vec<Result<Renewal, Fault>>) -> Vec<Result<Renewal, Fault>> {
        answers.pop();
        answers
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_a_missing_answer_is_no_answer_at_all() {
    let locks = Locker::new(odd(Memory::new(), AnswersTooFew));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::BackendBroken);
    assert_eq!(guard.lost().await, Loss::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_verb_ends_in_a_release() {
    for verb in [Verb::TryAcquire, Verb::Wait, Verb::Renew, Verb::Release] {
        let inner = Memory::new();
        let armed = Arc::new(AtomicBool::new(true));
        let trigger = Arc::clone(&armed);
        let faulty = FaultInjector::new(Arc::new(inner.clone()), move |call| {
            if call.verb == verb && trigger.swap(false, Ordering::SeqCst) {
                Injection::Panic
            } else {
                Injection::None
            }
        });
        let locks = Locker::new(faulty);
        let lock = locks.lock("n").unwrap().ttl(secs(30));
        match verb {
            Verb::TryAcquire => {
                assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::BackendBroken);
            }
            Verb::Wait => {
                let holder = Locker::new(inner.clone()).lock("n").unwrap().acquire().await.unwrap();
                let waiter = tokio::spawn(async move { lock.acquire().await });
                sleep(secs(1)).await;
                holder.release().await.unwrap();
                drop(waiter.await.unwrap().unwrap());
            }
            Verb::WaitLost => unreachable!("not in the list"),
            Verb::Renew => {
                let guard = lock.acquire().await.unwrap();
                assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::BackendBroken);
                sleep(secs(300)).await;
                guard.release().await.unwrap();
            }
            Verb::Release => {
                let guard = lock.acquire().await.unwrap();
                assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::BackendBroken);
            }
        }
        assert!(!armed.load(Ordering::SeqCst), "{verb:?} was never called");
        locks.close().await.unwrap();
        assert!(inner.is_empty(), "a panic in {verb:?} left something behind");
    }
}

#[tokio::test(start_paused = true)]
async fn one_silent_claim_does_not_take_its_batch_with_it() {
    // Whenever the silent one is part of a batch, the whole batch hangs.
    let faulty = {
        let inner: Arc<dyn Backend> = Arc::new(Memory::new());
        Layered::new(inner, HangsWith { silent: LockName::new("n3").unwrap() })
    };
    let locks = Locker::new(faulty);
    let mut guards = Vec::new();
    for i in 0..8 {
        guards.push(locks.lock(&*format!("n{i}")).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    sleep(secs(600)).await;
    for (i, guard) in guards.iter().enumerate() {
        assert_eq!(guard.is_held(), i != 3, "lock {i}");
    }
}

#[derive(Debug)]
struct HangsWith {
    silent: LockName,
}

#[async_trait]
impl Layer for HangsWith {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if claims.iter().any(|claim| claim.name == self.silent) {
            std::future::pending::<()>().await;
        }
        inner.renew(claims).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_made_again_before_the_lease_ends() {
    let faults = [
        Injection::Refuse(FaultKind::Unavailable),
        Injection::LoseReply,
        Injection::HangAfter,
        Injection::Hang,
        Injection::Panic,
    ];
    for fault in faults {
        let renewals = AtomicU32::new(0);
        let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
            // Every other one: each lease is owed to a second attempt.
            Verb::Renew if renewals.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => fault,
            _ => Injection::None,
        });
        let locks = Locker::new(faulty);
        let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
        sleep(secs(600)).await;
        assert_eq!(guard.loss(), None, "{fault:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_failed_is_made_again_within_a_quarter_of_the_interval() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&calls);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew => {
            noted.lock().unwrap().push(Moment::now());
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let _guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(25)).await;
    let calls = calls.lock().unwrap();
    let pauses: Vec<_> = calls.windows(2).map(|two| two[1].saturating_since(two[0])).collect();
    assert!(pauses.len() >= 3, "{pauses:?}");
    // An interval is a third of the lease, at most.
    assert!(pauses.iter().all(|&pause| pause <= millis(2_510)), "{pauses:?}");
    assert!(pauses.iter().all(|&pause| pause >= secs(1)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn waiters_outlast_an_outage_and_newcomers_fail_at_once() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&down);
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::TryAcquire | Verb::Wait if asked.load(Ordering::SeqCst) => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty.clone()).outage_timeout(secs(120)).build();
    let holder = Locker::new(memory.clone()).lock("n").unwrap().acquire().await.unwrap();
    let patient = locks.lock("n").unwrap();
    let patient = tokio::spawn(async move { patient.acquire().await });
    // It polls once in a lease, so by then it knows.
    let bounded = locks.lock("n").unwrap().ttl(secs(10));
    let bounded = tokio::spawn(async move { bounded.try_acquire_for(secs(30)).await });
    sleep(secs(1)).await;
    down.store(true, Ordering::SeqCst);
    let calls = faulty.calls();

    let newcomer = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(newcomer.kind(), ErrorKind::Unavailable);
    sleep(secs(59)).await;
    let told = bounded.await.unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Unavailable, "an outage is not contention");
    assert!(faulty.calls() - calls < 300, "{} calls in a minute of outage", faulty.calls() - calls);

    down.store(false, Ordering::SeqCst);
    holder.release().await.unwrap();
    let healed = Moment::now();
    let guard = patient.await.unwrap().unwrap();
    assert!(Moment::now().saturating_since(healed) < secs(2));

    down.store(true, Ordering::SeqCst);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_outage_timeout_ends_a_wait() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&down);
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::TryAcquire if asked.load(Ordering::SeqCst) => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).outage_timeout(secs(60)).build();
    let _holder = Locker::new(memory).lock("n").unwrap().acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(secs(10));
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    down.store(true, Ordering::SeqCst);
    let started = Moment::now();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    let waited = Moment::now().saturating_since(started);
    assert!((secs(55)..secs(90)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handed_over_lock_is_renewed_before_its_claim_lease_ends() {
    // The memory backend hands over with a lease of three seconds only.
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    for policy in [RenewalPolicy::default(), RenewalPolicy::off()] {
        let holder = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
        let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy.clone());
        let waiter = tokio::spawn(async move { lock.acquire().await });
        sleep(secs(1)).await;
        holder.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        sleep(secs(20)).await;
        assert!(guard.is_held(), "with {policy:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_never_answered_bounds_how_long_the_lock_can_stay() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(2)).build();
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    let started = Moment::now();
    let error = guard.release().await.unwrap_err();
    assert!(Moment::now().saturating_since(started) <= secs(4));
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let bound = error.free_within().unwrap();
    assert!((secs(20)..=secs(30)).contains(&bound), "{bound:?}");
    sleep(bound).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_on_the_wire_does_not_outlive_the_release() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Renew => Injection::DelayRequest(millis(500)),
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().ttl(secs(3)).acquire().await.unwrap();
    sleep(millis(1100)).await;
    // A renewal is under way, half a second from the server.
    guard.release().await.unwrap();
    let next = locks.lock("n").unwrap().ttl(secs(3)).try_acquire().await.unwrap().unwrap();
    sleep(secs(2)).await;
    assert!(next.is_held());
}

/// Records when renewals are asked for, and how many are under way at once. Each takes a
/// millisecond, but those that are `silent` have no end.
#[derive(Debug, Default)]
struct RecordsRenewals {
    silent: bool,
    asked: Mutex<Vec<Moment>>,
    under_way: AtomicU32,
    most: AtomicU32,
}

#[async_trait]
impl Layer for RecordsRenewals {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.asked.lock().unwrap().push(Moment::now());
        self.most.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        sleep(if self.silent { secs(3600) } else { millis(1) }).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        inner.renew(claims).await
    }
}

/// Acquires a thousand locks at once and returns the renewals of the first round.
async fn a_thousand_renewals(silent: bool) -> Arc<RecordsRenewals> {
    let renewals = Arc::new(RecordsRenewals { silent, ..RecordsRenewals::default() });
    let layered = Layered::<RecordsRenewals>::new(Arc::new(Memory::new()), Arc::clone(&renewals));
    let locks = Locker::new(layered);
    let mut guards = Vec::new();
    for i in 0..1000 {
        guards.push(locks.lock(&*i.to_string()).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    while renewals.asked.lock().unwrap().len() < 1000_usize.div_ceil(64) {
        sleep(millis(1)).await;
    }
    renewals
}

#[tokio::test(start_paused = true)]
async fn batches_of_renewals_follow_one_another() {
    let renewals = a_thousand_renewals(false).await;
    assert!(renewals.most.load(Ordering::SeqCst) <= 2, "{renewals:?}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_an_answer_delays_no_other() {
    let renewals = a_thousand_renewals(true).await;
    let asked = renewals.asked.lock().unwrap();
    let took = asked.last().unwrap().saturating_since(asked[0]);
    assert!(took <= millis(100), "the batches began within {took:?}");
}

/// A server that is 20 ms away.
#[derive(Debug)]
struct Distant;

#[async_trait]
impl Layer for Distant {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        sleep(millis(20)).await;
        inner.renew(claims).await
    }
}

/// Acquires this many locks for `ttl`, and then a hundred for `short`, one after another. Returns
/// how many of all are lost in the time of several renewals.
async fn lost_beside(count: usize, ttl: Duration, short: Duration) -> usize {
    let locks = Locker::new(Layered::<Distant>::new(Arc::new(Memory::new()), Distant));
    let mut guards = Vec::new();
    for i in 0..count {
        guards.push(locks.lock(&*i.to_string()).unwrap().ttl(ttl).acquire().await.unwrap());
    }
    for i in 0..100 {
        let lock = locks.lock(&*format!("short{i}")).unwrap();
        guards.push(lock.ttl(short).acquire().await.unwrap());
        sleep(millis(7)).await;
    }
    sleep(ttl * 2).await;
    guards.iter().filter(|guard| !guard.is_held()).count()
}

#[tokio::test(start_paused = true)]
async fn locks_with_short_leases_are_renewed_before_others() {
    assert_eq!(lost_beside(10_000, secs(30), millis(300)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn more_batches_than_a_lease_has_time_for_start_together() {
    assert_eq!(lost_beside(15_000, millis(600), millis(600)).await, 0);
}

#[tokio::test(start_paused = true)]
async fn locks_that_are_released_between_batches_stay_free() {
    let memory = Memory::new();
    let renewals = Arc::<RecordsRenewals>::default();
    let inner = Arc::new(memory.clone());
    let locks = Locker::new(Layered::<RecordsRenewals>::new(inner, Arc::clone(&renewals)));
    let mut guards = Vec::new();
    for i in 0..1000 {
        guards.push(locks.lock(&*i.to_string()).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    while renewals.asked.lock().unwrap().is_empty() {
        sleep(millis(1)).await;
    }
    // In reverse order, because a release waits for a renewal that is under way.
    for guard in guards.into_iter().rev() {
        guard.release().await.unwrap();
    }
    let asked = renewals.asked.lock().unwrap().len();
    assert!(asked < 1000_usize.div_ceil(64), "all {asked} batches had begun");
    sleep(secs(60)).await;
    assert!(memory.is_empty());
    assert!(renewals.asked.lock().unwrap().len() <= asked + 1, "released locks are renewed");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_locks_are_renewed_in_batches() {
    let renewals = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&renewals);
    let counted = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        counter.fetch_add(u32::from(call.verb == Verb::Renew), Ordering::SeqCst);
        Injection::None
    });
    let locks = Locker::new(counted);
    let mut guards = Vec::new();
    for i in 0..10_000 {
        guards.push(locks.lock(&*i.to_string()).unwrap().ttl(secs(30)).acquire().await.unwrap());
        // One after another: batches must come about by themselves.
        if i % 7 == 0 {
            sleep(millis(1)).await;
        }
    }
    let before = renewals.load(Ordering::SeqCst);
    sleep(secs(100)).await;
    let renewals = renewals.load(Ordering::SeqCst) - before;
    assert!(guards.iter().all(LockGuard::is_held));
    assert!(renewals < 10_000 / 64 * 14, "{renewals} calls for ten rounds of 10 000 renewals");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lands_after_the_release_does_not_strand_the_lock() {
    let attempts = AtomicU32::new(0);
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::Wait => Injection::Hang,
        Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 1 => {
            Injection::LandLate(secs(20))
        }
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let holder = Locker::new(memory.clone()).lock("n").unwrap().acquire().await.unwrap();
    // Its second attempt stays in a socket, its third one wins.
    let lock = locks.lock("n").unwrap().ttl(secs(5));
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    holder.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    sleep(secs(30)).await;
    assert!(memory.is_empty(), "the late attempt took the lock for nobody");
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_grant_that_came_too_late_does_not_end_the_next_one() {
    let memory = Memory::new();
    let (attempts, releases) = (AtomicU32::new(0), AtomicU32::new(0));
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 0 => {
            Injection::DelayReply(secs(15))
        }
        Verb::Release if releases.fetch_add(1, Ordering::SeqCst) == 0 => {
            Injection::LandLate(secs(1))
        }
        _ => Injection::None,
    });
    let locks = Locker::builder(faulty).timeout(secs(30)).build();
    let guard = locks.lock("n").unwrap().ttl(secs(10)).acquire().await.unwrap();
    sleep(secs(2)).await;
    let stranger = Locker::new(memory).lock("n").unwrap();
    assert!(stranger.try_acquire().await.unwrap().is_none(), "taken from a holder");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_verification_does_not_stop_the_renewals() {
    let faulty = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Renew => Injection::DelayReply(millis(1)),
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    let mut verifying = Box::pin(guard.verify());
    assert!(tokio::time::timeout(Duration::ZERO, &mut verifying).await.is_err());
    sleep(secs(15)).await;
    drop(verifying);
    sleep(secs(600)).await;
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn contradictory_policies_are_refused() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap();
    let endless = lock.clone().min_hold(Duration::MAX).acquire().await;
    assert_eq!(endless.unwrap_err().kind(), ErrorKind::Invalid);
    let nothing = lock.renewal(RenewalPolicy::default().max_hold(Duration::ZERO)).acquire().await;
    assert_eq!(nothing.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_the_loss_cut_short_is_let_go_for_as_long_as_it_may_last() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&down);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Renew => Injection::HangAfter,
        Verb::Release if asked.load(Ordering::SeqCst) => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    });
    // Calls may last longer than the lease: the loss comes first, and drops the renewal.
    let locks = Locker::builder(faulty).timeout(secs(60)).build();
    let lock = locks.lock("n").unwrap().ttl(secs(30)).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    down.store(true, Ordering::SeqCst);
    assert_eq!(guard.extend(secs(3600)).await.unwrap_err().kind(), ErrorKind::Lost);
    sleep(secs(300)).await;
    down.store(false, Ordering::SeqCst);
    sleep(secs(60)).await;
    let free = locks.lock("n").unwrap().try_acquire().await.unwrap();
    assert!(free.is_some(), "a minute after the outage nobody has let the lock go");
}

/// Leases live in a session, whose end moves.
#[derive(Debug)]
struct InASession(LeaseLimit);
impl Oddity for InASession {
    fn grant(&self, grant: Grant) -> Grant {
        grant.with_limit(self.0.clone())
    }
}

/// A lock for ten seconds, which is not renewed, in a session for a minute.
async fn in_a_session() -> (Memory, LeaseLimit, LockGuard) {
    let limit = LeaseLimit::new(Moment::now() + secs(60));
    let inner = Memory::new().with_loss_push();
    let locks = Locker::new(odd(inner.clone(), InASession(limit.clone())));
    let lock = locks.lock("n").unwrap().ttl(secs(10)).renewal(RenewalPolicy::off());
    (inner, limit, lock.acquire().await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_moved_back_with_the_session() {
    let (_, limit, guard) = in_a_session().await;
    let before = guard.deadline().unwrap();
    let lost = tokio::spawn({
        let signal = guard.loss_signal();
        async move { (signal.lost().await, Moment::now()) }
    });
    sleep(secs(1)).await;
    let earlier = Moment::now() + secs(2);
    assert!(limit.move_to(earlier));
    assert_eq!(guard.deadline(), Some(earlier), "no task has to run for that");
    assert_eq!(guard.valid_for(), Some(secs(2)));
    let (loss, at) = lost.await.unwrap();
    assert_eq!(loss, Loss::Expired);
    assert!(at >= earlier && at < earlier + millis(10), "{at:?} and not at {before:?}");
    assert!(!limit.move_to(before), "it has passed");
    assert_eq!((guard.is_held(), guard.deadline()), (false, Some(earlier)));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_lives_on_gives_the_deadline_back_and_no_more() {
    let (_, limit, guard) = in_a_session().await;
    let before = guard.deadline();
    assert!(limit.move_to(Moment::now() + secs(2)));
    sleep(secs(1)).await;
    assert!(limit.move_to(Moment::now() + secs(120)));
    assert_eq!(guard.deadline(), before);
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_end_was_near_at_the_grant_gives_the_lease_as_it_lives_on() {
    let limit = LeaseLimit::new(Moment::now() + secs(2));
    let inner = Memory::new().with_loss_push();
    let locks = Locker::new(odd(inner, InASession(limit.clone())));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    assert_eq!(guard.valid_for(), Some(secs(2)));
    sleep(secs(1)).await;
    assert!(limit.move_to(Moment::now() + secs(120)));
    // Of the lease, less a hundredth.
    assert_eq!(guard.valid_for(), Some(millis(28_700)));
    sleep(secs(5)).await;
    assert!(guard.is_held(), "before its first renewal is due");
}

/// Also if no task waits for the loss.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_with_its_session_is_let_go_by_then() {
    for held_for in [millis(1), secs(1)] {
        let (inner, limit, guard) = in_a_session().await;
        sleep(held_for).await;
        assert!(limit.move_to(Moment::now() + secs(2)));
        sleep(secs(2) + millis(500)).await;
        assert!(inner.is_empty(), "held for {held_for:?} before");
        assert!(!guard.is_held());
    }
}
