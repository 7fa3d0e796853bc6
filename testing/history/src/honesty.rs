//! K7: the backend's statements about the end of a hold are true.

use super::holds::{Hold, earliest_expiry, ended_with_session, is_fenced};
use super::order::may_go_back;
use super::record::{Assumption, Op, Why};
use super::report::{Report, Rule};
use super::timeline::{Grant, LockView, Operation, Outcome, Time, Window};

/// Checks that at most one release is confirmed, that nothing ends without a reason, and that a
/// lost lock stays lost.
pub(super) fn honesty(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    if is_fenced(lock) {
        renewed_beside_the_next(lock, order, report);
    }
    for grant in &lock.grants {
        released_once(lock, grant, report);
        not_held_has_a_reason(lock, grant, report);
        stays_lost(lock, grant, report);
        ends_with_a_removal(lock, grant, report);
    }
}

/// Checks that no removed lock is confirmed to its holder, even if no other client has taken it
/// since.
fn ends_with_a_removal(lock: LockView<'_>, grant: &Grant, report: &mut Report) {
    let acquire = lock.acquire_of(grant);
    // A hand-over inside a process is no release on the server.
    let asked = grant.asked.iter().chain(&grant.releases).map(|&index| &lock.calls[index]);
    let confirmed = asked.filter(|call| {
        let is_asked = call.op == Op::Renew || (call.op == Op::Release && !lock.header.passes_on);
        is_asked && call.outcome == Outcome::Ok
    });
    for call in confirmed {
        let removal = lock.removals(acquire.ret..=call.invoke).next();
        // Older data bring it back, and so does a member that has them.
        let comes_back = |from| {
            let brings = |broken| matches!(broken, Assumption::A2 | Assumption::Minority);
            lock.broken_by(brings, from..=call.ret).next().is_some()
        };
        let Some(removal) = removal.filter(|removal| !comes_back(removal.from)) else { continue };
        report.violation(Rule::K7, &lock.name, &[acquire.lines[1], call.lines[1]], || {
            let (name, op, at) = (lock.name_of(acquire), call.op, removal.until.t);
            format!("the {op:?} of {name} was confirmed, but its lock had been removed by {at} ns")
        });
    }
}

fn released_once(lock: LockView<'_>, grant: &Grant, report: &mut Report) {
    let mut confirmed = lock.releases(grant).filter(|release| release.outcome == Outcome::Ok);
    let (Some(first), Some(second)) = (confirmed.next(), confirmed.next()) else { return };
    let lines = [first.lines[1], second.lines[1]];
    report.violation(Rule::K7, &lock.name, &lines, || {
        let name = lock.name_of(lock.acquire_of(grant));
        format!("the backend confirmed two releases of the one hold of {name}")
    });
}

fn not_held_has_a_reason(lock: LockView<'_>, grant: &Grant, report: &mut Report) {
    let acquire = lock.acquire_of(grant);
    let asked = grant.asked.iter().chain(&grant.releases).map(|&index| &lock.calls[index]);
    let answers = asked.filter(|call| call.err == Some(Why::NotHeld));
    let answer = answers.map(|call| (call.ret, call.lines[1]));
    let lost = grant.lost.as_ref().filter(|(_, why, _)| *why == Why::NotHeld);
    let first = answer.chain(lost.map(|(at, _, line)| (*at, *line))).min();
    let Some((at, line)) = first else { return };
    let let_go = lock.releases(grant).any(|release| {
        release.invoke < at && release.lines[1] != line && release.err != Some(Why::NotHeld)
    });
    let earliest_give_up = grant.lost.as_ref().is_some_and(|(lost, _, _)| *lost < at);
    // The lock may have been removed before it was handed over inside the process.
    let broken = lock.broken(acquire.asked..=at).next().is_some();
    if let_go
        || earliest_give_up
        || broken
        || ended_with_session(lock, acquire, at)
        || lost_its_votes(lock, acquire, at)
        || earliest_expiry(lock, grant) <= Time::last(at.t)
    {
        return;
    }
    report.violation(Rule::K7, &lock.name, &[acquire.lines[1], line], || {
        let name = lock.name_of(acquire);
        let until = earliest_expiry(lock, grant).t;
        format!(
            "{name} was told at {} ns that it does not hold the lock any more, but its lease lasts until \
             {until} ns and no operation has ended it",
            at.t
        )
    });
}

