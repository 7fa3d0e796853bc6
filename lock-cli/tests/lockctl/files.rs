//! Lock files only: `kill -9` at every system call, orphans, flock(1).

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::backends::TestBackend;
use crate::support::{Running, Scratch, WRITE_PID, outcome, until};
use crate::verbs::{acquire, status};

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

struct Fixture {
    scratch: Scratch,
    backend: TestBackend,
}

impl Fixture {
    fn new() -> Self {
        let scratch = Scratch::new();
        let backend = TestBackend::file(&scratch);
        Self { scratch, backend }
    }

    fn status(&self, arguments: &[&str]) -> i32 {
        status(&self.scratch, &self.backend, arguments)
    }

    /// Runs `lockctl <arguments>`, killed at its `n`th such call on the files of the lock `n`.
    /// Returns false if it makes fewer, and so lives.
    fn is_killed_at(&self, call: &str, n: u32, arguments: &[&str]) -> bool {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-qq", "-o"]).arg(self.scratch.path("strace.log"));
        strace.args(["-e", &format!("inject={call}:signal=KILL:when={n}")]);
        let locks = self.scratch.locks();
        for file in ["", "n.lock", "n.lock.d", "n.lock.d/breaking", "n.lock.d/draft"] {
            strace.arg("-P").arg(locks.join(file));
        }
        strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &self.backend.url]);
        let output = strace.args(arguments).output();
        let output = output.expect("strace is missing; install it: apt-get install strace");
        assert!(output.status.success() || output.status.code().is_none(), "{output:?}");
        !output.status.success()
    }

    /// Acquires the free lock `n`, and returns its token.
    fn token(&self) -> u64 {
        let arguments = ["run", "-n", "n", "--", "printenv", "LOCK_FENCING_TOKEN"];
        let (code, token, stderr) = self.backend.lockctl(&self.scratch, &arguments);
        assert_eq!((code, stderr.as_str()), (0, ""));
        token.trim().parse().unwrap()
    }
}

/// Kills the verb that `prepare` returns at each of its calls in turn. `check` judges the residue.
fn killed_at_each_call(prepare: impl Fn(&Fixture) -> Vec<String>, check: impl Fn(&Fixture, &str)) {
    let mut deaths = 0;
    for call in CALLS {
        for n in 1.. {
            let fixture = Fixture::new();
            let verb = prepare(&fixture);
            let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
            let killed = fixture.is_killed_at(call, n, &verb);
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
fn inspect_shows_the_directory_of_the_locks() {
    let scratch = Scratch::new();
    let directory = scratch.locks().to_str().unwrap().to_owned();
    let inspect = |more: &[&str]| {
        let url = scratch.url();
        outcome(&mut scratch.lockctl(&[&["--backend", &*url, "inspect", "n"], more].concat())).1
    };
    assert!(inspect(&[]).contains(&format!("  in       {directory}\n")), "{}", inspect(&[]));
    let json = inspect(&["--json"]);
    assert!(json.contains(&format!("\"directory\":\"{directory}\"")), "{json}");
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

/// Breaks the lock of a command whose lockctl is dead. The command is not notified.
#[test]
fn the_lock_of_an_orphan_can_be_broken() {
    let fixture = Fixture::new();
    let script = "write_pid; while [ ! -e go ]; do sleep 0.01; done; touch done";
    let options = ["--ttl", "300ms", "n"];
    let (holder, orphan) = fixture.scratch.start(&fixture.backend.url, &options, script);
    let before = holder.pid();
    holder.signal(Signal::SIGKILL);
    assert_eq!(holder.end().0.code(), None);
    assert_eq!(fixture.status(&["run", "-n", "n", "--", "true"]), 75);
    let (code, stdout, _) = fixture.backend.lockctl(&fixture.scratch, &["break", "--force", "n"]);
    assert_eq!(code, 0);
    assert!(stdout.contains(&format!(":{before} (")), "{stdout}");
    assert_eq!(fixture.status(&["run", "-n", "n", "--", "true"]), 0);
    std::fs::write(fixture.scratch.path("go"), "").unwrap();
    until("the orphan runs to its end", || fixture.scratch.exists("done") && !orphan.lives());
}

#[test]
fn a_hold_of_flock_is_shown_and_cannot_be_broken() {
    let fixture = Fixture::new();
    fixture.token();
    let mut flock = std::process::Command::new("flock");
    let script = format!("{WRITE_PID} exec sleep 60");
    flock.arg(fixture.scratch.locks().join("n.lock")).args(["sh", "-c", &script]);
    let flock = Running::start(flock.current_dir(fixture.scratch.path("")));
    let command = fixture.scratch.read_pid();
    let (code, text, _) = fixture.backend.lockctl(&fixture.scratch, &["inspect", "n"]);
    assert!(code == 0 && text.contains("  pid ") && text.contains("without an owner id"), "{text}");
    let (code, stdout, stderr) =
        outcome(&mut fixture.backend.command(&fixture.scratch, &["break", "--force", "n"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    assert_eq!(fixture.status(&["acquire", "-n", "n"]), 75);
    command.signal(Signal::SIGKILL);
    drop(flock);
    assert_eq!(fixture.status(&["acquire", "-w", "20", "n"]), 0);
}

/// Kills lockctl in a container, where the kernel forgets which process has locked a file once that
/// process is gone.
#[test]
fn inside_a_container_the_lock_of_an_orphan_is_held() {
    let fixture = Fixture::new();
    let script = "\"$L\" run n -- sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 60' & \
        while [ ! -e pid ]; do sleep 0.01; done; kill -9 $!; wait $! 2>/dev/null; \
        \"$L\" inspect n >seen; echo $? >codes; \
        \"$L\" break --force n; echo $? >>codes; \
        kill -9 $(cat pid); \"$L\" run -w 20 n -- true; echo $? >>codes; \
        \"$L\" inspect n; echo $? >>codes";
    let mut container = std::process::Command::new("unshare");
    container.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
    container.args(["--mount-proc", "sh", "-c", script]);
    container.env("L", env!("CARGO_BIN_EXE_lockctl")).env("LOCK_BACKEND", &fixture.backend.url);
    let output = container.current_dir(fixture.scratch.path("")).output();
    let output = output.expect("unshare is missing; install it: apt-get install util-linux");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fixture.scratch.read("codes"), "0\n64\n0\n1\n", "{output:?}");
    let (seen, orphan) = (fixture.scratch.read("seen"), fixture.scratch.read("pid"));
    assert!(seen.contains("is held"), "{seen}");
    assert!(seen.contains(&format!("pid {}", orphan.trim())), "{seen}");
    std::fs::remove_file(fixture.scratch.path("pid")).unwrap();
}

#[test]
fn an_acquire_that_cannot_start_a_thread_releases() {
    let fixture = Fixture::new();
    // Reserves token numbers first, which takes a thread as well.
    assert_eq!(fixture.status(&["run", "n", "--", "true"]), 0);
    let mut strace = std::process::Command::new("strace");
    // The first thread is that of the file backend.
    let inject = "inject=?clone,?clone3:error=EAGAIN:when=2+";
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", inject]);
    strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &fixture.backend.url]);
    let (code, stdout, stderr) = outcome(strace.args(["acquire", "--ttl", "1h", "n"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (70, "", 1), "{stderr}");
    assert!(stderr.starts_with("lockctl: cannot write to stdout"), "{stderr}");
    assert_eq!(fixture.status(&["inspect", "n"]), 1, "the lock was released");
}
