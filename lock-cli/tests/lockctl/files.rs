//! Lock files only: orphans, and flock(1).

use nix::sys::signal::Signal;

use crate::backends::TestBackend;
use crate::support::{Running, Scratch, WRITE_PID, outcome, until};
use crate::verbs::status;

pub(crate) struct Fixture {
    pub(crate) scratch: Scratch,
    pub(crate) backend: TestBackend,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let scratch = Scratch::new();
        let backend = TestBackend::file(&scratch);
        Self { scratch, backend }
    }

    pub(crate) fn status(&self, arguments: &[&str]) -> i32 {
        status(&self.scratch, &self.backend, arguments)
    }

    /// Acquires the free lock `n`, and returns its token.
    pub(crate) fn token(&self) -> u64 {
        let arguments = ["run", "-n", "n", "--", "printenv", "LOCK_FENCING_TOKEN"];
        let (code, token, stderr) = self.backend.lockctl(&self.scratch, &arguments);
        assert_eq!((code, stderr.as_str()), (0, ""));
        token.trim().parse().unwrap()
    }
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
#[cfg(feature = "__tools")]
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
