//! K2, K4 and FIFO: the order of grants.

use super::holds::{Hold, IntervalIndex, is_fenced};
use super::record::{Assumption, Grade, Op, Why};
use super::report::{Report, Rule};
use super::timeline::{Grant, LockView, Operation, Outcome, Time, Window};

/// Checks K2: no grant can have begun before the previous one ended. Sets for each the earliest
/// possible start, and that it had ended when the next one was there.
pub(super) fn sweep(lock: LockView<'_>, order: &mut [Hold], report: &mut Report) {
    let mut free_from = Time::START;
    let mut blocker = None;
    for index in 0..order.len() {
        let acquire = lock.acquire(order[index].grant);
        let mut from = acquire.asked.max(free_from);
        if from > acquire.ret {
            if let Some(earlier) = blocker {
                overlapping_grants(lock, &order[earlier], &order[index], report);
            }
            from = acquire.ret;
        }
        let hold = &mut order[index];
        hold.begins(lock, from);
        if hold.lower >= from || from > free_from {
            blocker = Some(index);
        }
        free_from = from.max(hold.lower);
        if let Some(before) = index.checked_sub(1) {
            order[before].upper = order[before].upper.min(acquire.ret);
        }
    }
}

fn overlapping_grants(lock: LockView<'_>, earlier: &Hold, later: &Hold, report: &mut Report) {
    let (held, taken) = (lock.acquire(earlier.grant), lock.acquire(later.grant));
    if may_go_back(lock, held, taken) {
        // Their order is not that of their tokens.
        return;
    }
    let release = lock.released(&lock.grants[earlier.grant]);
    let (holder, taker) = (lock.name_of(held), lock.name_of(taken));
    match release.filter(|_| earlier.unconfirmed <= taken.ret) {
        Some(release) => {
            let lines = [release.lines[0], release.lines[1], taken.lines[1]];
            report.violation(Rule::K7, &lock.name, &lines, || {
                format!(
                    "the backend told {holder} that its release, called at {} ns, had released the lock, \
                     but {taker} already had it at {} ns",
                    release.invoke.t, taken.ret.t
                )
            });
        }
        None => {
            let lines = [held.lines[1], taken.lines[1], release.map_or(0, |call| call.lines[0])];
            report.violation(Rule::K2, &lock.name, &lines, || {
                format!(
                    "{taker} got the lock at {} ns, but {holder}, which had it before, cannot have lost \
                     it before {} ns",
                    taken.ret.t, earlier.lower.t
                )
            });
        }
    }
}

/// Checks K2: a contended acquisition must have met another claim.
pub(super) fn contention(lock: LockView<'_>, contenders: &IntervalIndex, report: &mut Report) {
    for (index, call) in lock.calls.iter().enumerate() {
        if !is_busy(call) {
            continue;
        }
        let last = contenders.last_until(call.ret, index);
        if last.is_some_and(|span| span.until >= call.invoke) {
            continue;
        }
        let lease = lock.header.longest_lease();
        if lock.breaks(Assumption::A2, call.invoke.minus(lease)..=call.ret) {
            // Older data came back, and with them their holder.
            continue;
        }
        if has_unaware_holder(lock, call)
            || yields_to_removal(lock, call)
            || splits_votes(lock, call)
            || meets_stale_vote(lock, call)
            || meets_restored_lock(lock, call)
        {
            continue;
        }
        report.violation(Rule::K2, &lock.name, &call.lines, || {
            let name = lock.name_of(call);
            let since = last.map_or(0, |span| span.until.t);
            format!(
                "{name} met contention, but no other client had the lock or waited for it \
                 between {} and {} ns; free since {since} ns: something was left behind",
                call.invoke.t, call.ret.t
            )
        });
    }
}

