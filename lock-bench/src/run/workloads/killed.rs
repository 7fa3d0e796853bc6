//! A holder is killed with SIGKILL: when do those who wait get its locks, and never too early.

use serde_json::Value;

use crate::clock::{MILLI, now};
use crate::report::{Figure, Figures};
use crate::run::Stop;
use crate::run::backends::Takeover;
use crate::run::bench::{Bench, LONG, ask_each, median, quantile};
use crate::run::peer::{Lib, SOON};

const EARLY: Figure = Figure::count("takeovers too early");
const TRIALS: Figure = Figure::time("takeovers measured");
const LATE_P50: Figure = Figure::time("late p50 ms");
const LATE_P95: Figure = Figure::time("late p95 ms");
const LATE_MAX: Figure = Figure::time("late max ms");

/// The holder is dead before its first renewal, at a third of it: then its last lease is known.
const TTL_MS: u64 = 2_000;
/// Locks that the holder has when it is killed.
const LOCKS: usize = 10;
/// Keys with an expiry that have nothing to do with any lock: a server that looks for expired keys by
/// sampling must not let a takeover wait for it.
const OTHER_KEYS: usize = 50_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if !bench.backend.between_processes {
        return Ok(());
    }
    if let Some(server) = bench.server().filter(|server| server.pid().is_some()) {
        // Only on a server that ends with this run.
        server.fill(OTHER_KEYS)?;
    }
    let rounds = if bench.args.exact { 1 } else { 4 };
    for lib in bench.libs.clone() {
        let mut late = Vec::new();
        // On a busy machine the holder may live for too long: that is no trial, and another one is made.
        for attempt in 1..=3 * rounds {
            bench.progress.say(&format!("killed: {}, attempt {attempt}", lib.name));
            late.extend(kill_holder(bench, &lib)?);
            if late.len() >= rounds * LOCKS {
                break;
            }
        }
        if late.is_empty() {
            bench.refused.push(format!("killed, {}: no holder was killed in time", lib.name));
            continue;
        }
        let figures = Figures::from([
            (EARLY, late.iter().filter(|&&late| late < 0.0).count() as f64),
            (TRIALS, late.len() as f64),
            (LATE_P50, median(late.iter().copied())),
            (LATE_P95, quantile(late.iter().copied(), 0.95)),
            (LATE_MAX, quantile(late.iter().copied(), 1.0)),
        ]);
        bench.add("killed", &lib.name, 0, figures);
    }
    Ok(())
}

/// How much later than they could, in ms, the waiters took over; negative if they were too early. Nothing
/// if the holder lived on until it may have renewed.
fn kill_holder(bench: &mut Bench<'_>, lib: &Lib) -> Result<Vec<f64>, Stop> {
    let mut peers = bench.peers(lib, 2)?;
    let prefix = bench.fresh_name();
    let names: Vec<String> = (0..LOCKS).map(|i| format!("{prefix}-{i}")).collect();
    super::crowd::warm_up(bench, &mut peers)?;
    ask_each(&mut peers, &format!("ttl {TTL_MS}"))?;
    let held: Vec<Value> = names
        .iter()
        .map(|name| peers[0].ask(&format!("hold {name}"), SOON))
        .collect::<Result<_, _>>()?;
    for name in &names {
        peers[1].ask(&format!("queue {name} 1 0 1"), SOON)?;
    }
    let before = now();
    peers[0].kill();
    let killed = now();
    let taken = peers[1].ask("collect", LONG)?;
    let mut late = Vec::new();
    for (name, held) in names.iter().zip(&held) {
        let times = held["asked"].as_u64().zip(held["acquired"].as_u64());
        let takeover = taken["claims"][name][0][1].as_u64();
        let (Some((asked, acquired)), Some(takeover)) = (times, takeover) else {
            return Err(Stop::Failed(format!("{name} was not taken over: {taken}")));
        };
        // The lease began somewhere between the two.
        let (earliest, latest) = match bench.backend.takeover {
            Takeover::Lease => (asked + TTL_MS * MILLI, acquired + TTL_MS * MILLI),
            Takeover::Death => (before, killed),
        };
        if killed > asked + TTL_MS * MILLI * 3 / 10 {
            continue;
        }
        let ms = |from: u64, to: u64| (to as f64 - from as f64) / MILLI as f64;
        late.push(match takeover < earliest {
            true => ms(earliest, takeover),
            false => ms(latest, takeover).max(0.0),
        });
    }
    Ok(late)
}
