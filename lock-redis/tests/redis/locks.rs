//! The verbs on a real server: the keys that they leave, and foreign keys in their way.

use std::time::Duration;

use lock_core::backend::{
    Attempt, Claim, Effect, FaultKind, Lease, OnContention, Release, ReleaseMode, Renewal,
};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, FencingToken, Label, LockName, Locker};
use lock_redis::{Config, Redis};
use test_servers::RedisOptions;

use crate::least_rights::rights_to_delete;
use crate::support::{SOON, Server, claim, contended, granted, name, release, renew, win};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn pttl(server: &Server, key: &str) -> i64 {
    server.command(&["PTTL", key])
}

fn get(server: &Server, key: &str) -> Option<String> {
    server.command(&["GET", key])
}

/// Returns the number of the grant's token.
fn number(grant: &lock_core::backend::Grant) -> u64 {
    grant.token.expect("this backend has tokens").backend_number()
}

#[tokio::test]
async fn a_lock_is_a_plain_key_with_an_expiry() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("orders/42", 30 * SECOND);
    ours.label = Some(Label::new("web-1 é"));
    let grant = win(&locks, &mut ours).await;
    let value = get(&server, "orders/42").unwrap();
    assert_eq!(value, format!("{} {} web-1 é", ours.owner.expose(), number(&grant)));
    assert_eq!(get(&server, "{orders/42}%token").unwrap(), number(&grant).to_string());
    assert!((29_000..=30_000).contains(&pttl(&server, "orders/42")));
    assert!(pttl(&server, "{orders/42}%token") > 600_000, "the fence outlives the lock");

    let state = locks.inspect(&ours.name).await.unwrap();
    let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
    assert_eq!((holder.owner, &holder.label), (Some(ours.owner), &ours.label));
    assert!(
        holder.held_for.unwrap() < ms(10 * SECOND) && holder.expires_in.unwrap() > ms(20 * SECOND)
    );

    release(&locks, &ours).await;
    assert_eq!(server.keys(), ["{orders/42}%token"], "the fence stays, for ten minutes");
    assert!((600_000..=630_000).contains(&pttl(&server, "{orders/42}%token")));
}

#[tokio::test]
async fn an_attempt_repeated_is_the_same_acquisition() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("n", 30 * SECOND);
    let first = win(&locks, &mut ours).await;
    ours.ttl = ms(SECOND);
    let second = granted(locks.try_acquire(&ours).await);
    assert_eq!(first.token, second.token);
    let Lease::For(lease) = second.lease else { panic!("{second:?}") };
    assert!(lease > ms(20 * SECOND), "what is left, not what was asked for");
    assert!(pttl(&server, "n") > 20_000, "never shorter");
    ours.ttl = ms(60 * SECOND);
    granted(locks.try_acquire(&ours).await);
    assert!(pttl(&server, "n") > 50_000, "longer if asked for");
    assert!(pttl(&server, "{n}%token") > 650_000, "and so is the fence");
    // Even if the token key is lost: the value of the lock has the token.
    let _: u64 = server.run("DEL {n}%token");
    assert_eq!(granted(locks.try_acquire(&ours).await).token, first.token);
    let Ok(Renewal::Held(renewed)) = renew(&locks, &ours).await else { panic!("lost") };
    assert_eq!(renewed.token, first.token);
    release(&locks, &ours).await;
    let again = granted(locks.try_acquire(&claim("n", SECOND)).await);
    assert!(again.token > first.token);
}

#[tokio::test]
async fn a_minimum_token_is_exceeded_once() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("n", 30 * SECOND);
    let first = number(&win(&locks, &mut ours).await);
    ours.min_token = FencingToken::from_backend(first - 1);
    assert_eq!(number(&granted(locks.try_acquire(&ours).await)), first, "it is above already");
    ours.min_token = FencingToken::from_backend(first + 1_000_000_000);
    let raised = number(&granted(locks.try_acquire(&ours).await));
    assert_eq!(raised, first + 1_000_000_001);
    assert_eq!(number(&granted(locks.try_acquire(&ours).await)), raised);
    let Ok(Renewal::Held(renewed)) = renew(&locks, &ours).await else { panic!("lost") };
    assert_eq!(number(&renewed), raised);
    ours.ticket = renewed.ticket;
    locks.release(&ours, ReleaseMode::now()).await.unwrap();
    let next = number(&granted(locks.try_acquire(&claim("n", SECOND)).await));
    assert_eq!(next, raised + 1, "a counter that is ahead of the clock counts on");
}

