//! Clocks that are wrong: the server's. By its monotonic one leases end; by its wall clock it only
//! knows when it was started, which counters begin with.

use std::time::Duration;

use lock_conformance::helpers::{claim, contended, eventually, granted, renew, win};
use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Attempt, FaultKind, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, FenceGate, FencingToken, LockGuard, Locker, Loss};
use lock_memcache::Memcached;
use test_servers::{Memcached as Server, MemcachedOptions, Step};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Time that a loaded machine may need.
const SOON: Duration = Duration::from_secs(20);

fn start() -> Server {
    Server::start(MemcachedOptions::new().clocks())
}

async fn client(server: &Server) -> Memcached {
    Memcached::connect(server.url()).await.expect("the server takes us")
}

fn time_of(server: &Server) -> u64 {
    server.stat("time").parse().unwrap()
}

/// Acquires the lock of a backend, which is asked until it answers.
async fn hold(locks: &Memcached, ttl: Duration) -> LockGuard {
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(ttl);
    let end = Moment::now() + SOON;
    loop {
        match tokio::time::timeout(SOON, lock.acquire()).await.expect("it is free") {
            Ok(guard) => return guard,
            Err(error) => assert!(error.is_retryable() && !end.has_passed(), "{error:?}"),
        }
    }
}

#[tokio::test]
async fn a_step_of_the_wall_clock_moves_no_lease_and_no_token() {
    let server = start();
    let (locks, other) = (client(&server).await, client(&server).await);
    let began = time_of(&server);
    let mut ours = claim("n", 60_000);
    let mut last = win(&locks, &mut ours).await.token;
    for step in [Step::Forward(HOUR), Step::Back(HOUR * 25), Step::Forward(HOUR)] {
        server.wall_clock().step(step);
        // Its own clock has ticked since.
        let now = time_of(&server);
        eventually(|| time_of(&server) > now + 1).await;
        let expires_in = contended(other.try_acquire(&claim("n", 1000)).await).unwrap();
        assert!((Duration::from_secs(40)..=Duration::from_secs(63)).contains(&expires_in));
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))));
        // A counter that is begun goes by the same clock, and so does how long it waits for its
        // first draw.
        assert_eq!(server.command("flush_all"), "OK");
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
        let token = win(&locks, &mut ours).await.token;
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    }
    assert!(
        time_of(&server) < began + 600,
        "its time of day is that of its start, and what has passed"
    );
}

/// As documented, tokens start with the clock of a restarted server.
#[tokio::test]
async fn a_restart_takes_the_wall_clock_for_tokens() {
    let server = start();
    let before = hold(&client(&server).await, MINUTE).await.fencing_token();
    server.wall_clock().step(Step::Forward(HOUR));
    server.restart();
    let ahead = hold(&client(&server).await, MINUTE).await.fencing_token();
    assert!(ahead > before);
    server.wall_clock().step(Step::Back(HOUR));
    server.restart();
    let behind = hold(&client(&server).await, MINUTE).await.fencing_token();
    assert!(behind > before && behind < ahead, "{behind:?} after {ahead:?}");
    // A resource that checks tokens detects it.
    let gate = FenceGate::new(());
    gate.admit(ahead.unwrap(), |()| ()).unwrap();
    let refused = gate.admit(behind.unwrap(), |()| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FenceRegressed);
}

#[tokio::test]
async fn a_step_forward_ends_leases_and_notifies_the_holder() {
    let server = start();
    let (locks, other) = (client(&server).await, client(&server).await);
    let guard = hold(&locks, MINUTE).await;
    server.monotonic_clock().step(Step::Forward(MINUTE / 2));
    let expires_in =
        || async { contended(other.try_acquire(&claim("n", 1000)).await).expect("it has an end") };
    let end = Moment::now() + SOON;
    while expires_in().await > Duration::from_secs(40) {
        assert!(!end.has_passed(), "its clock has not moved");
        sleep(Duration::from_millis(20)).await;
    }
    // A renewal in time makes up for it.
    guard.verify().await.unwrap();
    assert!(expires_in().await > Duration::from_secs(55));
    server.monotonic_clock().step(Step::Forward(MINUTE * 2));
    let next = hold(&other, MINUTE).await;
    assert!(guard.is_held(), "that the clock is right was assumed");
    // Fencing still protects.
    let gate = FenceGate::new(());
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    let late = gate.admit(guard.fencing_token().unwrap(), |()| ());
    assert_eq!(late.unwrap_err().kind(), ErrorKind::FenceRegressed);
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.loss(), Some(Loss::NotHeld));
    next.verify().await.expect("the first one's end harms nobody");
}

