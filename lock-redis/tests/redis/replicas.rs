//! Locks that count only when replicas know of them.

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::helpers::{claim, eventually, granted, renew, until, win};
use lock_conformance::proxy::{Fault as ProxyFault, Proxy};
use lock_core::backend::{Claim, Effect, Fault, FaultKind, Release, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::{Backend, ErrorKind, FenceGate, Locker, Loss, Wakeup};
use lock_redis::Redis;
use test_servers::{KeepData, Redis as Server, RedisCluster, RedisOptions, SentinelGroup};

use crate::cluster::{self, name_at, names_at, still_held};
use crate::support::{LONG, SOON, acquired, release, replica_has};

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

/// The address of a server leads to another one when the connection for renewals is made: the other
/// server knows nothing of the lock.
#[tokio::test]
async fn renewals_go_to_the_server_of_the_attempt() {
    let [server, other] = [(); 2].map(|()| Server::start(RedisOptions::new()));
    let proxy = Proxy::start(server.addr()).unwrap();
    let url = format!("redis://{}?min_replicas=1&min_replicas_timeout=20ms", proxy.addr());
    let locks = Redis::connect(url).await.unwrap();
    proxy.repoint(other.addr());
    let fault = locks.try_acquire(&claim("n", 60_000)).await.expect_err("it has no replica");
    assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault:?}");
    let asked = other.command(&["INFO", "commandstats"]).text();
    assert!(!asked.contains("cmdstat_eval"), "it was renewed elsewhere: {asked}");
    assert!(server.command(&["EXISTS", "n"]).text() == "0", "the attempt was not undone");
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
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    // A newcomer is told at once, even if it would wait for others.
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Unavailable);
    group.heal(0);
    eventually(|| group.is_replicated()).await;
    until("the replica is heard of", async || lock.acquire().await.is_ok()).await;
}

#[tokio::test]
async fn a_grant_that_could_not_be_undone_may_be_held_until_its_lease_ends() {
    let group = group().await;
    let way = Proxy::start(group.server(0).addr()).unwrap();
    let url = format!("redis://{}?min_replicas=1&min_replicas_timeout=20ms", way.addr());
    let locks = Redis::connect(url).await.unwrap();
    cut(&group).await;
    let ours = claim("n", 5_000);
    let (owner, mut asking) = (ours.owner.expose(), way.hold("WAIT"));
    let acquiring = tokio::spawn(async move { locks.try_acquire(&ours).await });
    asking.caught().await.unwrap();
    // The next that is about this owner is its release.
    let mut release = way.hold(owner);
    asking.deliver().await.unwrap();
    release.caught().await.unwrap();
    // It never arrives, and no client sends it again.
    way.set(ProxyFault::Refuse);
    drop(release);
    let fault = acquiring.await.unwrap().unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    assert!(names_replicas(&fault));
    assert!(has(&group, 0, "n"), "it was undone");
    eventually(|| !has(&group, 0, "n")).await;
    group.heal(0);
    granted(connect(&group).await.try_acquire(&claim("n", 60_000)).await);
}

#[tokio::test]
async fn a_grant_counts_from_before_its_attempt() {
    let group = group().await;
    let way = Proxy::start(group.server(0).addr()).unwrap();
    let url = format!("redis://{}?min_replicas=1&min_replicas_timeout=450ms", way.addr());
    let lock = Locker::new(Redis::connect(url).await.unwrap()).lock("n").unwrap();
    let ttl = Duration::from_secs(5);
    way.set(ProxyFault::delay(Duration::from_millis(100)));
    let asked = Moment::now();
    let guard = acquired(&lock.ttl(ttl)).await;
    let deadline = Moment::now() + guard.valid_for().unwrap();
    assert!(deadline <= asked + ttl, "{:?} too late", deadline.saturating_since(asked + ttl));
}

