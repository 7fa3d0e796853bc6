//! How long a contended lock stands still when its primary is replaced, or its server comes back
//! with older data. To print the figures:
//! `cargo test -p lock-redis --test redis standstill:: -- --nocapture`

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::Locker;
use lock_core::clock::Moment;
use lock_redis::Redis;
use test_servers::{KeepData, Redis as Server, RedisOptions, SentinelGroup};
use tokio::task::JoinSet;

use crate::support::until;

const TTL: Duration = Duration::from_secs(2);

/// The promised bound: a claim lease, here as long as the lease, and 100 ms.
const BOUND: Duration = Duration::from_millis(2100);

/// More than a failover takes on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The numbers of waiters.
const WAITERS: [usize; 3] = [1, 60, 450];

/// The number of client processes that they are spread over.
const PROCESSES: usize = 3;

/// How a server comes to have stale queue entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// `SENTINEL FAILOVER`.
    PlannedFailover,
    /// The primary is killed, and the Sentinels notice.
    UnplannedFailover,
    /// A server is killed, and loads an older RDB file.
    StaleRestart,
}

/// One lock that some tasks acquire and release in turn, all the time.
struct Contention {
    grants: Arc<Mutex<Vec<Moment>>>,
    _tasks: JoinSet<()>,
}

impl Contention {
    /// So many wait while one holds.
    async fn start(url: &str, waiters: usize) -> Self {
        let (grants, mut tasks) = (Arc::<Mutex<Vec<Moment>>>::default(), JoinSet::new());
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(Locker::new(Redis::connect(url).await.unwrap()));
        }
        for task in 0..=waiters {
            let lock = processes[task % PROCESSES].lock("n").unwrap().ttl(TTL);
            let grants = Arc::clone(&grants);
            tasks.spawn(async move {
                loop {
                    if let Ok(guard) = lock.acquire().await {
                        let now = Moment::now();
                        grants.lock().unwrap_or_else(PoisonError::into_inner).push(now);
                        let _ = guard.release().await;
                    }
                }
            });
        }
        let contention = Self { grants, _tasks: tasks };
        contention.goes_on(2 * waiters + 10, Moment::now()).await;
        contention
    }

    fn since(&self, from: Moment) -> Vec<Moment> {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.iter().copied().filter(|at| *at > from).collect()
    }

    /// Waits for so many grants after a point in time.
    async fn goes_on(&self, count: usize, after: Moment) {
        until("the lock is granted", async || self.since(after).len() >= count).await;
    }

    /// Returns the longest time without a grant, from a point in time until long after it.
    async fn longest_gap(&self, from: Moment, waiters: usize) -> Duration {
        self.goes_on(2 * waiters + 10, from + BOUND).await;
        let mut last = from;
        let gaps = self.since(from).into_iter().map(|at| {
            let gap = at.saturating_since(last);
            last = at;
            gap
        });
        gaps.max().unwrap_or_default()
    }
}

/// Returns when this server accepts a write for the first time. Until then, calls `meanwhile`.
fn first_write(server: &Server, mut meanwhile: impl FnMut()) -> Moment {
    let deadline = Moment::now() + SOON;
    loop {
        let written = server.connect().and_then(|mut it| it.command(&["SET", "probe", "1"]));
        if written.is_ok_and(|reply| reply.text() == "OK") {
            return Moment::now();
        }
        assert!(!deadline.has_passed(), "it accepts no write within {SOON:?}");
        meanwhile();
    }
}

/// Returns when the replica accepts a write. On a busy machine a failover may take longer than a
/// Sentinel has patience; then it is begun again.
fn failover(group: &SentinelGroup) -> Moment {
    let sentinel = group.sentinel(0);
    let begin = || sentinel.command(&["SENTINEL", "FAILOVER", group.service()]);
    let (_, mut begun) = (begin(), 1);
    first_write(group.server(1), || {
        if sentinel.output().matches("-failover-abort").count() == begun {
            begun += 1;
            begin();
        }
    })
}

/// Measures how long the lock is unavailable from the first accepted write on.
async fn standstill(change: Change, waiters: usize) -> Duration {
    if change == Change::StaleRestart {
        return standstill_after_a_stale_restart(waiters).await;
    }
    let start = || SentinelGroup::start(RedisOptions::new());
    let group = Arc::new(tokio::task::spawn_blocking(start).await.unwrap());
    let contention = Contention::start(&group.url(), waiters).await;
    let promoted = tokio::task::spawn_blocking({
        let group = Arc::clone(&group);
        move || {
            if change == Change::PlannedFailover {
                return failover(&group);
            }
            group.server(0).kill();
            first_write(group.server(1), std::thread::yield_now)
        }
    });
    contention.longest_gap(promoted.await.unwrap(), waiters).await
}

async fn standstill_after_a_stale_restart(waiters: usize) -> Duration {
    let server = Server::start(RedisOptions::new());
    let contention = Contention::start(&server.url(), waiters).await;
    server.command(&["SAVE"]);
    // Each waiter of then has been served since, and the holder of then has no lease left.
    contention.goes_on(2 * waiters + 10, Moment::now() + TTL).await;
    let restarted = tokio::task::spawn_blocking(move || {
        server.kill();
        server.restart(KeepData::Yes);
        (first_write(&server, std::thread::yield_now), server)
    });
    let (restarted, _server) = restarted.await.unwrap();
    contention.longest_gap(restarted, waiters).await
}

async fn at_most_one_claim_lease(change: Change) {
    for waiters in WAITERS {
        let took = standstill(change, waiters).await;
        println!("| {change:?} | {waiters} | {took:.3?} |");
        assert!(took <= BOUND, "{change:?} with {waiters} waiters: {took:?}");
    }
}

#[tokio::test]
async fn a_planned_failover_costs_at_most_one_claim_lease_with_any_queue() {
    at_most_one_claim_lease(Change::PlannedFailover).await;
}

#[tokio::test]
async fn an_unplanned_failover_costs_at_most_one_claim_lease_with_any_queue() {
    at_most_one_claim_lease(Change::UnplannedFailover).await;
}

#[tokio::test]
async fn a_stale_restart_costs_at_most_one_claim_lease_with_any_queue() {
    at_most_one_claim_lease(Change::StaleRestart).await;
}
