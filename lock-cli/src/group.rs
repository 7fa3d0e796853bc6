//! The process group of lockctl, together with the script or pipeline around it.
//!
//! A terminal signals its foreground group. While that is the command's, this group has to get the
//! same signals.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};

/// Signals lockctl's own group, and lockctl with it.
pub(crate) fn signal(signal: Signal) {
    // Not killpg(2) with the group's number: that is 1 in some containers, which means all
    // processes.
    let own_group = Pid::from_raw(0);
    let _ = kill(own_group, signal);
}

/// Stops lockctl's own group until the shell resumes it. Returns false without a shell to do so:
/// the kernel does not let a terminal stop such a group either.
pub(crate) fn stop() -> bool {
    if is_orphaned() {
        return false;
    }
    // Not SIGTSTP, which lockctl catches, and would forward when it goes on.
    signal(Signal::SIGSTOP);
    true
}

/// Returns true if no ancestor in this session is outside of the group.
pub(crate) fn is_orphaned() -> bool {
    let mut ancestor = getppid();
    loop {
        // No ancestor, or one outside of this container: no shell could resume the group.
        if ancestor.as_raw() == 0 {
            return true;
        }
        if getsid(Some(ancestor)) != getsid(None) {
            return true;
        }
        if getpgid(Some(ancestor)) != Ok(getpgrp()) {
            return false;
        }
        match parent_of(ancestor) {
            Some(parent) => ancestor = parent,
            // Unknown: as with most groups, there is probably a shell.
            None => return false,
        }
    }
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok().map(Pid::from_raw)
}