#[tokio::test]
async fn a_token_ahead_of_the_clock_stays_until_the_clock_has_passed_it() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("n", 30 * SECOND);
    let first = win(&locks, &mut ours).await.token.unwrap();
    // An hour ahead, as another server's clock may be.
    let hour = 3_600_000_000;
    ours.min_token = FencingToken::from_backend(first.backend_number() + hour);
    win(&locks, &mut ours).await;
    let ahead = |server: &Server| pttl(server, "{n}%token") > 3_600_000;
    assert!(ahead(&server));
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))));
    assert!(ahead(&server));
    locks.release(&ours, ReleaseMode::now()).await.unwrap();
    assert!(ahead(&server), "let go");
    let ours = claim("n", 30 * SECOND);
    granted(locks.try_acquire(&ours).await);
    assert!(locks.break_lock(&ours.name, &ours.owner).await.unwrap());
    assert!(ahead(&server), "broken");

    // A member of a quorum is asked like this: for a free lock.
    let mut free = claim("free", 30 * SECOND);
    let min_token = first.backend_number() + 2 * hour;
    free.min_token = FencingToken::from_backend(min_token);
    assert_eq!(number(&win(&locks, &mut free).await), min_token + 1);
    let stays = pttl(&server, "{free}%token");
    assert!(stays > 2 * 3_600_000, "the fence of a free lock stays for {stays} ms only");
    locks.release(&free, ReleaseMode::now()).await.unwrap();
    free = claim("free", 30 * SECOND);
    free.min_token = FencingToken::from_backend(min_token - hour);
    assert_eq!(number(&win(&locks, &mut free).await), min_token + 2, "above what is stored, too");
}

#[tokio::test]
async fn a_long_foreign_value_is_not_read_in_full() {
    let server = Server::start();
    let locks = server.client().await;
    let _: u64 = server.command(&["SETRANGE", "n", "50000000", "f"]);
    let sent = |server: &Server| -> u64 {
        let stats: String = server.run("INFO stats");
        let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        line.unwrap().parse().unwrap()
    };
    let before = sent(&server);
    let mut waiter = claim("n", 30 * SECOND);
    waiter.on_contention = OnContention::Queue;
    contended(locks.try_acquire(&waiter).await);
    let waiting = tokio::time::timeout(ms(200), locks.wait(&waiter)).await;
    assert!(waiting.is_err(), "nothing has changed");
    locks.inspect(&waiter.name).await.unwrap();
    assert!(sent(&server) - before < 100_000, "{} bytes were sent", sent(&server) - before);
    // The empty string is a value, too.
    let _: String = server.command(&["SET", "empty", ""]);
    assert_eq!(contended(locks.try_acquire(&claim("empty", SECOND)).await), None);
    assert_eq!(locks.inspect(&name("empty")).await.unwrap().holders.len(), 1);
}

#[tokio::test]
async fn a_lock_of_ours_that_was_made_endless_gets_an_end_again() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("n", 30 * SECOND);
    win(&locks, &mut ours).await;
    for again in ["renewal", "attempt"] {
        let _: u64 = server.run("PERSIST n");
        match again {
            "renewal" => drop(renew(&locks, &ours).await.unwrap()),
            _ => drop(granted(locks.try_acquire(&ours).await)),
        }
        assert!((29_000..=30_000).contains(&pttl(&server, "n")), "{again}");
    }
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = Server::start();
    let locks = server.client().await;
    let flush = || server.run::<String>("SCRIPT FLUSH");
    let mut ours = claim("n", 30 * SECOND);
    let _: String = server.command(&["SET", "{n}%token", "8000000000000000"]);
    flush();
    let grant = win(&locks, &mut ours).await;
    assert_eq!(number(&grant), 8_000_000_000_000_001, "applied once");
    flush();
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))));
    flush();
    contended(locks.try_acquire(&claim("n", SECOND)).await);
    flush();
    assert_eq!(locks.inspect(&ours.name).await.unwrap().holders.len(), 1);
    flush();
    assert!(!locks.break_lock(&ours.name, &claim("n", 1).owner).await.unwrap());
    flush();
    release(&locks, &ours).await;
    assert_eq!(get(&server, "{n}%token").unwrap(), "8000000000000001");
}

