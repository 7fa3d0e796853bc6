//! Waiters for a lock that stays held: the cost of an idle wait.

use lock_bench_worker::clock::{MILLI, SECOND, wait};

use crate::model::{Figure, Figures, Shape};
use crate::run::bench::{Bench, LONG, ask_each};
use crate::run::cpu;
use crate::run::error::Result;
use crate::run::peer::{Lib, Peer};
use crate::run::workloads::crowd::{settle, warm_up};

const REQUESTS: Figure = Figure::count("requests/s");
const CLIENT: Figure = Figure::cpu("client CPU ms/s");

const WAITERS: usize = 64;

/// The holder's lease, so long that its own renewals come after the measurement.
const TTL_MS: u64 = 60_000;

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let processes = if bench.backend.between_processes { 8 } else { 1 };
    let workload = format!("idle w={WAITERS} p={processes}");
    let libs = bench.libs.clone();
    bench.each(&workload, &libs, |bench, lib| Ok((measure(bench, lib, processes)?, Shape::new())))
}

fn measure(bench: &mut Bench<'_>, lib: &Lib, processes: usize) -> Result<Figures> {
    let mut peers = bench.peers(lib, processes)?;
    let name = bench.fresh_name();
    warm_up(bench, &mut peers)?;
    ask_each(&mut peers, &format!("ttl {TTL_MS}"))?;
    peers[0].ask(&format!("hold {name}"), LONG)?;
    ask_each(&mut peers, &format!("queue {name} {} 0 1", WAITERS / processes))?;
    settle();
    let count = bench.server().map(crate::run::services::Server::count).transpose()?;
    let running = |peers: &[Peer]| peers.iter().map(|p| cpu::of_process(p.pid())).sum::<u64>();
    let seconds = if bench.settings.exact { 2 } else { 5 };
    let before = running(&peers);
    wait(seconds * SECOND);
    let used = running(&peers).saturating_sub(before);
    let requests = count.map(crate::run::services::Count::finish).transpose()?;
    peers[0].ask(&format!("free {name}"), LONG)?;
    bench.collect(&mut peers, &name, WAITERS + 1)?;
    let mut figures = Figures::from([(CLIENT, used as f64 / MILLI as f64 / seconds as f64)]);
    if let Some(requests) = requests {
        figures.insert(REQUESTS, requests as f64 / seconds as f64);
    }
    Ok(figures)
}