#[tokio::test]
async fn a_renewal_that_no_replica_knows_prolongs_nothing() {
    let group = group().await;
    let locks = connect_in_haste(&group).await;
    let locker = Locker::new(locks.clone());
    // Its first renewal is due after a second.
    let lock = locker.lock("short").unwrap().ttl(Duration::from_secs(3));
    let (mut ours, guard) = (claim("n", 60_000), acquired(&lock).await);
    win(&connect(&group).await, &mut ours).await;
    cut(&group).await;
    let fault = renew(&locks, &ours).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    let deadline = Moment::now() + guard.valid_for().unwrap();
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
    assert!(Moment::now().saturating_since(deadline) < Duration::from_secs(1));
    // Its lock can be released without them.
    release(&locks, &ours).await;
}

#[tokio::test]
async fn a_replica_that_acknowledges_just_in_time_is_enough_for_the_shortest_lease() {
    let primary = Server::start(RedisOptions::new());
    let way = Proxy::start(primary.addr()).unwrap();
    let (host, port) = (way.addr().ip().to_string(), way.addr().port().to_string());
    let follows = RedisOptions::new().setting("replicaof", &host).and(&port);
    let _replica = Server::start(follows.setting("repl-diskless-sync-delay", "0"));
    let info = || primary.command(&["INFO", "replication"]).text();
    eventually(|| info().contains("state=online")).await;
    // There and back.
    way.set(ProxyFault::delay(Duration::from_millis(180)));
    let url = format!("{}?min_replicas=1&min_replicas_timeout=450ms", primary.url());
    let locker = Locker::new(Redis::connect(url).await.unwrap());
    let shortest = locker.capabilities().ttl_min;
    let guard = acquired(&locker.lock("n").unwrap().ttl(shortest)).await;
    let lost = tokio::time::timeout(shortest * 3, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_hand_off_waits_for_the_replica_too() {
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
async fn an_acknowledged_lock_survives_its_primary() {
    let group = group().await;
    let (locks, other) = (connect(&group).await, connect_in_haste(&group).await);
    let lock = Locker::new(locks).lock("n").unwrap().ttl(LONG);
    let guard = lock.acquire().await.unwrap();
    group.server(0).kill();
    let waiting = Arc::clone(&group);
    tokio::task::spawn_blocking(move || waiting.wait_until_named(1)).await.unwrap();
    assert!(has(&group, 1, "n"));
    // No replica acknowledges anything: a held lock goes on until its deadline, and no new one is
    // granted.
    assert!(guard.is_held());
    let fault = other.try_acquire(&claim("m", 1000)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    assert!(!has(&group, 1, "m"));
}

/// The replicas had acknowledged the lock, and there is no failover: a primary that comes back
/// empty empties its replicas.
#[tokio::test]
async fn an_acknowledged_lock_lost_with_an_empty_primary_is_notified_and_fenced() {
    let group = group().await;
    group.disable_failover();
    let (locks, other) = (connect(&group).await, connect(&group).await);
    let guard = Locker::new(locks).lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let gate = FenceGate::new(());
    gate.admit(guard.fencing_token().unwrap(), |()| ()).unwrap();
    assert!(has(&group, 1, "n"), "it was acknowledged");
    let restarting = Arc::clone(&group);
    let restart = move || restarting.server(0).restart(KeepData::Yes);
    tokio::task::spawn_blocking(restart).await.unwrap();
    let next = acquired(&Locker::new(other).lock("n").unwrap().ttl(LONG)).await;
    assert!(next.fencing_token() > guard.fencing_token());
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::NotHeld);
    assert!(gate.admit(guard.fencing_token().unwrap(), |()| ()).is_err());
    next.verify().await.unwrap();
    assert_eq!((group.settled(), has(&group, 1, "n")), (Some(0), true), "nobody was replaced");
}

#[tokio::test]
async fn a_user_without_the_right_to_wait_is_refused_when_connecting() {
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

/// Three masters with a replica each: that of the first one is the fourth member.
async fn masters_with_replicas() -> RedisCluster {
    let starting = || RedisCluster::start(&cluster::options(), 3, 1);
    tokio::task::spawn_blocking(starting).await.unwrap()
}

async fn connect_to(cluster: &RedisCluster, timeout: &str) -> Redis {
    let url = format!("{}?min_replicas=1&min_replicas_timeout={timeout}", cluster.url());
    let locks = Redis::connect(url).await.unwrap();
    assert_eq!(locks.capabilities().wakeup, Wakeup::Signal);
    locks
}

#[tokio::test]
async fn in_a_cluster_a_grant_waits_for_the_replica_of_its_master() {
    let cluster = masters_with_replicas().await;
    let locks = connect_to(&cluster, "30s").await;
    let ours = claim(&name_at(&cluster, 0), 60_000);
    cluster.member(3).stop();
    let mut acquiring = tokio::spawn({
        let (locks, ours) = (locks.clone(), ours.clone());
        async move { locks.try_acquire(&ours).await }
    });
    eventually(|| cluster.member(0).command(&["EXISTS", ours.name.as_str()]).text() == "1").await;
    granted(locks.try_acquire(&claim(&name_at(&cluster, 1), 60_000)).await);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut acquiring).await;
    assert!(early.is_err(), "it was told before the replica knew");
    cluster.member(3).cont();
    granted(acquiring.await.unwrap());
    assert!(replica_has(cluster.member(3), ours.name.as_str()));
}

#[tokio::test]
async fn in_a_cluster_a_grant_that_no_replica_knows_is_undone() {
    let cluster = masters_with_replicas().await;
    let locks = connect_to(&cluster, "20ms").await;
    let name = name_at(&cluster, 0);
    cluster.member(3).stop();
    let ours = claim(&name, 60_000);
    let fault = locks.try_acquire(&ours).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    assert!(names_replicas(&fault));
    assert_eq!(cluster.member(0).command(&["EXISTS", &name]).text(), "0", "nobody has it");
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    cluster.member(3).cont();
    granted(connect_to(&cluster, "30s").await.try_acquire(&claim(&name, 60_000)).await);
}

fn names_replicas(fault: &Fault) -> bool {
    let why = fault.repeated().into_source().to_string();
    why.contains("0 replicas") && why.contains("min_replicas is 1")
}

#[tokio::test]
async fn a_renewal_follows_its_slot_and_waits_for_the_replica_there() {
    let cluster = masters_with_replicas().await;
    let (locks, in_haste) = (connect_to(&cluster, "30s").await, connect_to(&cluster, "20ms").await);
    let name = name_at(&cluster, 0);
    let mut held = claim(&name, 60_000);
    win(&locks, &mut held).await;
    let slot = cluster.slot(&name);
    cluster.open_slot(slot, 0, 1);
    cluster.move_key(&name, 0, 1);
    // Its own key alone, at the one that gets it.
    still_held(&renew(&locks, &held).await);
    cluster.finish_slot(slot, 0, 1);
    held.ttl += Duration::from_secs(60);
    still_held(&renew(&locks, &held).await);
    eventually(|| replica_has(cluster.member(4), &name)).await;
    // A replica that follows the former primary does not count any more.
    cluster.member(3).stop();
    held.ttl += Duration::from_secs(60);
    still_held(&renew(&locks, &held).await);
    cluster.member(4).stop();
    let fault = renew(&in_haste, &held).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    assert!(names_replicas(&fault));
    release(&in_haste, &held).await;
}

#[tokio::test]
async fn in_a_cluster_an_acknowledged_lock_survives_a_hung_master() {
    let cluster = masters_with_replicas().await;
    let (locks, in_haste) = (connect_to(&cluster, "30s").await, connect_to(&cluster, "20ms").await);
    let mut names = names_at(&cluster, 0);
    let (name, other) = (names.next().unwrap(), names.next().unwrap());
    let mut held = claim(&name, 300_000);
    win(&locks, &mut held).await;
    cluster.member(0).stop();
    // The new primary has no replica to acknowledge anything, and is found although only renewals
    // are sent.
    let bounded = |held: &Claim| {
        let (locks, held) = (in_haste.clone(), held.clone());
        async move { tokio::time::timeout(Duration::from_millis(300), renew(&locks, &held)).await }
    };
    until(
        "the one that took over answers",
        async || matches!(bounded(&held).await, Ok(Err(fault)) if names_replicas(&fault)),
    )
    .await;
    assert_eq!(cluster.member(3).command(&["EXISTS", &name]).text(), "1", "it is there");
    let fault = in_haste.try_acquire(&claim(&other, 1000)).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    cluster.member(0).cont();
}
