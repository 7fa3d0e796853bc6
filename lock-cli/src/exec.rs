//! The step between lockctl and a command that must not outlive it.
//!
//! A lease expires by itself, so a command whose lockctl was killed would soon run without the
//! lock. On such backends lockctl starts itself again as this verb. It asks the kernel to kill it
//! when lockctl dies, and then becomes the command: the request survives that, unless the command
//! is set-user-id. A lockctl that was itself started so does the same on every backend.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::sys::prctl::{get_pdeathsig, set_pdeathsig};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use crate::cli::Exec;
use crate::exit::{Exit, Failure, chain};

/// Becomes the command. Returns only if that fails.
pub(crate) fn exec_command(args: &Exec) -> Failure {
    if let Some(parent) = args.parent {
        if let Err(error) = set_pdeathsig(Signal::SIGKILL) {
            return Failure::internal("cannot make the command die with lockctl", &error);
        }
        // lockctl may have died before the request.
        if getppid() != Pid::from_raw(parent) {
            return Failure::new(Exit::LOST, "lockctl died before its command began");
        }
    }
    let (program, arguments) = args.command.split_first().expect("clap demands a command");
    let error = Command::new(program).args(arguments).exec();
    cannot_run(program, &error)
}

/// Returns true if the kernel kills this process when an outer lockctl dies.
pub(crate) fn is_killed_with_parent() -> bool {
    get_pdeathsig() == Ok(Some(Signal::SIGKILL))
}

pub(crate) fn cannot_run(program: &std::ffi::OsStr, error: &std::io::Error) -> Failure {
    let message = format!("cannot run {program:?}: {}", chain(error));
    Failure::new(Exit::of_start(error), message)
}
