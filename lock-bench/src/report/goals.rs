//! What the figures have to be: a file that CI compares with them.

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
    /// The median of all rounds must not be above it.
    max: Option<f64>,
    /// The median of all rounds must not be below it.
    min: Option<f64>,
    /// What users were promised.
    promise: String,
}

impl Goals {
    /// Reads a goals file. A goal that nothing could ever miss is an error, and so is one for a workload
    /// that is none of `workloads`: it would never be looked at.
    pub(crate) fn read(path: &Path, workloads: &[&str]) -> Result<Self, String> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{at}: {e}"))?;
        let goals: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        if goals.goal.is_empty() {
            return Err(format!("{at}: no goal in it"));
        }
        match goals.goal.iter().find_map(|goal| goal.fault(workloads)) {
            None => Ok(goals),
            Some(fault) => Err(format!("{at}: {fault}")),
        }
    }

    /// How many goals were looked at, and one line for each that was not met. A figure that was not
    /// measured does not meet a goal, unless its whole workload was not asked for.
    pub(crate) fn compare(
        &self,
        rows: &[Row],
        was_asked: impl Fn(&str) -> bool,
    ) -> (usize, Vec<String>) {
        let summary = Summary::of(rows);
        let asked: Vec<&Goal> =
            self.goal.iter().filter(|goal| was_asked(workload_of(&goal.workload))).collect();
        (asked.len(), asked.iter().filter_map(|goal| goal.failure(&summary)).collect())
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

    fn failure(&self, summary: &Summary) -> Option<String> {
        let Self { workload, lib, figure, promise, .. } = self;
        let Some(found) = summary.find(workload, lib, figure) else {
            return Some(format!("{workload}, {lib}: {figure} was not measured ({promise})"));
        };
        let found = found.median;
        if let Some(max) = self.max.filter(|max| found > *max || found.is_nan()) {
            return Some(format!(
                "{workload}, {lib}: {figure} is {found:.3}, above {max} ({promise})"
            ));
        }
        let min = self.min.filter(|min| found < *min || found.is_nan())?;
        Some(format!("{workload}, {lib}: {figure} is {found:.3}, below {min} ({promise})"))
    }
}
