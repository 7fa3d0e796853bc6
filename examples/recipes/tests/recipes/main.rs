//! Runs the programs.

mod batch;
mod observability;
mod page;
mod service;
mod tool;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_any::clock::{Moment, sleep};
use lock_any::{Locker, OwnerId};

/// A process of a test, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Waits until the process prints a line to stderr that begins with `start`.
    fn until_stderr(&mut self, start: &str) {
        let stderr = self.0.stderr.as_mut().expect("stderr is a pipe");
        let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.starts_with(start)), "no line {start}");
    }

    /// Returns whether the process runs.
    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.0.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Waits until the process ends, and returns its exit status.
    fn status(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the URL of locks in files below `directory`.
fn locks_in(directory: &Path) -> String {
    format!("file://{}/locks", directory.display())
}

fn program(path: &str, locks: &str) -> Command {
    let mut command = Command::new(path);
    command.env("LOCKS", locks).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Waits until a process holds the lock.
async fn until_held(locks: &Locker, name: &str) -> OwnerId {
    let patience = Moment::now() + Duration::from_secs(20);
    loop {
        // The kernel shows the holder before its record is written.
        let holders = locks.inspect(name).await.unwrap().holders;
        if let Some(owner) = holders.first().and_then(|holder| holder.owner) {
            return owner;
        }
        assert!(Moment::now() < patience, "{name} is not held");
        sleep(Duration::from_millis(5)).await;
    }
}
