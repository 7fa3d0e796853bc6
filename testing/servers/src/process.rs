//! The parts that all servers share: a process of the test, its output and its signals.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use lock_core::clock::Moment;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::clock::Clock;
use super::error::{ServerError, require};

/// The number of output lines that are kept.
const LINES: usize = 200;

/// How long a process may take to stop on a loaded machine.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Replaces the shell by the program, unless the parent died before the shell could be watched.
const BECOME: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// Redirects both kinds of output into one pipe.
const ONE_PIPE: &str = " 2>&1";

/// Waits until a child that was sent SIGSTOP has stopped or ended: its other threads run until one
/// of them handles the signal. Returns false if it has done neither within `bound`.
///
/// The child is not reaped, so a second call and its own wait find the same state.
///
/// # Panics
///
/// It is no child of this process, or was reaped.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a wait for a child with a time limit has to poll")]
pub fn has_stopped(child: Pid, bound: Duration) -> bool {
    let deadline = Moment::now() + bound;
    let flags =
        WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    while waitid(Id::Pid(child), flags).expect("a child of ours can be waited for")
        == WaitStatus::StillAlive
    {
        if deadline.has_passed() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// A process of a server. Dropping it kills the process and waits for its end.
///
/// Signals go only to the process that this handle has started, and only before it was waited for:
/// until then its id cannot belong to another process.
#[derive(Debug)]
pub struct Server {
    program: String,
    child: Mutex<Child>,
    output: Arc<Output>,
    was_killed: AtomicBool,
}

impl Server {
    /// Starts `program` from the `PATH`; [`wait_until`](Self::wait_until) waits until it is ready.
    /// `package` is the Debian package that has it.
    ///
    /// # Errors
    ///
    /// The program is not installed, or no process can be made.
    pub fn start<A: AsRef<OsStr>>(
        program: &str,
        package: &str,
        args: impl IntoIterator<Item = A>,
        directory: &Path,
    ) -> Result<Self, ServerError> {
        Self::start_with(program, package, args, directory, None)
    }

    /// Starts a server that uses `clocks`; see [`start`](Self::start).
    pub(super) fn start_with<'a, A: AsRef<OsStr>>(
        program: &str,
        package: &str,
        args: impl IntoIterator<Item = A>,
        directory: &Path,
        clocks: impl IntoIterator<Item = &'a Clock>,
    ) -> Result<Self, ServerError> {
        require(program, package)?;
        require("setpriv", "util-linux")?;
        let mut command = bound(program.as_ref(), ONE_PIPE);
        command.args(args);
        command.current_dir(directory).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        for clock in clocks {
            clock.give_to(&mut command);
        }
        let mut child = spawn(command)
            .map_err(|error| ServerError::new(format!("{program} cannot be started: {error}")))?;
        let output = Arc::new(Output::default());
        if let Some(pipe) = child.stdout.take() {
            let output = Arc::clone(&output);
            std::thread::spawn(move || output.collect(BufReader::new(pipe)));
        }
        Ok(Self {
            program: program.into(),
            child: Mutex::new(child),
            output,
            was_killed: AtomicBool::new(false),
        })
    }

    /// Waits until `is_ready` returns true. It is called after each line that the server prints,
    /// and a hundred times a second.
    ///
    /// # Errors
    ///
    /// The server has ended, or `bound` has passed. The error shows the server's last output.
    pub fn wait_until(
        &self,
        bound: Duration,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<(), ServerError> {
        let deadline = Moment::now() + bound;
        let mut seen = 0;
        loop {
            if self.has_ended() {
                return Err(self.failure("has ended"));
            }
            if is_ready() {
                return Ok(());
            }
            if deadline.has_passed() {
                return Err(self.failure(&format!("was not ready within {bound:?}")));
            }
            seen = self.output.wait_for_more(seen, Duration::from_millis(10));
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Returns true if the process has ended, by itself or by a signal.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        !matches!(self.child().try_wait(), Ok(None))
    }

    /// Stops the process with SIGSTOP and returns when it has stopped.
    ///
    /// # Panics
    ///
    /// The process has ended.
    pub fn stop(&self) {
        let pid = self.signal(Signal::SIGSTOP);
        assert!(has_stopped(pid, STOPS_WITHIN), "{} does not stop", self.program);
    }

    /// Resumes a stopped process.
    ///
    /// # Panics
    ///
    /// The process has ended.
    pub fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process with SIGKILL, stopped or not, and waits for its end. Has no effect on a
    /// process that has ended.
    pub fn kill(&self) {
        self.was_killed.store(true, Ordering::Relaxed);
        let mut child = self.child();
        // It fails only on a process that was waited for.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Returns the last lines that the server has printed.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.text()
    }

    pub(super) fn failure(&self, what: &str) -> ServerError {
        if self.has_ended() {
            // The last lines may still be in its pipe.
            self.output.wait_for_end(Duration::from_secs(5));
        }
        ServerError::new(format!("{} {what}; its last output:\n{}", self.program, self.output()))
    }

    fn signal(&self, signal: Signal) -> Pid {
        let mut child = self.child();
        assert!(matches!(child.try_wait(), Ok(None)), "{} has ended", self.program);
        let pid = Pid::from_raw(child.id().cast_signed());
        kill(pid, signal).expect("a child of ours can be signalled");
        pid
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Tests that fail for want of a server do not know what it has said.
        if !self.was_killed.load(Ordering::Relaxed) && self.has_ended() {
            eprintln!("{}", self.failure("has ended by itself"));
        }
        self.kill();
    }
}

/// Starts a process that dies with this one, even if that is killed. `prepare` adds arguments and
/// other settings. The caller sends signals and waits for the end.
///
/// # Errors
///
/// There is no `setpriv`, or no process can be made.
pub fn spawn_bound(
    program: impl AsRef<OsStr>,
    prepare: impl FnOnce(&mut Command),
) -> Result<Child, ServerError> {
    require("setpriv", "util-linux")?;
    let program = program.as_ref();
    let mut command = bound(program, "");
    prepare(&mut command);
    spawn(command).map_err(|error| {
        ServerError::new(format!("{} cannot be started: {error}", program.display()))
    })
}

/// Returns a command that becomes `program` in the same process and dies with this process.
fn bound(program: &OsStr, output: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "sh", "-c", &format!("{BECOME}{output}")]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Spawns on a thread that lives as long as this process. To the kernel, "when the parent dies"
/// means the thread that made the child, and the threads of tests end earlier.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, received) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in received {
                // The requesting thread waits for the answer.
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).expect("the spawning thread never ends");
    child.recv().expect("the spawning thread answers")
}

/// The output of a server.
#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Lines>,
    grown: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    last: VecDeque<String>,
    count: u64,
    ended: bool,
}

impl Output {
    /// Reads until the server has ended, so that its pipe never fills up.
    fn collect(&self, pipe: impl BufRead) {
        for line in pipe.split(b'\n').map_while(Result::ok) {
            let mut lines = self.lines();
            lines.count += 1;
            lines.last.push_back(String::from_utf8_lossy(&line).into_owned());
            if lines.last.len() > LINES {
                lines.last.pop_front();
            }
            self.grown.notify_all();
        }
        self.lines().ended = true;
        self.grown.notify_all();
    }

    fn wait_for_end(&self, bound: Duration) {
        // After the bound there is nothing left to wait for, whether the server has ended or not.
        let _ = self.grown.wait_timeout_while(self.lines(), bound, |lines| !lines.ended);
    }

    /// Waits for more than `seen` lines, or until `bound` has passed, and returns the number of
    /// lines.
    fn wait_for_more(&self, seen: u64, bound: Duration) -> u64 {
        let waited =
            self.grown.wait_timeout_while(self.lines(), bound, |lines| lines.count <= seen);
        waited.unwrap_or_else(PoisonError::into_inner).0.count
    }

    fn text(&self) -> String {
        self.lines().last.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
