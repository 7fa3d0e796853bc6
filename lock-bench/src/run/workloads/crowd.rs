//! A crowd waits, and everyone is served once: what that costs the server, and how fair it is.

use crate::clock::{MILLI, wait};
use crate::report::{Figure, Figures, Shape};
use crate::run::Stop;
use crate::run::bench::{Bench, LONG, ask_each};
use crate::run::claims::Claims;
use crate::run::peer::{Lib, Peer};

const REQUESTS: Figure = Figure::count("requests a waiter");
const INVERSIONS: Figure = Figure::count("share served out of order");
const ALL_SERVED: Figure = Figure::time("all served ms");
const UNFAIR: Figure = Figure::time("max wait / mean wait");

/// The lines that show whether a waiter costs more where more of them wait.
const GROWTH: [(usize, Figure); 4] = [
    (10, Figure::count("requests a waiter, w=10")),
    (100, Figure::count("requests a waiter, w=100")),
    (1_000, Figure::count("requests a waiter, w=1000")),
    (10_000, Figure::count("requests a waiter, w=10000")),
];
const GREATEST_TO_LEAST: Figure = Figure::count("requests a waiter, greatest ÷ least");

/// Of more, a picture shows only a cloud.
const DRAWN: usize = 64;

const CROWDS: [(usize, usize); 5] = [(64, 1), (8, 8), (64, 8), (1000, 1), (1000, 8)];

pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), Stop> {
    bench.and_handing_over(crowds)
}

fn crowds(bench: &mut Bench<'_>) -> Result<(), Stop> {
    for (waiters, processes) in CROWDS {
        let is_possible = processes == 1 || bench.backend.between_processes;
        if !is_possible || waiters > bench.backend.deep || (bench.args.exact && waiters > 64) {
            continue;
        }
        let workload = format!("crowd w={waiters} p={processes}");
        for lib in bench.libs_with(waiters) {
            bench.progress.say(&workload, &lib.name);
            let served = serve_once(bench, &lib, waiters, processes);
            let served = bench.unless_it_cannot(&workload, &lib, served)?;
            let Some((claims, requests)) = served else { continue };
            let waits = claims.waits();
            let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
            let longest = waits.iter().copied().max().unwrap_or(0);
            let mut figures = Figures::from([
                (INVERSIONS, claims.inversions()),
                (UNFAIR, longest as f64 / mean),
                (ALL_SERVED, claims.all_served() as f64 / MILLI as f64),
            ]);
            if let Some(requests) = requests {
                figures.insert(REQUESTS, requests as f64 / waiters as f64);
            }
            let order = if waiters <= DRAWN { claims.order() } else { Shape::new() };
            bench.draw(&workload, &lib.name, 0, figures, order);
        }
    }
    Ok(())
}

/// Who waits shows nothing here, but what each of them costs the server: the same, however many there are.
pub(super) fn growth(bench: &mut Bench<'_>) -> Result<(), Stop> {
    /// A tenth of the smallest line each.
    const PROCESSES: usize = 5;

    if bench.server().is_none() {
        return Ok(());
    }
    let workload = format!("growth p={PROCESSES}");
    let most = if bench.args.exact { 1000 } else { bench.backend.deep };
    for lib in bench.libs.clone() {
        let mut figures = Figures::new();
        for (waiters, figure) in GROWTH {
            if waiters > most.min(lib.most_waiters()) {
                break;
            }
            bench.progress.say(&workload, &format!("{}, {waiters} waiters", lib.name));
            let served = serve_once(bench, &lib, waiters, PROCESSES);
            let served = bench.unless_it_cannot(&workload, &lib, served)?;
            if let Some((_, Some(requests))) = served {
                figures.insert(figure, requests as f64 / waiters as f64);
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

/// A holder of its own process lets go once all of them wait. Its two requests are not counted: what it
/// acquires with comes before the count, and what it releases with is taken off.
fn serve_once(
    bench: &mut Bench<'_>,
    lib: &Lib,
    waiters: usize,
    processes: usize,
) -> Result<(Claims, Option<u64>), Stop> {
    let mut peers = bench.peers(lib, processes)?;
    let name = bench.fresh_name();
    warm_up(bench, &mut peers)?;
    peers[0].ask(&format!("hold {name}"), LONG)?;
    let count = bench.server().map(super::super::services::Server::count).transpose()?;
    ask_each(&mut peers, &format!("queue {name} {} 0 1", waiters / processes))?;
    rest();
    peers[0].ask(&format!("free {name}"), LONG)?;
    let claims = bench.collect(&mut peers, &name, waiters + 1)?;
    let requests = count.map(super::super::services::Count::finish).transpose()?;
    Ok((claims, requests.map(|requests| requests.saturating_sub(1))))
}

/// So that connections and scripts are there.
pub(super) fn warm_up(bench: &mut Bench<'_>, peers: &mut [Peer]) -> Result<(), Stop> {
    let name = bench.fresh_name();
    for (i, peer) in peers.iter_mut().enumerate() {
        peer.ask(&format!("pairs {name}-{i} 1 2 0 0"), LONG)?;
    }
    Ok(())
}

/// Those who wait have come to rest: what they send on arrival is answered.
pub(super) fn rest() {
    wait(300 * MILLI);
}
