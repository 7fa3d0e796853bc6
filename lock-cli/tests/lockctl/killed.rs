//! Lock files only: `kill -9` at every system call, and threads that cannot be started. strace does
//! both.

use std::process::Command;

use serde_json::Value;

use crate::files::Fixture;
use crate::support::outcome;
use crate::verbs::acquire;

/// The system calls that lock, change or release something. C libraries use different ones.
const CALLS: &[&str] = &[
    "?openat",
    "flock",
    "pwrite64",
    "fsync",
    "?mkdir,?mkdirat",
    "?unlink,?unlinkat",
    "?rename,?renameat,?renameat2",
    "close",
];

/// Runs `lockctl <arguments>`, killed at its `n`th such call on the files of the lock `n`.
/// Returns false if it makes fewer, and so lives.
fn is_killed_at(fixture: &Fixture, call: &str, n: u32, arguments: &[&str]) -> bool {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(fixture.scratch.path("strace.log"));
    strace.args(["-e", &format!("inject={call}:signal=KILL:when={n}")]);
    let locks = fixture.scratch.locks();
    for file in ["", "n.lock", "n.lock.d", "n.lock.d/breaking", "n.lock.d/draft"] {
        strace.arg("-P").arg(locks.join(file));
    }
    strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &fixture.backend.url]);
    let output = strace.args(arguments).output();
    let output = output.expect("strace is missing; install it: apt-get install strace");
    assert!(output.status.success() || output.status.code().is_none(), "{output:?}");
    !output.status.success()
}

/// Kills the verb that `prepare` returns at each of its calls in turn. `check` judges the residue.
fn killed_at_each_call(prepare: impl Fn(&Fixture) -> Vec<String>, check: impl Fn(&Fixture, &str)) {
    let mut deaths = 0;
    for call in CALLS {
        for n in 1.. {
            let fixture = Fixture::new();
            let verb = prepare(&fixture);
            let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
            let killed = is_killed_at(&fixture, call, n, &verb);
            check(&fixture, &format!("{call} {n}"));
            if !killed {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths >= 5, "lockctl died at {deaths} calls only");
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_killed_acquire_leaves_a_lease_or_nothing() {
    let prepare = |fixture: &Fixture| {
        fixture.token();
        words("acquire --ttl 1m n")
    };
    killed_at_each_call(prepare, |fixture, at| {
        let (held, line, _) =
            fixture.backend.lockctl(&fixture.scratch, &["inspect", "--json", "n"]);
        let seen: Value = serde_json::from_str(&line).unwrap();
        if held == 0 {
            let expires_in = seen["holders"][0]["expires_in_ms"].as_u64();
            assert!(expires_in.is_some_and(|ms| ms <= 60_000), "{at}: {line}");
            assert_eq!(fixture.status(&["acquire", "-n", "n"]), 75, "{at}");
            assert_eq!(fixture.status(&["break", "--force", "n"]), 0, "{at}");
        }
        assert_eq!(fixture.status(&["acquire", "-n", "n"]), 0, "{at}");
    });
}

#[test]
fn a_killed_renew_or_release_can_be_repeated() {
    for verb in ["renew", "release"] {
        let prepare = |fixture: &Fixture| {
            let owner = acquire(&fixture.scratch, &fixture.backend, &["--ttl", "1m", "n"]).owner;
            std::fs::write(fixture.scratch.path("owner"), &owner).unwrap();
            words(&format!("{verb} --owner {owner} n"))
        };
        killed_at_each_call(prepare, |fixture, at| {
            let owner = fixture.scratch.read("owner");
            let again = fixture.status(&[verb, "--owner", &owner, "n"]);
            match verb {
                "renew" => {
                    assert_eq!(again, 0, "{at}");
                    assert_eq!(fixture.status(&["acquire", "-n", "n"]), 75, "{at}");
                }
                _ => {
                    assert!([0, 76].contains(&again), "{at}: {again}");
                    assert_eq!(fixture.status(&["acquire", "-n", "n"]), 0, "{at}");
                }
            }
        });
    }
}

#[test]
fn a_killed_run_leaves_a_free_lock_and_tokens_grow() {
    let prepare = |fixture: &Fixture| {
        let before = fixture.token().to_string();
        std::fs::write(fixture.scratch.path("before"), before).unwrap();
        words("run n -- true")
    };
    killed_at_each_call(prepare, |fixture, at| {
        let before: u64 = fixture.scratch.read("before").parse().unwrap();
        // A command that is just beginning may hold the lock for a moment.
        assert_eq!(fixture.status(&["run", "-w", "20", "n", "--", "true"]), 0, "{at}");
        assert!(fixture.token() > before, "{at}");
    });
}

#[test]
fn an_acquire_that_cannot_start_a_thread_releases() {
    let fixture = Fixture::new();
    // Reserves token numbers first, which takes a thread as well.
    assert_eq!(fixture.status(&["run", "n", "--", "true"]), 0);
    let mut strace = Command::new("strace");
    // The file backend starts the first thread.
    let inject = "inject=?clone,?clone3:error=EAGAIN:when=2+";
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", inject]);
    strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &fixture.backend.url]);
    let (code, stdout, stderr) = outcome(strace.args(["acquire", "--ttl", "1h", "n"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (70, "", 1), "{stderr}");
    assert!(stderr.starts_with("lockctl: cannot write to stdout"), "{stderr}");
    assert_eq!(fixture.status(&["inspect", "n"]), 1, "the lock was released");
}
