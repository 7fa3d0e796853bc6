//! A crowd of waiters, each of which is served once: the cost for the server, and fairness.

use lock_bench_worker::clock::{MILLI, wait};

use crate::model::{Figure, Figures, Shape};
use crate::run::bench::{Bench, LONG, ask_each};
use crate::run::claims::Claims;
use crate::run::error::Result;
use crate::run::peer::{Lib, Peer, SOON};

const REQUESTS: Figure = Figure::count("requests a waiter");
const INVERSIONS: Figure = Figure::count("share served out of order");
const ALL_SERVED: Figure = Figure::time("all served ms");
const UNFAIR: Figure = Figure::time("max wait / mean wait");

/// Figures that show whether a waiter costs more in a larger crowd.
const GROWTH: [(usize, Figure); 4] = [
    (10, Figure::count("requests a waiter, w=10")),
    (100, Figure::count("requests a waiter, w=100")),
    (1_000, Figure::count("requests a waiter, w=1000")),
    (10_000, Figure::count("requests a waiter, w=10000")),
];
const GREATEST_TO_LEAST: Figure = Figure::count("requests a waiter, greatest ÷ least");

/// The most waiters that are queued at once where only requests are counted. More would exceed the
/// bound of a call where each reads the whole queue.
const PORTION: usize = 1_000;

/// With more waiters, a picture shows only a cloud.
const DRAWN: usize = 64;

const CROWDS: [(usize, usize); 5] = [(64, 1), (8, 8), (64, 8), (1000, 1), (1000, 8)];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    bench.with_handovers(crowds)
}

/// The order in which waiters arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// All processes at once, so that their waiters alternate. Requests are counted.
    AtOnce,
    /// One process after the other, each when the waiters before are queued, so that the order is
    /// known. Requests are not counted, as that would slow the server down.
    InTurns,
}

fn crowds(bench: &mut Bench<'_>) -> Result<()> {
    for (waiters, processes) in CROWDS {
        let is_possible = processes == 1 || bench.backend.between_processes;
        if !is_possible || waiters > bench.backend.deep || (bench.settings.exact && waiters > 64) {
            continue;
        }
        let workload = format!("crowd w={waiters} p={processes}");
        let libs = bench.libs_for(waiters);
        bench.each(&workload, &libs, |bench, lib| crowd(bench, lib, waiters, processes))?;
    }
    Ok(())
}

/// Returns the cost of such a crowd, and the order of service.
fn crowd(
    bench: &mut Bench<'_>,
    lib: &Lib,
    waiters: usize,
    processes: usize,
) -> Result<(Figures, Shape)> {
    let mut figures = Figures::new();
    if bench.server().is_some() {
        let (_, requests) = serve_once(bench, lib, waiters, processes, Arrival::AtOnce)?;
        figures.extend(requests.map(|requests| (REQUESTS, requests / waiters as f64)));
    }
    let (claims, _) = serve_once(bench, lib, waiters, processes, Arrival::InTurns)?;
    figures.insert(INVERSIONS, claims.inversions());
    if !bench.settings.exact {
        let waits = claims.waits();
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        let longest = waits.iter().copied().max().unwrap_or(0);
        figures.insert(UNFAIR, longest as f64 / mean);
        figures.insert(ALL_SERVED, claims.all_served() as f64 / MILLI as f64);
    }
    let order = if waiters <= DRAWN { claims.order() } else { Shape::new() };
    Ok((figures, order))
}

/// Measures the requests of a waiter for crowds of several sizes: they should not depend on the
/// size.
pub(super) fn growth(bench: &mut Bench<'_>) -> Result<()> {
    match bench.server() {
        Some(_) => bench.with_handovers(growth_of_libs),
        None => Ok(()),
    }
}

