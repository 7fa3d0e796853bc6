//! What a run has written, read again.

use std::path::Path;

use serde_json::Value;

use super::{Row, Shape, Summary};

/// A run: its environment, and what it measured.
pub(super) struct Run {
    pub(super) environment: Value,
    pub(super) summary: Summary,
    rows: Vec<Row>,
}

/// Whose a library is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Floor,
    Ours,
    /// Our requests without the rest of us.
    Bare,
    Other,
    Tuned,
}

impl Run {
    /// All runs in the files, in which each begins with its environment.
    pub(super) fn read(path: &Path) -> Result<Vec<Self>, String> {
        let at = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{at}: {e}"))?;
        let mut runs: Vec<(Value, Vec<Row>)> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line: Value =
                serde_json::from_str(line).map_err(|e| format!("{at}, line {}: {e}", i + 1))?;
            match (line.get("environment"), Row::from_json(&line), runs.last_mut()) {
                (Some(environment), _, _) => runs.push((environment.clone(), Vec::new())),
                (None, Some(row), Some((_, rows))) => rows.push(row),
                _ => {
                    return Err(format!(
                        "{at}, line {}: no line of `lock-bench run --json`",
                        i + 1
                    ));
                }
            }
        }
        let of = |(environment, rows): (Value, Vec<Row>)| Self {
            environment,
            summary: Summary::of(&rows),
            rows,
        };
        Ok(runs.into_iter().map(of).collect())
    }

    /// The lines that it was read from.
    pub(super) fn lines(&self) -> String {
        let environment = serde_json::json!({ "environment": self.environment });
        let rows = self.rows.iter().map(|row| format!("{}\n", row.to_json()));
        format!("{environment}\n{}", rows.collect::<String>())
    }

    pub(super) fn backend(&self) -> &str {
        self.environment["backend"].as_str().unwrap_or("unknown")
    }

    /// What was run: `quorum:5` for `quorum-5`.
    pub(super) fn url(&self) -> String {
        let (scheme, servers) = self.backend().split_once('-').unwrap_or((self.backend(), ""));
        format!("{scheme}:{servers}")
    }

    /// The libraries of other projects.
    pub(super) fn others(&self) -> Vec<String> {
        let others = self.environment["others"].as_object();
        others.into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn side(&self, lib: &str) -> Side {
        let is_other = self.environment["others"].get(lib).is_some();
        let is_by_hand = self.environment["peers"]
            .as_array()
            .is_some_and(|peers| peers.iter().any(|peer| peer.as_str() == Some(lib)));
        match lib {
            lib if lib.starts_with("locks") => Side::Ours,
            lib if lib.starts_with("bare-") => Side::Bare,
            lib if is_other && lib.contains(", ") => Side::Tuned,
            _ if is_other || is_by_hand => Side::Other,
            _ => Side::Floor,
        }
    }

    /// Who took part, floors first and those of others last.
    pub(super) fn libs(&self, workload: &str) -> Vec<String> {
        let lines = self.summary.workloads.iter().find(|(name, _)| name == workload);
        let lines = lines.map(|(_, lines)| lines.as_slice()).unwrap_or_default();
        let mut libs: Vec<String> = lines.iter().map(|line| line.lib.clone()).collect();
        // A tuned one behind the same as it comes.
        libs.sort_by_key(|lib| match self.side(lib) {
            // In the order in which they were measured: the first one is what the others are divided by.
            Side::Floor => (0, String::new()),
            Side::Ours => (1, lib.clone()),
            Side::Bare => (2, String::new()),
            Side::Other | Side::Tuned => (3, lib.to_lowercase()),
        });
        libs
    }

    /// The figure of the floor.
    pub(super) fn floor(&self, workload: &str, figure: &str) -> Option<super::summary::Spread> {
        let libs = self.libs(workload);
        let floor = libs.iter().find(|lib| self.side(lib) == Side::Floor)?;
        self.summary.find(workload, floor, figure)
    }

    /// What pictures show, of all rounds together.
    pub(super) fn shape(&self, workload: &str, lib: &str) -> Shape {
        let rows = self.rows.iter().filter(|row| row.workload == workload && row.lib == lib);
        let mut points: Shape = rows.flat_map(|row| row.shape.iter().copied()).collect();
        if workload.starts_with("crowd") {
            return points;
        }
        points.sort_by(|one, other| one[0].total_cmp(&other[0]));
        points.dedup_by(|next, kept| {
            let is_same = next[0] == kept[0];
            kept[1] += if is_same { next[1] } else { 0.0 };
            is_same
        });
        points
    }
}
