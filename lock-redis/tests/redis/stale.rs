//! Queues with entries of waiters that were served elsewhere: a failover or a restart with older
//! data restores them.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Attempt, Claim, OnContention, Release, ReleaseMode, Wake};
use lock_core::clock::Moment;
use lock_core::{Backend, Locker};
use lock_redis::Redis;
use test_servers::Step;

use crate::support::{Server, claim, contended, eventually, name, release, win};

/// So long that no waiter polls by itself while a test runs.
const LONG: u64 = 300_000;

/// How long a grant waits for an answer of its owner.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

/// A stale entry that costs a claim lease, or a round trip, shows before that.
const TOO_LATE: Duration = Duration::from_secs(12);

/// The numbers of stale entries.
const STALE: [usize; 3] = [1, 60, 450];

/// One way of a relay between a client and its server.
const ONE_WAY: Duration = Duration::from_millis(10);

/// A server with a held lock, and a client behind a relay.
struct Scene {
    server: Server,
    relay: Proxy,
    url: String,
    holder: Redis,
    held: Claim,
}

/// A queue and the processes in it, to be brought back.
struct Snapshot([Vec<u8>; 2]);

const PARTS: [&str; 2] = ["{n}%queue", "{n}%procs"];

impl Scene {
    async fn new() -> Self {
        Self::on(Server::start()).await
    }

    async fn on(server: Server) -> Self {
        let (relay, url) = server.proxied();
        let holder = server.client().await;
        let mut held = claim("n", LONG);
        win(&holder, &mut held).await;
        Self { server, relay, url, holder, held }
    }

    async fn client(&self) -> Redis {
        Redis::connect(self.url.as_str()).await.unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        let dump = |key| redis::cmd("DUMP").arg(key).query(&mut self.server.operator()).unwrap();
        Snapshot(PARTS.map(dump))
    }

    fn restore(&self, snapshot: &Snapshot) {
        for (key, dump) in PARTS.iter().zip(&snapshot.0) {
            let mut restore = redis::cmd("RESTORE");
            restore.arg(key).arg(600_000).arg(dump).arg("REPLACE");
            restore.exec(&mut self.server.operator()).unwrap();
        }
    }

    /// Measures the time from the release to the grant of the waiter.
    async fn standstill(&self, locks: &Redis, waiter: &Claim) -> Duration {
        let began = Moment::now();
        let released = self.holder.release(&self.held, ReleaseMode::now()).await.unwrap();
        assert_eq!(released, Release::Released);
        let served = async {
            loop {
                match locks.wait(waiter).await.unwrap() {
                    Wake::Granted(_) => return,
                    _ if is_granted(locks, waiter).await => return,
                    _ => {}
                }
            }
        };
        tokio::time::timeout(TOO_LATE, served).await.expect("it is served");
        Moment::now().saturating_since(began)
    }
}

async fn is_granted(locks: &Redis, waiter: &Claim) -> bool {
    matches!(locks.try_acquire(waiter).await.unwrap(), Attempt::Acquired(_))
}

fn waiter() -> Claim {
    let mut claim = claim("n", LONG);
    claim.on_contention = OnContention::Queue;
    claim
}

/// Queues this many claims.
async fn queued(locks: &Redis, count: usize) -> Vec<Claim> {
    let waiters: Vec<_> = (0..count).map(|_| waiter()).collect();
    let mut asking = tokio::task::JoinSet::new();
    for waiter in waiters.clone() {
        let locks = locks.clone();
        asking.spawn(async move { contended(locks.try_acquire(&waiter).await) });
    }
    asking.join_all().await;
    waiters
}

/// Waits until they are served or refused: their process does not know them any more.
async fn gone(locks: &Redis, waiters: Vec<Claim>) {
    let mut releasing = tokio::task::JoinSet::new();
    for waiter in waiters {
        let locks = locks.clone();
        releasing.spawn(async move { locks.release(&waiter, ReleaseMode::now()).await.unwrap() });
    }
    releasing.join_all().await;
}

/// A process answers once for all its stale entries, and keeps the position of those that still
/// wait.
#[tokio::test]
async fn stale_entries_of_a_live_process_cost_one_round_trip() {
    for count in STALE {
        let scene = Scene::new().await;
        let (locks, other) = (scene.client().await, scene.server.client().await);
        let stale = queued(&locks, count).await;
        let next = queued(&locks, 1).await.remove(0);
        let last = queued(&other, 1).await.remove(0);
        let snapshot = scene.snapshot();
        gone(&locks, stale).await;
        scene.restore(&snapshot);
        scene.relay.set(Fault::delay(ONE_WAY));
        let took = scene.standstill(&locks, &next).await;
        println!("{count} stale entries of a live process: {took:?}");
        assert!(took < CLAIM_LEASE, "{took:?} with {count} stale entries");
        release(&locks, &next).await;
        let woken = tokio::time::timeout(TOO_LATE, other.wait(&last)).await.expect("it is called");
        assert!(matches!(woken.unwrap(), Wake::Granted(_)));
    }
}

