//! `lockctl`: locks for shells and scripts. The whole program is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockctl::main()
}
