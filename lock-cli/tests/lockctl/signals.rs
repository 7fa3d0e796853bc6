//! Signals to the command while there is one, and to lockctl while it waits.

use std::os::unix::process::ExitStatusExt as _;

use nix::sys::signal::{SigSet, Signal};

use crate::support::{Running, Scratch, WRITE_PID, outcome, until};

#[test]
fn signals_are_forwarded_to_the_whole_group() {
    let scratch = Scratch::new();
    // The inner shell is in the same group.
    let script = "for s in TERM INT HUP QUIT USR1 USR2 ALRM; do trap \"echo $s >>got\" $s; done; trap 'exit 4' WINCH
         sh -c 'trap \"touch inner\" USR1; touch ready; while [ ! -e inner ]; do sleep 0.01; done' & \
         while [ ! -e ready ]; do sleep 0.01; done; write_pid; while :; do sleep 0.01; done";
    let (holder, _) = scratch.start("memory:", &["n"], script);
    let mut expected = String::new();
    for signal in ["USR1", "TERM", "INT", "HUP", "QUIT", "USR2", "ALRM"] {
        holder.signal(format!("SIG{signal}").parse().unwrap());
        expected += &format!("{signal}\n");
        until(signal, || scratch.exists("got") && scratch.read("got") == expected);
        until("the inner shell received the first signal", || scratch.exists("inner"));
    }
    holder.signal(Signal::SIGWINCH);
    assert_eq!(holder.code(), 4, "the command decides how it ends");
}

#[test]
fn a_command_that_dies_of_a_forwarded_signal_sets_the_status() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        let url = url.as_str();
        let (holder, _) = scratch.start(url, &["n"], "write_pid; exec sleep 60");
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.code(), 143);
    }
}

/// Checks that lockctl dies of the signal: only then a script or a loop around it ends as well.
#[test]
fn a_command_that_dies_of_a_forwarded_interrupt_takes_lockctl_with_it() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        for signal in [Signal::SIGINT, Signal::SIGQUIT] {
            let (holder, _) = scratch.start(&url, &["n"], "ulimit -c 0; write_pid; exec sleep 60");
            holder.signal(signal);
            let (status, stderr) = holder.end();
            assert_eq!((status.signal(), stderr.as_str()), (Some(signal as i32), ""), "{url}");
            assert!(!status.core_dumped());
            assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
        }
    }
}

#[test]
fn an_interrupt_of_the_commands_own_does_not_kill_lockctl() {
    let scratch = Scratch::new();
    let arguments = ["n", "--", "sh", "-c", "kill -INT $$"];
    assert_eq!(outcome(&mut scratch.run("memory:", &arguments)).0, 130);
}

#[test]
fn blocked_signals_are_unblocked() {
    // The test's thread blocks them, and its child processes inherit that.
    let mut blocked = SigSet::from(Signal::SIGCHLD);
    blocked.add(Signal::SIGTERM);
    blocked.thread_block().unwrap();
    let scratch = Scratch::new();
    for url in scratch.urls() {
        let ended = Running::start(&mut scratch.run(&url, &["n", "--", "true"]));
        assert_eq!(ended.code(), 0, "{url}: the end of the command is seen");
        let (holder, _) = scratch.start(&url, &["n"], "write_pid; exec sleep 60");
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.code(), 143, "{url}");
    }
}

#[test]
fn a_signal_ends_the_wait() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (holder, _) =
        scratch.start(&url, &["n"], "write_pid; while [ ! -e go ]; do sleep 0.01; done");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        let waiter = Running::start(&mut scratch.run(&url, &["n", "--", "touch", "intruded"]));
        await_wait(&waiter);
        waiter.signal(signal);
        let (status, stderr) = waiter.end();
        assert_eq!((status.signal(), stderr.as_str()), (Some(signal as i32), ""));
        assert!(!status.core_dumped());
    }
    std::fs::write(scratch.path("go"), "").unwrap();
    assert_eq!(holder.code(), 0);
    assert_eq!(outcome(&mut scratch.run(&url, &["-n", "n", "--", "true"])).0, 0);
    assert!(!scratch.exists("intruded"));
}

/// Waits until lockctl has opened the lock file. It catches its signals before that.
fn await_wait(waiter: &Running) {
    let descriptors = format!("/proc/{}/fd", waiter.pid());
    until("lockctl waits", || {
        std::fs::read_dir(&descriptors).is_ok_and(|mut found| {
            found.any(|entry| {
                let target = entry.and_then(|entry| std::fs::read_link(entry.path()));
                target.is_ok_and(|target| target.ends_with("n.lock"))
            })
        })
    });
}

#[test]
fn ignored_signals_stay_ignored() {
    let scratch = Scratch::new();
    let script = format!("{WRITE_PID} while [ ! -e go ]; do sleep 0.01; done; exit 6");
    let mut nohup = std::process::Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lockctl")]);
    nohup.args(["--backend", "memory:", "run", "n", "--", "sh", "-c", &script]);
    let holder = Running::start(nohup.current_dir(scratch.path("")));
    let command = scratch.read_pid();
    holder.signal(Signal::SIGHUP);
    command.signal(Signal::SIGHUP);
    std::fs::write(scratch.path("go"), "").unwrap();
    assert_eq!(holder.code(), 6);
}

#[test]
fn an_ignored_file_size_signal_stays_ignored() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        let mut ignoring = std::process::Command::new("sh");
        ignoring.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lockctl")]);
        ignoring.args(["--backend", &url, "run", "n", "--", "grep", "SigIgn", "/proc/self/status"]);
        let (code, ignored, stderr) = outcome(&mut ignoring);
        assert_eq!((code, stderr.as_str()), (0, ""), "{url}");
        let ignored = ignored.trim_start_matches("SigIgn:").trim();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_ne!(ignored & 1 << (Signal::SIGXFSZ as i32 - 1), 0, "{url}: {ignored:x}");
    }
}

#[test]
fn a_command_stopped_by_hand_keeps_its_lock() {
    let scratch = Scratch::new();
    let script = "write_pid; while [ ! -e go ]; do sleep 0.01; done; exit 6";
    let (holder, command) = scratch.start("memory:?ttl=1s", &["n"], script);
    command.signal(Signal::SIGSTOP);
    until("the command is stopped", || command.state() == Some('T'));
    let passed = lock_any::clock::Moment::now() + std::time::Duration::from_secs(2);
    until("twice the lease has passed", || passed.has_passed());
    assert_ne!(holder.process().state(), Some('T'), "lockctl is stopped");
    std::fs::write(scratch.path("go"), "").unwrap();
    // lockctl forwards it to the command.
    holder.signal(Signal::SIGCONT);
    assert_eq!(holder.code(), 6);
}
