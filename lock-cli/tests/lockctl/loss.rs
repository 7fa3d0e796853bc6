//! Lost locks and dead lockctls: the command does not continue without the lock.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Running, Scratch, WRITE_PID, outcome, timed, until};

/// A script that ignores SIGTERM and runs until there is a file `go`.
const UNTIL_GO: &str =
    "trap '' TERM; write_pid; while [ ! -e go ]; do sleep 0.01; done; touch done";

#[cfg(feature = "file")]
#[test]
fn an_orphaned_command_keeps_a_kernel_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (first, command) = scratch.start(&url, &["n"], UNTIL_GO);
    let mut second = Running::start(&mut scratch.run(&url, &["n", "--", "test", "-e", "done"]));
    second.process().await_idle();

    first.signal(Signal::SIGKILL);
    assert_eq!(first.end().0.code(), None);
    assert!(command.lives());
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 75);
    assert_eq!(outcome(&mut scratch.run(&url, &["-w", "0.3", "n", "--", "true"])).0, 75);
    assert!(!second.has_ended());

    let ((), took) = timed(|| {
        std::fs::write(scratch.path("go"), "").unwrap();
        assert_eq!(second.code(), 0, "it begins after the orphan has ended");
    });
    assert!(took < Duration::from_secs(5), "at once, not after a lease: {took:?}");
}

/// Checks that `inspect` shows the process that an operator has to kill.
#[cfg(feature = "file")]
#[test]
fn inspect_names_an_orphaned_command() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (first, _) = scratch.start(&url, &["n"], UNTIL_GO);
    let (lockctl, command) = (first.pid(), scratch.read("pid").trim().to_owned());
    let inspect = || outcome(&mut scratch.lockctl(&["--backend", &url, "inspect", "n"]));
    let (code, text, _) = inspect();
    assert!(code == 0 && text.contains(&format!(":{lockctl} (")), "{text}");
    first.signal(Signal::SIGKILL);
    assert_eq!(first.end().0.code(), None);
    let (code, text, _) = inspect();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains(&format!("pid {command}, ")), "not the command {command}: {text}");
    let broken = outcome(&mut scratch.lockctl(&["--backend", &url, "break", "--force", "n"]));
    assert_eq!(broken.0, 0, "its owner is still known: {}", broken.2);
    std::fs::write(scratch.path("go"), "").unwrap();
    scratch.read("done");
}

#[cfg(feature = "file")]
#[test]
fn killing_lockctl_and_its_command_frees_a_kernel_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (first, command) = scratch.start(&url, &["n"], UNTIL_GO);
    first.signal(Signal::SIGKILL);
    command.signal_group(Signal::SIGKILL);
    assert_eq!(outcome(&mut scratch.run(&url, &["-w", "10", "n", "--", "true"])).0, 0);
}

#[cfg(feature = "file")]
#[test]
fn a_background_process_does_not_keep_a_kernel_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = format!(
        "({WRITE_PID} exec sleep 60) >/dev/null 2>&1 & while [ ! -e pid ]; do sleep 0.01; done; echo $! >left"
    );
    assert_eq!(outcome(&mut scratch.run(&url, &["n", "--", "sh", "-c", &script])).0, 0);
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
    let left = nix::unistd::Pid::from_raw(scratch.read("left").trim().parse().unwrap());
    nix::sys::signal::kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn a_leased_command_dies_with_its_lockctl() {
    let scratch = Scratch::new();
    let (first, command) = scratch.start("memory:", &["n"], UNTIL_GO);
    assert!(command.lives());
    first.signal(Signal::SIGKILL);
    until("the command is gone", || !command.lives());
    assert!(!scratch.exists("done"));
}

/// Holds two locks with a lockctl inside a lockctl. The kernel lock that the command inherits from
/// the inner one does not prolong the lease of the outer one.
#[test]
fn a_command_under_both_locks_dies_with_the_lockctl_of_the_lease() {
    let scratch = Scratch::new();
    let inner = scratch.url();
    let nested = ["n", "--", env!("CARGO_BIN_EXE_lockctl"), "--backend", &inner, "run", "m"];
    let (holder, command) = scratch.start("memory:", &nested, UNTIL_GO);
    holder.signal(Signal::SIGKILL);
    until("the command is dead", || !command.lives());
}

#[test]
fn a_lockctl_stopped_past_its_lease_kills_the_command_on_resuming() {
    let scratch = Scratch::new();
    let (holder, command) = scratch.start("memory:?ttl=1s", &["n"], UNTIL_GO);
    holder.signal(Signal::SIGSTOP);
    until("lockctl is stopped", || holder.process().state() == Some('T'));
    let passed = lock_any::clock::Moment::now() + Duration::from_secs(2);
    until("twice the lease has passed", || passed.has_passed());
    assert!(command.lives());
    holder.signal(Signal::SIGCONT);
    let (status, stderr) = holder.end();
    assert_eq!((status.code(), stderr.lines().count()), (Some(76), 1), "{stderr}");
    assert!(!command.lives());
}

#[cfg(feature = "file")]
#[test]
fn a_removed_lock_file_is_a_lost_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (holder, command) = scratch.start(&url, &["--ttl", "300ms", "n"], UNTIL_GO);
    std::fs::remove_file(scratch.locks().join("n.lock")).unwrap();
    let (status, stderr) = holder.end();
    assert_eq!((status.code(), stderr.lines().count()), (Some(76), 1), "{stderr}");
    assert!(stderr.contains("\"n\""), "{stderr}");
    assert!(!command.lives());
}

#[cfg(feature = "file")]
#[test]
fn a_loss_found_after_the_command_is_status_76() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = "rm locks/n.lock";
    let (code, _, stderr) = outcome(&mut scratch.run(&url, &["n", "--", "sh", "-c", script]));
    assert_eq!((code, stderr.lines().count()), (76, 1), "{stderr}");
}
