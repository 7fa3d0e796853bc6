//! The same files in every backend.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Finding, Project};

const LIST: &str = "backends.toml";
/// The crate that depends on all backends.
const FACADE: &str = "lock-any";
const CORE: &str = "lock-core";
/// `backend.rs` has fewer lines of code than this.
const LINES: usize = 150;
const FILES: [&[&str]; 5] = [
    &["backend.rs"],
    &["config.rs"],
    &["fault.rs"],
    &["keys.rs", "names.rs"],
    &["value.rs", "record.rs"],
];

/// How a backend differs from the others.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Deviation {
    /// The lines of code of its `backend.rs`, if they are too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

/// Finds backends without the usual files, and files `backend.rs` that hold more than the trait.
///
/// A backend is a crate that the facade depends on, other than core.
pub fn backends(project: &Project) -> Vec<Finding> {
    let known: BTreeMap<String, Deviation> = project.known(LIST);
    let mut found: BTreeMap<String, Deviation> = BTreeMap::new();
    let mut findings = Vec::new();
    let facade = project.packages.iter().find(|package| package.name == FACADE);
    let dependencies = facade.and_then(|facade| facade.manifest["dependencies"].as_table());
    for package in &project.packages {
        let of_facade = dependencies.is_some_and(|names| names.contains_key(&package.name));
        if !of_facade || package.name == CORE {
            continue;
        }
        let path = |file: &str| format!("{}/src/{file}", package.directory);
        let mut listed = known.get(&package.name).cloned().unwrap_or_default();
        let mut deviation = Deviation::default();
        for names in FILES {
            if !names.iter().any(|name| project.has(&path(name))) {
                deviation.missing.push(names.join(" or "));
                if !listed.missing.contains(&names.join(" or ")) {
                    let message = format!(
                        "{} has no such file, unlike other backends; move the code that belongs \
                         there",
                        package.name
                    );
                    findings.push(Finding::new(&path(names[0]), 1, message));
                }
            }
        }
        let file = path("backend.rs");
        let lines = if project.has(&file) { code_lines(&project.read(&file)) } else { 0 };
        if lines >= LINES {
            let limit = listed.lines.unwrap_or(LINES - 1);
            if lines > limit {
                let message = format!(
                    "{lines} lines of code are more than {limit}; move the work of a verb to a \
                     module of its own, and delegate"
                );
                findings.push(Finding::new(&file, 1, message));
            }
            deviation.lines = Some(lines.min(listed.lines.unwrap_or(lines)));
        }
        listed.missing.retain(|names| !deviation.missing.contains(names));
        if !listed.missing.is_empty() || (listed.lines.is_some() && deviation.lines != listed.lines)
        {
            let message = format!(
                "{} has improved: it has {}, and {lines} lines; write that here, or BLESS=1",
                package.name,
                if listed.missing.is_empty() {
                    "no new file".into()
                } else {
                    listed.missing.join(", ")
                },
            );
            findings.push(Finding::new(&project.list(LIST), 1, message));
        }
        if deviation != Deviation::default() {
            found.insert(package.name.clone(), deviation);
        }
    }
    if project.bless(LIST, &found) {
        return Vec::new();
    }
    for package in known.keys().filter(|package| !found.contains_key(*package)) {
        let message = format!("{package} is like the other backends now, or gone: delete it here");
        findings.push(Finding::new(&project.list(LIST), 1, message));
    }
    findings
}

/// Counts the lines that are neither blank nor comments nor tests.
fn code_lines(text: &str) -> usize {
    let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}