/// The arrivals of the entries are those of the former primary's clock.
#[tokio::test]
async fn stale_entries_that_are_ahead_of_the_clock_cost_no_round_trip_each() {
    let scene = Scene::on(Server::with_log_and_clock()).await;
    let locks = scene.client().await;
    // The clock stays ahead of the token: a release then takes its short path, if it may.
    scene.server.step_clock(Step::Forward(Duration::from_secs(10)));
    let stale = queued(&locks, 450).await;
    let next = queued(&locks, 1).await.remove(0);
    let snapshot = scene.snapshot();
    gone(&locks, stale).await;
    scene.restore(&snapshot);
    scene.server.step_clock(Step::Back(Duration::from_secs(8)));
    scene.relay.set(Fault::delay(ONE_WAY));
    let before = scene.server.calls("evalsha");
    let took = scene.standstill(&locks, &next).await;
    let requests = scene.server.calls("evalsha") - before;
    println!("450 stale entries that are ahead of the clock: {took:?}, {requests} requests");
    assert!(took < CLAIM_LEASE, "{took:?}");
    // A grant to a stale entry would be one more.
    assert!(requests <= 4, "{requests} requests");
}

/// The state of the processes whose waiters a restarted server knows, though they were served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Processes {
    /// They are connected again.
    Live,
    /// They are not connected.
    Away,
    /// They were connected again, and vanished without a word: the server considers their
    /// connections open.
    Vanished,
}

/// A server restarts with older data, whose stale entries are of some processes. Returns how long
/// the lock is not granted to the waiter behind them, from its first release on.
async fn standstill_after_a_restart(processes: Processes, count: usize) -> Duration {
    const MACHINES: usize = 9;

    let scene = Scene::new().await;
    let (machines_relay, machines_url) = scene.server.proxied();
    let mut machines = Vec::new();
    for machine in 0..MACHINES.min(count) {
        let locks = Redis::connect(machines_url.as_str()).await.unwrap();
        let stale =
            queued(&locks, count / MACHINES + usize::from(machine < count % MACHINES)).await;
        machines.push((locks, stale));
    }
    let lock = Locker::new(scene.client().await).lock("n").unwrap();
    let lock = lock.ttl(Duration::from_millis(LONG));
    let waiting =
        tokio::spawn(async move { lock.acquire().await.map(|guard| (guard, Moment::now())) });
    eventually(|| scene.server.waiting("n") == count as u64 + 1).await;
    let _: String = scene.server.run("SAVE");
    for (locks, stale) in &mut machines {
        gone(locks, std::mem::take(stale)).await;
    }
    scene.server.kill();
    scene.server.start_with_data();
    assert_eq!(scene.server.waiting("n"), count as u64 + 1);
    if processes != Processes::Away {
        for (locks, _) in &machines {
            back_in_touch(locks).await;
        }
    }
    if processes == Processes::Vanished {
        machines_relay.set(Fault::BlackHole);
    }
    // The waiter has asked again.
    eventually(|| scene.server.calls("zadd") > 0).await;
    back_in_touch(&scene.holder).await;
    scene.relay.set(Fault::delay(ONE_WAY));
    let began = Moment::now();
    let released = scene.holder.release(&scene.held, ReleaseMode::now()).await.unwrap();
    assert_eq!(released, Release::Released);
    let served = tokio::time::timeout(TOO_LATE, waiting).await.expect("it is served");
    let (_guard, at) = served.unwrap().unwrap();
    at.saturating_since(began)
}

/// The first request after an outage may find the connection dead. Not so from here on.
async fn back_in_touch(locks: &Redis) {
    let _ = locks.inspect(&name("another")).await;
    locks.inspect(&name("another")).await.expect("it is connected again");
}

#[tokio::test]
async fn stale_entries_after_a_restart_cost_no_claim_lease() {
    let mut too_long = Vec::new();
    for processes in [Processes::Live, Processes::Away, Processes::Vanished] {
        for count in STALE {
            let took = standstill_after_a_restart(processes, count).await;
            println!("{count} stale entries of processes that are {processes:?}: {took:?}");
            if took >= CLAIM_LEASE {
                too_long.push((processes, count, took));
            }
        }
    }
    assert!(too_long.is_empty(), "{too_long:?}");
}