/// Until its clock is where it was, no lease ends, and no counter is begun.
#[tokio::test]
async fn a_step_back_delays_others_and_hangs_no_client() {
    const STEP: Duration = Duration::from_secs(6);

    let server = start();
    let (locks, other) = (client(&server).await, client(&server).await);
    let mut crashed = claim("n", 1000);
    let since = win(&locks, &mut crashed).await.since;
    server.monotonic_clock().step(Step::Back(STEP));
    let next = hold(&other, MINUTE).await;
    let after = Moment::now().saturating_since(since);
    assert!(after > STEP, "the lease ended {after:?} after it was given, by the server's clock");
    assert!(next.is_held());

    server.monotonic_clock().step(Step::Back(HOUR));
    let mut token = next.fencing_token();
    assert_eq!(next.release().await.map_err(|error| error.kind()), Ok(()));
    // Present locks continue.
    for _ in 0..3 {
        let guard = hold(&locks, MINUTE).await;
        assert!(guard.fencing_token() > token);
        token = guard.fencing_token();
        guard.release().await.unwrap();
    }
    assert_eq!(server.command("delete %fence"), "DELETED");
    let fault = locks.try_acquire(&claim("n", 1000)).await.expect_err("there is no next second");
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    let why = fault.into_source().to_string();
    assert!(why.contains("clock stands still"), "{why}");
    assert_eq!(server.value("n"), None, "it left the lock shut");
}

/// The tokens of the holder and of the next one, and the rest of the holder's time then.
#[derive(Debug)]
struct Overtaken {
    holder: FencingToken,
    next: FencingToken,
    early: Duration,
}

/// Cuts off a holder as soon as it has the lock, and takes the lock as soon as it expires.
async fn overtake(server: &Server, name: &str, ttl: Duration) -> Overtaken {
    let other = client(server).await;
    let (guard, _proxy) = hold_cut_off(server, name, ttl).await;
    let deadline = Moment::now() + guard.valid_for().expect("it is held");
    let next = claim(name, 60_000);
    let end = Moment::now() + ttl + SOON;
    loop {
        match other.try_acquire(&next).await.unwrap() {
            Attempt::Acquired(grant) => {
                let early = deadline.saturating_since(Moment::now());
                other.release(&next, ReleaseMode::now()).await.unwrap();
                let holder = guard.fencing_token().unwrap();
                return Overtaken { holder, next: grant.token.unwrap(), early };
            }
            Attempt::Contended { .. } => assert!(!end.has_passed(), "it does not lapse"),
        }
        sleep(Duration::from_millis(2)).await;
    }
}

async fn hold_cut_off(server: &Server, name: &str, ttl: Duration) -> (LockGuard, Proxy) {
    let (proxy, url) = server.proxied();
    let locks = Locker::new(Memcached::connect(url).await.unwrap());
    let guard = locks.lock(name).unwrap().ttl(ttl).acquire().await.unwrap();
    proxy.set(Fault::BlackHole);
    (guard, proxy)
}

async fn overtake_many(thousandths: i32, ttl: Duration) -> Vec<Overtaken> {
    let server = std::sync::Arc::new(start());
    // Its counter is there.
    granted(client(&server).await.try_acquire(&claim("first", 1000)).await);
    server.monotonic_clock().run_too_fast_by(thousandths);
    let mut all = tokio::task::JoinSet::new();
    for i in 0..8 {
        let server = std::sync::Arc::clone(&server);
        all.spawn(async move {
            // At any moment of its second.
            sleep(Duration::from_millis(130) * i).await;
            overtake(&server, &format!("n{i}"), ttl).await
        });
    }
    all.join_all().await
}

/// The margin of a hundredth is for long leases; of short ones, the whole seconds that are added
/// leave more.
#[tokio::test]
async fn a_slightly_fast_clock_ends_no_lease_early() {
    for (thousandths, ttl) in [(10, 500), (10, 3000), (50, 3000)] {
        for one in overtake_many(thousandths, Duration::from_millis(ttl)).await {
            assert!(one.early.is_zero() && one.next > one.holder, "{ttl} ms: {one:?}");
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_twice_as_fast_does_and_fencing_is_what_is_left() {
    for one in overtake_many(1000, Duration::from_secs(8)).await {
        assert!(!one.early.is_zero(), "is the clock fast at all? {one:?}");
        let gate = FenceGate::new(());
        gate.admit(one.next, |()| ()).unwrap();
        assert!(gate.admit(one.holder, |()| ()).is_err(), "{one:?}");
    }
}
