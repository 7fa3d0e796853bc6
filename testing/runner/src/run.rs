//! Runs test programs, several at once.

use std::fmt;
use std::process::Command;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cargo::Program;
use crate::report::{self, Outcome};

/// The bound on the time of a program; a longer one hangs.
const BOUND: Duration = Duration::from_secs(1200);

/// How long a program may take to end when it is asked to; then it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tests that are left out.
#[derive(Clone, Debug)]
pub(crate) struct Skip {
    program: String,
    /// The whole program if absent.
    part: Option<String>,
}

impl FromStr for Skip {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (path, part) = match text.split_once(':') {
            Some((path, part)) => (path, Some(part.to_owned())),
            None => (text, None),
        };
        if !path.contains('/') {
            return Err("it is not CRATE/PROGRAM".to_owned());
        }
        Ok(Self { program: path.to_owned(), part })
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.program())?;
        self.part.as_ref().map_or(Ok(()), |part| write!(f, ":{part}"))
    }
}

impl Skip {
    /// Returns `CRATE/PROGRAM`.
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    /// Returns whether it leaves out tests of this program.
    fn is_of(&self, program: &Program) -> bool {
        self.program == program.path()
    }
}

/// Runs the programs and prints the output of each as soon as it has ended.
pub(crate) fn all(programs: &[Program], skips: &[Skip], at_once: usize) -> Vec<Outcome> {
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Some(outcome) = run(program, skips) else { continue };
            report::said(&outcome);
            outcomes.lock().expect("no program panics here").push(outcome);
        }
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    outcomes.into_inner().expect("no program panics here")
}

/// Runs a shell command and prints its output.
pub(crate) fn command(command: &str) -> Outcome {
    let start = Instant::now();
    let output = bounded().args(["bash", "-c", command]).output().expect("coreutils has timeout");
    let outcome = Outcome::of_command(command, &output, start.elapsed());
    report::said(&outcome);
    outcome
}

/// Runs the examples in the documentation, and prints their output.
pub(crate) fn documentation(selection: &[String]) -> Outcome {
    let start = Instant::now();
    let output = bounded()
        .args(["cargo", "test", "-q", "--locked", "--doc"])
        .args(selection)
        .output()
        .expect("coreutils has timeout");
    let outcome = Outcome::of_command("documentation", &output, start.elapsed());
    report::said(&outcome);
    outcome
}

/// Returns a command that runs another one within the bound.
fn bounded() -> Command {
    let mut command = Command::new("timeout");
    command.arg(format!("--kill-after={}", PATIENCE.as_secs())).arg(BOUND.as_secs().to_string());
    command
}

/// Runs a program, unless all of it is left out.
fn run(program: &Program, skips: &[Skip]) -> Option<Outcome> {
    let mut command = bounded();
    command.arg(&program.executable);
    // Programs report the time of each test only on request, and libtest only with unstable
    // options.
    command.env("TEST_TIMES", "1");
    if says_times(program) {
        command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    }
    for skip in skips.iter().filter(|skip| skip.is_of(program)) {
        command.args(["--skip", skip.part.as_ref()?]);
    }
    let start = Instant::now();
    let output = command
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .output()
        .expect("coreutils has timeout");
    Some(Outcome::of_program(program, &output, start.elapsed()))
}

fn says_times(program: &Program) -> bool {
    let help = Command::new(&program.executable).arg("--help").output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--report-time"))
}
