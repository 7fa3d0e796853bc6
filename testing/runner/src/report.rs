//! Prints the output of each program, and a table at the end.

use std::process::{ExitStatus, Output};
use std::time::Duration;

use crate::cargo::Program;

/// The result of a program.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) passed: bool,
    pub(crate) text: String,
    pub(crate) took: Duration,
    /// How it ended.
    status: ExitStatus,
}

impl Outcome {
    /// Returns the outcome of a command that succeeds or fails.
    pub(crate) fn of_command(name: &str, output: &Output, took: Duration) -> Self {
        let [said, complained] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        Self {
            name: name.to_owned(),
            passed: output.status.success(),
            text: format!("{said}{complained}"),
            took,
            status: output.status,
        }
    }

    /// Returns the outcome of a test program. One that ends before its last test has no result. A
    /// file of tests of which none ran has lost them.
    pub(crate) fn of_program(program: &Program, output: &Output, took: Duration) -> Self {
        let outcome = Self::of_command(&program.path(), output, took);
        let has_result = outcome.text.lines().any(|line| line.starts_with("test result: ok"));
        let Counts([passed, ..]) = Counts::of(&outcome.text);
        let has_run = passed > 0 || !program.is_test;
        Self { passed: outcome.passed && has_result && has_run, ..outcome }
    }
}

/// Prints the output of a program.
pub(crate) fn said(outcome: &Outcome) {
    println!("\n== {}, {:.1} s\n{}", outcome.name, outcome.took.as_secs_f64(), outcome.text.trim());
}

/// The counts of a program's tests that passed, failed, and were not promised.
#[derive(Clone, Copy, Default)]
struct Counts([u64; 3]);

impl Counts {
    /// Reads lines such as `test result: ok. 7 passed; 0 failed; 1 ignored; …`. A law that a
    /// backend does not promise is shown as ignored.
    fn of(text: &str) -> Self {
        let mut counts = [0; 3];
        for line in text.lines().filter(|line| line.starts_with("test result:")) {
            for part in line.split(['.', ';']) {
                let mut words = part.split_whitespace();
                let (Some(Ok(count)), Some(what)) =
                    (words.next().map(str::parse::<u64>), words.next())
                else {
                    continue;
                };
                if let Some(at) = ["passed", "failed", "ignored"].iter().position(|it| *it == what)
                {
                    counts[at] += count;
                }
            }
        }
        Self(counts)
    }
}

/// Prints how long each program took, the tests that failed, and the sums.
pub(crate) fn print(outcomes: &[Outcome], took: Duration) {
    let mut sum = Counts::default();
    let mut rows: Vec<_> =
        outcomes.iter().map(|outcome| (outcome, Counts::of(&outcome.text))).collect();
    rows.sort_by_key(|(outcome, _)| std::cmp::Reverse(outcome.took));
    println!("\n{:34} {:>7} {:>7}", "test program", "tests", "seconds");
    for (outcome, Counts(counts)) in &rows {
        let seconds = outcome.took.as_secs_f64();
        if seconds >= 0.05 {
            println!("{:34} {:>7} {seconds:>7.1}", outcome.name, counts[0] + counts[1]);
        }
        sum.0.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    print_slowest_tests(outcomes);
    for outcome in outcomes.iter().filter(|outcome| !outcome.passed) {
        println!("\nFAILED: {} ({})", outcome.name, outcome.status);
        let failed = |line: &&str| line.starts_with("test ") && line.contains("FAILED");
        outcome.text.lines().filter(failed).for_each(|line| println!("    {line}"));
        hung_tests(&outcome.text).for_each(|name| println!("    test {name} did not end"));
    }
    let [passed, failed, ignored] = sum.0;
    println!("\ntested in {} s", took.as_secs());
    println!("{passed} passed, {failed} failed, {ignored} not promised");
}

/// Returns the tests of an ended program that have no result: it was ended while they ran. libtest
/// names a test that runs for over a minute.
fn hung_tests(text: &str) -> impl Iterator<Item = &str> {
    let is_long = |line: &&str| line.contains(" has been running for over ");
    let long = text.lines().filter(is_long);
    let names = long.filter_map(|line| line.strip_prefix("test ")?.split(' ').next());
    names.filter(move |name| !text.contains(&format!("test {name} ... ")))
}

/// Prints the tests that took longest, where the programs say how long each took:
/// `test NAME ... ok <1.234s>`.
fn print_slowest_tests(outcomes: &[Outcome]) {
    const SHOWN: usize = 20;
    let mut tests: Vec<(f64, String)> = Vec::new();
    for outcome in outcomes {
        for line in outcome.text.lines() {
            let timed = line
                .strip_prefix("test ")
                .and_then(|line| line.strip_suffix("s>")?.split_once(" <"));
            let Some((name, Ok(seconds))) = timed.map(|(name, time)| (name, time.parse())) else {
                continue;
            };
            let name = name.split(" ...").next().unwrap_or_default();
            tests.push((seconds, format!("{} {name}", outcome.name)));
        }
    }
    tests.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    if !tests.is_empty() {
        println!("\nslowest tests");
    }
    for (seconds, name) in tests.iter().take(SHOWN) {
        println!("{seconds:>7.1}  {name}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_program_passes_only_with_a_result() {
        let mut program = Program {
            package: "c".to_owned(),
            name: "p".to_owned(),
            executable: "p".into(),
            is_test: true,
            folder: "c".into(),
        };
        let passes = |program: &Program, said: &str, code: i32| {
            let (status, stdout) = (ExitStatus::from_raw(code << 8), said.as_bytes().to_vec());
            let output = Output { status, stdout, stderr: Vec::new() };
            Outcome::of_program(program, &output, Duration::ZERO).passed
        };
        assert!(passes(&program, "running 1 test\ntest result: ok. 1 passed; 0 failed\n", 0));
        assert!(!passes(&program, "running 1 test\n", 0), "it has ended half-way");
        assert!(!passes(&program, "test result: ok. 1 passed; 0 failed\n", 101));
        let none = "test result: ok. 0 passed; 0 failed\n";
        assert!(!passes(&program, none, 0), "it has no tests any more");
        program.is_test = false;
        assert!(passes(&program, none, 0), "few crates have tests of their own modules");
    }

    #[test]
    fn tests_without_a_result_are_named() {
        let text = "test one ... ok <0.1s>\n\
            test two has been running for over 60 seconds\n\
            test three has been running for over 60 seconds\n\
            test two ... ok <61.0s>\n";
        assert_eq!(hung_tests(text).collect::<Vec<_>>(), ["three"]);
    }
}
