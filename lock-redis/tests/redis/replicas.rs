//! Locks that count only when replicas know of them.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::servers::{RedisOptions, SentinelGroup};
use conformance_tests::words::{claim, eventually, granted, renew, until, win};
use lock_core::backend::{Effect, FaultKind, LetGo, Release};
use lock_core::clock::Moment;
use lock_core::{Backend, ErrorKind, Locker, Loss};
use lock_redis::Redis;

const LONG: Duration = Duration::from_secs(300);
const SOON: Duration = Duration::from_secs(20);

async fn group() -> Arc<SentinelGroup> {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
    Arc::new(starting.await.unwrap())
}

/// Waits for its replica, for half a minute at most.
async fn connect(group: &SentinelGroup) -> Redis {
    let url = format!("{}?min_replicas=1&min_replicas_timeout=30s", group.url());
    Redis::connect(url).await.unwrap()
}

/// Waits for a moment only.
async fn connect_in_haste(group: &SentinelGroup) -> Redis {
    let url = format!("{}?min_replicas=1&min_replicas_timeout=20ms", group.url());
    Redis::connect(url).await.unwrap()
}

fn has(group: &SentinelGroup, server: usize, key: &str) -> bool {
    group.server(server).command(&["EXISTS", key]).text() == "1"
}

async fn cut(group: &SentinelGroup) {
    group.cut_from_replica(0);
    eventually(|| !group.is_replicated()).await;
}

#[tokio::test]
async fn a_grant_waits_for_the_replica() {
    let group = group().await;
    let locks = connect(&group).await;
    let ours = claim("n", 60_000);
    group.server(1).stop();
    let mut acquiring = tokio::spawn({
        let (locks, ours) = (locks.clone(), ours.clone());
        async move { locks.try_acquire(&ours).await }
    });
    eventually(|| has(&group, 0, "n")).await;
    let early = tokio::time::timeout(Duration::from_millis(300), &mut acquiring).await;
    assert!(early.is_err(), "it was told before the replica knew");
    group.server(1).cont();
    granted(acquiring.await.unwrap());
    assert!(has(&group, 1, "n"));
}

#[tokio::test]
async fn a_grant_that_no_replica_knows_is_undone() {
    let group = group().await;
    let locks = connect_in_haste(&group).await;
    cut(&group).await;
    let ours = claim("n", 60_000);
    let fault = locks.try_acquire(&ours).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    let why = fault.into_source().to_string();
    assert!(why.contains("0 replicas") && why.contains("min_replicas is 1"), "{why}");
    assert!(!has(&group, 0, "n"), "nobody has it");
    assert_eq!(locks.release(&ours, LetGo::now()).await.unwrap(), Release::NotHeld);
    // A newcomer is told at once, even if it would wait for others.
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    group.heal(0);
    eventually(|| group.is_replicated()).await;
    until("the replica is heard of", async || lock.acquire().await.is_ok()).await;
}

#[tokio::test]
async fn a_renewal_that_no_replica_knows_prolongs_nothing() {
    let group = group().await;
    let locks = connect_in_haste(&group).await;
    let locker = Locker::new(locks.clone());
    // Its first renewal is due after a second.
    let lock = locker.lock("short").unwrap().ttl(Duration::from_secs(3));
    let (mut ours, guard) = (claim("n", 60_000), lock.acquire().await.unwrap());
    win(&locks, &mut ours).await;
    cut(&group).await;
    let fault = renew(&locks, &ours).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    let deadline = Moment::now() + guard.valid_for().unwrap();
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
    assert!(Moment::now().saturating_since(deadline) < Duration::from_secs(1));
    // What it holds can be let go without them.
    assert_eq!(locks.release(&ours, LetGo::now()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn who_is_handed_the_lock_waits_for_the_replica_too() {
    let group = group().await;
    let (locks, other) = (connect(&group).await, connect_in_haste(&group).await);
    let first = Locker::new(locks).lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let lock = Locker::new(other).lock("n").unwrap().ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| has(&group, 1, "{n}%queue")).await;
    cut(&group).await;
    first.release().await.unwrap();
    // It is sent the lock, and lets it go again, more than once.
    let calls = || group.server(0).command(&["INFO", "commandstats"]).text();
    let waits = || {
        let stats = calls();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_wait:calls="));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = waits();
    eventually(|| waits() > before + 1).await;
    assert!(!waiter.is_finished());
    group.heal(0);
    let guard = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_was_acknowledged_survives_its_primary() {
    let group = group().await;
    let (locks, other) = (connect(&group).await, connect_in_haste(&group).await);
    let lock = Locker::new(locks).lock("n").unwrap().ttl(LONG);
    let guard = lock.acquire().await.unwrap();
    group.server(0).kill();
    let waiting = Arc::clone(&group);
    tokio::task::spawn_blocking(move || waiting.wait_until_named(1)).await.unwrap();
    assert!(has(&group, 1, "n"));
    // Nobody is there to acknowledge anything: what is held goes on until its deadline, and nothing new is given.
    assert!(guard.is_held());
    let fault = other.try_acquire(&claim("m", 1000)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    assert!(!has(&group, 1, "m"));
}

#[tokio::test]
async fn a_user_who_may_not_wait_is_told_when_connecting() {
    let group = group().await;
    for server in [0, 1] {
        let words = ["ACL", "SETUSER", "u", "on", ">pw", "+@all", "-wait", "~*", "&*"];
        group.server(server).command(&words);
    }
    let url = group.url_for("u:pw");
    let error = Redis::connect(format!("{url}?min_replicas=1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("+wait"), "{error}");
    Redis::connect(url).await.unwrap();
}
