//! The example in `PROTOCOL.md` is executed line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Returns whether `text` matches `pattern`, in which each `…` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (i, part) in parts.iter().enumerate() {
        if i + 1 == parts.len() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

fn worker() -> Child {
    Command::new(env!("CARGO_BIN_EXE_lock-bench"))
        .args(["worker", "locks", "memory:"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_worker_answers_as_in_the_example() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("PROTOCOL.md");
    let document = std::fs::read_to_string(document).unwrap();
    let example = document.split("```").nth(1).expect("the document has an example");
    let mut worker = worker();
    let mut stdin = worker.stdin.take().unwrap();
    let mut answers = BufReader::new(worker.stdout.take().unwrap()).lines();
    let mut compared = 0;
    for line in example.lines().filter(|line| !line.is_empty()) {
        if let Some(command) = line.strip_prefix("> ") {
            writeln!(stdin, "{command}").unwrap();
        } else if let Some(expected) = line.strip_prefix("< ") {
            let answer = answers.next().expect("every command is answered").unwrap();
            assert!(matches(expected, &answer), "expected {expected}\nanswered {answer}");
            compared += 1;
        } else {
            panic!("neither sent nor answered: {line:?}");
        }
    }
    assert!(compared > 10, "the example is too short to show anything");
    drop(stdin);
    assert!(worker.wait().unwrap().success(), "the end of stdin ends a worker");
}

/// At a rate beyond any library, most pairs are late, and the last ones the latest.
#[test]
fn pairs_due_in_time_are_done_even_late() {
    let mut worker = worker();
    let mut stdin = worker.stdin.take().unwrap();
    let mut answers = BufReader::new(worker.stdout.take().unwrap()).lines();
    // In 20 ms at 1000 a millisecond.
    writeln!(stdin, "pairs p 2 0 20 1000000").unwrap();
    assert_eq!(answers.next().unwrap().unwrap(), r#"{"ready":1}"#);
    let answer: serde_json::Value =
        serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
    let latency = answer["latency"].as_array().unwrap();
    let done: u64 = latency.iter().map(|step| step[1].as_u64().unwrap()).sum();
    assert_eq!(done, 20_000);
    drop(stdin);
    worker.wait().unwrap();
}
