//! Mixed fleets: real lock libraries of other languages on the same key, in both directions.

use std::time::Duration;

use lock_core::backend::{Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{
    Backend, Error, ErrorKind, FencingToken, Label, Lock, LockGuard, Locker, OwnerId, Wakeup,
};
use lock_redis::Redis;
use test_servers::peers::Library::{self, Laravel, RedisPy, Symfony};
use test_servers::peers::Peer;
use tokio::task::JoinHandle;

use crate::support::{LONG, Server, claim, contended, eventually, name, renew, win};

const SECOND: u64 = 1000;

/// The longest wait for an event on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

/// Makes a test of each function for each library.
macro_rules! with_each_library {
    ($($test:ident)*) => {
        mod redis_py {
            $(#[tokio::test] async fn $test() { super::$test(super::RedisPy).await; })*
        }
        mod laravel {
            $(#[tokio::test] async fn $test() { super::$test(super::Laravel).await; })*
        }
    };
}

with_each_library! {
    their_locks_are_contended_and_shown_without_an_owner
    their_release_wakes_our_waiter
    the_end_of_their_lease_lets_our_waiter_in
    without_signals_our_waiter_polls
    our_locks_are_contended_for_them
    our_renewals_keep_them_out
    our_minimum_hold_keeps_them_out
    our_late_verbs_leave_their_lock_alone
    their_late_verbs_leave_our_lock_alone
}

async fn their_locks_are_contended_and_shown_without_an_owner(library: Library) {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap();
    let mut theirs = peer(library, &server, &["n"]);
    for (lease, has_end) in [("300", true), ("0", false)] {
        assert_eq!(theirs.ask(&format!("try {lease}")).await, "held");
        let value: String = server.run("GET n");
        assert!(lock.try_acquire().await.unwrap().is_none());
        let bounded = lock.try_acquire_for(Duration::from_millis(50)).await;
        assert!(bounded.unwrap().is_none());
        let state = locks.inspect(&name("n")).await.unwrap();
        let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
        assert_eq!((holder.owner, holder.token, &holder.label), (None, None, &None));
        match holder.expires_in {
            Some(rest) => assert!(has_end && rest <= LONG && rest > LONG - 2 * SOON, "{rest:?}"),
            None => assert!(!has_end),
        }
        assert!(!locks.break_lock(&name("n"), &OwnerId::mint()).await.unwrap());
        assert_eq!(server.run::<String>("GET n"), value, "nothing of ours has touched it");
        assert_eq!(theirs.ask("release").await, "done");
    }
    lock.try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
}

async fn their_release_wakes_our_waiter(library: Library) {
    let server = Server::start();
    for (order, wakeup) in [("fifo", Wakeup::HandOff), ("any", Wakeup::Signal)] {
        let locks = Redis::connect(format!("{}?order={order}", server.url())).await.unwrap();
        assert_eq!(locks.capabilities().wakeup, wakeup);
        their_release_wakes(library, &server, Locker::new(locks)).await;
    }
}

async fn their_release_wakes(library: Library, server: &Server, locks: Locker) {
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(library, server, &["n"]);
    // A compare-and-delete, and the other requests of the library that end or change a hold.
    let ways: &[&[&str]] = match library {
        RedisPy => &[&["release"], &["extend 300", "reacquire", "extend 300", "release"]],
        _ => &[&["release"], &["force"]],
    };
    for &way in ways {
        for lease in ["300", "0"] {
            if way.len() > 1 && lease == "0" {
                continue; // There is nothing to extend.
            }
            assert_eq!(theirs.ask(&format!("try {lease}")).await, "held");
            let waiter = resting(server, &locks, &lock).await;
            let (end, changes) = way.split_last().unwrap();
            for change in changes {
                let watched = server.calls("client|caching");
                assert_eq!(theirs.ask(change).await, "done");
                eventually(|| server.calls("client|caching") > watched).await;
                assert!(!waiter.is_finished(), "it got in by {change}");
            }
            assert_eq!(theirs.ask(end).await, "done");
            let guard = served(waiter).await;
            assert_eq!(theirs.ask("try 300").await, "contended");
            guard.release().await.unwrap();
        }
    }
}

async fn the_end_of_their_lease_lets_our_waiter_in(library: Library) {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(library, &server, &["n"]);
    // The start of an interpreter does not count.
    assert_eq!(theirs.ask("try 300").await, "held");
    assert_eq!(theirs.ask("release").await, "done");

    let asked = Moment::now();
    assert_eq!(theirs.ask("try 2").await, "held");
    let guard = served(resting(&server, &locks, &lock).await).await;
    // The server counts milliseconds.
    assert!(Moment::now().saturating_since(asked) >= Duration::from_millis(1990), "too early");
    guard.release().await.unwrap();
}

async fn without_signals_our_waiter_polls(library: Library) {
    let server = Server::start();
    let _: String = server.run("ACL SETUSER quiet on >secret ~* &* +@all -client|tracking");
    for (order, wakeup) in [("fifo", Wakeup::HandOff), ("any", Wakeup::Poll)] {
        let url = format!("redis://quiet:secret@127.0.0.1:{}?order={order}", server.port());
        let locks = Redis::connect(url).await.unwrap();
        assert_eq!(locks.capabilities().wakeup, wakeup);
        our_waiter_polls(library, &server, Locker::new(locks)).await;
    }
}

async fn our_waiter_polls(library: Library, server: &Server, locks: Locker) {
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(library, server, &["n"]);
    for (lease, is_released) in [("300", true), ("0", true), ("2", false)] {
        assert_eq!(theirs.ask(&format!("try {lease}")).await, "held");
        let before = server.calls("evalsha");
        let waiter = tokio::spawn({
            let lock = lock.clone();
            async move { lock.acquire().await }
        });
        eventually(|| server.calls("evalsha") > before + 3).await;
        assert!(!waiter.is_finished());
        if is_released {
            assert_eq!(theirs.ask("release").await, "done");
        }
        served(waiter).await.release().await.unwrap();
    }
}

async fn our_locks_are_contended_for_them(library: Library) {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(library, &server, &["n"]);
    for _ in 0..2 {
        let guard = lock.try_acquire().await.unwrap().expect("it is free");
        let value: String = server.run("GET n");
        for lease in ["300", "0"] {
            assert_eq!(theirs.ask(&format!("try {lease}")).await, "contended");
        }
        let asked = server.calls("set") + server.calls("setnx");
        theirs.tell("acquire 300 30");
        // Until they have polled twice.
        eventually(|| server.calls("set") + server.calls("setnx") >= asked + 2).await;
        assert_eq!(server.run::<String>("GET n"), value, "they wait");
        guard.verify().await.unwrap();
        guard.release().await.unwrap();
        let served = tokio::time::timeout(SOON, theirs.answer()).await;
        assert_eq!(served.expect("they get in when we let go"), "held");
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert_eq!(theirs.ask("release").await, "done");
    }
}

async fn our_renewals_keep_them_out(library: Library) {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let ttl = Duration::from_secs(2);
    let guard = locks.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    let mut theirs = peer(library, &server, &["n"]);
    let asked = Moment::now();
    assert_eq!(theirs.ask("acquire 300 5").await, "contended");
    assert!(Moment::now().saturating_since(asked) > ttl * 3 / 2, "they did not wait");
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(theirs.ask("try 300").await, "held");
}

async fn our_minimum_hold_keeps_them_out(library: Library) {
    let server = Server::start();
    let locks = server.client().await;
    let mut theirs = peer(library, &server, &["n"]);
    let mut ours = claim("n", 300 * SECOND);
    win(&locks, &mut ours).await;
    let keep = ReleaseMode::keep_for(Duration::from_secs(200));
    assert_eq!(locks.release(&ours, keep).await.unwrap(), Release::Released);
    assert_eq!(theirs.ask("try 300").await, "contended");
    // As if the time had passed.
    let _: u64 = server.run("PEXPIRE n 1");
    assert_eq!(theirs.ask("acquire 300 10").await, "held");
}

/// Sends our remaining requests after our lease has ended and they hold the lock.
async fn our_late_verbs_leave_their_lock_alone(library: Library) {
    let server = Server::start();
    let locks = server.client().await;
    let mut theirs = peer(library, &server, &["n"]);
    let mut ours = claim("n", SECOND);
    win(&locks, &mut ours).await;
    assert_eq!(theirs.ask("acquire 300 20").await, "held");
    let value: String = server.run("GET n");
    ours.ttl = LONG * 2;
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
    contended(locks.try_acquire(&ours).await);
    assert!(!locks.break_lock(&ours.name, &ours.owner).await.unwrap());
    for how in
        [ReleaseMode::now(), ReleaseMode::keep_for(LONG * 2), ReleaseMode::after_unknown_outcome()]
    {
        assert_eq!(locks.release(&ours, how).await.unwrap(), Release::NotHeld);
    }
    assert_eq!(server.run::<String>("GET n"), value);
    assert_lease_is_long(&server);
    assert_eq!(theirs.ask("release").await, "done");

    // The same holds for a guard that does not know it yet.
    let guard = Locker::new(locks).lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let _: u64 = server.run("DEL n");
    assert_eq!(theirs.ask("try 300").await, "held");
    assert!(guard.is_held(), "nobody has told it");
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert_eq!(theirs.ask("release").await, "done");
}

/// Sends their remaining requests after their lease has ended during a sleep and we hold the lock.
async fn their_late_verbs_leave_our_lock_alone(library: Library) {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(library, &server, &["n"]);
    assert_eq!(theirs.ask("try 1").await, "held");
    let guard = lock.acquire().await.unwrap();
    let value: String = server.run("GET n");
    let verbs: &[&str] = match library {
        // Its release comes last, because it forgets the token.
        RedisPy => &["extend 900", "reacquire", "release"],
        _ => &["release"],
    };
    for verb in verbs {
        assert_eq!(theirs.ask(verb).await, "not owned", "{verb}");
        assert_eq!(server.run::<String>("GET n"), value, "{verb}");
        assert_lease_is_long(&server);
    }
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_prefix_of_laravels_cache_is_a_prefix_of_ours() {
    let server = Server::start();
    let locks = Locker::new(Redis::connect(server.url() + "?prefix=shop:").await.unwrap());
    let lock = locks.lock("orders/42").unwrap();
    let mut theirs = peer(Laravel, &server, &["orders/42", "shop"]);
    assert_eq!(theirs.ask("try 300").await, "held");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(theirs.ask("release").await, "done");
    let guard = lock.try_acquire().await.unwrap().expect("it is free");
    assert_eq!(theirs.ask("try 300").await, "contended");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn symfony_and_we_keep_each_other_out() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(LONG);
    let mut theirs = peer(Symfony, &server, &["n"]);
    // Theirs is a sorted set that expires.
    assert_eq!(theirs.ask("try 300").await, "held");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let state = locks.inspect(&name("n")).await.unwrap();
    let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
    assert_eq!(holder.label.as_ref().map(Label::as_str), Some("a Redis zset"));
    assert!(!locks.break_lock(&name("n"), &OwnerId::mint()).await.is_ok_and(|broken| broken));
    let waiter = resting(&server, &locks, &lock).await;
    assert_eq!(server.run::<u64>("ZCARD n"), 2);
    assert_eq!(theirs.ask("release").await, "done");
    // Ours is a string, which they consider held.
    let guard = served(waiter).await;
    assert_eq!(theirs.ask("try 300").await, "contended");
    assert_eq!(theirs.ask("release").await, "done");
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(theirs.ask("try 300").await, "held");
}

/// How often each process of a fleet adds to the counter.
const ROUNDS: usize = 25;
const PATIENCE: Duration = Duration::from_secs(20);

/// The pause of a process after each round, so that the lock often changes hands.
const PAUSE: Duration = Duration::from_millis(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_fleet_loses_no_update() {
    let server = Server::start();
    let mut theirs = Vec::new();
    for library in [RedisPy, RedisPy, RedisPy, RedisPy, Laravel, Laravel] {
        let mut peer = peer(library, &server, &["n"]);
        // Started, and connected.
        assert_eq!(peer.ask("count 0 1 1 0").await, "waited 0");
        theirs.push((library, peer));
    }
    let of_each_kind =
        [server.client().await, server.client().await, server.client_in_any_order().await];
    let clients = of_each_kind.map(Locker::new);
    let began = Moment::now();
    for (_, peer) in &mut theirs {
        let patience = PATIENCE.as_secs();
        peer.tell(&format!("count {ROUNDS} {patience} {patience} {}", PAUSE.as_secs_f64()));
    }
    let mut ours = Vec::new();
    for i in 0..8 {
        let lock = clients[i % 3].lock("n").unwrap().ttl(PATIENCE);
        ours.push(tokio::spawn(count(lock, server.operator())));
    }

    let mut tokens = Vec::new();
    for task in ours {
        let (longest, counted) = task.await.expect("nobody is starved");
        println!("we waited {} ms at most", longest.as_millis());
        tokens.extend(counted);
    }
    for (library, peer) in &mut theirs {
        let answer = peer.answer().await;
        assert!(answer.starts_with("waited"), "{library:?} {answer}");
        println!("{library:?} {answer} ms at most");
    }
    let took = Moment::now().saturating_since(began);
    assert!(took < Duration::from_secs(30), "all of it took {took:?}");

    let everyone = 14 * ROUNDS;
    assert_eq!(server.run::<usize>("GET counter"), everyone, "updates were lost");
    let served: Vec<String> = server.run("LRANGE served 0 -1");
    assert_eq!(served.len(), everyone);
    let passed_on = served.windows(2).filter(|pair| pair[0] != pair[1]).count();
    println!("{took:?}; {passed_on} times from one library to another");
    // Our tokens grow, even with foreign holders in between.
    tokens.sort_unstable_by_key(|(count, _)| *count);
    assert!(tokens.is_sorted_by(|(_, one), (_, next)| one < next), "{tokens:?}");
    assert_eq!(server.keys(), ["counter", "served", "{n}%token"], "nobody has left a lock");
}

/// Adds to a counter in two steps under the lock, and pauses without it. Returns the longest wait,
/// and each count with its token.
async fn count(
    lock: Lock,
    mut redis: redis::Connection,
) -> (Duration, Vec<(usize, Option<FencingToken>)>) {
    let mut longest = Duration::ZERO;
    let mut counted = Vec::new();
    for _ in 0..ROUNDS {
        let began = Moment::now();
        let guard = lock.try_acquire_for(PATIENCE).await.expect("no failure");
        let guard = guard.expect("it is served in time");
        longest = longest.max(Moment::now().saturating_since(began));
        let seen: Option<usize> = redis::cmd("GET").arg("counter").query(&mut redis).unwrap();
        let next = seen.unwrap_or(0) + 1;
        sleep(Duration::from_millis(1)).await;
        redis::cmd("SET").arg("counter").arg(next).exec(&mut redis).unwrap();
        redis::cmd("RPUSH").arg("served").arg("ours").exec(&mut redis).unwrap();
        counted.push((next, guard.fencing_token()));
        guard.release().await.expect("it is held");
        sleep(PAUSE).await;
    }
    (longest, counted)
}

/// Asserts that the lease is as long as the holder asked, neither cut nor prolonged.
#[track_caller]
fn assert_lease_is_long(server: &Server) {
    let rest: u64 = server.run("PTTL n");
    assert!((200 * SECOND..=300 * SECOND).contains(&rest), "{rest} ms are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loops_that_hold_for_a_moment_each_do_not_starve_our_waiter() {
    let server = Server::start();
    let mut theirs = [RedisPy, RedisPy].map(|library| peer(library, &server, &["n"]));
    for peer in &mut theirs {
        assert_eq!(peer.ask("count 0 1 1 0").await, "waited 0");
    }
    let lock = Locker::new(server.client().await).lock("n").unwrap().ttl(PATIENCE);
    // They never pause: the lock is free for a moment a few hundred times a second.
    theirs.iter_mut().for_each(|peer| peer.tell("count 100000 20 20 0"));
    let mut longest = Duration::ZERO;
    let began = Moment::now();
    while Moment::now().saturating_since(began) < SOON {
        let asked = Moment::now();
        let guard = lock.try_acquire_for(PATIENCE).await.unwrap();
        longest = longest.max(Moment::now().saturating_since(asked));
        guard.expect("it is served in time").release().await.unwrap();
        sleep(Duration::from_millis(3)).await;
    }
    assert!(longest < Duration::from_secs(2), "it waited {longest:?}");
}

/// Starts a client of the library. The first of `arguments` is the name of the lock.
pub(crate) fn peer(library: Library, server: &Server, arguments: &[&str]) -> Peer {
    library.start(&[&[&*server.port().to_string()], arguments].concat())
}

/// Starts a waiter after contention, which the server is going to notify.
pub(crate) async fn resting(
    server: &Server,
    locks: &Locker,
    lock: &Lock,
) -> JoinHandle<Result<LockGuard, Error>> {
    let watched = server.calls("client|caching");
    let lock = lock.clone();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.calls("client|caching") > watched).await;
    // A second answer on the same connection shows that the first one was read.
    locks.inspect(&name("another")).await.unwrap();
    assert!(!waiter.is_finished(), "it got in although the lock is held");
    waiter
}

pub(crate) async fn served(waiter: JoinHandle<Result<LockGuard, Error>>) -> LockGuard {
    let guard = tokio::time::timeout(SOON, waiter).await.expect("it is woken");
    guard.expect("no panic").expect("it is served")
}
