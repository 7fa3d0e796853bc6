//! What is special about locks in files: `kill -9` at every system call, orphans, flock(1).

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::places::Place;
use crate::support::{Process, Running, Scratch, TELL_PID, outcome, until};
use crate::verbs::{acquire, status};

/// Those by which something is locked, changed or let go, whatever the C library calls them.
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

struct Stage {
    scratch: Scratch,
    place: Place,
}

impl Stage {
    fn set() -> Self {
        let scratch = Scratch::new();
        let place = Place::file(&scratch);
        Self { scratch, place }
    }

    fn status(&self, arguments: &[&str]) -> i32 {
        status(&self.scratch, &self.place, arguments)
    }

    /// `lockctl <arguments>`, killed at its `n`th such call on the files of the lock `n`. False if it
    /// makes none, and so lives.
    fn is_killed_at(&self, call: &str, n: u32, arguments: &[&str]) -> bool {
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-qq", "-o"]).arg(self.scratch.path("strace.log"));
        strace.args(["-e", &format!("inject={call}:signal=KILL:when={n}")]);
        let locks = self.scratch.locks();
        for file in ["", "n.lock", "n.lock.d", "n.lock.d/breaking", "n.lock.d/draft"] {
            strace.arg("-P").arg(locks.join(file));
        }
        strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &self.place.url]);
        let output = strace.args(arguments).output();
        let output = output.expect("strace is missing; install it: apt-get install strace");
        assert!(output.status.success() || output.status.code().is_none(), "{output:?}");
        !output.status.success()
    }

    /// The token of a lock that is free.
    fn token(&self) -> u64 {
        let arguments = ["run", "-n", "n", "--", "printenv", "LOCK_FENCING_TOKEN"];
        let (code, token, stderr) = self.place.lockctl(&self.scratch, &arguments);
        assert_eq!((code, stderr.as_str()), (0, ""));
        token.trim().parse().unwrap()
    }
}

