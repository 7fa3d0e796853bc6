//! A deep queue in one process: a hand-off must not cost more because of the waiters behind it.

use lock_bench_worker::clock::MILLI;

use super::handoff::{self, Crowd, P50, P50_RATIO};
use crate::model::Figure;
use crate::run::bench::{Bench, LONG, ask_each};
use crate::run::cpu;
use crate::run::error::Result;
use crate::run::peer::Lib;
use crate::run::slices::{self, Measurement, Plan};

const DRAINED: Figure = Figure::time("drained in ms");

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    if bench.settings.exact {
        return Ok(());
    }
    bench.with_handovers(drained)
}

fn drained(bench: &mut Bench<'_>) -> Result<()> {
    let workload = format!("deep w={}", bench.backend.deep);
    let plan = Plan {
        workload: &workload,
        libs: bench.libs_for(bench.backend.deep),
        floor_name: "itself, w=8",
        ratios: &[(P50, P50_RATIO)],
        rounds: bench.settings.rounds.min(3),
    };
    slices::run(
        bench,
        &plan,
        |bench, lib| {
            let measured = handoff::measure(bench, lib, Crowd::new(8, 1))?;
            // Only the figure that is compared.
            let figures = measured.figures.into_iter().filter(|(figure, _)| *figure == P50);
            Ok(Measurement { figures: figures.collect(), ..measured })
        },
        drain,
    )
}

/// Lets all of them acquire the lock once and release it at once.
fn drain(bench: &mut Bench<'_>, lib: &Lib) -> Result<Measurement> {
    let mut peers = bench.peers(lib, 1)?;
    let name = bench.fresh_name();
    peers[0].ask(&format!("hold {name}"), LONG)?;
    ask_each(&mut peers, &format!("queue {name} {} 0 1", bench.backend.deep))?;
    super::crowd::settle();
    let freed = peers[0].ask(&format!("free {name}"), LONG)?;
    let claims = bench.collect(&mut peers, &name, bench.backend.deep + 1)?;
    let mut measurement =
        handoff::measurement(&claims, MILLI, true, cpu::of_process(peers[0].pid()));
    let until = claims.last_release().zip(freed["let_go"].as_u64());
    if let Some((end, begun)) = until {
        measurement.figures.insert(DRAINED, end.saturating_sub(begun) as f64 / MILLI as f64);
    }
    Ok(measurement)
}
