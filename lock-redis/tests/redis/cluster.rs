//! Locks in a cluster: their masters, and their state when slots move and masters end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::backend::{
    Attempt, Claim, Effect, Fault, FaultKind, OnContention, Release, ReleaseMode, Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::{Backend, Error, ErrorKind, FencingToken, Locker, Order, Wakeup};
use lock_redis::Redis;
use test_servers::{KeepData, Redis as Server, RedisCluster, RedisOptions, Reply};
use tokio::task::JoinHandle;

use crate::least_rights::LEAST_RIGHTS;
use crate::support::{claim, contended, eventually, granted, release, renew, until, win};

pub(crate) const LONG: u64 = 300_000;

/// The longest wait for an event on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The time in ms after which a majority considers a master failed.
const NODE_TIMEOUT: &str = "1000";

/// Starts members that stay up. On a busy machine, a shorter node timeout would fail some of them.
fn masters() -> RedisCluster {
    RedisCluster::start(&RedisOptions::new(), 3, 0)
}

pub(crate) fn options() -> RedisOptions {
    RedisOptions::new()
        .setting("cluster-node-timeout", NODE_TIMEOUT)
        // However long it was without its master.
        .setting("cluster-replica-validity-factor", "0")
        .setting("repl-diskless-sync-delay", "0")
}

pub(crate) async fn connect(cluster: &RedisCluster) -> Redis {
    Redis::connect(cluster.url()).await.expect("the cluster takes us")
}

/// Returns names of locks at the member, in different slots.
pub(crate) fn names_at(cluster: &RedisCluster, member: usize) -> impl Iterator<Item = String> {
    let at = move |name: &String| cluster.home(name) == member;
    (0..).map(|i| format!("n{i}")).filter(at)
}

pub(crate) fn name_at(cluster: &RedisCluster, member: usize) -> String {
    names_at(cluster, member).next().expect("they do not end")
}

pub(crate) fn waiting(text: &str) -> Claim {
    let mut claim = claim(text, LONG);
    claim.on_contention = OnContention::Queue;
    claim
}

/// Starts a waiter that is queued and rests.
async fn queued_waiter(cluster: &RedisCluster, locks: &Redis, claim: &Claim) -> JoinHandle<Wake> {
    let before = queue(cluster, claim.name.as_str());
    contended(locks.try_acquire(claim).await);
    assert_eq!(queue(cluster, claim.name.as_str()), before + 1);
    let (locks, claim) = (locks.clone(), claim.clone());
    tokio::spawn(async move { locks.wait(&claim).await.expect("waiting does not fail") })
}

