//! Other processes that lock: programs in other languages, and [holders] of our own.
//!
//! A peer does what it is told line by line, and answers each line. It ends with its handle, and with its
//! stdin: so with the test process even if that is killed, unless it is stopped itself.

pub mod holders;
mod library;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;

pub use library::Library;

/// How long an answer may take on a loaded machine, the start of an interpreter included.
const DEADLINE: Duration = Duration::from_secs(40);

/// A process that locks as it is told.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Starts `command`. Panics call it by `name`.
    ///
    /// # Panics
    ///
    /// There is no such program.
    #[must_use]
    pub fn start(name: impl Into<String>, mut command: Command) -> Self {
        let name = name.into();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("{name} cannot be started: {error}"));
        let stdin = child.stdin.take().expect("it is a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (told, answers) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            // Until it has ended, or nobody listens any more.
            for line in stdout.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    break;
                }
            }
        });
        Self { name, child, stdin, answers }
    }

    /// Tells it to do something. It does one thing after the other.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}")
            .unwrap_or_else(|error| panic!("{} does not listen any more: {error}", self.name));
    }

    /// The next thing that it says.
    ///
    /// # Panics
    ///
    /// It has ended, or says nothing for 40 seconds.
    pub async fn answer(&mut self) -> String {
        let answer = tokio::time::timeout(DEADLINE, self.answers.recv()).await;
        answer
            .unwrap_or_else(|_| panic!("{} has not answered within {DEADLINE:?}", self.name))
            .unwrap_or_else(|| panic!("{} has ended, its stderr says why", self.name))
    }

    /// [Tells](Self::tell) it something, and returns its [answer](Self::answer).
    ///
    /// # Panics
    ///
    /// As these two.
    pub async fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer().await
    }

    /// Stops the process as SIGSTOP does.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn cont(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process, stopped or not, and waits for its end. No effect on one that has ended.
    pub fn kill(&mut self) {
        // It fails only on a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&mut self, signal: Signal) {
        // One that was not waited for: its id cannot be another's.
        assert!(matches!(self.child.try_wait(), Ok(None)), "{} has ended", self.name);
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).expect("a child of ours can be signalled");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
