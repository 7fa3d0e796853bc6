//! Locks without contention, which are taken without a script if this client had them a moment ago.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Claim, Effect, FaultKind, OnContention, Release, ReleaseMode, Renewal};
use lock_core::{Backend, ErrorKind, FencingToken, Label, Locker};
use lock_redis::Redis;

use crate::support::{Server, claim, contended, eventually, granted, name, renew, until, win};

const LONG: u64 = 300_000;

/// Takes and releases the lock until it is taken without a script, and returns that claim.
async fn taken(server: &Server, locks: &Redis) -> Claim {
    taken_as(server, locks, None).await
}

async fn taken_as(server: &Server, locks: &Redis, label: Option<&Label>) -> Claim {
    let mut taken = None;
    until("a lock is taken without a script", async || {
        let mut held = claim("n", LONG);
        held.label = label.cloned();
        win(locks, &mut held).await;
        let is_taken = is_without_token(server);
        if !is_taken {
            locks.release(&held, ReleaseMode::now()).await.unwrap();
        }
        taken = Some(held);
        is_taken
    })
    .await;
    taken.unwrap()
}

/// Returns true if the lock has the value of an attempt without a script.
fn is_without_token(server: &Server) -> bool {
    server.get("n").is_some_and(|value| value.split(' ').nth(1) == Some("0"))
}

fn token(claim: &Claim, grant: &lock_core::backend::Grant) -> u64 {
    grant.token.unwrap_or_else(|| panic!("{claim:?} has no token")).backend_number()
}

fn waiter() -> Claim {
    let mut claim = claim("n", LONG);
    claim.on_contention = OnContention::Queue;
    claim
}

#[tokio::test]
async fn tokens_grow_whichever_way_a_lock_is_taken() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    let (mut last, mut plain) = (0, 0);
    until("both ways are taken often", async || {
        for by in [&locks, &locks, &locks, &other] {
            let mut held = claim("n", LONG);
            let grant = win(by, &mut held).await;
            let token = token(&held, &grant);
            assert!(token > last, "{token} after {last}");
            last = token;
            plain += u32::from(is_without_token(&server));
            contended(other.try_acquire(&claim("n", LONG)).await);
            let released = by.release(&held, ReleaseMode::now()).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        // An attempt that was contended uses the script for a while.
        let mut held = claim("n", LONG);
        win(&locks, &mut held).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        plain >= 3
    })
    .await;
    assert_eq!(server.keys(), ["{n}%token"]);
}

#[tokio::test]
async fn the_first_renewal_stores_the_token() {
    let server = Server::start();
    let locks = server.client().await;
    let label = Label::new("web-1: a b");
    let mut held = taken_as(&server, &locks, Some(&label)).await;
    let show = async || locks.inspect(&name("n")).await.unwrap().holders.remove(0);
    let before = show().await;
    assert_eq!((before.owner, before.label), (Some(held.owner), Some(label.clone())));
    assert_eq!((before.token, before.held_for), (None, None));
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let Ok(Renewal::Held(grant)) = renew(&locks, &held).await else { panic!("it is held") };
        tokens.push(grant.token);
        held.ticket = grant.ticket;
    }
    let after = show().await;
    assert_eq!((after.owner, after.label), (Some(held.owner), Some(label)));
    assert_eq!(tokens, [after.token; 3]);
    assert!(after.held_for.is_some());
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    assert_eq!(server.get("n"), None);
}

#[tokio::test]
async fn the_memory_limit_ends_no_hold() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = taken(&server, &locks).await;
    let mut lost = held.clone();
    lost.ticket = None;
    let _: String = server.run("CONFIG SET maxmemory 1");
    for claim in [&mut held, &mut lost] {
        let Ok(Renewal::Held(grant)) = renew(&locks, claim).await else { panic!("it is held") };
        claim.ticket = grant.ticket;
    }
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    assert_eq!(server.get("n"), None);
}

/// A claim that has lost the answer to its attempt does not know its token.
#[tokio::test]
async fn a_renewal_without_a_ticket_gets_a_higher_token() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    let mut held = taken(&server, &locks).await;
    held.ticket = None;
    let Ok(Renewal::Held(first)) = renew(&locks, &held).await else { panic!("it is held") };
    let Ok(Renewal::Held(again)) = renew(&locks, &held).await else { panic!("it is held") };
    assert_eq!(first.token, again.token);
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    let next = granted(other.try_acquire(&claim("n", LONG)).await);
    assert!(next.token > first.token);
}

