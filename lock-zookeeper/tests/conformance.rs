//! Every law on a real server, one server for each trial.

use std::process::ExitCode;

mod harness;

fn main() -> ExitCode {
    lock_conformance::run(&[harness::suite()])
}
