//! Each exclusion in `.cargo/mutants.toml` still fits code that `cargo mutants` examines.

use std::fs;
use std::path::{Path, PathBuf};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn strings(config: &toml::Table, key: &str) -> Vec<String> {
    let values = config[key].as_array().unwrap().iter();
    values.map(|value| value.as_str().unwrap().replace('\\', "")).collect()
}

/// Returns the body of the function that `cargo mutants` calls `path`, such as `free`, `Type::name`
/// or `<impl Trait for Type>::name`.
fn body<'a>(source: &'a str, path: &str) -> Option<&'a str> {
    let (owner, name) = path.rsplit_once("::").unwrap_or(("", path));
    let owner = owner.trim_start_matches('<').trim_end_matches('>').trim_start_matches("impl ");
    let is_of = |head: &str| owner.is_empty() || head.contains(owner);
    source.split("\nimpl").skip(usize::from(!owner.is_empty())).find_map(|block| {
        let head = block.lines().next().filter(|head| is_of(head))?;
        let code = &block[head.len()..];
        let start =
            code.find(&format!("fn {name}(")).or_else(|| code.find(&format!("fn {name}<")))?;
        let end = code[start..].find("\n    }\n").or_else(|| code[start..].find("\n}\n"))?;
        Some(&code[start..start + end])
    })
}

/// Returns whether the exclusion, such as `replace > with >= in Hold::extend_to`, fits one of the
/// sources.
fn fits(exclusion: &str, sources: &[String]) -> bool {
    let mutation = exclusion.strip_prefix("replace ").expect("it is a replacement");
    let (what, path) = match mutation.split_once(" in ") {
        Some((mutation, path)) => (mutation.split_once(" with ").expect("by something").0, path),
        // The whole body is replaced.
        None => ("", mutation.split_once(" with ").expect("by something").0),
    };
    let operator = if what.is_empty() { String::new() } else { format!(" {what} ") };
    sources.iter().filter_map(|source| body(source, path)).any(|body| body.contains(&operator))
}

#[test]
fn every_exclusion_matches_something() {
    let config = fs::read_to_string(project().join(".cargo/mutants.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    let read = |file: &String| fs::read_to_string(project().join(file)).unwrap();
    let sources: Vec<_> = strings(&config, "examine_globs").iter().map(read).collect();
    let exclusions = strings(&config, "exclude_re");
    assert!(!exclusions.is_empty());
    let stale: Vec<_> = exclusions.iter().filter(|exclusion| !fits(exclusion, &sources)).collect();
    assert!(stale.is_empty(), "these match nothing: {stale:?}");
}

#[test]
fn an_exclusion_of_what_is_not_there_fits_nothing() {
    let source =
        "\nimpl Hold {\n    fn extend_to(&self) {\n        if a > b {}\n    }\n}\n".to_owned();
    let sources = [source];
    assert!(fits("replace > with >= in Hold::extend_to", &sources));
    assert!(fits("replace Hold::extend_to with ()", &sources));
    for stale in [
        "replace < with <= in Hold::extend_to",
        "replace > with >= in Hold::extend",
        "replace > with >= in Schedule::extend_to",
        "replace Hold::shrink_to with ()",
    ] {
        assert!(!fits(stale, &sources), "{stale}");
    }
}
