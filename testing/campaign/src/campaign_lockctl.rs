//! `lockctl` as a client of the campaign.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockctl::main()
}
