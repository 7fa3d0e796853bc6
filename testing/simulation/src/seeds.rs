//! Many runs, one after the other on each core, with their totals.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Run, Tally};
use lock_history::Line;

/// The number of illegal runs after which the search stops.
const ENOUGH: usize = 5;

/// The seeds of a test, which environment variables override. `SIMULATION_SEED` replays one run.
/// `SIMULATION_RUNS` sets the number of runs, and `SIMULATION_FROM` their first seed, so that many
/// can be done in parts.
#[derive(Clone, Debug)]
pub struct Seeds {
    seeds: Range<u64>,
    is_chosen: bool,
    /// The arguments of `cargo test` that run the test.
    test: &'static str,
}

impl Seeds {
    /// Returns the seeds of a test: `usually` runs, unless the environment overrides that. `test`
    /// holds the arguments of `cargo test` that run it.
    ///
    /// # Panics
    ///
    /// One of the variables is no number.
    #[must_use]
    pub fn of_test(test: &'static str, usually: u64) -> Self {
        let from = variable("SIMULATION_FROM").unwrap_or(0);
        let runs = variable("SIMULATION_RUNS");
        let (seeds, is_chosen) = match variable("SIMULATION_SEED") {
            Some(seed) => (seed..seed + 1, true),
            None => (from..from + runs.unwrap_or(usually), runs.is_some()),
        };
        Self { seeds, is_chosen, test }
    }

    /// Returns true if the environment chose the seeds. Then events that many runs show may be
    /// absent.
    #[must_use]
    pub fn are_chosen(&self) -> bool {
        self.is_chosen
    }

    /// Makes the runs, until too many of them are illegal. An illegal history is kept in a file.
    ///
    /// # Panics
    ///
    /// `simulate` does, or a history cannot be written.
    pub fn run(&self, simulate: impl Fn(u64) -> Run + Sync) -> Summary {
        let sum = Mutex::<Summary>::default();
        search(self.seeds.clone(), |seed| {
            let run = simulate(seed);
            let mut sum = sum.lock().expect("no run panics here");
            sum.add(&run, self.test);
            (sum.illegal.len() >= ENOUGH).then_some(())
        });
        sum.into_inner().expect("no run panics here")
    }
}

/// Returns the first result of `look`, on all cores, trying the seeds in their order.
///
/// # Panics
///
/// `look` does.
pub fn search<T: Send>(seeds: Range<u64>, look: impl Fn(u64) -> Option<T> + Sync) -> Option<T> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(None);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            if let Some(it) = look(seed) {
                next.store(seeds.end, Ordering::Relaxed);
                found.lock().expect("no run panics here").get_or_insert(it);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    found.into_inner().expect("no run panics here")
}

/// The totals of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    runs: u64,
    operations: usize,
    grants: usize,
    hand_offs: usize,
    violations: u64,
    tally: Tally,
    illegal: Vec<String>,
}

impl Summary {
    /// Asserts that all runs were legal.
    ///
    /// # Panics
    ///
    /// A run was illegal: the message has its seed, the violations, and the command that replays
    /// it.
    pub fn assert_legal(&self) {
        assert!(self.illegal.is_empty(), "{}", self.illegal.join("\n"));
    }

    /// Returns how often an event happened in all runs.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.tally.pairs().filter(|pair| pair.0 == what).map(|pair| pair.2).sum()
    }

    fn add(&mut self, run: &Run, test: &str) {
        let report = &run.report;
        self.runs += 1;
        self.operations += report.operations;
        self.grants += report.grants;
        self.hand_offs += report.hand_offs.count;
        self.violations += report.broken.values().sum::<u64>();
        self.tally.add(&run.tally);
        if !report.is_legal() {
            let (path, seed) = (kept(run), run.seed);
            self.illegal.push(format!(
                "{run}\nrecorded in {}\nreplay it with:\n  SIMULATION_SEED={seed} cargo test {test}\n",
                path.display()
            ));
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, operations, grants, hand_offs, violations, .. } = self;
        writeln!(
            f,
            "{runs} runs, {operations} operations, {grants} grants, {hand_offs} hand-offs, {violations} violations"
        )?;
        for (what, verb, count) in self.tally.pairs() {
            writeln!(f, "{what:>35} {verb:<11} {count}")?;
        }
        Ok(())
    }
}

/// Writes the whole history to a file, for check-history and for reading.
fn kept(run: &Run) -> PathBuf {
    let Run { seed, lines, .. } = run;
    let backend = lines.first().and_then(|line| match line {
        Line::Header(header) => Some(&*header.backend),
        _ => None,
    });
    let backend = backend.unwrap_or_default();
    let path = std::env::temp_dir().join(format!("simulation-{backend}-{seed}.jsonl"));
    let text: String = lines.iter().map(Line::to_json).collect();
    std::fs::write(&path, text).expect("the history can be written");
    path
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}
