//! Load: processes of both sides increment one counter, in two steps under the lock. There are two
//! of each side, unless the client's extent says otherwise.

use std::time::Duration;

use lock_fleet::{Extent, Side};
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

/// No update is lost, no two holds overlap, and the grants of each side.
pub(crate) async fn counts(scene: &Scene, _: Side) -> Checked {
    let seconds = std::env::var("FLEET_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds: u64 = seconds.unwrap_or(SECONDS);
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let counter = directory.path().join("counter");
    std::fs::write(&counter, "0").map_err(|error| error.to_string())?;
    let mut workers = Vec::new();
    let (each, lease) = match scene.client.extent {
        Extent::LocksItselfOut => (1, SHORT_LEASE),
        _ => (2, LEASE),
    };
    for side in [Side::Ours, Side::Theirs].repeat(each) {
        let mut worker = scene.worker(side).await?;
        worker.ttl(lease).await?;
        workers.push((side, worker));
    }
    let ms = seconds * 1_000;
    let command = format!("count n {ms} {HOLD_US} {PAUSE_US} {}", counter.display());
    workers.iter_mut().for_each(|(_, worker)| worker.peer.tell(&command));
    let mut holds = Vec::new();
    for (side, worker) in &mut workers {
        let grants = grants(worker, Duration::from_secs(seconds)).await?;
        holds.extend(grants.into_iter().map(|hold| (hold, *side)));
    }
    holds.sort_unstable_by_key(|(hold, _)| *hold);
    let overlaps = holds.windows(2).filter(|pair| pair[1].0.0 < pair[0].0.1).count();
    let counted = std::fs::read_to_string(&counter).map_err(|error| error.to_string())?;
    let counted: usize = counted.parse().map_err(|_| format!("the counter is {counted:?}"))?;
    if overlaps > 0 || counted != holds.len() {
        let lost = holds.len().abs_diff(counted);
        return Err(format!("{overlaps} overlaps, {lost} of {} updates lost", holds.len()));
    }
    let tokens: Vec<u64> = holds.iter().filter_map(|(hold, _)| hold.2).collect();
    if !tokens.is_sorted_by(|one, next| one < next) {
        return Err("a token of ours is not higher than the one before".into());
    }
    let of = |side| holds.iter().filter(|(_, of)| *of == side).count();
    if of(Side::Ours) == 0 {
        return Err("ours was never served".into());
    }
    Ok(format!("{} : {} in {seconds} s", of(Side::Ours), of(Side::Theirs)))
}

/// The time of an acquisition and of the call of its release, and the token if there is one.
type Grant = (u64, u64, Option<u64>);

async fn grants(worker: &mut Worker, lasts: Duration) -> Result<Vec<Grant>, String> {
    let line = worker.peer.answer_within(lasts + 2 * SOON).await;
    let answer = worker.parse(&line)?;
    let answer = worker.succeeded("count", answer)?;
    let grant = |grant: &Value| {
        let token = grant[2].as_str().and_then(|token| token.parse().ok());
        Some((grant[0].as_u64()?, grant[1].as_u64()?, token))
    };
    let grants = answer["grants"].as_array().map(|grants| grants.iter().map(grant).collect());
    grants.flatten().ok_or_else(|| "it has no list of grants".to_owned())
}