#[tokio::test]
async fn a_repeated_attempt_is_the_same_hold_with_a_higher_token() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    let mut held = taken(&server, &locks).await;
    held.ticket = None;
    contended(other.try_acquire(&claim("n", LONG)).await);
    let last = server.get("{n}%token").map(|last| last.parse::<u64>().unwrap());
    let again = granted(locks.try_acquire(&held).await);
    assert!(again.token.map(FencingToken::backend_number) > last, "{again:?} after {last:?}");
    let third = granted(locks.try_acquire(&held).await);
    assert_eq!(again.token, third.token, "a script stores it");
    contended(other.try_acquire(&claim("n", LONG)).await);
}

/// Its release arrived first. The server lets it have the free lock, and the next attempt of any
/// client takes it away.
#[tokio::test]
async fn a_late_attempt_gives_way_to_the_next_one() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    for how in ["try", "queued"] {
        let late = claim("n", LONG);
        locks.release(&late, ReleaseMode::after_unknown_outcome()).await.unwrap();
        let value = format!("{} 0 label", late.owner.expose());
        let _: String = server.command(&["SET", "n", &value, "NX", "PX", "300000"]);
        let mut next = if how == "try" { claim("n", LONG) } else { waiter() };
        win(&other, &mut next).await;
        other.release(&next, ReleaseMode::now()).await.unwrap();
        assert_eq!(server.get("n"), None);
    }
    // The value of a claim that was not released stays.
    let value = format!("{} 0", claim("n", LONG).owner.expose());
    let _: String = server.command(&["SET", "n", &value, "NX", "PX", "300000"]);
    contended(other.try_acquire(&claim("n", LONG)).await);
}

/// The lock is free while a claim is queued: another client has deleted it.
#[tokio::test]
async fn an_attempt_without_a_script_overtakes_no_waiter() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    until("an attempt is made without a script", async || {
        let held = taken(&server, &locks).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let first = waiter();
        let _: String = server.run("SET n foreign");
        contended(other.try_acquire(&first).await);
        let _: u64 = server.run("DEL n");
        let before = server.calls("incrby");
        let second = waiter();
        contended(locks.try_acquire(&second).await);
        assert!(server.get("n").unwrap().starts_with(&first.owner.expose()));
        let is_without_script = server.calls("incrby") > before;
        locks.release(&second, ReleaseMode::after_unknown_outcome()).await.unwrap();
        other.release(&first, ReleaseMode::after_unknown_outcome()).await.unwrap();
        is_without_script
    })
    .await;
    assert_eq!(server.get("n"), None);
}

/// Also if the operator has taken the expiry of the lock away.
#[tokio::test]
async fn a_waiter_that_came_after_the_grant_gets_the_lock_by_the_release() {
    for persists in [false, true] {
        let server = Server::start();
        let (locks, other) = (server.client().await, server.client().await);
        let held = taken(&server, &locks).await;
        if persists {
            let _: i64 = server.run("PERSIST n");
        }
        let waiter = waiter();
        contended(other.try_acquire(&waiter).await);
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        assert!(server.get("n").unwrap().starts_with(&waiter.owner.expose()));
    }
}

/// Checks a waiter without a queue entry, and one that sets no release key when it asks.
#[tokio::test]
async fn waiters_that_race_are_woken_by_the_release() {
    for on_contention in [OnContention::Queue, OnContention::Return] {
        let server = Server::start();
        let (locks, other) = (server.client().await, server.client_in_any_order().await);
        let held = taken(&server, &locks).await;
        let mut racing = waiter();
        racing.on_contention = on_contention;
        contended(other.try_acquire(&racing).await);
        let resting = tokio::spawn({
            let (other, racing) = (other.clone(), racing.clone());
            async move { other.wait(&racing).await }
        });
        eventually(|| server.get("n").is_some_and(|value| value.ends_with(' '))).await;
        eventually(|| server.calls("client|caching") > 2).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        // Its lease lasts for five minutes.
        let woken = tokio::time::timeout(Duration::from_secs(20), resting).await;
        woken.expect("it is woken").unwrap().unwrap();
    }
}

