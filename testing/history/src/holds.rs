//! The time for which a server may have kept a lock for a grant: the basis of the rules about
//! order, contention and waiting.

use std::time::Duration;

use super::record::{Assumption, Grade, Header, Op, Renewals, Why};
use super::timeline::{Grant, LockHistory, LockView, Operation, Outcome, Time, Window};

/// A grant as the server saw it, as far as the history shows.
#[derive(Debug)]
pub(super) struct Hold {
    /// Index in [`LockHistory::grants`].
    pub(super) grant: usize,
    /// The earliest possible start. Set by the sweep of [`order`](super::order).
    pub(super) from: Time,
    /// The earliest possible end.
    pub(super) lower: Time,
    /// The same, if the answer to its release is not trusted.
    pub(super) unconfirmed: Time,
    /// The latest possible end.
    pub(super) upper: Time,
    /// True if `upper` is the end of a lease, and no answer.
    pub(super) lapsed: bool,
}

/// Returns the grants of a lock whose order is known, in that order: by token, or else by the
/// intervals in which they were certainly in force.
pub(super) fn in_order(lock: LockView<'_>) -> Vec<Hold> {
    let fenced = is_fenced(lock);
    let holds = (0..lock.grants.len()).map(|grant| Hold::new(lock, grant));
    // Without tokens, a grant that came back after its own deadline has no position in the order.
    let placed = |hold: &Hold| fenced || hold.lower >= lock.acquire(hold.grant).ret;
    let mut holds: Vec<Hold> = holds.filter(placed).collect();
    holds.sort_by_key(|hold| {
        let acquire = lock.acquire(hold.grant);
        (if fenced { acquire.fence } else { None }, acquire.ret)
    });
    holds
}

pub(super) fn is_fenced(lock: LockView<'_>) -> bool {
    let has_fence = |grant: &Grant| lock.acquire_of(grant).fence.is_some();
    lock.header.fencing != Grade::None && lock.grants.iter().all(has_fence)
}

impl Hold {
    fn new(lock: LockView<'_>, index: usize) -> Self {
        let grant = &lock.grants[index];
        let unconfirmed = earliest_end(lock, grant);
        let (upper, lapsed) = latest_end(lock, grant);
        let released = lock.released(grant).map(|release| release.invoke);
        Self {
            grant: index,
            from: lock.acquire_of(grant).asked,
            lower: released.unwrap_or(unconfirmed),
            unconfirmed,
            upper,
            lapsed,
        }
    }

    /// Sets the earliest start to `from`. A broken assumption since then may have ended the hold.
    pub(super) fn begins(&mut self, lock: LockView<'_>, from: Time) {
        self.from = from;
        let broken = |until: Time, of: fn(Assumption) -> bool| {
            let broken = lock.broken_by(of, from..=until);
            broken.map(|window| window.from.max(from)).min().unwrap_or(Time::NEVER)
        };
        self.unconfirmed =
            self.unconfirmed.min(broken(self.unconfirmed, Assumption::guards_exclusion));
        self.lower = match lock.released(&lock.grants[self.grant]) {
            // A hand-over inside a process is not confirmed by the server.
            Some(release) if lock.header.passes_on => {
                self.lower.min(broken(release.ret, Assumption::guards_exclusion))
            }
            // A released lock was held until then, unless older data came back meanwhile.
            Some(release) => {
                self.lower.min(broken(release.ret, |assumption| assumption == Assumption::A2))
            }
            None => self.unconfirmed,
        };
    }
}

impl LockHistory {
    pub(super) fn acquire(&self, grant: usize) -> &Operation {
        self.acquire_of(&self.grants[grant])
    }

    pub(super) fn releases<'a>(&'a self, grant: &'a Grant) -> impl Iterator<Item = &'a Operation> {
        grant.releases.iter().map(|&index| &self.calls[index])
    }

    /// Returns the release that the backend confirmed.
    pub(super) fn released<'a>(&'a self, grant: &'a Grant) -> Option<&'a Operation> {
        self.releases(grant).find(|release| release.outcome == Outcome::Ok)
    }

    /// Returns the first answer that reports that the grant had ended before.
    pub(super) fn first_not_held<'a>(&'a self, grant: &'a Grant) -> Option<&'a Operation> {
        let mut asked = grant.asked.iter().map(|&index| &self.calls[index]);
        asked.find(|call| {
            call.outcome == Outcome::Fail && matches!(call.err, Some(Why::NotHeld | Why::Lost))
        })
    }
}

