//! Promises of core with odd backends and odd callers.
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
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

#[derive(Debug)]
struct Caps {
    inner: Arc<dyn Backend>,
    caps: fn(&mut Capabilities),
    renewed: fn(Grant) -> Grant,
    granted: fn(Grant) -> Grant,
}
#[async_trait]
impl Layer for Caps {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut caps = inner.capabilities();
        (self.caps)(&mut caps);
        caps
    }

    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(claim).await? {
            Attempt::Acquired(g) => Attempt::Acquired((self.granted)(g)),
            c => c,
        })
    }

    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        if self.capabilities(inner).order == Order::PerProcess {
            sleep(millis(20)).await;
            return Ok(Wake::Retry);
        }
        inner.wait(claim).await
    }

    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        inner
            .renew(claims)
            .await
            .into_iter()
            .map(|a| {
                a.map(|r| match r {
                    Renewal::Held(g) => Renewal::Held((self.renewed)(g)),
                    n => n,
                })
            })
            .collect()
    }

    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let can_keep = self.capabilities(inner).minimum_hold == Support::Present;
        assert!(can_keep || how.keep.is_none(), "it is asked for what it does not declare");
        inner.release(claim, how).await
    }
}
/// Puts changes around the backend that they name.
fn changed(caps: Caps) -> Layered<Caps> {
    Layered::new(Arc::clone(&caps.inner), caps)
}

fn with(inner: impl Backend, caps: fn(&mut Capabilities)) -> Caps {
    Caps { inner: Arc::new(inner), caps, renewed: |g| g, granted: |g| g }
}

/// The names of spans, events and their fields.
type Seen = Vec<(String, Vec<String>)>;

