//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use conformance_tests::Law;

mod harness;

fn main() -> ExitCode {
    conformance_tests::run_saboteurs(&[harness::suite().only(Law::is_about_networks)])
}
