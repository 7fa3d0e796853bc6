//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;

use harness::OnServer;

fn main() -> ExitCode {
    let zookeeper = Suite::new("zookeeper", || Box::new(OnServer::new()));
    conformance_tests::run_saboteurs(&zookeeper, &["12", "13"])
}
