//! No import cycle between the modules of a crate.
//!
//! A module is a file with its inline modules; modules under `#[cfg(test)]` do not count. Module A
//! depends on module B if A imports, or names in a path, an item that B defines. A path is followed
//! through re-exports to the definition, so `crate::Locker` is a use of `locker` and not of the
//! root. A `pub use` of a module's own descendant is a re-export and no dependency, unless the
//! module names the item elsewhere. So a parent that only declares and re-exports its children
//! depends on none of them. A parent that calls a child whose code uses an item of the parent is in
//! a cycle with it. Methods are not seen: a value that is passed in makes no dependency.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::{Modules, Target};
use crate::{Finding, Project};

const LIST: &str = "cycles.toml";

/// The modules of each cycle, sorted, for each package.
type Cycles = BTreeMap<String, BTreeSet<Vec<String>>>;

/// A file, a line and a path in it for each dependency between two modules.
type Edges = BTreeMap<(String, String), (String, usize, String)>;

/// Finds import cycles that are not in `cycles.toml`, and entries there that are no cycle any more.
pub fn structure(project: &Project) -> Vec<Finding> {
    let known: Cycles = project.known(LIST);
    let mut found = Cycles::new();
    let mut findings = Vec::new();
    for package in &project.packages {
        let Some(entry) = package.entry(project) else { continue };
        let edges = edges(&Modules::read(project, &entry));
        for cycle in cycles(&edges) {
            if known.get(&package.name).is_none_or(|known| !known.contains(&cycle)) {
                findings.push(finding(&package.name, &cycle, &edges));
            }
            found.entry(package.name.clone()).or_default().insert(cycle);
        }
    }
    if project.bless(LIST, &found) {
        return Vec::new();
    }
    for (package, cycles) in &known {
        for cycle in cycles {
            if found.get(package).is_none_or(|found| !found.contains(cycle)) {
                let cycle = cycle.join(", ");
                let message = format!("{package} has no cycle of {cycle} any more: delete it here");
                findings.push(Finding::new(&project.list(LIST), 1, message));
            }
        }
    }
    findings
}

fn edges(modules: &Modules) -> Edges {
    let mut edges = Edges::new();
    for (key, module) in &modules.0 {
        let imports = module.imports.iter().map(|import| (&import.path, true, import.public));
        let paths = module.paths.iter().map(|path| (path, false, false));
        for (path, import, public) in imports.chain(paths) {
            let target = match modules.resolve(key, &path.segments, 8) {
                Some(Target::Item(target)) => target,
                // A lone name that is a module's, too, is that of a variable.
                Some(Target::Module(target)) if import || path.segments.len() > 1 => target,
                _ => continue,
            };
            let target = &modules.0[&target].node;
            let below =
                |prefix: &str| prefix.is_empty() || target.starts_with(&format!("{prefix}::"));
            if *target == module.node || (public && below(&module.node)) {
                continue;
            }
            let place = (module.file.clone(), path.line, path.segments.join("::"));
            edges.entry((module.node.clone(), target.clone())).or_insert(place);
        }
    }
    edges
}

/// Returns the sets of modules that reach each other.
fn cycles(edges: &Edges) -> BTreeSet<Vec<String>> {
    let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        reach.entry(from).or_default().insert(to);
    }
    loop {
        let before: usize = reach.values().map(BTreeSet::len).sum();
        for (from, near) in reach.clone() {
            let far = near.iter().filter_map(|to| reach.get(to)).flatten().copied();
            let far: Vec<&str> = far.collect();
            reach.entry(from).or_default().extend(far);
        }
        if before == reach.values().map(BTreeSet::len).sum() {
            break;
        }
    }
    let returns = |from: &str, to: &str| reach.get(to).is_some_and(|reach| reach.contains(from));
    let cyclic = reach.iter().filter(|(from, reach)| reach.contains(*from));
    let members = |(from, reach): (&&str, &BTreeSet<&str>)| {
        let members = reach.iter().filter(|to| returns(from, to));
        members.map(|key| shown(key).to_owned()).collect()
    };
    cyclic.map(members).collect()
}

fn shown(key: &str) -> &str {
    if key.is_empty() { "crate" } else { key }
}

fn finding(package: &str, cycle: &[String], edges: &Edges) -> Finding {
    let inside = |key: &str| cycle.iter().any(|member| member == shown(key));
    let inner: Vec<_> = edges.iter().filter(|((from, to), _)| inside(from) && inside(to)).collect();
    let mut message = format!(
        "modules of {package} import each other: {}; move the shared items to a module below \
         both. The imports:",
        cycle.join(", ")
    );
    for ((from, to), (file, line, path)) in &inner {
        let (from, to) = (shown(from), shown(to));
        message += &format!("\n    {from} -> {to}: {file}:{line} `{path}`");
    }
    let (_, (file, line, _)) = inner[0];
    Finding::new(file, *line, message)
}
