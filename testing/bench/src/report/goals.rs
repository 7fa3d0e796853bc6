//! The goals of the figures: a file that CI compares with them.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use super::Summary;
use super::run::Run;
use crate::model::Row;

/// A goals file: any number of `[[goal]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Goals {
    goal: Vec<Goal>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
    workload: String,
    lib: String,
    figure: String,
    /// The figure is divided by that of this library. With `others`, it is divided by the best of
    /// all measured libraries of other projects.
    over: Option<String>,
    /// The median of all rounds must not be above it.
    max: Option<f64>,
    /// The median of all rounds must not be below it.
    min: Option<f64>,
    /// It needs times, or a crowd that takes long: `--exact` leaves it out.
    #[serde(default)]
    timed: bool,
    /// The value on a quiet machine, as recorded by `lock-bench report --goals`.
    measured: Option<f64>,
    /// The reason for a miss, with the numbers that show it. Such a goal does not fail a run. If
    /// some runs meet it, the text begins with [`SOMETIMES`].
    missed: Option<String>,
    /// The promise to users.
    promise: String,
}

/// The options of a run that select goals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Leaves out the goals that need times.
    pub(crate) exact: bool,
    /// Includes the locks of other projects.
    pub(crate) others: bool,
}

/// The result of the comparison with the goals.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) asked: usize,
    /// A line for each goal that was not met.
    pub(crate) not_met: Vec<String>,
    /// A line for each goal that was not met, as its file says.
    pub(crate) known: Vec<String>,
    /// A line for each goal that was met, although its file says that it is not. Machines differ,
    /// so this is not a failure.
    pub(crate) better: Vec<String>,
}

/// The figures of a run.
#[derive(Clone, Copy)]
struct RunFigures<'a> {
    summary: &'a Summary,
    /// Libraries of other projects.
    others: &'a [String],
}

/// The best library of other projects.
const OTHERS: &str = "others";

/// The prefix of the reason for a goal that some runs meet and others miss.
const SOMETIMES: &str = "sometimes";

/// The prefix of libraries that send our requests without our library. They take part in every run.
const BARE: &str = "bare-";

impl Goals {
    /// Reads a goals file.
    ///
    /// A goal that no figure could miss is an error. So is a goal for a workload that is not in
    /// `workloads`: it would never be checked.
    pub(crate) fn read(path: &Path, workloads: &[&str]) -> Result<Self, String> {
        let at = path.display();
        let goals = Self::read_any(path)?;
        match goals.goal.iter().find_map(|goal| goal.error(workloads)) {
            None => Ok(goals),
            Some(error) => Err(format!("{at}: {error}")),
        }
    }

    /// Reads a goals file, for any workloads.
    pub(super) fn read_any(path: &Path) -> Result<Self, String> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{at}: {e}"))?;
        let goals: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        if goals.goal.is_empty() {
            return Err(format!("{at}: no goal in it"));
        }
        Ok(goals)
    }

    /// Compares the figures with the goals. A figure that was not measured does not meet a goal,
    /// unless the run did not include its requirements.
    pub(crate) fn compare(
        &self,
        rows: &[Row],
        others: &[String],
        scope: Scope,
        is_selected: impl Fn(&str) -> bool,
    ) -> Outcome {
        let measured = RunFigures { summary: &Summary::of(rows), others };
        let mut outcome = Outcome::default();
        for goal in &self.goal {
            let is_out = (scope.exact && goal.timed) || (!scope.others && goal.needs_others());
            if is_out || !is_selected(workload_of(&goal.workload)) {
                continue;
            }
            outcome.asked += 1;
            match (goal.failure(measured), &goal.missed) {
                (None, None) => {}
                (None, Some(_)) if goal.is_met_sometimes() => {}
                (None, Some(_)) => outcome.better.push(goal.to_string()),
                (Some(failure), None) => outcome.not_met.push(failure),
                (Some(failure), Some(why)) => outcome.known.push(format!("{failure}: {why}")),
            }
        }
        outcome
    }

    /// Returns the text of a goals file with the measured values, and remarks.
    ///
    /// A remark names a figure that this run does not have, or a `missed` that is not true.
    pub(super) fn noted(
        &self,
        text: &str,
        summary: &Summary,
        others: &[String],
    ) -> (String, Vec<String>) {
        let measured = RunFigures { summary, others };
        let mut goals = self.goal.iter();
        let (mut noted, mut remarks) = (String::new(), Vec::new());
        let mut value = None;
        for line in text.lines() {
            if line.trim() == "[[goal]]" {
                let goal = goals.next();
                let found = goal.and_then(|goal| goal.value(measured));
                value = found.or(goal.and_then(|goal| goal.measured));
                remarks.extend(goal.and_then(|goal| match found {
                    Some(found) => goal.contradiction(found),
                    None => Some(goal.not_in_run()),
                }));
            }
            if line.starts_with("measured = ") {
                continue;
            }
            if let Some(value) = value.filter(|_| line.starts_with("promise = ")) {
                noted += &format!("measured = {value:.3}\n");
            }
            noted += &format!("{line}\n");
        }
        (noted, remarks)
    }

    /// Returns why our figure is worse than that of `rival`: the reason of the goal that compares
    /// both, or else of that for the figure alone.
    pub(super) fn why_missed(&self, workload: &str, figure: &str, rival: &str) -> Option<&str> {
        let is_meant = |goal: &&Goal| goal.workload == workload && goal.lib == "locks";
        let over = |goal: &Goal| match goal.over.as_deref() {
            Some(over) => (over == OTHERS || over == rival) && goal.figure == figure,
            None => false,
        };
        // `p50 × floor` is of the same times as `p50 µs`.
        let alone = |goal: &Goal| {
            let stem = goal.figure.strip_suffix(" × floor").unwrap_or(&goal.figure);
            goal.over.is_none() && figure.starts_with(stem)
        };
        let with = |is: &dyn Fn(&Goal) -> bool| {
            let mut goals = self.goal.iter().filter(is_meant).filter(|goal| is(goal));
            goals.find_map(|goal| goal.missed.as_deref())
        };
        with(&over).or_else(|| with(&alone))
    }
}

