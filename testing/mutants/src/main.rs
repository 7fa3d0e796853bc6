//! Plants known mistakes in the source, one at a time, and checks that a test sees each of them.
//!
//! A mutant is a file `mutants/CRATE/NAME.patch`. `scripts/mutants --help` tells how to run them.

#![expect(clippy::disallowed_methods, reason = "it times programs and holds no lock")]

mod git;
mod patch;
mod refresh;
mod run;
#[cfg(test)]
mod topologies;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use patch::Mutant;

/// Plants the mistakes of `mutants/` in a scratch copy of the working tree and runs the command
/// that sees each.
///
/// Fails if a command passes although its mutant is planted, or if only other tests fail. The copy
/// and its target directory stay in `target/mutants`, so that the next run rebuilds little.
#[derive(Parser)]
#[command(name = "scripts/mutants")]
struct Arguments {
    /// Mutants to run: `CRATE/NAME`, `NAME`, or `CRATE` for all of a crate. All, if none is given.
    names: Vec<String>,
    /// Re-creates the patches after the code around them has changed, by a three-way merge with
    /// HEAD.
    #[arg(long)]
    refresh: bool,
    /// Lists the mutants and the commands that see them.
    #[arg(long, conflicts_with = "refresh")]
    list: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match execute(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether all went as it should.
fn execute(arguments: &Arguments) -> Result<bool, String> {
    let project = project();
    let mutants = select(patch::all(&project)?, &arguments.names)?;
    if arguments.list {
        for mutant in &mutants {
            println!("{}\n    breaks {}\n    {}", mutant.name, mutant.breaks, mutant.seen_by);
        }
        return Ok(true);
    }
    match arguments.refresh {
        true => refresh::refresh(&project, &mutants),
        false => run::run(&project, &mutants),
    }
}

fn project() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is two folders deep").to_owned()
}

/// Keeps the mutants that one of `names` means.
///
/// # Errors
///
/// A name means no mutant.
fn select(mutants: Vec<Mutant>, names: &[String]) -> Result<Vec<Mutant>, String> {
    let means = |name: &str, mutant: &Mutant| {
        let (of, bare) = mutant.name.split_once('/').expect("a name has its crate");
        [mutant.name.as_str(), of, bare].contains(&name)
    };
    for name in names {
        if !mutants.iter().any(|mutant| means(name, mutant)) {
            return Err(format!("no mutant is called {name:?}; --list shows all"));
        }
    }
    let wanted = |mutant: &Mutant| names.is_empty() || names.iter().any(|name| means(name, mutant));
    Ok(mutants.into_iter().filter(wanted).collect())
}
