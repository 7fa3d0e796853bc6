//! Many contenders on several threads, which hold, try, give up and disappear at any time. Each of
//! them is served, and nothing is left. `STRESS_SECS` makes it longer.
//!
//! Leases are much longer than any wait here. So the test detects a waiter that is not woken, and a
//! vote that is never undone.

use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection};
use lock_core::{Backend, Error, LockName, Locker, Memory};
use lock_quorum::{Quorum, QuorumBuilder};
use test_servers::{Redis, RedisOptions};

const CONTENDERS: usize = 12;
const NAMES: [&str; 2] = ["a", "b"];
const TTL: Duration = Duration::from_secs(60);

/// Far more than the wait of a client whose turn comes, and less than the lease.
const STUCK: Duration = Duration::from_secs(30);

fn lasts() -> Duration {
    let secs = std::env::var("STRESS_SECS").ok().and_then(|secs| secs.parse().ok());
    Duration::from_secs(secs.unwrap_or(3))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_contender_is_served_by_members_in_memory() {
    for size in [3, 5] {
        let members: Vec<_> = (0..size).map(|_| Memory::new()).collect();
        let far = |member: &Memory| {
            Arc::new(FaultInjector::new(Arc::new(member.clone()), |_| match fastrand::u8(..) {
                0..64 => Injection::DelayRequest(Duration::from_micros(fastrand::u64(..3000))),
                64..128 => Injection::DelayReply(Duration::from_micros(fastrand::u64(..3000))),
                _ => Injection::None,
            })) as Arc<dyn Backend>
        };
        let mut lockers = Vec::new();
        for _ in 0..CONTENDERS {
            lockers.push(locker(members.iter().map(far)).await);
        }
        let look = members.iter().map(|member| Arc::new(member.clone()) as Arc<dyn Backend>);
        contend(lockers, look.collect()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_contender_is_served_by_redis() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start(RedisOptions::new())).collect();
    let mut lockers = Vec::new();
    for _ in 0..CONTENDERS {
        lockers.push(locker(connect(&nodes).await).await);
    }
    contend(lockers, connect(&nodes).await).await;
}

async fn connect(nodes: &[Redis]) -> Vec<Arc<dyn Backend>> {
    let mut members = Vec::new();
    for node in nodes {
        let member = lock_redis::Redis::connect(node.url()).await.expect("the server takes us");
        members.push(Arc::new(member) as Arc<dyn Backend>);
    }
    members
}

async fn locker(members: impl IntoIterator<Item = Arc<dyn Backend>>) -> Locker {
    let builder = members.into_iter().fold(Quorum::builder(), QuorumBuilder::member_from);
    Locker::new(builder.members_remember().build().await.expect("a quorum can be made"))
}

async fn contend(lockers: Vec<Locker>, members: Vec<Arc<dyn Backend>>) {
    let end = Moment::now() + lasts();
    let mut racing = tokio::task::JoinSet::new();
    for locks in lockers {
        let members = members.clone();
        racing.spawn(async move {
            let mut served = 0;
            while !end.has_passed() {
                let name = NAMES[fastrand::usize(..NAMES.len())];
                let turn = tokio::time::timeout(STUCK, turn(&locks, name)).await;
                match turn {
                    Ok(won) => served += u32::from(won.expect("members in good health")),
                    Err(_) => panic!("stuck: {name} is held so: {}", seen(&members, name).await),
                }
            }
            locks.close().await.expect("all is let go");
            served
        });
    }
    let mut served = 0;
    while let Some(turns) = racing.join_next().await {
        served += turns.expect("nobody is stuck");
    }
    for name in NAMES {
        free_in_the_end(&members, name).await;
    }
    eprintln!("{served} turns were served");
    assert!(served > 100, "{served} turns were served");
}

/// Returns true if it had the lock.
async fn turn(locks: &Locker, name: &str) -> Result<bool, Error> {
    let lock = locks.lock(name)?.ttl(TTL);
    match fastrand::u8(..8) {
        0 => {
            let patience = Duration::from_micros(fastrand::u64(..20_000));
            // Dropped at whichever await it has reached.
            match tokio::time::timeout(patience, lock.acquire()).await {
                Ok(guard) => guard?.release().await?,
                Err(_) => return Ok(false),
            }
        }
        1 => match lock.try_acquire().await? {
            Some(guard) => guard.release().await?,
            None => return Ok(false),
        },
        2 => drop(lock.acquire().await?),
        _ => {
            let guard = lock.acquire().await?;
            if fastrand::bool() {
                sleep(Duration::from_micros(fastrand::u64(..3000))).await;
            }
            guard.release().await?;
        }
    }
    Ok(true)
}

async fn free_in_the_end(members: &[Arc<dyn Backend>], name: &str) {
    let end = Moment::now() + STUCK;
    loop {
        let seen = seen(members, name).await;
        if seen.is_empty() {
            return;
        }
        assert!(!end.has_passed(), "{name} is left so: {seen}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the holder at each member; empty without one.
async fn seen(members: &[Arc<dyn Backend>], name: &str) -> String {
    let name = LockName::new(name).expect("a good name");
    let mut seen = String::new();
    for (nth, member) in members.iter().enumerate() {
        let state = member.inspect(&name).await.expect("the member is there");
        for holder in state.holders {
            seen += &format!("member {nth}: {holder:?}; ");
        }
    }
    seen
}
