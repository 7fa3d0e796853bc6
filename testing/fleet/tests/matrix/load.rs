//! Load: processes of both sides increment one counter, in two steps under the lock. There are two
//! of each side, unless the client's extent says otherwise.

use std::time::Duration;

use lock_bench_worker::clock::{MICRO, MILLI};
use lock_fleet::{Extent, PROMISES, STOPPED_WAITERS, Side};
use serde_json::Value;

use crate::scene::{Checked, SOON, Scene, Worker};

/// The time between the read and the write.
const HOLD_US: u64 = 1_000;

/// The time between a release and the next request.
const PAUSE_US: u64 = 5_000;

/// The lease, which outlasts a standstill of a busy machine.
const LEASE: u64 = 30_000;

/// The lease of a client that may lock itself out for so long.
const SHORT_LEASE: u64 = 4_000;

/// The seconds of a run, unless `FLEET_SECONDS` says otherwise.
const SECONDS: u64 = 3;

/// Precedes the waiters of the client that stopped, in an observation.
const STOPPED: &str = "; waiters: ";

/// Checks that no update is lost and that no two holds overlap. Returns the grants of each side.
/// Ours are served even if waiters of the client stop.
pub(crate) async fn counts(scene: &Scene, _: Side) -> Checked {
    let load = run(scene, &[]).await?;
    let (ours, theirs) = (load.of(Side::Ours), load.of(Side::Theirs));
    let grants = format!("{ours} : {theirs} in {} s", seconds());
    let Some(ms) = load.unserved.iter().max() else { return Ok(grants) };
    let client = scene.client.name;
    let is_known = PROMISES.iter().any(|it| it.client == client && it.check == STOPPED_WAITERS);
    // A lease outlasts the time that they have waited.
    if scene.copies("n") > 0 || !is_known {
        return Err(format!("{grants}; a waiter of the client is not served"));
    }
    let (stopped, all, lasts) = (load.unserved.len(), load.workers.len() / 2, ms / 1_000);
    Ok(format!(
        "{grants}, {stopped} of its {all} waiters stopped{STOPPED}{stopped} of {all} still \
         wait {lasts} s after the end, and the server has no key"
    ))
}

/// Splits the observation of [`counts`] into the grants and the client's waiters that stopped.
pub(crate) fn grants_and_stopped(seen: &str) -> (&str, Option<&str>) {
    match seen.split_once(STOPPED) {
        Some((grants, stopped)) => (grants, Some(stopped)),
        None => (seen, None),
    }
}

/// The same, while ours leave the lock free now and then, and the waits of the client.
pub(crate) async fn counts_with_a_share(scene: &Scene, _: Side) -> Checked {
    let share = format!("polling_share={}", scene.client.share);
    let load = run(scene, &[&share]).await?;
    if !load.unserved.is_empty() {
        return Err("a waiter of the client is not served".into());
    }
    let mut waits = load.waits_of(Side::Theirs);
    waits.sort_unstable();
    let Some(longest) = waits.last() else { return Err("the client was never served".into()) };
    let of_hundred = |part: usize| waits[(waits.len() - 1) * part / 100] / MILLI;
    Ok(format!(
        "{} : {} in {} s; {} ms, {} ms, {} ms",
        load.of(Side::Ours),
        load.of(Side::Theirs),
        seconds(),
        of_hundred(50),
        of_hundred(99),
        longest / MILLI
    ))
}

fn seconds() -> u64 {
    let seconds = std::env::var("FLEET_SECONDS").ok().and_then(|text| text.parse().ok());
    seconds.unwrap_or(SECONDS)
}

/// The course of a run.
struct Load {
    /// The grants of each worker.
    workers: Vec<(Side, Vec<Grant>)>,
    /// How long after the end the client's waiters have waited that were not served, in
    /// milliseconds.
    unserved: Vec<u64>,
}

impl Load {
    /// Returns the number of grants of a side.
    fn of(&self, side: Side) -> usize {
        self.workers.iter().filter(|(of, _)| *of == side).map(|(_, grants)| grants.len()).sum()
    }

