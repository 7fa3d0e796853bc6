//! Processes that end with their test, and waits for conditions.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use lock_any::clock::Moment;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The longest wait for a condition: longer than any step takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A directory for locks and for files that commands write.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.locks().display())
    }

    /// Returns a URL of each kind: a lease, and a kernel lock, which the command inherits.
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

    /// Waits for a file, and returns its text. It is complete, because the command moves it there.
    pub(crate) fn read(&self, name: &str) -> String {
        until(&format!("{name} is written"), || self.exists(name));
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Waits for the file `pid`, and returns the process that has written it; see [`WRITE_PID`].
    pub(crate) fn read_pid(&self) -> Process {
        Process(Pid::from_raw(self.read("pid").trim().parse().unwrap()))
    }

    /// Returns the command `lockctl --backend <url> run <arguments>`, in this directory.
    pub(crate) fn run(&self, url: &str, arguments: &[&str]) -> Command {
        let mut command = self.lockctl(&["--backend", url, "run"]);
        command.args(arguments);
        command
    }

    /// Starts `lockctl run <options> -- sh -c <script>`. Waits until the script calls `write_pid`,
    /// and returns its process.
    pub(crate) fn start(&self, url: &str, options: &[&str], script: &str) -> (Running, Process) {
        let _ = std::fs::remove_file(self.path("pid"));
        let script = format!("write_pid() {{ {WRITE_PID} }}; {script}");
        let command = [options, &["--", "sh", "-c", &script]].concat();
        let lockctl = Running::start(&mut self.run(url, &command));
        (lockctl, self.read_pid())
    }

    pub(crate) fn lockctl(&self, arguments: &[&str]) -> Command {
        // The tests may run with ignored signals, as under nohup(1), which lockctl would inherit.
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

/// Shell code that writes the shell's process id to the file `pid`.
pub(crate) const WRITE_PID: &str = "echo $$ >pid.new; mv pid.new pid;";

/// A lockctl that runs in the background.
pub(crate) struct Running {
    child: Child,
    stderr: File,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        // Not a pipe: a command that outlives its lockctl would keep it open.
        let stderr = tempfile::tempfile().unwrap();
        command.stdout(Stdio::null()).stderr(stderr.try_clone().unwrap());
        let child = command.spawn().unwrap();
        Self { child, stderr }
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

    /// Waits for its end. Returns its status and its messages on stderr.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        until("lockctl ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (status.unwrap(), self.stderr())
    }

    /// Returns its messages on stderr until now.
    pub(crate) fn stderr(&self) -> String {
        let mut stderr = vec![0; 1 << 16];
        // Without a change of the offset, at which lockctl writes.
        let length = self.stderr.read_at(&mut stderr, 0).unwrap();
        String::from_utf8_lossy(&stderr[..length]).into_owned()
    }

    /// Waits for its end. Returns the exit status as a number.
    pub(crate) fn code(self) -> i32 {
        let (status, stderr) = self.end();
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status}, {stderr}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that is not a child of the test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(Pid);

impl Process {
    pub(crate) fn signal(self, signal: Signal) {
        kill(self.0, signal).unwrap();
    }

    pub(crate) fn signal_group(self, signal: Signal) {
        killpg(self.0, signal).unwrap();
    }

    /// Returns the letter that ps(1) shows, or `None` for a dead process, even before it is reaped.
    pub(crate) fn state(self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).ok()?;
        let state = stat.rsplit(") ").next()?.chars().next()?;
        (state != 'Z').then_some(state)
    }

    pub(crate) fn lives(self) -> bool {
        self.state().is_some()
    }

    /// Returns true once its parent has reaped it.
    pub(crate) fn is_reaped(self) -> bool {
        !Path::new(&format!("/proc/{}", self.0)).exists()
    }

    /// Waits until it sleeps in the kernel.
    pub(crate) fn await_idle(self) {
        until("the process is idle", || self.state() == Some('S'));
    }
}

/// Waits for a condition.
pub(crate) fn until(description: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Moment::now() + DEADLINE;
    while !condition() {
        assert!(!deadline.has_passed(), "not within {DEADLINE:?}: {description}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// Runs a command to its end. Returns its exit status as a number, its stdout and its stderr.
pub(crate) fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("lockctl was not killed by a signal"), text(stdout), text(stderr))
}

pub(crate) fn write_executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the result of `work`, and the time that it takes.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Moment::now();
    let result = work();
    (result, Moment::now().saturating_since(started))
}
