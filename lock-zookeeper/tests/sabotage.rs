//! The laws about networks and servers catch their saboteurs, on a real server.

use std::process::ExitCode;

use lock_conformance::Law;

mod harness;

fn main() -> ExitCode {
    lock_conformance::run_saboteurs(&[harness::suite().only(Law::is_about_networks)])
}
