//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

mod harness;

fn main() -> ExitCode {
    conformance_tests::run_saboteurs(&harness::suite(), &["12", "13"])
}
