//! Our locks on one member of a quorum alone: the one with the slowest pairs.

use std::time::Duration;

use lock_bench_worker::Lib;
use lock_bench_worker::clock::{SECOND, now};

use super::locks::Locks;

/// The pairs of each member, or as many as end in the time below: through a relay each takes long.
const PAIRS: usize = 64;
const FEW: usize = 3;
const ENOUGH: u64 = SECOND / 2;

const TTL: Duration = Duration::from_secs(30);

pub(crate) async fn connect(url: &str) -> Result<Locks, String> {
    let mut slowest = None;
    for member in url.split(['?', '&']).filter_map(|part| part.strip_prefix("member=")) {
        let locks = Locks::connect(member, 0).await?;
        let took = median_pair(&locks).await?;
        if slowest.as_ref().is_none_or(|(longest, _)| took > *longest) {
            slowest = Some((took, locks));
        }
    }
    slowest.map(|(_, locks)| locks).ok_or_else(|| "it is for quorum:?member=…".to_owned())
}

async fn median_pair(locks: &Locks) -> Result<u64, String> {
    let lock = locks.lock(&format!("slowest-{}", std::process::id()))?;
    let mut times = Vec::with_capacity(PAIRS);
    let first = now();
    while times.len() < FEW || (times.len() < PAIRS && now() - first < ENOUGH) {
        let began = now();
        let held = locks.acquire(&lock, TTL).await?;
        locks.release(held).await?;
        times.push(now() - began);
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
