//! Servers that Sentinels watch over: failovers that keep locks, and those that lose them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_conformance::helpers::{Output, claim, contended, eventually, granted, name, until};
use lock_core::backend::{Attempt, Effect, FaultKind, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::{Backend, Error, ErrorKind, FenceGate, LockGuard, Locker, Loss, Support};
use lock_redis::Redis;
use test_servers::{KeepData, Redis as Server, RedisOptions, Sentinel, SentinelGroup};

use crate::support::{LONG, SOON, acquired, verified};

/// The bound on the notification of a holder after the first Sentinel has named another primary. A
/// holder that polls needs longer.
const TOLD: Duration = Duration::from_secs(1);

/// More than any one call may take that waits for no lock.
const BOUND: Duration = Duration::from_secs(8);

async fn group() -> Arc<SentinelGroup> {
    group_with(RedisOptions::new()).await
}

async fn group_with(options: RedisOptions) -> Arc<SentinelGroup> {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(options));
    Arc::new(starting.await.unwrap())
}

/// Runs slow work while the clients of this test go on.
async fn meanwhile<T: Send + 'static>(
    group: &Arc<SentinelGroup>,
    work: impl FnOnce(&SentinelGroup) -> T + Send + 'static,
) -> T {
    let group = Arc::clone(group);
    tokio::task::spawn_blocking(move || work(&group)).await.unwrap()
}

async fn connect(group: &SentinelGroup) -> Redis {
    Redis::connect(group.url()).await.unwrap()
}

async fn refused(url: &str) -> Error {
    let began = Moment::now();
    let error = Redis::connect(url).await.unwrap_err();
    let took = Moment::now().saturating_since(began);
    assert!(took < BOUND, "{took:?}: {error}");
    error
}

fn whole(error: &Error) -> String {
    let source = std::error::Error::source(error).map(ToString::to_string);
    format!("{error}: {}", source.unwrap_or_default())
}

async fn hold(locks: &Redis) -> LockGuard {
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG);
    tokio::time::timeout(SOON, lock.acquire()).await.expect("it is free").unwrap()
}

fn has(server: &Server, key: &str) -> bool {
    server.command(&["EXISTS", key]).text() == "1"
}

#[tokio::test]
async fn a_failover_that_knows_the_lock_keeps_it_and_its_queue() {
    let group = group().await;
    let (locks, other) = (connect(&group).await, connect(&group).await);
    assert_eq!(locks.capabilities().loss_push, Support::Present);
    let guard = hold(&locks).await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { hold(&other).await }
    });
    eventually(|| has(group.server(1), "n") && has(group.server(1), "{n}%queue")).await;
    group.server(0).kill();
    meanwhile(&group, |group| group.wait_until_named(1)).await;
    verified(&guard).await;
    assert!(!waiter.is_finished());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = waiter.await.unwrap();
    assert!(next.fencing_token() > token);
    // The old one comes back without its data, and is not the primary.
    group.server(0).restart(KeepData::No);
    meanwhile(&group, |group| group.wait_until_replica(0)).await;
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