/// Returns whether a holder in the same process may not know of its loss yet. A lock that was
/// removed, or that is being released, stays held to its process until that is notified.
fn has_unaware_holder(lock: LockView<'_>, call: &Operation) -> bool {
    let answered = |release: &Operation| answered_at(lock, release, call);
    lock.grants.iter().any(|grant| {
        let acquire = lock.acquire_of(grant);
        let told = [
            lock.releases(grant).map(answered).min(),
            lock.first_not_held(grant).map(|asked| asked.ret),
            grant.lost.as_ref().map(|&(at, ..)| at),
        ];
        let knows_from = told.into_iter().flatten().min().unwrap_or(Time::NEVER);
        let is_letting_go = |release: &Operation| {
            let bound = release.invoke.plus(lock.header.drain);
            release.invoke <= call.ret && call.invoke <= answered(release).min(bound)
        };
        acquire.ret <= call.ret
            && call.invoke <= knows_from
            && lock.are_together(acquire, call)
            && (lock.releases(grant).any(is_letting_go)
                || lock.exposed(acquire.invoke..=call.ret).next().is_some())
    })
}

/// Returns the latest time at which the process of `call` can have learned that the lock was
/// released. A release whose call was dropped goes on in the background, and a fault may keep its
/// answer away. Until then a local queue stays shut, which backends in order do not need. Its next
/// grant shows that it is open again.
fn answered_at(lock: LockView<'_>, release: &Operation, call: &Operation) -> Time {
    let is_in_background = release.guarded && release.err == Some(Why::Dropped);
    let mut faults = lock.felt(release.process, release.invoke..=call.ret);
    if !is_in_background || lock.header.fifo_after.is_some() || faults.next().is_none() {
        return release.ret;
    }
    let granted = lock.grants.iter().map(|grant| lock.acquire_of(grant));
    let next = granted.filter(|next| lock.are_together(next, release) && next.ret > release.ret);
    next.map(|next| next.ret).min().unwrap_or(Time::NEVER)
}

/// Returns whether an operator removes the lock during the call. Clients of files yield to it.
fn yields_to_removal(lock: LockView<'_>, call: &Operation) -> bool {
    lock.breaks(Assumption::A3, call.invoke..=call.ret)
}

/// Returns whether a quorum may have split its votes between tries that were all refused. Each may
/// have had votes until it returned. Of two tries, one wins, unless a member is away or does not
/// count yet.
fn splits_votes(lock: LockView<'_>, call: &Operation) -> bool {
    let is_refused_try = |call: &Operation| call.op == Op::Try && is_busy(call);
    let meets = |other: &&Operation| {
        is_refused_try(other)
            && other.lines != call.lines
            && other.invoke <= call.ret
            && call.invoke <= other.ret
    };
    if !lock.header.votes || !is_refused_try(call) {
        return false;
    }
    let since = call.invoke.minus(lock.header.recovery());
    match lock.calls.iter().filter(meets).take(2).count() {
        0 => false,
        1 => lock.met(call.process, since..=call.ret).next().is_some(),
        _ => true,
    }
}

/// Returns whether two faults combined, or one that hits a majority. One kept a release or
/// cancellation from a server, and another one keeps the caller from the servers that have it. The
/// stale vote expires with its lease.
fn meets_stale_vote(lock: LockView<'_>, call: &Operation) -> bool {
    let header = lock.header;
    if !header.votes {
        return false;
    }
    let met = |process, from, until| lock.met(process, from..=until);
    let missed: Vec<_> =
        met(call.process, call.invoke.minus(header.recovery()), call.ret).collect();
    let is_another = |fault: &Window| {
        missed.iter().any(|&one| !std::ptr::eq(one, fault) || one.hits_most_members())
    };
    let fades = header.fading();
    let lasts = header.longest_lease() + fades;
    let has_left_one = |other: &Operation, until: Time| {
        let mut unheard = met(other.process, other.invoke, until.plus(fades).min(call.ret));
        other.invoke <= call.ret && call.invoke <= until.plus(lasts) && unheard.any(is_another)
    };
    let let_go = lock.grants.iter().filter_map(|grant| {
        Some((lock.acquire_of(grant), lock.releases(grant).map(|release| release.ret).max()?))
    });
    let given_up =
        lock.calls.iter().filter(|call| call.op.acquires() && call.outcome == Outcome::Fail);
    let given_up = given_up.map(|other| (other, other.ret));
    let mut others = let_go.chain(given_up).filter(|(other, _)| other.lines != call.lines);
    others.any(|(other, until)| has_left_one(other, until))
}

