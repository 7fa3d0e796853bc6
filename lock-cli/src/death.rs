//! Death by a signal, as the sender of the signal expects it.
//!
//! A script continues after a command that exits with status 130, and ends after one that died of
//! SIGINT. lockctl catches signals to release the lock first. Only unsafe code could undo that, but
//! exec(2) resets caught signals. So lockctl becomes the verb `__die`.

use std::os::unix::process::CommandExt as _;

use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{SigSet, Signal, raise};

use crate::cli::{self, Die};
use crate::exit::{Exit, Failure};

/// Reports the failure, and dies of its signal if it has one. Otherwise returns the exit status.
pub(crate) fn end_with(failure: Failure) -> Exit {
    let signal = failure.signal();
    let exit = failure.report();
    if let Some(signal) = signal {
        // A failure of exec(2) leaves the exit status, which a shell shows in the same way.
        let _ = cli::reexec(cli::DIE).arg((signal as i32).to_string()).exec();
    }
    exit
}

/// Dies of the signal. Returns only if it is ignored, or this is the first process of a container.
pub(crate) fn die(args: &Die) -> Exit {
    if let Ok(signal) = Signal::try_from(args.signal) {
        // SIGQUIT is for the command, whose core dump may be wanted. A dump of lockctl is not.
        let _ = set_dumpable(false);
        let _ = SigSet::from(signal).thread_unblock();
        let _ = raise(signal);
    }
    Exit::by_signal(args.signal)
}