/// The primary goes away in some way, with a lock that its replica has not heard of.
async fn check_lost_lock(
    goes: impl FnOnce(&SentinelGroup) + Send + 'static,
    returns: impl FnOnce(&SentinelGroup) + Send + 'static,
) {
    let group = group().await;
    let (locks, other) = (connect(&group).await, connect(&group).await);
    group.cut_from_replica(0);
    eventually(|| !group.is_replicated()).await;
    let guard = hold(&locks).await;
    let gate = FenceGate::new(());
    gate.admit(guard.fencing_token().unwrap(), |()| ()).unwrap();
    let deciding = meanwhile(&group, move |group| {
        goes(group);
        group.wait_until_decided(1);
        Moment::now()
    });
    // It has nothing to do for minutes, and hears all the same.
    let told = async { (tokio::time::timeout(2 * SOON, guard.lost()).await, Moment::now()) };
    let (decided, (loss, told)) = tokio::join!(deciding, told);
    let took = told.saturating_since(decided);
    assert!(took < TOLD, "told {took:?} after a sentinel has decided: {loss:?}");
    let other = Locker::new(other).lock("n").unwrap().ttl(LONG);
    let next = acquired(&other).await;
    // Asynchronous replication promises nothing. Two clients believed in the lock until the first
    // one was notified.
    assert!(next.fencing_token() > guard.fencing_token());
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    assert_eq!(loss.ok(), Some(Loss::NotHeld));
    assert!(gate.admit(guard.fencing_token().unwrap(), |()| ()).is_err());
    meanwhile(&group, move |group| {
        returns(group);
        group.wait_until_replica(0);
    })
    .await;
    // The old one's data is gone, and no client is led back to it.
    next.verify().await.unwrap();
    contended(locks.try_acquire(&claim("n", 1000)).await);
    next.release().await.unwrap();
    granted(locks.try_acquire(&claim("n", 1000)).await);
    assert!(has(group.server(1), "n"));
}

#[tokio::test]
async fn a_lock_lost_with_its_primary_is_notified_and_fenced() {
    let back = |group: &SentinelGroup| group.server(0).restart(KeepData::Yes);
    check_lost_lock(|group| group.server(0).kill(), back).await;
}

#[tokio::test]
async fn a_lock_on_a_stopped_primary_is_notified_and_fenced() {
    let back = |group: &SentinelGroup| {
        group.server(0).cont();
        group.heal(0);
    };
    check_lost_lock(|group| group.server(0).stop(), back).await;
}

#[tokio::test]
async fn a_lock_on_a_replaced_primary_is_notified_and_fenced() {
    let back = |group: &SentinelGroup| group.heal(0);
    check_lost_lock(|group| group.hide_from_sentinels(0), back).await;
}

#[tokio::test]
async fn a_failover_by_hand_is_an_outage_and_never_contention() {
    let group = group().await;
    let locks = connect(&group).await;
    let begin = || {
        let words = ["SENTINEL", "FAILOVER", group.service()];
        assert_eq!(group.sentinel(0).command(&words).text(), "OK");
    };
    begin();
    let settled = tokio::task::spawn_blocking({
        let group = Arc::clone(&group);
        move || {
            group.wait_until_named(1);
            group.wait_until_replica(0);
        }
    });
    let (mut asked, mut begun) = (0, 1);
    while !settled.is_finished() {
        asked += 1;
        // On a busy machine it may take longer than the sentinel has patience.
        if group.sentinel(0).output().matches("-failover-abort").count() == begun {
            begun += 1;
            begin();
        }
        match locks.try_acquire(&claim(&format!("n{asked}"), 1000)).await {
            Ok(Attempt::Acquired(_)) => {}
            Ok(Attempt::Contended { .. }) => panic!("nobody else wants it"),
            Err(fault) => assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault:?}"),
        }
    }
    settled.await.unwrap();
    granted(locks.try_acquire(&claim("n", 1000)).await);
    assert!(has(group.server(1), "n"), "it is where the sentinels say");
}

/// Checks that another runtime, which has the connection by then, listens again.
#[tokio::test]
async fn a_listener_that_ends_with_its_runtime_is_replaced() {
    let group = group().await;
    let mut first = tokio::runtime::Builder::new_multi_thread();
    let first = first.worker_threads(1).enable_all().build().unwrap();
    let url = group.url();
    let locks = first.spawn(async move { Redis::connect(url).await.unwrap() }).await.unwrap();
    group.server(0).command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    until("it connects again, from here", async || {
        locks.try_acquire(&claim("n", 1000)).await.is_ok()
    })
    .await;
    first.shutdown_background();
    group.cut_from_replica(0);
    eventually(|| !group.is_replicated()).await;
    // The first runtime may have been quicker, and then the connection went with it.
    until("it is connected", async || locks.try_acquire(&claim("l", 1000)).await.is_ok()).await;
    let locker = Locker::new(locks);
    let guard = locker.lock("m").unwrap().ttl(Duration::from_secs(300)).acquire().await.unwrap();
    group.hide_from_sentinels(0);
    let lost = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await;
    assert_eq!(lost.expect("it is told of the failover"), Loss::NotHeld);
}

