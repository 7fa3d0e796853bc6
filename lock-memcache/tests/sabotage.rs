//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use conformance_tests::Law;

mod harness;

fn main() -> ExitCode {
    let [nearby, _] = harness::suites();
    conformance_tests::run_saboteurs(&[nearby.only(Law::is_about_networks)])
}
