//! Reliable times: each library is measured between two measurements of its floor.
//!
//! The order is random in each round, and a slice is discarded if other processes used the machine.

use super::bench::Bench;
use super::cpu::{self, ForeignLoad};
use super::error::Result;
use super::peer::Lib;
use crate::model::{Figure, Figures, Shape};

/// The greatest ratio of a floor's figures before and after a slice.
const STEADY: f64 = 1.25;

/// The number of slices without a good one after which no more are tried.
const HOPELESS: usize = 3;

/// A series of measurements.
pub(crate) struct Plan<'p> {
    pub(crate) workload: &'p str,
    /// The libraries.
    pub(crate) libs: Vec<Lib>,
    /// The name of the floor's row.
    pub(crate) floor_name: &'p str,
    /// Figures that also become ratios to the floor, and the names of the ratios. The first one has
    /// to be steady.
    pub(crate) ratios: &'p [(Figure, Figure)],
    pub(crate) rounds: usize,
}

/// The progress of a library.
struct Tally {
    lib: Lib,
    wanted: usize,
    good: usize,
    thrown_away: usize,
}

impl Tally {
    fn is_wanted(&self) -> bool {
        self.good < self.wanted
    }

    /// Returns whether too few of its slices were good.
    fn is_refused(&self) -> bool {
        2 * self.good <= self.wanted
    }
}

/// The result of a measurement, and the CPU time of the processes that it started and ended.
pub(crate) struct Measurement {
    pub(crate) figures: Figures,
    pub(crate) shape: Shape,
    pub(crate) cpu: u64,
}

/// Measures every library in so many rounds.
pub(crate) fn run<'a>(
    bench: &mut Bench<'a>,
    plan: &Plan<'_>,
    mut floor: impl FnMut(&mut Bench<'a>, &Lib) -> Result<Measurement>,
    mut measure: impl FnMut(&mut Bench<'a>, &Lib) -> Result<Measurement>,
) -> Result<()> {
    let tally = |lib: &Lib| Tally {
        wanted: lib.rounds(plan.rounds),
        lib: lib.clone(),
        good: 0,
        thrown_away: 0,
    };
    let mut tallies: Vec<Tally> = plan.libs.iter().map(tally).collect();
    // Half of the slices may be lost to other load. With more, the machine is not fit for times.
    for attempt in 0..2 * plan.rounds {
        let in_vain = attempt >= HOPELESS && tallies.iter().all(|tally| tally.good == 0);
        let too_late = attempt >= plan.rounds && bench.elapsed() > bench.retry_limit();
        if in_vain || too_late {
            break;
        }
        tallies.retain(|tally| tally.wanted > 0);
        bench.random.shuffle(&mut tallies);
        for tally in tallies.iter_mut().filter(|tally| tally.is_wanted()) {
            let which = format!("{}, {} of {}", tally.lib.name, tally.good + 1, tally.wanted);
            bench.progress.show(plan.workload, &which);
            let slice = slice(bench, plan, &tally.lib, &mut floor, &mut measure);
            match bench.unless_unsupported(plan.workload, &tally.lib, slice)? {
                None => tally.wanted = 0,
                Some(Ok((before, own))) => {
                    tally.good += 1;
                    bench.draw(
                        plan.workload,
                        plan.floor_name,
                        tally.good,
                        before.figures,
                        before.shape,
                    );
                    bench.draw(plan.workload, &tally.lib.name, tally.good, own.figures, own.shape);
                }
                Some(Err(why)) => {
                    tally.thrown_away += 1;
                    bench.progress.note(&format!(
                        "{}, {}: slice {} was thrown away: {why}",
                        plan.workload,
                        tally.lib.name,
                        attempt + 1
                    ));
                }
            }
        }
    }
    tallies.retain(|tally| tally.wanted > 0);
    refuse(bench, plan, &tallies);
    Ok(())
}

/// Measures one library between two measurements of its floor.
///
/// Returns those of the floor before it, and its own with the ratios, or why they are unusable.
fn slice<'a>(
    bench: &mut Bench<'a>,
    plan: &Plan<'_>,
    lib: &Lib,
    floor: &mut impl FnMut(&mut Bench<'a>, &Lib) -> Result<Measurement>,
    measure: &mut impl FnMut(&mut Bench<'a>, &Lib) -> Result<Measurement>,
) -> Result<Result<(Measurement, Measurement), String>> {
    let watch = QuietCheck::start(bench);
    let before = floor(bench, lib)?;
    let mut measured = measure(bench, lib)?;
    let after = floor(bench, lib)?;
    let ours = before.cpu + measured.cpu + after.cpu;
    let verdict =
        steady(plan, &before.figures, &after.figures).and_then(|()| watch.check(bench, ours));
    if let Err(why) = verdict {
        return Ok(Err(why));
    }
    let figures = &mut measured.figures;
    for (figure, ratio) in plan.ratios {
        let floors = [&before.figures, &after.figures].map(|floor| floor.get(figure));
        if let (Some(value), [Some(before), Some(after)]) = (figures.get(figure), floors) {
            figures.insert(ratio.clone(), value / f64::midpoint(*before, *after));
        }
    }
    Ok(Ok((before, measured)))
}

/// Removes the rows of libraries that were measured too rarely.
fn refuse(bench: &mut Bench<'_>, plan: &Plan<'_>, tallies: &[Tally]) {
    if tallies.iter().all(Tally::is_refused) {
        // A floor alone is meaningless.
        bench.rows.retain(|row| row.workload != plan.workload || row.round == 0);
    }
    for Tally { lib, good, thrown_away, .. } in tallies.iter().filter(|tally| tally.is_refused()) {
        bench
            .rows
            .retain(|row| row.workload != plan.workload || row.lib != lib.name || row.round == 0);
        bench.refused.push(format!(
            "{}, {}: {thrown_away} of {} slices were thrown away, so this machine is too busy for them",
            plan.workload,
            lib.name,
            thrown_away + good
        ));
    }
}

fn steady(plan: &Plan<'_>, before: &Figures, after: &Figures) -> Result<(), String> {
    let Some((gauge, _)) = plan.ratios.first() else { return Ok(()) };
    let (Some(before), Some(after)) = (before.get(gauge), after.get(gauge)) else {
        return Ok(());
    };
    let moved = before.max(*after) / before.min(*after);
    let moved_by = || format!("its floor moved by {:.0} %", (moved - 1.0) * 100.0);
    (moved <= STEADY).then_some(()).ok_or_else(moved_by)
}

/// A check of the load of other processes during a measurement.
pub(super) struct QuietCheck {
    foreign: ForeignLoad,
    server: u64,
    own: u64,
}

impl QuietCheck {
    pub(super) fn start(bench: &Bench<'_>) -> Self {
        let (server, own) = running(bench);
        Self { foreign: ForeignLoad::start(), server, own }
    }

    /// Fails if other processes used too much, where our workers had so much CPU time in
    /// nanoseconds.
    pub(super) fn check(&self, bench: &Bench<'_>, workers: u64) -> Result<(), String> {
        let (server, own) = running(bench);
        let ours = workers + server.saturating_sub(self.server) + own.saturating_sub(self.own);
        let share = self.foreign.share(ours) * 100.0;
        let too_much = || format!("other processes took {share:.0} % of the processors");
        (share <= bench.settings.foreign).then_some(()).ok_or_else(too_much)
    }
}

/// Returns the CPU time of the server and of this process.
fn running(bench: &Bench<'_>) -> (u64, u64) {
    let server = bench.server_cpu().unwrap_or(0);
    (server, cpu::of_process(std::process::id()))
}
