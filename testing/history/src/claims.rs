//! K1, deadlines, and loss notifications: the statements of the library to the application.

use super::holds::{Hold, earliest_give_up, is_fenced};
use super::order::may_go_back;
use super::record::{Assumption, Header, Renewals, Why};
use super::report::{Report, Rule};
use super::timeline::{Grant, LockView, Operation, Time};

struct Claim {
    /// The earliest time of the grant. The client's notification can be much later.
    begun: Time,
    from: Time,
    until: Time,
    /// `None` if it is not recorded.
    grant: Option<usize>,
}

/// Checks K1: claims never overlap.
pub(super) fn exclusion(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    let mut begun: Vec<Time> =
        lock.grants.iter().map(|given| lock.acquire_of(given).asked).collect();
    order.iter().for_each(|hold| begun[hold.grant] = hold.from);
    let claims = lock.grants.iter().enumerate().map(|(grant, given)| Claim {
        begun: begun[grant],
        from: lock.acquire_of(given).ret,
        until: claim_end(lock, given),
        grant: Some(grant),
    });
    // It may have ended at any time of the moment in which its end was recorded.
    let foreign = lock.foreign().map(|window| Claim {
        begun: window.from,
        from: window.from,
        until: Time::first(window.until.t),
        grant: None,
    });
    let claims = claims.chain(foreign);
    let mut claims: Vec<Claim> = claims.filter(|claim| claim.from < claim.until).collect();
    claims.sort_by_key(|claim| claim.from);
    let mut under_way: Vec<&Claim> = Vec::new();
    for claim in &claims {
        under_way.retain(|earlier| claim.from < earlier.until);
        for earlier in &under_way {
            // Only a holder of that moment may have a second one beside it after a broken
            // assumption.
            let begun = first_begun(lock, earlier, claim);
            if lock.exposed(begun..=claim.from).next().is_some() {
                report.excused_overlaps += 1;
            } else {
                overlap(lock, earlier, claim, report);
            }
        }
        under_way.push(claim);
        let at_risk = lock.exposed(claim.begun..=claim.until).next().is_some();
        report.claims_at_risk += u64::from(at_risk);
    }
}

/// Checks K1: no deadline is farther away than a lease, and none moves back, unless the session may
/// get shorter.
pub(super) fn deadlines(lock: LockView<'_>, report: &mut Report) {
    let &Header { margin, moves_back, .. } = lock.header;
    for grant in &lock.grants {
        let lease = lock.lease(lock.acquire_of(grant));
        let mut latest = 0;
        for &(at, until, line) in &grant.deadlines {
            let farthest = lease.map_or(Time::NEVER, |lease| at.plus(lease + margin)).t;
            // The recorder's clock need not run exactly as that of the guard.
            let goes_back = !moves_back && Time::first(until).plus(margin).t < latest;
            // A server whose clock is set back keeps a lock for longer, and reports that.
            let begun = lock.acquire_of(grant).invoke;
            let too_far = until > farthest && !lock.breaks(Assumption::A1, begun..=at);
            if too_far || goes_back {
                report.violation(Rule::K1, &lock.name, &[line], || {
                    let name = lock.name_of(lock.acquire_of(grant));
                    let than = if goes_back { latest } else { farthest };
                    let how =
                        if goes_back { "before" } else { "farther than a lease, which ends at" };
                    format!(
                        "{name} was told at {} ns that it holds up to {until} ns, {how} {than} ns",
                        at.t
                    )
                });
            }
            latest = latest.max(until);
        }
    }
}

/// Returns the earliest possible grant of the earlier of the two claims.
fn first_begun(lock: LockView<'_>, a: &Claim, b: &Claim) -> Time {
    let both = a.grant.zip(b.grant).map(|(a, b)| [lock.acquire(a), lock.acquire(b)]);
    match both.filter(|[one, other]| !may_go_back(lock, one, other)) {
        Some([one, other]) if is_fenced(lock) => {
            let is_first = one.fence < other.fence;
            if is_first { a.begun } else { b.begun }
        }
        _ => a.begun.min(b.begun),
    }
}

