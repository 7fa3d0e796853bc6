//! Runs go on where they ended: a result that is there already is not made again, unless it says something else
//! than a run of today would.

use std::path::Path;
use std::process::Command;

use lock_campaign::{Outcome, VERDICT};

/// Runs the smallest seed there is; whether it said that its result is there already.
fn was_there(directory: &Path, grants: &str) -> bool {
    let output = Command::new(env!("CARGO_BIN_EXE_lock-campaign"))
        .args(["run", "memory", "--seed", "1", "--faults", "1", "--grants", grants])
        .args(["--clients", "2", "--tasks", "2", "--out", &directory.to_string_lossy()])
        .output()
        .expect("the campaign can be started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    said.starts_with("there already: ")
}

#[test]
fn what_is_there_is_made_again_if_it_is_old_or_of_other_settings() {
    let directory = tempfile::tempdir().unwrap();
    let result = || Outcome::of(directory.path(), "memory", 1).unwrap().unwrap();

    assert!(!was_there(directory.path(), "5"));
    let first = result();
    assert!(was_there(directory.path(), "5"));
    assert_eq!(result().took, first.took, "it is the same run");

    assert!(!was_there(directory.path(), "6"), "of other settings");
    assert_eq!(result().settings.grants, 6);

    let old = Outcome { verdict: VERDICT - 1, ..result() };
    old.keep(directory.path()).unwrap();
    assert!(!was_there(directory.path(), "6"), "judged by an older verdict");
    assert_eq!(result().verdict, VERDICT);
}
