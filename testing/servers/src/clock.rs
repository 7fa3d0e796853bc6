//! Clocks that tests set, for processes that they start.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::clock::wall;
use tempfile::TempDir;

use super::error::{ServerError, require};

/// Preloaded into a process, it answers for the system's clocks.
const SOURCE: &str = include_str!("clock.c");

/// The Debian packages with the compiler and its headers.
const PACKAGES: &str = "gcc libc6-dev";

/// A step of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It shows a later time than before.
    Forward(Duration),
    /// It shows an earlier time than before.
    Back(Duration),
}

/// A clock for the processes that it is [given to](Self::give_to). It can be stepped while they
/// run, and made to run too fast or too slowly. Their other clocks stay unchanged.
///
/// Works for programs that are linked dynamically with the system's C library, as `redis-server`,
/// `memcached` and Rust programs are.
#[derive(Debug)]
pub struct Clock {
    /// The environment variable that tells a process where the setting is.
    variable: &'static str,
    file: File,
    setting: Mutex<Setting>,
    directory: TempDir,
}

/// The setting in the layout of `clock.c`.
#[derive(Clone, Copy, Debug, Default)]
struct Setting {
    ahead: i64,
    since: i64,
    too_fast: i64,
}

impl Clock {
    /// Creates a wall clock that shows the right time.
    ///
    /// # Errors
    ///
    /// There is no C compiler, or it fails.
    pub fn new() -> Result<Self, ServerError> {
        Self::of("TEST_CLOCK")
    }

    /// Creates a clock in place of all monotonic clocks. A wait that the kernel times, such as a
    /// timer of `epoll_wait`, is unaffected.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn monotonic() -> Result<Self, ServerError> {
        Self::of("TEST_MONOTONIC_CLOCK")
    }

    fn of(variable: &'static str) -> Result<Self, ServerError> {
        require("cc", PACKAGES)?;
        let failed = |error: io::Error| ServerError::new(format!("no clock: {error}"));
        let directory = tempfile::Builder::new().prefix("clock-").tempdir().map_err(failed)?;
        compile(&directory)?;
        let file = File::create_new(setting(&directory)).map_err(failed)?;
        let clock = Self { variable, file, setting: Mutex::default(), directory };
        clock.write(Setting::default()).map_err(failed)?;
        Ok(clock)
    }

    /// Returns the environment variables that make a process use this clock.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let library = library(&self.directory).into();
        [("LD_PRELOAD", library), (self.variable, setting(&self.directory).into())]
    }

    /// Makes the process of `command` and its children use this clock.
    pub fn give_to(&self, command: &mut Command) {
        command.envs(self.environment());
    }

    /// Steps the clock, at once and for all processes that use it.
    ///
    /// # Panics
    ///
    /// The step is longer than two hundred years.
    pub fn step(&self, step: Step) {
        let by = match step {
            Step::Forward(by) => nanos(by),
            Step::Back(by) => -nanos(by),
        };
        self.change(|setting| setting.ahead += by);
    }

    /// Makes the clock run too fast by this many thousandths, or too slowly if they are negative.
    /// The difference accumulated so far stays.
    pub fn run_too_fast_by(&self, thousandths: i32) {
        self.change(|setting| setting.too_fast = thousandths.into());
    }

    fn change(&self, change: impl FnOnce(&mut Setting)) {
        let mut setting = self.setting();
        // Rounded to the µs: a clock that is slowed down by its full rate then stands still.
        let now = nanos(wall()) / 1000 * 1000;
        setting.ahead += (now - setting.since) / 1000 * setting.too_fast;
        setting.since = now;
        change(&mut setting);
        self.write(*setting).expect("a file of ours can be written");
    }

    fn write(&self, Setting { ahead, since, too_fast }: Setting) -> io::Result<()> {
        let copy = [ahead, since, too_fast].map(i64::to_ne_bytes).concat();
        self.file.write_all_at(&copy, 0)?;
        self.file.write_all_at(&copy, copy.len() as u64)
    }

    fn setting(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn compile(directory: &TempDir) -> Result<(), ServerError> {
    let source = directory.path().join("clock.c");
    let failed = |error: &dyn fmt::Display| ServerError::new(format!("no clock: {error}"));
    fs::write(&source, SOURCE).map_err(|error| failed(&error))?;
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&library(directory), &source])
        .output()
        .map_err(|error| failed(&error))?;
    if compiler.status.success() {
        return Ok(());
    }
    // For example because the headers of the C library are missing.
    let said = String::from_utf8_lossy(&compiler.stderr);
    Err(failed(&format!("cc fails; apt-get install {PACKAGES}, unless it says otherwise:\n{said}")))
}

fn library(directory: &TempDir) -> PathBuf {
    directory.path().join("clock.so")
}

fn setting(directory: &TempDir) -> PathBuf {
    directory.path().join("setting")
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).expect("tests do not run for centuries")
}