#[tokio::test]
async fn lost_data_is_notified_and_tokens_still_grow() {
    let server = Server::start();
    let locks = server.client().await;
    let mut last = None;
    for disaster in ["flush", "restart", "restart"] {
        let mut ours = claim("n", 30 * SECOND);
        let grant = win(&locks, &mut ours).await;
        assert!(grant.token > last, "after {disaster}");
        last = grant.token;
        if disaster == "flush" {
            let _: String = server.run("FLUSHALL");
        } else {
            server.kill();
            server.start_again();
            // The first request may find the connection dead.
            let _ = locks.inspect(&ours.name).await;
        }
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
        assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
        assert_eq!(locks.inspect(&ours.name).await.unwrap().holders, []);
    }
}

#[tokio::test]
async fn tokens_do_not_go_back_with_a_stale_counter() {
    let server = Server::start();
    let locks = server.client().await;
    let next = async || {
        let grant = granted(locks.try_acquire(&claim("n", 10)).await);
        let _: u64 = server.run("DEL n");
        number(&grant)
    };
    let (first, last) = (next().await, [next().await, next().await][1]);
    // The token that a snapshot or a replica may know.
    let _: String = server.run(&format!("SET {{n}}%token {first}"));
    assert!(next().await > last);
}

#[tokio::test]
async fn foreign_keys_are_refused_and_left_alone() {
    let server = Server::start();
    let locks = server.client().await;
    let invalid = |answer: Result<Attempt, lock_core::backend::Fault>, word: &str| {
        let fault = answer.expect_err(word);
        assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Invalid));
        let why = fault.into_source().to_string();
        assert!(why.contains(word), "{why}");
    };
    let _: u64 = server.run("RPUSH list a b");
    invalid(locks.try_acquire(&claim("list", SECOND)).await, "the key of the lock");
    assert_eq!(locks.inspect(&name("list")).await.unwrap_err().kind(), FaultKind::Invalid);
    assert!(matches!(renew(&locks, &claim("list", SECOND)).await, Ok(Renewal::NotHeld)));
    let how = ReleaseMode::after_unknown_outcome();
    assert_eq!(locks.release(&claim("list", SECOND), how).await.unwrap(), Release::NotHeld);
    assert_eq!(server.run::<u64>("LLEN list"), 2);

    let _: u64 = server.run("RPUSH {a}%token x");
    invalid(locks.try_acquire(&claim("a", SECOND)).await, "token key");
    for odd in ["x", "", "-5", "0x10", "1e3", "1.5", " 1", "99999999999999999999"] {
        let _: String = server.command(&["SET", "{a}%token", odd]);
        invalid(locks.try_acquire(&claim("a", SECOND)).await, "token key");
    }
    let _: String = server.run("SET {a}%token 9007199254740990");
    let last = claim("a", SECOND);
    assert_eq!(number(&granted(locks.try_acquire(&last).await)), 9_007_199_254_740_991);
    locks.release(&last, ReleaseMode::now()).await.unwrap();
    invalid(locks.try_acquire(&claim("a", SECOND)).await, "used up");
    // Without the number, tokens go back.
    for last in ["9007199254740991", "9007199254740992", "99999999999999999999"] {
        let _: String = server.command(&["SET", "{a}%token", last]);
        let fault = locks.try_acquire(&claim("a", SECOND)).await.unwrap_err();
        assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Invalid));
        let why = fault.into_source().to_string();
        assert!(!why.contains("delete") && !why.contains("other than a number"), "{last}: {why}");
        assert_eq!(get(&server, "{a}%token").as_deref(), Some(last));
    }
    let mut high = claim("b", SECOND);
    high.min_token = FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER);
    invalid(locks.try_acquire(&high).await, "used up");
    for lock in ["a", "b"] {
        assert_eq!(get(&server, lock), None, "no lock is left behind");
    }
}

