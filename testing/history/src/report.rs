//! The report of the checker.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::record::nanos_of;

/// The number of violations of one rule with a message; the others are counted.
const TOLD: u64 = 20;

/// The size from which a distribution is judged.
const FEWEST: usize = 100;

/// The number of stalls that a busy machine may have.
const STALLS: u64 = 3;

/// The inverse of the share of calls that may meet a bound on a busy machine. In 100 runs on all
/// backends it was one of 800 at most.
const MEETS_A_BOUND: u64 = 200;

/// The rules that a history is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Rule {
    /// Claims of one lock never overlap, and none exceeds its lease.
    K1,
    /// There is an order in which a lock with leases gives these answers: no grant before the
    /// previous one can have ended, no contention without a contender.
    K2,
    /// A resource that checks tokens accepts no lower one after a higher one, and counts right. It
    /// only sees tokens that were granted.
    K3,
    /// Fencing tokens are unique and grow in the order of grants.
    K4,
    /// No client waits for a free lock longer than is declared, and every call returns. After a
    /// failover or a restart with older data, a contended lock is granted again within the declared
    /// bound. Where that is declared, the bound is a claim lease and 100 ms, plus the run's
    /// allowance for the machine.
    K5,
    /// No state is left on the server except the documented one.
    K6,
    /// `Released` was released by that call, `NotHeld` had a reason, and a lost lock stays lost.
    K7,
    /// First come, first served, where it is declared.
    Fifo,
    /// A holder is notified of its loss in time.
    Told,
    /// Undisturbed calls fail, and renewed holds are lost, only where a fault explains it.
    Unexplained,
    /// The search for an order exceeded its budget: this is no pass.
    Undecided,
}

/// One violation of a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The lock; empty if none is involved.
    pub lock: String,
    /// The lines of the history that show it.
    pub lines: Vec<u32>,
    /// The events, and why they violate the rule.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.rule)?;
        if !self.lock.is_empty() {
            write!(f, " lock {:?}", self.lock)?;
        }
        let lines: Vec<String> = self.lines.iter().map(ToString::to_string).collect();
        match lines.len() {
            0 => {}
            1 => write!(f, " (line {})", lines[0])?,
            _ => write!(f, " (lines {})", lines.join(", "))?,
        }
        write!(f, ": {}", self.message)
    }
}

/// The distribution of a duration.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Times {
    /// The number of samples.
    pub count: usize,
    /// The median, in nanoseconds.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The maximum.
    pub max: u64,
    /// All samples, the shortest first.
    #[serde(skip)]
    pub all: Vec<u64>,
}

impl Times {
    pub(super) fn of(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let [p50, p99, max] = [50, 99, 100].map(|percent| at(&nanos, percent));
        Self { count: nanos.len(), p50, p99, max, all: nanos }
    }

    /// Returns the percentile.
    #[must_use]
    pub fn at(&self, percent: usize) -> Duration {
        Duration::from_nanos(at(&self.all, percent))
    }
}

/// Returns the percentile of sorted durations.
fn at(sorted: &[u64], percent: usize) -> u64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0)
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, max] = [self.p50, self.p99, self.max].map(Duration::from_nanos);
        write!(f, "{} (median {p50:.1?}, 99 % {p99:.1?}, longest {max:.1?})", self.count)
    }
}

/// A failure without a fault.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    /// The time of the failure.
    pub(super) t: u64,
    /// True if it met a bound: the machine may have stood still.
    pub(super) is_late: bool,
    /// The call and its error.
    pub(super) words: String,
}

/// Failures that no fault explains, among the calls that no fault disturbed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tally {
    /// The number of undisturbed calls.
    pub count: u64,
    /// The number of these that failed.
    pub failed: u64,
    /// The number of moments with failures. Calls that meet a bound within one timeout may have one
    /// cause; any other failure counts by itself.
    pub moments: u64,
    /// The messages of the first failures.
    pub failures: Vec<String>,
}

impl Tally {
    /// Returns true if more calls failed than a busy machine explains. One call in two hundred may
    /// meet a bound, and three may in a short history. A stall of the machine fails many calls at
    /// one moment, which may happen three times.
    #[must_use]
    pub fn fails_too_often(&self) -> bool {
        self.failed > (self.count / MEETS_A_BOUND).max(STALLS) && self.moments > STALLS
    }

    /// Counts failures and their times. An error that met no bound counts as a moment of its own.
    pub(super) fn fail(&mut self, mut failures: Vec<Failure>, timeout: Duration) {
        failures.sort_unstable();
        let mut moment: Option<u64> = None;
        for Failure { t, is_late, .. } in &failures {
            if !is_late {
                self.moments += 1;
            } else if moment.is_none_or(|began| *t - began > nanos_of(timeout)) {
                self.moments += 1;
                moment = Some(*t);
            }
        }
        self.failed += failures.len() as u64;
        let first = failures.into_iter().map(|failure| failure.words).take(TOLD as usize);
        self.failures.extend(first);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, of which failed: {}", self.count, self.failed)?;
        match self.moments {
            0 => Ok(()),
            moments => write!(f, ", in {moments} moments"),
        }
    }
}

