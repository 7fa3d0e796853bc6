//! Hand-off: the time from a release until the next holder knows.
//!
//! Only waiters that were queued at the release count. Hand-offs inside one process and between two
//! differ, and are never mixed.

use lock_bench_worker::clock::{MICRO, MILLI};

use crate::model::{Figure, Figures, Shape, shape};
use crate::run::bench::{Bench, LONG, ask_each, median, quantile};
use crate::run::claims::Claims;
use crate::run::cpu;
use crate::run::error::{Result, RunError};
use crate::run::peer::Lib;
use crate::run::relay::Relay;
use crate::run::slices::{self, Measurement, Plan};
use crate::worker::WITH_HANDOVERS;

const ROUND_TRIPS: Figure = Figure::count("round trips a hand-off");
pub(super) const P50: Figure = Figure::time("p50 µs");
pub(super) const P50_RATIO: Figure = Figure::time("p50 × floor");
const MEAN: Figure = Figure::time("mean µs");
const P99: Figure = Figure::time("p99 µs");
const PASSED: Figure = Figure::count("requests a hand-over");
const UNFAIR: Figure = Figure::time("max wait / mean wait");
const SAMPLES: Figure = Figure::time("hand-offs measured");

/// The hold time of each waiter, in nanoseconds: long enough for those behind it to settle.
const HOLD: u64 = 500 * MICRO;

/// A hold time so short that the lock moves without pauses, with its data in the processor's
/// caches.
const BRIEF: u64 = 20 * MICRO;

/// The number of waiters and of their processes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    pub(super) waiters: usize,
    pub(super) processes: usize,
    /// The hold time of each waiter, in nanoseconds.
    pub(super) hold: u64,
}

impl Crowd {
    pub(super) fn new(waiters: usize, processes: usize) -> Self {
        Self { waiters, processes, hold: HOLD }
    }
}

/// Enough for a queue.
const FEW: usize = 8;

/// The comparison for a hand-over inside a process.
const WITHIN: &str = "tokio-mutex";

/// In one process, from one waiter to many; then between processes.
const LOCAL: [usize; 3] = [1, FEW, 64];
const REMOTE: [usize; 2] = [FEW, 64];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    exact(bench)?;
    handed_over(bench)?;
    if bench.settings.exact {
        return Ok(());
    }
    bench.with_handovers(hand_offs)
}

fn hand_offs(bench: &mut Bench<'_>) -> Result<()> {
    for waiters in LOCAL {
        let workload = format!("handoff local w={waiters}");
        timed(bench, &workload, Crowd::new(waiters, 1), &[WITHIN])?;
    }
    let brief = Crowd { hold: BRIEF, ..Crowd::new(FEW, 1) };
    timed(bench, &format!("handoff brief w={FEW}"), brief, &[WITHIN])?;
    if bench.backend.between_processes {
        for waiters in REMOTE {
            timed(bench, &format!("handoff w={waiters} p=8"), Crowd::new(waiters, 8), &[])?;
        }
    }
    Ok(())
}

/// Counts round trips from one process to another, through a relay.
fn exact(bench: &mut Bench<'_>) -> Result<()> {
    // A poll comes when its interval ends, at any latency.
    for lib in bench.libs.clone().iter().filter(|lib| !lib.polls()) {
        let Some(server) = bench.server() else { return Ok(()) };
        bench.progress.show("handoff relay", &lib.name);
        let relay = Relay::start(server, bench.settings.delay)?;
        let trips = through_relay(bench, &relay, lib);
        if let Some(trips) = bench.unless_unsupported("handoff relay", lib, trips)? {
            bench.add("handoff relay", &lib.name, 0, Figures::from([(ROUND_TRIPS, trips)]));
        }
    }
    Ok(())
}

/// Counts the requests of hand-offs inside a process, through the server and without.
///
/// They are few, so that no other process has a turn in between. The last release is measured alone
/// and subtracted.
fn handed_over(bench: &mut Bench<'_>) -> Result<()> {
    let workload = format!("handoff passed w={FEW}");
    for lib in [bench.floor("locks"), bench.floor(WITH_HANDOVERS)] {
        bench.progress.show(&workload, &lib.name);
        let mut peers = bench.peers(&lib, 1)?;
        super::crowd::warm_up(bench, &mut peers)?;
        let released_for = super::crowd::cost_of_a_release(bench, &mut peers[0])?;
        let name = bench.fresh_name();
        let Some(server) = bench.server() else { return Ok(()) };
        peers[0].ask(&format!("hold {name}"), LONG)?;
        peers[0].ask(&format!("queue {name} {FEW} 0 1"), LONG)?;
        super::crowd::settle();
        let count = server.count()?;
        peers[0].ask(&format!("free {name}"), LONG)?;
        bench.collect(&mut peers, &name, FEW + 1)?;
        // Requests that follow in the background.
        super::crowd::settle();
        let requests = count.finish()?.saturating_sub(released_for) as f64 / FEW as f64;
        bench.add(&workload, &lib.name, 0, Figures::from([(PASSED, requests)]));
    }
    Ok(())
}