/// Sets the stage, has `verb` of it killed at each call in turn, and looks at what is left.
fn wherever_it_dies(set: impl Fn(&Stage) -> Vec<String>, left: impl Fn(&Stage, &str)) {
    let mut deaths = 0;
    for call in CALLS {
        for n in 1.. {
            let stage = Stage::set();
            let verb = set(&stage);
            let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
            let killed = stage.is_killed_at(call, n, &verb);
            left(&stage, &format!("{call} {n}"));
            if !killed {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths >= 5, "only {deaths} places to die at were found");
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
fn a_dead_acquire_leaves_a_lease_that_ends_or_nothing() {
    let set = |stage: &Stage| {
        stage.token();
        words("acquire --ttl 1m n")
    };
    wherever_it_dies(set, |stage, at| {
        let (held, line, _) = stage.place.lockctl(&stage.scratch, &["inspect", "--json", "n"]);
        let seen: Value = serde_json::from_str(&line).unwrap();
        if held == 0 {
            let expires_in = seen["holders"][0]["expires_in_ms"].as_u64();
            assert!(expires_in.is_some_and(|ms| ms <= 60_000), "{at}: {line}");
            assert_eq!(stage.status(&["acquire", "-n", "n"]), 75, "{at}");
            assert_eq!(stage.status(&["break", "--force", "n"]), 0, "{at}");
        }
        assert_eq!(stage.status(&["acquire", "-n", "n"]), 0, "{at}");
    });
}

#[test]
fn the_owner_of_a_dead_renewal_or_release_can_repeat_it() {
    for verb in ["renew", "release"] {
        let set = |stage: &Stage| {
            let owner = acquire(&stage.scratch, &stage.place, &["--ttl", "1m", "n"]).owner;
            std::fs::write(stage.scratch.path("owner"), &owner).unwrap();
            words(&format!("{verb} --owner {owner} n"))
        };
        wherever_it_dies(set, |stage, at| {
            let owner = stage.scratch.read("owner");
            let again = stage.status(&[verb, "--owner", &owner, "n"]);
            match verb {
                "renew" => {
                    assert_eq!(again, 0, "{at}");
                    assert_eq!(stage.status(&["acquire", "-n", "n"]), 75, "{at}");
                }
                _ => {
                    assert!([0, 76].contains(&again), "{at}: {again}");
                    assert_eq!(stage.status(&["acquire", "-n", "n"]), 0, "{at}");
                }
            }
        });
    }
}

#[test]
fn a_run_that_dies_leaves_a_free_lock_and_tokens_grow() {
    let set = |stage: &Stage| {
        let before = stage.token().to_string();
        std::fs::write(stage.scratch.path("before"), before).unwrap();
        words("run n -- true")
    };
    wherever_it_dies(set, |stage, at| {
        let before: u64 = stage.scratch.read("before").parse().unwrap();
        // A command that was just about to begin may hold it for a moment.
        assert_eq!(stage.status(&["run", "-w", "20", "n", "--", "true"]), 0, "{at}");
        assert!(stage.token() > before, "{at}");
    });
}

/// A command that lost its lockctl has the lock. Nobody tells it that this was ended.
#[test]
fn the_lock_of_an_orphan_can_be_broken() {
    let stage = Stage::set();
    let script = format!("{TELL_PID} while [ ! -e go ]; do sleep 0.01; done; touch done");
    let arguments = ["run", "--ttl", "300ms", "n", "--", "sh", "-c", &script];
    let holder = Running::start(&mut stage.place.command(&stage.scratch, &arguments));
    let orphan: Process = stage.scratch.read_pid();
    let before = holder.pid();
    holder.signal(Signal::SIGKILL);
    assert_eq!(holder.end().0.code(), None);
    assert_eq!(stage.status(&["run", "-n", "n", "--", "true"]), 75);
    let (code, stdout, _) = stage.place.lockctl(&stage.scratch, &["break", "--force", "n"]);
    assert_eq!(code, 0);
    assert!(stdout.contains(&format!(":{before} (")), "{stdout}");
    assert_eq!(stage.status(&["run", "-n", "n", "--", "true"]), 0);
    std::fs::write(stage.scratch.path("go"), "").unwrap();
    until("it has gone on to its end", || stage.scratch.exists("done") && !orphan.lives());
}

#[test]
fn the_hold_of_flock_is_seen_and_cannot_be_broken() {
    let stage = Stage::set();
    stage.token();
    let mut flock = std::process::Command::new("flock");
    let script = format!("{TELL_PID} exec sleep 60");
    flock.arg(stage.scratch.locks().join("n.lock")).args(["sh", "-c", &script]);
    let flock = Running::start(flock.current_dir(stage.scratch.path("")));
    let command = stage.scratch.read_pid();
    let (code, text, _) = stage.place.lockctl(&stage.scratch, &["inspect", "n"]);
    assert!(code == 0 && text.contains("  pid ") && text.contains("another kind"), "{text}");
    let (code, stdout, stderr) =
        outcome(&mut stage.place.command(&stage.scratch, &["break", "--force", "n"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    assert_eq!(stage.status(&["acquire", "-n", "n"]), 75);
    command.signal(Signal::SIGKILL);
    drop(flock);
    assert_eq!(stage.status(&["acquire", "-w", "20", "n"]), 0);
}

/// There the kernel forgets who has locked a file when that process is gone.
#[test]
fn inside_a_container_the_lock_of_an_orphan_is_not_said_to_be_free() {
    let stage = Stage::set();
    let script = "\"$L\" run n -- sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 60' & \
        while [ ! -e pid ]; do sleep 0.01; done; kill -9 $!; wait $! 2>/dev/null; \
        \"$L\" inspect n >seen; echo $? >codes; \
        \"$L\" break --force n; echo $? >>codes; \
        kill -9 $(cat pid); \"$L\" run -w 20 n -- true; echo $? >>codes; \
        \"$L\" inspect n; echo $? >>codes";
    let mut container = std::process::Command::new("unshare");
    container.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
    container.args(["--mount-proc", "sh", "-c", script]);
    container.env("L", env!("CARGO_BIN_EXE_lockctl")).env("LOCK_BACKEND", &stage.place.url);
    let output = container.current_dir(stage.scratch.path("")).output();
    let output = output.expect("unshare is missing; install it: apt-get install util-linux");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stage.scratch.read("codes"), "0\n64\n0\n1\n", "{output:?}");
    let (seen, orphan) = (stage.scratch.read("seen"), stage.scratch.read("pid"));
    assert!(seen.contains("is held"), "{seen}");
    assert!(seen.contains(&format!("pid {}", orphan.trim())), "{seen}");
    std::fs::remove_file(stage.scratch.path("pid")).unwrap();
}

#[test]
fn an_acquire_that_gets_no_thread_to_print_on_lets_go() {
    let stage = Stage::set();
    // So that no number has to be reserved, which takes a thread as well.
    assert_eq!(stage.status(&["run", "n", "--", "true"]), 0);
    let mut strace = std::process::Command::new("strace");
    // The first thread is the one of the locks.
    let inject = "inject=?clone,?clone3:error=EAGAIN:when=2+";
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", inject]);
    strace.arg(env!("CARGO_BIN_EXE_lockctl")).args(["--backend", &stage.place.url]);
    let (code, stdout, stderr) = outcome(strace.args(["acquire", "--ttl", "1h", "n"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (70, "", 1), "{stderr}");
    assert!(stderr.starts_with("lockctl: cannot write to stdout"), "{stderr}");
    assert_eq!(stage.status(&["inspect", "n"]), 1, "it was let go");
}
