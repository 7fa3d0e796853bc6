//! Processes that end with their test, and waiting for conditions.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use lock_any::clock::Moment;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Longer than anything takes on a busy machine. A test that works does not wait for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// A directory for locks and for what commands write.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.locks().display())
    }

    /// One of each kind: a kernel lock, which the command inherits, and a lease.
    pub(crate) fn urls(&self) -> [String; 2] {
        ["memory:".to_owned(), self.url()]
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// What a command has written: whole, because it was moved into place.
    pub(crate) fn read(&self, name: &str) -> String {
        until(&format!("{name} is written"), || self.exists(name));
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The process id in a file that a command writes, see [`TELL_PID`].
    pub(crate) fn read_pid(&self) -> Process {
        Process(Pid::from_raw(self.read("pid").trim().parse().unwrap()))
    }

    /// `lockctl --backend <url> run <arguments>`, in this directory.
    pub(crate) fn run(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.lockctl(&["--backend", url, "run"]);
        command.args(arguments);
        command
    }

    pub(crate) fn lockctl(&self, arguments: &[&str]) -> Command {
        // Whoever started the tests may ignore signals, as nohup does, and lockctl would go on with that.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_lockctl")])
            .args(arguments)
            .current_dir(self.0.path())
            .env_remove("LOCK_BACKEND")
            .env_remove("LOCK_OWNER")
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Scratch {
    /// Ends the command that a failed test left behind.
    fn drop(&mut self) {
        let Ok(pid) = std::fs::read_to_string(self.path("pid")) else { return };
        let Ok(pid) = pid.trim().parse() else { return };
        let works_in = std::fs::read_link(format!("/proc/{pid}/cwd"));
        if works_in.is_ok_and(|directory| directory == self.0.path()) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Shell words that write the shell's process id to the file `pid`.
pub(crate) const TELL_PID: &str = "echo $$ >pid.new; mv pid.new pid;";

/// A lockctl that runs in the background.
pub(crate) struct Running {
    child: Child,
    said: File,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        // Not a pipe: a command that outlives its lockctl would keep it open.
        let said = tempfile::tempfile().unwrap();
        command.stdout(Stdio::null()).stderr(said.try_clone().unwrap());
        let child = command.spawn().unwrap();
        Self { child, said }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    pub(crate) fn process(&self) -> Process {
        Process(Pid::from_raw(self.child.id().try_into().unwrap()))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end. The status, and what it said on stderr.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        until("lockctl ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), self.said())
    }

    /// Returns its messages on stderr until now.
    pub(crate) fn said(&self) -> String {
        let mut said = vec![0; 1 << 16];
        // Not by its own offset, at which lockctl writes.
        let length = self.said.read_at(&mut said, 0).unwrap();
        String::from_utf8_lossy(&said[..length]).into_owned()
    }

    /// Waits for its end. The exit status as a number.
    pub(crate) fn code(self) -> i32 {
        let (status, said) = self.end();
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status}, {said}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is not our child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(Pid);

impl Process {
    pub(crate) fn signal(self, signal: Signal) {
        kill(self.0, signal).unwrap();
    }

    pub(crate) fn signal_group(self, signal: Signal) {
        killpg(self.0, signal).unwrap();
    }

    /// The letter that ps(1) shows; `None` if it is gone, or only waits to be buried.
    pub(crate) fn state(self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        let state = stat.rsplit(") ").next()?.chars().next()?;
        (state != 'Z').then_some(state)
    }

    pub(crate) fn lives(self) -> bool {
        self.state().is_some()
    }

    /// True once the process that started it has taken its status.
    pub(crate) fn is_buried(self) -> bool {
        !Path::new(&format!("/proc/{}", self.0)).exists()
    }

    /// Waits until it sleeps in the kernel with nothing to do.
    pub(crate) fn await_idle(self) {
        until("the process is idle", || self.state() == Some('S'));
    }
}

/// Waits for a condition.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Moment::now() + DEADLINE;
    while !condition() {
        assert!(!deadline.has_passed(), "not within {DEADLINE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Runs to the end. The exit status as a number, stdout, and stderr.
pub(crate) fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("lockctl is not ended by a signal"), text(stdout), text(stderr))
}

pub(crate) fn write_executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// How long `work` takes.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Moment::now();
    let result = work();
    (result, Moment::now().saturating_since(started))
}
