//! The process group of lockctl and of the script or pipeline around it.
//!
//! A terminal signals its foreground group. While that is the command's, this group needs the same
//! signals from lockctl.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};

/// Signals lockctl's own group, and lockctl with it.
pub(crate) fn signal(signal: Signal) {
    // Not killpg(2) with the number of the group: it is 1 in some containers, and then means all
    // processes.
    let own_group = Pid::from_raw(0);
    let _ = kill(own_group, signal);
}

/// Stops lockctl's own group until the shell resumes it. Returns false if there is no shell to
/// resume it: then the kernel does not let a terminal stop the group either.
pub(crate) fn stop() -> bool {
    if is_orphaned() {
        return false;
    }
    // Not SIGTSTP, which lockctl catches, and would forward when it resumes.
    signal(Signal::SIGSTOP);
    true
}

/// Returns true if no ancestor in this session is outside the group.
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
            // Unknown: most groups have a shell.
            None => return false,
        }
    }
}

fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name, in parentheses, may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(1)?.parse().ok().map(Pid::from_raw)
}
