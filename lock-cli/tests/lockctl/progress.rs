//! Progress messages: the holder, and the time of the wait.

use serde_json::Value;

use crate::shell::Shell;
use crate::support::{Running, Scratch, outcome, until};

/// Holds the lock until there is a file `go`. Returns the lockctl, and the end of its label.
fn hold(scratch: &Scratch) -> (Running, String) {
    let (holder, _) =
        scratch.start(&scratch.url(), &["n"], "write_pid; while [ ! -e go ]; do sleep 0.01; done");
    let label = format!(":{} (", holder.pid());
    (holder, label)
}

#[test]
fn status_75_names_the_holder_and_the_directory() {
    let scratch = Scratch::new();
    let (_holder, label) = hold(&scratch);
    for wait in [&["-n"][..], &["-w", "0.1"]] {
        let arguments = [wait, &["n", "--", "true"]].concat();
        let (code, _, stderr) = outcome(&mut scratch.run(&scratch.url(), &arguments));
        assert_eq!((code, stderr.lines().count()), (75, 1), "{stderr}");
        assert!(stderr.contains(&label), "{stderr}");
        assert!(stderr.contains(scratch.locks().to_str().unwrap()), "{stderr}");
    }
}

#[test]
fn only_verbose_shows_the_holder_and_the_time() {
    let scratch = Scratch::new();
    let (_holder, label) = hold(&scratch);
    let waits = |arguments: &[&str]| {
        Running::start(
            &mut scratch.run(&scratch.url(), &[arguments, &["n", "--", "true"]].concat()),
        )
    };
    let (verbose, silent) = (waits(&["-v"]), waits(&[]));
    until("lockctl has shown its wait twice", || verbose.stderr().lines().count() >= 2);
    std::fs::write(scratch.path("go"), "").unwrap();
    let (status, stderr) = verbose.end();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let lines: Vec<_> = stderr.lines().collect();
    for line in &lines[..2] {
        assert!(line.starts_with("lockctl: waiting for lock \"n\", held by "), "{stderr}");
        assert!(line.contains(&label) && line.contains(", for "), "{stderr}");
    }
    assert!(lines.last().unwrap().starts_with("lockctl: acquired lock \"n\" after "), "{stderr}");
    assert_eq!(silent.end().1, "");
}

#[test]
fn a_terminal_shows_one_line_until_the_command_starts() {
    let scratch = Scratch::new();
    let (_holder, label) = hold(&scratch);
    let mut shell = Shell::start(&scratch);
    shell.enter(&format!("\"$L\" --backend '{}' run n -- echo it be''gins", scratch.url()));
    shell.await_text(&format!("waiting for lock \"n\", held by {}", host()));
    shell.await_text(&label);
    std::fs::write(scratch.path("go"), "").unwrap();
    // The line is erased before the command writes.
    shell.await_text("\r\x1b[Kit begins");
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().to_string_lossy().into_owned()
}

#[test]
fn json_reports_waiting_acquired_and_lost() {
    let scratch = Scratch::new();
    let (holder, _) = hold(&scratch);
    let script = "rm locks/n.lock; exec sleep 60";
    let waiter = ["--json", "n", "--", "sh", "-c", script];
    let waiter = Running::start(&mut scratch.run(&scratch.url(), &waiter));
    until("lockctl reports that it waits", || waiter.stderr().contains("waiting"));
    std::fs::write(scratch.path("go"), "").unwrap();
    let (status, stderr) = waiter.end();
    assert_eq!(status.code(), Some(76), "{stderr}");
    let events: Vec<Value> =
        stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["waiting", "acquired", "lost"], "{stderr}");
    let label = events[0]["holders"][0]["label"].as_str().unwrap();
    assert!(label.ends_with(&format!(":{}", holder.pid())), "{stderr}");
    assert!(
        events.iter().all(|event| event["name"] == "n" && event["time"].is_string()),
        "{stderr}"
    );
    assert!(events[1]["waited_ms"].is_u64() && events[1]["fencing_token"].is_string(), "{stderr}");
    assert!(events[2]["why"].as_str().unwrap().contains("lost"), "{stderr}");
}
