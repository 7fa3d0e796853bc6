//! Runs go on where they ended: a result that is there already is not made again, unless an older
//! verdict has judged it, and never replaced by one of other settings.

use std::path::Path;
use std::process::{Command, Output};

use lock_campaign::{Outcome, VERDICT};

/// Runs the smallest seed there is.
fn run(directory: &Path, grants: &str, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-campaign"))
        .args(["run", "memory", "--seed", "1", "--faults", "1", "--grants", grants])
        .args(["--clients", "2", "--tasks", "2", "--out", &directory.to_string_lossy()])
        .args(more)
        .output()
        .expect("the campaign can be started")
}

/// Whether it said that its result is there already.
fn was_there(directory: &Path, grants: &str) -> bool {
    let output = run(directory, grants, &[]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.starts_with("there already: ")
}

#[test]
fn what_is_there_is_made_again_if_it_is_old_and_is_replaced_by_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let of = |seed| Outcome::of(directory.path(), "memory", seed).unwrap();
    let result = || of(1).unwrap();

    assert!(!was_there(directory.path(), "5"));
    let first = result();
    assert!(was_there(directory.path(), "5"));
    assert_eq!(result().took, first.took, "it is the same run");

    let refused = run(directory.path(), "6", &[]);
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(why.contains("other settings") && why.contains("--out"), "{why}");
    assert_eq!(result().took, first.took);

    let added = run(directory.path(), "6", &["--for", "1s"]);
    assert!(added.status.success());
    assert_eq!(result().took, first.took, "a longer run goes on behind it");
    assert_eq!(of(2).expect("with the next seed").settings.grants, 6);

    let old = Outcome { verdict: VERDICT - 1, ..result() };
    old.keep(directory.path()).unwrap();
    assert!(!was_there(directory.path(), "6"), "judged by an older verdict");
    assert_eq!(result().verdict, VERDICT);
}
