//! lockctl understands the examples in the documentation and in `--help`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::{Scratch, outcome};

const VERBS: &[&str] = &["run", "acquire", "renew", "release", "inspect", "list", "break"];

/// Returns the shell lines of code blocks and of code within the text.
fn from_document(path: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let document = std::fs::read_to_string(root.join(path)).unwrap();
    let mut lines = Vec::new();
    for (number, block) in document.split("```").enumerate() {
        if let (1, Some(block)) = (number % 2, block.strip_prefix("sh\n")) {
            lines.extend(block.lines().map(str::to_owned));
        } else if number % 2 == 0 {
            lines.extend(block.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    lines
}

fn from_help(scratch: &Scratch, verb: &str) -> Vec<String> {
    let (_, help, _) = outcome(&mut scratch.lockctl(&[verb, "--help"]));
    let (_, examples) = help.split_once("Examples:\n").unwrap();
    let (examples, _) = examples.split_once("\n\n").unwrap();
    // Without the beginning of a line of a crontab.
    examples.lines().map(|line| line.trim().trim_start_matches("* ").to_owned()).collect()
}

/// Returns true for an example, false for a mere mention of a verb.
fn is_example(line: &str) -> bool {
    let has_arguments = |verb: &&&str| {
        let (_, arguments) = line.split_once(&format!("lockctl {verb} ")).unwrap_or_default();
        !arguments.is_empty() && !arguments.contains("--help")
    };
    VERBS.iter().any(|verb| has_arguments(&verb)) || line.contains("lockctl --backend")
}

/// Gives each example an unknown backend, so that nothing is locked or run.
#[test]
fn examples_are_understood() {
    let scratch = Scratch::new();
    let mut examples: BTreeSet<String> =
        VERBS.iter().flat_map(|v| from_help(&scratch, v)).collect();
    examples.extend(["README.md", "docs/coming-from.md"].into_iter().flat_map(from_document));
    examples.retain(|line| is_example(line));
    assert!(examples.len() > 30, "{examples:#?}");
    for example in examples {
        let mut line = example.clone();
        for url in ["redis://locks.example.com", "file:///run/lock/jobs"] {
            line = line.replace(url, "gopher:");
        }
        let functions = "lockctl() { \"$LOCKCTL\" \"$@\"; status=$?; [ $status = 64 ] || echo \"not 64 but $status\" >&2; }; \
            jq() { cat >/dev/null; echo \"$LOCK_OWNER\"; }; make() { :; };";
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", &format!("{functions} {line}")]).current_dir(scratch.path(""));
        bash.env("LOCKCTL", env!("CARGO_BIN_EXE_lockctl")).env("LOCK_BACKEND", "gopher:");
        bash.env("LOCK_OWNER", "6f1ed002ab5595859014ebf0951522d9")
            .env("owner", "6f1ed002ab5595859014ebf0951522d9");
        let (_, _, stderr) = outcome(&mut bash);
        let all_understood = stderr.lines().all(|line| line.contains("unknown backend"));
        assert!(all_understood, "{example}\n{stderr}");
        assert!(
            !stderr.is_empty() || example.starts_with("export"),
            "{example}: did not call lockctl"
        );
    }
}
