//! Wrong usage: one line with the remedy, and status 64, before any I/O.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use crate::support::{Scratch, outcome};

const OWNER: &str = "6f1ed002ab5595859014ebf0951522d9";

#[test]
fn wrong_usage_is_one_line_and_64_before_any_io() {
    let scratch = Scratch::new();
    let long_name = "x".repeat(100_000);
    let cases: &[&[&str]] = &[
        &[],
        &["run"],
        &["run", "n"],
        &["run", "n", "--"],
        &["run", "n", "true"],
        &["run", "n", "m", "--", "true"],
        &["run", "--", "true"],
        &["run", "", "--", "true"],
        &["run", &long_name, "--", "true"],
        &["run", "--ttl", "0", "n", "--", "true"],
        &["run", "--ttl", "0s", "n", "--", "true"],
        &["run", "--ttl", "-5s", "n", "--", "true"],
        &["run", "--ttl=-5s", "n", "--", "true"],
        &["run", "--ttl", "1ns", "n", "--", "true"],
        &["run", "--ttl", "1year", "n", "--", "true"],
        &["run", "--ttl", "1 year", "n", "--", "true"],
        &["run", "--ttl", "99999999999999999999s", "n", "--", "true"],
        &["run", "--ttl", "30e1", "n", "--", "true"],
        &["run", "--ttl", "100000", "n", "--", "true"],
        &["run", "--ttl", "", "n", "--", "true"],
        &["run", "--ttl"],
        &["run", "--wait", "-1", "n", "--", "true"],
        &["run", "--wait", "1year", "n", "--", "true"],
        &["run", "-w", "99999999999999999999", "n", "--", "true"],
        &["run", "-w", "soon", "n", "--", "true"],
        &["run", "-n", "-w", "1", "n", "--", "true"],
        &["run", "-w", "1", "-w", "2", "n", "--", "true"],
        &["run", "-E", "256", "n", "--", "true"],
        &["run", "-E", "-1", "n", "--", "true"],
        &["run", "--min-hold", "0s", "n", "--", "true"],
        &["run", "--min-hold", "-1s", "n", "--", "true"],
        &["run", "--min-hold", "1year", "n", "--", "true"],
        &["run", "--grace", "0s", "n", "--", "true"],
        &["run", "--grace", "10s", "n", "--", "true"],
        &["run", "--ttl", "3s", "--grace", "1s", "n", "--", "true"],
        &["run", "--colour", "n", "--", "true"],
        &["run", "-x", "--", "true"],
        &["run", "--name=", "--", "true"],
        &["run", "--name=-x", "n", "--", "true"],
        &["run", "--name"],
        &["walk", "n", "--", "true"],
        &["__run", "n", "--", "true"],
        &["__exec"],
        &["__die", "soon"],
        &["acquire"],
        &["acquire", ""],
        &["acquire", &long_name],
        &["acquire", "n", "m"],
        &["acquire", "n", "--", "true"],
        &["acquire", "--ttl", "0s", "n"],
        &["acquire", "--ttl", "25h", "n"],
        &["acquire", "-n", "-w", "1", "n"],
        &["acquire", "-w", "soon", "n"],
        &["acquire", "-E", "256", "n"],
        &["acquire", "--min-hold", "1s", "n"],
        &["renew"],
        &["renew", "n"],
        &["renew", "--owner", "secret", "n"],
        &["renew", "--owner", "--ttl", "n"],
        &["renew", "--owner", OWNER],
        &["renew", "--owner", OWNER, "--owner", OWNER, "n"],
        &["renew", "--owner", OWNER, "--ttl", "1ns", "n"],
        &["release"],
        &["release", "n"],
        &["release", "--owner", "secret", "n"],
        &["release", "--force", "n"],
        &["inspect"],
        &["inspect", "n", "m"],
        &["inspect", "--owner", "n"],
        &["list", "n"],
        &["list", "--prefix"],
        &["list", "--show-owner"],
        &["top", "n"],
        &["top", "--interval", "0s"],
        &["top", "--interval", "2s", "--once"],
        &["break"],
        &["break", "n"],
        &["break", "--force"],
        &["break", "--force", "--owner", OWNER, "n"],
        &["break", "--owner", "secret", "n"],
        &["doctor", "a", "b"],
        &["doctor", "here"],
        &["doctor", "--show-owner"],
        &["doctor", "gopher://u:secret@h"],
        &["doctor", "file:locks"],
        &["doctor", "redis://u:se?secret@h"],
        &["--backend", "file:", "doctor", "file:"],
        &["completions"],
        &["completions", "tcsh"],
        &["completions", "bash", "zsh"],
        &["man", "walk"],
        &["man", "run", "walk"],
        &["--backend"],
        &["--backend", "", "run", "n", "--", "true"],
        &["--backend", "here", "run", "n", "--", "true"],
        &["--backend", "gopher://u:secret@h", "run", "n", "--", "true"],
        &["gopher://u:secret@h", "run", "n", "--", "true"],
        &["run", "n", "gopher://u:secret@h", "--", "true"],
        &["--backend", "memory:?speed=high", "run", "n", "--", "true"],
        &["--backend", "memory:?ttl=0s", "run", "n", "--", "true"],
        &["--backend", "memory:?ttl=1s", "run", "--grace", "1s", "n", "--", "true"],
        &["--backend", "memory:?max_ttl=1s", "run", "--grace", "1s", "n", "--", "true"],
        &["--backend", "memory:?outage_timeout=500000000000years", "run", "n", "--", "true"],
        &["--backend", "redis://u:se?secret@h", "run", "n", "--", "true"],
        &["--backend", "file:locks", "run", "n", "--", "true"],
        &["--backend", "file:///tmp/a%00b", "run", "n", "--", "true"],
        &["--backend", "file:///", "run", "n", "--", "true"],
    ];
    for case in cases {
        let mut command = scratch.lockctl(case);
        let (code, stdout, stderr) = outcome(command.env("LOCK_BACKEND", scratch.url()));
        let shown: Vec<String> = case.iter().map(|word| word.chars().take(40).collect()).collect();
        assert_eq!(code, 64, "{shown:?}: {stderr}");
        assert_eq!(stdout, "", "{shown:?}");
        assert_eq!(stderr.lines().count(), 1, "{shown:?}: {stderr}");
        assert!(stderr.starts_with("lockctl: "), "{shown:?}: {stderr}");
        assert!(stderr.len() < 300, "{shown:?}: {stderr}");
        assert!(!stderr.contains("secret"), "{shown:?}: {stderr}");
        assert!(!stderr.contains(&OWNER[..9]), "{shown:?}: {stderr}");
        assert!(!scratch.locks().exists(), "{shown:?} made the lock directory");
    }
}