/// A goals file, beside the run of its backend.
pub(super) struct GoalsFile<'a> {
    pub(super) path: &'a Path,
    pub(super) backend: &'a str,
    pub(super) goals: Goals,
    /// The text with the measured values of the run.
    pub(super) text: String,
    /// Contradictions between the file and the run.
    pub(super) remarks: Vec<String>,
}

impl<'a> GoalsFile<'a> {
    pub(super) fn of(path: &'a Path, runs: &[Run]) -> Result<Self, String> {
        let backend = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let run = runs.iter().find(|run| run.backend() == backend);
        let run = run.ok_or_else(|| format!("{}: no run of that backend", path.display()))?;
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let goals = Goals::read_any(path)?;
        let (text, remarks) = goals.noted(&text, &run.summary, &run.others());
        Ok(Self { path, backend, goals, text, remarks })
    }
}

/// Returns the name of the workload in `pairs c=64`.
fn workload_of(title: &str) -> &str {
    title.split(' ').next().unwrap_or_default()
}

impl Goal {
    /// Returns why this goal is invalid.
    fn error(&self, workloads: &[&str]) -> Option<String> {
        let Self { workload, figure, max, min, .. } = self;
        if !workloads.contains(&workload_of(workload)) {
            return Some(format!(
                "no workload {workload:?}; they begin with {}",
                workloads.join(", ")
            ));
        }
        if max.is_none() && min.is_none() {
            return Some(format!("the goal for {figure} has no max and no min"));
        }
        let is_number = |bound: &Option<f64>| bound.is_none_or(f64::is_finite);
        let numbers = is_number(max) && is_number(min);
        (!numbers).then(|| format!("the goal for {figure} has a bound that is no number"))
    }

    /// Returns whether the locks of other projects have to be measured for it.
    fn needs_others(&self) -> bool {
        self.over.as_ref().is_some_and(|over| !over.starts_with(BARE))
    }

    fn is_met_sometimes(&self) -> bool {
        self.missed.as_ref().is_some_and(|why| why.starts_with(SOMETIMES))
    }

    /// Returns the contradiction between a measured value and the text of the goal.
    fn contradiction(&self, measured: f64) -> Option<String> {
        match (self.violation(measured), &self.missed) {
            (None, Some(_)) if !self.is_met_sometimes() => Some(format!(
                "{self} is {measured:.3}, which is met: delete `missed`, or begin it with \"{SOMETIMES}\" and say when"
            )),
            (Some((side, bound)), None) => {
                Some(format!("{self} is {measured:.3}, {side} {bound}, and no `missed` says why"))
            }
            _ => None,
        }
    }

