//! Who may read the terminal: the command, while lockctl is in the foreground.

use std::fs::File;
use std::io::IsTerminal as _;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal.
pub(crate) struct Terminal {
    tty: File,
    given: bool,
}

impl Terminal {
    /// `None` for a process that was started without one, by cron for example.
    pub(crate) fn controlling() -> Option<Self> {
        let tty = File::open("/dev/tty").ok()?;
        Some(Self { tty, given: false })
    }

    /// True if a command that is started now is likely to be used by hand. In a pipeline it is not:
    /// the terminal stays with the pipeline's other end, which may be a pager, until the command
    /// asks for it.
    pub(crate) fn is_for_command(&self) -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Makes `group` the foreground, if lockctl is. True if `group` is it now.
    pub(crate) fn give_to(&mut self, group: Pid) -> bool {
        match tcgetpgrp(&self.tty) {
            Ok(foreground) if foreground == group => true,
            Ok(foreground) if foreground == getpgrp() => {
                let done = self.set_foreground(group);
                self.given |= done;
                done
            }
            _ => false,
        }
    }

    /// Makes lockctl the foreground again, if it was.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.given) {
            self.set_foreground(getpgrp());
        }
    }

    fn set_foreground(&self, group: Pid) -> bool {
        // To change the foreground from the background means SIGTTOU, unless it is blocked.
        let blocked = SigSet::from(Signal::SIGTTOU);
        let Ok(before) = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK) else {
            return false;
        };
        let done = tcsetpgrp(&self.tty, group).is_ok();
        let _ = before.thread_set_mask();
        done
    }
}
