//! K5: no client waits for a free lock, and every call returns.

use std::collections::BTreeMap;
use std::time::Duration;

use super::holds::{Hold, Interval, IntervalIndex};
use super::order::is_busy;
use super::record::{Header, Op, Why};
use super::report::{Failure, Report, Rule, Tally, Times};
use super::timeline::{Grant, History, LockHistory, LockView, Operation, Outcome, Time, Window};

/// The number of waits without a fault that have to include enough hand-offs without a fault to
/// judge them.
const EXPECTS: u64 = 2000;

/// The inverse of the tolerated share of holds lost while the application was blocked. A machine
/// that stalls may cost one such hold. More than one, and one of this many, depend on the
/// application.
const KEPT_OF_STARVED: u64 = 4;

/// Checks that no wait exceeds its bound while certainly no other client has the lock.
pub(super) fn waits(lock: LockView<'_>, holders: &IntervalIndex, report: &mut Report) {
    let gaps = holders.gaps(lock.history.end);
    for (index, call) in lock.calls.iter().enumerate().filter(|(_, call)| call.op == Op::Acquire) {
        // Other outcomes are judged as failures.
        if call.outcome == Outcome::Fail && !is_busy(call) {
            continue;
        }
        let begun = gaps.partition_point(|gap| gap.until <= call.invoke);
        let gaps = gaps[begun..].iter().take_while(|gap| gap.from < call.ret);
        let others = holders.last_until(call.ret, index);
        count_wait(lock, call, others, report);
        let own = own(call, others, index);
        if let Some((free, late)) = gaps.copied().chain(own).find_map(|free| {
            let late = too_long(lock, call, free)?;
            Some((free, late))
        }) {
            let blocker = lock.calls.get(free.call).map_or(0, |call| call.lines[1]);
            report.violation(
                Rule::K5,
                &lock.name,
                &[call.lines[0], call.lines[1], blocker],
                || {
                    let name = lock.name_of(call);
                    let how =
                        if free.lapsed { "the lease before it had ended" } else { "it was free" };
                    format!("{name} waited {late:?} although {how} from {} ns on", free.from.t)
                },
            );
        }
    }
}

/// Returns the last part of a wait, in which no other call had the lock: until its own grant others
/// may have had it, and after that only its answer is missing.
fn own(call: &Operation, others: Option<Interval>, index: usize) -> Option<Interval> {
    let from = others.map_or(call.invoke, |span| span.until).max(call.invoke);
    let lapsed = others.is_some_and(|span| span.lapsed && span.until > call.invoke);
    // With an unknown outcome it may have had the lock itself, before its answer.
    let is_own = matches!(call.outcome, Outcome::Ok | Outcome::Info);
    is_own.then_some(Interval { from, until: call.ret, lapsed, call: index })
}

/// Counts a wait. It is judged if its continuation would have shown that no other client had the
/// lock.
fn count_wait(lock: LockView<'_>, call: &Operation, others: Option<Interval>, r: &mut Report) {
    let waited = call.outcome == Outcome::Ok && others.is_some_and(|span| span.until > call.invoke);
    if waited && lock.felt(call.process, call.invoke..=call.ret).next().is_none() {
        r.waits += 1;
        r.judged_waits += u64::from(others.is_some_and(|span| span.until <= call.ret));
    }
}