/// Returns whether a quorum may doubt the votes of a hold. Its client missed the answer to an
/// attempt, and most members restart during the hold. Then their votes may be of that attempt. A
/// hand-over inside the process leaves the votes as they are.
fn lost_its_votes(lock: LockView<'_>, acquire: &Operation, at: Time) -> bool {
    let voted = lock.before_hand_overs(acquire);
    let missed_an_answer = lock.met(voted.process, voted.invoke..=voted.ret).next().is_some();
    let mut faults = lock.met(voted.process, voted.ret..=at);
    lock.header.votes && missed_an_answer && faults.any(Window::hits_most_members)
}

/// Checks that no renewal is confirmed after a higher token was granted. Its holder has taken the
/// lock over, unless that grant was lost again.
fn renewed_beside_the_next(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    for (place, hold) in order.iter().enumerate() {
        let grant = &lock.grants[hold.grant];
        let renewals = grant.asked.iter().map(|&index| &lock.calls[index]);
        let renewals = renewals.filter(|call| call.op == Op::Renew && call.outcome == Outcome::Ok);
        for renewal in renewals {
            let later = order[place + 1..].iter().map(|hold| lock.acquire(hold.grant));
            let Some(next) = later.take_while(|next| next.ret < renewal.invoke).last() else {
                continue;
            };
            let acquire = lock.acquire_of(grant);
            // By a restart with older data, also during the wait. A removal may be the cause of its
            // grant.
            let goes_back = |broken| matches!(broken, Assumption::A2 | Assumption::Minority);
            let mut broken = lock.broken(next.ret..=renewal.ret);
            let mut older = lock.broken_by(goes_back, next.asked..=renewal.ret);
            let is_lost = broken.next().or_else(|| older.next()).is_some();
            if is_lost || next.fence == acquire.fence || may_go_back(lock, acquire, next) {
                continue;
            }
            let lines = [next.lines[1], renewal.lines[0], renewal.lines[1]];
            report.violation(Rule::K7, &lock.name, &lines, || {
                let (name, other) = (lock.name_of(renewal), lock.name_of(next));
                let at = renewal.invoke.t;
                format!("{name} asked at {at} ns and got the answer that it still holds the lock, which {other} had taken over")
            });
        }
    }
}

/// Checks that no lock is reported as held after the notification of its loss, or after its
/// release.
fn stays_lost(lock: LockView<'_>, grant: &Grant, report: &mut Report) {
    let lost = grant.lost.as_ref().map(|(at, _, line)| (*at, *line));
    let gone = lock.first_not_held(grant).map(|call| (call.ret, call.lines[1]));
    let ended = lost.into_iter().chain(gone).min();
    let given_back = lock.released(grant).map(|call| (call.ret, call.lines[1]));
    let Some((at, line)) = ended.into_iter().chain(given_back).min() else { return };
    // Two confirmed releases are judged by `released_once`.
    let is_told =
        |call: &&Operation| call.op != Op::Release || ended.is_some_and(|(at, _)| call.invoke > at);
    // No guard remembers the loss of a detached lock. After a removal, or after the end of its
    // lease, a late attempt may have granted the lock to its claim again. No attempt is late
    // without a fault.
    let acquire = lock.acquire_of(grant);
    let had_fault = lock.felt(acquire.process, acquire.asked..=acquire.ret).next().is_some();
    let has_expired = earliest_expiry(lock, grant) <= at;
    let may_be_back = |call: &&Operation| {
        let is_detached = call.op == Op::Release && !call.guarded;
        let is_removed = lock.broken(acquire.asked..=call.ret).next().is_some();
        is_detached && (is_removed || had_fault && has_expired)
    };
    let revived = |call: &&Operation| {
        call.invoke > at && call.outcome == Outcome::Ok && is_told(call) && !may_be_back(call)
    };
    let calls = grant.asked.iter().chain(&grant.releases).map(|&index| &lock.calls[index]);
    if let Some(call) = calls.filter(revived).min_by_key(|call| call.invoke) {
        report.violation(Rule::K7, &lock.name, &[line, call.lines[0], call.lines[1]], || {
            let name = lock.name_of(call);
            let said = if call.op == Op::Release { "released it" } else { "still holds it" };
            let what = if ended.is_some_and(|(ended, _)| ended == at) {
                "was told of its loss"
            } else {
                "had given it back"
            };
            format!("{name} {what} at {} ns, and was told later that it {said}", at.t)
        });
    }
}
