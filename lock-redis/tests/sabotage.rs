//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;
mod support;

use harness::OnServer;

fn main() -> ExitCode {
    let redis = Suite::new("redis", || Box::new(OnServer::new()));
    conformance_tests::run_saboteurs(&redis, &["12", "13"])
}