/// Returns whether a lock was restored: its release was lost with the server that had confirmed it,
/// and its lease is not over.
fn meets_restored_lock(lock: LockView<'_>, call: &Operation) -> bool {
    let (lease, passed_on) = (lock.header.longest_lease(), lock.header.fading());
    // Also a release whose answer was lost.
    let mut releases = lock.grants.iter().flat_map(|grant| lock.releases(grant));
    releases.any(|release| {
        release.invoke <= call.ret
            && call.invoke <= release.ret.plus(lease)
            && lock.breaks(
                Assumption::Releases,
                release.invoke..=release.ret.plus(passed_on).min(call.ret),
            )
    })
}

pub(super) fn is_busy(call: &Operation) -> bool {
    call.op.acquires() && call.outcome == Outcome::Fail && call.err == Some(Why::Busy)
}

/// Checks K4: tokens are present if declared, unique, and grow in the order of grants.
pub(super) fn fences(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    let declared = lock.header.fencing != Grade::None;
    for grant in &lock.grants {
        let acquire = lock.acquire_of(grant);
        if acquire.fence.is_some() != declared {
            let is = if declared { "none" } else { "one" };
            report.violation(Rule::K4, &lock.name, &acquire.lines, || {
                let name = lock.name_of(acquire);
                format!("{name} got {is} fencing token, against what is declared")
            });
        }
    }
    let is_counted = lock.header.counts_hand_overs && !lock.header.passes_on;
    let calls = lock.grants.iter().map(|grant| lock.acquire_of(grant));
    for call in calls.filter(|call| is_counted && call.fence.is_some_and(|fence| fence & 0xff > 0))
    {
        report.violation(Rule::K4, &lock.name, &call.lines, || {
            let (name, fence) = (lock.name_of(call), call.fence.unwrap_or_default());
            format!(
                "{name} got fence {fence}, whose low byte counts hand-overs, and there are none"
            )
        });
    }
    for call in lock.calls.iter().filter(|call| call.op.acquires()) {
        if call.err == Some(Why::Fenced) {
            refused(lock, call, report);
        }
    }
    if !is_fenced(lock) {
        return;
    }
    for pair in order.windows(2) {
        let [one, other] = [lock.acquire(pair[0].grant), lock.acquire(pair[1].grant)];
        if one.fence == other.fence {
            regressed(lock, one, other, report);
        }
    }
    // From the highest token down: a lower one must not be requested after a higher one was
    // granted.
    let mut first: Option<&Operation> = None;
    for hold in order.iter().rev() {
        let acquire = lock.acquire(hold.grant);
        if let Some(higher) = first.filter(|higher| higher.ret < acquire.asked) {
            regressed(lock, higher, acquire, report);
        }
        if first.is_none_or(|first| acquire.ret < first.ret) {
            first = Some(acquire);
        }
    }
}

/// Checks a client's own refusal of a token, which is right after it has seen a higher one.
fn refused(lock: LockView<'_>, call: &Operation, report: &mut Report) {
    let seen = lock.grants.iter().map(|grant| lock.acquire_of(grant));
    let seen = seen.filter(|seen| lock.are_together(seen, call) && seen.ret <= call.ret);
    let seen: Vec<_> = seen.collect();
    let is_unknown = |other: &&Operation| {
        other.op.acquires() && matches!(other.outcome, Outcome::Info | Outcome::Open)
    };
    let others =
        lock.calls.iter().filter(is_unknown).filter(|other| lock.are_together(other, call));
    let mut others = others.filter(|other| other.lines != call.lines);
    let meanwhile = |other: &Operation| other.invoke <= call.ret && other.ret >= call.invoke;
    if seen.iter().any(|seen| seen.ret > call.invoke) || others.any(meanwhile) {
        // The grant may be older than that one, and its notification delayed.
        return;
    }
    let highest = seen.into_iter().max_by_key(|seen| seen.fence);
    // The other tokens that it has seen are unknown.
    let from = highest.map_or(Time::START, |highest| highest.asked);
    if fences_may_go_back(lock, from, call.ret) {
        report.excused_fences += 1;
        return;
    }
    let lines = [highest.map_or(0, |highest| highest.lines[1]), call.lines[0], call.lines[1]];
    report.violation(Rule::K4, &lock.name, &lines, || {
        let high = highest.and_then(|highest| highest.fence).unwrap_or_default();
        format!(
            "{} was granted a lower fence than one that it had seen, {high} at least, and refused it",
            lock.name_of(call)
        )
    });
}

