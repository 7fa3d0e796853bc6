//! What the figures have to be: a file that CI compares with them.

use std::fmt;
use std::path::Path;

use serde::Deserialize;

use super::{Row, Summary};

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
    /// Divided by the same figure of this one; of `others`, by the best of all of other projects that were measured there.
    over: Option<String>,
    /// The median of all rounds must not be above it.
    max: Option<f64>,
    /// The median of all rounds must not be below it.
    min: Option<f64>,
    /// It needs times, or a crowd that takes long: `--exact` leaves it out.
    #[serde(default)]
    timed: bool,
    /// What it was when somebody measured on a quiet machine and noted it, with `lock-bench report --goals`.
    measured: Option<f64>,
    /// Why it is missed, with the numbers that say so. Such a goal does not fail a run.
    missed: Option<String>,
    /// What users were promised.
    promise: String,
}

/// What a run was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Nothing that needs times.
    pub(crate) exact: bool,
    /// The locks of other projects, too.
    pub(crate) others: bool,
}

/// What came of the goals that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) asked: usize,
    /// A line for each that was not met.
    pub(crate) not_met: Vec<String>,
    /// A line for each that was not met, as its file says.
    pub(crate) known: Vec<String>,
    /// A line for each that was met, although its file says that it is not. Machines differ, so that is no failure.
    pub(crate) better: Vec<String>,
}

/// Where the figures of a run are found.
#[derive(Clone, Copy)]
struct Measured<'a> {
    summary: &'a Summary,
    /// Libraries of other projects.
    others: &'a [String],
}

/// Whoever of other projects is best.
const OTHERS: &str = "others";

impl Goals {
    /// Reads a goals file. A goal that nothing could ever miss is an error, and so is one for a workload
    /// that is none of `workloads`: it would never be looked at.
    pub(crate) fn read(path: &Path, workloads: &[&str]) -> Result<Self, String> {
        let at = path.display();
        let goals = Self::read_any(path)?;
        match goals.goal.iter().find_map(|goal| goal.fault(workloads)) {
            None => Ok(goals),
            Some(fault) => Err(format!("{at}: {fault}")),
        }
    }

    /// The same for whatever workloads there are.
    pub(super) fn read_any(path: &Path) -> Result<Self, String> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{at}: {e}"))?;
        let goals: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        if goals.goal.is_empty() {
            return Err(format!("{at}: no goal in it"));
        }
        Ok(goals)
    }

    /// A figure that was not measured does not meet a goal, unless what it needs was not asked for.
    pub(crate) fn compare(
        &self,
        rows: &[Row],
        others: &[String],
        scope: Scope,
        was_asked: impl Fn(&str) -> bool,
    ) -> Outcome {
        let measured = Measured { summary: &Summary::of(rows), others };
        let mut outcome = Outcome::default();
        for goal in &self.goal {
            let is_out = (scope.exact && goal.timed) || (!scope.others && goal.over.is_some());
            if is_out || !was_asked(workload_of(&goal.workload)) {
                continue;
            }
            outcome.asked += 1;
            match (goal.failure(measured), &goal.missed) {
                (None, None) => {}
                (None, Some(_)) => outcome.better.push(goal.to_string()),
                (Some(failure), None) => outcome.not_met.push(failure),
                (Some(failure), Some(why)) => outcome.known.push(format!("{failure}: {why}")),
            }
        }
        outcome
    }

    /// The text of a goals file, with what was measured noted in it.
    pub(super) fn noted(&self, text: &str, summary: &Summary, others: &[String]) -> String {
        let measured = Measured { summary, others };
        let mut goals = self.goal.iter();
        let mut noted = String::new();
        let mut value = None;
        for line in text.lines() {
            if line.trim() == "[[goal]]" {
                value = goals.next().and_then(|goal| goal.value(measured).or(goal.measured));
            }
            if line.starts_with("measured = ") {
                continue;
            }
            if let Some(value) = value.filter(|_| line.starts_with("promise = ")) {
                noted += &format!("measured = {value:.3}\n");
            }
            noted += &format!("{line}\n");
        }
        noted
    }
}

/// The name of the workload in `pairs c=64`.
fn workload_of(title: &str) -> &str {
    title.split(' ').next().unwrap_or_default()
}

