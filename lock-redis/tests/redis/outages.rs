//! Servers and lines that fail.

use std::time::Duration;

use lock_conformance::proxy::Fault;
use lock_core::backend::{Effect, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, Locker};
use lock_redis::Redis;

use crate::support::{Server, claim, eventually, granted, name, renew, win};

const LONG: u64 = 300_000;
const SOON: Duration = Duration::from_secs(10);

/// Loads the scripts beforehand: one that the server does not know is sent twice.
async fn load_scripts(locks: &Redis) {
    let ours = claim("another", LONG);
    granted(locks.try_acquire(&ours).await);
    locks.release(&ours, ReleaseMode::now()).await.unwrap();
}

/// Bounds a verb as core does.
async fn bounded<T>(verb: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(300), verb).await.ok()
}

#[tokio::test]
async fn a_dead_server_is_reported_and_a_new_one_found_at_once() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", LONG);
    win(&locks, &mut held).await;
    server.kill();
    let _ = locks.inspect(&held.name).await;
    for _ in 0..10 {
        let began = Moment::now();
        let fault = locks.try_acquire(&claim("m", LONG)).await.unwrap_err();
        assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
        assert!(Moment::now().saturating_since(began) < Duration::from_secs(2), "it waits to try");
    }
    assert!(renew(&locks, &held).await.is_err());
    assert!(locks.release(&held, ReleaseMode::now()).await.is_err());
    server.start_again();
    let began = Moment::now();
    granted(locks.try_acquire(&claim("n", LONG)).await);
    let took = Moment::now().saturating_since(began);
    assert!(took < Duration::from_secs(1), "reconnecting took {took:?}");
}

#[tokio::test]
async fn all_verbs_share_one_attempt_to_reconnect() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    let before = proxy.stats().connections;
    proxy.set(Fault::Refuse);
    proxy.reset_connections().await;
    let _ = locks.inspect(&name("n")).await;
    let refused = proxy.stats().refused;
    let mut verbs = Vec::new();
    for i in 0..50 {
        let locks = locks.clone();
        verbs.push(tokio::spawn(async move { locks.inspect(&name(&format!("n{i}"))).await }));
    }
    for verb in verbs {
        assert_eq!(verb.await.unwrap().unwrap_err().effect(), Effect::NotApplied);
    }
    let attempts = proxy.stats().refused - refused;
    assert!(attempts <= 2, "{attempts} attempts to connect for 50 verbs at once");
    proxy.heal();
    let between = proxy.stats().connections;
    let verbs: Vec<_> = (0..50)
        .map(|i| {
            let locks = locks.clone();
            tokio::spawn(async move { locks.inspect(&name(&format!("n{i}"))).await })
        })
        .collect();
    for verb in verbs {
        verb.await.unwrap().unwrap();
    }
    assert_eq!(proxy.stats().connections - between, 1);
    assert_eq!(before, 1);
}

#[tokio::test]
async fn an_idle_connection_that_was_cut_is_replaced_unnoticed() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    proxy.reset_connections().await;
    eventually(|| format!("{locks:?}").contains("connected: false")).await;
    granted(locks.try_acquire(&claim("n", LONG)).await);
}

#[tokio::test]
async fn a_lost_reply_is_unknown_and_the_next_attempt_finds_the_grant() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    load_scripts(&locks).await;
    let ours = claim("n", LONG);
    let hit = proxy.cut_after(&*ours.owner.expose());
    let fault = locks.try_acquire(&ours).await.unwrap_err();
    hit.await.unwrap();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    let value: String = server.command(&["GET", "n"]);
    let grant = granted(locks.try_acquire(&ours).await);
    let number = grant.token.unwrap().backend_number();
    assert_eq!(value, format!("{} {number}", ours.owner.expose()), "the same acquisition");

    let hit = proxy.cut_after(&*ours.owner.expose());
    let fault = locks.release(&ours, ReleaseMode::now()).await.unwrap_err();
    hit.await.unwrap();
    assert_eq!(fault.effect(), Effect::Unknown);
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn a_late_attempt_is_refused() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    load_scripts(&locks).await;
    let late = claim("n", LONG);
    let mut held = proxy.hold(&*late.owner.expose());
    assert!(bounded(locks.try_acquire(&late)).await.is_none(), "its answer is held up");
    held.caught().await.unwrap();
    // Core lets go of it, through a connection that works.
    let elsewhere = server.client().await;
    let how = ReleaseMode::after_unknown_outcome();
    assert_eq!(elsewhere.release(&late, how).await.unwrap(), Release::NotHeld);
    held.deliver().await.unwrap();
    held.answered().await.unwrap();
    assert_eq!(server.command::<Option<String>>(&["GET", "n"]), None);
    // The connection is in step: the answer to the attempt is not taken for another one.
    assert_eq!(locks.inspect(&late.name).await.unwrap().holders, []);
    granted(locks.try_acquire(&claim("n", LONG)).await);
}

