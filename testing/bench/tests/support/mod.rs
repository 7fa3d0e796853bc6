//! Runs the program and checks its output.

use std::process::{Command, Output};

pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-bench"))
        .arg("run")
        .args(arguments)
        .output()
        .expect("the program can be started")
}

#[track_caller]
pub(crate) fn demand(output: &Output, status: i32, needle: &str) {
    let text = [&*output.stdout, &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert!(text.contains(needle), "no {needle:?} in\n{text}");
}

/// Runs the libraries of other projects: each speaks the protocol, and none of their claims
/// overlap.
pub(crate) fn others_are_measured(url: &str, workload: &str, names: &[&str]) -> String {
    let output = run(&[url, workload, "--exact", "--others"]);
    demand(&output, 0, workload);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("not installed"), "./test installs all of them: {text}");
    for name in names {
        // Without the names of figures, a line of the table with names in it is a head.
        let is_head =
            |line: &str| line.starts_with("      ") && line.contains(&format!("   {name}"));
        assert!(text.lines().any(is_head), "{name} has no column in\n{text}");
    }
    text.into_owned()
}