struct Fields(Arc<Mutex<Seen>>);
impl tracing::Subscriber for Fields {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, a: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let names = a.metadata().fields().iter().map(|f| f.name().to_owned()).collect();
        self.0.lock().unwrap().push((a.metadata().name().to_owned(), names));
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, e: &tracing::Event<'_>) {
        let names = e.metadata().fields().iter().map(|f| f.name().to_owned()).collect();
        self.0.lock().unwrap().push((format!("event {}", e.metadata().level()), names));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_drops_its_ticket() {
    static STATE: Mutex<Option<std::sync::Weak<u32>>> = Mutex::new(None);
    let locks = Locker::new(changed(Caps {
        granted: |g| {
            let state = Arc::new(7_u32);
            *STATE.lock().unwrap() = Some(Arc::downgrade(&state));
            g.with_ticket(Ticket::new(state))
        },
        ..with(Memory::new(), |_| {})
    }));
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    let signal = guard.loss_signal();
    let _detached = guard.detach().await.unwrap();
    let left = STATE.lock().unwrap().as_ref().unwrap().strong_count();
    assert_eq!(left, 0, "a loss signal keeps what the backend keeps with the grant");
    drop(signal);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_finds_its_lock_gone_leaves_no_ticket() {
    static STATE: Mutex<Option<std::sync::Weak<u32>>> = Mutex::new(None);
    let memory = Memory::new();
    let locks = Locker::new(changed(Caps {
        granted: |g| {
            let state = Arc::new(7_u32);
            *STATE.lock().unwrap() = Some(Arc::downgrade(&state));
            g.with_ticket(Ticket::new(state))
        },
        ..with(memory.clone(), |_| {})
    }));
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    memory.evict(guard.name());
    assert_eq!(guard.lost().await, Loss::NotHeld);
    sleep(secs(1)).await;
    let left = STATE.lock().unwrap().as_ref().unwrap().strong_count();
    assert_eq!(left, 0, "a guard keeps what the backend keeps with a grant that is lost");
}

#[tokio::test(start_paused = true)]
async fn a_guard_shows_its_ticket_and_says_what_it_is() {
    let locks = Locker::new(changed(Caps {
        granted: |g| g.with_ticket(Ticket::new(7_u32)),
        ..with(Memory::new(), |_| {})
    }));
    let policy = RenewalPolicy::off().max_hold(secs(9)).only_while(|| true);
    let shown = format!("{policy:?}");
    assert!(shown.contains("off: true") && shown.contains("9s"), "{shown}");
    assert!(shown.contains("probe: true"), "{shown}");
    let guard = locks.lock("orders/42").unwrap().renewal(policy).acquire().await.unwrap();
    let ticket = guard.ticket().await.expect("it was granted with one");
    assert_eq!(ticket.get::<u32>(), Some(&7));
    let signal = guard.loss_signal();
    for (shown, what) in
        [(format!("{guard:?}"), "LockGuard"), (format!("{signal:?}"), "LossSignal")]
    {
        assert!(shown.starts_with(what) && shown.contains("orders/42"), "{shown}");
        assert!(!shown.contains(&guard.owner().expose()), "{shown}");
    }
    let losses = [Loss::Expired, Loss::NotHeld, Loss::HoldLimit, Loss::RuntimeGone, Loss::Released];
    let mut said: Vec<_> = losses.iter().map(ToString::to_string).collect();
    assert!(said.iter().all(|words| !words.is_empty()), "{said:?}");
    said.sort_unstable();
    said.dedup();
    assert_eq!(said.len(), losses.len(), "{said:?}");
}

#[tokio::test(start_paused = true)]
async fn a_minimum_hold_is_kept_here_where_the_backend_cannot() {
    let memory = Memory::new();
    let locks = Locker::new(changed(with(memory, |caps| caps.minimum_hold = Support::Absent)));
    let began = Moment::now();
    let lock = locks.lock("n").unwrap().ttl(secs(5)).min_hold(secs(20));
    let guard = lock.acquire().await.unwrap();
    tokio::join!(
        async { guard.release().await.unwrap() },
        // No claim gets the lock while the release is held back; the waiter gets it right after.
        async {
            sleep(secs(19)).await;
            assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
            let next = locks.lock("n").unwrap().acquire().await.unwrap();
            let waited = Moment::now().saturating_since(began);
            assert!((secs(20)..secs(21)).contains(&waited), "{waited:?}");
            drop(next);
        }
    );
}

#[tokio::test(start_paused = true)]
async fn without_leases_the_ttl_is_the_period_of_checks() {
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        counted.fetch_add(u32::from(call.verb == Verb::Renew), Ordering::SeqCst);
        Injection::None
    });
    fn for_ever(mut grant: Grant) -> Grant {
        grant.lease = Lease::WhileProcessLives;
        grant
    }
    let caps = |caps: &mut Capabilities| caps.takeover = Takeover::AtOnce;
    let locks =
        Locker::new(changed(Caps { granted: for_ever, renewed: for_ever, ..with(faulty, caps) }));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    sleep(secs(300)).await;
    assert!(guard.is_held());
    // Each third of it, drawn a little early at times.
    let looks = looks.load(Ordering::SeqCst);
    assert!((28..=45).contains(&looks), "{looks} looks in ten times the ttl");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_that_met_a_holder_ends_in_time_with_a_request_under_way() {
    for (wait, is_contention) in [(secs(2), true), (secs(4), false)] {
        let attempts = AtomicU32::new(0);
        let memory = Memory::new();
        let silent = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
            // The first one finds the lock contended.
            Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) > 0 => Injection::Hang,
            _ => Injection::None,
        });
        let _held = Locker::new(memory).lock("n").unwrap().acquire().await.unwrap();
        let locks = Locker::new(changed(with(silent, |caps| caps.order = Order::PerProcess)));
        let began = Moment::now();
        let got = locks.lock("n").unwrap().try_acquire_for(wait).await;
        let waited = Moment::now().saturating_since(began);
        assert!((wait..wait + millis(10)).contains(&waited), "{waited:?} instead of {wait:?}");
        // Half a timeout of silence is a fault.
        match got {
            Ok(None) => assert!(is_contention),
            Err(error) => assert!(!is_contention && error.kind() == ErrorKind::Timeout, "{error}"),
            Ok(Some(guard)) => panic!("{guard:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ends_before_the_longest_hold_has_expired() {
    let down = FaultInjector::new(Arc::new(Memory::new()), |call| match call.verb {
        Verb::Renew => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    });
    let locks = Locker::new(down);
    let policy = RenewalPolicy::default().max_hold(secs(3600));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).renewal(policy).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
}

