//! Histories: the recorded operations of all clients, and a checker that judges them.
//!
//! The laws check one lock at a time, from inside one test. A history covers a whole run of many
//! clients, with the faults during it. A [`Recorder`] writes it as JSON lines, and [`check`] judges
//! it afterwards. `check-history` does the same for files.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use lock_history::{Clock, Header, Recorder};
//! use lock_core::{Locker, Memory};
//!
//! let locks = Locker::new(Memory::new());
//! let ttl = Duration::from_secs(30);
//! let header = Header::new("an example", 0, locks.capabilities(), ttl);
//! let recorder = Recorder::in_memory(Clock::core(), header);
//!
//! let mut client = recorder.client("p1/a");
//! let lock = locks.lock("orders/42")?.ttl(ttl);
//! let held = client.acquire(&lock).await?;
//! client.release(held).await?;
//!
//! let report = lock_history::check(&recorder.history()?);
//! assert!(report.is_legal(), "{report}");
//! # Ok(()) }
//! ```
//!
//! # Records
//!
//! Each operation is recorded twice: `invoke` before the call, and `ok`, `fail` or `info` after its
//! return. `fail` means that the operation certainly changed nothing. Everything else is `info`: it
//! may take effect at any time after its invocation, once or never, and its hold ends by its lease.
//! To treat it as a failure would hide the locks that it leaves behind. So the recorded intervals
//! contain the true ones.
//!
//! The *claim* of a grant is the interval in which the application may rely on the lock. It begins
//! with the return of the acquisition. It ends with the invocation of the release, the notification
//! of the loss, or `valid_until`, whichever is first. `valid_until` is the recorder's clock, read
//! first, plus the remaining time that the guard reports. So recorded claims lie inside the true
//! ones, and an overlap of two is no false alarm.
//!
//! Faults are part of the history, recorded before they are caused and after they are over. So are
//! holders whose operations are not recorded ([`Trouble::Foreign`]).
//!
//! # Rules
//!
//! See [`Rule`]. With fencing tokens the order of grants is known, and each rule is a sweep over
//! sorted records: 10⁶ operations take seconds. Without tokens, certain holds give the order, and
//! the rest is searched, with a budget. A search that exceeds it is a violation, no pass.

mod claims;
mod effects;
mod holds;
mod honesty;
mod liveness;
mod order;
mod record;
mod recorder;
mod report;
mod search;
mod timeline;

pub use record::{
    Assumption, ClockName, Fault, Grade, Header, Heal, Kind, Line, Op, Record, Renewals, Residue,
    Trouble, Why,
};
pub use recorder::{Client, Clock, FaultNote, GrantId, Held, Pending, Recorder, Terms, UnderFault};
pub use report::{Report, Rule, Tally, Times, Violation};
pub use timeline::{History, Unreadable};

use holds::{IntervalIndex, foreign_holds, holders, in_order, is_fenced, queued_intervals};
use timeline::{LockView, Outcome};

/// Judges a history by all rules.
#[must_use]
pub fn check(history: &History) -> Report {
    let mut report = Report::default();
    let (mut clocked, mut unexplained) = <(liveness::Clocked, liveness::Unexplained)>::default();
    let mut standstills = liveness::Standstills::new(history);
    for lock in history.locks() {
        report.locks += 1;
        report.operations += lock.calls.len();
        report.grants += lock.grants.len();
        let unknown = lock.calls.iter().filter(|call| call.outcome == Outcome::Info);
        report.unknown += unknown.count();
        check_lock(lock, &mut report, &mut clocked);
        standstills.add(lock, &mut report);
        unexplained.add(lock, &mut report);
    }
    clocked.tell(&history.header, &mut report);
    standstills.tell(&mut report);
    unexplained.tell(&history.header, &mut report);
    residue(history, &mut report);
    report
}

fn check_lock(lock: LockView<'_>, report: &mut Report, clocked: &mut liveness::Clocked) {
    let mut order = in_order(lock);
    order::fences(lock, &order, report);
    order::sweep(lock, &mut order, report);
    claims::exclusion(lock, &order, report);
    claims::deadlines(lock, report);
    order::fifo_order(lock, &order, report);

    let mut holding = holders(lock, &order);
    // A holder of another library explains contention as a queued client does: exactly while it is
    // there.
    let foreign_holds = foreign_holds(lock);
    let mut standing = queued_intervals(lock);
    standing.extend(&foreign_holds);
    let shut = holding.iter().map(|span| span.shut(lock.header));
    let contenders = IntervalIndex::new(shut.chain(standing.iter().copied()).collect());
    order::contention(lock, &contenders, report);
    holding.extend(&foreign_holds);
    liveness::waits(lock, &IntervalIndex::new(holding), report);
    liveness::returns(lock, report);
    clocked.add(lock, &order, report);

    let ordered = ![Rule::K1, Rule::K2, Rule::K7].into_iter().any(|rule| report.breaks(rule));
    if !is_fenced(lock) && ordered {
        search::search(lock, &IntervalIndex::new(standing), report);
    }

    claims::told(lock, &order, report);
    honesty::honesty(lock, &order, report);
    effects::effects(lock, report);
}

/// Checks K6: only documented state is left on the server.
fn residue(history: &History, report: &mut Report) {
    let Some(patterns) = &history.header.residue else { return };
    let Some((left, line)) = &history.residue else {
        report.violation(Rule::K6, "", &[], || {
            "the header names the allowed residue, but the history has no record of it".to_owned()
        });
        return;
    };
    for name in left {
        if !patterns.iter().any(|pattern| fits(name, pattern)) {
            report.violation(Rule::K6, "", &[*line], || {
                format!("{name:?} was left on the server, and nothing documents it")
            });
        }
    }
}

/// Returns whether a name fits a pattern, in which `*` stands for anything.
#[must_use]
pub fn fits(name: &str, pattern: &str) -> bool {
    let Some((start, mut rest)) = pattern.split_once('*') else {
        return name == pattern;
    };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    while let Some((part, more)) = rest.split_once('*') {
        let Some(at) = name.find(part) else { return false };
        (name, rest) = (&name[at + part.len()..], more);
    }
    name.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_anything() {
        for (name, pattern) in [("a", "a"), ("fence:x", "fence:*"), ("a-b-c", "a*b*c"), ("", "*")] {
            assert!(fits(name, pattern), "{name} {pattern}");
        }
        for (name, pattern) in
            [("ab", "a"), ("xfence:x", "fence:*"), ("a-c", "a*b*c"), ("aa", "a*aa")]
        {
            assert!(!fits(name, pattern), "{name} {pattern}");
        }
    }
}
