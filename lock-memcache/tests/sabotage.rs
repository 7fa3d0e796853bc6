//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use lock_conformance::Law;

mod harness;

fn main() -> ExitCode {
    let [nearby, _] = harness::suites();
    lock_conformance::run_saboteurs(&[nearby.only(Law::is_about_networks)])
}
