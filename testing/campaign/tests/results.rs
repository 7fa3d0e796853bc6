//! The campaign resumes where it ended. A stored result is not produced again, unless an older
//! verdict judged it, and is never replaced by one of other settings.

use std::path::Path;
use std::process::{Command, Output};

use lock_campaign::{Outcome, VERDICT};

/// Runs seed 1 with the smallest settings.
fn run(directory: &Path, grants: &str, extra: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-campaign"))
        .args(["run", "memory", "--seed", "1", "--faults", "1", "--grants", grants])
        .args(["--clients", "2", "--tasks", "2", "--out", &directory.to_string_lossy()])
        .args(extra)
        .output()
        .expect("the campaign starts")
}

/// Returns true if the run found its result already stored.
fn was_stored(directory: &Path, grants: &str) -> bool {
    let output = run(directory, grants, &[]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout.starts_with("already stored: ")
}

#[test]
fn stored_result_is_replaced_only_if_its_verdict_is_old() {
    let directory = tempfile::tempdir().unwrap();
    let stored = |seed| Outcome::find(directory.path(), "memory", seed).unwrap();
    let result = || stored(1).unwrap();

    assert!(!was_stored(directory.path(), "5"));
    let first = result();
    assert!(was_stored(directory.path(), "5"));
    assert_eq!(result().took, first.took, "the run is not repeated");

    let refused = run(directory.path(), "6", &[]);
    assert!(!refused.status.success());
    let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reason.contains("other settings") && reason.contains("--out"), "{reason}");
    assert_eq!(result().took, first.took);

    let resumed = run(directory.path(), "6", &["--for", "1s"]);
    assert!(resumed.status.success());
    assert_eq!(result().took, first.took, "a longer run keeps the result");
    assert_eq!(stored(2).expect("the next seed has run").settings.grants, 6);

    let old = Outcome { verdict: VERDICT - 1, ..result() };
    old.store(directory.path()).unwrap();
    assert!(!was_stored(directory.path(), "6"), "judged by an older verdict");
    assert_eq!(result().verdict, VERDICT);
}
