//! Releases of locks without waiters, which delete a key that has a certain value. A server with a
//! command for that, as Valkey 9, needs no script. These tests fit both kinds of servers.

use std::pin::pin;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Claim, OnContention, Release, ReleaseMode, Wake};
use lock_core::{Backend, Label, Locker};
use lock_redis::Redis;

use crate::least_rights::{LEAST_RIGHTS, rights_to_delete};
use crate::support::{Server, claim, contended, eventually, granted, name, release, renew, win};

/// A lease that outlasts every test: no poll of a waiter is due.
const LONG: u64 = 300_000;

/// The longest wait for an event on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

fn is_newer() -> bool {
    !rights_to_delete().is_empty()
}

/// Returns the number of releases without a script, and the number of scripts and of attempts
/// without a script.
fn done(server: &Server) -> (u64, u64) {
    (server.calls("delifeq"), server.calls("evalsha") + server.calls("incrby"))
}

#[tokio::test]
async fn a_lock_without_waiters_is_released_by_one_plain_command() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    // So that the server has the scripts.
    let mut first = claim("n", LONG);
    win(&other, &mut first).await;
    first.ticket = None;
    release(&other, &first).await;
    for _ in 0..3 {
        let mut held = claim("n", LONG);
        win(&locks, &mut held).await;
        release(&locks, &held).await;
    }
    for label in ["", "web-1: a b", "ends with spaces  "] {
        let mut held = claim("n", LONG);
        held.label = Some(Label::new(label));
        let (plain, scripts) = done(&server);
        win(&locks, &mut held).await;
        release(&locks, &held).await;
        let by = if is_newer() { (1, 1) } else { (0, 2) };
        assert_eq!(done(&server), (plain + by.0, scripts + by.1), "{label:?}");
        assert_eq!(server.keys(), ["{n}%token"]);
        assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    }
}

/// Checks releases that have more to do than to delete the lock: they do not try the command first.
#[tokio::test]
async fn other_releases_use_the_script_at_once() {
    let server = Server::start();
    let locks = server.client().await;
    for what in ["renewed", "kept", "uncertain"] {
        let mut held = claim(what, LONG);
        win(&locks, &mut held).await;
        let mut end = ReleaseMode::now();
        match what {
            "renewed" => {
                let Ok(lock_core::backend::Renewal::Held(grant)) = renew(&locks, &held).await
                else {
                    panic!("it is held");
                };
                held.ticket = grant.ticket;
            }
            "kept" => end.keep = Some(Duration::from_secs(1)),
            _ => end = ReleaseMode::after_unknown_outcome(),
        }
        let (plain, scripts) = done(&server);
        assert_eq!(locks.release(&held, end).await.unwrap(), Release::Released);
        assert_eq!(done(&server).0, plain, "{what}");
        assert!(done(&server).1 > scripts, "{what}");
    }
}

#[tokio::test]
async fn a_waiter_marks_the_lock_and_is_served() {
    for order in ["fifo", "any"] {
        let server = Server::start();
        let url = format!("{}?order={order}", server.url());
        let (locks, elsewhere) =
            (Redis::connect(&*url).await.unwrap(), Redis::connect(&*url).await.unwrap());
        for (label, queue) in [("", true), ("web 1", true), ("spaces  ", true), ("", false)] {
            let mut held = claim("n", LONG);
            held.label = Some(Label::new(label));
            win(&elsewhere, &mut held).await;
            let before = server.get("n").unwrap();
            // An attempt that does not wait leaves no mark.
            contended(locks.try_acquire(&claim("n", LONG)).await);
            assert_eq!(server.get("n").as_deref(), Some(&*before));
            let lasts = server.pttl("n");

            let mut waiter = claim("n", LONG);
            waiter.on_contention = if queue { OnContention::Queue } else { OnContention::Return };
            contended(locks.try_acquire(&waiter).await);
            let resting = tokio::spawn({
                let (locks, waiter) = (locks.clone(), waiter.clone());
                async move { locks.wait(&waiter).await.expect("waiting does not fail") }
            });
            let rests = || match order {
                "fifo" if queue => server.waiting("n") == 1,
                _ => server.calls("client|caching") > 2 && server.get("{n}%wake").is_some(),
            };
            eventually(rests).await;
            let is_marked = || server.get("n") == Some(format!("{before} "));
            eventually(is_marked).await;
            assert!(server.pttl("n") > 0 && server.pttl("n") <= lasts, "it ends as it did");
            let holders = locks.inspect(&name("n")).await.unwrap().holders;
            let shown = holders[0].label.as_ref().map_or("", Label::as_str);
            assert_eq!((holders[0].owner, shown), (Some(held.owner), label.trim_end()));

            release(&elsewhere, &held).await;
            let woken = tokio::time::timeout(SOON, resting).await.expect("it is woken").unwrap();
            match woken {
                Wake::Granted(grant) => waiter.ticket = grant.ticket,
                _ => waiter.ticket = granted(locks.try_acquire(&waiter).await).ticket,
            }
            release(&locks, &waiter).await;
            assert_eq!(server.get("n"), None);
        }
    }
}

fn queues(name: &str) -> Claim {
    let mut waiter = claim(name, LONG);
    waiter.on_contention = OnContention::Queue;
    waiter
}

