//! Uncontended pairs of acquire and release, each task on a lock of its own.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::clock::{SECOND, now, reach};
use crate::commands::Pairs;
use crate::library::Lib;

/// Of nanoseconds up to a minute, to three digits.
#[must_use]
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60 * SECOND, 3).expect("these bounds are in order")
}

pub(crate) async fn run<L: Lib>(
    lib: &Arc<L>,
    ttl: Duration,
    pairs: &Pairs,
) -> Result<Value, String> {
    let start = now();
    let end = match pairs.time.as_nanos() {
        0 => u64::MAX,
        nanos => start.saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)),
    };
    let mut tasks = JoinSet::new();
    for i in 0..pairs.tasks {
        let schedule = schedule(pairs, i, start);
        let lock = lib.lock(&format!("{}-{i}", pairs.prefix))?;
        let count = if pairs.count == 0 { u64::MAX } else { pairs.count };
        tasks.spawn(one_task(Arc::clone(lib), lock, ttl, count, end, schedule));
    }
    let mut done = Vec::with_capacity(pairs.tasks);
    while let Some(task) = tasks.join_next().await {
        done.push(task.map_err(|e| format!("a task ended: {e}"))??);
    }
    // What follows is no part of what is measured.
    let end = now();
    let mut latency = histogram();
    let mut regressions = 0;
    for (own, regressed) in done {
        own.into_iter().for_each(|nanos| latency.saturating_record(nanos));
        regressions += regressed;
    }
    let latency: Vec<[u64; 2]> = latency
        .iter_recorded()
        .map(|step| [step.value_iterated_to(), step.count_at_value()])
        .collect();
    Ok(json!({
        "start": start,
        "end": end,
        "latency": latency,
        "fence_regressions": regressions,
    }))
}

/// When task `i` begins its first pair, and how far apart they are.
fn schedule(pairs: &Pairs, i: usize, start: u64) -> Option<(u64, u64)> {
    let tasks = pairs.tasks as u64;
    let between = SECOND.checked_div(pairs.rate)?;
    Some((start + between * i as u64, between * tasks))
}

async fn one_task<L: Lib>(
    lib: Arc<L>,
    lock: L::Lock,
    ttl: Duration,
    count: u64,
    end: u64,
    mut schedule: Option<(u64, u64)>,
) -> Result<(Vec<u64>, u64), String> {
    // A histogram for each of many tasks takes more time to make, and to add up, than what they do.
    let mut latency = Vec::new();
    let (mut last, mut regressions) = (None, 0);
    let mut begun = now();
    for _ in 0..count {
        // With a schedule, a pair counts from when it should have begun: what was held up by the pair
        // before it is late, too.
        if let Some((due, period)) = &mut schedule {
            begun = *due;
            *due += *period;
            if begun >= end {
                break;
            }
            reach(begun).await.map_err(|e| format!("no timer: {e}"))?;
        }
        let held = lib.acquire(&lock, ttl).await?;
        let token = L::token(&held);
        lib.release(held).await?;
        let ended = now();
        latency.push(ended - begun);
        regressions += u64::from(token.is_some() && token <= last);
        last = token.max(last);
        begun = ended;
        // What is due is done, however late it is: those that come last would be the latest.
        if schedule.is_none() && ended >= end {
            break;
        }
    }
    Ok((latency, regressions))
}
