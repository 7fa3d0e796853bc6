//! The table that decides which topologies tier 2 tests, beside the mutants.

use std::fs;
use std::path::{Path, PathBuf};

use crate::patch::{self, Mutant};

/// A change that a mutant makes has to lead to the test that catches it, in tier 2 as well.
#[test]
fn files_that_mutants_change_are_those_of_the_topologies_that_catch_them() {
    let project = crate::project();
    let table = fs::read_to_string(project.join("testing/topologies.toml")).unwrap();
    let table: toml::Table = table.parse().unwrap();
    let topologies = table["topology"].as_array().unwrap();
    let mut missing = Vec::new();
    for mutant in patch::all(&project).unwrap() {
        let Some((program, test)) = test_of(&project, &mutant) else { continue };
        let is_of_it = |tests: &&str| match tests.split_once(':') {
            Some((of, part)) => of == program && test.contains(part),
            None => *tests == program,
        };
        for topology in topologies.iter().filter(|it| words(it, "tests").any(|it| is_of_it(&it))) {
            let files = mutant.diff.lines().filter_map(|line| line.strip_prefix("+++ b/"));
            let unlisted = files.filter(|file| !words(topology, "files").any(|it| it == *file));
            let name = topology["name"].as_str().unwrap();
            missing.extend(unlisted.map(|file| format!("{name}: {file}, for {test}")));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn words<'a>(topology: &'a toml::Value, key: &str) -> impl Iterator<Item = &'a str> {
    topology[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap())
}

/// Returns the test program of a mutant's command, as the table calls it, and the full name of the
/// test. One that has no module is looked for in the program's files.
fn test_of(project: &Path, mutant: &Mutant) -> Option<(String, String)> {
    let words: Vec<_> = mutant.seen_by.split(' ').collect();
    let after = |option| words.windows(2).find(|two| two[0] == option).map(|two| two[1]);
    let (package, program) = (after("-p")?, after("--test")?);
    let folder = if package == "lock-campaign" { "testing/campaign" } else { package };
    let filter = words.last()?;
    let name = filter.rsplit("::").next()?;
    let files = fs::read_dir(project.join(folder).join("tests").join(program));
    let files = files.into_iter().flatten().flatten().map(|entry| entry.path());
    let has_it = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        !name.is_empty() && text.contains(&format!("fn {name}"))
    };
    let test = match files.into_iter().find(has_it) {
        Some(file) => format!("{}::{name}", file.file_stem()?.display()),
        None => (*filter).to_owned(),
    };
    Some((format!("{}/{program}", folder.rsplit('/').next()?), test))
}