fn queue(cluster: &RedisCluster, key: &str) -> i64 {
    match cluster.member(cluster.home(key)).command(&["ZCARD", &format!("{{{key}}}%queue")]) {
        Reply::Integer(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

async fn woken(resting: JoinHandle<Wake>) -> Wake {
    tokio::time::timeout(SOON, resting).await.expect("it is woken").expect("no panic")
}

/// Waits until the claim holds the lock, as core does.
pub(crate) async fn wins_in_the_end(locks: &Redis, claim: &Claim) -> Option<FencingToken> {
    loop {
        if let Ok(Attempt::Acquired(grant)) = locks.try_acquire(claim).await {
            return grant.token;
        }
        if let Ok(Ok(Wake::Granted(grant))) = tokio::time::timeout(SOON, locks.wait(claim)).await {
            return grant.token;
        }
    }
}

#[track_caller]
pub(crate) fn still_held(renewal: &Result<Renewal, Fault>) {
    assert!(matches!(renewal, Ok(Renewal::Held(_))), "{renewal:?}");
}

#[tokio::test]
async fn locks_are_on_all_masters_and_waiters_are_served_in_order() {
    let cluster = masters();
    let (locks, elsewhere) = (connect(&cluster).await, connect(&cluster).await);
    assert_eq!(
        (locks.capabilities().order, locks.capabilities().wakeup),
        (Order::Fifo, Wakeup::HandOff)
    );
    for member in 0..3 {
        let lock = name_at(&cluster, member);
        let mut held = claim(&lock, LONG);
        let first = win(&locks, &mut held).await.token;
        let key = cluster.member(member).command(&["GET", &lock]).text();
        assert!(key.starts_with(&*held.owner.expose()), "it is where it belongs: {key:?}");
        let waiters = [waiting(&lock), waiting(&lock), waiting(&lock)];
        let mut resting = Vec::new();
        for (i, waiter) in waiters.iter().enumerate() {
            let client = if i == 1 { &locks } else { &elsewhere };
            resting.push(queued_waiter(&cluster, client, waiter).await);
        }
        assert_eq!(locks.inspect(&held.name).await.unwrap().waiting, Some(3));
        let (mut before, mut held) = (first, held);
        for ((i, waiter), resting) in waiters.into_iter().enumerate().zip(resting) {
            let client = if i == 1 { &locks } else { &elsewhere };
            let holder = if i == 0 || i == 2 { &locks } else { &elsewhere };
            release(holder, &held).await;
            let Wake::Granted(grant) = woken(resting).await else { panic!("{i} was not sent it") };
            assert!(grant.token > before, "{:?} after {before:?}", grant.token);
            still_held(&renew(client, &waiter).await);
            (before, held) = (grant.token, waiter);
        }
        elsewhere.release(&held, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn an_old_map_costs_a_redirection_and_no_lock() {
    let cluster = masters();
    let locks = connect(&cluster).await;
    for member in 0..3 {
        win(&locks, &mut claim(&name_at(&cluster, member), LONG)).await;
    }
    // All of them at once, so that the map is older than all of them.
    let moved: Vec<_> = names_at(&cluster, 0).skip(1).take(3).collect();
    let mut held: Vec<_> = moved.iter().map(|name| claim(name, LONG)).collect();
    for claim in &mut held {
        win(&locks, claim).await;
    }
    for name in &moved {
        cluster.move_slot(cluster.slot(name), 0, 1);
    }
    let claims: Vec<_> = held.iter().collect();
    locks.renew(&claims).await.iter().for_each(still_held);
    for claim in &held {
        assert_eq!(locks.release(claim, ReleaseMode::now()).await.unwrap(), Release::Released);
        let asked = cluster.member(0).command(&["INFO", "commandstats"]).text();
        granted(locks.try_acquire(&self::claim(claim.name.as_str(), LONG)).await);
        let after = cluster.member(0).command(&["INFO", "commandstats"]).text();
        assert_eq!(evalsha(&asked), evalsha(&after), "the map was not put right");
    }
}

fn evalsha(stats: &str) -> Option<&str> {
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"))?;
    line.split(',').next()
}

#[tokio::test]
async fn a_moving_lock_is_renewed_and_other_verbs_are_refused() {
    let cluster = masters();
    let locks = connect(&cluster).await;
    let lock = name_at(&cluster, 0);
    let slot = cluster.slot(&lock);
    let mut held = claim(&lock, 10_000);
    let first = win(&locks, &mut held).await.token;
    cluster.open_slot(slot, 0, 1);
    for moved in ["nothing", "the lock", "the fence"] {
        match moved {
            "the lock" => cluster.move_key(&lock, 0, 1),
            "the fence" => cluster.move_key(&format!("{{{lock}}}%token"), 0, 1),
            _ => {}
        }
        held.ttl += Duration::from_secs(100);
        let Ok(Renewal::Held(grant)) = renew(&locks, &held).await else { panic!("{moved}") };
        assert_eq!(grant.token, first);
        held.ticket = grant.ticket;
        let member = if moved == "nothing" { 0 } else { 1 };
        let left = asking(cluster.member(member), &["PTTL", &lock]).text();
        assert!(left.parse::<u128>().unwrap() > held.ttl.as_millis() - 10_000, "{moved}: {left}");
        let state = locks.inspect(&held.name).await.unwrap();
        assert_eq!((state.holders.len(), state.waiting), (1, None), "{moved}");
        let late = waiting(&lock);
        let refused = [
            locks.try_acquire(&late).await.err(),
            locks.release(&late, ReleaseMode::now()).await.err(),
            locks.release(&held, ReleaseMode::now()).await.err(),
        ];
        for fault in refused.into_iter().map(|fault| fault.expect("it is refused")) {
            assert_eq!(
                (fault.effect(), fault.kind()),
                (Effect::NotApplied, FaultKind::Unavailable)
            );
        }
    }
    cluster.finish_slot(slot, 0, 1);
    still_held(&renew(&locks, &held).await);
    release(&locks, &held).await;
    assert!(granted(locks.try_acquire(&claim(&lock, LONG)).await).token > first);
}

/// Returns the answer about a key of a member that is being given a slot.
fn asking(server: &Server, words: &[&str]) -> Reply {
    let mut session = server.connect().unwrap();
    session.command(&["ASKING"]).unwrap();
    session.command(words).unwrap()
}

#[tokio::test]
async fn a_lock_that_ended_while_its_slot_moved_is_lost() {
    let cluster = masters();
    let locks = connect(&cluster).await;
    let lock = name_at(&cluster, 0);
    let mut held = claim(&lock, LONG);
    win(&locks, &mut held).await;
    cluster.open_slot(cluster.slot(&lock), 0, 1);
    for member in 0..2 {
        asking(cluster.member(member), &["DEL", &lock]);
    }
    let renewal = renew(&locks, &held).await;
    assert!(matches!(renewal, Ok(Renewal::NotHeld)), "{renewal:?}");
}

/// Releases a lock while its slot moves: the release works on the member that has all of its keys.
/// It notifies no waiter there, and the keys that it deleted are on the other member from then on.
#[tokio::test]
async fn a_release_that_was_done_while_its_slot_moves_is_no_error() {
    for moved in [false, true] {
        let cluster = masters();
        let racing = Redis::connect(&*format!("{}?order=any", cluster.url())).await.unwrap();
        let (locks, holder) = (connect(&cluster).await, connect(&cluster).await);
        let lock = name_at(&cluster, 0);
        let slot = cluster.slot(&lock);
        let mut held = claim(&lock, LONG);
        win(&holder, &mut held).await;
        let waiter = waiting(&lock);
        contended(locks.try_acquire(&waiter).await);
        contended(racing.try_acquire(&waiting(&lock)).await);
        let keys = ["", "%token", "%queue", "%procs", "%wake"];
        let keys = keys.map(|part| match part {
            "" => lock.clone(),
            part => format!("{{{lock}}}{part}"),
        });
        cluster.open_slot(slot, 0, 1);
        if moved {
            keys.iter().for_each(|key| cluster.move_key(key, 0, 1));
        }
        let there = cluster.member(usize::from(moved));
        for key in &keys {
            assert_eq!(asking(there, &["EXISTS", key]).text(), "1", "{key}");
        }
        release(&holder, &held).await;
        for member in 0..2 {
            let left = asking(cluster.member(member), &["GET", &lock]).text();
            assert!(!left.contains(&waiter.owner.expose()), "moved: {moved}, at {member}: {left}");
        }
    }
}

#[tokio::test]
async fn waiters_follow_the_slot() {
    let cluster = masters();
    for order in ["fifo", "any"] {
        let url = format!("{}?order={order}", cluster.url());
        let (locks, holder) = (Redis::connect(&*url).await.unwrap(), connect(&cluster).await);
        for round in 0..3 {
            let lock = format!("{order}{round}");
            let (home, slot) = (cluster.home(&lock), cluster.slot(&lock));
            let mut held = claim(&lock, LONG);
            let first = win(&holder, &mut held).await.token;
            let waiter = waiting(&lock);
            contended(locks.try_acquire(&waiter).await);
            let resting = tokio::spawn({
                let (locks, waiter) = (locks.clone(), waiter.clone());
                async move { wins_in_the_end(&locks, &waiter).await }
            });
            let next = (home + 1) % 3;
            cluster.move_slot(slot, home, next);
            if order == "fifo" && round == 0 {
                // It polls by itself, long before its lease ends, and receives the release in one
                // round trip.
                let channels = ["PUBSUB", "SHARDCHANNELS"];
                eventually(|| !cluster.member(next).command(&channels).text().is_empty()).await;
            }
            release(&holder, &held).await;
            let token = tokio::time::timeout(SOON, resting).await.expect("it follows").unwrap();
            assert!(token > first, "{token:?} after {first:?}");
        }
    }
}

#[tokio::test]
async fn answers_are_not_mixed_up_when_a_channel_moves_away() {
    const LOCKS: usize = 40;

    let cluster = masters();
    let (locks, holder) = (connect(&cluster).await, connect(&cluster).await);
    let names: Vec<_> = names_at(&cluster, 0).take(LOCKS).collect();
    let mut owners = HashMap::new();
    for name in &names {
        let mut held = claim(name, LONG);
        win(&holder, &mut held).await;
        owners.insert(name.clone(), held.owner);
    }
    let waiter = waiting(&names[0]);
    let resting = queued_waiter(&cluster, &locks, &waiter).await;
    // The server reads all of it at once: the command that moves the channel away, and questions on
    // the other connection.
    let slot = cluster.slot(&names[0]);
    cluster.open_slot(slot, 0, 1);
    let moving = tokio::task::spawn_blocking({
        let cluster = Arc::new(cluster);
        let moving = Arc::clone(&cluster);
        move || {
            moving.finish_slot(slot, 0, 1);
            cluster
        }
    });
    let mut answered = 0;
    while !moving.is_finished() || answered == 0 {
        let asking = names[1..].iter().map(|name| {
            let (locks, name) = (locks.clone(), crate::support::name(name));
            tokio::spawn(async move { (name.clone(), locks.inspect(&name).await) })
        });
        for asked in asking.collect::<Vec<_>>() {
            let (name, answer) = asked.await.unwrap();
            // A reply that may belong to another question is no answer.
            let Ok(state) = answer else { continue };
            answered += 1;
            assert_eq!(state.holders[0].owner, Some(owners[name.as_str()]), "that of another lock");
        }
    }
    let _cluster = moving.await.unwrap();
    assert!(matches!(woken(resting).await, Wake::Retry));
    for name in &names[1..] {
        let state = locks.inspect(&crate::support::name(name)).await.unwrap();
        assert_eq!(state.holders[0].owner, Some(owners[name]), "that of another lock");
    }
}

/// Acquires one lock at each of the masters. Returns their names, and the grants.
pub(crate) async fn hold_everywhere(
    cluster: &RedisCluster,
    locks: &Redis,
) -> Vec<(Claim, FencingToken)> {
    let mut holds = Vec::new();
    for member in 0..3 {
        let mut held = claim(&name_at(cluster, member), LONG);
        let token = win(locks, &mut held).await.token.expect("Redis has tokens");
        holds.push((held, token));
    }
    holds
}

#[tokio::test]
async fn a_replica_takes_over_with_its_data_and_tokens_grow() {
    let cluster = RedisCluster::start(&options(), 3, 1);
    let (locks, elsewhere) = (connect(&cluster).await, connect(&cluster).await);
    let holds = hold_everywhere(&cluster, &locks).await;
    let (kept, first) = &holds[0];
    let mut lost = claim(&names_at(&cluster, 0).nth(1).unwrap(), LONG);
    // The replica keeps the writes that it has seen so far, and no later ones.
    let count = ["DBSIZE"];
    let all = cluster.member(0).command(&count);
    eventually(|| cluster.member(3).command(&count) == all).await;
    cluster.cut_from_replica(0);
    let before = win(&locks, &mut lost).await.token;
    let waiter = waiting(kept.name.as_str());
    contended(elsewhere.try_acquire(&waiter).await);
    let resting = tokio::spawn({
        let (elsewhere, waiter) = (elsewhere.clone(), waiter.clone());
        async move { wins_in_the_end(&elsewhere, &waiter).await }
    });
    cluster.member(0).kill();
    let died = Moment::now();
    let mut refused = 0;
    until("the replica takes over", async || match renew(&locks, kept).await {
        Ok(Renewal::Held(_)) => true,
        Ok(Renewal::NotHeld) => panic!("what the replica has is lost"),
        Err(fault) => {
            assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault:?}");
            refused += 1;
            false
        }
    })
    .await;
    let took = Moment::now().saturating_since(died);
    println!("taken over after {took:?} and {refused} refusals");
    assert!(matches!(renew(&locks, &lost).await, Ok(Renewal::NotHeld)), "it never heard of it");
    // The other client may learn of it from a refusal.
    let again = claim(lost.name.as_str(), LONG);
    assert!(wins_in_the_end(&elsewhere, &again).await > before, "tokens grow all the same");
    for (held, _) in &holds[1..] {
        still_held(&renew(&locks, held).await);
    }
    // The waiter has followed, and is queued.
    eventually(|| queue(&cluster, kept.name.as_str()) == 1).await;
    assert_eq!(locks.release(kept, ReleaseMode::now()).await.unwrap(), Release::Released);
    let token = tokio::time::timeout(SOON, resting).await.expect("it is sent the lock").unwrap();
    assert!(token > Some(*first));
}

#[tokio::test]
async fn a_master_that_hangs_holds_up_its_own_locks_alone() {
    let cluster = RedisCluster::start(&options(), 3, 1);
    let locks = connect(&cluster).await;
    let holds = hold_everywhere(&cluster, &locks).await;
    let count = ["DBSIZE"];
    let all = cluster.member(0).command(&count);
    eventually(|| cluster.member(3).command(&count) == all).await;
    let stopped = &holds[0].0;
    cluster.member(0).stop();
    let bounded = |claim: Claim| {
        let locks = locks.clone();
        async move { tokio::time::timeout(Duration::from_millis(300), renew(&locks, &claim)).await }
    };
    assert!(bounded(stopped.clone()).await.is_err(), "it hangs");
    for (held, _) in &holds[1..] {
        still_held(&renew(&locks, held).await);
    }
    // Long before the connection is given up, the client asks other members for the master of the
    // slot.
    until("the replica is found", async || {
        matches!(bounded(stopped.clone()).await, Ok(Ok(Renewal::Held(_))))
    })
    .await;
    cluster.member(0).cont();
    still_held(&renew(&locks, stopped).await);
    assert_eq!(locks.release(stopped, ReleaseMode::now()).await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_lost_member_is_reported_and_the_others_serve() {
    let cluster =
        RedisCluster::start(&options().setting("cluster-require-full-coverage", "no"), 3, 0);
    let locks = connect(&cluster).await;
    let holds = hold_everywhere(&cluster, &locks).await;
    cluster.member(2).kill();
    for round in 0..5 {
        let fault = renew(&locks, &holds[2].0).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unavailable);
        if round > 0 {
            assert_eq!(fault.effect(), Effect::NotApplied, "nobody was there to be asked");
        }
        for (held, _) in &holds[..2] {
            still_held(&renew(&locks, held).await);
        }
    }
}

#[tokio::test]
async fn a_new_client_locks_while_a_member_is_down() {
    let cluster =
        RedisCluster::start(&options().setting("cluster-require-full-coverage", "no"), 3, 0);
    let names = [0, 1, 2].map(|member| names_at(&cluster, member).take(3).collect::<Vec<_>>());
    for gone in 0..3 {
        cluster.member(gone).kill();
        // Even if it has the keys of the trial of rights.
        let locks = connect(&cluster).await;
        for (_, names) in names.iter().enumerate().filter(|(member, _)| *member != gone) {
            granted(locks.try_acquire(&claim(&names[gone], LONG)).await);
        }
        cluster.member(gone).restart(KeepData::Yes);
        let knows_all = |member| knows_all(&cluster, member);
        eventually(|| cluster.is_settled() && (0..3).all(knows_all)).await;
    }
}

/// Returns true if the member believes that it reaches all others.
fn knows_all(cluster: &RedisCluster, member: usize) -> bool {
    let nodes = cluster.member(member).command(&["CLUSTER", "NODES"]).text();
    nodes.lines().count() == 3 && !nodes.contains("fail") && !nodes.contains("disconnected")
}

#[tokio::test]
async fn a_right_that_is_missing_in_a_cluster_is_named() {
    let cluster = masters();
    let in_cluster = "+spublish +ssubscribe +cluster|slots +asking";
    let rights = LEAST_RIGHTS[0].replace("+publish +subscribe", in_cluster);
    let with = |rights: &str| {
        let words = format!("ACL SETUSER u reset on >pw {rights}");
        let words: Vec<_> = words.split_whitespace().collect();
        for member in 0..3 {
            assert_eq!(cluster.member(member).command(&words).text(), "OK");
        }
    };
    let url = format!("{}?prefix=app:", cluster.url().replace("://", "://u:pw@"));
    with(&rights);
    let locks = Redis::connect(url.as_str()).await.unwrap();
    granted(locks.try_acquire(&claim("n", LONG)).await);
    for missing in ["+spublish", "+ssubscribe", "+cluster|slots", "+asking", "+zcard"] {
        with(&rights.replace(missing, ""));
        let error = Redis::connect(url.as_str()).await.expect_err(missing);
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let shown = format!("{error} {}", source.unwrap_or_default());
        assert!(shown.contains(&missing[1..]), "{missing}: {shown}");
    }
}

#[tokio::test]
async fn a_single_server_is_no_cluster() {
    let server = Server::start(RedisOptions::new());
    let url = server.url().replace("redis://", "redis+cluster://");
    let error = Redis::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = format!("{:?}", std::error::Error::source(&error));
    assert!(text.contains("write redis://"), "{text}");
    let nobody = Redis::connect("redis+cluster://127.0.0.1:1,127.0.0.1:2").await.unwrap_err();
    assert_eq!((nobody.kind(), nobody.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
}

#[tokio::test]
async fn guards_change_hands_while_slots_move() {
    const CLIENTS: usize = 3;

    let cluster = Arc::new(masters());
    let (inside, moved) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let locks = Locker::new(connect(&cluster).await);
        let (inside, moved) = (Arc::clone(&inside), Arc::clone(&moved));
        clients.push(tokio::spawn(async move { in_turn(&locks, &inside, &moved).await }));
    }
    let moving = tokio::task::spawn_blocking({
        let (cluster, moved) = (Arc::clone(&cluster), Arc::clone(&moved));
        move || {
            let slot = cluster.slot("moving");
            for _ in 0..6 {
                let home = cluster.home("moving");
                cluster.move_slot(slot, home, (home + 1) % 3);
            }
            moved.store(true, Ordering::SeqCst);
        }
    });
    let mut tokens = Vec::new();
    for client in clients {
        let mine = client.await.unwrap().unwrap();
        assert!(mine.is_sorted(), "{mine:?}");
        tokens.extend(mine);
    }
    moving.await.unwrap();
    let rounds = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), rounds, "a token twice");
}

/// Acquires the lock again and again while its slot moves, and checks that it is alone each time.
async fn in_turn(
    locks: &Locker,
    inside: &AtomicUsize,
    moved: &AtomicBool,
) -> Result<Vec<Option<FencingToken>>, Error> {
    const ROUNDS: usize = 30;

    let mut tokens = Vec::new();
    while tokens.len() < ROUNDS || !moved.load(Ordering::SeqCst) {
        // The first attempt of a new client is refused, and nothing is lost by it.
        let guard = match locks.lock("moving")?.ttl(Duration::from_millis(LONG)).acquire().await {
            Err(error) if error.is_retryable() => continue,
            acquired => acquired?,
        };
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another one is inside");
        tokens.push(guard.fencing_token());
        // Time for other clients to get in, if they could.
        if let Err(error) = guard.verify().await {
            assert!(error.is_retryable(), "{error:?}");
        }
        assert!(guard.is_held());
        assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "another one has come in");
        // A request that is refused while the slot moves continues in the background.
        if let Err(error) = guard.release().await {
            assert!(error.is_retryable(), "{error:?}");
        }
    }
    Ok(tokens)
}
