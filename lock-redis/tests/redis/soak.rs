//! Nothing piles up: not here, not on the server.
//!
//! `SOAK_CYCLES` makes the run as long as one likes.

use std::process::Command;
use std::time::Duration;

use lock_core::Locker;

use crate::support::{Server, eventually};

/// Enough that one leaked task, descriptor or kilobyte per cycle shows.
const CYCLES: usize = 20_000;

const NAMES: usize = 500;
const AT_A_TIME: usize = 50;

/// Set in a process of its own: allocations of other tests would count.
const ALONE: &str = "SOAK_ALONE";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_run_leaves_no_residue() {
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().expect("this is a program"));
        alone
            .args(["--exact", "soak::a_long_run_leaves_no_residue", "--nocapture"])
            .env(ALONE, "1");
        let output = alone.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let is_ok = output.status.success() && said.contains("1 passed");
        assert!(is_ok, "{said}{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let cycles = match std::env::var("SOAK_CYCLES") {
        Ok(cycles) => cycles.parse().expect("SOAK_CYCLES is a number"),
        Err(_) => CYCLES,
    };
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    churn(&locks, NAMES).await;
    let before = Residue::of(&server);
    churn(&locks, cycles).await;
    let left = move || {
        let after = Residue::of(&server);
        println!("before {before:?}, after {after:?}");
        // Some pages are the allocator's; a kilobyte a cycle would be twenty megabytes.
        after.resident_kb < before.resident_kb + 8 * 1024
            && after.descriptors <= before.descriptors
            && after.tasks <= before.tasks
            && after.keys <= before.keys
            && after.clients <= before.clients
            && after.tracked <= before.tracked
    };
    eventually(left).await;
}

/// Pairs, and now and then a waiter, a wait that is given up, and a guard that is dropped.
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
                    _ => guard.release().await.unwrap(),
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
struct Residue {
    descriptors: usize,
    tasks: usize,
    resident_kb: usize,
    /// On the server.
    keys: usize,
    clients: usize,
    tracked: usize,
}

impl Residue {
    fn of(server: &Server) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let info = |section: &str, name: &str| {
            let text: String = server.run(&format!("INFO {section}"));
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("it tells");
            line.trim_start_matches(':').trim().parse().expect("a number")
        };
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").expect("this is Linux").count(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            resident_kb: resident.trim().trim_end_matches(" kB").parse().expect("a number"),
            keys: server.keys().len(),
            clients: info("clients", "connected_clients"),
            tracked: info("stats", "tracking_total_keys"),
        }
    }
}
