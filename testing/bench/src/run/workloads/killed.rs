//! A holder is killed with SIGKILL: the time until waiters get its locks, and never too early.

use lock_bench_worker::clock::{MILLI, SECOND, now};
use serde_json::Value;

use crate::model::{Figure, Figures, shape};
use crate::run::backends::Takeover;
use crate::run::bench::{Bench, LONG, ask_each, median, quantile};
use crate::run::claims::Claims;
use crate::run::cpu;
use crate::run::error::{Result, RunError};
use crate::run::peer::{Lib, SOON};
use crate::run::slices::QuietCheck;

const EARLY: Figure = Figure::count("takeovers too early");
const TRIALS: Figure = Figure::time("takeovers measured");
const LATE_P50: Figure = Figure::time("late p50 ms");
const LATE_P95: Figure = Figure::time("late p95 ms");
const LATE_MAX: Figure = Figure::time("late max ms");
/// Only where waiters wait for the end of a session.
const SESSION: Figure = Figure::count("session s");

const TTL_MS: u64 = 2_000;
/// The time before the first renewal, in ms: the last lease of a holder that is dead by then is
/// known. Renewals come at a third of the lease, or at three tenths in a batch.
const BEFORE_RENEWAL_MS: u64 = TTL_MS / 4;
/// The locks of the holder that is killed.
const LOCKS: usize = 10;
/// Keys with an expiry that are not locks. A server that samples for expired keys must not delay a
/// takeover for them.
const OTHER_KEYS: usize = 50_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.backend.between_processes {
        return Ok(());
    }
    if let Some(server) = bench.server().filter(|server| !server.pids().is_empty()) {
        // Only on a server that ends with this run.
        server.fill(OTHER_KEYS)?;
    }
    for lib in bench.libs.clone() {
        let trials = trials(bench, &lib);
        let Some(trials) = bench.unless_unsupported("killed", &lib, trials)? else { continue };
        if trials.is_empty() {
            bench.refused.push(format!("killed, {}: no holder was killed in time", lib.name));
            continue;
        }
        let figures = figures(bench, &lib, &trials);
        // The picture shows the time from the kill.
        let session = match bench.backend.takeover {
            Takeover::Session(seconds) => (seconds * SECOND / MILLI) as f64,
            Takeover::Lease | Takeover::Death => 0.0,
        };
        let shape = shape(trials.iter().map(|trial| (trial.late + session, 1)));
        bench.draw("killed", &lib.name, 0, figures, shape);
    }
    Ok(())
}

/// One takeover.
struct Trial {
    /// The time from the end of the holder's lease, life or session to the takeover, in ms. A
    /// session ends a timeout after its last request, which may be a little before the kill.
    late: f64,
    /// Earlier than promised.
    is_early: bool,
    /// Other processes hardly used the machine meanwhile.
    quiet: bool,
}

/// Collects enough of them. On a busy machine the holder may live for too long; such a trial is
/// repeated.
fn trials(bench: &mut Bench<'_>, lib: &Lib) -> Result<Vec<Trial>> {
    let rounds = if bench.settings.exact { 1 } else { lib.rounds(4) };
    let mut trials = Vec::new();
    for attempt in 1..=3 * rounds {
        bench.progress.show("killed", &format!("{}, attempt {attempt}", lib.name));
        trials.extend(kill_holder(bench, lib)?);
        if trials.len() >= rounds * LOCKS {
            break;
        }
    }
    Ok(trials)
}

/// Returns the figures. Too early is too early on any machine; lateness depends on other load.
fn figures(bench: &mut Bench<'_>, lib: &Lib, trials: &[Trial]) -> Figures {
    let early = trials.iter().filter(|trial| trial.is_early).count();
    let mut figures = Figures::from([(EARLY, early as f64)]);
    if let Takeover::Session(seconds) = bench.backend.takeover {
        figures.insert(SESSION, seconds as f64);
    }
    let quiet: Vec<f64> = trials.iter().filter(|t| t.quiet).map(|t| t.late).collect();
    if bench.settings.exact {
        return figures;
    }
    if 2 * quiet.len() <= trials.len() {
        bench.refused.push(format!(
            "killed, {}: other processes were running in {} of {} takeovers, so this machine is too busy for them",
            lib.name,
            trials.len() - quiet.len(),
            trials.len()
        ));
        return figures;
    }
    figures.extend([
        (TRIALS, quiet.len() as f64),
        (LATE_P50, median(quiet.iter().copied())),
        (LATE_P95, quantile(quiet.iter().copied(), 0.95)),
        (LATE_MAX, quantile(quiet.iter().copied(), 1.0)),
    ]);
    figures
}

/// Returns a trial for each lock, and none if leases count and the holder lived until it may have
/// renewed.
fn kill_holder(bench: &mut Bench<'_>, lib: &Lib) -> Result<Vec<Trial>> {
    let watch = QuietCheck::start(bench);
    let url = match bench.server() {
        Some(server) => server.short_session_url(),
        None => bench.target.url.clone(),
    };
    let mut peers = [bench.peer_at(lib, &url)?, bench.peer_at(lib, &url)?];
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
    let ours = cpu::of_process(peers[0].pid());
    let before = now();
    peers[0].kill();
    let killed = now();
    let taken = peers[1].ask("collect", LONG)?;
    let quiet = watch.check(bench, ours + cpu::of_process(peers[1].pid())).is_ok();
    let mut trials = Vec::new();
    for (name, held) in names.iter().zip(&held) {
        let mut claims = Claims::default();
        // It held the locks until it was killed; the end of its lease is computed below.
        claims.add_killed(0, held, before)?;
        claims.add(1, name, &taken)?;
        claims.check(name)?;
        let (Some(asked), Some(takeover)) = (held["asked"].as_u64(), claims.taken_over()) else {
            return Err(RunError::Failed(format!("{name} was not taken over: {taken}")));
        };
        let (earliest, due) = match bench.backend.takeover {
            // The lease began after that.
            Takeover::Lease => (asked + TTL_MS * MILLI, asked + TTL_MS * MILLI),
            Takeover::Session(seconds) => (before, before + seconds * SECOND),
            Takeover::Death => (before, before),
        };
        let is_known = !matches!(bench.backend.takeover, Takeover::Lease)
            || killed <= asked + BEFORE_RENEWAL_MS * MILLI;
        if is_known {
            let late = (takeover as f64 - due as f64) / MILLI as f64;
            trials.push(Trial { late, is_early: takeover < earliest, quiet });
        }
    }
    Ok(trials)
}
