//! Uncontended pairs of acquire and release, each task on a lock of its own.

use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::clock::{SECOND, now, reach};
use crate::commands::Pairs;
use crate::library::Lib;

/// Returns a histogram of nanoseconds up to a minute, with three digits.
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
    // The rest is not part of the measurement.
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

/// Returns when task `i` begins its first pair, and the time between its pairs.
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
    // A histogram for each of many tasks would take more time than their work.
    let mut latency = Vec::new();
    let (mut last, mut regressions) = (None, 0);
    let mut begun = now();
    for _ in 0..count {
        // With a schedule, a pair counts from its scheduled start: a pair that was held up by the
        // one before is late, too.
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
        // All pairs that are due are done, however late: the last ones would be the latest.
        if schedule.is_none() && ended >= end {
            break;
        }
    }
    Ok((latency, regressions))
}