#[tokio::test]
async fn a_late_renewal_shortens_nothing_and_revives_nothing() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    let elsewhere = server.client().await;
    for ended in [false, true] {
        let mut held = claim("n", 30_000);
        win(&locks, &mut held).await;
        assert!(matches!(renew(&locks, &held).await, Ok(Renewal::Held(_))));
        let mut late = proxy.hold(&*held.owner.expose());
        assert!(bounded(renew(&locks, &held)).await.is_none());
        late.caught().await.unwrap();
        if ended {
            elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
        } else {
            held.ttl = Duration::from_secs(600);
            assert!(matches!(renew(&elsewhere, &held).await, Ok(Renewal::Held(_))));
        }
        late.deliver().await.unwrap();
        late.answered().await.unwrap();
        let left: i64 = server.command(&["PTTL", "n"]);
        assert!(if ended { left == -2 } else { left > 500_000 }, "{left}");
        elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn verbs_that_are_dropped_leave_the_connection_in_step() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    proxy.set(Fault::delay(Duration::from_millis(2)));
    for round in 0..100_u64 {
        let mut ours = claim(&format!("n{round}"), LONG);
        let verb = locks.try_acquire(&ours);
        let _ = tokio::time::timeout(Duration::from_micros(round * 100), verb).await;
        // Each answer is the one to its own question.
        let value = win(&locks, &mut ours).await.token.unwrap().backend_number();
        let state = locks.inspect(&ours.name).await.unwrap();
        assert_eq!(state.holders[0].owner, Some(ours.owner));
        assert_eq!(state.holders[0].token.unwrap().backend_number(), value);
        let verb = locks.release(&ours, ReleaseMode::now());
        let _ = tokio::time::timeout(Duration::from_micros(round * 100), verb).await;
        locks.release(&ours, ReleaseMode::now()).await.unwrap();
        assert_eq!(locks.inspect(&ours.name).await.unwrap().holders, []);
    }
    assert_eq!(proxy.stats().connections, 1);
}

#[tokio::test]
async fn a_verb_that_is_not_polled_blocks_no_other() {
    let server = Server::start();
    let locks = server.client().await;
    server.kill();
    locks.inspect(&name("n")).await.unwrap_err();
    // In the middle of connecting, or of the pause before it.
    let stuck = claim("stuck", LONG);
    let mut stuck = std::pin::pin!(locks.try_acquire(&stuck));
    let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(stuck.as_mut().poll(cx)));
    assert!(polled.await.is_pending());
    server.start_again();
    let others = async { while locks.inspect(&name("n")).await.is_err() {} };
    tokio::time::timeout(SOON, others).await.expect("the others go on");
    granted(stuck.await.or(locks.try_acquire(&claim("stuck", LONG)).await));
}

#[tokio::test]
async fn a_short_lease_on_a_slow_network_outlives_a_reset() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Locker::new(Redis::connect(url).await.unwrap());
    proxy.set(Fault::delay(Duration::from_millis(150)));
    let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(3));
    let guard = lock.acquire().await.unwrap();
    // Making a connection takes longer than a single renewal may.
    proxy.reset_connections().await;
    let lost = tokio::time::timeout(Duration::from_secs(4), guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn dropped_verbs_are_not_a_silent_server() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Redis::connect(url).await.unwrap();
    proxy.set(Fault::delay(Duration::from_millis(20)));
    let lock = name("n");
    let going = locks.inspect(&lock);
    assert!(tokio::time::timeout(Duration::from_millis(5), going).await.is_err());
    // Longer than a request may go without an answer.
    sleep(Duration::from_millis(5500)).await;
    granted(locks.try_acquire(&claim("n", LONG)).await);
    assert_eq!(proxy.stats().connections, 1, "the connection was fine");
}

#[tokio::test]
async fn a_silent_connection_is_a_bounded_wait() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let locks = Locker::builder(Redis::connect(url.clone()).await.unwrap())
        .timeout(Duration::from_millis(300))
        .build();
    proxy.set(Fault::BlackHole);
    let began = Moment::now();
    let error = locks.lock("n").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
    let connecting = Redis::connect(url).await.unwrap_err();
    assert_eq!(connecting.effect(), Effect::NotApplied);
    assert!(Moment::now().saturating_since(began) < SOON);
    proxy.heal();
    // The lock of the request that was on its way is released in the background.
    eventually(|| server.keys().iter().any(|key| key.starts_with("{n}%gone:"))).await;
    eventually(|| !server.keys().contains(&"n".to_owned())).await;
}

#[tokio::test]
async fn a_stopped_server_runs_the_attempt_later_and_the_release_after_it() {
    let server = Server::start();
    let locks = server.client().await;
    load_scripts(&locks).await;
    let late = claim("n", LONG);
    server.stop();
    assert!(bounded(locks.try_acquire(&late)).await.is_none());
    let release = tokio::spawn({
        let (locks, late) = (locks.clone(), late.clone());
        async move { locks.release(&late, ReleaseMode::after_unknown_outcome()).await.unwrap() }
    });
    server.cont();
    assert_eq!(release.await.unwrap(), Release::Released, "it came after the attempt");
    granted(locks.try_acquire(&claim("n", LONG)).await);
}