    /// Reports that a run did not have the figure.
    fn not_in_run(&self) -> String {
        match self.measured {
            Some(old) => {
                format!(
                    "{self} is not in this run: {old:.3} is left, which an earlier one has measured"
                )
            }
            None => format!("{self} is not in this run, nor in any before"),
        }
    }

    fn value(&self, measured: RunFigures<'_>) -> Option<f64> {
        let of = |lib: &str| Some(measured.summary.find(&self.workload, lib, &self.figure)?.median);
        match self.over.as_deref() {
            None => of(&self.lib),
            Some(OTHERS) => {
                // A library that breaks leases does not count as fast.
                let breaks = |lib: &&String| measured.summary.breaks_leases(&self.workload, lib);
                let theirs = measured.others.iter().filter(|lib| !breaks(lib));
                let theirs = theirs.filter_map(|lib| of(lib));
                let best = if self.max.is_some() { f64::min } else { f64::max };
                Some(of(&self.lib)? / theirs.reduce(best)?)
            }
            Some(other) => Some(of(&self.lib)? / of(other)?),
        }
    }

    fn failure(&self, measured: RunFigures<'_>) -> Option<String> {
        let promise = &self.promise;
        let Some(found) = self.value(measured) else {
            return Some(format!("{self} was not measured ({promise})"));
        };
        let (side, bound) = self.violation(found)?;
        Some(format!("{self} is {found:.3}, {side} {bound} ({promise})"))
    }

