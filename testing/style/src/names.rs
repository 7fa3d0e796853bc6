//! One type for each name of a crate.

use std::collections::BTreeMap;

use crate::modules::Modules;
use crate::project::Exception;
use crate::{Finding, Project};

/// Finds types of a crate that share a name without a reason for it.
///
/// Reasons stand in `names.toml`. A row of the glossary with the name in backticks in its first
/// column is one, too. Types of one module under different `cfg` are one; types of tests and in
/// function bodies do not count.
pub fn names(project: &Project) -> Vec<Finding> {
    let glossary = project.read("docs/glossary.md");
    let cells = glossary.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    let concepts: Vec<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let mut found = Vec::new();
    for package in &project.packages {
        let mut types: BTreeMap<String, BTreeMap<String, (String, usize)>> = BTreeMap::new();
        for (key, module) in Modules::read(project, package).0 {
            for (name, file, line) in module.types {
                types.entry(name).or_default().insert(key.clone(), (file, line));
            }
        }
        types.retain(|name, places| places.len() > 1 && !concepts.contains(&name.as_str()));
        for (name, places) in types {
            let places: Vec<_> = places.into_values().collect();
            let others = places[1..].iter().map(|(file, line)| format!("{file}:{line}"));
            let message = format!(
                "{} has another `{name}`: {}; name each for its concept",
                package.name,
                others.collect::<Vec<_>>().join(", ")
            );
            let finding = Finding::new(&places[0].0, places[0].1, message);
            found.push(Exception {
                package: package.name.clone(),
                key: name,
                figure: 0.0,
                finding,
            });
        }
    }
    project.settle("names.toml", found)
}
