//! Other processes that lock: programs in other languages, and [holders] of this project.
//!
//! A peer obeys commands line by line, and answers each line. It ends with its handle, and with its
//! stdin. So it ends with the test process even if that is killed, unless the peer itself is
//! stopped.

pub mod holders;
mod library;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;

pub use library::Library;

use super::process::has_stopped;

/// The bound on an answer on a loaded machine, including the start of an interpreter.
const DEADLINE: Duration = Duration::from_secs(40);

/// A process that locks on command.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Starts `command`. Panics refer to it by `name`.
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
            // Until the process has ended, or the receiver is gone.
            for line in stdout.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    break;
                }
            }
        });
        Self { name, child, stdin, answers }
    }

    /// Sends a command. The process executes one after the other.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}")
            .unwrap_or_else(|error| panic!("{} does not listen any more: {error}", self.name));
    }

    /// Returns its next answer.
    ///
    /// # Panics
    ///
    /// It has ended, or says nothing for 40 seconds.
    pub async fn answer(&mut self) -> String {
        self.answer_within(DEADLINE).await
    }

    /// Returns its next answer, to a command that may take long.
    ///
    /// # Panics
    ///
    /// It has ended, or says nothing for so long.
    pub async fn answer_within(&mut self, bound: Duration) -> String {
        let answer = tokio::time::timeout(bound, self.answers.recv()).await;
        answer
            .unwrap_or_else(|_| panic!("{} has not answered within {bound:?}", self.name))
            .unwrap_or_else(|| panic!("{} has ended, its stderr says why", self.name))
    }

    /// [Sends](Self::tell) a command, and returns the [answer](Self::answer).
    ///
    /// # Panics
    ///
    /// As these two.
    pub async fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer().await
    }

    /// Stops the process with SIGSTOP and returns when it has stopped.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn stop(&mut self) {
        let pid = self.signal(Signal::SIGSTOP);
        assert!(has_stopped(pid, DEADLINE), "{} does not stop", self.name);
    }

    /// Resumes the process.
    ///
    /// # Panics
    ///
    /// It has ended.
    pub fn cont(&mut self) {
        self.signal(Signal::SIGCONT);
    }

    /// Kills the process, stopped or not, and waits for its end. Has no effect on a process that
    /// has ended.
    pub fn kill(&mut self) {
        // It fails only on a process that was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn signal(&mut self, signal: Signal) -> Pid {
        // It was not waited for, so its id cannot belong to another process.
        assert!(matches!(self.child.try_wait(), Ok(None)), "{} has ended", self.name);
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, signal).expect("a child of ours can be signalled");
        pid
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