/// Returns the earliest time at which its lease can have ended, if nothing else ended it.
pub(super) fn earliest_expiry(lock: LockView<'_>, grant: &Grant) -> Time {
    let header = lock.header;
    let acquire = lock.acquire_of(grant);
    let killed = lock.killed(acquire.process).unwrap_or(Time::NEVER);
    match (grant.valid_until, lock.lease(acquire)) {
        (Some(valid_until), Some(_)) => Time::first(valid_until),
        (None, Some(lease)) => {
            Time::first(acquire.invoke.plus(lease.saturating_sub(header.margin)).t)
        }
        // It ends with its process, even if that has recorded a later deadline.
        (until, None) => until.map_or(Time::NEVER, Time::first).min(killed),
    }
}

/// Returns the earliest time at which it can have ended, while the assumptions of exclusion held.
pub(super) fn earliest_end(lock: LockView<'_>, grant: &Grant) -> Time {
    let mut end = earliest_expiry(lock, grant);
    for release in lock.releases(grant) {
        // `NotHeld` removed nothing: it only reports that the hold had ended before.
        if release.err != Some(Why::NotHeld) {
            end = end.min(release.invoke);
        }
    }
    // Core releases the lock by itself when it gives up early, and notifies its holder a little
    // later.
    let early =
        grant.lost.as_ref().is_some_and(|(_, why, _)| !matches!(why, Why::Expired | Why::NotHeld));
    let told = match &grant.lost {
        Some((at, _, _)) => early.then_some(*at),
        None => lock.first_not_held(grant).map(|call| call.ret),
    };
    if let Some(told) = told {
        end = end.min(earliest_give_up(lock, grant, told));
    }
    if let Some(lost) = lost_with_a_member(lock, grant) {
        end = end.min(lost);
    }
    end
}

/// Returns the earliest time at which core can have released the lock by itself, if its holder was
/// notified at `told`. The notification is in time, unless the process was stopped meanwhile.
pub(super) fn earliest_give_up(lock: LockView<'_>, grant: &Grant, told: Time) -> Time {
    let in_time = told.minus(lock.header.told_within).max(grant.known_held);
    let process = lock.acquire_of(grant).process;
    match lock.stopped(process, grant.known_held..=told).next() {
        Some(_) => grant.known_held,
        None => in_time,
    }
}

/// Returns the earliest end of a hold that has lost its majority because a member had lost it. The
/// client that finds out releases the other members, and is notified a little later.
fn lost_with_a_member(lock: LockView<'_>, grant: &Grant) -> Option<Time> {
    let lost = grant.lost.as_ref().filter(|(_, why, _)| *why == Why::NotHeld);
    let lost = lost.map(|(at, _, _)| (*at, grant.known_held));
    let releases = lock.releases(grant).filter(|release| release.err == Some(Why::NotHeld));
    let ends = lost.into_iter().chain(releases.map(|release| (release.ret, release.invoke)));
    let (told, from) = ends.min()?;
    let broken = lock.broken(lock.acquire_of(grant).asked..=told);
    broken.map(|window| window.from.max(from)).min()
}

pub(super) fn latest_end(lock: LockView<'_>, grant: &Grant) -> (Time, bool) {
    let acquire = lock.acquire_of(grant);
    let (process, lease) = (acquire.process, lock.lease(acquire));
    let mut answered = Time::NEVER;
    let mut lapsed = Time::NEVER;
    for release in lock.releases(grant) {
        // After the invocation of a release, no renewals follow, except one in progress.
        let mut faults = lock.felt(process, release.invoke..=release.ret);
        if lease.is_some() && faults.next().is_none() {
            lapsed = lapsed.min(release.invoke.plus(lock.header.drain));
        }
        // The server keeps the locks of a session that its client has given up, until it ends that.
        let gone = match &release.err {
            Some(Why::NotHeld) => !ended_with_session(lock, acquire, release.ret),
            err => *err == Some(Why::Gone),
        };
        if release.outcome == Outcome::Ok || gone {
            answered = answered.min(release.ret);
        } else if release.outcome != Outcome::Open {
            let settled = lock.settled(acquire, release.invoke..=release.ret);
            lapsed = lapsed.min(settled);
        }
    }
    match &grant.lost {
        Some((at, Why::NotHeld, _)) if !ended_with_session(lock, acquire, *at) => {
            answered = answered.min(*at);
        }
        Some((at, _, _)) => {
            lapsed = lapsed.min(lock.settled(acquire, acquire.invoke..=*at));
        }
        None => {}
    }
    if let Some(killed) = lock.killed(process) {
        lapsed = lapsed.min(killed.plus(lease.unwrap_or_default()));
    }
    if let Some(lease) = lease {
        if lock.header.renewals == Renewals::Recorded {
            let renewals = grant.asked.iter().map(|&index| &lock.calls[index]);
            let renewals = renewals.filter(|call| call.op == Op::Renew);
            let last = renewals.map(|call| call.ret).max().unwrap_or(acquire.ret).max(acquire.ret);
            lapsed = lapsed.min(last.plus(lease));
        }
        let until = answered.min(lapsed);
        let silenced = lock.silenced(process, acquire.invoke..=until);
        // Only the part after the grant keeps the holder from renewing.
        let begins = silenced.map(|window| (window.from.max(acquire.ret), window.until));
        for (from, _) in begins.filter(|(from, until)| until.since(*from) > lease) {
            lapsed = lapsed.min(from.plus(lease));
        }
    }
    let ended = answered.min(lapsed);
    // A minimum hold keeps the lock unavailable for longer: by the server's clock, from the arrival
    // of the release there. A clock that goes back meanwhile prolongs it.
    let late = lock.first_release(grant).map_or(Duration::ZERO, |r| r.ret.since(r.invoke));
    let kept = acquire.kept_until.map(|until| {
        let kept = Time::last(until).plus(lock.header.margin + late);
        let is_clock = |broken| broken == Assumption::A1;
        let steps = lock.broken_by(is_clock, acquire.invoke..=kept);
        steps.map(|step| step.until).fold(kept, Time::max)
    });
    match kept.filter(|kept| *kept > ended) {
        Some(kept) => (kept, false),
        None => (ended, lapsed < answered),
    }
}