#[tokio::test]
async fn at_the_memory_limit_held_locks_are_renewed_and_released() {
    let server = Server::start();
    let locks = server.client().await;
    let (mut one, mut two) = (claim("one", 30 * SECOND), claim("two", 30 * SECOND));
    win(&locks, &mut one).await;
    win(&locks, &mut two).await;
    let late = claim("late", 30 * SECOND);
    let _: String = server.run("CONFIG SET maxmemory 1");
    let fault = locks.try_acquire(&claim("three", SECOND)).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    let why = fault.into_source().to_string();
    assert!(why.contains("maxmemory"), "{why}");
    assert!(get(&server, "three").is_none() && get(&server, "{three}%token").is_none());
    contended(locks.try_acquire(&claim("one", SECOND)).await);
    one.ttl = ms(MINUTE);
    granted(locks.try_acquire(&one).await);
    assert!(matches!(renew(&locks, &one).await, Ok(Renewal::Held(_))));
    assert!(pttl(&server, "one") > 40_000);
    release(&locks, &one).await;
    // The value changes even here, or a late renewal would prolong the minimum hold.
    let keep = ReleaseMode::keep_for(ms(20 * SECOND));
    assert_eq!(locks.release(&two, keep).await.unwrap(), Release::Released);
    assert!((10_000..=20_000).contains(&pttl(&server, "two")));
    assert!(matches!(renew(&locks, &two).await, Ok(Renewal::NotHeld)));
    // The tombstone is written as well.
    let how = ReleaseMode::after_unknown_outcome();
    assert_eq!(locks.release(&late, how).await.unwrap(), Release::NotHeld);
    let _: String = server.run("CONFIG SET maxmemory 0");
    assert!(locks.try_acquire(&late).await.is_err());
}

#[tokio::test]
async fn other_libraries_exclude_us_and_we_them() {
    let server = Server::start();
    let locks = server.client().await;
    // redis-py's token is 32 hex digits, and the right to unlock.
    let theirs = "0123456789abcdef0123456789abcdef";
    let set = ["SET", "n", theirs, "NX", "PX", "20000"];
    let _: String = server.command(&set);
    let expires_in = contended(locks.try_acquire(&claim("n", SECOND)).await).unwrap();
    assert!(expires_in > ms(10 * SECOND) && expires_in <= ms(20 * SECOND));
    let state = locks.inspect(&name("n")).await.unwrap();
    let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
    assert_eq!((holder.owner, holder.token), (None, None));
    assert!(!format!("{state:?}").contains(&theirs[..9]));
    let mut thief = claim("n", SECOND);
    thief.owner = theirs.parse().unwrap();
    assert!(!locks.break_lock(&thief.name, &claim("n", 1).owner).await.unwrap());
    let _: u64 = server.run("PERSIST n");
    assert_eq!(contended(locks.try_acquire(&claim("n", SECOND)).await), None);
    let _: String = server.command(&["SET", "n", "\u{0}binary\u{7f}", "PX", "20000"]);
    contended(locks.try_acquire(&claim("n", SECOND)).await);
    assert_eq!(locks.inspect(&name("n")).await.unwrap().holders.len(), 1);
    let _: u64 = server.run("DEL n");

    let mut ours = claim("n", 20 * SECOND);
    win(&locks, &mut ours).await;
    assert_eq!(server.command::<Option<String>>(&set), None, "theirs is refused");
    release(&locks, &ours).await;
    assert_eq!(server.command::<Option<String>>(&set).as_deref(), Some("OK"));
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_eq!(get(&server, "n").as_deref(), Some(theirs));
}

#[tokio::test]
async fn a_lock_with_an_expired_lease_is_free() {
    let server = Server::start();
    let locks = server.client().await;
    let mut ours = claim("n", 50);
    let first = win(&locks, &mut ours).await;
    let next = claim("n", SECOND);
    let mut grant = None;
    for _ in 0..1000 {
        match locks.try_acquire(&next).await.unwrap() {
            Attempt::Acquired(granted) => {
                grant = Some(granted);
                break;
            }
            Attempt::Contended { expires_in } => {
                sleep(expires_in.unwrap() + ms(1)).await;
            }
        }
    }
    assert!(grant.expect("it lapsed").token > first.token);
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert!(get(&server, "n").unwrap().starts_with(&next.owner.expose()));
}

