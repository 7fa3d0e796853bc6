//! The cost of locks: requests, round trips, bytes, CPU and times, each beside a hand-written
//! floor. Every figure that this project claims is a result of this program.

mod model;
mod report;
mod run;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures locks beside hand-written floors
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Measures a backend
    ///
    /// Exit status: 0, measured, and every goal met. 1, a goal was not met. 2, bad usage. 3, the
    /// run is void: two claims overlapped, or a fencing token did not grow. 4, the machine was too
    /// busy for times. 5, an error.
    Run(run::RunArgs),
    /// Shows recorded runs in pictures and tables
    Report(report::ReportArgs),
    /// Runs one process that executes commands from stdin; PROTOCOL.md lists them
    Worker(worker::WorkerArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Action::Run(args) => run::main(&args),
        Action::Report(args) => ended("report", report::main(&args)),
        Action::Worker(args) => ended("worker", worker::run(&args)),
    }
}

fn ended(command: &str, outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock-bench {command}: {error}");
            ExitCode::from(5)
        }
    }
}
