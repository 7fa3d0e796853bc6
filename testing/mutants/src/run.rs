//! Plants one mutant after the other and runs the command that has to see it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::git::{Aside, apply, git};
use crate::patch::Mutant;

/// Many times as long as a test takes on a busy machine: some mutants hang.
const BOUND: Duration = Duration::from_secs(200);

/// Builds take longer than tests.
const BUILD_BOUND: Duration = Duration::from_secs(1800);

/// Runs the mutants and prints a table. Returns whether all were caught.
///
/// # Errors
///
/// A command fails without a mutant, a mutant does not compile, or the scratch tree cannot be made.
pub(crate) fn run(project: &Path, mutants: &[Mutant]) -> Result<bool, String> {
    let scratch = Scratch::at(project)?;
    rehearse(&scratch, mutants)?;
    let width = mutants.iter().map(|mutant| mutant.name.len()).max().unwrap_or_default();
    println!("{:width$}  {:>7}  caught by", "mutant", "seconds");
    let (mut survivors, start) = (Vec::new(), Instant::now());
    for mutant in mutants {
        let start = Instant::now();
        let caught = scratch.plant(mutant)?;
        let seconds = start.elapsed().as_secs_f64();
        let by = match &caught {
            Ok(test) => test.clone(),
            Err(why) => format!("NOT CAUGHT: {why}"),
        };
        println!("{:width$}  {seconds:>7.1}  {by}", mutant.name);
        survivors.extend(caught.is_err().then_some(mutant.name.as_str()));
    }
    let (all, seconds) = (mutants.len(), start.elapsed().as_secs());
    println!("{} of {all} mutants caught, in {seconds} s", all - survivors.len());
    if !survivors.is_empty() {
        println!("not caught: {}", survivors.join(" "));
    }
    Ok(survivors.is_empty())
}

/// Runs each command on the code as it is: one that fails there, or runs no test, proves nothing.
fn rehearse(scratch: &Scratch, mutants: &[Mutant]) -> Result<(), String> {
    let start = Instant::now();
    let commands: BTreeSet<_> = mutants.iter().map(|mutant| mutant.seen_by.as_str()).collect();
    for command in &commands {
        scratch.build(command)?;
        let output = scratch.shell(command, BOUND);
        let text = text(&output);
        if !output.status.success() {
            return Err(format!("without a mutant, this fails: {command}\n{text}"));
        }
        if !text
            .lines()
            .any(|line| line.starts_with("test result: ok") && !line.contains(" 0 passed"))
        {
            return Err(format!("this runs no test: {command}"));
        }
    }
    let (commands, seconds) = (commands.len(), start.elapsed().as_secs());
    println!("without a mutant, all {commands} commands pass, in {seconds} s\n");
    Ok(())
}

/// A copy of the working tree and its target directory.
struct Scratch {
    tree: PathBuf,
    target: PathBuf,
}

impl Scratch {
    /// Makes the copy, or brings it up to date: files that are the same keep their times, so that
    /// little is rebuilt.
    fn at(project: &Path) -> Result<Self, String> {
        let aside = Aside::at(project, "HEAD")?;
        aside.add_all()?;
        let commit = aside.commit("HEAD")?;
        let folder = project.join("target/mutants");
        let scratch = Self { tree: folder.join("tree"), target: folder.join("target") };
        let tree = scratch.tree.display().to_string();
        git(project, &["worktree", "prune"], "")?;
        if scratch.tree.exists() {
            scratch.clean()?;
            git(&scratch.tree, &["checkout", "-q", "--detach", &commit], "")?;
        } else {
            git(project, &["worktree", "add", "-q", "--detach", &tree, &commit], "")?;
        }
        Ok(scratch)
    }

    fn clean(&self) -> Result<(), String> {
        git(&self.tree, &["checkout", "-q", "--force", "."], "").map(drop)
    }

    /// Plants the mutant and runs its command. Returns the test that caught it, or why none
    /// did.
    ///
    /// # Errors
    ///
    /// The mutant cannot be planted, or does not compile.
    fn plant(&self, mutant: &Mutant) -> Result<Result<String, String>, String> {
        apply(&self.tree, &mutant.diff).map_err(|error| format!("{}: {error}", mutant.name))?;
        let built = self.build(&mutant.seen_by);
        let output = built.map(|()| self.shell(&mutant.seen_by, BOUND));
        self.clean()?;
        let output = output.map_err(|error| format!("{}: {error}", mutant.name))?;
        Ok(match output.status.success() {
            true => Err("its command passes".to_owned()),
            false => caught_by(mutant, &text(&output)),
        })
    }

    fn build(&self, command: &str) -> Result<(), String> {
        let build = match command.split_once(" -- ") {
            Some((before, _)) => format!("{before} --no-run"),
            None => format!("{command} --no-run"),
        };
        let output = self.shell(&build, BUILD_BOUND);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("not built by {build}\n{}", text(&output))),
        }
    }

    fn shell(&self, command: &str, bound: Duration) -> Output {
        Command::new("timeout")
            .args(["--kill-after=10", &bound.as_secs().to_string(), "bash", "-c", command])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_PROFILE_DEV_DEBUG", "none")
            .env("RUST_BACKTRACE", "0")
            .output()
            .expect("coreutils has timeout")
    }
}

fn text(output: &Output) -> String {
    let [said, complained] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{said}{complained}")
}

/// Returns the test that failed or did not end, if it is one that the mutant breaks, or that
/// aborted its program, if it ran alone. Any other failure proves nothing: a server may not have
/// started.
fn caught_by(mutant: &Mutant, text: &str) -> Result<String, String> {
    let failed = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?.trim_end();
        Some(name.trim_end_matches("...").trim().to_owned())
    };
    let hung = |line: &str| {
        let name = line.strip_prefix("test ")?.split_once(" has been running for over ")?.0;
        let has_ended = text.contains(&format!("test {name} ... "));
        (!has_ended).then(|| format!("{name}, which did not end"))
    };
    let failures: Vec<_> =
        text.lines().filter_map(failed).chain(text.lines().filter_map(hung)).collect();
    let caught = failures.iter().find(|name| mutant.breaks_test(name)).cloned();
    let is_alone = text.lines().any(|line| line == "running 1 test");
    let is_aborted = is_alone && failures.is_empty() && text.contains("SIGABRT");
    let aborted = || is_aborted.then(|| format!("{}, which aborted its program", mutant.breaks));
    caught.or_else(aborted).ok_or_else(|| match failures.first() {
        Some(other) => format!("another test failed, {other}"),
        None => text.lines().last().unwrap_or_default().to_owned(),
    })
}
