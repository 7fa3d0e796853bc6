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