    /// Returns the bound that a value violates, and the side.
    fn violation(&self, found: f64) -> Option<(&'static str, f64)> {
        let is_missed = |bound: f64, is_wrong: bool| (is_wrong || found.is_nan()).then_some(bound);
        let above = self.max.and_then(|max| is_missed(max, found > max)).map(|max| ("above", max));
        let below = self.min.and_then(|min| is_missed(min, found < min)).map(|min| ("below", min));
        above.or(below)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, lib, figure, .. } = self;
        let over = self.over.as_ref().map(|other| format!(" over {other}")).unwrap_or_default();
        write!(f, "{workload}, {lib}{over}: {figure}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Figure, Figures};

    const FILE: &str = "# Words\n[[goal]]\nworkload = \"pairs c=1\"\nlib = \"locks\"\nfigure = \"f\"\n\
        over = \"theirs\"\nmax = 0.5\nmeasured = 9.000\npromise = \"half\"\n";

    const ALL: Scope = Scope { exact: false, others: true };

    fn rows() -> Vec<Row> {
        let figures = |value| Figures::from([(Figure::count("f"), value)]);
        let row = |lib, value| Row::new("pairs c=1", lib, 0, figures(value));
        vec![row("locks", 3.0), row("theirs", 4.0), row("another", 6.0), row("floor", 1.0)]
    }

    fn others() -> Vec<String> {
        ["theirs", "another", "not measured"].map(str::to_owned).into()
    }

    fn outcome(text: &str, scope: Scope) -> Outcome {
        let goals: Goals = toml::from_str(text).unwrap();
        goals.compare(&rows(), &others(), scope, |_| true)
    }

    #[test]
    fn a_figure_is_divided_by_that_of_another_library() {
        let missed = outcome(FILE, ALL);
        let expected = "pairs c=1, locks over theirs: f is 0.750, above 0.5 (half)";
        assert_eq!(missed.not_met, [expected]);
        assert!(outcome(&FILE.replace("0.5", "0.8"), ALL).not_met.is_empty());
        assert_eq!(outcome(FILE, Scope { others: false, ..ALL }).asked, 0);
    }

    #[test]
    fn a_figure_is_divided_by_the_best_of_the_others() {
        let over_others = FILE.replace("theirs", "others");
        let missed = outcome(&over_others, ALL).not_met;
        assert!(missed[0].contains("locks over others: f is 0.750"), "the least: {missed:?}");
        let missed = outcome(&over_others.replace("max = 0.5", "min = 1.0"), ALL).not_met;
        assert!(missed[0].contains("f is 0.500, below 1"), "the most: {missed:?}");
        let nobody = over_others.replace("c=1", "c=2");
        assert!(outcome(&nobody, ALL).not_met[0].contains("was not measured"));
    }

    #[test]
    fn a_met_goal_with_an_excuse_is_reported() {
        let text = FILE.replace("0.5", "0.8").replace("promise", "missed = \"then\"\npromise");
        let outcome = outcome(&text, ALL);
        assert!(outcome.not_met.is_empty() && outcome.known.is_empty());
        assert_eq!(outcome.better, ["pairs c=1, locks over theirs: f"]);
    }

    #[test]
    fn an_explained_miss_is_reported_and_does_not_fail() {
        let text = FILE.replace("promise", "missed = \"for a reason\"\npromise");
        let outcome = outcome(&text, ALL);
        assert!(outcome.not_met.is_empty());
        assert!(outcome.known[0].ends_with("(half): for a reason"), "{outcome:?}");
    }

    #[test]
    fn an_exact_run_skips_timed_goals() {
        let text = FILE.replace("promise", "timed = true\npromise");
        assert_eq!(outcome(&text, Scope { exact: true, ..ALL }).asked, 0);
        assert_eq!(outcome(&text, ALL).asked, 1);
    }

    #[test]
    fn a_goal_missed_sometimes_is_not_reported_when_met() {
        let missed = "missed = \"sometimes: then\"\npromise";
        let text = FILE.replace("0.5", "0.8").replace("promise", missed);
        let outcome = outcome(&text, ALL);
        assert!(outcome.not_met.is_empty() && outcome.known.is_empty());
        assert!(outcome.better.is_empty());
    }

    #[test]
    fn bare_requests_need_no_other_projects() {
        let text = FILE.replace("theirs", "bare-redis");
        assert_eq!(outcome(&text, Scope { others: false, ..ALL }).asked, 1);
    }

    #[test]
    fn a_library_that_breaks_leases_is_not_the_best() {
        let row = |lib, late, early| {
            let early = (Figure::count("takeovers too early"), early);
            let figures = Figures::from([(Figure::time("late p50 ms"), late), early]);
            Row::new("killed", lib, 0, figures)
        };
        let rows = [row("locks", 8.0, 0.0), row("theirs", 0.5, 1.0), row("another", 4.0, 0.0)];
        let text = FILE.replace("pairs c=1", "killed").replace("\"f\"", "\"late p50 ms\"");
        let goals: Goals = toml::from_str(&text.replace("theirs", "others")).unwrap();
        let measured = RunFigures { summary: &Summary::of(&rows), others: &others() };
        assert_eq!(goals.goal[0].value(measured), Some(2.0));
    }

    #[test]
    fn only_measured_values_change_in_the_file() {
        let goals: Goals = toml::from_str(FILE).unwrap();
        let (noted, remarks) = goals.noted(FILE, &Summary::of(&rows()), &others());
        assert_eq!(noted, FILE.replace("measured = 9.000", "measured = 0.750"));
        let expected =
            "pairs c=1, locks over theirs: f is 0.750, above 0.5, and no `missed` says why";
        assert_eq!(remarks, [expected]);
        let (nothing, remarks) = goals.noted(FILE, &Summary::of(&[]), &others());
        assert_eq!(nothing, FILE, "a figure that was not measured stays");
        assert!(remarks[0].contains("is not in this run: 9.000 is left"), "{remarks:?}");
    }

    /// An entry that disables a gate has to be true.
    #[test]
    fn the_goals_files_excuse_only_misses() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("goals");
        let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        let mut wrong = Vec::new();
        for file in files {
            let goals = Goals::read_any(&file).unwrap();
            let contradictions = goals.goal.iter().filter_map(|goal| {
                goal.contradiction(goal.measured?).map(|why| format!("{}: {why}", file.display()))
            });
            wrong.extend(contradictions);
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn the_reason_is_from_the_goal_that_compares_both() {
        let goal = |over: &str, figure: &str, why: &str| {
            let over = if over.is_empty() { String::new() } else { format!("over = '{over}'\n") };
            format!(
                "[[goal]]\nworkload = 'w'\nlib = 'locks'\nfigure = '{figure}'\n{over}max = 1\n\
                 missed = '{why}'\npromise = 'p'\n"
            )
        };
        let text = goal("", "p50 × floor", "alone")
            + &goal("another", "p50 µs", "of another")
            + &goal("others", "p50 µs", "compared");
        let goals: Goals = toml::from_str(&text).unwrap();
        assert_eq!(goals.why_missed("w", "p50 µs", "theirs"), Some("compared"));
        assert_eq!(goals.why_missed("w", "p99 µs", "theirs"), None);
        let goals: Goals = toml::from_str(&goal("", "p50 × floor", "alone")).unwrap();
        assert_eq!(goals.why_missed("w", "p50 µs", "theirs"), Some("alone"));
    }
}
