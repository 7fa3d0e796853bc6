//! Every law in a cluster of three masters.

use std::process::ExitCode;

#[path = "harness/cluster.rs"]
mod cluster;

fn main() -> ExitCode {
    lock_conformance::run(&cluster::suites())
}
