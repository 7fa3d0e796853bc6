//! Recorded runs.

use std::path::Path;

use serde_json::{Value, json};

use super::Summary;
use super::summary::LibSummary;
use crate::model::{Figures, Row, Shape};

/// The keys that have to be equal if figures of two runs share a table.
const PLACE: [&str; 7] =
    ["cpu", "cpus", "machine", "profile", "server", "server_cpus", "worker_cpus"];

/// A run: its environment, and its measurements.
pub(super) struct Run {
    pub(super) environment: Value,
    pub(super) summary: Summary,
    rows: Vec<Row>,
}

/// The relation of a library to this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Floor,
    Ours,
    /// Our requests without our library.
    Bare,
    Other,
    Tuned,
}

impl Run {
    /// Reads all runs of a file, in which each begins with its environment.
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
        Ok(runs.into_iter().map(|(environment, rows)| Self::of(environment, rows)).collect())
    }

    fn of(environment: Value, rows: Vec<Row>) -> Self {
        Self { environment, summary: Summary::of(&rows), rows }
    }

    /// Merges the runs of each backend: the workloads of a later run replace those of earlier ones.
    /// Also returns a line for each figure that is lost by it.
    pub(super) fn merged(runs: Vec<Self>) -> Result<(Vec<Self>, Vec<String>), String> {
        let mut merged: Vec<Self> = Vec::new();
        let mut lost = Vec::new();
        for run in runs {
            match merged.iter_mut().find(|known| known.backend() == run.backend()) {
                None => merged.push(run),
                Some(known) => lost.extend(known.replace_workloads(run)?),
            }
        }
        Ok((merged, lost))
    }

    /// Replaces whole workloads, as a figure belongs to the floor and the libraries that were
    /// measured beside it.
    fn replace_workloads(&mut self, later: Self) -> Result<Vec<String>, String> {
        for key in PLACE {
            let (one, other) = (&self.environment[key], &later.environment[key]);
            if one != other {
                let backend = self.backend();
                return Err(format!("two runs of {backend}, whose {key} is {one} and {other}"));
            }
        }
        let mut order: Vec<String> = self.workloads().map(str::to_owned).collect();
        let again: Vec<String> = later.workloads().map(str::to_owned).collect();
        let lost = self.missing_from(&later);
        let is_whole = order.iter().all(|workload| again.contains(workload));
        order.extend(again.iter().filter(|new| !order.contains(new)).cloned().collect::<Vec<_>>());
        let mut environment = later.environment;
        if !is_whole {
            let mut known = std::mem::take(&mut self.environment);
            add_all(&mut known["others"], &mut environment["others"]);
            add_all(&mut known["peers"], &mut environment["peers"]);
            add_all(&mut known["again"], &mut json!(again));
            environment = known;
        }
        let mut rows = std::mem::take(&mut self.rows);
        rows.retain(|row| !again.contains(&row.workload));
        rows.extend(later.rows);
        rows.sort_by_key(|row| order.iter().position(|workload| *workload == row.workload));
        *self = Self::of(environment, rows);
        Ok(lost)
    }

    /// Lists the figures that the later run of a workload does not have.
    fn missing_from(&self, later: &Self) -> Vec<String> {
        let mut lost = Vec::new();
        let again =
            |workload: &&(String, Vec<LibSummary>)| later.workloads().any(|w| w == workload.0);
        for (workload, lines) in self.summary.workloads.iter().filter(again) {
            for line in lines {
                let is_lost = |name: &&str| later.summary.find(workload, &line.lib, name).is_none();
                let names = line.figures.iter().map(|(figure, _)| &*figure.name);
                let names: Vec<&str> = names.filter(is_lost).collect();
                if !names.is_empty() {
                    let (backend, lib, names) = (self.backend(), &line.lib, names.join(", "));
                    lost.push(format!(
                        "{backend}, {workload}, {lib}: left out, since the later run does not have it: {names}"
                    ));
                }
            }
        }
        lost
    }

    fn workloads(&self) -> impl Iterator<Item = &str> {
        self.summary.workloads.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the kinds of workloads that are from a later run than the rest.
    pub(super) fn again(&self) -> Vec<&str> {
        let titles = self.environment["again"].as_array().into_iter().flatten();
        let mut kinds: Vec<&str> =
            titles.filter_map(|title| title.as_str()?.split(' ').next()).collect();
        kinds.dedup();
        kinds
    }

    /// Returns the lines from which it was read.
    pub(super) fn lines(&self) -> String {
        let environment = serde_json::json!({ "environment": self.environment });
        let rows = self.rows.iter().map(|row| format!("{}\n", row.to_json()));
        format!("{environment}\n{}", rows.collect::<String>())
    }

    /// Returns fewer lines, without the points of pictures.
    ///
    /// They have the least, the median and the greatest value of all rounds, as tables show them.
    /// They can be read again.
    pub(super) fn compact(&self) -> String {
        let environment = json!({ "environment": self.environment });
        let mut text = format!("{environment}\n");
        for (workload, lines) in &self.summary.workloads {
            for line in lines {
                let mut rounds = [Figures::new(), Figures::new(), Figures::new()];
                for (figure, spread) in &line.figures {
                    let [median, least, greatest] =
                        [spread.median, spread.min, spread.max].map(six_digits);
                    rounds[0].insert(figure.clone(), median);
                    if least != greatest {
                        rounds[1].insert(figure.clone(), least);
                        rounds[2].insert(figure.clone(), greatest);
                    }
                }
                for (round, figures) in rounds.into_iter().enumerate() {
                    if !figures.is_empty() {
                        let row = Row::new(workload, &line.lib, round, figures);
                        text += &format!("{}\n", row.to_json());
                    }
                }
            }
        }
        text
    }

    pub(super) fn backend(&self) -> &str {
        self.environment["backend"].as_str().unwrap_or("unknown")
    }

    /// Returns the URL of the run: `quorum:5` for `quorum-5`.
    pub(super) fn url(&self) -> String {
        let (scheme, servers) = self.backend().split_once('-').unwrap_or((self.backend(), ""));
        format!("{scheme}:{servers}")
    }

    /// Returns the libraries of other projects.
    pub(super) fn others(&self) -> Vec<String> {
        let others = self.environment["others"].as_object();
        others.into_iter().flatten().map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn role(&self, lib: &str) -> Role {
        let is_other = self.environment["others"].get(lib).is_some();
        let is_by_hand = self.environment["peers"]
            .as_array()
            .is_some_and(|peers| peers.iter().any(|peer| peer.as_str() == Some(lib)));
        match lib {
            lib if lib.starts_with("locks") => Role::Ours,
            lib if lib.starts_with("bare-") => Role::Bare,
            lib if is_other && lib.contains(", ") => Role::Tuned,
            _ if is_other || is_by_hand => Role::Other,
            _ => Role::Floor,
        }
    }

    /// Returns the libraries, floors first and those of other projects last.
    pub(super) fn libs(&self, workload: &str) -> Vec<String> {
        let lines = self.summary.workloads.iter().find(|(name, _)| name == workload);
        let lines = lines.map(|(_, lines)| lines.as_slice()).unwrap_or_default();
        let mut libs: Vec<String> = lines.iter().map(|line| line.lib.clone()).collect();
        // A tuned one follows the same library with its defaults.
        libs.sort_by_key(|lib| match self.role(lib) {
            // In the order of measurement: the others are divided by the first one.
            Role::Floor => (0, String::new()),
            Role::Ours => (1, lib.clone()),
            Role::Bare => (2, String::new()),
            Role::Other | Role::Tuned => (3, lib.to_lowercase()),
        });
        libs
    }

    /// Finds the figure of the floor.
    pub(super) fn floor(&self, workload: &str, figure: &str) -> Option<super::summary::Spread> {
        let libs = self.libs(workload);
        let floor = libs.iter().find(|lib| self.role(lib) == Role::Floor)?;
        self.summary.find(workload, floor, figure)
    }

    /// Returns the points of pictures, of all rounds together.
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

/// Adds everything in `new` to `known`; lists keep their order.
fn add_all(known: &mut Value, new: &mut Value) {
    match (known, new) {
        (Value::Object(known), Value::Object(new)) => known.append(new),
        (Value::Array(known), Value::Array(new)) => {
            let more: Vec<Value> = new.iter().filter(|new| !known.contains(new)).cloned().collect();
            known.extend(more);
        }
        (known @ Value::Null, new) => *known = new.take(),
        _ => {}
    }
}

/// Rounds to six digits, more than any measurement has.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Figure;

    fn row(workload: &str, lib: &str, round: usize, value: f64) -> Row {
        let figures = Figures::from([(Figure::time("f"), value), (Figure::count("same"), 2.0)]);
        Row { shape: vec![[1.0, 2.0]], ..Row::new(workload, lib, round, figures) }
    }

    fn run(cpu: &str, rows: Vec<Row>) -> Run {
        Run::of(json!({ "backend": "redis", "cpu": cpu, "others": { cpu: "1" } }), rows)
    }

    fn median(run: &Run, workload: &str, lib: &str) -> Option<f64> {
        run.summary.find(workload, lib, "f").map(|spread| spread.median)
    }

    #[test]
    fn a_later_run_replaces_its_workloads() {
        let whole = vec![
            row("pairs c=1", "locks", 0, 1.0),
            row("pairs c=1", "theirs", 0, 2.0),
            row("idle", "locks", 0, 3.0),
        ];
        let again = vec![row("pairs c=1", "locks", 0, 5.0), row("pairs c=1", "locks", 1, 5.0)];
        let (runs, lost) = Run::merged(vec![run("a", whole), run("a", again)]).unwrap();
        let [run] = runs.as_slice() else { panic!("{} runs of one backend", runs.len()) };
        assert_eq!(median(run, "pairs c=1", "locks"), Some(5.0));
        assert_eq!(median(run, "idle", "locks"), Some(3.0));
        assert_eq!(median(run, "pairs c=1", "theirs"), None, "of another floor");
        let expected =
            "redis, pairs c=1, theirs: left out, since the later run does not have it: same, f";
        assert_eq!(lost, [expected]);
        assert_eq!(run.again(), ["pairs"]);
        assert_eq!(run.workloads().collect::<Vec<_>>(), ["pairs c=1", "idle"]);
    }

    #[test]
    fn runs_of_two_machines_are_not_merged() {
        let runs = ["a", "b"].map(|cpu| run(cpu, vec![row("idle", "locks", 0, 1.0)]));
        let why = Run::merged(runs.into()).err().unwrap();
        assert_eq!(why, "two runs of redis, whose cpu is \"a\" and \"b\"");
        let mut runs = ["a", "a"].map(|cpu| run(cpu, vec![row("idle", "locks", 0, 1.0)]));
        runs[1].environment["worker_cpus"] = json!([0]);
        let why = Run::merged(runs.into()).err().unwrap();
        assert_eq!(why, "two runs of redis, whose worker_cpus is null and [0]");
    }

    #[test]
    fn a_compact_run_has_the_same_tables() {
        let rounds = [9.0, 1.0, 3.0, 4.0].into_iter().enumerate();
        let rows = rounds.map(|(round, value)| row("idle", "locks", round, value)).collect();
        let whole = run("a", rows);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), whole.compact()).unwrap();
        let read = Run::read(file.path()).unwrap();
        assert_eq!(read[0].summary.to_string(), whole.summary.to_string());
        assert!(whole.summary.to_string().contains("3.5 (1–9)"), "{}", whole.summary);
        assert_eq!(whole.compact(), read[0].compact(), "however often it is read");
        assert!(whole.compact().len() < whole.lines().len());
    }
}