/// The caller drops a release whose request is on its way, and releases again.
#[tokio::test]
async fn a_release_that_is_dropped_and_repeated_serves_the_waiter() {
    let server = Server::start();
    let way = Proxy::start(server.addr()).unwrap();
    let locks = Redis::connect(format!("redis://{}", way.addr())).await.unwrap();
    let other = server.client().await;
    // So that the server has the script.
    let first = taken(&server, &locks).await;
    locks.release(&first, ReleaseMode::now()).await.unwrap();
    for waits in [false, true] {
        let held = taken(&server, &locks).await;
        let waiter = waiter();
        if waits {
            contended(other.try_acquire(&waiter).await);
        }
        way.set(Fault::BlackHole);
        let dropped = locks.release(&held, ReleaseMode::now());
        assert!(tokio::time::timeout(Duration::from_millis(50), dropped).await.is_err());
        way.heal();
        let again = locks.release(&held, ReleaseMode::now()).await.unwrap();
        // Without a waiter, the first request has done it.
        let expected = if waits { Release::Released } else { Release::NotHeld };
        assert_eq!(again, expected);
        let value = server.get("n");
        assert_eq!(waits, value.is_some_and(|it| it.starts_with(&waiter.owner.expose())));
    }
}

#[tokio::test]
async fn a_lost_or_damaged_token_key_lowers_no_token() {
    let server = Server::start();
    let locks = server.client().await;
    for damage in ["DEL {n}%token", "SET {n}%token 17", "SET {n}%token x", "FLUSHALL"] {
        let held = taken(&server, &locks).await;
        let mut again = held.clone();
        again.ticket = None;
        let before = granted(locks.try_acquire(&again).await);
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let held = taken(&server, &locks).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let _: redis::Value = server.run(damage);
        let mut next = claim("n", LONG);
        if damage.ends_with('x') {
            let fault = locks.try_acquire(&next).await.unwrap_err();
            assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Invalid));
            assert_eq!(server.get("n"), None);
            let _: u64 = server.run("DEL {n}%token");
        }
        let grant = win(&locks, &mut next).await;
        assert!(grant.token > before.token, "{damage}");
        assert!(server.pttl("{n}%token") > 0, "{damage}");
        locks.release(&next, ReleaseMode::now()).await.unwrap();
    }
}

/// A damaged key would otherwise look like a number afterwards, and one at the limit would be used
/// up.
#[tokio::test]
async fn a_claim_that_is_queued_raises_only_a_usable_number() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    granted(locks.try_acquire(&claim("n", LONG)).await);
    for (before, after) in [
        ("1764000000000000", "1764000000000001"),
        ("1764000000000000 x", "1764000000000000 x"),
        ("12345678901234567", "12345678901234567"),
        ("9007199254740000", "9007199254740000"),
    ] {
        let _: String = server.command(&["SET", "{n}%token", before]);
        let waiter = waiter();
        contended(other.try_acquire(&waiter).await);
        assert_eq!(server.get("{n}%token").as_deref(), Some(after));
        other.release(&waiter, ReleaseMode::now()).await.unwrap();
    }
}

/// Members of a quorum are asked for one number, which is above their clocks. An attempt that fails
/// leaves the token key that much higher.
#[tokio::test]
async fn a_minimum_token_needs_no_script_up_to_a_second_ahead() {
    let server = Server::start();
    let locks = server.client().await;
    for (ahead, needs_script) in [(500_000, false), (2_000_000, true), (650_000_000, true)] {
        until("the last attempt follows a recent release", async || {
            let first = taken(&server, &locks).await;
            let last: u64 = server.get("{n}%token").unwrap().parse().unwrap();
            locks.release(&first, ReleaseMode::now()).await.unwrap();
            let mut high = claim("n", LONG);
            high.min_token = FencingToken::from_backend(last + ahead);
            let grant = win(&locks, &mut high).await;
            let is_taken = is_without_token(&server);
            locks.release(&high, ReleaseMode::now()).await.unwrap();
            let _: u64 = server.run("DEL {n}%token");
            assert!(grant.token > high.min_token && !(needs_script && is_taken));
            // If the machine pauses, the script finds that the clock has passed the first two.
            let is_next = token(&high, &grant) == last + ahead + 1;
            assert!(is_next || (!is_taken && ahead < 600_000_000));
            is_taken != needs_script
        })
        .await;
    }
}

