//! Many locks, held and renewed by one process.

use lock_bench_worker::clock::{MILLI, SECOND, now, wait};
use serde_json::Value;

use crate::model::{Figure, Figures, Shape};
use crate::run::bench::{Bench, LONG};
use crate::run::cpu;
use crate::run::error::{Result, RunError};
use crate::run::peer::{Lib, Peer, SOON};
use crate::run::services::Server;

const LOST: Figure = Figure::count("locks lost");
const REQUESTS: Figure = Figure::count("requests/s");
const MEMORY: Figure = Figure::count("client bytes a lock");
const CLIENT: Figure = Figure::cpu("client CPU %");
const SERVER: Figure = Figure::cpu("server CPU %");
const LEAST: Figure = Figure::time("least lease left %");

/// The lease for exact figures, in ms, on fewer locks: they are the same for each lock, and known
/// soon.
const EXACT_TTL: u64 = 3_000;
/// The least number of locks for memory: the allocator has free pages of the acquisitions, which
/// distorts a small number.
const ENOUGH_FOR_MEMORY: usize = 10_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let (count, ttl) = bench.backend.held;
    of_size(bench, count / 10, EXACT_TTL)?;
    if bench.settings.exact {
        return Ok(());
    }
    of_size(bench, count, ttl)
}

fn of_size(bench: &mut Bench<'_>, count: usize, ttl: u64) -> Result<()> {
    let workload = format!("held n={count} ttl={}s", ttl / 1000);
    let libs = bench.untuned_libs();
    bench.each(&workload, &libs, |bench, lib| Ok((measure(bench, lib, count, ttl)?, Shape::new())))
}

fn measure(bench: &mut Bench<'_>, lib: &Lib, count: usize, ttl: u64) -> Result<Figures> {
    let mut peer = bench.peer(lib)?;
    let name = bench.fresh_name();
    // Warms up the process, so that its own memory does not count.
    peer.ask(&format!("pairs {name}-w 64 3 0 0"), LONG)?;
    peer.ask(&format!("ttl {ttl}"), SOON)?;
    let empty = cpu::memory_of(peer.pid());
    peer.ask(&format!("keep {name} {count}"), LONG)?;
    // All locks have been renewed twice, and the server has the scripts for that. One-time costs of
    // the first renewal are over, and the renewals have their final schedule.
    wait(ttl * MILLI);
    let full = cpu::memory_of(peer.pid());
    let requests = requests_a_second(bench, &mut peer, count, ttl)?;
    // After the count: a server that reports each request to a monitor has more work.
    let running = |peer: &Peer| (cpu::of_process(peer.pid()), bench.server_cpu());
    let before = running(&peer);
    let (least, seconds) = watch(&mut peer, count, ttl)?;
    let after = running(&peer);
    let is_known = held_of(&peer.ask("kept", SOON)?)?.is_some();
    let percent = |before: u64, after: u64| {
        after.saturating_sub(before) as f64 / SECOND as f64 / seconds * 100.0
    };
    let mut figures = Figures::from([(CLIENT, percent(before.0, after.0))]);
    if is_known {
        // Otherwise the run would have ended.
        figures.insert(LOST, 0.0);
    }
    if count >= ENOUGH_FOR_MEMORY {
        figures.insert(MEMORY, full.saturating_sub(empty) as f64 / count as f64);
    }
    if least.is_finite() {
        figures.insert(LEAST, least / ttl as f64 * 100.0);
    }
    if let Some(requests) = requests {
        figures.insert(REQUESTS, requests);
    }
    if let Some((before, after)) = before.1.zip(after.1) {
        figures.insert(SERVER, percent(before, after));
    }
    peer.ask("drop", LONG)?;
    Ok(figures)
}

/// Returns the requests a second of the renewals of all locks, if there is a server.
fn requests_a_second(
    bench: &Bench<'_>,
    peer: &mut Peer,
    count: usize,
    ttl: u64,
) -> Result<Option<f64>> {
    let Some(server) = bench.server() else { return Ok(None) };
    wait_for_renewals(server, count, ttl)?;
    let counting = server.count()?;
    let (_, seconds) = watch(peer, count, ttl)?;
    Ok(Some(counting.finish()? as f64 / seconds))
}

/// Waits until renewals of all locks have just ended. Then a whole lease has three of each lock,
/// and not the beginning of a fourth. Some backends renew no single locks: after a lease, the count
/// begins anyway.
fn wait_for_renewals(server: &dyn Server, count: usize, ttl: u64) -> Result<()> {
    const STEP: u64 = 100;

    let (end, mut have_begun) = (now() + ttl * MILLI, false);
    while now() < end {
        let counting = server.count()?;
        wait(STEP * MILLI);
        let are_under_way = counting.finish()? >= count as u64 / 10;
        if have_begun && !are_under_way {
            break;
        }
        have_begun |= are_under_way;
    }
    Ok(())
}

/// Watches a whole lease, in which all locks are renewed three times, so that rare events have
/// their true weight. Returns the shortest remaining time of a lock in ms, and the duration in
/// seconds.
fn watch(peer: &mut Peer, count: usize, ttl: u64) -> Result<(f64, f64)> {
    const LOOKS: u64 = 30;

    let begun = now();
    let mut least = f64::INFINITY;
    for _ in 0..LOOKS {
        wait((ttl * MILLI).div_ceil(LOOKS));
        least = least.min(still_held(peer, count)?);
    }
    Ok((least, (now() - begun) as f64 / SECOND as f64))
}

/// Returns the shortest remaining time of a lock, in ms. A lost lock voids the run, as its renewal
/// was promised.
fn still_held(peer: &mut Peer, count: usize) -> Result<f64> {
    let kept = peer.ask("kept", SOON)?;
    match held_of(&kept)? {
        Some(held) if held < count as u64 => {
            Err(RunError::Void(format!("{} of {count} locks were lost", count as u64 - held)))
        }
        Some(_) | None => Ok(kept["least_left_ms"].as_f64().unwrap_or(f64::INFINITY)),
    }
}

/// Returns the number of held locks, or `None` if the library does not know it.
fn held_of(kept: &Value) -> Result<Option<u64>> {
    match (kept.get("held"), kept["held"].as_u64()) {
        (Some(Value::Null), _) => Ok(None),
        (_, Some(held)) => Ok(Some(held)),
        _ => Err(RunError::Failed(format!("no answer to kept: {kept}"))),
    }
}
