//! Nothing piles up: not here, not on the server, and not while connections break.
//!
//! `SOAK_CYCLES` makes the runs as long as one likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_conformance::helpers::eventually;
use lock_core::clock::sleep;
use lock_core::{LockGuard, Locker};
use lock_memcache::Memcached;

mod support;

use support::{Server, client, start};

/// Enough that one leaked task, descriptor or kilobyte per cycle shows.
const CYCLES: usize = 20_000;

/// As often before anything is counted.
const WARM_UP: usize = 2_000;

const NAMES: usize = 100_000;
const AT_A_TIME: usize = 50;

/// The counts are of the whole process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn cycles() -> usize {
    std::env::var("SOAK_CYCLES").map_or(CYCLES, |cycles| cycles.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_leaves_nothing() {
    let _alone = ALONE.lock().await;
    let server = start();
    let locks = Locker::new(client(&server).await);
    churn(&locks, WARM_UP).await;
    let before = Residue::of(&server);
    churn(&locks, cycles()).await;
    eventually(move || Residue::of(&server).is_no_more_than(before)).await;
}

/// Runs pairs, and now and then a waiter, a cancelled wait, and a dropped guard.
async fn churn(locks: &Locker, cycles: usize) {
    let tasks = (0..AT_A_TIME).map(|first| {
        let locks = locks.clone();
        tokio::spawn(async move {
            for cycle in (first..cycles).step_by(AT_A_TIME) {
                let lock = locks.lock(format!("n{}", cycle % NAMES)).unwrap();
                let guard = lock.acquire().await.unwrap();
                match cycle % 8 {
                    0 => drop(guard),
                    1 => {
                        let waited = lock.try_acquire_for(Duration::from_millis(1)).await;
                        assert!(waited.unwrap().is_none());
                        guard.release().await.unwrap();
                    }
                    2 => {
                        let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
                        guard.release().await.unwrap();
                        waiting.await.unwrap().release().await.unwrap();
                    }
                    3 => {
                        guard.verify().await.unwrap();
                        guard.release().await.unwrap();
                    }
                    _ => guard.release().await.unwrap(),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Many want few locks, from two clients whose connections are reset again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_with_broken_connections_leaves_nothing() {
    const PAUSE: Duration = Duration::from_millis(100);

    let _alone = ALONE.lock().await;
    let server = start();
    let (proxy, url) = server.proxied();
    let lockers = [
        Locker::new(Memcached::connect(url.as_str()).await.unwrap()),
        Locker::new(Memcached::connect(url).await.unwrap()),
    ];
    let contested: Arc<Vec<Contested>> = Arc::new((0..8).map(|_| Contested::default()).collect());
    let run = async |cycles: usize| {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let locks = lockers[task % 2].clone();
            tasks.spawn(compete(locks, Arc::clone(&contested), task, cycles / 16));
        }
        let breaking = async {
            loop {
                sleep(PAUSE).await;
                proxy.reset_connections().await;
            }
        };
        tokio::select! {
            () = breaking => {}
            granted = tasks.join_all() => {
                let granted: usize = granted.into_iter().sum();
                assert!(granted * 2 > cycles, "{granted} grants of {cycles} attempts");
            }
        }
    };
    run(cycles() / 20).await;
    // Both are connected, and nothing is being cleared away any more.
    for locks in &lockers {
        while locks.lock("connected").unwrap().try_acquire().await.is_err() {}
    }
    eventually(|| proxy.stats().live == 2 && server.stat("curr_items") == "1").await;
    let before = Residue::of(&server);
    run(cycles() / 10).await;
    let resets = proxy.stats().connections;
    assert!(resets > 4, "{resets} connections");
    eventually(move || Residue::of(&server).is_no_more_than(before)).await;
}

/// One of the locks that many want.
#[derive(Default)]
struct Contested {
    inside: AtomicU64,
    last: AtomicU64,
}

async fn compete(
    locks: Locker,
    contested: Arc<Vec<Contested>>,
    task: usize,
    cycles: usize,
) -> usize {
    let mut granted = 0;
    for cycle in 0..cycles {
        let at = (task + cycle) % contested.len();
        match locks.lock(format!("contested/{at}")).unwrap().acquire().await {
            Ok(guard) => {
                contested[at].visit(&guard);
                granted += 1;
                // Whether it is confirmed, the connection decides.
                let _ = guard.release().await;
            }
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    granted
}

impl Contested {
    fn visit(&self, guard: &LockGuard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        let token = guard.fencing_token().expect("seeded").as_u64();
        let last = self.last.swap(token, Ordering::SeqCst);
        assert!(token > last, "{token} after {last}");
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Copy, Debug)]
struct Residue {
    descriptors: usize,
    tasks: usize,
    resident_kb: usize,
    /// On the server: the counter of tokens, and nothing else.
    items: usize,
    connections: usize,
}

impl Residue {
    fn of(server: &Server) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("this is Linux").count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            resident_kb: resident.trim().trim_end_matches(" kB").parse().expect("a number"),
            items: server.stat("curr_items").parse().expect("a number"),
            connections: server.stat("curr_connections").parse().expect("a number"),
        }
    }

    fn is_no_more_than(&self, before: Self) -> bool {
        println!("before {before:?}, after {self:?}");
        // Some pages are the allocator's; a kilobyte a cycle would be twenty megabytes.
        self.resident_kb < before.resident_kb + 8 * 1024
            && self.descriptors <= before.descriptors
            && self.tasks <= before.tasks
            && self.items <= 1
            && self.connections <= before.connections
    }
}
