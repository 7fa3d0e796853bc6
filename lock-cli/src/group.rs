//! The process group that lockctl is in, together with the script or the pipeline that it is part of.
//!
//! A terminal signals the group in its foreground. While that is the command's, what the terminal
//! does to it has to be done to this group as well.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid, getpgrp, getppid, getsid};

/// Signals the own group, and lockctl with it.
pub(crate) fn signal(signal: Signal) {
    // Not killpg(2) with the group's number: that is 1 in some containers, which means everybody.
    let own_group = Pid::from_raw(0);
    let _ = kill(own_group, signal);
}

/// Stops the own group until the shell lets it go on. False if there is no shell to do so: the
/// kernel does not let a terminal stop such a group either.
pub(crate) fn stop() -> bool {
    if is_orphaned() {
        return false;
    }
    // Not SIGTSTP, which lockctl catches, and would forward when it goes on.
    signal(Signal::SIGSTOP);
    true
}

/// True if no ancestor in this session is outside of the group.
pub(crate) fn is_orphaned() -> bool {
    let mut ancestor = getppid();
    loop {
        // Nobody, or somebody outside of this container: no shell that could let the group go on.
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
            // Not to be learned: as with most groups, there will be a shell.
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
