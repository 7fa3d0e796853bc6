//! The command of `lockctl run`: its exit status, its environment, and exclusion.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Running, Scratch, outcome, timed, until, write_executable};

#[test]
fn the_status_is_the_commands_own() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("text"), "").unwrap();
    write_executable(&scratch.path("bare-script"), "exit 5\n");
    for url in scratch.urls() {
        let url = url.as_str();
        let status = |command: &[&str]| {
            let arguments = [&["n", "--"], command].concat();
            let (code, _, stderr) = outcome(&mut scratch.run(url, &arguments));
            (code, stderr.lines().count())
        };
        let of_script = |script| status(&["sh", "-c", script]);
        assert_eq!(of_script("exit 0"), (0, 0), "{url}");
        assert_eq!(of_script("exit 3"), (3, 0), "{url}");
        assert_eq!(of_script("exit 255"), (255, 0), "{url}");
        assert_eq!(of_script("kill -TERM $$"), (143, 0), "{url}");
        assert_eq!(of_script("kill -KILL $$"), (137, 0), "{url}");
        assert_eq!(of_script("kill -35 $$"), (163, 0), "{url}: a real-time signal");
        assert_eq!(status(&["./no-such-file"]), (127, 1), "{url}");
        assert_eq!(status(&["no-such-command"]), (127, 1), "{url}");
        assert_eq!(status(&["./text"]), (126, 1), "{url}");
        assert_eq!(status(&["./bare-script"]), (5, 0), "{url}: a script without #!");
    }
}

#[test]
fn the_command_gets_the_lock_in_its_environment() {
    let scratch = Scratch::new();
    let name = "orders/42 = é\n$HOME";
    for url in scratch.urls() {
        let url = url.as_str();
        let token = || {
            let script = "printf '%s|%s|%s' \"$LOCK_NAME\" \"$LOCK_OWNER\" \"$LOCK_FENCING_TOKEN\"";
            let mut command = scratch.run(url, &[name, "--", "sh", "-c", script]);
            // The token of an outer lockctl is not passed on.
            let (code, stdout, stderr) = outcome(command.env("LOCK_FENCING_TOKEN", "1"));
            assert_eq!((code, stderr.as_str()), (0, ""));
            let variables: Vec<&str> = stdout.split('|').collect();
            assert_eq!(variables[0], name);
            assert_eq!(variables[1].len(), 32, "{stdout}");
            variables[2].parse::<u64>().unwrap()
        };
        assert!(token() < token(), "{url}: tokens grow");
    }
}

#[test]
fn stdin_and_stdout_pass_untouched() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        let url = url.as_str();
        let script = "cat; echo to stderr >&2";
        let mut command = scratch.run(url, &["n", "--", "sh", "-c", script]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"one\0two").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"one\0two"[..], Some(0)));
        assert_eq!(output.stderr, b"to stderr\n");
    }
}

#[test]
fn arguments_pass_untouched() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        let url = url.as_str();
        let arguments = ["n", "--", "printf", "<%s>", "--", "-n", "", "a b", "--parent", "*"];
        let (_, stdout, _) = outcome(&mut scratch.run(url, &arguments));
        assert_eq!(stdout, "<--><-n><><a b><--parent><*>", "{url}");
    }
}

#[test]
fn a_lease_that_the_url_bounds_is_kept_to_the_end_of_the_command() {
    let scratch = Scratch::new();
    let longer_than_the_lease = ["n", "--", "sleep", "1.5"];
    let (code, _, stderr) = outcome(&mut scratch.run("memory:?max_ttl=1s", &longer_than_the_lease));
    assert_eq!((code, stderr.as_str()), (0, ""));
}

