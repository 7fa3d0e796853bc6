//! A server that deletes what has a certain value without a script, as Valkey 9 does, lets go of a lock for which nobody
//! waits by that; on another one all of it is done by the script. These tests are about whichever server there is.

use std::pin::pin;
use std::time::Duration;

use conformance_tests::proxy::{Fault, Proxy};
use conformance_tests::servers::RedisOptions;
use lock_core::backend::{Claim, LetGo, Release, Wake};
use lock_core::{Backend, Label, Locker};
use lock_redis::Redis;

use crate::least_rights::{LEAST_RIGHTS, rights_to_delete};
use crate::support::{Server, claim, contended, eventually, granted, name, renew, win};

/// So long that nobody's own next look comes while a test runs.
const LONG: u64 = 300_000;

/// What a loaded machine may need.
const SOON: Duration = Duration::from_secs(10);

fn is_newer() -> bool {
    !rights_to_delete().is_empty()
}

/// How many releases were no scripts, and how many scripts there were.
fn done(server: &Server) -> (u64, u64) {
    (server.calls("delifeq"), server.calls("evalsha"))
}

async fn let_go(locks: &Redis, claim: &Claim) {
    assert_eq!(locks.release(claim, LetGo::now()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_lock_for_which_nobody_waits_is_let_go_by_one_plain_command() {
    let server = Server::start();
    let locks = server.client().await;
    // So that the server has the scripts.
    let mut first = claim("n", LONG);
    win(&locks, &mut first).await;
    first.ticket = None;
    let_go(&locks, &first).await;
    for label in ["", "web-1: a b", "ends with spaces  "] {
        let mut held = claim("n", LONG);
        held.label = Some(Label::new(label));
        let (plain, scripts) = done(&server);
        win(&locks, &mut held).await;
        let_go(&locks, &held).await;
        let by = if is_newer() { (1, 1) } else { (0, 2) };
        assert_eq!(done(&server), (plain + by.0, scripts + by.1), "{label:?}");
        assert_eq!(server.keys(), ["{n}%fence"]);
        assert_eq!(locks.release(&held, LetGo::now()).await.unwrap(), Release::NotHeld);
    }
}

/// Whoever has to look for others, or for more than the lock, does not ask in vain before.
#[tokio::test]
async fn what_is_more_than_that_is_done_by_the_script_at_once() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    for what in ["renewed", "kept", "uncertain", "by another connection"] {
        let mut held = claim(what, LONG);
        win(&locks, &mut held).await;
        let (mut end, mut by) = (LetGo::now(), &locks);
        match what {
            "renewed" => {
                let Ok(lock_core::backend::Renewal::Held(grant)) = renew(&locks, &held).await
                else {
                    panic!("it is held");
                };
                held.ticket = grant.ticket;
            }
            "kept" => end.keep = Some(Duration::from_secs(1)),
            "uncertain" => end = LetGo::uncertain(),
            _ => by = &other,
        }
        let (plain, scripts) = done(&server);
        assert_eq!(by.release(&held, end).await.unwrap(), Release::Released);
        assert_eq!(done(&server).0, plain, "{what}");
        assert!(done(&server).1 > scripts, "{what}");
    }
}

#[tokio::test]
async fn whoever_waits_marks_the_lock_and_is_served() {
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
            // A try is none.
            contended(locks.try_acquire(&claim("n", LONG)).await);
            assert_eq!(server.get("n").as_deref(), Some(&*before));
            let lasts = server.pttl("n");

            let mut waiter = claim("n", LONG);
            waiter.queue = queue;
            contended(locks.try_acquire(&waiter).await);
            let resting = tokio::spawn({
                let (locks, waiter) = (locks.clone(), waiter.clone());
                async move { locks.wait(&waiter).await.expect("waiting does not fail") }
            });
            let rests = || match order {
                "fifo" if queue => server.waiting("n") == 1,
                _ => server.calls("client|caching") > 2 && server.get("{n}%bell").is_some(),
            };
            eventually(rests).await;
            let is_marked = || server.get("n") == Some(format!("{before} "));
            if is_newer() {
                eventually(is_marked).await;
                assert!(server.pttl("n") > 0 && server.pttl("n") <= lasts, "it ends as it did");
            } else {
                assert_eq!(server.get("n").as_deref(), Some(&*before));
            }
            let holders = locks.inspect(&name("n")).await.unwrap().holders;
            let shown = holders[0].label.as_ref().map_or("", Label::as_str);
            assert_eq!((holders[0].owner, shown), (Some(held.owner), label.trim_end()));

            let_go(&elsewhere, &held).await;
            let woken = tokio::time::timeout(SOON, resting).await.expect("it is woken").unwrap();
            match woken {
                Wake::Granted(grant) => waiter.ticket = grant.ticket,
                _ => waiter.ticket = granted(locks.try_acquire(&waiter).await).ticket,
            }
            let_go(&locks, &waiter).await;
            assert_eq!(server.get("n"), None);
        }
    }
}

/// A failover to a newer server may come while an attempt is on its way: it was put into words for the older one.
#[tokio::test]
async fn an_attempt_that_meets_such_a_server_on_its_way_marks_the_lock() {
    for order in ["fifo", "any"] {
        let hide = |options: RedisOptions| options.setting("rename-command", "delifeq").and("");
        let options = RedisOptions::new();
        let older = Server::with_options(if is_newer() { hide(options) } else { options });
        let newer = Server::start();
        let way = Proxy::start(older.addr()).unwrap();
        let locks = Redis::connect(format!("redis://{}?order={order}", way.addr())).await.unwrap();
        let elsewhere = newer.client().await;
        let mut held = claim("n", LONG);
        win(&elsewhere, &mut held).await;

        let address = way.addr();
        drop(way);
        while locks.try_acquire(&claim("another", LONG)).await.is_ok() {}
        // Nothing runs here between these two.
        let way = Proxy::start_at(address, newer.addr()).unwrap();
        way.set(Fault::BlackHole);
        let mut waiter = claim("n", LONG);
        waiter.queue = true;
        let mut asks = pin!(locks.try_acquire(&waiter));
        let at_once = tokio::time::timeout(Duration::ZERO, &mut asks).await;
        assert!(at_once.is_err(), "nobody is there to answer it");
        way.heal();
        contended(asks.await);
        let is_marked = newer.get("n").is_some_and(|value| value.ends_with(' '));
        assert_eq!(is_marked, is_newer(), "{order}");
        let_go(&elsewhere, &held).await;
        assert_eq!(newer.calls("delifeq"), u64::from(is_newer()));
        if order == "fifo" {
            assert!(newer.get("n").is_some(), "it was handed over");
        }
    }
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