/// Returns whether the session of a hold may have ended by `at`, and its locks with it. A client
/// whose link fails gives it up, and then no lock of the session is confirmed any more.
pub(super) fn ended_with_session(lock: LockView<'_>, acquire: &Operation, at: Time) -> bool {
    let felt = lock.felt(acquire.process, acquire.asked..=at);
    let felt: Vec<_> = felt.filter(|fault| !fault.starves()).collect();
    let has_effects = felt.iter().any(|fault| fault.until.plus(lock.header.drain) >= at);
    let Some(first) = felt.iter().map(|fault| fault.from).min() else { return false };
    let is_over = has_effects && !lives_on(lock, acquire, first.max(acquire.asked), at);
    lock.header.moves_back && is_over
}

/// Returns whether a lock that the client of `acquire` had by `from` was confirmed to it after
/// `at`: a client has one session at a time. Without a deadline, the call was of another program.
fn lives_on(view: LockView<'_>, acquire: &Operation, from: Time, at: Time) -> bool {
    let is_confirmed = |call: &Operation| {
        // A hand-over inside a process is no release on the server.
        let is_by_guard = match call.op {
            Op::Release => call.guarded && !view.header.passes_on,
            _ => call.op == Op::Renew && call.valid_until.is_some(),
        };
        is_by_guard && call.outcome == Outcome::Ok && call.invoke > at
    };
    view.history.locks.iter().any(|lock| {
        let mut held = lock.grants.iter().filter(|grant| {
            let other = lock.acquire_of(grant);
            other.ret <= from && view.are_together(other, acquire)
        });
        held.any(|grant| {
            let calls = grant.asked.iter().chain(&grant.releases);
            calls.map(|&index| &lock.calls[index]).any(is_confirmed)
        })
    })
}

/// An interval in which a client may have had the lock, or was queued for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) from: Time,
    pub(super) until: Time,
    pub(super) lapsed: bool,
    /// Index in [`LockHistory::calls`] of the acquisition, or [`UNRECORDED`].
    pub(super) call: usize,
}

/// The index in an [`Interval`] of an acquisition that is not recorded.
pub(super) const UNRECORDED: usize = usize::MAX;

impl Interval {
    /// Returns the interval in which the lock may be unavailable. Where renewals are not recorded,
    /// the exact end of a lease on the server is unknown, and the lock may stay unavailable for as
    /// long as a takeover may take.
    pub(super) fn shut(self, header: &Header) -> Self {
        let is_exact = !self.lapsed || header.renewals == Renewals::Recorded;
        Self { until: if is_exact { self.until } else { self.until.plus(header.takeover) }, ..self }
    }
}

/// Intervals by their start, with the latest end so far, so that a binary search finds the last
/// holder.
pub(super) struct IntervalIndex {
    spans: Vec<Interval>,
    /// For each interval: of those up to it, the two of different calls that end last.
    last: Vec<[Option<usize>; 2]>,
}

impl IntervalIndex {
    pub(super) fn new(mut spans: Vec<Interval>) -> Self {
        spans.sort_by_key(|span| span.from);
        let mut last = Vec::with_capacity(spans.len());
        let mut best: [Option<usize>; 2] = [None, None];
        for (index, span) in spans.iter().enumerate() {
            let ends_later = |than: Option<usize>| than.is_none_or(|i| span.until > spans[i].until);
            let is_of_the_best = best[0].is_some_and(|i| spans[i].call == span.call);
            if ends_later(best[0]) {
                best = [Some(index), if is_of_the_best { best[1] } else { best[0] }];
            } else if !is_of_the_best && ends_later(best[1]) {
                best[1] = Some(index);
            }
            last.push(best);
        }
        Self { spans, last }
    }

