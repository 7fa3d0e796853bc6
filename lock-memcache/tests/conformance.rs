//! Every law on a real server, one server for each trial.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;

use harness::OnServer;

fn main() -> ExitCode {
    conformance_tests::run(&[
        Suite::new("memcache", || Box::new(OnServer::new())),
        Suite::new("memcache_far_away", || Box::new(OnServer::new().far_away())),
    ])
}
