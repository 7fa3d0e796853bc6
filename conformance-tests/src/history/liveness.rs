//! K5: nobody waits for a free lock, and every call returns.

use std::time::Duration;

use super::holds::{Hold, Presence, Span};
use super::order::is_busy;
use super::record::{Header, Op, Why};
use super::report::{Report, Rule, Times};
use super::timeline::{Call, History, LockLine, Outcome};

/// No wait goes on for longer than is declared while certainly nobody else has the lock.
pub(super) fn waits(history: &History, lock: &LockLine, holders: &Presence, report: &mut Report) {
    let gaps = holders.gaps(history.end);
    for (index, call) in lock.calls.iter().enumerate().filter(|(_, call)| call.op == Op::Acquire) {
        if call.outcome != Outcome::Ok && call.outcome != Outcome::Open && !is_busy(call) {
            continue;
        }
        let begun = gaps.partition_point(|gap| gap.until <= call.invoke);
        let gaps = gaps[begun..].iter().take_while(|gap| gap.from < call.ret);
        // Up to its own grant, others may have had it; from then on, only its answer is missing.
        let others = holders.last_until(call.ret, index);
        let own = others.map_or(call.invoke, |span| span.until).max(call.invoke);
        let lapsed = others.is_some_and(|span| span.lapsed && span.until > call.invoke);
        let own = Span { from: own, until: call.ret, lapsed, call: index };
        let own = (call.outcome == Outcome::Ok).then_some(own);
        if let Some((free, late)) = gaps.copied().chain(own).find_map(|free| {
            let late = too_long(history, lock, call, free)?;
            Some((free, late))
        }) {
            let blocker = lock.calls.get(free.call).map_or(0, |call| call.lines[1]);
            report.violation(
                Rule::K5,
                &lock.name,
                &[call.lines[0], call.lines[1], blocker],
                || {
                    let name = history.name_of(call);
                    let how =
                        if free.lapsed { "the lease before it had ended" } else { "it was free" };
                    format!("{name} waited {late:?} although {how} from {} ns on", free.from.t)
                },
            );
        }
    }
}

/// How long a call waited in a span where the lock was free, if that is too long: it is served within its bound, or
/// after the last of the faults that it met before it had to be. However many there are, the time in between counts.
fn too_long(history: &History, lock: &LockLine, call: &Call, free: Span) -> Option<Duration> {
    let header = &history.header;
    let from = free.from.max(call.invoke);
    let until = free.until.min(call.ret).min(history.end);
    let bound = if free.lapsed { header.takeover } else { header.hand_off };
    if until <= from.plus(bound) {
        return None;
    }
    let recovers = header.recovers.unwrap_or(header.drain);
    let (mut latest, mut quiet, mut calm_from) = (from.plus(bound), Duration::ZERO, from);
    for fault in history.felt(&lock.name, call.process, from.minus(recovers), until) {
        if fault.from > latest {
            break;
        }
        latest = latest.max(fault.until.plus(recovers));
        quiet += fault.from.since(calm_from);
        calm_from = calm_from.max(fault.until);
    }
    quiet += until.since(calm_from);
    (until > latest || quiet > bound + recovers).then(|| until.since(from))
}

/// Counts what fails although its client has felt nothing, neither then nor for as long before as it may take to
/// recover.
pub(super) fn errors(history: &History, lock: &LockLine, report: &mut Report) {
    let recovers = history.header.recovers.unwrap_or(history.header.drain);
    for call in lock.calls.iter().filter(|call| call.op.acquires()) {
        let until = call.ret.min(history.end);
        let mut felt = history.felt(&lock.name, call.process, call.invoke.minus(recovers), until);
        if felt.next().is_some() {
            continue;
        }
        report.undisturbed += 1;
        if let Some(why) = call.err.as_ref().filter(|why| !matches!(why, Why::Busy | Why::Dropped))
        {
            report.unexplained(|| {
                let (name, line) = (history.name_of(call), call.lines[1]);
                match why {
                    Why::Other(words) => {
                        format!("{name}, lock {} (line {line}): {words}", lock.name)
                    }
                    why => format!("{name}, lock {} (line {line}): {why:?}", lock.name),
                }
            });
        }
    }
}

/// A call without an answer is one that never returned, unless its process was killed or stopped.
pub(super) fn returns(history: &History, lock: &LockLine, report: &mut Report) {
    let open = lock.calls.iter().filter(|call| call.outcome == Outcome::Open);
    for call in open {
        let gone = history.killed(call.process).is_some();
        if gone || history.felt(&lock.name, call.process, history.end, history.end).next().is_some()
        {
            continue;
        }
        report.violation(Rule::K5, &lock.name, &call.lines, || {
            let name = history.name_of(call);
            format!("the {:?} of {name} has not returned when the run ended", call.op)
        });
    }
}

/// How long hand-offs and takeovers took.
#[derive(Default)]
pub(super) struct Clocked {
    hand_offs: Vec<u64>,
    calm: Vec<u64>,
    takeovers: Vec<u64>,
}

impl Clocked {
    pub(super) fn add(&mut self, history: &History, lock: &LockLine, order: &[Hold]) {
        for pair in order.windows(2) {
            let (before, next) = (&lock.grants[pair[0].grant], lock.acquire(pair[1].grant));
            let nanos = |from| super::record::nanos_of(next.ret.since(from));
            if let Some(release) = lock.released(before) {
                if next.op == Op::Acquire && next.invoke <= release.invoke {
                    self.hand_offs.push(nanos(release.invoke));
                    if is_calm(history, lock, release, next) {
                        self.calm.push(nanos(release.invoke));
                    }
                }
                continue;
            }
            let held = lock.acquire_of(before);
            let mut silenced = history.silenced(&lock.name, held.process, held.ret, next.ret);
            let crash = silenced.next().map(|window| window.from);
            if let Some(crash) =
                crash.filter(|&crash| next.op == Op::Acquire && next.invoke <= crash)
            {
                self.takeovers.push(nanos(crash));
            }
        }
    }

    pub(super) fn tell(self, header: &Header, report: &mut Report) {
        report.hand_offs = Times::of(self.hand_offs);
        report.calm = Times::of(self.calm);
        report.takeovers = Times::of(self.takeovers);
        for (percent, bound) in [(50, header.half), (90, header.most)] {
            let took = report.calm.at(percent);
            let Some(bound) = bound.filter(|&bound| took > bound && report.has_been_calm()) else {
                continue;
            };
            let count = report.calm.count;
            report.violation(Rule::K5, "", &[], || {
                format!(
                    "{percent} % of {count} hand-offs that no fault disturbed took up to {took:?}, and not {bound:?}"
                )
            });
        }
    }
}

/// Neither who let go nor who waited felt a fault, or was about to recover from one. What they left is over when a lease is.
fn is_calm(history: &History, lock: &LockLine, release: &Call, next: &Call) -> bool {
    let before = history.header.lease.unwrap_or(history.header.told_within);
    let mut felt = [release, next].into_iter().flat_map(|call| {
        history.felt(&lock.name, call.process, call.invoke.minus(before), call.ret)
    });
    felt.next().is_none()
}