/// Sentinels that lost their state, or were told of another primary by hand, count from the
/// beginning.
#[tokio::test]
async fn sentinels_that_were_set_up_anew_are_believed() {
    let group = group().await;
    let locks = connect(&group).await;
    let failing_over = Arc::clone(&group);
    let failed_over = tokio::task::spawn_blocking(move || {
        let words = ["SENTINEL", "FAILOVER", failing_over.service()];
        assert_eq!(failing_over.sentinel(0).command(&words).text(), "OK");
        failing_over.wait_until_named(1);
        failing_over.wait_until_replica(0);
    });
    failed_over.await.unwrap();
    until("it follows", async || locks.try_acquire(&claim("n", 1000)).await.is_ok()).await;
    let [old, new] = [1, 0].map(|number| group.server(number).addr().port().to_string());
    for sentinel in group.sentinels() {
        assert_eq!(sentinel.command(&["SENTINEL", "REMOVE", group.service()]).text(), "OK");
    }
    // The old primary is not notified: a client that does not learn of the change continues there.
    assert_eq!(group.server(0).command(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
    for sentinel in group.sentinels() {
        let words = ["SENTINEL", "MONITOR", group.service(), "127.0.0.1", &new, "2"];
        assert_eq!(sentinel.command(&words).text(), "OK", "instead of {old}");
    }
    let mut asked = 0;
    until("it follows again", async || {
        asked += 1;
        let name = format!("m{asked}");
        let won = locks.try_acquire(&claim(&name, 60_000)).await.is_ok();
        won && has(group.server(0), &name)
    })
    .await;
}

#[tokio::test]
async fn a_primary_that_demands_replicas_gives_nothing_without_them() {
    let options = RedisOptions::new().setting("min-replicas-to-write", "1");
    let group = group_with(options.setting("min-replicas-max-lag", "1")).await;
    let locks = connect(&group).await;
    let ours = claim("n", 60_000);
    granted(locks.try_acquire(&ours).await);
    group.cut_from_replica(0);
    let (mut refusal, mut asked) = (None, 0);
    until("it notices", async || {
        asked += 1;
        refusal = locks.try_acquire(&claim(&format!("m{asked}"), 60_000)).await.err();
        refusal.is_some()
    })
    .await;
    let fault = refusal.unwrap();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    assert!(fault.into_source().to_string().contains("min-replicas-to-write"));
    // It refuses the release as well, and says so.
    let fault = locks.release(&ours, ReleaseMode::now()).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
}

#[tokio::test]
async fn a_minority_of_sentinels_replaces_no_primary_and_locks_go_on() {
    let group = group().await;
    let (before, primary) = (connect(&group).await, group.server(0));
    let guard = hold(&before).await;
    group.sentinel(0).kill();
    group.sentinel(1).stop();
    let began = Moment::now();
    // One that answers is enough to be led there.
    let locks = connect(&group).await;
    let took = Moment::now().saturating_since(began);
    assert!(took < BOUND, "{took:?}");
    let next = tokio::spawn(async move { hold(&locks).await });
    eventually(|| has(primary, "{n}%queue")).await;
    primary.stop();
    let last = group.sentinel(2);
    eventually(|| last.output().contains("+sdown master")).await;
    primary.cont();
    verified(&guard).await;
    guard.release().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(last.named(), Some(primary.addr().port()));
    assert!(!last.output().contains("+odown"), "it is alone: {}", last.output());
    next.release().await.unwrap();
    // Without a majority no server replaces it, and the error names the missing one.
    primary.kill();
    for _ in 0..3 {
        let began = Moment::now();
        let fault = before.try_acquire(&claim("m", 1000)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unavailable);
        let took = Moment::now().saturating_since(began);
        assert!(took < BOUND, "{took:?}");
    }
    let fault = before.try_acquire(&claim("m", 1000)).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::NotApplied);
    let why = fault.into_source().to_string();
    assert!(why.contains(&primary.addr().to_string()), "{why}");
}

#[tokio::test]
async fn a_sentinel_that_names_an_old_primary_is_not_believed() {
    let group = group().await;
    meanwhile(&group, |group| {
        group.server(0).kill();
        group.wait_until_named(1);
    })
    .await;
    let old = Server::start(RedisOptions::new());
    let behind = Sentinel::alone(&old);
    let addrs = [behind.addr(), group.sentinel(1).addr(), group.sentinel(2).addr()];
    let hosts = addrs.map(|addr| addr.to_string()).join(",");
    let url = format!("redis+sentinel://{hosts}/{}", group.service());
    for round in 0..10 {
        let locks = Redis::connect(url.as_str()).await.unwrap();
        let mut ours = claim(&format!("n{round}"), 60_000);
        ours.ticket = granted(locks.try_acquire(&ours).await).ticket;
        assert!(has(group.server(1), ours.name.as_str()));
        // Its own reports are not believed either.
        let wait = tokio::time::timeout(Duration::from_millis(300), locks.wait_lost(&ours)).await;
        assert!(wait.is_err(), "nothing happened to the lock: {wait:?}");
        locks.release(&ours, ReleaseMode::now()).await.unwrap();
    }
    assert!(!old.command(&["KEYS", "*"]).text().contains('n'), "nobody was led there");
}

#[tokio::test]
async fn errors_name_the_failure_of_the_sentinels() {
    let group = group().await;
    let (sentinel, server) = (group.sentinel(0).addr(), group.server(0).addr());
    let unknown = refused(&format!("redis+sentinel://{sentinel}/nobody")).await;
    assert_eq!(unknown.kind(), ErrorKind::Invalid, "{unknown}");
    assert!(whole(&unknown).contains("knows no primary called \"nobody\""), "{unknown:?}");
    let other_kind = refused(&format!("redis+sentinel://{server}/{}", group.service())).await;
    assert_eq!(other_kind.kind(), ErrorKind::Unsupported, "{other_kind}");
    assert!(whole(&other_kind).contains("no sentinel listens at"), "{other_kind:?}");
    let plain = refused(&format!("redis://{sentinel}")).await;
    assert_eq!(plain.kind(), ErrorKind::Unsupported, "{plain}");
    assert!(whole(&plain).contains("redis+sentinel://"), "{plain:?}");
    group.sentinel(0).kill();
    let gone = refused(&format!("redis+sentinel://{sentinel}/{}", group.service())).await;
    assert_eq!(gone.kind(), ErrorKind::Unavailable, "{gone}");
    assert!(whole(&gone).contains(&sentinel.to_string()), "{gone:?}");
    group.sentinel(1).stop();
    let silent = group.sentinel(1).addr();
    let silent = refused(&format!("redis+sentinel://{silent}/{}", group.service())).await;
    assert_eq!(silent.kind(), ErrorKind::Unavailable, "{silent}");
    assert!(whole(&silent).contains("does not answer"), "{silent:?}");
}

#[tokio::test]
async fn sentinels_and_servers_have_credentials_of_their_own() {
    let group = group().await;
    let rights = "ACL SETUSER app on >s3cret +sentinel|get-master-addr-by-name +sentinel|master \
                  +subscribe &*";
    let rights: Vec<_> = rights.split_whitespace().collect();
    for sentinel in group.sentinels() {
        assert_eq!(sentinel.command(&rights).text(), "OK");
        let less = "ACL SETUSER less on >s3cret +sentinel|get-master-addr-by-name +subscribe &*";
        let less: Vec<_> = less.split_whitespace().collect();
        assert_eq!(sentinel.command(&less).text(), "OK");
        assert_eq!(sentinel.command(&["ACL", "SETUSER", "default", "off"]).text(), "OK");
    }
    let denied = refused(&group.url()).await;
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    assert!(whole(&denied).contains("sentinel_user"), "{denied:?}");
    let wrong = format!("{}?sentinel_user=app&sentinel_password=hunter2", group.url());
    let wrong = refused(&wrong).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
    let url = format!("{}?sentinel_user=app&sentinel_password=s3cret", group.url_for("u:pw"));
    let denied = refused(&url).await;
    assert!(whole(&denied).contains("check user and password"), "of the server: {denied:?}");
    group.server(0).command(&["ACL", "SETUSER", "u", "on", ">pw", "+@all", "~*", "&*"]);
    let output = Output::default();
    let _tracing = output.listen();
    let locks = Redis::connect(url.as_str()).await.unwrap();
    assert!(!output.text().contains("WARN"), "{}", output.text());
    assert!(!format!("{locks:?}").contains("s3cret"));
    // Without this right the roles of servers are not known, and that is said.
    group.server(0).command(&["ACL", "SETUSER", "u", "-role"]);
    Redis::connect(url.as_str()).await.unwrap();
    assert!(output.text().contains("WARN"), "{}", output.text());
    assert!(output.text().contains("does not answer ROLE"), "{}", output.text());
    granted(locks.try_acquire(&claim("n", 1000)).await);
    locks.inspect(&name("n")).await.unwrap();
    // A user that may not ask how new an address is would believe a Sentinel that was cut off.
    let url = url.replace("sentinel_user=app", "sentinel_user=less");
    let denied = refused(&url).await;
    assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    assert!(whole(&denied).contains("+sentinel|master"), "{denied:?}");
}

/// Waiters that were served by the old primary after it was replaced are still queued at the new
/// one.
#[tokio::test]
async fn a_planned_failover_costs_at_most_one_claim_lease() {
    const TTL: Duration = Duration::from_secs(2);
    const LOCKS: [&str; 3] = ["a", "b", "c"];
    const PROCESSES: usize = 3;
    const TASKS: usize = 5;

    let group = group().await;
    let grants = LOCKS.map(|_| Arc::new(Mutex::new(Vec::new())));
    let mut contending = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        let locks = Locker::new(connect(&group).await);
        for (name, grants) in LOCKS.iter().zip(&grants) {
            for _ in 0..TASKS {
                let (lock, grants) = (locks.lock(*name).unwrap().ttl(TTL), Arc::clone(grants));
                contending.spawn(async move {
                    loop {
                        if let Ok(guard) = lock.acquire().await {
                            grants.lock().unwrap().push(Moment::now());
                            let _ = guard.release().await;
                        }
                    }
                });
            }
        }
    }
    eventually(|| grants.iter().all(|grants| grants.lock().unwrap().len() > 100)).await;
    group.sentinel(0).command(&["SENTINEL", "FAILOVER", group.service()]);
    meanwhile(&group, |group| group.wait_until_named(1)).await;
    let named = Moment::now();
    let served_since = |grants: &Arc<Mutex<Vec<Moment>>>| {
        let grants = grants.lock().unwrap();
        grants.iter().filter(|at| **at > named + TTL).count() > 100
    };
    until("all locks are granted again", async || grants.iter().all(served_since)).await;
    contending.abort_all();
    for (name, grants) in LOCKS.iter().zip(&grants) {
        let grants = grants.lock().unwrap();
        let gaps = grants.windows(2).map(|pair| pair[1].saturating_since(pair[0]));
        let longest = gaps.max().unwrap_or_default();
        println!("{name} stood still for {longest:?}");
        assert!(longest <= TTL + Duration::from_millis(100), "{name} stood still for {longest:?}");
    }
}