impl Goal {
    /// Why it is none.
    fn fault(&self, workloads: &[&str]) -> Option<String> {
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

    fn value(&self, measured: Measured<'_>) -> Option<f64> {
        let of = |lib: &str| Some(measured.summary.find(&self.workload, lib, &self.figure)?.median);
        match self.over.as_deref() {
            None => of(&self.lib),
            Some(OTHERS) => {
                let theirs = measured.others.iter().filter_map(|lib| of(lib));
                let best = if self.max.is_some() { f64::min } else { f64::max };
                Some(of(&self.lib)? / theirs.reduce(best)?)
            }
            Some(other) => Some(of(&self.lib)? / of(other)?),
        }
    }

    fn failure(&self, measured: Measured<'_>) -> Option<String> {
        let promise = &self.promise;
        let Some(found) = self.value(measured) else {
            return Some(format!("{self} was not measured ({promise})"));
        };
        let is_missed = |bound: f64, is_wrong: bool| (is_wrong || found.is_nan()).then_some(bound);
        let above = self.max.and_then(|max| is_missed(max, found > max)).map(|max| ("above", max));
        let below = self.min.and_then(|min| is_missed(min, found < min)).map(|min| ("below", min));
        let (side, bound) = above.or(below)?;
        Some(format!("{self} is {found:.3}, {side} {bound} ({promise})"))
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
    use crate::report::{Figure, Figures};

    const FILE: &str = "# Words\n[[goal]]\nworkload = \"pairs c=1\"\nlib = \"locks\"\nfigure = \"f\"\n\
        over = \"theirs\"\nmax = 0.5\nmeasured = 9.000\npromise = \"half\"\n";

    fn rows() -> Vec<Row> {
        let row = |lib: &str, value: f64| Row {
            workload: "pairs c=1".into(),
            lib: lib.into(),
            round: 0,
            figures: Figures::from([(Figure::count("f"), value)]),
            shape: Vec::new(),
        };
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
        let scope = Scope { exact: false, others: true };
        let missed = outcome(FILE, scope);
        let expected = "pairs c=1, locks over theirs: f is 0.750, above 0.5 (half)";
        assert_eq!(missed.not_met, [expected]);
        assert!(outcome(&FILE.replace("0.5", "0.8"), scope).not_met.is_empty());
        assert_eq!(outcome(FILE, Scope { others: false, ..scope }).asked, 0);
    }

    #[test]
    fn a_figure_is_divided_by_the_best_of_the_others() {
        let scope = Scope { exact: false, others: true };
        let over_others = FILE.replace("theirs", "others");
        let missed = outcome(&over_others, scope).not_met;
        assert!(missed[0].contains("locks over others: f is 0.750"), "the least: {missed:?}");
        let missed = outcome(&over_others.replace("max = 0.5", "min = 1.0"), scope).not_met;
        assert!(missed[0].contains("f is 0.500, below 1"), "the most: {missed:?}");
        let nobody = over_others.replace("c=1", "c=2");
        assert!(outcome(&nobody, scope).not_met[0].contains("was not measured"));
    }

    #[test]
    fn a_miss_that_is_none_is_told_and_fails_nothing() {
        let text = FILE.replace("0.5", "0.8").replace("promise", "missed = \"then\"\npromise");
        let outcome = outcome(&text, Scope { exact: false, others: true });
        assert!(outcome.not_met.is_empty() && outcome.known.is_empty());
        assert_eq!(outcome.better, ["pairs c=1, locks over theirs: f"]);
    }

    #[test]
    fn a_miss_that_is_explained_fails_nothing_and_is_told() {
        let text = FILE.replace("promise", "missed = \"for a reason\"\npromise");
        let outcome = outcome(&text, Scope { exact: false, others: true });
        assert!(outcome.not_met.is_empty());
        assert!(outcome.known[0].ends_with("(half): for a reason"), "{outcome:?}");
    }

    #[test]
    fn what_needs_times_is_no_goal_of_an_exact_run() {
        let text = FILE.replace("promise", "timed = true\npromise");
        assert_eq!(outcome(&text, Scope { exact: true, others: true }).asked, 0);
        assert_eq!(outcome(&text, Scope { exact: false, others: true }).asked, 1);
    }

    #[test]
    fn what_was_measured_is_noted_and_the_rest_is_left() {
        let goals: Goals = toml::from_str(FILE).unwrap();
        let noted = goals.noted(FILE, &Summary::of(&rows()), &others());
        assert_eq!(noted, FILE.replace("measured = 9.000", "measured = 0.750"));
        let nothing = goals.noted(FILE, &Summary::of(&[]), &others());
        assert_eq!(nothing, FILE, "what was not measured stays");
    }
}
