//! With `order=any`: the notification of waiters, and its cost.

use std::time::Duration;

use lock_core::backend::{Attempt, Claim, OnContention, Release, ReleaseMode, Renewal, Wake};
use lock_core::clock::Moment;
use lock_core::{Backend, LockGuard, Locker, Wakeup};
use lock_redis::Redis;
use tokio::task::JoinHandle;

use crate::support::{Server, claim, contended, eventually, granted, name, renew, win};

const SECOND: u64 = 1000;

/// So long that no waiter polls by itself while a test runs.
const LONG: u64 = 300 * SECOND;

/// The time that a loaded machine may need.
const SOON: Duration = Duration::from_secs(10);

/// Starts a waiter that met contention, asked for a notification, and rests.
async fn resting(server: &Server, locks: &Redis, waiter: &Claim) -> JoinHandle<Wake> {
    contended(locks.try_acquire(waiter).await);
    let asked = server.calls("client|caching");
    let resting = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move { locks.wait(&waiter).await.expect("waiting does not fail") }
    });
    eventually(|| server.calls("client|caching") > asked).await;
    // An answer on the same connection: the one before it has come, and was read.
    locks.inspect(&name("another")).await.unwrap();
    assert!(!resting.is_finished(), "it woke for nothing");
    resting
}

fn waiting_claim(ttl: u64) -> Claim {
    let mut claim = claim("n", ttl);
    claim.on_contention = OnContention::Queue;
    claim
}

async fn woken(resting: JoinHandle<Wake>) {
    let woken = tokio::time::timeout(SOON, resting).await.expect("it is woken");
    assert!(matches!(woken.expect("no panic"), Wake::Retry));
}

