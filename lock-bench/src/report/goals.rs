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
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{at}: {e}"))?;
        let goals: Self = toml::from_str(&text).map_err(|e| format!("{at}: {e}"))?;
        match goals.goal.iter().find(|goal| goal.max.is_none() && goal.min.is_none()) {
            None => Ok(goals),
            Some(goal) => Err(format!("{at}: the goal for {} has no max and no min", goal.figure)),
        }
    }

    /// One line for each goal that was not met. A figure that was not measured does not meet a goal,
    /// unless its whole workload was not asked for.
    pub(crate) fn failures(&self, rows: &[Row], was_asked: impl Fn(&str) -> bool) -> Vec<String> {
        let summary = Summary::of(rows);
        let asked = self.goal.iter().filter(|goal| was_asked(&goal.workload));
        asked.filter_map(|goal| goal.failure(&summary)).collect()
    }
}

impl Goal {
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
        let min = self.min.filter(|min| found < *min)?;
        Some(format!("{workload}, {lib}: {figure} is {found:.3}, below {min} ({promise})"))
    }
}