    /// Returns the interval that ends last, of those that began by `at` and are not of `call`.
    pub(super) fn last_until(&self, at: Time, call: usize) -> Option<Interval> {
        let begun = self.spans.partition_point(|span| span.from <= at);
        let best = self.last.get(begun.checked_sub(1)?)?;
        best.iter().flatten().map(|&index| self.spans[index]).find(|span| span.call != call)
    }

    /// Returns the intervals in which certainly no client was there, each with whether an expiry
    /// began it.
    pub(super) fn gaps(&self, end: Time) -> Vec<Interval> {
        let mut gaps = Vec::new();
        let mut free = Interval { from: Time::START, until: end, lapsed: false, call: UNRECORDED };
        for span in &self.spans {
            if span.from > free.from {
                gaps.push(Interval { until: span.from, ..free });
            }
            if span.until >= free.from {
                free =
                    Interval { from: span.until, until: end, lapsed: span.lapsed, call: span.call };
            }
        }
        if free.from < end {
            gaps.push(free);
        }
        gaps
    }
}

/// Returns the intervals in which a recorded client may have had the lock.
pub(super) fn holders(lock: LockView<'_>, order: &[Hold]) -> Vec<Interval> {
    let mut begun = vec![None; lock.grants.len()];
    for hold in order {
        begun[hold.grant] = Some(hold);
    }
    let mut spans: Vec<Interval> = Vec::with_capacity(lock.grants.len());
    for (index, grant) in lock.grants.iter().enumerate() {
        let placed = begun[index].map(|hold| (hold.from, hold.upper, hold.lapsed));
        let (from, until, lapsed) = placed.unwrap_or_else(|| {
            let (until, lapsed) = latest_end(lock, grant);
            (lock.acquire_of(grant).invoke, until, lapsed)
        });
        spans.push(Interval { from, until, lapsed, call: grant.acquire });
    }
    for (index, call) in lock.calls.iter().enumerate().filter(|(_, call)| call.op.acquires()) {
        if let Some(until) = unknown_effect_until(lock, call) {
            spans.push(Interval { from: call.invoke, until, lapsed: true, call: index });
        }
    }
    spans
}

/// Returns the intervals in which an unrecorded client had the lock.
pub(super) fn foreign_holds(lock: LockView<'_>) -> Vec<Interval> {
    let windows = lock.foreign();
    let spans = windows.map(|&Window { from, until, .. }| Interval {
        from,
        until,
        lapsed: true,
        call: UNRECORDED,
    });
    spans.collect()
}

/// Returns the time up to which an unknown effect of this call may have kept the lock.
pub(super) fn unknown_effect_until(lock: LockView<'_>, call: &Operation) -> Option<Time> {
    let (unknown, known) = match call.outcome {
        Outcome::Info => (Some(lock.settled(call, call.invoke..=call.ret)), Time::NEVER),
        Outcome::Open => (lock.buried(call), Time::NEVER),
        // Then the state is known again.
        Outcome::Ok => (None, call.ret),
        Outcome::Fail => (None, left_queue_at(lock, call)),
    };
    // A grant to a silent process expires before the next one gets the lock.
    let silent = lock.silent(call.process, call.invoke..=call.ret);
    let lapsed = silent.map(|window| lock.lapsed(call, window.from).min(known)).max();
    unknown.max(lapsed)
}

/// Returns the intervals in which a client was queued, or may have had the lock during its call.
pub(super) fn queued_intervals(lock: LockView<'_>) -> Vec<Interval> {
    let waits = lock.calls.iter().enumerate().filter(|(_, call)| {
        call.op == Op::Acquire || (call.op == Op::Try && call.outcome == Outcome::Open)
    });
    let spans = waits.map(|(index, call)| {
        let until = match call.outcome {
            Outcome::Ok => call.ret,
            Outcome::Open => lock.buried(call).unwrap_or(call.ret),
            Outcome::Fail => left_queue_at(lock, call),
            Outcome::Info => unknown_effect_until(lock, call).unwrap_or(call.ret),
        };
        Interval { from: call.invoke, until, lapsed: false, call: index }
    });
    spans.collect()
}

/// Returns when a cancelled waiter has left the queue. It leaves in the background; with a fault,
/// that may take until the fault is over.
fn left_queue_at(lock: LockView<'_>, call: &Operation) -> Time {
    let leaves = call.ret.plus(lock.header.fading());
    let faults = lock.felt(call.process, call.invoke..=leaves);
    faults.map(|fault| lock.healed(call, fault)).fold(leaves, Time::max)
}
