use std::process::Command;

use crate::{Process, locks_in, program, until_held};

const TOOL: &str = env!("CARGO_BIN_EXE_tool");

#[tokio::test]
async fn the_second_process_waits_and_finds_nothing_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    assert!(Command::new("mkfifo").arg(path("go")).status().unwrap().success());
    let script = "read line <\"${0%/*}/go\"; echo $line >>\"${0%/*}/log\"";
    std::fs::write(path("01.sh"), script).unwrap();
    std::fs::write(path("02.sh"), "echo two >>\"${0%/*}/log\"").unwrap();
    let locks = lock_any::connect(&locks_in(directory.path())).await.unwrap();
    let start = || Process::start(program(TOOL, &locks_in(directory.path())).arg(directory.path()));

    let mut first = start();
    until_held(&locks, "migrations").await;
    let mut second = start();
    second.until_stderr("waiting for another process");
    assert!(first.runs() && second.runs());
    let mut impatient = program(TOOL, &locks_in(directory.path()));
    let output = impatient.args(["--wait", "10ms"]).arg(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("another process has not ended in time"), "{text}");

    std::fs::write(path("go"), "one\n").unwrap();
    assert_eq!(first.status(), Some(0));
    assert_eq!(second.status(), Some(0));
    assert_eq!(std::fs::read_to_string(path("log")).unwrap(), "one\ntwo\n");
}
