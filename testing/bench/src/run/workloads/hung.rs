//! One of several servers stands still: what an uncontended pair takes then, over what it takes without.

use crate::report::{Figure, Figures};
use crate::run::Stop;
use crate::run::bench::{Bench, median};
use crate::run::peer::{Lib, Peer};
use crate::run::workloads::pairs::{latency, pairs};

const RATIO: Figure = Figure::time("p50 with one hung ÷ without");

pub(super) fn run(bench: &mut Bench<'_>) -> Result<(), Stop> {
    if bench.args.exact || bench.server().is_none_or(|server| server.addrs().len() < 2) {
        return Ok(());
    }
    for lib in bench.libs.clone().iter().filter(|lib| !lib.is_tuned()) {
        bench.progress.say("hung", &lib.name);
        let ratio = ratio(bench, lib);
        if let Some(ratio) = bench.unless_it_cannot("hung", lib, ratio)? {
            bench.add("hung", &lib.name, 0, Figures::from([(RATIO, ratio)]));
        }
    }
    Ok(())
}

/// In turns, and each time it is another server: one of them is the first that is asked.
fn ratio(bench: &mut Bench<'_>, lib: &Lib) -> Result<f64, Stop> {
    let mut peer = bench.peer(lib)?;
    let (name, ms) = (bench.fresh_name(), (bench.args.seconds * 1e3).max(1.0) as u64);
    let (mut well, mut hung) = (Vec::new(), Vec::new());
    let p50 = |peer: &mut Peer| -> Result<f64, Stop> {
        let answer = pairs(peer, &format!("pairs {name} 1 0 {ms} 0"))?;
        Ok(latency(&answer)?.value_at_quantile(0.5) as f64)
    };
    p50(&mut peer)?;
    for nth in 0..lib.rounds(bench.args.rounds) {
        well.push(p50(&mut peer)?);
        let stands_still = |stands| bench.server().is_some_and(|s| s.stand_still(nth, stands));
        stands_still(true);
        let taken = p50(&mut peer);
        stands_still(false);
        hung.push(taken?);
    }
    Ok(median(hung.into_iter()) / median(well.into_iter()))
}
