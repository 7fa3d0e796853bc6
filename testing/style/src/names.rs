//! One type for each name of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::Modules;
use crate::{Finding, Project};

const LIST: &str = "names.toml";

/// The reason for each name that several types share, for each package.
type Shared = BTreeMap<String, BTreeMap<String, String>>;

/// Finds types of a crate that share a name without a reason for it.
///
/// Reasons stand in `names.toml`. A row of the glossary with the name in backticks in its first
/// column is one, too.
///
/// Types of one module that are there under different `cfg` are one, and so are those of tests and
/// of function bodies none. An entry of the list that is not needed any more is a finding.
pub fn names(project: &Project) -> Vec<Finding> {
    let known: Shared = project.known(LIST);
    let glossary: BTreeSet<String> = glossary(project);
    let mut found = Shared::new();
    let mut findings = Vec::new();
    for package in &project.packages {
        let Some(entry) = package.entry(project) else { continue };
        let mut types: BTreeMap<String, BTreeMap<String, (String, usize)>> = BTreeMap::new();
        for (key, module) in Modules::read(project, &entry).0 {
            for (name, file, line) in module.types {
                types.entry(name).or_default().insert(key.clone(), (file, line));
            }
        }
        types.retain(|name, places| places.len() > 1 && !glossary.contains(name));
        for (name, places) in types {
            let reason = known.get(&package.name).and_then(|known| known.get(&name));
            if reason.is_none() {
                let places: Vec<_> = places.into_values().collect();
                let others = places[1..].iter().map(|(file, line)| format!("{file}:{line}"));
                let others = others.collect::<Vec<_>>().join(", ");
                let message = format!(
                    "{} has another `{name}` at {others}; name each for its concept, or list it \
                     with the reason in {}",
                    package.name,
                    project.list(LIST)
                );
                findings.push(Finding::new(&places[0].0, places[0].1, message));
            }
            let reason = reason.cloned().unwrap_or_else(|| "to be renamed".to_owned());
            found.entry(package.name.clone()).or_default().insert(name, reason);
        }
    }
    if project.bless(LIST, &found) {
        return Vec::new();
    }
    for (package, names) in &known {
        for name in names.keys() {
            if found.get(package).is_none_or(|found| !found.contains_key(name)) {
                let message = format!("{package} has one `{name}` or none: delete it here");
                findings.push(Finding::new(&project.list(LIST), 1, message));
            }
        }
    }
    findings
}

/// Returns the names in backticks in the first columns of the glossary's tables.
fn glossary(project: &Project) -> BTreeSet<String> {
    let file = "docs/glossary.md";
    let text = if project.has(file) { project.read(file) } else { String::new() };
    let first = text.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    first.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}
