//! Death by a signal, as whoever sent the signal expects it.
//!
//! A script goes on after a command that exits with status 130, and ends after one that died of
//! SIGINT. lockctl catches signals, to let go of the lock first; that cannot be taken back without
//! unsafe code, but exec(2) resets what a program catches. So lockctl becomes the verb `__die`.

use std::os::unix::process::CommandExt as _;

use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{SigSet, Signal, raise};

use crate::cli::{self, Die};
use crate::exit::Exit;

/// Returns only if it fails.
pub(crate) fn die_of(signal: Signal) {
    // A failure leaves the exit status, which a shell shows in the same way.
    let _ = cli::reexec(cli::DIE).arg((signal as i32).to_string()).exec();
}

/// Returns only if the signal is ignored, or this is the first process of a container.
pub(crate) fn die(order: &Die) -> Exit {
    if let Ok(signal) = Signal::try_from(order.signal) {
        // SIGQUIT is meant for the command, whose core may be wanted. Ours is not.
        let _ = set_dumpable(false);
        let _ = SigSet::from(signal).thread_unblock();
        let _ = raise(signal);
    }
    Exit::by_signal(order.signal)
}