/// Each of them is asked for by itself.
#[tokio::test]
async fn stale_entries_of_as_many_processes_cost_no_claim_lease() {
    for count in STALE {
        let scene = Scene::new().await;
        let mut crowd = redis::cmd("ZADD");
        let mut places = redis::cmd("ZADD");
        crowd.arg("{n}%queue");
        places.arg("{n}%procs");
        for i in 1..=count {
            crowd.arg(i).arg(format!("{i:032x} %~to:gone{i} 60000 - "));
            places.arg(9_000_000_000_000_000_u64).arg(format!("%~to:gone{i}"));
        }
        crowd.exec(&mut scene.server.operator()).unwrap();
        places.exec(&mut scene.server.operator()).unwrap();
        let locks = scene.client().await;
        let next = queued(&locks, 1).await.remove(0);
        scene.relay.set(Fault::delay(ONE_WAY));
        let took = scene.standstill(&locks, &next).await;
        println!("stale entries of {count} processes: {took:?}");
        assert!(took < CLAIM_LEASE, "{took:?} with {count} processes");
    }
}

/// A claim may begin after its process has heard the grant.
#[tokio::test]
async fn entries_from_after_a_grant_are_not_taken_for_stale() {
    let scene = Scene::new().await;
    let locks = scene.client().await;
    let waiter = queued(&locks, 1).await.remove(0);
    let [entry, arrival]: [String; 2] =
        scene.server.command(&["ZRANGE", "{n}%queue", "0", "0", "WITHSCORES"]);
    let (_, rest) = entry.split_once(' ').unwrap();
    let (earlier, later) = (format!("{:032x} {rest}", 1), format!("{:032x} {rest}", 2));
    let _: u64 = scene.server.command(&["ZADD", "{n}%queue", "1", &earlier]);
    let _: u64 = scene.server.command(&["ZADD", "{n}%queue", "9000000000000000", &later]);
    let process = rest.split(' ').next().unwrap();
    let grant = format!("grant {:032x} 1 3000 {arrival} {arrival} n", 1);
    for channel in scene.server.run::<Vec<String>>("PUBSUB CHANNELS") {
        if channel.starts_with(process) {
            let _: u64 = scene.server.command(&["PUBLISH", &channel, &grant]);
        }
    }
    eventually(|| scene.server.waiting("n") == 2).await;
    let left: Vec<String> = scene.server.run("ZRANGE {n}%queue 0 -1");
    assert_eq!(left, [entry, later]);
    assert!(left[0].starts_with(&waiter.owner.expose()));
}

/// The processes before a waiter do not poll when the lease ends, if they are gone.
#[tokio::test]
async fn a_newcomer_behind_stale_entries_takes_over() {
    const LEASE: Duration = Duration::from_millis(1500);

    let server = Server::start();
    let (holder, away) = (server.client().await, server.client().await);
    let mut held = claim("n", LEASE.as_millis() as u64);
    let began = Moment::now();
    win(&holder, &mut held).await;
    queued(&away, 60).await;
    // The server has noticed that its connection is closed.
    drop(away);
    eventually(|| server.run::<Vec<String>>("PUBSUB CHANNELS").len() == 1).await;
    let lock = Locker::new(server.client().await).lock("n").unwrap();
    let waiting = lock.ttl(Duration::from_millis(LONG));
    let granted = tokio::time::timeout(TOO_LATE, waiting.acquire()).await;
    let _guard = granted.expect("it polls when the lease ends").unwrap();
    let took = Moment::now().saturating_since(began);
    assert!(took >= LEASE && took < LEASE + CLAIM_LEASE, "{took:?}");
}

/// Nothing tells the waiters that lock and queue are gone together.
#[tokio::test]
async fn waiters_notice_a_swapped_database_within_two_leases() {
    const TTL: Duration = Duration::from_secs(1);
    // Polls are spread by a tenth.
    const BOUND: Duration = Duration::from_millis(2200);

    let server = Server::start();
    let holder = Locker::new(server.client().await).lock("n").unwrap().ttl(TTL);
    let _guard = holder.acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let locks = Locker::new(server.client().await);
        for _ in 0..4 {
            let lock = locks.lock("n").unwrap().ttl(TTL);
            waiting.spawn(async move {
                let guard = lock.acquire().await.unwrap();
                let at = Moment::now();
                guard.release().await.unwrap();
                at
            });
        }
    }
    eventually(|| server.waiting("n") == 8).await;
    let _: String = server.run("SWAPDB 0 1");
    let began = Moment::now();
    while let Some(at) = waiting.join_next().await {
        let took = at.unwrap().saturating_since(began);
        assert!(took < BOUND + Duration::from_millis(500), "{took:?}");
    }
}