/// Lets the release key expire, as it does after ten minutes; the next waiter sets it again.
#[tokio::test]
async fn a_lock_that_is_marked_is_not_marked_again() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", LONG);
    win(&server.client().await, &mut held).await;
    contended(locks.try_acquire(&queues("n")).await);
    let marked = server.get("n");
    for _ in 0..2 {
        server.run::<()>("DEL {n}%wake");
        let racing = claim("n", LONG);
        contended(locks.try_acquire(&racing).await);
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.wait(&racing).await }
        });
        eventually(|| server.get("{n}%wake").is_some()).await;
        waiter.abort();
        let _ = waiter.await;
    }
    assert_eq!(server.get("n"), marked);
    let shown = locks.inspect(&name("n")).await.unwrap().holders;
    assert_eq!(shown[0].label, None);
}

/// Checks that the value of another library stays as it is: it is the right to unlock.
#[tokio::test]
async fn the_lock_of_another_library_is_not_marked() {
    let server = Server::start();
    let way = Proxy::start(server.addr()).unwrap();
    let locks = Redis::connect(format!("redis://{}", way.addr())).await.unwrap();
    let waiter = claim("n", LONG);
    // Each poll asks twice for the state, first for the watched key and then for the lock, whose
    // holder changes in between. A poll takes seconds to get through.
    let _: () = server.run("SET n first");
    way.set(Fault::Trickle { bytes: 1, every: Duration::from_millis(20) });
    let before = server.calls("exists");
    let mut resting = pin!(locks.wait(&waiter));
    let taken = async {
        eventually(|| server.calls("exists") >= before + 2).await;
        let _: () = server.run("DEL n");
        eventually(|| server.calls("exists") >= before + 3).await;
        let _: () = server.run("SET n second PX 60000");
        way.heal();
    };
    tokio::select! {
        woken = &mut resting => panic!("it has not looked yet: {woken:?}"),
        () = taken => {}
    }
    // It polls again, or rests until that lock is released.
    let _ = tokio::time::timeout(Duration::from_secs(1), resting).await;
    assert_eq!(server.get("n").as_deref(), Some("second"));
}

/// Checks values that are nearly of our form.
#[tokio::test]
async fn a_value_that_is_not_ours_is_not_marked() {
    let server = Server::start();
    let locks = server.client().await;
    let hex = "0123456789abcdef0123456789abcdef";
    let long = format!("{hex} 7 {}", "x".repeat(300));
    let fraction = format!("{hex} 1700000000.25");
    let upper = format!("{} 7", hex.to_uppercase());
    let beyond = format!("{hex} 12345678901234567");
    for (at, value) in [fraction, upper, beyond, long].into_iter().enumerate() {
        let key = format!("n{at}");
        let _: String = server.command(&["SET", &key, &value, "NX", "PX", "300000"]);
        contended(locks.try_acquire(&queues(&key)).await);
        assert_eq!(server.get(&key), Some(value));
    }
}

/// Contention is not a failure, even if the server refuses the mark: the waiter polls.
#[tokio::test]
async fn a_waiter_that_races_is_contended_where_writes_are_refused() {
    let server = Server::start();
    let mut held = claim("n", LONG);
    win(&server.client().await, &mut held).await;
    let locks = server.client_in_any_order().await;
    let _: String = server.run("CONFIG SET min-replicas-to-write 1");
    contended(locks.try_acquire(&queues("n")).await);
}

/// Checks a repeated release: the plain command may have missed, and no time may be left for a
/// second request.
#[tokio::test]
async fn a_repeated_release_uses_the_script() {
    let server = Server::start();
    let way = Proxy::start(server.addr()).unwrap();
    let locks = Redis::connect(format!("redis://{}", way.addr())).await.unwrap();
    let mut held = claim("n", LONG);
    win(&locks, &mut held).await;
    let elsewhere = server.client().await;
    contended(elsewhere.try_acquire(&queues("n")).await);
    way.set(Fault::BlackHole);
    let dropped = tokio::time::timeout(Duration::ZERO, locks.release(&held, ReleaseMode::now()));
    assert!(dropped.await.is_err(), "no answer comes");
    way.heal();
    let _ = locks.release(&held, ReleaseMode::now()).await.unwrap();
    assert_eq!(server.calls("delifeq"), u64::from(is_newer()));
    assert!(!server.get("n").unwrap().starts_with(&held.owner.expose()), "it was handed over");
}

#[tokio::test]
async fn a_user_without_the_right_is_refused_once() {
    let server = Server::start();
    let rule = format!("ACL SETUSER locks reset on >secret {}", LEAST_RIGHTS[0]);
    let _: String = server.run(&rule.split_whitespace().collect::<Vec<_>>().join(" "));
    let url = format!("redis://locks:secret@127.0.0.1:{}?prefix=app:", server.port());
    let locks = Locker::new(Redis::connect(url).await.unwrap());
    for _ in 0..3 {
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    let log: Vec<redis::Value> = server.run("ACL LOG");
    assert_eq!(log.len(), usize::from(is_newer()), "{log:?}");
    assert_eq!(server.get("app:n"), None);
}