#[tokio::test]
async fn every_end_of_a_hold_wakes_waiters() {
    let server = Server::start();
    let locks = server.client_in_any_order().await;
    assert_eq!(locks.capabilities().wakeup, Wakeup::Signal);
    let elsewhere = server.client_in_any_order().await;
    for how in ["release", "uncertain", "keep", "break", "flush", "same client"] {
        let holder = if how == "same client" { &locks } else { &elsewhere };
        let mut held = claim("n", LONG);
        win(holder, &mut held).await;
        let waiter = waiting_claim(LONG);
        let waiting = resting(&server, &locks, &waiter).await;
        match how {
            "break" => assert!(elsewhere.break_lock(&held.name, &held.owner).await.unwrap()),
            "flush" => assert_eq!(server.run::<String>("FLUSHALL"), "OK"),
            _ => {
                let mut end = ReleaseMode::now();
                end.late_attempt = (how == "uncertain").into();
                // Woken to learn by when the lock is free now.
                end.keep = (how == "keep").then_some(Duration::from_secs(5));
                assert_eq!(holder.release(&held, end).await.unwrap(), Release::Released);
            }
        }
        woken(waiting).await;
        if how == "keep" {
            let expires_in = contended(locks.try_acquire(&waiter).await).unwrap();
            assert!(expires_in <= Duration::from_secs(5));
            assert!(elsewhere.break_lock(&held.name, &held.owner).await.unwrap());
        }
        granted(locks.try_acquire(&waiter).await);
        locks.release(&waiter, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn a_holder_that_finds_its_lock_deleted_wakes_the_waiters() {
    let server = Server::start();
    let (locks, elsewhere) =
        (server.client_in_any_order().await, server.client_in_any_order().await);
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiter = waiting_claim(LONG);
    let waiting = resting(&server, &locks, &waiter).await;
    let _: u64 = server.run("DEL n");
    assert!(matches!(renew(&elsewhere, &held).await, Ok(Renewal::NotHeld)));
    woken(waiting).await;
    granted(locks.try_acquire(&waiter).await);
}

#[tokio::test]
async fn the_end_of_a_foreign_hold_wakes() {
    let server = Server::start();
    let locks = server.client_in_any_order().await;
    for (ttl, end) in [("300000", "DEL n"), ("700", "PING")] {
        let _: String = server.command(&["SET", "n", "somebody", "NX", "PX", ttl]);
        let waiter = waiting_claim(LONG);
        let waiting = resting(&server, &locks, &waiter).await;
        let _: redis::Value = server.run(end);
        woken(waiting).await;
        granted(locks.try_acquire(&waiter).await);
        locks.release(&waiter, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn a_new_holder_is_watched_by_its_kind() {
    let server = Server::start();
    let (locks, elsewhere) =
        (server.client_in_any_order().await, server.client_in_any_order().await);
    let waiter = waiting_claim(LONG);
    let mut held = claim("n", LONG);
    // Contended by one of ours, and by another client by the time it waits.
    win(&elsewhere, &mut held).await;
    contended(locks.try_acquire(&waiter).await);
    let _: String = server.command(&["SET", "n", "somebody", "PX", "300000"]);
    let waiting = resting_on(&server, &locks, &waiter).await;
    let _: u64 = server.run("DEL n");
    woken(waiting).await;
    // And the other way round, and by a claim that left no trace.
    let _: String = server.command(&["SET", "n", "somebody", "PX", "300000"]);
    let quiet = claim("n", LONG);
    contended(locks.try_acquire(&quiet).await);
    let _: u64 = server.run("DEL n");
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    // The server's messages about the first one are read before this answer.
    locks.inspect(&name("another")).await.unwrap();
    let waiting = resting_on(&server, &locks, &quiet).await;
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    woken(waiting).await;
    // Free already: there is nothing to wait for.
    assert!(matches!(locks.wait(&quiet).await.unwrap(), Wake::Retry));
}

/// Starts a resting waiter after an attempt.
async fn resting_on(server: &Server, locks: &Redis, waiter: &Claim) -> JoinHandle<Wake> {
    let asked = server.calls("client|caching");
    let resting = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move { locks.wait(&waiter).await.expect("waiting does not fail") }
    });
    eventually(|| server.calls("client|caching") > asked).await;
    // Two round trips, if the watched key turned out to be the wrong one.
    for _ in 0..2 {
        locks.inspect(&name("another")).await.unwrap();
    }
    assert!(!resting.is_finished(), "it woke for nothing");
    resting
}

#[tokio::test]
async fn waiting_costs_nothing_while_the_holder_renews() {
    let server = Server::start();
    let (locks, elsewhere) =
        (server.client_in_any_order().await, server.client_in_any_order().await);
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiting = resting(&server, &locks, &waiting_claim(LONG)).await;
    let counted = ["evalsha", "eval", "getrange", "exists", "client|caching"];
    let before = counted.map(|command| server.calls(command));
    for _ in 0..50 {
        held.ttl += Duration::from_millis(10);
        let Ok(Renewal::Held(grant)) = renew(&elsewhere, &held).await else { panic!("lost") };
        held.ticket = grant.ticket;
    }
    let after = counted.map(|command| server.calls(command));
    // All of it the holder's: a script that reads the lock for each renewal, and one more for each
    // of the two scripts, to find it not loaded.
    let spent: Vec<_> =
        std::iter::zip(after, before).map(|(after, before)| after - before).collect();
    assert_eq!(spent, [52, 0, 50, 0, 0]);
    // All messages of the server have come before this answer.
    locks.inspect(&name("another")).await.unwrap();
    assert!(!waiting.is_finished(), "a renewal woke the waiter");
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    woken(waiting).await;
}

#[tokio::test]
async fn a_racing_claim_that_gives_up_wakes_no_waiter() {
    let server = Server::start();
    let (locks, elsewhere) =
        (server.client_in_any_order().await, server.client_in_any_order().await);
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiting = resting(&server, &locks, &waiting_claim(LONG)).await;
    let impatient = waiting_claim(LONG);
    contended(elsewhere.try_acquire(&impatient).await);
    let released = elsewhere.release(&impatient, ReleaseMode::now()).await.unwrap();
    assert_eq!(released, Release::NotHeld);
    assert!(server.pttl("{n}%wake") > 60_000, "the bell of the others was touched");
    // All messages of the server have come before this answer.
    locks.inspect(&name("another")).await.unwrap();
    assert!(!waiting.is_finished(), "a departure woke the waiter");
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    woken(waiting).await;
}

#[tokio::test]
async fn a_waiter_without_a_release_key_polls() {
    let server = Server::start();
    let locks = server.client_in_any_order().await;
    let elsewhere = server.client_in_any_order().await;
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiter = waiting_claim(LONG);
    contended(locks.try_acquire(&waiter).await);
    assert_eq!(server.run::<u64>("DEL {n}%wake"), 1, "nobody stands in line");
    let began = Moment::now();
    for _ in 0..10 {
        assert!(matches!(locks.wait(&waiter).await.unwrap(), Wake::Retry));
    }
    let took = Moment::now().saturating_since(began);
    assert!(took > Duration::from_millis(300), "a frenzy: {took:?}");
    // With the next attempt it is there again, which is a change as well.
    contended(locks.try_acquire(&waiter).await);
    assert!(matches!(locks.wait(&waiter).await.unwrap(), Wake::Retry));
    let watched = server.calls("client|caching");
    let waiting = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move {
            while !matches!(locks.try_acquire(&waiter).await.unwrap(), Attempt::Acquired(_)) {
                locks.wait(&waiter).await.unwrap();
            }
        }
    });
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    tokio::time::timeout(SOON, waiting).await.expect("it is woken").unwrap();
    // The wake-up before may have come from the key's deletion or from its return.
    assert!(server.calls("client|caching") <= watched + 2, "it watches once for each change");
    locks.release(&waiter, ReleaseMode::now()).await.unwrap();
    assert_eq!(server.keys(), ["{n}%token"]);
}

#[tokio::test]
async fn a_dropped_wait_can_be_resumed() {
    let server = Server::start();
    let (locks, elsewhere) =
        (server.client_in_any_order().await, server.client_in_any_order().await);
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiter = waiting_claim(LONG);
    resting(&server, &locks, &waiter).await.abort();
    // As core does at its own next look; the server still watches.
    contended(locks.try_acquire(&waiter).await);
    let asked = server.calls("client|caching");
    let again = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move { locks.wait(&waiter).await.unwrap() }
    });
    locks.inspect(&name("another")).await.unwrap();
    assert_eq!(server.calls("client|caching"), asked, "it is watched already");
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    woken(again).await;
    // A signal that comes while no task waits is kept.
    let mut held = claim("n", LONG);
    win(&elsewhere, &mut held).await;
    let waiting = resting(&server, &locks, &waiter).await;
    waiting.abort();
    elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    locks.inspect(&name("another")).await.unwrap();
    assert!(matches!(locks.wait(&waiter).await.unwrap(), Wake::Retry));
}