/// The verdict on a history.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Acquisitions whose clients met no fault, neither then nor shortly before.
    pub acquisitions: Tally,
    /// The same for releases and renewals that holders asked for.
    pub returns: Tally,
    /// Holds that lasted until their first renewal, and whose holders met no fault meanwhile. The
    /// lost ones count as failed.
    pub holds: Tally,
    /// The same for holds whose application was blocked for a while, or was recovering from that.
    pub starved: Tally,
    /// Acquisitions that waited for another holder, and met no fault.
    pub waits: u64,
    /// Of these, those after which certainly no other client had the lock: a late grant would have
    /// been found.
    pub judged_waits: u64,
    /// Operations, completed or not.
    pub operations: usize,
    /// Acquisitions that succeeded.
    pub grants: usize,
    /// The number of locks.
    pub locks: usize,
    /// Operations with unknown outcome.
    pub unknown: usize,
    /// Overlapping claims while an assumption was broken on purpose: no violations, but worth
    /// knowing.
    pub excused_overlaps: u64,
    /// Claims during which an assumption was broken.
    pub claims_at_risk: u64,
    /// Tokens that went back while data was lost and the clock was set back.
    pub excused_fences: u64,
    /// Lost updates of counters without a token: the reason for fencing.
    pub lost_updates: u64,
    /// From the invocation of a release until the next waiter held the lock.
    pub hand_offs: Times,
    /// The undisturbed hand-offs: neither the holder nor the waiter met a fault, from one lease
    /// before on.
    pub calm: Times,
    /// From the fault that ended a holder until the next waiter held the lock.
    pub takeovers: Times,
    /// After each failover and restart with older data, by type of fault: the longest interval in
    /// which a lock was contended, and no client relied on it.
    pub standstills: BTreeMap<String, Times>,
    /// The number of violations of each rule.
    pub broken: BTreeMap<Rule, u64>,
    /// The first violations of each rule.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Returns true if no rule is broken.
    #[must_use]
    pub fn is_legal(&self) -> bool {
        self.broken.is_empty()
    }

    /// Returns true if this rule is broken.
    #[must_use]
    pub fn breaks(&self, rule: Rule) -> bool {
        self.broken.contains_key(&rule)
    }

    /// Returns the counts of undisturbed calls and holds, each with its name.
    pub fn tallies(&self) -> [(&'static str, &Tally); 4] {
        [
            ("acquisitions", &self.acquisitions),
            ("releases and renewals", &self.returns),
            ("holds that had to be renewed", &self.holds),
            ("holds of applications that were starved", &self.starved),
        ]
    }

    /// Returns true if there were enough hand-offs without a fault to judge their durations.
    #[must_use]
    pub fn has_been_calm(&self) -> bool {
        self.calm.count >= FEWEST
    }

    /// Adds a violation. The message is only made if it is going to be kept.
    pub(super) fn violation(
        &mut self,
        rule: Rule,
        lock: &str,
        lines: &[u32],
        message: impl FnOnce() -> String,
    ) {
        let count = self.broken.entry(rule).or_default();
        *count += 1;
        if *count <= TOLD {
            let mut lines: Vec<u32> = lines.iter().copied().filter(|&line| line > 0).collect();
            lines.sort_unstable();
            lines.dedup();
            let lock = lock.to_owned();
            self.violations.push(Violation { rule, lock, lines, message: message() });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} operations ({} with unknown outcome), {} grants, {} locks",
            self.operations, self.unknown, self.grants, self.locks
        )?;
        writeln!(f, "hand-offs: {}", self.hand_offs)?;
        writeln!(f, "without a fault: {}, nine in ten {:.1?}", self.calm, self.calm.at(90))?;
        writeln!(f, "takeovers: {}", self.takeovers)?;
        for (what, longest) in &self.standstills {
            writeln!(f, "longest standstill after each {what}: {longest}")?;
        }
        writeln!(
            f,
            "while assumptions were broken: {} overlaps of {} claims, {} fences that went back",
            self.excused_overlaps, self.claims_at_risk, self.excused_fences
        )?;
        writeln!(f, "updates lost without fences: {}", self.lost_updates)?;
        writeln!(f, "waits without a fault: {}, judged: {}", self.waits, self.judged_waits)?;
        for (what, tally) in self.tallies() {
            writeln!(f, "{what} without a fault: {tally}")?;
            for failure in &tally.failures {
                writeln!(f, "  {failure}")?;
            }
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        for (rule, count) in self.broken.iter().filter(|(_, count)| **count > TOLD) {
            writeln!(f, "{rule:?}: {} more", count - TOLD)?;
        }
        f.write_str(if self.is_legal() { "legal" } else { "NOT LEGAL" })
    }
}