#[tokio::test]
async fn an_attempt_after_the_release_is_refused() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", 30 * SECOND);
    win(&locks, &mut held).await;
    assert_eq!(
        locks.release(&held, ReleaseMode::after_unknown_outcome()).await.unwrap(),
        Release::Released
    );
    let fault = locks.try_acquire(&held).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Invalid));
    let tombstone = format!("{{n}}%gone:{}", held.owner.expose());
    assert!((50_000..=60_000).contains(&pttl(&server, &tombstone)));
    assert_eq!(server.keys(), [tombstone, "{n}%token".to_owned()]);
    granted(locks.try_acquire(&claim("n", SECOND)).await);
}

#[tokio::test]
async fn no_claim_prolongs_a_minimum_hold() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", 30 * SECOND);
    win(&locks, &mut held).await;
    let keep = ReleaseMode::keep_for(ms(10 * SECOND));
    assert_eq!(locks.release(&held, keep).await.unwrap(), Release::Released);
    // A request that was still on its way.
    assert!(matches!(renew(&locks, &held).await, Ok(Renewal::NotHeld)));
    contended(locks.try_acquire(&held).await);
    assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert!((5_000..=10_000).contains(&pttl(&server, "n")));
    // An operator sees the former owner, and can end the minimum hold.
    let state = locks.inspect(&held.name).await.unwrap();
    assert_eq!(state.holders[0].owner, Some(held.owner));
    assert!(locks.break_lock(&held.name, &held.owner).await.unwrap());
    assert_eq!(server.keys(), ["{n}%token"]);
}

#[tokio::test]
async fn a_large_batch_is_renewed_in_parts() {
    let server = Server::start();
    let locks = server.client().await;
    let mut claims = Vec::new();
    for i in 0..150 {
        let mut claim = claim(&format!("n{i}"), 30 * SECOND);
        win(&locks, &mut claim).await;
        claim.ttl = ms(if i % 2 == 0 { SECOND } else { 60 * SECOND });
        claims.push(claim);
    }
    let calls = async |claims: &mut [Claim]| {
        let before = server.calls("evalsha");
        let answers = locks.renew(&claims.iter().collect::<Vec<_>>()).await;
        for (claim, answer) in claims.iter_mut().zip(answers) {
            let Ok(Renewal::Held(grant)) = answer else { panic!("{answer:?}") };
            claim.ticket = grant.ticket;
        }
        server.calls("evalsha") - before
    };
    // A longer lease, or a token key that may expire before the lease, rules out a plain renewal.
    assert_eq!(
        calls(&mut claims).await,
        6,
        "a part and three, by two scripts that are to be loaded"
    );
    assert!((20_000..=30_000).contains(&pttl(&server, "n0")), "never shorter");
    assert!((50_000..=60_000).contains(&pttl(&server, "n149")));
    assert!(pttl(&server, "{n149}%token") > 600_000);
    claims.iter_mut().for_each(|claim| claim.ttl = ms(70 * SECOND));
    assert_eq!(calls(&mut claims).await, 3, "half of them are news, the others are plain");
    assert_eq!(calls(&mut claims).await, 3);
    assert!((60_000..=70_000).contains(&pttl(&server, "n0")));
}

