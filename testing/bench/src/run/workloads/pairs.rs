//! Uncontended pairs of acquire and release: so many tasks of one process, each on a lock of its
//! own.

use hdrhistogram::Histogram;
use lock_bench_worker::clock::{MICRO, SECOND};
use serde_json::Value;

use crate::model::{Figure, Figures, shape};
use crate::run::bench::{Bench, LONG};
use crate::run::cpu;
use crate::run::error::{Result, RunError};
use crate::run::peer::{Lib, Peer};
use crate::run::relay::Relay;
use crate::run::slices::{self, Measurement, Plan};
use crate::run::workloads::crowd::settle;

const REQUESTS: Figure = Figure::count("requests a pair");
const BYTES_UP: Figure = Figure::count("bytes to the server a pair");
const BYTES_DOWN: Figure = Figure::count("bytes from the server a pair");
const ROUND_TRIPS: Figure = Figure::count("round trips a pair");
const P50: Figure = Figure::time("p50 µs");
const P50_RATIO: Figure = Figure::time("p50 × floor");
const P99: Figure = Figure::time("p99 µs");
const MAX: Figure = Figure::time("max µs");
const RATE: Figure = Figure::time("pairs/s");
const RATE_RATIO: Figure = Figure::time("pairs/s × floor");
const CLIENT: Figure = Figure::cpu("client CPU µs a pair");
const CLIENT_RATIO: Figure = Figure::cpu("client CPU × floor");
const SERVER: Figure = Figure::cpu("server CPU µs a pair");
const SERVER_RATIO: Figure = Figure::cpu("server CPU × floor");

const CONCURRENCY: [usize; 3] = [1, 64, 1024];

/// Measures a closed loop: each task begins a pair when the one before has ended.
///
/// So a slow pair delays others before they are measured, and the high quantiles are too good;
/// those of `paced` are honest.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    for tasks in CONCURRENCY {
        let workload = format!("pairs c={tasks}");
        let more = if tasks == 1 { bench.backend.alternatives } else { &[] };
        let more = more.iter().chain(&bench.backend.bare).filter(|_| !bench.settings.exact);
        // Without contention, tuned libraries do not differ.
        let mut libs = bench.untuned_libs();
        libs.extend(more.map(|name| Lib::own(name, bench.settings.threads)));
        let floor = bench.floor(match tasks {
            1 => bench.backend.floor,
            _ => bench.backend.crowd_floor,
        });
        if bench.settings.exact && tasks > 64 {
            // An unoptimised worker computes for longer than the latency.
            continue;
        }
        if !bench.settings.exact {
            exact(bench, &workload, &floor, tasks)?;
        }
        for lib in &libs {
            let counted = exact(bench, &workload, lib, tasks);
            bench.unless_unsupported(&workload, lib, counted)?;
        }
        if bench.settings.exact {
            continue;
        }
        let latency = [(P50, P50_RATIO), (CLIENT, CLIENT_RATIO), (SERVER, SERVER_RATIO)];
        let rate = [(RATE, RATE_RATIO), (CLIENT, CLIENT_RATIO), (SERVER, SERVER_RATIO)];
        let plan = Plan {
            workload: &workload,
            libs,
            floor_name: &floor.name,
            ratios: if tasks == 1 { &latency } else { &rate },
            rounds: bench.settings.rounds,
        };
        slices::run(
            bench,
            &plan,
            |bench, _| timed(bench, &floor, tasks, 0),
            |bench, lib| timed(bench, lib, tasks, 0),
        )?;
    }
    Ok(())
}

/// Measures at a fixed rate, below that of the floor: a pair counts from its scheduled start.
pub(super) fn paced(bench: &mut Bench<'_>) -> Result<()> {
    const RATE: u64 = 2_000;
    const TASKS: usize = 64;

    if bench.settings.exact {
        return Ok(());
    }
    let workload = format!("paced c={TASKS} {RATE}/s");
    let floor = bench.floor(bench.backend.crowd_floor);
    let plan = Plan {
        workload: &workload,
        libs: bench.untuned_libs(),
        floor_name: &floor.name,
        ratios: &[(P50, P50_RATIO)],
        rounds: bench.settings.rounds,
    };
    slices::run(
        bench,
        &plan,
        |bench, _| timed(bench, &floor, TASKS, RATE),
        |bench, lib| timed(bench, lib, TASKS, RATE),
    )
}

