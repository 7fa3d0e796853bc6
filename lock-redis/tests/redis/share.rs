//! The share of clients that poll: now and then a release leaves the lock free for them.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::{Error, ErrorKind, Lock, LockGuard, Locker};
use lock_redis::{Config, Redis};
use test_servers::peers::Library::Laravel;
use test_servers::{RedisCluster, RedisOptions, SentinelGroup, Step};
use tokio::task::JoinHandle;

use crate::cluster::name_at;
use crate::fleets::{peer, served};
use crate::support::{LONG, SOON, Server, eventually, name};

/// Long enough for the requests of a test on a loaded machine, short enough to be waited for.
const SHARE: Duration = Duration::from_secs(2);

/// For tests that wait for several times as long.
const SHORT: Duration = Duration::from_millis(500);

async fn locker(server: &Server, share: Duration) -> Locker {
    connect(&server.url(), share).await
}

/// Returns a locker whose requests pass through the proxy.
async fn distant(server: &Server, share: Duration) -> (Proxy, Locker) {
    let (network, url) = server.proxied();
    (network, connect(&url, share).await)
}

async fn connect(url: &str, share: Duration) -> Locker {
    let config = Config::new(url).unwrap().polling_share(share).unwrap();
    Locker::new(Redis::connect(config).await.expect("the server takes us"))
}

/// Ends the connections through the proxy, for good.
async fn cut_off(network: &Proxy) {
    network.set(Fault::Refuse);
    network.reset_connections().await;
}

fn lock(locks: &Locker) -> Lock {
    locks.lock("n").unwrap().ttl(LONG)
}

/// A waiter whose entry is in the queue.
async fn queued(server: &Server, lock: Lock) -> JoinHandle<Result<LockGuard, Error>> {
    let before = server.waiting("n");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.waiting("n") > before).await;
    waiter
}

fn is_free(server: &Server) -> bool {
    server.run::<u64>("EXISTS n") == 0
}

/// Returns true while the lock is left to clients that poll.
fn is_left(server: &Server) -> bool {
    server.pttl("{n}%share") > 9 * SHARE.as_millis() as i64
}

#[tokio::test]
async fn a_release_leaves_the_lock_to_clients_that_poll_and_then_serves_in_order() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued(&server, lock(&locks)).await;
    let second = queued(&server, lock(&locker(&server, SHARE).await)).await;
    holder.release().await.unwrap();
    let newcomer = lock(&locks).try_acquire().await.unwrap();
    let third = queued(&server, lock(&locks)).await;
    assert!(is_left(&server), "the machine was too slow for this test");
    assert!(is_free(&server) && newcomer.is_none(), "a claim of ours has taken the lock");
    assert_eq!(server.run::<String>("SET n theirs NX PX 300000"), "OK");
    eventually(|| !is_left(&server)).await;
    assert!([&first, &second, &third].iter().all(|waiter| !waiter.is_finished()));
    let _: u64 = server.run("DEL n");
    let first = served(first).await;
    first.release().await.unwrap();
    assert!(!is_free(&server), "left free twice within ten times as long");
    served(second).await.release().await.unwrap();
    served(third).await.release().await.unwrap();
    assert_eq!(server.keys(), ["{n}%share", "{n}%token"]);
}