#[tokio::test]
async fn many_waiters_of_many_processes_are_all_served() {
    let server = Server::start();
    let mut waiters = Vec::new();
    let holder = Locker::new(server.client_in_any_order().await);
    let ttl = Duration::from_secs(20);
    let guard = holder.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    for _ in 0..5 {
        let locks = Locker::new(server.client_in_any_order().await);
        for _ in 0..10 {
            let lock = locks.lock("n").unwrap().ttl(ttl);
            waiters.push(tokio::spawn(async move {
                lock.acquire().await.unwrap().release().await.unwrap();
            }));
        }
    }
    eventually(|| server.calls("client|caching") >= 5).await;
    let released = Moment::now();
    guard.release().await.unwrap();
    for waiter in waiters {
        tokio::time::timeout(SOON, waiter).await.expect("served").unwrap();
    }
    let took = Moment::now().saturating_since(released);
    assert!(took < ttl / 2, "fifty waiters took {took:?}: somebody slept through");
    assert_eq!(server.keys(), ["{n}%token"]);
}

#[tokio::test]
async fn without_signals_waiters_poll() {
    let server = Server::start();
    let _: String = server.run("ACL SETUSER quiet on >secret ~* +@all -client|tracking");
    let url = format!("redis://quiet:secret@127.0.0.1:{}?order=any", server.port());
    let quiet = Redis::connect(url).await.unwrap();
    assert_eq!(quiet.capabilities().wakeup, Wakeup::Poll);
    let holder: LockGuard = {
        let locks = Locker::new(server.client_in_any_order().await);
        locks.lock("n").unwrap().ttl(Duration::from_secs(60)).acquire().await.unwrap()
    };
    let before = server.calls("evalsha");
    let waiter = tokio::spawn(async move {
        let lock = Locker::new(quiet).lock("n").unwrap().ttl(Duration::from_secs(60));
        lock.acquire().await.unwrap().release().await.unwrap();
    });
    eventually(|| server.calls("evalsha") > before + 5).await;
    holder.release().await.unwrap();
    tokio::time::timeout(SOON, waiter).await.expect("served").unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_serves_its_waiters() {
    let server = Server::start();
    let ttl = Duration::from_secs(60);
    let locks = Locker::new(server.client_in_any_order().await);
    let holder = Locker::new(server.client_in_any_order().await);
    let guard = holder.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.calls("client|caching") >= 3).await;
    server.kill();
    server.start_again();
    // Without its data the lock is free. The waiter was woken when its connection broke.
    let next = tokio::time::timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.verify().await.is_err(), "the old holder is told");
    next.release().await.unwrap();
}
