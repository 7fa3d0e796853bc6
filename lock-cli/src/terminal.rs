//! The right to read the terminal: the command has it while lockctl is in the foreground.

use std::fs::File;
use std::io::IsTerminal as _;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
pub(crate) struct Terminal {
    tty: File,
    given: bool,
    /// The modes when the command first got the terminal.
    modes: Option<Termios>,
}

impl Terminal {
    /// Returns the controlling terminal; `None` for a process without one, started by cron for
    /// example.
    pub(crate) fn controlling() -> Option<Self> {
        let tty = File::open("/dev/tty").ok()?;
        Some(Self { tty, given: false, modes: None })
    }

    /// Returns true if the command is probably interactive. In a pipeline it is not: the terminal
    /// stays with the other end, which may be a pager, until the command uses it.
    pub(crate) fn is_for_command(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Makes `group` the foreground group if lockctl's is. Returns true if it is now in the
    /// foreground.
    pub(crate) fn give_to(&mut self, group: Pid) -> bool {
        match tcgetpgrp(&self.tty) {
            Ok(foreground) if foreground == group => true,
            Ok(foreground) if foreground == getpgrp() => {
                if self.modes.is_none() {
                    self.modes = tcgetattr(&self.tty).ok();
                }
                let done = self.set_foreground(group);
                self.given |= done;
                done
            }
            _ => false,
        }
    }

    /// Returns true while the command has the terminal from lockctl.
    pub(crate) fn is_given(&self) -> bool {
        self.given
    }

    /// Puts lockctl back into the foreground if the command has the terminal from it. Returns true
    /// on success.
    pub(crate) fn take_back(&mut self) -> bool {
        std::mem::take(&mut self.given) && self.set_foreground(getpgrp())
    }

    /// Restores the modes after a command that could not: one that was killed while it read single
    /// keys leaves a terminal without echo.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes {
            with_sigttou_blocked(|| tcsetattr(&self.tty, SetArg::TCSANOW, modes).is_ok());
        }
    }

    fn set_foreground(&self, group: Pid) -> bool {
        with_sigttou_blocked(|| tcsetpgrp(&self.tty, group).is_ok())
    }
}

/// Runs `change` with SIGTTOU blocked, which a change from the background would raise.
fn with_sigttou_blocked(change: impl FnOnce() -> bool) -> bool {
    let blocked = SigSet::from(Signal::SIGTTOU);
    let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else {
        return false;
    };
    let done = change();
    let _ = before.thread_set_mask();
    done
}
