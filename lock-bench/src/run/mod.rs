//! `lock-bench run`: starts servers, relays and workers, and measures.

mod backends;
mod bench;
mod claims;
mod cpu;
mod environment;
mod peer;
mod relay;
mod services;
mod slices;
mod workloads;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::report::{Goals, Row, Summary};
use bench::Bench;
use peer::Lib;
use workloads::WORKLOADS;

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// `memory:`, `file:`, `redis:` for something of its own; `redis://host:port` for one that runs
    backend: String,
    /// What to measure [default: everything that the backend can do]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.iter().map(|w| w.name)))]
    workloads: Vec<String>,
    /// How often each time is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one measurement of pairs takes
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25)]
    seconds: f64,
    /// What the relay adds each way, and three times as much
    #[arg(long, value_name = "MS", default_value_t = 10)]
    delay: u64,
    /// Only what is the same on every machine: requests, bytes, round trips. For CI
    #[arg(long)]
    exact: bool,
    /// Compares with a goals file
    #[arg(long, value_name = "FILE")]
    goals: Option<PathBuf>,
    /// Writes every measurement as a line of JSON, the environment first
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Another library: a program that speaks the protocol, which gets the URL as its last argument
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Lib::foreign)]
    peer: Vec<Lib>,
    /// Worker threads of our own workers; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Leaves it to the scheduler which processor runs what
    #[arg(long)]
    no_pin: bool,
    /// What others may take of all processors during a measurement, in per cent, before it is thrown away
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0)]
    foreign: f64,
    /// The order of measurements repeats with it [default: at random]
    #[arg(long)]
    seed: Option<u64>,
}

/// Why a run ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A promise was broken while it was measured: the figures say nothing.
    Void(String),
    /// Something else.
    Failed(String),
}

pub(crate) fn main(args: &RunArgs) -> ExitCode {
    match run(args) {
        Ok(code) => ExitCode::from(code),
        Err(Stop::Void(why)) => {
            eprintln!("lock-bench: this run is void: {why}");
            ExitCode::from(3)
        }
        Err(Stop::Failed(why)) => {
            eprintln!("lock-bench: {why}");
            ExitCode::from(5)
        }
    }
}

fn run(args: &RunArgs) -> Result<u8, Stop> {
    let goals = args.goals.as_deref().map(Goals::read).transpose().map_err(Stop::Failed)?;
    let json = args.json.as_deref().map(File::create).transpose();
    let json = json.map_err(|e| Stop::Failed(format!("cannot write the JSON lines: {e}")))?;
    let mut bench = Bench::new(args)?;
    let environment = environment::line(&bench)?;
    println!("{environment}");
    for workload in WORKLOADS.iter().filter(|w| was_asked(args, w.name)) {
        (workload.run)(&mut bench)?;
    }
    bench.progress.clear();
    print!("{}", Summary::of(&bench.rows));
    if let Some(json) = json {
        write_lines(json, &environment, &bench.rows)
            .map_err(|e| Stop::Failed(format!("cannot write the JSON lines: {e}")))?;
    }
    Ok(verdict(args, &bench, goals.as_ref()))
}

fn write_lines(file: File, environment: &Value, rows: &[Row]) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    writeln!(file, "{environment}")?;
    rows.iter().try_for_each(|row| writeln!(file, "{}", row.to_json()))?;
    file.flush()
}

/// Says what is missing, and returns the exit status.
fn verdict(args: &RunArgs, bench: &Bench<'_>, goals: Option<&Goals>) -> u8 {
    println!();
    bench.refused.iter().for_each(|what| println!("no times for {what}"));
    let asked = |workload: &str| was_asked(args, workload.split(' ').next().unwrap_or_default());
    let missed = goals.map(|goals| goals.failures(&bench.rows, asked)).unwrap_or_default();
    missed.iter().for_each(|line| println!("goal not met: {line}"));
    match (missed.is_empty(), bench.refused.is_empty()) {
        (false, _) => 1,
        (true, false) => 4,
        (true, true) => 0,
    }
}

fn was_asked(args: &RunArgs, workload: &str) -> bool {
    args.workloads.is_empty() || args.workloads.iter().any(|asked| asked == workload)
}
