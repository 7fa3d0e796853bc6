//! One of several servers hangs: the time of an uncontended pair, divided by the time without.

use crate::model::{Figure, Figures, Shape};
use crate::run::bench::{Bench, median};
use crate::run::error::Result;
use crate::run::peer::{Lib, Peer};
use crate::run::workloads::pairs::{latency, pairs};

const RATIO: Figure = Figure::time("p50 with one hung ÷ without");

pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    if bench.settings.exact || bench.server().is_none_or(|server| server.addrs().len() < 2) {
        return Ok(());
    }
    let figures = |bench: &mut _, lib: &_| Ok(Figures::from([(RATIO, ratio(bench, lib)?)]));
    let libs = bench.untuned_libs();
    bench.each("hung", &libs, |bench, lib| Ok((figures(bench, lib)?, Shape::new())))
}

/// Measures in turns, with another hung server each time: one of them is the first to be asked.
fn ratio(bench: &mut Bench<'_>, lib: &Lib) -> Result<f64> {
    let mut peer = bench.peer(lib)?;
    let (name, ms) = (bench.fresh_name(), (bench.settings.seconds * 1e3).max(1.0) as u64);
    let (mut well, mut hung) = (Vec::new(), Vec::new());
    let p50 = |peer: &mut Peer| -> Result<f64> {
        let answer = pairs(peer, &format!("pairs {name} 1 0 {ms} 0"))?;
        Ok(latency(&answer)?.value_at_quantile(0.5) as f64)
    };
    p50(&mut peer)?;
    for nth in 0..lib.rounds(bench.settings.rounds) {
        well.push(p50(&mut peer)?);
        let pause = |paused| bench.server().is_some_and(|s| s.set_paused(nth, paused));
        pause(true);
        let taken = p50(&mut peer);
        pause(false);
        hung.push(taken?);
    }
    Ok(median(hung.into_iter()) / median(well.into_iter()))
}