/// A token key that expired before the clock has passed it would be followed by lower tokens.
#[tokio::test]
async fn tokens_without_a_script_do_not_outrun_the_token_key() {
    let server = Server::start();
    let locks = server.client().await;
    let (mut last, mut by_script) = (0, 0);
    until("so many leaps in a row that one needs a script", async || {
        let mut high = claim("n", if last == by_script { LONG } else { LONG / 2 });
        high.min_token = FencingToken::from_backend(last + 990_000);
        let grant = win(&locks, &mut high).await;
        let (before, needed_script) = (last, !is_without_token(&server));
        last = token(&high, &grant);
        let is_at_limit = needed_script && before > by_script + 599_000_000;
        if needed_script {
            by_script = last;
        }
        assert!(last < by_script + 600_000_000);
        locks.release(&high, ReleaseMode::now()).await.unwrap();
        is_at_limit
    })
    .await;
}

#[tokio::test]
async fn a_minimum_token_is_exceeded() {
    let server = Server::start();
    let locks = server.client().await;
    let held = taken(&server, &locks).await;
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    let mut high = claim("n", LONG);
    high.min_token = FencingToken::from_backend(1 << 52);
    let grant = win(&locks, &mut high).await;
    assert!(grant.token > high.min_token);
    locks.release(&high, ReleaseMode::now()).await.unwrap();
    let next = granted(locks.try_acquire(&claim("n", LONG)).await);
    assert!(next.token > grant.token);
}

/// The script fails at a key that something else has written, after an attempt without a script.
#[tokio::test]
async fn an_attempt_that_fails_at_another_key_may_have_taken_the_lock() {
    let server = Server::start();
    let locks = server.client().await;
    for (damaged, claim) in [("{n}%queue", claim("n", LONG)), ("{n}%procs", waiter())] {
        let held = taken(&server, &locks).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let _: String = server.command(&["SET", damaged, "x"]);
        let _: u64 = server.run("DEL {n}%token");
        let fault = locks.try_acquire(&claim).await.unwrap_err();
        assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Invalid));
        locks.release(&claim, ReleaseMode::after_unknown_outcome()).await.unwrap();
        assert_eq!(server.get("n"), None);
        let _: u64 = server.command(&["DEL", damaged]);
    }
    let held = taken(&server, &locks).await;
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    let _: String = server.command(&["SET", "{n}%procs", "x"]);
    let _: u64 = server.run("DEL {n}%token");
    let error = Locker::new(locks).lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    until("core has released it", async || server.get("n").is_none()).await;
}

/// The server took the lock, and the client does not know it.
#[tokio::test]
async fn an_attempt_whose_answer_is_lost_is_undone_by_its_release() {
    a_lost_answer_is_undone(|| claim("n", LONG)).await;
}

#[tokio::test]
async fn a_claim_that_queues_undoes_an_attempt_whose_answer_is_lost() {
    a_lost_answer_is_undone(waiter).await;
}

/// As a member of a quorum, which is asked for a number ahead of its clock.
#[tokio::test]
async fn an_attempt_above_a_minimum_token_whose_answer_is_lost_is_undone() {
    a_lost_answer_is_undone(|| {
        let ahead = lock_core::clock::wall() + Duration::from_millis(500);
        let mut high = claim("n", LONG);
        high.min_token = FencingToken::from_backend(u64::try_from(ahead.as_micros()).unwrap());
        high
    })
    .await;
}

async fn a_lost_answer_is_undone(attempted: fn() -> Claim) {
    let server = Server::start();
    let way = Proxy::start(server.addr()).unwrap();
    let url = format!("redis://{}", way.addr());
    let (locks, other) = (Redis::connect(&*url).await.unwrap(), server.client().await);
    until("the attempt without a script is the one that is lost", async || {
        let held = taken(&server, &locks).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let before = server.calls("incrby");
        let cut = way.cut_after("INCRBY");
        let lost = attempted();
        let Err(fault) = locks.try_acquire(&lost).await else {
            assert!(cut.call_off());
            locks.release(&lost, ReleaseMode::after_unknown_outcome()).await.unwrap();
            return false;
        };
        assert_eq!(fault.effect(), Effect::Unknown);
        let is_taken = server.calls("incrby") > before;
        assert!(is_taken && !cut.call_off() && is_without_token(&server));
        let drawn: u64 = server.get("{n}%token").unwrap().parse().unwrap();
        assert!(lost.min_token.is_none_or(|min| drawn > min.backend_number()));
        locks.release(&lost, ReleaseMode::after_unknown_outcome()).await.unwrap();
        assert_eq!((server.get("n"), server.waiting("n")), (None, 0));
        let mut next = claim("n", LONG);
        let grant = win(&other, &mut next).await;
        assert!(grant.token.unwrap().backend_number() > drawn);
        other.release(&next, ReleaseMode::now()).await.unwrap();
        is_taken
    })
    .await;
}