fn growth_of_libs(bench: &mut Bench<'_>) -> Result<()> {
    /// Two waiters of the smallest crowd in each.
    const PROCESSES: usize = 5;

    let workload = format!("growth p={PROCESSES}");
    let most = if bench.settings.exact { 1000 } else { bench.backend.deep_counted };
    for lib in bench.libs.clone() {
        let mut figures = Figures::new();
        for (waiters, figure) in GROWTH {
            if waiters > most.min(lib.max_waiters()) {
                break;
            }
            bench.progress.show(&workload, &format!("{}, {waiters} waiters", lib.name));
            let served = serve_once(bench, &lib, waiters, PROCESSES, Arrival::AtOnce);
            let served = bench.unless_unsupported(&workload, &lib, served)?;
            if let Some((_, Some(requests))) = served {
                figures.insert(figure, requests / waiters as f64);
            }
        }
        let least = figures.values().copied().fold(f64::INFINITY, f64::min);
        let greatest = figures.values().copied().fold(0.0, f64::max);
        if !figures.is_empty() {
            figures.insert(GREATEST_TO_LEAST, greatest / least);
            bench.add(&workload, &lib.name, 0, figures);
        }
    }
    Ok(())
}

/// Serves each waiter once: a holder releases the lock when all of them wait.
///
/// It has a process of its own if processes share locks. Its own requests do not count: it acquires
/// before the count, and the cost of its release is measured before and subtracted.
fn serve_once(
    bench: &mut Bench<'_>,
    lib: &Lib,
    waiters: usize,
    processes: usize,
    arrival: Arrival,
) -> Result<(Claims, Option<f64>)> {
    let alone = usize::from(bench.backend.between_processes);
    let mut peers = bench.peers(lib, alone + processes)?;
    warm_up(bench, &mut peers)?;
    let name = bench.fresh_name();
    let counts = arrival == Arrival::AtOnce;
    let released_for = match counts {
        true => cost_of_a_release(bench, &mut peers[0])?,
        false => 0,
    };
    peers[0].ask(&format!("hold {name}"), LONG)?;
    let server = bench.server().filter(|_| counts);
    let count = server.map(crate::run::services::Server::count).transpose()?;
    let each = |waiters| format!("queue {name} {} 0 1", waiters / processes);
    let waiting = each(waiters);
    match arrival {
        Arrival::AtOnce if waiters > PORTION => {
            for _ in 0..waiters / PORTION {
                ask_each(&mut peers[alone..], &each(PORTION))?;
                settle_server(bench)?;
            }
        }
        // A waiter that polls is not queued.
        Arrival::InTurns if !lib.polls() => {
            for peer in &mut peers[alone..] {
                peer.ask(&waiting, SOON)?;
                settle();
            }
        }
        _ => {
            ask_each(&mut peers[alone..], &waiting)?;
            settle();
        }
    }
    peers[0].ask(&format!("free {name}"), LONG)?;
    let claims = bench.collect(&mut peers, &name, waiters + 1)?;
    let requests = count.map(crate::run::services::Count::finish).transpose()?;
    Ok((claims, requests.map(|requests| requests.saturating_sub(released_for) as f64)))
}

/// Waits until the server gets hardly any requests.
fn settle_server(bench: &mut Bench<'_>) -> Result<()> {
    /// A few sessions show that they live, and each count is a request.
    const HARDLY_ANY: u64 = 10;

    loop {
        let count = bench.server().map(crate::run::services::Server::count).transpose()?;
        settle();
        match count.map(crate::run::services::Count::finish).transpose()? {
            Some(requests) if requests > HARDLY_ANY => {}
            _ => return Ok(()),
        }
    }
}

/// Returns the number of requests to release a lock without waiters.
pub(super) fn cost_of_a_release(bench: &mut Bench<'_>, holder: &mut Peer) -> Result<u64> {
    let name = bench.fresh_name();
    let Some(server) = bench.server() else { return Ok(0) };
    holder.ask(&format!("hold {name}"), LONG)?;
    settle();
    let count = server.count()?;
    holder.ask(&format!("free {name}"), LONG)?;
    // Requests that follow in the background.
    settle();
    count.finish()
}

/// Warms up connections and scripts.
pub(super) fn warm_up(bench: &mut Bench<'_>, peers: &mut [Peer]) -> Result<()> {
    let name = bench.fresh_name();
    for (i, peer) in peers.iter_mut().enumerate() {
        peer.ask(&format!("pairs {name}-{i} 1 2 0 0"), LONG)?;
    }
    Ok(())
}

/// Waits until waiters have settled: the requests of their arrival are answered.
pub(super) fn settle() {
    wait(300 * MILLI);
}
