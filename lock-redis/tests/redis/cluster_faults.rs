//! Clusters whose members are partitioned, and the locks that asynchronous replication loses there.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Effect, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::{Backend, ErrorKind, FenceGate, Locker, Loss};
use lock_redis::Redis;
use test_servers::{RedisCluster, Reply};

use crate::cluster::{
    LONG, SOON, connect, hold_everywhere, name_at, names_at, options, still_held, waiting,
    wins_in_the_end,
};
use crate::support::{acquired, claim, contended, eventually, renew, until, win};

/// A lease that outlasts every test: it does not end, and no renewal is due.
const LEASE: Duration = Duration::from_millis(LONG);

async fn cluster(replicas: usize) -> Arc<RedisCluster> {
    let starting = move || RedisCluster::start(&options().links(), 3, replicas);
    Arc::new(tokio::task::spawn_blocking(starting).await.unwrap())
}

/// Runs blocking work, while the clients of this test go on.
async fn meanwhile(cluster: &Arc<RedisCluster>, work: impl FnOnce(&RedisCluster) + Send + 'static) {
    let cluster = Arc::clone(cluster);
    tokio::task::spawn_blocking(move || work(&cluster)).await.unwrap();
}

fn says(cluster: &RedisCluster, member: usize, word: &str) -> bool {
    let role = cluster.member(member).connect().and_then(|mut s| s.command(&["ROLE"]));
    role.is_ok_and(|role| role.text().starts_with(word))
}

/// Returns true if the member serves no client, because it sees no majority.
fn is_down(cluster: &RedisCluster, member: usize) -> bool {
    let name = name_at(cluster, member);
    matches!(cluster.member(member).command(&["GET", &name]), Reply::Error(why) if why.starts_with("CLUSTERDOWN"))
}

/// Waits until the member that has the lock by then knows of it.
async fn is_held_again(locks: &Redis, held: &Claim) {
    let bound = Duration::from_secs(1);
    until("it is renewed", async || match tokio::time::timeout(bound, renew(locks, held)).await {
        Ok(Ok(Renewal::Held(_))) => true,
        Ok(Ok(Renewal::NotHeld)) => panic!("what the replica has is lost"),
        Ok(Err(fault)) => {
            assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault:?}");
            false
        }
        Err(_) => false,
    })
    .await;
}

/// Checks a master that fails in some way with a lock that its replica has not received, and that
/// comes back.
async fn check_lost_lock(
    goes: impl FnOnce(&RedisCluster) + Send + 'static,
    returns: impl FnOnce(&RedisCluster) + Send + 'static,
) {
    let cluster = cluster(1).await;
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let mut names = names_at(&cluster, 0);
    let (kept, lost) = (names.next().unwrap(), names.next().unwrap());
    let mut kept = claim(&kept, LONG);
    win(&locks, &mut kept).await;
    let count = ["DBSIZE"];
    let all = cluster.member(0).command(&count);
    eventually(|| cluster.member(3).command(&count) == all).await;
    cluster.cut_from_replica(0);
    let lock = Locker::new(locks.clone()).lock(&*lost).unwrap().ttl(LEASE);
    let guard = lock.acquire().await.unwrap();
    let gate = FenceGate::new(());
    gate.admit(guard.fencing_token().unwrap(), |()| ()).unwrap();
    meanwhile(&cluster, goes).await;
    eventually(|| says(&cluster, 3, "master")).await;
    // Its clients may reach the old master all the time.
    is_held_again(&locks, &kept).await;
    let next = acquired(&Locker::new(other).lock(&*lost).unwrap().ttl(LEASE)).await;
    assert!(next.fencing_token() > guard.fencing_token());
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    // By its next renewal, and long before the end of its lease.
    assert!(guard.is_held(), "who asks nothing is not told");
    until("it is told", async || match guard.verify().await {
        Ok(()) => panic!("another one has it"),
        Err(error) => error.kind() == ErrorKind::Lost,
    })
    .await;
    assert_eq!(guard.lost().await, Loss::NotHeld);
    assert!(gate.admit(guard.fencing_token().unwrap(), |()| ()).is_err());
    meanwhile(&cluster, returns).await;
    eventually(|| says(&cluster, 0, "slave")).await;
    // The data of the old master are gone, and no client returns to it.
    still_held(&renew(&locks, &kept).await);
    next.verify().await.unwrap();
    contended(locks.try_acquire(&claim(&lost, LONG)).await);
}

#[tokio::test]
async fn a_lock_lost_with_its_master_is_notified_and_fenced() {
    use test_servers::KeepData;
    let back = |cluster: &RedisCluster| cluster.member(0).restart(KeepData::Yes);
    check_lost_lock(|cluster| cluster.member(0).kill(), back).await;
}

#[tokio::test]
async fn a_lock_on_a_stopped_master_is_notified_and_fenced() {
    let back = |cluster: &RedisCluster| {
        cluster.member(0).cont();
        cluster.replicate_again(0);
    };
    check_lost_lock(|cluster| cluster.member(0).stop(), back).await;
}

/// Checks that clients leave the master, though all reach it and its map still names itself.
#[tokio::test]
async fn clients_leave_a_master_without_its_majority() {
    let back = |cluster: &RedisCluster| {
        assert!(is_down(cluster, 0) && says(cluster, 0, "master"), "it does not know better");
        cluster.heal(0);
        cluster.replicate_again(0);
    };
    check_lost_lock(|cluster| cluster.cut_off(0), back).await;
}

#[tokio::test]
async fn a_cluster_without_a_majority_is_an_outage_and_loses_nothing() {
    let cluster = cluster(0).await;
    let (locks, other) = (connect(&cluster).await, connect(&cluster).await);
    let holds = hold_everywhere(&cluster, &locks).await;
    let (held, first) = &holds[0];
    let waiter = waiting(held.name.as_str());
    contended(other.try_acquire(&waiter).await);
    let resting = tokio::spawn(async move { wins_in_the_end(&other, &waiter).await });
    meanwhile(&cluster, |cluster| (0..3).for_each(|member| cluster.cut_off(member))).await;
    eventually(|| (0..3).all(|member| is_down(&cluster, member))).await;
    for (held, _) in &holds {
        let refused = [
            renew(&locks, held).await.err(),
            locks.release(held, ReleaseMode::now()).await.err(),
            locks.try_acquire(&claim(held.name.as_str(), LONG)).await.err(),
        ];
        for fault in refused.into_iter().map(|fault| fault.expect("nobody may do anything")) {
            assert_eq!(
                (fault.effect(), fault.kind()),
                (Effect::NotApplied, FaultKind::Unavailable)
            );
        }
    }
    assert!(!resting.is_finished());
    for member in 0..3 {
        cluster.heal(member);
    }
    for (held, _) in &holds {
        is_held_again(&locks, held).await;
    }
    let taken = locks.try_acquire(&claim(held.name.as_str(), LONG)).await;
    assert!(matches!(taken, Ok(Attempt::Contended { .. })), "{taken:?}");
    assert_eq!(locks.release(held, ReleaseMode::now()).await.unwrap(), Release::Released);
    let token = tokio::time::timeout(SOON, resting).await.expect("it is served").unwrap();
    assert!(token > Some(*first));
}