#[test]
fn one_command_at_a_time_and_the_others_get_75() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (first, _) = scratch.start(
        &url,
        &["n"],
        "write_pid; while [ ! -e go ]; do sleep 0.01; done; echo 1 >>log",
    );

    let attempt = |arguments: &[&str]| {
        outcome(&mut scratch.run(&url, &[arguments, &["n", "--", "touch", "intruded"]].concat()))
    };
    let (code, stdout, stderr) = attempt(&["-n"]);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (75, "", 1), "{stderr}");
    let nothing = String::new();
    assert_eq!(attempt(&["--no-wait", "--quiet"]), (75, nothing.clone(), nothing));
    assert_eq!(attempt(&["--no-wait", "-E", "9"]).0, 9);
    assert_eq!(attempt(&["-n", "-E", "0"]).0, 0);
    assert_eq!(attempt(&["-w", "0"]).0, 75);
    for wait in [&["-w", "0.2"], &["--wait", "200ms"], &["--wait", ".2"]] {
        let (result, took) = timed(|| attempt(wait));
        assert_eq!(result.0, 75);
        assert!((200..5000).contains(&took.as_millis()), "{took:?}");
    }
    assert_eq!(attempt(&["-w", "0.1", "-E", "1"]).0, 1);
    assert_eq!(
        outcome(&mut scratch.run(&url, &["-n", "m", "--", "true"])).0,
        0,
        "another name is another lock"
    );

    let second = Running::start(
        &mut scratch.run(&url, &["--wait", "1m", "n", "--", "sh", "-c", "echo 2 >>log"]),
    );
    second.process().await_idle();
    assert!(!scratch.exists("log"));
    std::fs::write(scratch.path("go"), "").unwrap();
    assert_eq!((first.code(), second.code()), (0, 0));
    assert_eq!(scratch.read("log"), "1\n2\n");
    assert!(!scratch.exists("intruded"));
}

#[test]
fn flock_and_lockctl_exclude_each_other() {
    let scratch = Scratch::new();
    let url = scratch.url();
    assert_eq!(outcome(&mut scratch.run(&url, &["n", "--", "true"])).0, 0);
    let flock = "flock -n -E 42 locks/n.lock true";
    assert_eq!(outcome(&mut scratch.run(&url, &["n", "--", "sh", "-c", flock])).0, 42);
}

#[test]
fn a_minimum_hold_is_kept_after_the_command() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = "touch ran";
    let arguments = ["--min-hold", "600ms", "n", "--", "sh", "-c", script];
    let (first, took) = timed(|| {
        let first = Running::start(&mut scratch.run(&url, &arguments));
        until("the command has run", || scratch.exists("ran"));
        assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 75);
        first.code()
    });
    assert_eq!(first, 0);
    assert!(took >= Duration::from_millis(600), "{took:?}");
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
}

#[test]
fn a_minimum_hold_does_not_outlive_a_signal() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (first, command) = scratch.start(&url, &["--min-hold", "1h", "n"], "write_pid");
    until("the command has ended", || !command.lives());
    first.process().await_idle();
    first.signal(Signal::SIGTERM);
    let (status, stderr) = first.end();
    assert_eq!((status.signal(), stderr.lines().count()), (Some(15), 1), "{stderr}");
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
}

/// Increments a counter 20 times in each of 64 processes. Only the lock protects it.
#[test]
fn no_increment_is_lost() {
    const PROCESSES: usize = 64;
    const INCREMENTS: usize = 20;
    let scratch = Scratch::new();
    let url = scratch.url();
    std::fs::write(scratch.path("counter"), "0\n").unwrap();
    // Each process acquires the lock anew for every increment.
    let script = "i=0; while [ $i -lt \"$1\" ]; do i=$((i+1)); \
        \"$0\" --backend \"$2\" run n -- sh -c 'read n <counter; echo $((n+1)) >counter' || exit; \
        done";
    let mut processes: Vec<Running> = Vec::new();
    for _ in 0..PROCESSES {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_lockctl"), &INCREMENTS.to_string(), &url]);
        command.current_dir(scratch.path(""));
        processes.push(Running::start(&mut command));
    }
    for process in processes {
        let (status, stderr) = process.end();
        assert!(status.success(), "{status}: {stderr}");
    }
    assert_eq!(scratch.read("counter").trim(), (PROCESSES * INCREMENTS).to_string());
}
