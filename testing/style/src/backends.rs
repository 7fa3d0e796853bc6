//! The same files in every backend.

use crate::project::Exception;
use crate::{Finding, Project};

/// The crate that depends on all backends.
const FACADE: &str = "lock-any";
const CORE: &str = "lock-core";
/// `backend.rs` has fewer lines of code than this.
const LINES: usize = 150;
/// The files of each backend; one of each line is enough.
const FILES: [&[&str]; 5] = [
    &["backend.rs"],
    &["config.rs"],
    &["fault.rs"],
    &["keys.rs", "names.rs"],
    &["value.rs", "record.rs"],
];

/// Finds backends without the usual files, and files `backend.rs` that hold more than the trait.
///
/// A backend is a crate that the facade depends on, other than core.
pub fn backends(project: &Project) -> Vec<Finding> {
    let facade = &project.package(FACADE).manifest["dependencies"];
    let mut found = Vec::new();
    for package in &project.packages {
        if facade.get(&package.name).is_none() || package.name == CORE {
            continue;
        }
        let path = |file: &str| format!("{}/src/{file}", package.directory);
        let mut add = |key: String, figure: usize, message: &str| {
            let finding =
                Finding::new(&path(key.split(' ').next().unwrap_or("")), 1, message.into());
            let package = package.name.clone();
            found.push(Exception { package, key, figure: figure as f64, finding });
        };
        for names in FILES {
            if !names.iter().any(|name| project.has(&path(name))) {
                let message = "is missing, unlike in other backends; move there what belongs there";
                add(names.join(" or "), 0, message);
            }
        }
        if project.has(&path("backend.rs")) {
            let text = project.read(&path("backend.rs"));
            // Neither blanks nor comments nor tests.
            let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//")).count();
            if lines >= LINES {
                let message = format!(
                    "{lines} lines of code (limit: LIMIT, goal: under {LINES}); move the work of a \
                     verb to a module of its own, and delegate"
                );
                add("backend.rs lines".into(), lines, &message);
            }
        }
    }
    project.settle("backends.toml", found)
}