#[tokio::test]
async fn each_renewal_of_a_batch_is_answered_for_itself() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    let mut claims: Vec<_> = (0..6).map(|i| claim(&format!("n{i}"), 30 * SECOND)).collect();
    for claim in &mut claims {
        win(&locks, claim).await;
        // The second one is a plain one.
        let Ok(Renewal::Held(grant)) = renew(&locks, claim).await else { panic!("lost") };
        claim.ticket = grant.ticket;
    }
    let _: u64 = server.run("DEL n1 n3 n4");
    let mut next = claim("n3", 30 * SECOND);
    win(&other, &mut next).await;
    let _: u64 = server.run("RPUSH n4 list");
    let _: u64 = server.run("PEXPIRE n5 60000");
    let answers = locks.renew(&claims.iter().collect::<Vec<_>>()).await;
    let is_held = answers.iter().map(|answer| matches!(answer, Ok(Renewal::Held(_))));
    assert_eq!(is_held.collect::<Vec<_>>(), [true, false, true, false, false, true]);
    assert!(!answers.iter().any(Result::is_err), "{answers:?}");
    assert!(matches!(renew(&other, &next).await, Ok(Renewal::Held(_))));
    assert!(pttl(&server, "n5") > 50_000, "never shorter");
    assert_eq!(server.keys().iter().filter(|key| *key == "n1").count(), 0, "never again");
}

#[tokio::test]
async fn a_token_key_outlives_its_lock_however_long_it_is_held() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", 30 * SECOND);
    win(&locks, &mut held).await;
    let renewed = async |held: &mut Claim| {
        let Ok(Renewal::Held(grant)) = renew(&locks, held).await else { panic!("lost") };
        held.ticket = grant.ticket;
    };
    // For the renewals of ten minutes.
    renewed(&mut held).await;
    assert!(pttl(&server, "{n}%token") > 20 * 60_000);
    let _: u64 = server.run("PEXPIRE {n}%token 1000");
    renewed(&mut held).await;
    assert!(pttl(&server, "{n}%token") <= 1000, "it is not due");
    held.ttl = ms(30 * MINUTE);
    renewed(&mut held).await;
    assert!(pttl(&server, "{n}%token") > 49 * 60_000);
    // A client that has adopted the lock does not know its token key, and prolongs it.
    held.ticket = None;
    let _: u64 = server.run("PEXPIRE {n}%token 1000");
    renewed(&mut held).await;
    assert!(pttl(&server, "{n}%token") > 49 * 60_000);
    // A minimum hold counts as held.
    let keep = ReleaseMode::keep_for(ms(60 * MINUTE));
    assert_eq!(locks.release(&held, keep).await.unwrap(), Release::Released);
    assert!(pttl(&server, "{n}%token") > 69 * 60_000);
}

#[tokio::test]
async fn databases_and_prefixes_are_lock_spaces() {
    let server = Server::start();
    let urls = [String::new(), "/3".into(), "?prefix=a:".into(), "?prefix={b}/".into()];
    for url in &urls {
        let locks = Redis::connect(server.url() + url).await.unwrap();
        granted(locks.try_acquire(&claim("n:1", 30 * SECOND)).await);
    }
    let expected =
        ["a:n%3A1", "n:1", "{a:n%3A1}%token", "{b}/n:1", "{b}/n:1%:token", "{n:1}%token"];
    assert_eq!(server.keys(), expected);
    let config = Config::new(&server.url()).unwrap().prefix("a:").unwrap();
    let same = Redis::connect(config).await.unwrap();
    contended(same.try_acquire(&claim("n:1", SECOND)).await);
}

#[tokio::test]
async fn a_unix_socket_is_a_way_too() {
    let server = Server::start();
    let socket = server.unix_socket();
    let locks = Redis::connect(format!("redis+unix://{}?db=2", socket.display())).await.unwrap();
    let ours = claim("n", 30 * SECOND);
    granted(locks.try_acquire(&ours).await);
    assert_eq!(server.keys(), [""; 0], "it is in the other database");
    release(&locks, &ours).await;
    let identity = locks.identity().await.unwrap().unwrap();
    let over_tcp = server.client().await.identity().await.unwrap().unwrap();
    assert_eq!(identity.id, over_tcp.id, "both reach the same server");
    assert!(identity.up_for.unwrap() < ms(10 * MINUTE));
    let other = Server::start().client().await.identity().await.unwrap().unwrap();
    assert_ne!(identity.id, other.id);
}

