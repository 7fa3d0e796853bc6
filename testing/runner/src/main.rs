//! Runs the workspace's test programs, several at once, and prints the time of each.
//!
//! `cargo test` runs one program after the other, although most tests wait most of the time: for
//! leases to expire, and for servers to come back. This program builds them with cargo and runs
//! them itself.

#![expect(clippy::disallowed_methods, reason = "it times programs and holds no lock")]

mod cargo;
mod report;
mod run;
mod topologies;

use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use cargo::Program;
use clap::Parser;
use run::Skip;

/// Builds the workspace's tests once and runs the test programs, several at once.
#[derive(Parser)]
#[command(name = "runner")]
struct Arguments {
    /// Only these crates, and those that depend on them. All crates, if none is given.
    crates: Vec<String>,
    /// Test programs at the same time.
    #[arg(long, default_value_t = 3)]
    at_once: usize,
    /// Test programs to start first, as `CRATE/PROGRAM`: the longest ones, so that none is left at
    /// the end.
    #[arg(long, value_name = "PROGRAM")]
    first: Vec<String>,
    /// Tests to leave out: `CRATE/PROGRAM`, or `CRATE/PROGRAM:PART` for those with PART in their
    /// names.
    #[arg(long, value_name = "TESTS")]
    skip: Vec<Skip>,
    /// Runs the tests of all topologies, also of those whose files have not changed.
    #[arg(long)]
    all_topologies: bool,
    /// A command to run while tests wait, such as lints: it has to succeed.
    #[arg(long, value_name = "COMMAND")]
    meanwhile: Option<String>,
    /// Leaves out the examples in the documentation.
    #[arg(long)]
    no_docs: bool,
    /// Features, as `CRATE/FEATURE`; those of crates that are not tested are left out.
    #[arg(long, value_delimiter = ',')]
    features: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match execute(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("runner: {error}");
            ExitCode::from(2)
        }
    }
}

/// Checks that all test programs of the workspace are there: those that are not built would be
/// missed by nothing else.
///
/// # Errors
///
/// One is not built and not left out, or a filter fits no program any more, so that it would leave
/// out nothing.
fn check(programs: &[Program], skips: &[Skip]) -> Result<(), String> {
    let all = cargo::all_programs()?;
    if let Some(skip) = skips.iter().find(|skip| !all.iter().any(|path| path == skip.program())) {
        return Err(format!("--skip {skip}: there is no such test program"));
    }
    let is_built = |path: &str| programs.iter().any(|program| program.path() == path);
    let is_left_out = |path: &str| skips.iter().any(|skip| skip.to_string() == path);
    match all.iter().find(|path| !is_built(path) && !is_left_out(path)) {
        Some(path) => Err(format!("{path} is not built: its features are off")),
        None => Ok(()),
    }
}

/// Returns whether all tests passed.
fn execute(arguments: &Arguments) -> Result<bool, String> {
    let selection = cargo::select(&arguments.crates, &arguments.features)?;
    // Before the tests are built: a file that changes later has not been tested.
    let (tested, unchanged) = topologies::read(arguments.all_topologies)?;
    let build = Instant::now();
    let mut programs = cargo::build(&selection)?;
    programs.sort_by_key(|program| {
        let place = arguments.first.iter().position(|first| *first == program.path());
        place.unwrap_or(usize::MAX)
    });
    let mut skips = arguments.skip.clone();
    for topology in &unchanged {
        skips.extend(topology.skips()?);
    }
    if arguments.crates.is_empty() {
        check(&programs, &skips)?;
    }
    println!("compiled in {} s", build.elapsed().as_secs());
    let test = Instant::now();
    // Of a crate without a library, cargo takes a request for examples as an error.
    let has_examples = programs.iter().any(|program| program.name == "lib");
    let results = thread::scope(|scope| {
        let meanwhile = scope.spawn(|| {
            let command = arguments.meanwhile.as_deref().map(run::command);
            let documentation =
                (!arguments.no_docs && has_examples).then(|| run::documentation(&selection));
            command.into_iter().chain(documentation).collect::<Vec<_>>()
        });
        let mut results = run::all(&programs, &skips, arguments.at_once);
        results.extend(meanwhile.join().expect("it does not panic"));
        results
    });
    topologies::record(&tested, &results)?;
    report::print(&results, test.elapsed());
    Ok(results.iter().all(|result| result.passed))
}
