//! `lock-campaign`: the fault campaign on the backends of this project.

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_campaign::main(lock_campaign::sites::all())
}
