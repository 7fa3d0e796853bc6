//! `lock-bench run`: starts servers, relays and workers, and measures.

mod backends;
mod bench;
mod claims;
mod cpu;
mod environment;
mod error;
mod others;
mod peer;
mod relay;
mod services;
mod settings;
mod slices;
mod workloads;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use crate::model::Row;
use crate::report::{Goals, Scope, Summary};
pub(crate) use backends::{pauses, untuned};
use bench::Bench;
use error::{Result, RunError};
use settings::Settings;
use workloads::WORKLOADS;

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// `memory:`, `file:`, `redis:`, `zookeeper:`, `memcache:`, `quorum:3`, `quorum:5` for a new
    /// target; `redis://host:port` for a running one
    backend: String,
    /// The workloads [default: all that the backend supports]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.iter().map(|w| w.name)))]
    workloads: Vec<String>,
    #[command(flatten)]
    settings: Settings,
    /// Compares with a goals file
    #[arg(long, value_name = "FILE")]
    goals: Option<PathBuf>,
    /// Writes every measurement as a line of JSON, the environment first
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn main(args: &RunArgs) -> ExitCode {
    match run(args) {
        Ok(code) => ExitCode::from(code),
        Err(RunError::Void(why)) => {
            eprintln!("lock-bench: this run is void: {why}");
            ExitCode::from(3)
        }
        Err(RunError::Failed(why) | RunError::Unsupported(why)) => {
            eprintln!("lock-bench: {why}");
            ExitCode::from(5)
        }
    }
}

fn run(args: &RunArgs) -> Result<u8> {
    let workloads: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
    let goals = args.goals.as_deref().map(|path| Goals::read(path, &workloads)).transpose();
    let goals = goals.map_err(RunError::Failed)?;
    let json = args.json.as_deref().map(File::create).transpose();
    let json = json.map_err(RunError::context("cannot write the JSON lines"))?;
    let mut bench = Bench::new(&args.backend, &args.settings)?;
    let environment = environment::json(&bench)?;
    print(&format!("{environment}\n"))?;
    let mut asked = WORKLOADS.iter().filter(|workload| is_selected(args, workload.name));
    let measured = asked.try_for_each(|workload| (workload.run)(&mut bench));
    bench.progress.clear();
    // Also the measurements before a failure.
    if let Some(json) = json {
        write_lines(json, &environment, &bench.rows)
            .map_err(RunError::context("cannot write the JSON lines"))?;
    }
    measured?;
    let (verdict, status) = verdict(args, &bench, goals.as_ref());
    print(&format!("{}{verdict}", Summary::of(&bench.rows)))?;
    Ok(status)
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(RunError::context("cannot write to stdout"))
}

fn write_lines(file: File, environment: &Value, rows: &[Row]) -> io::Result<()> {
    let mut file = BufWriter::new(file);
    writeln!(file, "{environment}")?;
    rows.iter().try_for_each(|row| writeln!(file, "{}", row.to_json()))?;
    file.flush()
}

/// Returns the misses and the exit status.
fn verdict(args: &RunArgs, bench: &Bench<'_>, goals: Option<&Goals>) -> (String, u8) {
    let mut text = String::from("\n");
    bench.missing().for_each(|lib| text += &format!("not measured: {lib}\n"));
    bench.left_out.iter().for_each(|why| text += &format!("left out: {why}\n"));
    bench.refused.iter().for_each(|why| text += &format!("no times for {why}\n"));
    if !bench.refused.is_empty() {
        text += "Counts are valid all the same. For the times, run it again on an idle machine.\n";
    }
    let mut missed = Vec::new();
    if let Some(goals) = goals {
        let scope = Scope { exact: args.settings.exact, others: args.settings.others };
        let others: Vec<String> =
            bench.libs.iter().filter(|lib| lib.is_other()).map(|lib| lib.name.clone()).collect();
        let outcome =
            goals.compare(&bench.rows, &others, scope, |workload| is_selected(args, workload));
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

fn is_selected(args: &RunArgs, workload: &str) -> bool {
    args.workloads.is_empty() || args.workloads.iter().any(|asked| asked == workload)
}
