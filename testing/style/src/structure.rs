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
use crate::project::Exception;
use crate::{Finding, Project};

/// A file, a line and a path in it for each dependency between two modules.
type Edges = BTreeMap<(String, String), (String, usize, String)>;

/// Finds import cycles that are not in `cycles.toml`, and entries there that are no cycle any more.
pub fn structure(project: &Project) -> Vec<Finding> {
    let mut found = Vec::new();
    for package in &project.packages {
        let edges = edges(&Modules::read(project, package));
        for cycle in cycles(&edges) {
            let key = cycle.join(", ");
            let inner = |(from, to): &(String, String)| cycle.contains(from) && cycle.contains(to);
            let inner: Vec<_> = edges.iter().filter(|(edge, _)| inner(edge)).collect();
            let name = &package.name;
            let mut message = format!(
                "modules of {name} import each other: {key}; move shared items to a module below"
            );
            for ((from, to), (file, line, path)) in &inner {
                message += &format!("\n    {from} -> {to}: {file}:{line} `{path}`");
            }
            let (_, (file, line, _)) = inner[0];
            let finding = Finding::new(file, *line, message);
            found.push(Exception { package: name.clone(), key, figure: 0.0, finding });
        }
    }
    project.settle("cycles.toml", found)
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
            let (node, target) = (&module.node, &modules.0[&target].node);
            let below = node.is_empty() || target.starts_with(&format!("{node}::"));
            if target != node && !(public && below) {
                let place = (module.file.clone(), path.line, path.segments.join("::"));
                edges.entry((shown(node), shown(target))).or_insert(place);
            }
        }
    }
    edges
}

fn shown(key: &str) -> String {
    if key.is_empty() { "crate".to_owned() } else { key.to_owned() }
}

/// Returns the sets of modules that reach each other.
fn cycles(edges: &Edges) -> BTreeSet<Vec<String>> {
    let mut reach: BTreeSet<(&str, &str)> =
        edges.keys().map(|(from, to)| (from.as_str(), to.as_str())).collect();
    let nodes: BTreeSet<&str> = reach.iter().flat_map(|(from, to)| [*from, *to]).collect();
    for middle in &nodes {
        for from in &nodes {
            for to in &nodes {
                if reach.contains(&(*from, *middle)) && reach.contains(&(*middle, *to)) {
                    reach.insert((*from, *to));
                }
            }
        }
    }
    let both = |a: &str, b: &str| reach.contains(&(a, b)) && reach.contains(&(b, a));
    let of = |a: &&str| {
        nodes.iter().filter(|b| both(a, b)).map(ToString::to_string).collect::<Vec<String>>()
    };
    nodes.iter().map(of).filter(|cycle| !cycle.is_empty()).collect()
}
