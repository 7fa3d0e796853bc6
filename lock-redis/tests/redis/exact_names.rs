//! `names=exact`: the key is the prefix and the name, byte for byte.

use lock_core::backend::Effect;
use lock_core::{Backend, ErrorKind, Locker};
use lock_redis::{Config, Names, Redis};
use test_servers::RedisCluster;
use test_servers::peers::Library::{Laravel, RedisPy};
use tokio::task::JoinSet;

use crate::cluster::{SOON, options};
use crate::fleets::{peer, resting, served};
use crate::support::{LONG, Server, claim, until};

async fn exact(server: &Server, prefix: &str) -> Locker {
    let config = Config::new(&server.url()).unwrap();
    let config = config.names(Names::Exact).unwrap().prefix(prefix).unwrap();
    Locker::new(Redis::connect(config).await.unwrap())
}

#[tokio::test]
async fn a_name_with_a_space_is_one_lock_for_us_and_for_redis_py() {
    let server = Server::start();
    let locks = Locker::new(Redis::connect(server.url() + "?names=exact").await.unwrap());
    let lock = locks.lock("nightly backup").unwrap().ttl(LONG);
    let mut theirs = peer(RedisPy, &server, &["nightly backup"]);
    assert_eq!(theirs.ask("try 300").await, "held");
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiter = resting(&server, &locks, &lock).await;
    assert_eq!(theirs.ask("release").await, "done");
    let guard = served(waiter).await;
    assert_eq!(server.keys().iter().filter(|key| *key == "nightly backup").count(), 1);
    assert_eq!(theirs.ask("try 300").await, "contended");
    guard.release().await.unwrap();
    assert_eq!(theirs.ask("try 300").await, "held");
}

#[tokio::test]
async fn a_prefix_may_end_in_any_character() {
    let server = Server::start();
    let locks = exact(&server, "laravel_cache:").await;
    let lock = locks.lock("orders 42").unwrap();
    let mut theirs = peer(Laravel, &server, &["orders 42", "laravel_cache"]);
    assert_eq!(theirs.ask("try 300").await, "held");
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(theirs.ask("release").await, "done");
    let locks = exact(&server, "laravel_cache_").await;
    let _: String = server.run("SET laravel_cache_n theirs");
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_lock_with_spaces_is_handed_off_between_processes() {
    let server = Server::start();
    for order in ["fifo", "any"] {
        let url = format!("{}?names=exact&order={order}&prefix=a%20b%0A", server.url());
        let mut lockers = Vec::new();
        for _ in 0..3 {
            lockers.push(Locker::new(Redis::connect(&*url).await.unwrap()));
        }
        hand_over(&lockers).await;
    }
}

#[tokio::test]
async fn a_lock_with_spaces_is_handed_off_in_a_cluster() {
    let cluster = RedisCluster::start(&options(), 3, 0);
    for prefix in ["", "%7Ba%20b%7D", "a%20b_"] {
        let url = format!("{}?names=exact&prefix={prefix}", cluster.url());
        let mut lockers = Vec::new();
        for _ in 0..3 {
            lockers.push(Locker::new(Redis::connect(&*url).await.unwrap()));
        }
        hand_over(&lockers).await;
    }
}

/// Hands one lock from the first locker to the last, each time by a message of the server.
async fn hand_over(lockers: &[Locker]) {
    let lock = |locker: &Locker| locker.lock("é a %41 b").unwrap().ttl(LONG);
    let mut guard = lock(&lockers[0]).acquire().await.unwrap();
    let mut waiting = JoinSet::new();
    for locker in &lockers[1..] {
        let lock = lock(locker);
        waiting.spawn(async move { lock.acquire().await });
    }
    while !waiting.is_empty() {
        let queued = u64::try_from(waiting.len()).expect("a few");
        until("all wait", async || {
            let state = lockers[0].inspect(guard.name()).await.unwrap();
            state.waiting.is_none_or(|waiting| waiting == queued)
        })
        .await;
        guard.release().await.unwrap();
        let next = tokio::time::timeout(SOON, waiting.join_next()).await.expect("it is woken");
        guard = next.expect("there is one").expect("no panic").unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn names_without_companion_keys_are_refused_before_any_request() {
    let server = Server::start();
    let locks = Redis::connect(server.url() + "?names=exact").await.unwrap();
    let calls = server.calls("evalsha");
    for name in ["a}b", "{}a", "{a}%token", "{a}b%:queue"] {
        let fault = locks.try_acquire(&claim(name, 300_000)).await.unwrap_err();
        assert_eq!(fault.effect(), Effect::NotApplied);
        let locker = Locker::new(locks.clone());
        let error = locker.lock(name).unwrap().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("names=exact"), "{source}");
    }
    assert_eq!(server.calls("evalsha"), calls);
    assert!(Config::new("redis://localhost?names=plain").is_err());
    assert!(Config::new("redis://localhost?prefix=laravel_cache_").is_err());
}
