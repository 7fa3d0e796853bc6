//! The lock is lost, or lockctl is gone: the command does not run on unlocked.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Running, Scratch, TELL_PID, outcome, timed, until};

/// Writes its process id, and stays whatever is asked of it, until there is a file `go`.
fn stays() -> String {
    format!("trap '' TERM; {TELL_PID} while [ ! -e go ]; do sleep 0.01; done; touch done")
}

#[cfg(feature = "file")]
#[test]
fn a_command_whose_lockctl_was_killed_keeps_a_kernel_lock_to_its_end() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let first = Running::start(&mut scratch.run(&url, &["n", "--", "sh", "-c", &stays()]));
    let command = scratch.read_pid();
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
        assert_eq!(second.code(), 0, "it began after the orphan had ended");
    });
    assert!(took < Duration::from_secs(5), "at once, not after a lease: {took:?}");
}

/// The process that has to be killed is the one that is shown.
#[cfg(feature = "file")]
#[test]
fn inspect_names_the_command_that_keeps_the_lock_of_a_dead_lockctl() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let first = Running::start(&mut scratch.run(&url, &["n", "--", "sh", "-c", &stays()]));
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
    let first = Running::start(&mut scratch.run(&url, &["n", "--", "sh", "-c", &stays()]));
    let command = scratch.read_pid();
    first.signal(Signal::SIGKILL);
    command.signal_group(Signal::SIGKILL);
    assert_eq!(outcome(&mut scratch.run(&url, &["-w", "10", "n", "--", "true"])).0, 0);
}

#[cfg(feature = "file")]
#[test]
fn what_a_command_leaves_behind_does_not_keep_a_kernel_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = format!(
        "({TELL_PID} exec sleep 60) >/dev/null 2>&1 & while [ ! -e pid ]; do sleep 0.01; done; echo $! >left"
    );
    assert_eq!(outcome(&mut scratch.run(&url, &["n", "--", "sh", "-c", &script])).0, 0);
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
    let left = nix::unistd::Pid::from_raw(scratch.read("left").trim().parse().unwrap());
    nix::sys::signal::kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn under_a_lease_a_command_dies_with_its_lockctl() {
    let scratch = Scratch::new();
    let first = Running::start(&mut scratch.run("memory:", &["n", "--", "sh", "-c", &stays()]));
    let command = scratch.read_pid();
    assert!(command.lives());
    first.signal(Signal::SIGKILL);
    until("the command is gone", || !command.lives());
    assert!(!scratch.exists("done"));
}

/// Two locks are taken by a lockctl inside a lockctl. The kernel's lock that the inner one hands on
/// does not keep the lease of the outer one.
#[test]
fn under_a_lease_and_a_kernel_lock_a_command_dies_with_the_lockctl_of_the_lease() {
    let scratch = Scratch::new();
    let (inner, stays) = (scratch.url(), stays());
    let lockctl = env!("CARGO_BIN_EXE_lockctl");
    let nested = [lockctl, "--backend", &inner, "run", "m", "--", "sh", "-c", &stays];
    let holder = Running::start(&mut scratch.run("memory:", &[&["n", "--"][..], &nested].concat()));
    let command = scratch.read_pid();
    holder.signal(Signal::SIGKILL);
    until("the command is dead", || !command.lives());
}

#[test]
fn a_lockctl_that_was_stopped_past_its_lease_kills_the_command_when_it_goes_on() {
    let scratch = Scratch::new();
    let mut holder = scratch.run("memory:?ttl=1s", &["n", "--", "sh", "-c", &stays()]);
    let holder = Running::start(&mut holder);
    let command = scratch.read_pid();
    holder.signal(Signal::SIGSTOP);
    until("lockctl is stopped", || holder.process().state() == Some('T'));
    let passed = lock_any::clock::Moment::now() + Duration::from_secs(2);
    until("twice the lease has passed", || passed.has_passed());
    assert!(command.lives());
    holder.signal(Signal::SIGCONT);
    let (status, said) = holder.end();
    assert_eq!((status.code(), said.lines().count()), (Some(76), 1), "{said}");
    assert!(!command.lives());
}

#[cfg(feature = "file")]
#[test]
fn a_lock_file_that_is_removed_is_a_lost_lock() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let arguments = ["--ttl", "300ms", "n", "--", "sh", "-c", &stays()];
    let holder = Running::start(&mut scratch.run(&url, &arguments));
    let command = scratch.read_pid();
    std::fs::remove_file(scratch.locks().join("n.lock")).unwrap();
    let (status, said) = holder.end();
    assert_eq!((status.code(), said.lines().count()), (Some(76), 1), "{said}");
    assert!(said.contains("\"n\""), "{said}");
    assert!(!command.lives());
}

#[cfg(feature = "file")]
#[test]
fn a_lock_that_is_found_lost_after_the_command_is_76_too() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = "rm locks/n.lock";
    let (code, _, stderr) = outcome(&mut scratch.run(&url, &["n", "--", "sh", "-c", script]));
    assert_eq!((code, stderr.lines().count()), (76, 1), "{stderr}");
}