fn overlap(lock: LockView<'_>, a: &Claim, b: &Claim, report: &mut Report) {
    let calls = [a, b].map(|claim| claim.grant.map(|grant| lock.acquire(grant)));
    let lines = calls.map(|call| call.map_or(0, |call| call.lines[1]));
    report.violation(Rule::K1, &lock.name, &lines, || {
        let shared = a.until.min(b.until).since(b.from);
        let [one, other] =
            calls.map(|call| call.map_or("another library", |call| lock.name_of(call)));
        format!(
            "two holders at once for {shared:?}: {one} may rely on the lock from {} to {} ns, and {other} \
             got it at {} ns",
            a.from.t, a.until.t, b.from.t
        )
    });
}

/// Returns the latest end of the application's claim.
fn claim_end(lock: LockView<'_>, grant: &Grant) -> Time {
    let mut end = grant.valid_until.map_or(Time::NEVER, Time::first);
    if let Some(release) = lock.first_release(grant) {
        end = end.min(release.invoke);
    }
    if let Some(killed) = lock.killed(lock.acquire_of(grant).process) {
        end = end.min(killed);
    }
    match &grant.lost {
        Some((at, Why::Expired | Why::NotHeld, _)) => end = end.min(*at),
        // Core gave up early and has released the lock; the holder was notified a little later.
        Some((at, _, _)) => end = end.min(earliest_give_up(lock, grant, *at)),
        None => {
            let told =
                lock.first_not_held(grant).map(|call| earliest_give_up(lock, grant, call.ret));
            end = end.min(told.unwrap_or(Time::NEVER));
        }
    }
    end
}

/// Returns when `process` can be notified of an event at `from`. A stopped process is notified when
/// it runs again, unless it has been stopped anew by then.
fn runs(lock: LockView<'_>, process: u32, from: Time) -> Time {
    let mut runs = from;
    loop {
        let stopped = lock.stopped(process, from..=runs.plus(lock.header.told_within));
        match stopped.map(|window| window.until).max() {
            Some(until) if until > runs => runs = until,
            _ => return runs,
        }
    }
}

/// Returns the latest time for the notification of a loss at `ended`. A holder with a lease counts
/// it by itself, independently of its server. Without a lease, it is notified when it can ask
/// again.
fn told_by(lock: LockView<'_>, acquire: &Operation, ended: Time) -> Time {
    let process = acquire.process;
    let within = lock.header.told_within;
    let latest = runs(lock, process, ended).plus(within);
    let asks = lock.felt(process, ended..=ended.plus(within)).map(|window| window.until).max();
    let Some(asks) = asks else { return latest };
    let counts = match lock.lease(acquire) {
        Some(lease) => ended.plus(lease),
        None => asks,
    };
    latest.max(runs(lock, process, counts).plus(within))
}

/// Checks that every holder whose lease has certainly ended was notified, or has released the lock,
/// soon after.
pub(super) fn told(lock: LockView<'_>, order: &[Hold], report: &mut Report) {
    // From the end: the time at which the next certain holder got the lock.
    let mut next: Option<&Hold> = None;
    for hold in order.iter().rev() {
        let grant = &lock.grants[hold.grant];
        let taken = next.map(|next| lock.acquire(next.grant));
        // Where tokens may have gone back, a higher one may belong to an earlier holder.
        let taken = taken.filter(|taken| !may_go_back(lock, lock.acquire(hold.grant), taken));
        next = Some(hold);
        let exact = lock.header.renewals == Renewals::Recorded;
        let lapsed = grant.valid_until.filter(|_| exact).map(Time::first);
        let Some(ended) = lapsed.into_iter().chain(taken.map(|taken| taken.ret)).min() else {
            continue;
        };
        let acquire = lock.acquire_of(grant);
        let ended = ended.max(acquire.ret);
        let latest = told_by(lock, acquire, ended);
        let known = [
            lock.first_release(grant).map(|release| release.invoke),
            lock.first_not_held(grant).map(|call| call.ret),
            grant.lost.as_ref().map(|(at, _, _)| *at),
            lock.killed(acquire.process),
        ];
        let known = known.into_iter().flatten().min().unwrap_or(Time::NEVER);
        if known <= latest || lock.history.end <= latest {
            continue;
        }
        let lost = grant.lost.as_ref().map_or(0, |(_, _, line)| *line);
        let lines = [acquire.lines[1], lost, taken.map_or(0, |taken| taken.lines[1])];
        report.violation(Rule::Told, &lock.name, &lines, || {
            let how = match known {
                Time::NEVER => "was never told".to_owned(),
                late => format!("was told {:?} later", late.since(ended)),
            };
            let name = lock.name_of(acquire);
            format!("the lease of {name} had ended by {} ns, and it {how}", ended.t)
        });
    }
}
