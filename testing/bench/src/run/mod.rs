//! `lock-bench run`: starts servers, relays and workers, and measures.

mod backends;
mod bench;
mod claims;
mod cpu;
mod environment;
mod others;
mod peer;
mod relay;
mod services;
mod slices;
mod workloads;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;
use serde_json::Value;

use crate::report::{Goals, Row, Scope, Summary};
pub(crate) use backends::{pauses, untuned};
use bench::Bench;
use peer::Lib;
use workloads::WORKLOADS;

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// `memory:`, `file:`, `redis:`, `zookeeper:`, `memcache:`, `quorum:3`, `quorum:5` for something of its own;
    /// `redis://host:port` for one that runs
    backend: String,
    /// What to measure [default: everything that the backend can do]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.iter().map(|w| w.name)))]
    workloads: Vec<String>,
    /// How often each time is measured, 1 to 1000
    #[arg(long, default_value = "5", value_parser = rounds, allow_negative_numbers = true)]
    rounds: usize,
    /// How long one measurement of pairs takes, 0.01 to 30
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = seconds)]
    #[arg(allow_negative_numbers = true)]
    seconds: f64,
    /// What the relay adds each way, and three times as much, 1 to 500
    #[arg(long, value_name = "MS", default_value_t = 10, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=500))]
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
    /// Locks of other projects, too, as far as they are installed (testing/bench/peers/setup). Those that are missing are
    /// named with what installs them
    #[arg(long)]
    others: bool,
    /// Worker threads of our own workers; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Leaves it to the scheduler which processor runs what
    #[arg(long)]
    no_pin: bool,
    /// What others may take of all processors during a measurement, in per cent, before it is thrown away
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = percent)]
    #[arg(allow_negative_numbers = true)]
    foreign: f64,
    /// The order of measurements repeats with it [default: at random]
    #[arg(long)]
    seed: Option<u64>,
}

fn rounds(text: &str) -> Result<usize, String> {
    within(text, 1, 1000)
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.01, 30.0)
}

fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 100.0)
}

/// Not outside of what makes sense, and not "not a number".
fn within<T: Copy + FromStr + PartialOrd + Display>(
    text: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| format!("a number from {least} to {most} is needed"))
}

/// Why a run ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A promise was broken while it was measured: the figures say nothing.
    Void(String),
    /// A library does not have what was asked of it.
    Cannot(String),
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
        Err(Stop::Failed(why) | Stop::Cannot(why)) => {
            eprintln!("lock-bench: {why}");
            ExitCode::from(5)
        }
    }
}

fn run(args: &RunArgs) -> Result<u8, Stop> {
    let workloads: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
    let goals = args.goals.as_deref().map(|path| Goals::read(path, &workloads)).transpose();
    let goals = goals.map_err(Stop::Failed)?;
    let json = args.json.as_deref().map(File::create).transpose();
    let json = json.map_err(|e| Stop::Failed(format!("cannot write the JSON lines: {e}")))?;
    let mut bench = Bench::new(args)?;
    let environment = environment::line(&bench)?;
    print(&format!("{environment}\n"))?;
    let mut asked = WORKLOADS.iter().filter(|workload| was_asked(args, workload.name));
    let measured = asked.try_for_each(|workload| (workload.run)(&mut bench));
    bench.progress.clear();
    // Also what was measured before something failed.
    if let Some(json) = json {
        write_lines(json, &environment, &bench.rows)
            .map_err(|e| Stop::Failed(format!("cannot write the JSON lines: {e}")))?;
    }
    measured?;
    let (verdict, status) = verdict(args, &bench, goals.as_ref());
    print(&format!("{}{verdict}", Summary::of(&bench.rows)))?;
    Ok(status)
}

fn print(text: &str) -> Result<(), Stop> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Stop::Failed(format!("nobody reads what is printed: {e}")))
}

fn write_lines(file: File, environment: &Value, rows: &[Row]) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    writeln!(file, "{environment}")?;
    rows.iter().try_for_each(|row| writeln!(file, "{}", row.to_json()))?;
    file.flush()
}

/// What is missing, and the exit status.
fn verdict(args: &RunArgs, bench: &Bench<'_>, goals: Option<&Goals>) -> (String, u8) {
    let mut text = String::from("\n");
    bench.missing().for_each(|what| text += &format!("not measured: {what}\n"));
    bench.left_out.iter().for_each(|what| text += &format!("left out: {what}\n"));
    bench.refused.iter().for_each(|what| text += &format!("no times for {what}\n"));
    if !bench.refused.is_empty() {
        text += "What is counted stands all the same. For the times, run it again when nothing else is running.\n";
    }
    let mut missed = Vec::new();
    if let Some(goals) = goals {
        let scope = Scope { exact: args.exact, others: args.others };
        let others: Vec<String> = bench
            .libs
            .iter()
            .filter(|lib| lib.is_of_others())
            .map(|lib| lib.name.clone())
            .collect();
        let outcome =
            goals.compare(&bench.rows, &others, scope, |workload| was_asked(args, workload));
        missed = outcome.not_met;
        for line in &outcome.better {
            text += &format!(
                "met, although its goals file explains why not; delete `missed`: {line}\n"
            );
        }
        outcome.known.iter().for_each(|line| text += &format!("known not to be met: {line}\n"));
        missed.iter().for_each(|line| text += &format!("goal not met: {line}\n"));
        let met = outcome.asked - missed.len() - outcome.known.len();
        text += &format!("goals met: {met} of {}\n", outcome.asked);
    }
    let status = match (missed.is_empty(), bench.refused.is_empty()) {
        (false, _) => 1,
        (true, false) => 4,
        (true, true) => 0,
    };
    (text, status)
}

fn was_asked(args: &RunArgs, workload: &str) -> bool {
    args.workloads.is_empty() || args.workloads.iter().any(|asked| asked == workload)
}
