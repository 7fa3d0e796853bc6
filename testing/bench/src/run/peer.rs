//! A worker process, of this program or of any other that speaks the protocol.

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use super::cpu;
use super::error::{Result, RunError};

/// The limit for the start of a worker, and for commands that do no work.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A library, and the command that runs its worker.
#[derive(Clone, Debug)]
pub(crate) struct Lib {
    pub(crate) name: String,
    /// Program and arguments, followed by the URL.
    command: Vec<String>,
    threads: usize,
    origin: Origin,
    /// It is slow at first, and is measured only after a while.
    warms_up: bool,
}

/// The owner of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Ours, a floor, or one that was given as an option.
    Own,
    /// Another project.
    Other { wakeup: Wakeup, tuned: bool },
}

/// How its waiters learn that the lock is free. Polls cost time and requests, so only libraries
/// with notifications are measured with the largest crowds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// They poll.
    Polls,
    /// They are notified.
    Notified,
}

/// The rounds of a library of another project: most of them take long.
const ROUNDS_OF_OTHERS: usize = 3;

impl Lib {
    /// Creates a library that workers of this program know.
    pub(crate) fn own(name: &str, threads: usize) -> Self {
        let (name, command) = (name.to_owned(), Vec::new());
        Self { name, command, threads, origin: Origin::Own, warms_up: false }
    }

    /// Creates a library with a worker program of this repository.
    pub(crate) fn script(name: &str, command: Vec<String>) -> Self {
        Self { command, ..Self::own(name, 0) }
    }

    /// Marks the library as that of another project.
    pub(crate) fn wakeup(self, wakeup: Wakeup, tuned: bool) -> Self {
        Self { origin: Origin::Other { wakeup, tuned }, ..self }
    }

    /// Marks the library as slow at first.
    pub(crate) fn warmed_up(self) -> Self {
        Self { warms_up: true, ..self }
    }

    pub(crate) fn warms_up(&self) -> bool {
        self.warms_up
    }

    pub(crate) fn is_other(&self) -> bool {
        matches!(self.origin, Origin::Other { .. })
    }

    /// Returns whether only its waiting is tuned.
    pub(crate) fn is_tuned(&self) -> bool {
        matches!(self.origin, Origin::Other { tuned: true, .. })
    }

    /// Returns whether its waiters poll.
    pub(crate) fn polls(&self) -> bool {
        matches!(self.origin, Origin::Other { wakeup: Wakeup::Polls, .. })
    }

    /// Returns the limit for the waiters of a library of another project. Most of them are threads,
    /// and polls send requests all the time.
    pub(crate) fn max_waiters(&self) -> usize {
        match self.origin {
            Origin::Own => usize::MAX,
            Origin::Other { wakeup: Wakeup::Notified, .. } => 1000,
            Origin::Other { wakeup: Wakeup::Polls, .. } => 100,
        }
    }

    /// Returns the number of rounds in which it is measured, where ours has `rounds`.
    pub(crate) fn rounds(&self, rounds: usize) -> usize {
        match self.origin {
            Origin::Own => rounds,
            Origin::Other { .. } => rounds.min(ROUNDS_OF_OTHERS),
        }
    }

    /// Parses `NAME=COMMAND`, where the command is split at spaces.
    pub(crate) fn foreign(text: &str) -> Result<Self, String> {
        let (name, command) = text.split_once('=').ok_or("write NAME=COMMAND")?;
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        if name.is_empty() || command.is_empty() {
            return Err("write NAME=COMMAND".into());
        }
        if crate::worker::LIBS.contains(&name) {
            return Err(format!("{name} is one of ours; give it another name"));
        }
        Ok(Self::script(name, command))
    }

    fn command(&self, url: &str) -> std::io::Result<Command> {
        if let [program, arguments @ ..] = self.command.as_slice() {
            let mut command = Command::new(program);
            command.args(arguments).arg(url);
            return Ok(command);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", &self.name, url, "--threads", &self.threads.to_string()]);
        Ok(command)
    }
}

/// A running worker. Dropping it ends the process.
pub(crate) struct Peer {
    name: String,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Peer {
    /// Starts a worker and waits until it is ready.
    pub(crate) fn start(lib: &Lib, url: &str, cpus: Option<&[usize]>) -> Result<Self> {
        let failed = |why: String| RunError::Failed(format!("the worker {}: {why}", lib.name));
        let mut child = lib
            .command(url)
            .and_then(|mut command| command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn())
            .map_err(|e| failed(format!("cannot be started: {e}")))?;
        if let Some(cpus) = cpus {
            cpu::pin(child.id(), cpus);
        }
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(|| failed("has no pipes".into()))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut peer = Self { name: lib.name.clone(), child, stdin, lines };
        let ready = peer.receive(SOON)?;
        match ready["ready"].as_u64() {
            Some(1) => Ok(peer),
            _ => Err(failed(format!("is not ready for this protocol: {ready}"))),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command and waits for the answer.
    pub(crate) fn ask(&mut self, command: &str, bound: Duration) -> Result<Value> {
        self.send(command)?;
        self.receive(bound)
    }

    /// Sends a command. Its answer has to be received before the next command.
    pub(crate) fn send(&mut self, command: &str) -> Result<()> {
        writeln!(self.stdin, "{command}").map_err(|e| self.failed(format!("is gone: {e}")))
    }

    pub(crate) fn receive(&mut self, bound: Duration) -> Result<Value> {
        let line = self.lines.recv_timeout(bound).map_err(|error| match error {
            RecvTimeoutError::Timeout => self.failed(format!("has not answered for {bound:?}")),
            RecvTimeoutError::Disconnected => self.failed("has ended"),
        })?;
        let answer: Value = serde_json::from_str(&line)
            .map_err(|e| self.failed(format!("answers without JSON: {e}: {line}")))?;
        match (answer["error"].as_str(), answer["cannot"].as_str()) {
            (None, None) => Ok(answer),
            (Some(error), _) => Err(self.failed(error)),
            (None, Some(why)) => Err(RunError::Unsupported(why.to_owned())),
        }
    }

    /// Kills it with SIGKILL and waits for its end.
    pub(crate) fn kill(&mut self) {
        // It fails only for a process that was already reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn failed(&self, why: impl Display) -> RunError {
        RunError::Failed(format!("the worker {}: {why}", self.name))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.kill();
    }
}