#[tokio::test(start_paused = true)]
async fn long_leases_are_checked_once_a_day() {
    let looks = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&looks);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| {
        counted.fetch_add(u32::from(call.verb == Verb::Renew), Ordering::SeqCst);
        Injection::None
    });
    let day = secs(24 * 3600);
    let locks = Locker::builder(faulty).max_ttl(day * 12).build();
    let _guard = locks.lock("n").unwrap().ttl(day * 12).acquire().await.unwrap();
    sleep(day * 10).await;
    let looks = looks.load(Ordering::SeqCst);
    assert!((9..=15).contains(&looks), "{looks} looks in ten days");
}

#[tokio::test(start_paused = true)]
async fn a_grant_without_a_token_is_one_where_none_is_declared() {
    fn without_token(mut grant: Grant) -> Grant {
        grant.token = None;
        grant
    }
    for (declared, is_good) in [(Fencing::None, true), (Fencing::Seeded, false)] {
        let caps = match declared {
            Fencing::None => |caps: &mut Capabilities| caps.fencing = Fencing::None,
            _ => |_: &mut Capabilities| {},
        };
        let backend = changed(Caps { granted: without_token, ..with(Memory::new(), caps) });
        match Locker::new(backend).lock("n").unwrap().acquire().await {
            Ok(guard) => assert!(is_good && guard.fencing_token().is_none()),
            Err(error) => assert!(!is_good && error.kind() == ErrorKind::BackendBroken, "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_is_repeated_soon_at_first_and_then_less_often() {
    let releases = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&releases);
    let refuses = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Release => {
            noted.lock().unwrap().push(Moment::now());
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::new(refuses);
    drop(locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap());
    let dropped = Moment::now();
    sleep(secs(60)).await;
    let releases = releases.lock().unwrap();
    let soon = releases.iter().filter(|at| at.saturating_since(dropped) <= millis(100)).count();
    assert!(soon >= 3, "{soon} in the first tenth of a second");
    // In the end every three seconds at the latest, which is a tenth of the lease.
    assert!((16..=60).contains(&releases.len()), "{} until the lease was over", releases.len());
}

#[tokio::test(start_paused = true)]
async fn the_next_local_waiter_does_not_wait_for_repeated_releases() {
    let memory = Memory::new();
    let refuses = FaultInjector::new(Arc::new(memory.clone()), |call| match call.verb {
        Verb::Release => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    });
    let locks = Locker::new(changed(with(refuses, |caps| caps.order = Order::PerProcess)));
    let first = locks.lock("n").unwrap().ttl(secs(300)).acquire().await.unwrap();
    let signal = first.loss_signal();
    let lock = locks.lock("n").unwrap().ttl(secs(300));
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(secs(1)).await;
    drop(first);
    // Its release has been refused, and an operator removes the lock.
    sleep(millis(5)).await;
    memory.evict(&LockName::new("n").unwrap());
    let next = tokio::time::timeout(secs(30), next).await;
    assert!(next.is_ok(), "it waits for the one before it, which still tries to let go");
    drop(signal);
}

#[test]
fn lost_moves_between_runtimes() {
    let build = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    };
    let (a, b) = (build(), build());
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap().ttl(millis(300)).renewal(RenewalPolicy::off());
    let guard = a.block_on(lock.acquire()).unwrap();
    let signal = guard.loss_signal();
    let mut lost = Box::pin(async move { signal.lost().await });
    a.block_on(async { assert!(tokio::time::timeout(millis(10), &mut lost).await.is_err()) });
    a.shutdown_timeout(secs(5));
    assert_eq!(b.block_on(lost), Loss::Expired);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_guard_has_its_token() {
    let locks = Locker::new(changed(Caps {
        renewed: |mut g| {
            g.token = None;
            g
        },
        ..with(Memory::new(), |_| {})
    }));
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    assert!(detached.token.is_some());
    // Its owner id alone is known elsewhere.
    let passed_on = Detached::new(detached.name.clone(), detached.owner, detached.ttl);
    let error = locks.adopt(passed_on.clone()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "fencing is declared, the token is unknown");
    locks.renew_detached(&passed_on).await.expect("it stays detached");
    let adopted = locks.adopt(detached.clone()).await.unwrap();
    assert_eq!(adopted.fencing_token(), detached.token);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_guard_with_a_lower_token_is_refused() {
    let locks = Locker::new(changed(Caps {
        renewed: |mut g| {
            g.token = FencingToken::from_backend(1);
            g
        },
        ..with(Memory::new(), |_| {})
    }));
    let guard = locks.lock("n").unwrap().detachable().acquire().await.unwrap();
    let detached = guard.detach().await.unwrap();
    let adopted = locks.adopt(detached).await;
    assert_eq!(adopted.map(drop).map_err(|e| e.kind()), Err(ErrorKind::FenceRegressed));
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_do_not_overflow() {
    let locks = Locker::builder(changed(with(Memory::new(), |c| c.ttl_max = Duration::MAX)))
        .max_ttl(Duration::MAX)
        .timeout(Duration::MAX)
        .outage_timeout(Duration::MAX)
        .build();
    let lock = locks.lock("n").unwrap().ttl(Duration::MAX).min_hold(Duration::MAX);
    let guard = lock.acquire().await.unwrap();
    guard.extend(Duration::MAX).await.unwrap();
    let waited = lock.try_acquire_for(secs(10)).await;
    assert!(waited.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn silence_at_the_end_of_a_wait_is_not_contention() {
    let down = Arc::new(AtomicBool::new(false));
    let asked = down.clone();
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |c| match c.verb {
        Verb::Wait => Injection::Hang,
        Verb::TryAcquire if asked.load(Ordering::SeqCst) => Injection::Hang,
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    // A holder that has crashed: its lease of a second is never renewed.
    let crashed = Claim::new("n".try_into().unwrap(), OwnerId::mint(), secs(1));
    memory.try_acquire(&crashed).await.unwrap();
    let lock = locks.lock("n").unwrap();
    let waiter = tokio::spawn(async move { lock.try_acquire_for(secs(5)).await });
    sleep(millis(100)).await;
    down.store(true, Ordering::SeqCst);
    let answer = waiter.await.unwrap();
    assert!(answer.is_err(), "free and silent for four of five seconds: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_told_less_takes_nothing_back() {
    let mut told = with(Memory::new(), |_| {});
    told.renewed = |mut grant| {
        // The ttl of the renewal, in spite of the rest of the extension.
        if grant.lease != Lease::For(secs(600)) {
            grant.lease = Lease::For(secs(30));
        }
        grant
    };
    let locks = Locker::new(changed(told));
    let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
    guard.extend(secs(600)).await.unwrap();
    let extended = Moment::now();
    // A third of it, after which the next renewal comes, and then some.
    sleep(secs(250)).await;
    let promised = secs(590).saturating_sub(Moment::now().saturating_since(extended));
    let valid_for = guard.valid_for();
    assert!(valid_for.is_some_and(|left| left >= promised), "{valid_for:?} of {promised:?}");
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_renewed_after_the_release() {
    async fn verbs_until(released: Duration) -> Vec<(Verb, Duration)> {
        let (began, log) = (Moment::now(), Arc::new(Mutex::new(Vec::new())));
        let noted = log.clone();
        let locks = Locker::new(FaultInjector::new(Arc::new(Memory::new()), move |c| {
            noted.lock().unwrap().push((c.verb, Moment::now().saturating_since(began)));
            Injection::None
        }));
        let guard = locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap();
        // A task, as the wheel is: which of them is first at one and the same moment is a matter of
        // turns.
        let release = tokio::spawn(async move {
            clock::sleep_until(began + released).await;
            guard.release().await.unwrap();
        });
        release.await.unwrap();
        sleep(secs(15)).await;
        log.lock().unwrap().clone()
    }

    let renewed =
        verbs_until(secs(12)).await.iter().find(|(verb, _)| *verb == Verb::Renew).unwrap().1;
    for early in 0..5 {
        let log = verbs_until((renewed + millis(2)).saturating_sub(millis(early))).await;
        assert_eq!(log.last().unwrap().0, Verb::Release, "{log:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_eager_panic_in_a_verb_is_caught() {
    // `async_trait` makes a boxed future; one written by hand may do its first part at once.
    #[derive(Debug)]
    struct Eager(Memory, AtomicU32);
    impl Backend for Eager {
        fn wait_lost<'a, 'c, 'b>(
            &'a self,
            claim: &'c Claim,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            Self: 'b,
        {
            self.0.wait_lost(claim)
        }
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
        fn identity<'a, 'b>(
            &'a self,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Option<Identity>, Fault>> + Send + 'b>>
        where
            'a: 'b,
            Self: 'b,
        {
            self.0.identity()
        }
        fn try_acquire<'a, 'c, 'b>(
            &'a self,
            claim: &'c Claim,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Attempt, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            Self: 'b,
        {
            self.0.try_acquire(claim)
        }
        fn wait<'a, 'c, 'b>(
            &'a self,
            claim: &'c Claim,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Wake, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            Self: 'b,
        {
            self.0.wait(claim)
        }
        fn renew<'a, 'c, 'd, 'b>(
            &'a self,
            claims: &'c [&'d Claim],
        ) -> std::pin::Pin<Box<dyn Future<Output = Vec<Result<Renewal, Fault>>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            'd: 'b,
            Self: 'b,
        {
            self.0.renew(claims)
        }
        fn release<'a, 'c, 'b>(
            &'a self,
            claim: &'c Claim,
            how: ReleaseMode,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Release, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            Self: 'b,
        {
            if self.1.fetch_add(1, Ordering::SeqCst) == 0 {
                panic!("at once");
            }
            self.0.release(claim, how)
        }
        fn inspect<'a, 'c, 'b>(
            &'a self,
            name: &'c LockName,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<LockState, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            Self: 'b,
        {
            self.0.inspect(name)
        }
        fn list<'a, 'c, 'd, 'b>(
            &'a self,
            p: &'c str,
            a: Option<&'d LockName>,
            l: usize,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<Vec<Listed>, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            'd: 'b,
            Self: 'b,
        {
            self.0.list(p, a, l)
        }
        fn break_lock<'a, 'c, 'd, 'b>(
            &'a self,
            n: &'c LockName,
            e: &'d OwnerId,
        ) -> std::pin::Pin<Box<dyn Future<Output = Result<bool, Fault>> + Send + 'b>>
        where
            'a: 'b,
            'c: 'b,
            'd: 'b,
            Self: 'b,
        {
            self.0.break_lock(n, e)
        }
    }
    let memory = Memory::new();
    let locks = Locker::new(Eager(memory.clone(), AtomicU32::new(0)));
    drop(locks.lock("n").unwrap().ttl(secs(30)).acquire().await.unwrap());
    sleep(secs(2)).await;
    assert!(memory.is_empty(), "a panic in a verb ends in no release");
}

fn listening(seen: &Arc<Mutex<Seen>>) -> tracing::subscriber::DefaultGuard {
    // Everywhere: a place in the code that is first come to where nobody listens counts as one that
    // nobody listens to, for all threads. The first test to come here sees to it for all of them.
    let _ = tracing::subscriber::set_global_default(Fields(Arc::default()));
    tracing::subscriber::set_default(Fields(Arc::clone(seen)))
}

/// Its holder got `Ok` for the release, before the loss was known.
#[tokio::test(start_paused = true)]
async fn a_lock_that_was_left_to_the_next_one_and_had_been_lost_is_a_warning() {
    for is_lost in [false, true] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let _tracing = listening(&seen);
        let memory = Memory::new();
        let locks = Locker::builder(memory.clone()).local_handovers(1).build();
        let lock = locks.lock("n").unwrap();
        let guard = lock.acquire().await.unwrap();
        let mut successor = Box::pin(lock.acquire());
        assert!(successor.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        if is_lost {
            memory.evict(guard.name());
        }
        guard.release().await.unwrap();
        drop(successor);
        sleep(secs(1)).await;
        assert!(memory.is_empty());
        let seen = seen.lock().unwrap();
        let warning = seen.iter().find(|(name, _)| name == "event WARN");
        assert_eq!(warning.is_some(), is_lost, "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_names_the_lock_and_its_holder_once_and_goes_on() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let _tracing = listening(&seen);
    let memory = Memory::new();
    let holder = Locker::builder(memory.clone()).label(Label::new("web-1")).build();
    let guard = holder.lock("n").unwrap().acquire().await.unwrap();
    let lock = Locker::new(memory).lock("n").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let reports = |seen: &Seen| {
        seen.iter().filter(|(name, _)| name == "event INFO").cloned().collect::<Vec<_>>()
    };
    sleep(secs(9)).await;
    assert!(reports(&seen.lock().unwrap()).is_empty());
    sleep(secs(60)).await;
    let all = reports(&seen.lock().unwrap());
    assert_eq!(all.len(), 1, "{all:?}");
    for field in ["lock.name", "lock.backend", "lock.holder", "lock.waiting"] {
        assert!(format!("{all:?}").contains(field), "{field}: {all:?}");
    }
    guard.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap().is_held());
}

/// A backend whose tokens go back by `shift` from when that is set.
fn shifted(shift: &Arc<AtomicU64>) -> Arc<dyn Backend> {
    let by = Arc::clone(shift);
    Arc::new(Altered::new(Memory::new(), |_| ()).grants(move |mut grant| {
        let less = |token: FencingToken| token.backend_number() - by.load(Ordering::SeqCst);
        grant.token = grant.token.map(less).and_then(FencingToken::from_backend);
        grant
    }))
}

#[tokio::test(start_paused = true)]
async fn a_token_below_that_of_an_adopted_lock_is_no_grant() {
    let shift = Arc::default();
    let backend = shifted(&shift);
    let one = Locker::builder_from(Arc::clone(&backend)).build();
    let lock = one.lock("n").unwrap().detachable();
    let detached = lock.acquire().await.unwrap().detach().await.unwrap();
    let other = Locker::builder_from(backend).build();
    // The same one again is the same grant.
    let detached = other.adopt(detached).await.unwrap().detach().await.unwrap();
    other.renew_detached(&detached).await.unwrap();
    other.adopt(detached).await.unwrap().release().await.unwrap();
    // A lower one is a server that has lost its data.
    shift.store(1_000_000, Ordering::SeqCst);
    let next = other.lock("n").unwrap().acquire().await.map(|guard| guard.fencing_token());
    assert_eq!(next.map_err(|error| error.kind()), Err(ErrorKind::FenceRegressed));
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_below_a_token_that_was_seen_is_refused() {
    let shift = Arc::default();
    let backend = shifted(&shift);
    let locks = Locker::builder_from(Arc::clone(&backend)).build();
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    shift.store(1_000_000, Ordering::SeqCst);
    let other = Locker::builder_from(backend).build();
    let lock = other.lock("n").unwrap().detachable();
    let told = lock.acquire().await.unwrap().detach().await.unwrap();
    // Another process was not told the token.
    let detached = Detached::new(told.name, told.owner, told.ttl);
    let error = locks.adopt(detached).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceRegressed);
}
