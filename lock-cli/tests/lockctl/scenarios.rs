//! What people build from it: jobs of cron, scripts in two terminals, and help for a stuck holder.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::places::Place;
use crate::shell::Shell;
use crate::support::{Running, Scratch, TELL_PID, timed, until};

/// Many hosts run the same script at the same minute, with clocks that differ a little.
#[test]
fn a_job_that_starts_on_many_hosts_runs_once_per_period() {
    const HOSTS: usize = 6;
    let scratch = Scratch::new();
    for place in Place::all(&scratch) {
        let script = "\"$0\" --backend \"$1\" run --no-wait --min-hold 4s -E 0 every-minute -- \
            sh -c 'echo ran >>log'";
        let job = || {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script, env!("CARGO_BIN_EXE_lockctl"), &place.url]);
            Running::start(command.current_dir(scratch.path("")))
        };
        let ran = || std::fs::read_to_string(scratch.path("log")).unwrap_or_default();
        for period in 1..=2 {
            let ((), took) = timed(|| {
                let hosts: Vec<Running> = (0..HOSTS).map(|_| job()).collect();
                until("the job has run", || ran().lines().count() == period);
                // One whose clock is behind.
                let late = job();
                for host in hosts.into_iter().chain([late]) {
                    assert_eq!(host.code(), 0);
                }
                let next = ["run", "--wait", "20s", "every-minute", "--", "true"];
                assert_eq!(place.lockctl(&scratch, &next).0, 0);
            });
            assert_eq!(ran().lines().count(), period, "{}", place.scheme);
            assert!(took >= Duration::from_secs(4), "{}: {took:?}", place.scheme);
        }
        std::fs::remove_file(scratch.path("log")).unwrap();
    }
}

/// Where the server keeps others out, lockctl need not stay for that.
#[cfg(feature = "redis")]
#[test]
fn a_minimum_hold_that_the_server_keeps_does_not_keep_lockctl() {
    let scratch = Scratch::new();
    let place = Place::redis();
    let arguments = ["run", "--min-hold", "1h", "n", "--", "true"];
    let ((code, _, stderr), took) = timed(|| place.lockctl(&scratch, &arguments));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert_eq!(place.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 75);
    assert_eq!(place.lockctl(&scratch, &["break", "--force", "n"]).0, 0, "and can be ended");
    assert_eq!(place.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 0);
}

#[test]
fn a_minimum_hold_that_no_lock_can_have_is_refused_before_the_command_runs() {
    let scratch = Scratch::new();
    for place in Place::all(&scratch) {
        let arguments = ["run", "--min-hold", "2days", "n", "--", "touch", "ran"];
        let (code, _, stderr) = place.lockctl(&scratch, &arguments);
        assert_eq!((code, stderr.lines().count()), (64, 1), "{stderr}");
        assert!(!scratch.exists("ran"), "{}", place.scheme);
    }
}

#[test]
fn one_terminal_acquires_and_the_other_one_releases() {
    let scratch = Scratch::new();
    for place in Place::all_detached(&scratch) {
        let (mut first, mut second) = (Shell::start(&scratch), Shell::start(&scratch));
        for shell in [&mut first, &mut second] {
            shell.enter(&format!("export LOCK_BACKEND='{}'", place.url));
            assert_eq!(shell.status(), 0);
        }
        first.enter("\"$L\" acquire --ttl 1m deploy >lock");
        assert_eq!(first.status(), 0);
        second.enter("\"$L\" run --no-wait deploy -- true");
        assert_eq!(second.status(), 75);
        second.enter("\"$L\" acquire deploy");
        until("it waits in the foreground", || waits_for_lock(second.pid()));
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

/// True if the shell has a child that sleeps.
fn waits_for_lock(shell: u32) -> bool {
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    let children = children.unwrap_or_default();
    let Some(child) = children.split_whitespace().next() else { return false };
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    stat.contains("(lockctl) S")
}

/// A lockctl that is stopped does not renew, and does not see that its lock was taken from it.
#[test]
fn the_command_of_a_stuck_holder_is_killed_when_lockctl_goes_on() {
    let scratch = Scratch::new();
    let places = Place::all(&scratch);
    for place in places.iter().filter(|place| place.breaking) {
        for stops_command in [false, true] {
            let stays = format!("trap '' TERM; {TELL_PID} while :; do sleep 0.01; done");
            let arguments = ["run", "--ttl", "3s", "n", "--", "sh", "-c", &stays];
            let holder = Running::start(&mut place.command(&scratch, &arguments));
            let command = scratch.read_pid();
            holder.signal(Signal::SIGSTOP);
            until("lockctl is stopped", || holder.process().state() == Some('T'));
            if stops_command {
                command.signal_group(Signal::SIGSTOP);
            }
            let (code, stdout, stderr) = place.lockctl(&scratch, &["break", "--force", "n"]);
            assert_eq!((code, stderr.as_str()), (0, ""));
            let pid = format!(":{} (", holder.pid());
            assert!(stdout.contains(&pid), "{stdout}");
            assert_eq!(place.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 0);
            assert!(command.lives(), "until lockctl goes on: the fencing token is for that");

            let ((status, said), took) = timed(|| {
                holder.signal(Signal::SIGCONT);
                holder.end()
            });
            assert_eq!((status.code(), said.lines().count()), (Some(76), 1), "{said}");
            assert!(!command.lives());
            assert!(took < Duration::from_secs(10), "within a third of the lease: {took:?}");
            std::fs::remove_file(scratch.path("pid")).unwrap();
        }
    }
}

#[test]
fn a_holder_whose_lock_was_broken_is_told_within_a_third_of_its_lease() {
    let scratch = Scratch::new();
    let places = Place::all(&scratch);
    for place in places.iter().filter(|place| place.breaking) {
        let stays = format!("trap '' TERM; {TELL_PID} while :; do sleep 0.01; done");
        let arguments = ["run", "--ttl", "3s", "n", "--", "sh", "-c", &stays];
        let holder = Running::start(&mut place.command(&scratch, &arguments));
        let command = scratch.read_pid();
        let next = place.command(&scratch, &["run", "n", "--", "true"]);
        let next = Running::start(&mut { next });
        next.process().await_idle();
        let ((status, said), took) = timed(|| {
            assert_eq!(place.lockctl(&scratch, &["break", "--force", "n"]).0, 0);
            holder.end()
        });
        assert_eq!((status.code(), said.lines().count()), (Some(76), 1), "{said}");
        assert!(!command.lives());
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!(next.code(), 0);
        std::fs::remove_file(scratch.path("pid")).unwrap();
    }
}