/// Checks that the reported age is not too high: a quorum ignores a server that is younger than a
/// lease.
#[tokio::test]
async fn a_server_is_no_older_than_it_is() {
    let began = Moment::now();
    let server = Server::start();
    let locks = server.client().await;
    while Moment::now().saturating_since(began) < ms(2500) {
        let told = locks.identity().await.unwrap().unwrap().up_for.expect("it tells");
        let age = Moment::now().saturating_since(began);
        assert!(told <= age, "{told:?}, and it was started {age:?} ago");
        sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn nothing_stays_for_ever() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let long = "x".repeat(1000);
    for text in ["a", "{a}", "a}b", "{}", "é", "a b", "%", long.as_str()] {
        let lock = locks.lock(LockName::new(text).unwrap()).unwrap();
        let guard = lock.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let dropped = lock.try_acquire().await.unwrap().expect("it is free");
        drop(dropped);
    }
    locks.close().await.unwrap();
    let keys = server.keys();
    assert_eq!(keys.len(), 8, "{keys:?}");
    for key in keys {
        assert!(key.ends_with("token"), "{key}");
        // Ten minutes, and the lease that was not needed.
        assert!((1..=630_000).contains(&pttl(&server, &key)), "{key}");
    }
}

#[tokio::test]
async fn a_pair_is_two_commands_and_the_server_remembers_nothing_of_it() {
    let server = Server::start();
    let locks = server.client().await;
    let pair = async |text: &str| {
        let mut ours = claim(text, 30 * SECOND);
        win(&locks, &mut ours).await;
        locks.release(&ours, ReleaseMode::now()).await.unwrap();
    };
    pair("n").await;
    for i in 0..100 {
        pair(&format!("n{i}")).await;
    }
    // One for the trial of rights, and two that were not loaded yet.
    match rights_to_delete() {
        "" => assert_eq!(server.calls("evalsha"), 1 + 2 + 2 + 200),
        _ => assert_eq!((server.calls("evalsha"), server.calls("delifeq")), (1 + 2 + 100, 101)),
    }
    // The commands of the scripts are the whole cost, with a token key that exists.
    let commands = ["exists", "getrange", "time", "set", "del", "pttl", "pexpire"];
    // By a client that has not had the lock a moment ago.
    let other = server.client().await;
    let before = commands.map(|command| server.calls(command));
    let mut ours = claim("n", 30 * SECOND);
    win(&other, &mut ours).await;
    other.release(&ours, ReleaseMode::now()).await.unwrap();
    let spent = std::iter::zip(commands.map(|command| server.calls(command)), before);
    assert_eq!(
        spent.map(|(after, before)| after - before).collect::<Vec<_>>(),
        if rights_to_delete().is_empty() { [2, 2, 1, 2, 1, 0, 0] } else { [1, 1, 1, 2, 0, 0, 0] }
    );
    let stats: String = server.run("INFO stats");
    assert!(
        stats.contains("tracking_total_keys:0"),
        "keys of locks that nobody waits for are watched"
    );
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_reported() {
    let nobody = Redis::connect("redis://127.0.0.1:1").await.unwrap_err();
    assert_eq!((nobody.kind(), nobody.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    let text = format!("{nobody}: {}", std::error::Error::source(&nobody).unwrap());
    assert!(text.contains("127.0.0.1:1"), "{text}");
    let server = Server::with_options(RedisOptions::new().cluster_member());
    let member = Redis::connect(server.url()).await.unwrap_err();
    assert_eq!(member.kind(), ErrorKind::Unsupported);
    let server = Server::start();
    let database = Redis::connect(server.url() + "/99").await.unwrap_err();
    assert_eq!(database.kind(), ErrorKind::Invalid);
}

/// The runtime has one thread, and a loss watch that never yields would keep it for good.
#[test]
fn a_release_during_a_loss_watch_does_not_block_the_thread() {
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = Server::start();
            let locks = server.client().await;
            let mut ours = claim("n", MINUTE);
            win(&locks, &mut ours).await;
            let (watching, watched) = (locks.clone(), ours.clone());
            let watch = tokio::spawn(async move { watching.wait_lost(&watched).await });
            // It has sent its request, and no reply is read before the release begins.
            tokio::task::yield_now().await;
            release(&locks, &ours).await;
            watch.await.unwrap().expect("the end of the hold is noticed");
        });
        ends.send(()).unwrap();
    });
    ended.recv_timeout(SOON).expect("the thread goes on");
}