fn regressed(lock: LockView<'_>, earlier: &Operation, later: &Operation, report: &mut Report) {
    if may_go_back(lock, earlier, later) {
        report.excused_fences += 1;
        return;
    }
    report.violation(Rule::K4, &lock.name, &[earlier.lines[1], later.lines[1]], || {
        let (one, other) = (lock.name_of(earlier), lock.name_of(later));
        let [low, high] = [later, earlier].map(|call| call.fence.unwrap_or_default());
        format!("{other} got fence {low}, although {one} got fence {high} before")
    });
}

/// Returns whether the tokens of two grants may be in the wrong order, because the server has lost
/// its clock and its data.
pub(super) fn may_go_back(lock: LockView<'_>, one: &Operation, other: &Operation) -> bool {
    fences_may_go_back(lock, one.asked.min(other.asked), one.ret.max(other.ret))
}

fn fences_may_go_back(lock: LockView<'_>, from: Time, until: Time) -> bool {
    let broken = |assumption| lock.breaks(assumption, from..=until);
    lock.header.fencing == Grade::Seeded && broken(Assumption::A1) && broken(Assumption::A2)
}

/// Returns whether a waiter was certainly queued before `other` began, and until its grant: it met
/// no fault then, nor shortly before. Where locks are pushed, it may also have lost its position
/// together with other waiters of its process that let a lease expire.
fn was_queued(lock: LockView<'_>, waiter: &Operation, other: &Operation) -> bool {
    let after = lock.header.fifo_after.unwrap_or_default();
    let recovers = lock.header.recovery();
    let from = other.invoke.minus(after + recovers).max(waiter.invoke);
    let ran_out = |grant: &Grant| matches!(&grant.lost, Some((at, Why::Expired, _)) if (from..other.ret).contains(at));
    let mut of_its_process =
        lock.grants.iter().filter(|grant| lock.are_together(lock.acquire_of(grant), waiter));
    let is_passed_over = lock.header.passes_over && of_its_process.any(ran_out);
    !is_passed_over && lock.felt(waiter.process, from..=other.ret).next().is_none()
}

/// Checks FIFO: a waiter that was certainly queued before another one is served before it.
pub(super) fn fifo_order(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    let Some(after) = lock.header.fifo_after else { return };
    let mut latest = Time::START;
    for (place, hold) in order.iter().enumerate() {
        let acquire = lock.acquire(hold.grant);
        let is_later = |other: &Operation| other.invoke > acquire.invoke.plus(after);
        let is_queued = acquire.op == Op::Acquire && !acquire.overtakable;
        if is_queued && latest > acquire.invoke.plus(after) {
            let earlier = order[..place].iter().rev().map(|hold| lock.acquire(hold.grant));
            let mut meanwhile = earlier.take_while(|other| other.ret >= acquire.invoke);
            let overtaker =
                meanwhile.find(|other| is_later(other) && was_queued(lock, acquire, other));
            if let Some(other) = overtaker {
                overtaken(lock, acquire, other, report);
            }
        }
        latest = latest.max(acquire.invoke);
    }
}

fn overtaken(lock: LockView<'_>, waiter: &Operation, other: &Operation, report: &mut Report) {
    let lines = [waiter.lines[0], waiter.lines[1], other.lines[0], other.lines[1]];
    report.violation(Rule::Fifo, &lock.name, &lines, || {
        let (name, overtaker) = (lock.name_of(waiter), lock.name_of(other));
        format!(
            "{overtaker} began {:?} after {name} and got the lock before it",
            other.invoke.since(waiter.invoke)
        )
    });
}
