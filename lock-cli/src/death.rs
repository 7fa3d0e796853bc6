//! Death by a signal, as the sender of the signal expects it.
//!
//! A script continues after a command that exits with status 130, and ends after one that died of
//! SIGINT. lockctl catches signals to release the lock first. Only unsafe code could undo that, but
//! exec(2) resets caught signals. So lockctl becomes the verb `__die`.

use std::os::unix::process::CommandExt as _;

use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{SigSet, Signal, raise};

use crate::cli::{self, Die};
use crate::exit::Exit;

/// Becomes the verb that dies of `signal`. Returns only if that fails.
pub(crate) fn die_of(signal: Signal) {
    // A failure leaves the exit status, which a shell shows in the same way.
    let _ = cli::reexec(cli::DIE).arg((signal as i32).to_string()).exec();
}

/// Dies of the signal. Returns only if it is ignored, or this is the first process of a container.
pub(crate) fn die(order: &Die) -> Exit {
    if let Ok(signal) = Signal::try_from(order.signal) {
        // SIGQUIT is meant for the command, whose core dump may be wanted. That of lockctl is not.
        let _ = set_dumpable(false);
        let _ = SigSet::from(signal).thread_unblock();
        let _ = raise(signal);
    }
    Exit::by_signal(order.signal)
}
