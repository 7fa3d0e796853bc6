//! Uses of lockctl: cron jobs, scripts in two terminals, recovery from a stuck holder.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::backends::TestBackend;
use crate::shell::Shell;
use crate::support::{Running, Scratch, timed, until};

/// Starts the same script on many hosts in the same minute, with clocks that differ a little.
#[test]
fn a_job_that_starts_on_many_hosts_runs_once_per_period() {
    const HOSTS: usize = 6;
    let scratch = Scratch::new();
    for backend in TestBackend::all(&scratch) {
        let script = "\"$0\" --backend \"$1\" run --no-wait --min-hold 4s -E 0 every-minute -- \
            sh -c 'echo ran >>log'";
        let job = || {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script, env!("CARGO_BIN_EXE_lockctl"), &backend.url]);
            Running::start(command.current_dir(scratch.path("")))
        };
        let ran = || std::fs::read_to_string(scratch.path("log")).unwrap_or_default();
        for period in 1..=2 {
            let ((), took) = timed(|| {
                let hosts: Vec<Running> = (0..HOSTS).map(|_| job()).collect();
                until("the job has run", || ran().lines().count() == period);
                // A host whose clock is behind.
                let late = job();
                for host in hosts.into_iter().chain([late]) {
                    assert_eq!(host.code(), 0);
                }
                let next = ["run", "--wait", "20s", "every-minute", "--", "true"];
                assert_eq!(backend.lockctl(&scratch, &next).0, 0);
            });
            assert_eq!(ran().lines().count(), period, "{}", backend.scheme);
            assert!(took >= Duration::from_secs(4), "{}: {took:?}", backend.scheme);
        }
        std::fs::remove_file(scratch.path("log")).unwrap();
    }
}

/// Checks that lockctl ends with its command where the server enforces the minimum hold.
#[cfg(feature = "redis")]
#[test]
fn a_minimum_hold_on_the_server_does_not_delay_lockctl() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let arguments = ["run", "--min-hold", "1h", "n", "--", "true"];
    let ((code, _, stderr), took) = timed(|| backend.lockctl(&scratch, &arguments));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert_eq!(backend.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 75);
    assert_eq!(
        backend.lockctl(&scratch, &["break", "--force", "n"]).0,
        0,
        "a minimum hold can be broken"
    );
    assert_eq!(backend.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 0);
}

#[test]
fn a_too_long_minimum_hold_is_refused_before_the_command_runs() {
    let scratch = Scratch::new();
    for backend in TestBackend::all(&scratch) {
        let arguments = ["run", "--min-hold", "2days", "n", "--", "touch", "ran"];
        let (code, _, stderr) = backend.lockctl(&scratch, &arguments);
        assert_eq!((code, stderr.lines().count()), (64, 1), "{stderr}");
        assert!(!scratch.exists("ran"), "{}", backend.scheme);
    }
}

#[test]
fn one_terminal_acquires_and_another_releases() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let (mut first, mut second) = (Shell::start(&scratch), Shell::start(&scratch));
        for shell in [&mut first, &mut second] {
            shell.enter(&format!("export LOCK_BACKEND='{}'", backend.url));
            assert_eq!(shell.status(), 0);
        }
        first.enter("\"$L\" acquire --ttl 1m deploy >lock");
        assert_eq!(first.status(), 0);
        second.enter("\"$L\" run --no-wait deploy -- true");
        assert_eq!(second.status(), 75);
        second.enter("\"$L\" acquire deploy");
        until("lockctl waits in the foreground", || waits_for_lock(second.pid()));
        second.press("\x03");
        assert_eq!(second.status(), 130);
        second.enter("export LOCK_OWNER=$(sed 's/.*\"owner\":\"\\([^\"]*\\)\".*/\\1/' lock)");
        assert_eq!(second.status(), 0);
        for status in [0, 76] {
            second.enter("\"$L\" release deploy");
            assert_eq!(second.status(), status);
        }
        first.enter("\"$L\" run --no-wait deploy -- true");
        assert_eq!(first.status(), 0);
    }
}

/// Returns true if the shell has a lockctl that sleeps.
fn waits_for_lock(shell: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    let children = children.unwrap_or_default();
    let Some(child) = children.split_whitespace().next() else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    stat.contains("(lockctl) S")
}

/// Breaks the lock of a stopped lockctl, which does not notice the loss until it resumes.
#[test]
fn the_command_of_a_stopped_lockctl_is_killed_on_resuming() {
    let scratch = Scratch::new();
    let backends = TestBackend::all(&scratch);
    for backend in backends.iter().filter(|backend| backend.breaking) {
        for stops_command in [false, true] {
            let script = "trap '' TERM; write_pid; while :; do sleep 0.01; done";
            let (holder, command) = scratch.start(&backend.url, &["--ttl", "3s", "n"], script);
            holder.signal(Signal::SIGSTOP);
            until("lockctl is stopped", || holder.process().state() == Some('T'));
            if stops_command {
                command.signal_group(Signal::SIGSTOP);
            }
            let (code, stdout, stderr) = backend.lockctl(&scratch, &["break", "--force", "n"]);
            assert_eq!((code, stderr.as_str()), (0, ""));
            let pid = format!(":{} (", holder.pid());
            assert!(stdout.contains(&pid), "{stdout}");
            assert_eq!(backend.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 0);
            assert!(command.lives(), "the command continues until lockctl resumes");

            let ((status, stderr), took) = timed(|| {
                holder.signal(Signal::SIGCONT);
                holder.end()
            });
            assert_eq!((status.code(), stderr.lines().count()), (Some(76), 1), "{stderr}");
            assert!(!command.lives());
            assert!(took < Duration::from_secs(10), "within a third of the lease: {took:?}");
        }
    }
}

#[test]
fn a_broken_hold_ends_within_a_third_of_its_lease() {
    let scratch = Scratch::new();
    let backends = TestBackend::all(&scratch);
    for backend in backends.iter().filter(|backend| backend.breaking) {
        let script = "trap '' TERM; write_pid; while :; do sleep 0.01; done";
        let (holder, command) = scratch.start(&backend.url, &["--ttl", "3s", "n"], script);
        let next = backend.command(&scratch, &["run", "n", "--", "true"]);
        let next = Running::start(&mut { next });
        next.process().await_idle();
        let ((status, stderr), took) = timed(|| {
            assert_eq!(backend.lockctl(&scratch, &["break", "--force", "n"]).0, 0);
            holder.end()
        });
        assert_eq!((status.code(), stderr.lines().count()), (Some(76), 1), "{stderr}");
        assert!(!command.lives());
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(next.code(), 0);
    }
}