#[test]
fn names_and_urls_must_be_utf8() {
    let scratch = Scratch::new();
    let odd = OsStr::from_bytes(b"n\xff");
    let mut as_name = scratch.lockctl(&["run"]);
    as_name.arg(odd).args(["--", "true"]);
    assert_eq!(outcome(&mut as_name).0, 64);
    let mut as_url = scratch.lockctl(&["run", "n", "--", "true"]);
    assert_eq!(outcome(as_url.env("LOCK_BACKEND", odd)).0, 64);
    // The arguments of a command may be anything.
    let mut as_argument = scratch.run("memory:", &["n", "--", "printf", "%s"]);
    let output = as_argument.arg(odd).output().unwrap();
    assert_eq!(output.stdout, b"n\xff");
}

#[test]
fn a_name_may_begin_with_a_dash() {
    let scratch = Scratch::new();
    let mut command = scratch.run("memory:", &["--name=-n", "--", "printenv", "LOCK_NAME"]);
    assert_eq!(outcome(&mut command), (0, "-n\n".to_owned(), String::new()));
}

/// Checks that a wrong `$LOCK_BACKEND` does not stop a verb that needs no backend.
#[test]
fn internal_verbs_do_not_read_the_environment() {
    let scratch = Scratch::new();
    let mut exec = scratch.lockctl(&["__exec", "--", "echo", "ran"]);
    let odd = OsStr::from_bytes(b"gopher:\xff");
    let (code, stdout, stderr) = outcome(exec.env("LOCK_BACKEND", odd));
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "ran\n", ""));
}

