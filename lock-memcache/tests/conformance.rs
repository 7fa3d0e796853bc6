//! Every law on a real server, one server for each trial.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;

use harness::OnServer;

/// Leases end seconds after what was asked for: until then there is nothing to compute.
const TRIALS_AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let suites = [
        Suite::new("memcache", || Box::new(OnServer::new())),
        Suite::new("memcache_far_away", || Box::new(OnServer::new().far_away())),
    ];
    conformance_tests::run_at_once(TRIALS_AT_ONCE, &suites)
}