#[tokio::test]
async fn the_next_in_the_queue_takes_a_lock_that_no_other_client_wants() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    let polled = server.calls("evalsha");
    assert!(is_left(&server), "the machine was too slow for this test");
    eventually(|| !is_left(&server)).await;
    let guard = served(waiter).await;
    assert_eq!(server.calls("evalsha"), polled + 1, "it asked more than once");
    // A lock without a queue is not shared: nothing keeps others from it.
    guard.release().await.unwrap();
    let _: u64 = server.run("DEL {n}%share");
    let guard = lock(&locks).acquire().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.keys(), ["{n}%token"]);
    assert!(lock(&locks).try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_process_behind_a_dead_one_takes_the_lock() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let (network, dead) = distant(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued(&server, lock(&dead)).await;
    let second = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    // From now on the server has no connection of the first one, which never asks.
    cut_off(&network).await;
    assert!(is_left(&server), "the machine was too slow for this test");
    served(second).await.release().await.unwrap();
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn processes_that_wait_no_longer_keep_no_waiter_from_the_lock() {
    let server = Server::start();
    let (locks, others) = (locker(&server, SHARE).await, locker(&server, SHARE).await);
    let (network, dead) = distant(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued(&server, lock(&dead)).await;
    let second = queued(&server, lock(&others)).await;
    let mut left = Vec::new();
    for _ in 0..4 {
        left.push(locker(&server, SHARE).await);
        queued(&server, lock(left.last().unwrap())).await.abort();
        eventually(|| server.waiting("n") == 2).await;
    }
    holder.release().await.unwrap();
    cut_off(&network).await;
    assert!(is_left(&server), "the machine was too slow for this test");
    served(second).await.release().await.unwrap();
    first.abort();
}

#[tokio::test]
async fn a_newcomer_takes_the_lock_if_the_process_before_it_dies() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let (network, dead) = distant(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let mut waiters = Vec::new();
    // The newcomer is not among the first two processes of so many entries.
    for _ in 0..16 {
        waiters.push(queued(&server, lock(&dead)).await);
    }
    // The server knows its process, which waits no longer.
    queued(&server, lock(&locks)).await.abort();
    eventually(|| server.waiting("n") == 16).await;
    holder.release().await.unwrap();
    let newcomer = queued(&server, lock(&locks)).await;
    cut_off(&network).await;
    assert!(is_left(&server), "the machine was too slow for this test");
    served(newcomer).await.release().await.unwrap();
    waiters.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_replica_does_not_answer_that_the_lock_is_left_free() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    assert_eq!(server.run::<String>("REPLICAOF 127.0.0.1 1"), "OK");
    let refused = lock(&locks).try_acquire().await;
    assert!(is_left(&server), "the machine was too slow for this test");
    assert_eq!(refused.expect_err("it is an outage").kind(), ErrorKind::Unavailable);
    waiter.abort();
}

#[tokio::test]
async fn a_waiter_that_leaves_ends_no_share() {
    let server = Server::start();
    let (locks, others) = (locker(&server, SHARE).await, locker(&server, SHARE).await);
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued(&server, lock(&others)).await;
    let second = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    first.abort();
    eventually(|| server.waiting("n") == 1).await;
    let (is_free, is_left) = (is_free(&server), is_left(&server));
    assert!(is_left, "the machine was too slow for this test");
    assert!(is_free, "the next one has the lock before its time");
    served(second).await.release().await.unwrap();
}

#[tokio::test]
async fn the_waiter_behind_one_that_leaves_watches_a_foreign_lock() {
    for share in [true, false] {
        let server = Server::start();
        let url = format!("{}{}", server.url(), if share { "?polling_share=2s" } else { "" });
        let connect = async || Locker::new(Redis::connect(&*url).await.unwrap());
        let (locks, others) = (connect().await, connect().await);
        let holder = lock(&locks).acquire().await.unwrap();
        let first = queued(&server, lock(&others)).await;
        let second = queued(&server, lock(&locks)).await;
        if share {
            holder.release().await.unwrap();
            assert_eq!(server.run::<String>("SET n theirs NX PX 300000"), "OK");
        } else {
            let _: String = server.run("SET n theirs PX 300000");
        }
        let watched = server.calls("client|caching");
        first.abort();
        eventually(|| server.calls("client|caching") > watched).await;
        assert!(!second.is_finished());
        let _: u64 = server.run("DEL n");
        served(second).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_clock_that_is_set_back_strands_no_waiter() {
    let server = Server::with_log_and_clock();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    server.step_clock(Step::Back(Duration::from_secs(20)));
    holder.release().await.unwrap();
    assert!(is_free(&server));
    served(waiter).await.release().await.unwrap();
}

#[tokio::test]
async fn the_time_that_a_lock_was_left_free_counts_as_it_was() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    let guard = served(waiter).await;
    assert_left_free_for(&server, 2000);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_late_poll_counts() {
    let server = Server::start();
    let locks = locker(&server, SHORT).await;
    let (network, far) = distant(&server, SHORT).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&far)).await;
    network.set(Fault::delay(Duration::from_millis(400)));
    holder.release().await.unwrap();
    let guard = served(waiter).await;
    assert_left_free_for(&server, 500 + 2 * 400);
    network.heal();
    guard.release().await.unwrap();
}

/// Asserts that the key lasts nine times as long as the lock was left free.
#[track_caller]
fn assert_left_free_for(server: &Server, at_least: i64) {
    let share = server.get("{n}%share").expect("the time has just ended");
    let (left_free, until) = (share.trim().parse::<i64>().unwrap(), server.pttl("{n}%share"));
    assert!(share.ends_with(' ') && left_free >= at_least, "{share:?}");
    assert!((8 * left_free..=9 * left_free).contains(&until), "{left_free} ms, and {until} ms");
}

#[tokio::test]
async fn the_hold_of_a_foreign_client_does_not_count() {
    let server = Server::start();
    let locks = locker(&server, SHORT).await;
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    assert_eq!(server.run::<String>("SET n theirs NX PX 300000"), "OK");
    // Its answer names the holder, so its process does not ask at the end of the time.
    let newcomer = queued(&server, lock(&locks)).await;
    let until = || server.pttl("{n}%share");
    eventually(|| until() < 3000).await;
    let _: u64 = server.run("DEL n");
    let guard = served(waiter).await;
    assert!(until() < 3000, "clients that poll wait for {} ms", until());
    guard.release().await.unwrap();
    served(newcomer).await.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_kept_is_left_free_afterwards() {
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    let holder = lock(&locks).min_hold(Duration::from_secs(2)).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    assert!(!is_free(&server), "the minimum hold was not kept");
    eventually(|| is_free(&server)).await;
    assert!(is_left(&server), "the machine was too slow for this test");
    assert!(lock(&locks).try_acquire().await.unwrap().is_none());
    served(waiter).await.release().await.unwrap();
}

#[tokio::test]
async fn a_process_does_not_keep_the_lock_for_itself() {
    let server = Server::start();
    let config = Config::new(&server.url()).unwrap().polling_share(SHARE).unwrap();
    let redis = Redis::connect(config).await.unwrap();
    let locks = Locker::builder(redis).local_handovers(8).build();
    let holder = lock(&locks).acquire().await.unwrap();
    let waiter = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    assert!(is_free(&server), "it was handed over inside the process");
    served(waiter).await.release().await.unwrap();
}

/// Adds a user whose process a test ends: nothing of it reaches a server that has deleted it.
fn with_mortal(options: RedisOptions) -> RedisOptions {
    options.setting("user", "mortal").and("on").and(">secret").and("+@all").and("~*").and("&*")
}

/// A waiter whose entry is in the queue on that server.
async fn queued_on(
    home: &test_servers::Redis,
    locks: &Locker,
    name: &str,
) -> JoinHandle<Result<LockGuard, Error>> {
    let waiting = || home.command(&["ZCARD", &format!("{{{name}}}%queue")]).text();
    let (before, lock) = (waiting(), locks.lock(name).unwrap().ttl(LONG));
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| waiting() > before).await;
    waiter
}

/// Checks that the lock on the server `home` is left to a foreign client, then serves the first of
/// ours, and then the one behind a process that has died.
async fn check_share(url: &str, home: &test_servers::Redis, name: &str) {
    let connect = async |user: &str| {
        let url = url.replace("://", &format!("://{user}"));
        Locker::new(Redis::connect(format!("{url}?polling_share=2s")).await.unwrap())
    };
    let (locks, others) = (connect("").await, connect("").await);
    let mortal = connect("mortal:secret@").await;
    let run = |words: &[&str]| home.command(words).text();
    let share = format!("{{{name}}}%share");
    let is_left = || run(&["PTTL", &share]).parse::<i64>().unwrap() > 9 * SHARE.as_millis() as i64;
    let holder = locks.lock(name).unwrap().ttl(LONG).acquire().await.unwrap();
    let first = queued_on(home, &others, name).await;
    let second = queued_on(home, &mortal, name).await;
    let third = queued_on(home, &locks, name).await;
    holder.release().await.unwrap();
    assert!(is_left(), "the machine was too slow for this test");
    assert_eq!(run(&["SET", name, "theirs", "NX", "PX", "300000"]), "OK");
    eventually(|| !is_left()).await;
    assert!([&first, &second, &third].iter().all(|waiter| !waiter.is_finished()));
    run(&["DEL", name]);
    let first = served(first).await;
    run(&["DEL", &share]);
    first.release().await.unwrap();
    run(&["ACL", "DELUSER", "mortal"]);
    assert_eq!(run(&["EXISTS", name]), "0");
    assert!(is_left(), "the machine was too slow for this test");
    served(third).await.release().await.unwrap();
    second.abort();
}

#[tokio::test]
async fn a_cluster_leaves_a_lock_to_clients_that_poll() {
    let options = with_mortal(crate::cluster::options());
    let starting = tokio::task::spawn_blocking(move || RedisCluster::start(&options, 3, 0));
    let cluster = starting.await.unwrap();
    check_share(&cluster.url(), cluster.member(1), &name_at(&cluster, 1)).await;
}

#[tokio::test]
async fn a_primary_behind_sentinels_leaves_a_lock_to_clients_that_poll() {
    let options = with_mortal(RedisOptions::new());
    let starting = tokio::task::spawn_blocking(move || SentinelGroup::start(options));
    let group = starting.await.unwrap();
    check_share(&group.url(), group.server(0), "n").await;
}

#[tokio::test]
async fn a_failover_ends_no_share_and_keeps_the_order() {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
    let group = std::sync::Arc::new(starting.await.unwrap());
    let url = format!("{}?polling_share=10s", group.url());
    let connect = async || Locker::new(Redis::connect(&*url).await.unwrap());
    let (locks, others) = (connect().await, connect().await);
    let of = |number: usize, words: &[&str]| group.server(number).command(words).text();
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued_on(group.server(0), &others, "n").await;
    let second = queued_on(group.server(0), &locks, "n").await;
    holder.release().await.unwrap();
    eventually(|| of(1, &["EXISTS", "n"]) == "0" && of(1, &["EXISTS", "{n}%share"]) == "1").await;
    group.server(0).kill();
    let naming = std::sync::Arc::clone(&group);
    tokio::task::spawn_blocking(move || naming.wait_until_named(1)).await.unwrap();
    assert_eq!(of(1, &["EXISTS", "n"]), "0", "a claim of ours has taken the lock");
    let left = of(1, &["PTTL", "{n}%share"]).parse::<i64>().unwrap();
    assert!(left > 91_000, "the machine was too slow for this test");
    let first = tokio::time::timeout(SOON, first).await.expect("it is served").unwrap().unwrap();
    assert!(!second.is_finished(), "the second one was served before");
    first.release().await.unwrap();
    served(second).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_polls_has_its_turn() {
    const ROUNDS: usize = 6;
    let server = Server::start();
    let mut theirs = peer(Laravel, &server, &["n"]);
    assert_eq!(theirs.ask("count 0 1 1 0").await, "waited 0");
    let locks = locker(&server, Duration::from_millis(300)).await;
    let ours: Vec<_> = (0..4)
        .map(|_| {
            let lock = lock(&locks);
            tokio::spawn(async move {
                loop {
                    let guard = lock.acquire().await.expect("it is served");
                    lock_core::clock::sleep(Duration::from_millis(1)).await;
                    guard.release().await.expect("it is held");
                }
            })
        })
        .collect();
    eventually(|| server.waiting("n") >= 2).await;
    // Alone beside our queue, it waits for minutes.
    let answer = theirs.ask(&format!("count {ROUNDS} 60 60 0")).await;
    assert!(answer.starts_with("waited"), "{answer}");
    assert_eq!(server.run::<usize>("LLEN served"), ROUNDS);
    ours.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn a_share_without_a_queue_is_refused() {
    for (url, why) in [
        ("redis://127.0.0.1:1?polling_share=1s&order=any", "polling_share needs order=fifo"),
        ("redis://127.0.0.1:1?polling_share=0s", "not a positive duration"),
        ("redis://127.0.0.1:1?polling_share=9ms", "it is from 10ms to 10s"),
        ("redis://127.0.0.1:1?polling_share=11s", "it is from 10ms to 10s"),
        ("redis://127.0.0.1:1?polling_share=6s&max_ttl=5s", "polling_share is longer than max_ttl"),
    ] {
        let error = Redis::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(error.to_string().contains(why), "{error}");
    }
    let server = Server::start();
    let locks = locker(&server, SHARE).await;
    assert_eq!(locks.capabilities().polling_share, Some(SHARE));
    assert!(locks.inspect(&name("n")).await.unwrap().holders.is_empty());
}
