//! The share of clients that poll: now and then a release leaves the lock free for them.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::{Error, ErrorKind, Lock, LockGuard, Locker};
use lock_redis::{Config, Redis};
use test_servers::Step;
use test_servers::peers::Library::Laravel;
use tokio::task::JoinHandle;

use crate::fleets::{peer, served};
use crate::support::{LONG, Server, eventually, name};

/// Long enough for the requests of a test on a loaded machine, short enough to be waited for.
const SHARE: Duration = Duration::from_secs(2);

async fn locker(server: &Server, share: Duration) -> Locker {
    let config = Config::new(&server.url()).unwrap().polling_share(share).unwrap();
    Locker::new(Redis::connect(config).await.expect("the server takes us"))
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
    let network = Proxy::start(server.addr()).unwrap();
    let locks = locker(&server, SHARE).await;
    let url = format!("redis://{}?polling_share=2s", network.addr());
    let dead = Locker::new(Redis::connect(url).await.unwrap());
    let holder = lock(&locks).acquire().await.unwrap();
    let first = queued(&server, lock(&dead)).await;
    let second = queued(&server, lock(&locks)).await;
    holder.release().await.unwrap();
    // From now on the server has no connection of the first one, which never asks.
    network.set(Fault::Refuse);
    network.reset_connections().await;
    assert!(is_left(&server), "the machine was too slow for this test");
    served(second).await.release().await.unwrap();
    assert!(!first.is_finished());
    first.abort();
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
    let share = server.get("{n}%share").expect("the time has just ended");
    let (left_free, until) = (share.trim().parse::<i64>().unwrap(), server.pttl("{n}%share"));
    assert!(share.ends_with(' ') && left_free >= 2000, "{share:?}");
    assert!((8 * left_free..=9 * left_free).contains(&until), "{left_free} ms, and {until} ms");
    guard.release().await.unwrap();
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
