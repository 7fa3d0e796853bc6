//! Ways to run a backend that need servers of their own, and whether their files have changed since
//! they passed last.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::report::Outcome;
use crate::run::Skip;

/// The contents of `testing/topologies.toml`.
#[derive(Deserialize)]
struct Table {
    topology: Vec<Topology>,
}

/// A way to run a backend.
#[derive(Debug, Deserialize)]
pub(crate) struct Topology {
    name: String,
    /// The files that matter most to it: a change of one calls for its tests.
    files: Vec<PathBuf>,
    /// Its tests, in the form of `--skip`.
    tests: Vec<String>,
    /// The digest of the files with which the tests passed last.
    passed: String,
    /// The digest of the files as they were read.
    #[serde(skip)]
    digest: String,
}

fn table() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../topologies.toml")
}

/// Reads the topologies whose tests are wanted, and those that are left out because their files
/// have not changed.
///
/// # Errors
///
/// The table, or a file that it names, cannot be read.
pub(crate) fn read(want_all: bool) -> Result<(Vec<Topology>, Vec<Topology>), String> {
    let text = fs::read_to_string(table()).map_err(|error| format!("topologies.toml: {error}"))?;
    let table: Table =
        toml::from_str(&text).map_err(|error| format!("topologies.toml: {error}"))?;
    let (mut wanted, mut unchanged) = (Vec::new(), Vec::new());
    for mut topology in table.topology {
        topology.digest = topology.digest_now()?;
        let has_changed = topology.digest != topology.passed;
        println!("{}: {}", topology.name, if has_changed { "to be tested" } else { "unchanged" });
        if want_all || has_changed { &mut wanted } else { &mut unchanged }.push(topology);
    }
    Ok((wanted, unchanged))
}

impl Topology {
    /// Returns the skips of its tests.
    ///
    /// # Errors
    ///
    /// One of its tests is not in the form of `--skip`.
    pub(crate) fn skips(&self) -> Result<Vec<Skip>, String> {
        let parse =
            |tests: &String| tests.parse().map_err(|error| format!("{}: {error}", self.name));
        self.tests.iter().map(parse).collect()
    }

    /// Returns the digest of its files as they are now.
    fn digest_now(&self) -> Result<String, String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = Command::new("git")
            .arg("hash-object")
            .args(&self.files)
            .current_dir(root)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("git: {error}"))?;
        let hashes = String::from_utf8_lossy(&output.stdout).into_owned();
        // The table shows that a file has changed, and not how: a part of each hash is enough.
        let parts = hashes.lines().map(|hash| &hash[..8]).collect::<Vec<_>>();
        match parts.len() == self.files.len() {
            true => Ok(parts.join(" ")),
            false => Err(format!("topology {}: one of its files is not there", self.name)),
        }
    }
}

/// Notes in the table with which files the topologies passed, if all their tests did.
///
/// # Errors
///
/// The table cannot be written.
pub(crate) fn record(tested: &[Topology], outcomes: &[Outcome]) -> Result<(), String> {
    let text = fs::read_to_string(table()).map_err(|error| format!("topologies.toml: {error}"))?;
    let mut new = text.clone();
    for topology in tested {
        let passed = |skip: &Skip| {
            let of_it = |outcome: &&Outcome| skip.program() == outcome.name;
            outcomes.iter().find(of_it).is_some_and(|outcome| outcome.passed)
        };
        if topology.skips()?.iter().all(passed) {
            let start = new.find(&format!("name = \"{}\"", topology.name)).unwrap_or_default();
            let (before, after) = new.split_at(start);
            let (old, digest) = (&topology.passed, &topology.digest);
            let after = after.replacen(
                &format!("passed = \"{old}\""),
                &format!("passed = \"{digest}\""),
                1,
            );
            new = format!("{before}{after}");
        }
    }
    if new != text {
        fs::write(table(), new).map_err(|error| format!("topologies.toml: {error}"))?;
        println!("testing/topologies.toml notes what has passed: commit it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most of these files exist for Sentinel and for clusters.
    #[test]
    fn each_file_of_redis_topologies_calls_for_tests() {
        let (mut topologies, unchanged) = read(true).unwrap();
        topologies.extend(unchanged);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for entry in fs::read_dir(root.join("lock-redis/src/topology")).unwrap() {
            let file = Path::new("lock-redis/src/topology").join(entry.unwrap().file_name());
            let is_listed = topologies.iter().any(|topology| topology.files.contains(&file));
            assert!(is_listed || file.ends_with("mod.rs"), "no topology has {}", file.display());
        }
    }
}
