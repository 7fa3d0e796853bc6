//! Holders are killed with SIGKILL: the time until waiters get their locks, and never too early.
//!
//! Each lock has its own lease, so one holder stands for many. Where locks depend on sessions, the
//! time depends on the session's last request. So each trial kills another session, at a random
//! moment, after it has lived for longer than its timeout.

use lock_bench_worker::clock::{MILLI, SECOND, now, wait};

use crate::model::{Figure, Figures, shape};
use crate::run::backends::Takeover;
use crate::run::bench::{Bench, LONG, ask_each, median, quantile};
use crate::run::claims::Claims;
use crate::run::cpu;
use crate::run::error::{Result, RunError};
use crate::run::peer::{Lib, Peer, SOON};
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
/// The locks of the holder that is killed, or the sessions.
const LOCKS: usize = 10;
/// The rounds with leases, and with sessions: twenty of them.
const ROUNDS: usize = 4;
const SESSION_ROUNDS: usize = 2;
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
    let rounds = match bench.backend.takeover {
        _ if bench.settings.exact => 1,
        Takeover::Session(_) => SESSION_ROUNDS,
        Takeover::Lease | Takeover::Death => lib.rounds(ROUNDS),
    };
    let mut trials = Vec::new();
    for attempt in 1..=3 * rounds {
        bench.progress.show("killed", &format!("{}, attempt {attempt}", lib.name));
        trials.extend(kill_holders(bench, lib)?);
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
fn kill_holders(bench: &mut Bench<'_>, lib: &Lib) -> Result<Vec<Trial>> {
    let watch = QuietCheck::start(bench);
    let url = match bench.server() {
        Some(server) => server.short_session_url(),
        None => bench.target.url.clone(),
    };
    let holders = match bench.backend.takeover {
        Takeover::Session(_) => LOCKS,
        Takeover::Lease | Takeover::Death => 1,
    };
    let mut peers =
        (0..=holders).map(|_| bench.peer_at(lib, &url)).collect::<Result<Vec<_>, _>>()?;
    super::crowd::warm_up(bench, &mut peers)?;
    ask_each(&mut peers, &format!("ttl {TTL_MS}"))?;
    let mut waiter = peers.pop().expect("there is one more than holders");
    let prefix = bench.fresh_name();
    let names: Vec<String> = (0..LOCKS).map(|i| format!("{prefix}-{i}")).collect();
    let mut held = Vec::new();
    for (i, name) in names.iter().enumerate() {
        held.push(peers[i % holders].ask(&format!("hold {name}"), SOON)?);
    }
    for name in &names {
        waiter.ask(&format!("queue {name} 1 0 1"), SOON)?;
    }
    let (kills, ours) = kill_each(bench, peers);
    let taken = waiter.ask("collect", LONG)?;
    let quiet = watch.check(bench, ours + cpu::of_process(waiter.pid())).is_ok();
    let mut trials = Vec::new();
    for (i, (name, held)) in names.iter().zip(&held).enumerate() {
        let mut claims = Claims::default();
        let Kill { before, after } = kills[i % holders];
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
            || after <= asked + BEFORE_RENEWAL_MS * MILLI;
        if is_known {
            let late = (takeover as f64 - due as f64) / MILLI as f64;
            trials.push(Trial { late, is_early: takeover < earliest, quiet });
        }
    }
    Ok(trials)
}

/// The moment of a kill lies between these two.
#[derive(Clone, Copy)]
struct Kill {
    before: u64,
    after: u64,
}

/// Kills the holders, each at a moment of its own where it has a session. Returns the moments, and
/// the processor time that they had used.
fn kill_each(bench: &Bench<'_>, holders: Vec<Peer>) -> (Vec<Kill>, u64) {
    let session = match bench.backend.takeover {
        Takeover::Session(seconds) => Some(seconds * SECOND),
        Takeover::Lease | Takeover::Death => None,
    };
    wait(session.unwrap_or_default());
    let (mut kills, mut used) = (Vec::new(), 0);
    for mut holder in holders {
        if let Some(session) = session {
            // Sessions are used several times in their timeout.
            wait(fastrand::u64(0..session / 8));
        }
        used += cpu::of_process(holder.pid());
        let before = now();
        holder.kill();
        kills.push(Kill { before, after: now() });
    }
    (kills, used)
}
