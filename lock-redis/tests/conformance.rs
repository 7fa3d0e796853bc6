//! Every law on a real server, one server for each trial.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;
mod support;

use harness::OnServer;

fn main() -> ExitCode {
    conformance_tests::run(&[
        Suite::new("redis", || Box::new(OnServer::new())),
        Suite::new("redis_without_signals", || Box::new(OnServer::without_signals())),
        Suite::new("redis_far_away", || Box::new(OnServer::new().far_away())),
    ])
}