    /// Returns the waits of a side, from each request to its grant or to the end of the run.
    fn waits_of(&self, side: Side) -> Vec<u64> {
        let of_side =
            || self.workers.iter().filter(|(of, _)| *of == side).map(|(_, grants)| grants);
        let all = || self.workers.iter().flat_map(|(_, grants)| grants);
        let (Some(start), Some(end)) = (all().map(|it| it.0).min(), all().map(|it| it.1).max())
        else {
            return Vec::new();
        };
        let waits = of_side().flat_map(|grants| {
            let asked = grants.iter().map(|(_, released, _)| released + PAUSE_US * MICRO);
            let asked = std::iter::once(start).chain(asked);
            let granted = grants.iter().map(|(granted, ..)| *granted).chain([end]);
            asked.zip(granted).map(|(asked, granted)| granted.saturating_sub(asked))
        });
        waits.collect()
    }
}

/// Runs two workers of each side, with these options of ours.
async fn run(scene: &Scene, options: &[&str]) -> Result<Load, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let counter = directory.path().join("counter");
    std::fs::write(&counter, "0").map_err(|error| error.to_string())?;
    let mut workers = Vec::new();
    let (each, lease) = match scene.client.extent {
        Extent::LocksItselfOut => (1, SHORT_LEASE),
        _ => (2, LEASE),
    };
    for side in [Side::Ours, Side::Theirs].repeat(each) {
        let options = if side == Side::Ours { options } else { &[] };
        let mut worker = scene.worker_with(side, options).await?;
        worker.ttl(lease).await?;
        workers.push((side, worker));
    }
    let ms = seconds() * 1_000;
    let command = format!("count n {ms} {HOLD_US} {PAUSE_US} {}", counter.display());
    workers.iter_mut().for_each(|(_, worker)| worker.peer.tell(&command));
    let (mut of_workers, mut unserved) = (Vec::new(), Vec::new());
    for (side, worker) in &mut workers {
        let (grants, waited) = grants(worker, Duration::from_secs(seconds())).await?;
        of_workers.push((*side, grants));
        unserved.extend(waited);
    }
    let mut holds: Vec<_> = of_workers.iter().flat_map(|(_, grants)| grants.clone()).collect();
    holds.sort_unstable();
    let overlaps = holds.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
    let counted = std::fs::read_to_string(&counter).map_err(|error| error.to_string())?;
    let counted: usize = counted.parse().map_err(|_| format!("the counter is {counted:?}"))?;
    if overlaps > 0 || counted != holds.len() {
        let lost = holds.len().abs_diff(counted);
        return Err(format!("{overlaps} overlaps, {lost} of {} updates lost", holds.len()));
    }
    let tokens: Vec<u64> = holds.iter().filter_map(|hold| hold.2).collect();
    if !tokens.is_sorted_by(|one, next| one < next) {
        return Err("a token of ours is not higher than the one before".into());
    }
    let load = Load { workers: of_workers, unserved };
    if load.workers.iter().any(|(side, grants)| *side == Side::Ours && grants.is_empty()) {
        return Err("one of ours was never served".into());
    }
    Ok(load)
}

/// The time of an acquisition and of the call of its release, and the token if there is one.
type Grant = (u64, u64, Option<u64>);

/// Returns the grants of a worker, and for how long a waiter waited after the run, if it was not
/// served.
async fn grants(worker: &mut Worker, lasts: Duration) -> Result<(Vec<Grant>, Option<u64>), String> {
    let line = worker.peer.answer_within(lasts + 2 * SOON).await;
    let answer = worker.parse(&line)?;
    let answer = worker.succeeded("count", answer)?;
    let grant = |grant: &Value| {
        let token = grant[2].as_str().and_then(|token| token.parse().ok());
        Some((grant[0].as_u64()?, grant[1].as_u64()?, token))
    };
    let grants = answer["grants"].as_array().map(|grants| grants.iter().map(grant).collect());
    let grants = grants.flatten().ok_or_else(|| "it has no list of grants".to_owned())?;
    Ok((grants, answer["unserved_ms"].as_u64()))
}