/// A caller goes away while the commands are on their way, and the server gets them after the
/// release.
#[tokio::test]
async fn a_dropped_attempt_without_a_script_keeps_the_lock_from_no_client() {
    let server = Server::start();
    let way = Proxy::start(server.addr()).unwrap();
    let url = format!("redis://{}", way.addr());
    let (redis, other) = (Redis::connect(&*url).await.unwrap(), server.client().await);
    let locks = Locker::new(redis.clone());
    until("the dropped attempt is one without a script", async || {
        let held = taken(&server, &redis).await;
        redis.release(&held, ReleaseMode::now()).await.unwrap();
        let before = server.calls("incrby");
        let mut on_its_way = way.hold("NX");
        let lock = locks.lock("n").unwrap();
        let dropped = tokio::time::timeout(Duration::from_millis(50), lock.acquire()).await;
        if !on_its_way.is_caught() {
            assert!(on_its_way.call_off());
            drop(dropped);
            eventually(|| server.get("n").is_none()).await;
            return false;
        }
        assert!(dropped.is_err(), "no answer came");
        let is_tombstone = |key: &String| key.starts_with("{n}%gone:");
        eventually(|| server.keys().iter().any(is_tombstone)).await;
        on_its_way.deliver().await.unwrap();
        eventually(|| server.calls("incrby") > before).await;
        let mut next = claim("n", LONG);
        win(&other, &mut next).await;
        other.release(&next, ReleaseMode::now()).await.unwrap();
        true
    })
    .await;
}

/// Its rights do not include `INCRBY`: it is refused once, and the scripts need none.
#[tokio::test]
async fn a_user_who_may_not_increment_uses_scripts() {
    let server = Server::start();
    let locks = server.client().await;
    let _: String = server.run("ACL SETUSER default -incrby");
    for _ in 0..5 {
        let mut held = claim("n", LONG);
        win(&locks, &mut held).await;
        assert!(!is_without_token(&server));
        assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    let log: Vec<redis::Value> = server.run("ACL LOG");
    assert!(log.len() <= 1, "{log:?}");
    assert_eq!(server.keys(), ["{n}%token"]);
}

/// As after a step of the server's clock: the last token is ahead of it.
#[tokio::test]
async fn a_minimum_hold_shortens_no_token_key_that_is_ahead_of_the_clock() {
    let server = Server::start();
    let locks = server.client().await;
    let held = taken(&server, &locks).await;
    let last: u64 = server.get("{n}%token").unwrap().parse().unwrap();
    let ahead = (last + 3_600_000_000).to_string();
    let _: String = server.command(&["SET", "{n}%token", &ahead, "PX", "4200000"]);
    let keep = ReleaseMode::keep_for(Duration::from_millis(100));
    assert_eq!(locks.release(&held, keep).await.unwrap(), Release::Released);
    assert!(server.pttl("{n}%token") > 4_000_000, "{}", server.pttl("{n}%token"));
}

/// The answer to the first attempt was lost. A claim was queued after it.
#[tokio::test]
async fn a_repeated_attempt_does_not_lose_the_lock_to_a_waiter() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    let mut held = taken(&server, &locks).await;
    held.ticket = None;
    // The server counts leases in ms.
    eventually(|| server.pttl("n") < LONG as i64 - 5).await;
    let waiter = waiter();
    contended(other.try_acquire(&waiter).await);
    granted(locks.try_acquire(&held).await);
    locks.release(&held, ReleaseMode::now()).await.unwrap();
    assert!(server.get("n").unwrap().starts_with(&waiter.owner.expose()), "it is served");
}

/// It may have had the lock for a shorter lease, and the token key with it.
#[tokio::test]
async fn a_hold_of_another_client_in_between_is_noticed() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    until("the last attempt is made without a script", async || {
        let held = taken(&server, &locks).await;
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        let mut short = claim("n", 1000);
        win(&other, &mut short).await;
        other.release(&short, ReleaseMode::now()).await.unwrap();
        let before = server.calls("incrby");
        let mut held = claim("n", LONG);
        win(&locks, &mut held).await;
        assert!(!is_without_token(&server), "a script has stored it");
        assert!(server.pttl("{n}%token") > 800_000);
        locks.release(&held, ReleaseMode::now()).await.unwrap();
        server.calls("incrby") > before
    })
    .await;
}