fn through_relay(bench: &mut Bench<'_>, relay: &Relay, lib: &Lib) -> Result<f64> {
    let (prefix, mut times) = (bench.fresh_name(), 0);
    let server = bench.server().ok_or_else(|| RunError::Failed("there is no server".into()))?;
    let mut peers = [bench.peer_at(lib, &relay.url)?, bench.peer_at(lib, &relay.url)?];
    relay.round_trips(server, |delay| {
        times += 1;
        let name = &format!("{prefix}-{times}");
        // Held for four round trips, so that the other waiter has settled.
        let hold = 8 * delay * MILLI;
        ask_each(&mut peers, &format!("queue {name} 1 {} 3", hold / MICRO))?;
        let claims = bench.collect(&mut peers, name, 6)?;
        Ok(median(nanos(&claims, hold / 2, false).into_iter().map(|nanos| nanos as f64)))
    })
}

fn timed(bench: &mut Bench<'_>, workload: &str, crowd: Crowd, alternatives: &[&str]) -> Result<()> {
    let floor_name = if bench.server().is_some() { "round trip" } else { bench.backend.floor };
    // A few waiters show the cost of polling, and many would take long.
    let shows = crowd.waiters == FEW && crowd.hold == HOLD;
    let libs = bench.libs.iter().filter(|lib| !lib.polls() || shows);
    let alternatives = alternatives.iter().filter(|name| **name != floor_name);
    let plan = Plan {
        workload,
        libs: libs.cloned().chain(alternatives.map(|name| bench.floor(name))).collect(),
        floor_name,
        ratios: &[(P50, P50_RATIO)],
        rounds: bench.settings.rounds,
    };
    slices::run(
        bench,
        &plan,
        |bench, _| match bench.server().and_then(|server| server.addrs().first().copied()) {
            Some(addr) => {
                // After a pause such as theirs, or the processor would be warmer for the floor.
                let trip = bench.round_trip(addr, 500, crowd.hold)? / MICRO as f64;
                let figures = Figures::from([(P50, trip)]);
                Ok(Measurement { figures, shape: Shape::new(), cpu: 0 })
            }
            None => {
                let floor = bench.floor(bench.backend.floor);
                measure(bench, &floor, crowd)
            }
        },
        |bench, lib| measure(bench, lib, crowd),
    )
}

/// Lets one task more than there are waiters take turns with the lock.
pub(super) fn measure(bench: &mut Bench<'_>, lib: &Lib, crowd: Crowd) -> Result<Measurement> {
    let Crowd { waiters, processes, hold } = crowd;
    let mut peers = bench.peers(lib, processes)?;
    let name = bench.fresh_name();
    // In one process one more task holds while the others wait; in several that would be unfair to
    // one of them.
    let each = if processes == 1 { waiters + 1 } else { waiters / processes };
    // If each one takes long, a few are enough.
    let hand_offs = if lib.polls() { 64 } else { bench.backend.hand_offs };
    let times = (hand_offs / (each * processes) as u64).max(3);
    ask_each(&mut peers, &format!("queue {name} {each} {} {times}", hold / MICRO))?;
    let claims = bench.collect(&mut peers, &name, each * processes * times as usize)?;
    let cpu = peers.iter().map(|peer| cpu::of_process(peer.pid())).sum();
    Ok(measurement(&claims, hold / 2, processes == 1, cpu))
}

/// Returns the figures and the distribution of the hand-offs of one kind.
pub(super) fn measurement(
    claims: &Claims,
    settled: u64,
    within_process: bool,
    cpu: u64,
) -> Measurement {
    let nanos = nanos(claims, settled, within_process);
    let micros = || nanos.iter().map(|&nanos| nanos as f64 / MICRO as f64);
    let waits: Vec<f64> = claims.waits().into_iter().map(|wait| wait as f64).collect();
    let mean_wait = waits.iter().sum::<f64>() / waits.len() as f64;
    let longest = waits.iter().copied().fold(0.0, f64::max);
    let mut figures = Figures::from([(UNFAIR, longest / mean_wait), (SAMPLES, nanos.len() as f64)]);
    if !nanos.is_empty() {
        figures.insert(P50, median(micros()));
        figures.insert(P99, quantile(micros(), 0.99));
        figures.insert(MEAN, micros().sum::<f64>() / nanos.len() as f64);
    }
    Measurement { figures, shape: shape(micros().map(|micros| (micros, 1))), cpu }
}

fn nanos(claims: &Claims, settled: u64, within_process: bool) -> Vec<u64> {
    let hand_offs = claims.hand_offs(settled).into_iter();
    hand_offs.filter(|one| one.within_process == within_process).map(|one| one.nanos).collect()
}