#[test]
fn help_and_version_are_no_errors() {
    let scratch = Scratch::new();
    for (question, answer) in [
        (&["--help"][..], "run"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["run", "--help"], "Exit status"),
        (&["run", "-h"], "--min-hold"),
        (&["help", "run"], "SIGTERM"),
        (&["--help"], "inspect"),
        (&["help", "break"], "newer one alone"),
    ] {
        let (code, stdout, stderr) = outcome(&mut scratch.lockctl(question));
        assert_eq!((code, stderr.as_str()), (0, ""), "{question:?}");
        assert!(stdout.contains(answer), "{question:?}: {stdout}");
        assert!(!stdout.contains("__"), "{question:?}: {stdout}");
    }
}

#[test]
fn the_backend_comes_from_the_option_then_the_environment() {
    let scratch = Scratch::new();
    // A lock file is seen among the descriptors that the command inherits.
    let uses_files = |arguments: &[&str], environment: Option<&str>| {
        let mut command = scratch.lockctl(arguments);
        command.args(["lockctl-self-test", "--", "sh", "-c", "readlink /proc/$$/fd/*"]);
        command.envs(environment.map(|url| ("LOCK_BACKEND", url)));
        outcome(&mut command).1.contains("/lockctl-self-test.lock\n")
    };
    // Without the default URL, to which this test would write: a unit test has it.
    assert!(uses_files(&["run"], Some(&scratch.url())));
    std::fs::remove_dir_all(scratch.locks()).unwrap();
    assert!(!uses_files(&["run"], Some("memory:")));
    assert!(!uses_files(&["--backend", "memory:", "run"], Some("gopher:")));
    assert!(!uses_files(&["run", "--backend", "memory:"], Some("gopher:")));
    assert!(!scratch.locks().exists());
    assert!(uses_files(&["run", "--backend", &scratch.url()], Some("memory:")));
    assert!(scratch.locks().join("lockctl-self-test.lock").exists());
}

#[test]
fn a_backend_that_refuses_is_not_wrong_usage() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.locks()).unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scratch.locks(), open_to_all).unwrap();
    let (code, _, stderr) = outcome(&mut scratch.run(&scratch.url(), &["n", "--", "true"]));
    assert_eq!((code, stderr.lines().count()), (77, 1), "{stderr}");
}

#[test]
fn a_file_size_limit_is_an_error_of_the_lock() {
    let scratch = Scratch::new();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_lockctl")]);
    limited.args(["--backend", &scratch.url(), "run", "n", "--", "true"]);
    let (code, _, stderr) = outcome(&mut limited);
    assert_eq!((code, stderr.lines().count()), (69, 1), "{stderr}");
}

/// Checks that a message is one write, so that those of simultaneous cron jobs do not mix.
#[test]
fn a_message_is_one_write() {
    let scratch = Scratch::new();
    let (ours, its) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let mut lockctl = scratch.run("memory:", &["n", "--", "./missing"]);
    lockctl.stderr(std::os::fd::OwnedFd::from(its));
    assert_eq!(lockctl.status().unwrap().code(), Some(127));
    let mut message = [0; 1000];
    let length = ours.recv(&mut message).unwrap();
    let message = String::from_utf8_lossy(&message[..length]);
    assert!(message.starts_with("lockctl: cannot run") && message.ends_with('\n'), "{message:?}");
}

#[test]
fn a_file_size_limit_is_an_error_of_the_output() {
    let scratch = Scratch::new();
    let mut limited = std::process::Command::new("sh");
    let script = "ulimit -f 0; exec \"$@\" >out";
    limited.args(["-c", script, "sh", env!("CARGO_BIN_EXE_lockctl")]);
    limited.args(["--backend", &scratch.url(), "inspect", "n"]).current_dir(scratch.path(""));
    let (code, _, stderr) = outcome(&mut limited);
    assert_eq!((code, stderr.lines().count()), (70, 1), "{stderr}");
}