/// Counts requests and bytes at the server, and round trips through a relay.
fn exact(bench: &mut Bench<'_>, workload: &str, lib: &Lib, tasks: usize) -> Result<()> {
    let name = bench.fresh_name();
    bench.progress.show(workload, &format!("{}, counts", lib.name));
    let Some(server) = bench.server() else { return check_tokens(bench, lib, &name, tasks) };
    // A thousand tasks compute so much that with a short latency the processors would be the limit.
    let delay = bench.settings.delay * (1 + tasks as u64 / 256);
    let relay = Relay::start(server, delay)?;
    let mut peer = bench.peer_at(lib, &relay.url)?;
    // Warms up keys, scripts and connections.
    pairs(&mut peer, &format!("pairs {name} {tasks} 1 0 0"))?;
    if server.addrs().len() > 1 {
        // Members that a pair does not need are asked when a lock is held for a moment.
        peer.ask(&format!("hold {name}-held"), LONG)?;
        settle();
        peer.ask(&format!("free {name}-held"), LONG)?;
    }
    let times = 1 + 3 / tasks as u64;
    let command = format!("pairs {name} {tasks} {times} 0 0");
    let (count, before) = (server.count()?, relay.bytes());
    pairs(&mut peer, &command)?;
    if lib.is_other() {
        // Redisson goes on with its release in the background.
        settle();
    }
    let (requests, after) = (count.finish()?, relay.bytes());
    let trips = relay.round_trips(server, |_| {
        Ok(latency(&pairs(&mut peer, &command)?)?.value_at_quantile(0.5) as f64)
    })?;
    let done = (tasks as u64 * times) as f64;
    let figures = Figures::from([
        (REQUESTS, requests as f64 / done),
        (BYTES_UP, (after.0 - before.0) as f64 / done),
        (BYTES_DOWN, (after.1 - before.1) as f64 / done),
        (ROUND_TRIPS, trips),
    ]);
    bench.add(workload, &lib.name, 0, figures);
    Ok(())
}

/// Checks only the tokens: without a server there are no requests to count.
fn check_tokens(bench: &Bench<'_>, lib: &Lib, name: &str, tasks: usize) -> Result<()> {
    let mut peer = bench.peer(lib)?;
    pairs(&mut peer, &format!("pairs {name} {tasks} 5 0 0")).map(drop)
}

fn timed(bench: &mut Bench<'_>, lib: &Lib, tasks: usize, rate: u64) -> Result<Measurement> {
    let mut peer = bench.peer(lib)?;
    let name = bench.fresh_name();
    pairs(&mut peer, &format!("pairs {name} {tasks} 3 0 0"))?;
    let ms = (bench.settings.seconds * 1e3).max(1.0) as u64;
    let running = |peer: &Peer| (cpu::with_children(peer.pid()), bench.server_cpu());
    let before = running(&peer);
    let answer = pairs(&mut peer, &format!("pairs {name} {tasks} 0 {ms} {rate}"))?;
    let after = running(&peer);
    let latency = latency(&answer)?;
    let done = latency.len() as f64;
    let micros = |nanos: u64| nanos as f64 / MICRO as f64;
    let wall = span(&answer)?;
    let mut figures = Figures::from([
        (P50, micros(latency.value_at_quantile(0.5))),
        (P99, micros(latency.value_at_quantile(0.99))),
        (MAX, micros(latency.max())),
        (RATE, done * SECOND as f64 / wall as f64),
        (CLIENT, micros(after.0.saturating_sub(before.0)) / done),
    ]);
    if let Some((before, after)) = before.1.zip(after.1) {
        figures.insert(SERVER, micros(after.saturating_sub(before)) / done);
    }
    let steps = latency.iter_recorded();
    let shape = shape(steps.map(|step| (micros(step.value_iterated_to()), step.count_at_value())));
    Ok(Measurement { figures, shape, cpu: cpu::with_children(peer.pid()) })
}

/// Runs pairs. A token that did not grow voids the run; exclusion cannot be broken here.
pub(super) fn pairs(peer: &mut Peer, command: &str) -> Result<Value> {
    let answer = peer.ask(command, LONG)?;
    match answer["fence_regressions"].as_u64() {
        Some(0) => Ok(answer),
        Some(times) => {
            Err(RunError::Void(format!("{times} fencing tokens did not grow in uncontended pairs")))
        }
        None => Err(RunError::Failed(format!("no answer to pairs: {answer}"))),
    }
}

fn span(answer: &Value) -> Result<u64> {
    let times = answer["start"].as_u64().zip(answer["end"].as_u64());
    let span = times.and_then(|(start, end)| end.checked_sub(start)).filter(|&span| span > 0);
    span.ok_or_else(|| RunError::Failed("pairs without a beginning or an end".into()))
}

pub(super) fn latency(answer: &Value) -> Result<Histogram<u64>> {
    let mut histogram = lock_bench_worker::histogram();
    for step in answer["latency"].as_array().into_iter().flatten() {
        let step = step.get(0).and_then(Value::as_u64).zip(step.get(1).and_then(Value::as_u64));
        let (value, count) = step
            .ok_or_else(|| RunError::Failed("latency is a list of [nanoseconds, count]".into()))?;
        histogram.saturating_record_n(value, count);
    }
    match histogram.is_empty() {
        true => Err(RunError::Failed("not one pair was done".into())),
        false => Ok(histogram),
    }
}