/// Returns how long a call waited in an interval with a free lock, if that is too long. It is
/// served within its bound, or after the last of the faults that it met before that. The time
/// between faults counts, however many they are.
fn too_long(lock: LockView<'_>, call: &Operation, free: Interval) -> Option<Duration> {
    let header = lock.header;
    let from = free.from.max(call.invoke);
    let until = free.until.min(call.ret).min(lock.history.end);
    let bound = if free.lapsed { header.takeover } else { header.hand_off };
    if until <= from.plus(bound) {
        return None;
    }
    let recovers = header.recovery();
    let (mut latest, mut quiet, mut calm_from) = (from.plus(bound), Duration::ZERO, from);
    for fault in lock.felt(call.process, from.minus(recovers)..=until) {
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

/// The standstills of contended locks after a server takes writes again, perhaps with older data.
/// The limit is [`Header::resumes`], regardless of the number of stale queue entries.
pub(super) struct Standstills<'a> {
    /// For each resumption: its time, its fault, and the longest standstill of a lock.
    longest: Vec<(Time, &'a str, Duration)>,
}

impl<'a> Standstills<'a> {
    pub(super) fn new(history: &'a History) -> Self {
        let resumptions = history.resumptions().map(|(at, what)| (at, what, Duration::ZERO));
        let is_judged = history.header.resumes.is_some();
        Self { longest: resumptions.filter(|_| is_judged).collect() }
    }

    pub(super) fn add(&mut self, lock: LockView<'_>, r: &mut Report) {
        let waits = waits_after_claims(&lock);
        for (at, what, longest) in &mut self.longest {
            let latest = at.plus(lock.header.recovery());
            let spans = waits.iter().filter(|(from, call)| call.ret > *at && *from < latest);
            let spans = spans.filter_map(|(from, call)| stood_still(lock, call, *from, *at));
            let Some((took, call)) = spans.max_by_key(|(took, _)| *took) else { continue };
            *longest = took.max(*longest);
            // A silent client costs the others as much as all stale entries together.
            let silent = lock.history.count_silent(at.minus(lock.header.recovery())..=call.ret);
            let bound = lock.header.resumes.unwrap_or_default()
                + lock.header.absent.unwrap_or_default() * silent;
            if took > bound {
                r.violation(Rule::K5, &lock.name, &call.lines, || {
                    let name = lock.name_of(call);
                    format!("{name} waited for {took:?} after {what} while no client held the lock: the bound is {bound:?}")
                });
            }
        }
    }

    pub(super) fn tell(self, report: &mut Report) {
        let mut nanos: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (_, what, longest) in self.longest {
            nanos.entry(what.to_owned()).or_default().push(super::record::nanos_of(longest));
        }
        report.standstills = nanos.into_iter().map(|(what, of)| (what, Times::of(of))).collect();
    }
}

/// Returns each wait that ended with a grant, from the end of the last claim on. A server with
/// older data may know less: the hold that it still believes in is part of a standstill.
fn waits_after_claims(lock: &LockHistory) -> Vec<(Time, &Operation)> {
    let mut grants: Vec<(&Operation, Time)> = lock
        .grants
        .iter()
        .map(|grant| {
            let lost = grant.lost.as_ref().map(|(at, _, _)| *at);
            let released = lock.first_release(grant).map(|release| release.invoke);
            let lapsed = grant.valid_until.map(Time::last);
            let end = lost.into_iter().chain(released).min().or(lapsed);
            (lock.acquire_of(grant), end.unwrap_or(Time::NEVER))
        })
        .collect();
    grants.sort_by_key(|(acquire, _)| acquire.ret);
    let mut free_from = Time::START;
    let mut waits = Vec::with_capacity(grants.len());
    for (acquire, end) in grants {
        if acquire.op == Op::Acquire {
            waits.push((free_from.max(acquire.invoke), acquire));
        }
        free_from = free_from.max(end);
    }
    waits
}

/// Returns how long such a wait lasted after `at`, unless its own process was disturbed.
fn stood_still<'a>(
    lock: LockView<'_>,
    call: &'a Operation,
    from: Time,
    at: Time,
) -> Option<(Duration, &'a Operation)> {
    let from = from.max(at);
    let mut felt = lock.felt(call.process, at.minus(lock.header.recovery())..=call.ret);
    let is_judged = felt.all(|fault| !fault.is_of_a_client() && fault.from <= at);
    (is_judged && from < call.ret).then(|| (call.ret.since(from), call))
}

/// Failures of clients that met no fault, neither then nor within the recovery time before.
#[derive(Default)]
pub(super) struct Unexplained {
    acquisitions: Vec<Failure>,
    returns: Vec<Failure>,
    holds: Vec<Failure>,
    starved: Vec<Failure>,
}

impl Unexplained {
    pub(super) fn add(&mut self, lock: LockView<'_>, report: &mut Report) {
        for call in &lock.calls {
            let (tally, failures) = match call.op {
                op if op.acquires() => (&mut report.acquisitions, &mut self.acquisitions),
                Op::Release | Op::Renew => (&mut report.returns, &mut self.returns),
                _ => continue,
            };
            let from = call.invoke.minus(lock.header.recovery());
            let until = call.ret.min(lock.history.end);
            if lock.felt(call.process, from..=until).next().is_some() {
                continue;
            }
            tally.count += 1;
            if let Some(why) = call.err.as_ref().filter(|why| is_failure(call.op, why)) {
                failures.push(failure(lock, call, (call.ret, why, call.lines[1])));
            }
        }
        for grant in &lock.grants {
            self.add_hold(lock, grant, report);
        }
    }

    /// Adds a hold. A renewed hold is lost only for a reason, and a blocked application is none.
    /// Holds that ended before their first renewal are not counted.
    fn add_hold(&mut self, lock: LockView<'_>, grant: &Grant, report: &mut Report) {
        let acquire = lock.acquire_of(grant);
        let lost = grant.lost.as_ref();
        let given_back = lock.first_release(grant).map(|release| release.invoke);
        let lost = lost.filter(|(at, _, _)| given_back.is_none_or(|given_back| *at < given_back));
        let ended = lost.map(|(at, _, _)| *at).or(given_back);
        let ended = ended.or(lock.killed(acquire.process)).unwrap_or(lock.history.end);
        let needs_renewal = acquire.valid_until.is_some_and(|until| until < ended.t);
        // If its application was blocked after the grant, nothing keeps its renewals from the
        // server.
        let only_starves = |window: &Window| window.starves() && window.from > acquire.ret;
        let felt = |from: Time| lock.felt(acquire.process, from..=ended.min(lock.history.end));
        let is_starved = felt(acquire.ret).any(only_starves);
        let from =
            if is_starved { acquire.invoke } else { acquire.invoke.minus(lock.header.recovery()) };
        if acquire.unrenewed
            || !(needs_renewal || lost.is_some())
            || felt(from).any(|window| !only_starves(window))
            || lock.broken(acquire.invoke..=ended).next().is_some()
        {
            return;
        }
        let (tally, failures) = match is_starved {
            true => (&mut report.starved, &mut self.starved),
            false => (&mut report.holds, &mut self.holds),
        };
        tally.count += 1;
        if let Some((at, why, line)) = lost {
            failures.push(failure(lock, acquire, (*at, why, *line)));
        }
    }

    pub(super) fn tell(self, header: &Header, report: &mut Report) {
        let timeout = header.timeout.unwrap_or_default();
        let all = [&self.acquisitions, &self.returns, &self.holds, &self.starved];
        let all = all.into_iter().flatten().cloned().collect();
        report.acquisitions.fail(self.acquisitions, timeout);
        report.returns.fail(self.returns, timeout);
        report.holds.fail(self.holds, timeout);
        report.starved.fail(self.starved, timeout);
        if header.recovers.is_none() {
            return;
        }
        // Failures that are rare in each tally may be frequent in all.
        let count = report.tallies().iter().map(|(_, tally)| tally.count).sum();
        let mut together = Tally { count, ..Tally::default() };
        together.fail(all, timeout);
        let told = report.tallies().into_iter().chain([("calls and holds", &together)]);
        let told: Vec<_> = told
            .map(|(what, tally)| {
                (tally.fails_too_often() || header.exact && tally.failed > 0).then(|| {
                    let first: Vec<&str> =
                        tally.failures.iter().take(3).map(String::as_str).collect();
                    format!("{what} without a fault: {tally}: {}", first.join(", "))
                })
            })
            .collect();
        let Tally { count, failed, .. } = report.starved;
        let are_lost = failed > 1 && failed * KEPT_OF_STARVED > count;
        let starved =
            are_lost.then(|| format!("while applications were starved: {}", report.starved));
        for message in told.into_iter().flatten().chain(starved) {
            report.violation(Rule::Unexplained, "", &[], || message);
        }
    }
}

/// Returns whether an error is a failure. The release of a lost lock is none: the loss itself is
/// judged.
fn is_failure(op: Op, why: &Why) -> bool {
    match why {
        Why::Busy | Why::Dropped => false,
        Why::NotHeld | Why::Lost => op.acquires(),
        _ => true,
    }
}

fn failure(lock: LockView<'_>, call: &Operation, (at, why, line): (Time, &Why, u32)) -> Failure {
    let (name, op, lock) = (lock.name_of(call), call.op, &lock.name);
    let words = match why {
        Why::Other(words) => words.clone(),
        why => format!("{why:?}"),
    };
    // An expired lease is a bound, too.
    let is_late = *why == Why::Expired || words.starts_with("Timeout");
    Failure {
        t: at.t,
        is_late,
        words: format!("{op:?} of {name}, lock {lock} (line {line}): {words}"),
    }
}

/// Checks that every call has an answer, unless its process was killed or stopped.
pub(super) fn returns(lock: LockView<'_>, report: &mut Report) {
    let open = lock.calls.iter().filter(|call| call.outcome == Outcome::Open);
    for call in open {
        let gone = lock.killed(call.process).is_some();
        if gone || lock.felt(call.process, lock.history.end..=lock.history.end).next().is_some() {
            continue;
        }
        report.violation(Rule::K5, &lock.name, &call.lines, || {
            let name = lock.name_of(call);
            format!("the {:?} of {name} has not returned when the run ended", call.op)
        });
    }
}

/// The durations of hand-offs and takeovers.
#[derive(Default)]
pub(super) struct Clocked {
    hand_offs: Vec<u64>,
    calm: Vec<u64>,
    takeovers: Vec<u64>,
}

impl Clocked {
    pub(super) fn add(&mut self, lock: LockView<'_>, order: &[Hold], report: &mut Report) {
        for pair in order.windows(2) {
            let (before, next) = (&lock.grants[pair[0].grant], lock.acquire(pair[1].grant));
            let nanos = |from| super::record::nanos_of(next.ret.since(from));
            if let Some(release) = lock.released(before) {
                let is_kept = lock.acquire_of(before).kept_until > Some(release.invoke.t);
                if next.op == Op::Acquire && next.invoke <= release.invoke && !is_kept {
                    self.hand_offs.push(nanos(release.invoke));
                    if is_calm(lock, release, next) {
                        self.calm.push(nanos(release.invoke));
                    }
                    is_in_time(lock, release, next, report);
                }
                continue;
            }
            let held = lock.acquire_of(before);
            let mut silenced = lock.silenced(held.process, held.ret..=next.ret);
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
        let waits = report.waits;
        if header.half.is_some() && waits >= EXPECTS && !report.has_been_calm() {
            let count = report.calm.count;
            report.violation(Rule::K5, "", &[], || {
                format!(
                    "of {waits} waits that no fault disturbed, {count} ended with a release only"
                )
            });
        }
    }
}

/// Returns whether neither the holder nor the waiter met a fault, or was recovering from one. Their
/// residue expires with a lease.
fn is_calm(lock: LockView<'_>, release: &Operation, next: &Operation) -> bool {
    let before = lock.header.lease.unwrap_or(lock.header.told_within);
    let mut felt = [release, next]
        .into_iter()
        .flat_map(|call| lock.felt(call.process, call.invoke.minus(before)..=call.ret));
    felt.next().is_none()
}

/// Checks that a hand-off ends within the bound on all of them, if neither side met a fault from
/// one lease before until then.
fn is_in_time(lock: LockView<'_>, release: &Operation, next: &Operation, report: &mut Report) {
    let Some(bound) = lock.header.all else { return };
    let latest = release.invoke.plus(bound);
    let from = release.invoke.minus(lock.header.lease.unwrap_or_default());
    let mut felt =
        [release, next].into_iter().flat_map(|call| lock.felt(call.process, from..=latest));
    if next.ret <= latest || felt.next().is_some() {
        return;
    }
    report.violation(Rule::K5, &lock.name, &[release.lines[0], next.lines[1]], || {
        let (name, took) = (lock.name_of(next), next.ret.since(release.invoke));
        format!(
            "{name} got the lock {took:?} after the call of its release, and not within {bound:?}"
        )
    });
}
