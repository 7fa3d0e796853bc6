//! A wait is shown: the holder, and the time.

use serde_json::Value;

use crate::shell::Shell;
use crate::support::{Running, Scratch, TELL_PID, outcome, until};

/// Holds the lock until there is a file `go`. The lockctl, and its process id as a label ends with it.
fn hold(scratch: &Scratch) -> (Running, String) {
    let script = format!("{TELL_PID} while [ ! -e go ]; do sleep 0.01; done");
    let holder =
        Running::start(&mut scratch.run(&scratch.url(), &["n", "--", "sh", "-c", &script]));
    scratch.read_pid();
    let label = format!(":{} (", holder.pid());
    (holder, label)
}

#[test]
fn status_75_names_the_holder_and_the_directory() {
    let scratch = Scratch::new();
    let (_holder, label) = hold(&scratch);
    for patience in [&["-n"][..], &["-w", "0.1"]] {
        let arguments = [patience, &["n", "--", "true"]].concat();
        let (code, _, said) = outcome(&mut scratch.run(&scratch.url(), &arguments));
        assert_eq!((code, said.lines().count()), (75, 1), "{said}");
        assert!(said.contains(&label), "{said}");
        assert!(said.contains(scratch.locks().to_str().unwrap()), "{said}");
    }
}

#[test]
fn verbose_shows_the_holder_and_the_time_and_without_it_a_wait_is_silent() {
    let scratch = Scratch::new();
    let (_holder, label) = hold(&scratch);
    let waits = |arguments: &[&str]| {
        Running::start(
            &mut scratch.run(&scratch.url(), &[arguments, &["n", "--", "true"]].concat()),
        )
    };
    let (verbose, silent) = (waits(&["-v"]), waits(&[]));
    until("it shows that it waits twice", || verbose.said().lines().count() >= 2);
    std::fs::write(scratch.path("go"), "").unwrap();
    let (status, said) = verbose.end();
    assert_eq!(status.code(), Some(0), "{said}");
    let lines: Vec<_> = said.lines().collect();
    for line in &lines[..2] {
        assert!(line.starts_with("lockctl: waiting for lock \"n\", held by "), "{said}");
        assert!(line.contains(&label) && line.contains(", for "), "{said}");
    }
    assert!(lines.last().unwrap().starts_with("lockctl: acquired lock \"n\" after "), "{said}");
    assert_eq!(silent.end().1, "");
}

#[test]
fn a_terminal_shows_one_line_that_goes_when_the_command_starts() {
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
fn json_tells_when_it_waited_acquired_and_lost() {
    let scratch = Scratch::new();
    let (holder, _) = hold(&scratch);
    let script = "rm locks/n.lock; exec sleep 60";
    let waiter = ["--json", "n", "--", "sh", "-c", script];
    let waiter = Running::start(&mut scratch.run(&scratch.url(), &waiter));
    until("it tells that it waits", || waiter.said().contains("waiting"));
    std::fs::write(scratch.path("go"), "").unwrap();
    let (status, said) = waiter.end();
    assert_eq!(status.code(), Some(76), "{said}");
    let events: Vec<Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["waiting", "acquired", "lost"], "{said}");
    let label = events[0]["holders"][0]["label"].as_str().unwrap();
    assert!(label.ends_with(&format!(":{}", holder.pid())), "{said}");
    assert!(events.iter().all(|event| event["name"] == "n" && event["time"].is_string()), "{said}");
    assert!(events[1]["waited_ms"].is_u64() && events[1]["fencing_token"].is_string(), "{said}");
    assert!(events[2]["why"].as_str().unwrap().contains("lost"), "{said}");
}
