//! The renewer: one task per locker that renews all its holds, in batches, and ends holds at their
//! deadlines.

use std::borrow::Cow;
use std::error::Error as _;
use std::ops::DerefMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::{Instrument, Span};

use super::hold::{ClaimState, Engine, Hold, RenewingClaim};
use super::loss_watch;
use super::schedule::{Schedule, Scheduled, Slot};
use crate::backend::{Claim, Fault, FaultKind, Renewal};
use crate::clock::{Moment, sleep_until};
use crate::loss::Loss;
use crate::name::LockName;
use crate::owner::OwnerId;

/// Claims in one call of [`Backend::renew`](crate::backend::Backend::renew).
const MAX_BATCH: usize = 64;

/// How long a batch of renewals keeps the next one waiting. A timer adds up to a millisecond.
const BATCH_HEAD_START: Duration = Duration::from_millis(2);

/// The task that does the due work of a schedule.
struct Renewer(Arc<Schedule<Hold>>);

impl Scheduled for Hold {
    fn next_check(&self) -> Moment {
        self.next_check()
    }

    fn swap_slot(&self, slot: Option<Slot>) -> Option<Slot> {
        self.swap_slot(slot)
    }

    fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    fn start(hold: &Arc<Self>, schedule: Arc<Schedule<Self>>) {
        hold.engine.executor().handle().spawn(Renewer(schedule).run());
    }
}

/// Returns the hold of a lock that was handed over to `owner`, whose id the backend does not know.
pub(crate) fn successor(engine: &Engine, name: &LockName, owner: &OwnerId) -> Option<Arc<Hold>> {
    let is_it = |hold: &Hold| {
        hold.holder.handed_over > 0 && hold.holder.owner == *owner && hold.name == *name
    };
    engine.schedule.find(is_it)
}

impl Renewer {
    async fn run(self) {
        let schedule = &self.0;
        loop {
            let (ready, next) = schedule.take_due(Moment::now());
            if !ready.is_empty() {
                self.run_due(ready);
                continue;
            }
            if schedule.slots().stopped {
                return;
            }
            let alarm = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = alarm => {}
                () = schedule.wake.notified() => {}
            }
        }
    }

    fn run_due(&self, ready: Vec<Arc<Hold>>) {
        let mut renewals = Vec::new();
        for hold in ready {
            // A panic, of a subscriber of `tracing` say, is no reason to renew nothing any more.
            let renews = catch_unwind(AssertUnwindSafe(|| step(&hold, Moment::now())));
            // Checked again at its deadline, also if the renewal is never answered.
            self.0.update(&hold);
            if renews.unwrap_or(false) {
                renewals.push(hold);
            }
        }
        if !renewals.is_empty() {
            tokio::spawn(renew_in_batches(renewals));
        }
    }
}

impl Drop for Renewer {
    /// Ends the remaining holds, because the runtime shuts down and they would not be renewed.
    fn drop(&mut self) {
        let remaining = {
            let mut slots = self.0.slots();
            slots.running = false;
            std::mem::take(&mut slots.due)
        };
        for hold in remaining.into_values() {
            hold.swap_slot(None);
            hold.lose(Loss::RuntimeGone);
        }
    }
}

fn step(hold: &Arc<Hold>, now: Moment) -> bool {
    if hold.loss().is_some() {
        return false;
    }
    if hold.starts_watch(now) {
        loss_watch::watch(Arc::clone(hold));
    }
    hold.starts_renewal(now)
}

/// Renews `holds` in batches, those with the earliest deadlines first. One batch follows another,
/// because requests for all of them at once would need more memory than the locks. A batch that is
/// not answered soon delays no other one, and many batches start together where the next deadline
/// leaves no time to wait for each.
async fn renew_in_batches(mut holds: Vec<Arc<Hold>>) {
    holds.sort_by_cached_key(|hold| {
        let deadline = hold.deadline();
        (deadline.is_none(), deadline)
    });
    let mut rest = &holds[..];
    while let Some(first) = rest.first() {
        let left = first.deadline().map_or(Duration::MAX, Moment::remaining);
        let steps = (left / 8).as_millis() / BATCH_HEAD_START.as_millis();
        let at_once = rest.len().div_ceil(usize::try_from(steps).unwrap_or(usize::MAX).max(1));
        let (now, later) = rest.split_at(at_once.max(MAX_BATCH).min(rest.len()));
        // In tasks of their own: the panic of one ends no other batch.
        let renewals: Vec<_> =
            now.chunks(MAX_BATCH).map(|batch| tokio::spawn(renew_batch(batch.to_vec()))).collect();
        let answered = async {
            for renewal in renewals {
                let _ = renewal.await;
            }
        };
        let _ = timeout(BATCH_HEAD_START, answered).await;
        rest = later;
    }
}

/// Renews `holds`, which share an engine, in one call. If the call misses its bound, one by one:
/// an unanswered claim must not take the others with it.
async fn renew_batch(holds: Vec<Arc<Hold>>) {
    let Some(engine) = holds.first().map(|hold| Arc::clone(&hold.engine)) else {
        return;
    };
    // A busy claim is tried again soon: its user may be a verb of the guard, which schedules the
    // next renewal itself, or a caller that only reads the ticket. A hold that has ended is left to
    // its release.
    let mut claim_states: Vec<_> = holds
        .into_iter()
        .filter_map(|hold| match Arc::clone(&hold.claim_state).try_lock_owned() {
            Ok(claim_state) => {
                hold.ended.get().is_none().then(|| RenewingClaim::new(hold, claim_state))
            }
            Err(_) => {
                hold.renew_again_soon();
                None
            }
        })
        .collect();
    if claim_states.is_empty() {
        return;
    }
    let limit = limit(&engine, &claim_states);
    let answers = renew(&engine, &mut claim_states, None, limit).await;
    let overdue = claim_states.len() > 1 && answers.iter().all(is_timeout);
    for (mut claim_state, answer) in claim_states.into_iter().zip(answers) {
        if overdue {
            tokio::spawn(renew_one(claim_state));
        } else {
            apply(&mut claim_state, answer);
        }
    }
}

async fn renew_one(mut claim_state: RenewingClaim) {
    let engine = Arc::clone(&claim_state.hold.engine);
    let claim_states = std::slice::from_mut(&mut claim_state);
    let limit = limit(&engine, claim_states);
    if let Some(answer) = renew(&engine, claim_states, None, limit).await.pop() {
        apply(&mut claim_state, answer);
    }
}

/// Renews in one call of the backend. Returns as many answers as claims in any case. It asks for
/// `ttl`, or for the ttl of each claim.
pub(crate) async fn renew<W: DerefMut<Target = ClaimState>>(
    engine: &Engine,
    claim_states: &mut [W],
    ttl: Option<Duration>,
    limit: Duration,
) -> Vec<Result<Renewal, Fault>> {
    // An unanswered renewal may be applied, until the bound of the call at the latest. Noted before
    // it is sent, because this future may be dropped; taken back by an answer, which tells the
    // lease.
    let before: Vec<_> = claim_states.iter().map(|claim_state| claim_state.latest_expiry).collect();
    for claim_state in claim_states.iter_mut() {
        let ttl = ttl.unwrap_or(claim_state.claim.ttl);
        claim_state.latest_expiry =
            claim_state.latest_expiry.max(Some(Moment::now() + limit + ttl));
        claim_state.renewal_unknown = true;
    }
    let mut claims: Vec<_> =
        claim_states.iter().map(|claim_state| Cow::Borrowed(&claim_state.claim)).collect();
    if let Some(ttl) = ttl {
        claims.iter_mut().for_each(|claim| claim.to_mut().ttl = ttl);
    }
    let claims: Vec<&Claim> = claims.iter().map(|claim| &**claim).collect();
    let answers = ask(engine, &claims, limit).await;
    for ((claim_state, answer), before) in claim_states.iter_mut().zip(&answers).zip(before) {
        engine.metrics.renewed(claim_state.class, answer);
        if answer.is_ok() {
            claim_state.latest_expiry = before;
            claim_state.renewal_unknown = false;
        }
    }
    answers
}

async fn ask(engine: &Engine, claims: &[&Claim], limit: Duration) -> Vec<Result<Renewal, Fault>> {
    let span = tracing::debug_span!(
        "renew",
        lock.backend = engine.caps.backend,
        lock.count = claims.len() as i64,
        // Of the first one.
        lock.name = claims.first().map(|claim| claim.name.as_str()),
        lock.owner = claims.first().map(|claim| tracing::field::display(claim.owner.short())),
        lock.failed = tracing::field::Empty,
        otel.status_code = tracing::field::Empty,
    );
    let verb = async { Ok(engine.backend.renew(claims).await) };
    let fault = match engine.call(limit, verb).instrument(span.clone()).await {
        Ok(answers) if answers.len() == claims.len() => {
            let failed = answers.iter().filter(|it| !matches!(it, Ok(Renewal::Held(_)))).count();
            record_failed(&span, failed);
            return answers;
        }
        Ok(_) => {
            Fault::unknown(FaultKind::Broken, "the backend answered for another number of claims")
        }
        Err(fault) => fault,
    };
    record_failed(&span, claims.len());
    claims.iter().map(|_| Err(fault.repeated())).collect()
}

fn record_failed(span: &Span, failed: usize) {
    span.record("lock.failed", failed as i64);
    if failed > 0 {
        span.record("otel.status_code", "ERROR");
    }
}

fn apply(claim_state: &mut RenewingClaim, answer: Result<Renewal, Fault>) {
    let hold = Arc::clone(&claim_state.hold);
    if let Err(Some(fault)) = hold.renewed(&mut claim_state.claim, None, answer) {
        // It is tried again until the deadline.
        let left = hold.deadline().map(Moment::remaining);
        tracing::warn!(
            lock.name = hold.name.as_str(),
            lock.backend = hold.engine.caps.backend,
            lock.owner = %hold.holder.owner.short(),
            lock.error = %fault,
            lock.error_source = fault.source().map(tracing::field::display),
            lock.lease_left = left.map(|left| left.as_secs_f64()),
            "renewal failed"
        );
    }
}

/// Returns the timeout of a call: long enough for a slow backend, short enough to try again before
/// the earliest deadline. It has a floor, or a slower backend would never be heard as the deadline
/// comes nearer.
pub(crate) fn limit(engine: &Engine, claim_states: &[RenewingClaim]) -> Duration {
    let holds = || claim_states.iter().map(|claim_state| &claim_state.hold);
    let left = holds().filter_map(|hold| hold.deadline()).map(Moment::remaining).min();
    let slow = holds().map(|hold| hold.interval()).min().unwrap_or_default() / 2;
    left.map_or(engine.settings.timeout, |left| (left / 4).max(slow.min(left)))
        .min(engine.settings.timeout)
        .max(Duration::from_millis(1))
}

fn is_timeout(answer: &Result<Renewal, Fault>) -> bool {
    matches!(answer, Err(fault) if fault.kind() == FaultKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::backend::{Grant, Lease, LeaseLimit};

    /// Two threads update the schedule of a hold at once. One of them has moved its limit back.
    #[test]
    fn a_limit_that_moves_back_is_checked_in_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let locks = crate::Locker::new(crate::Memory::new());
        let guard = runtime.block_on(locks.lock("n").unwrap().acquire()).unwrap();
        let (hour, minute) = (Duration::from_secs(3600), Duration::from_secs(60));
        let limit = LeaseLimit::new(Moment::now() + hour);
        let grant = Grant::new(Lease::For(hour), Moment::now()).with_limit(limit.clone());
        let first = guard.hold();
        let claim_state = first.claim_state.try_lock().unwrap().clone();
        let (engine, policy) = (Arc::clone(&first.engine), Arc::clone(&first.policy));
        let hold = Hold::new(engine, policy, claim_state, None, &grant, first.holder);
        let schedule = Arc::clone(&first.engine.schedule);
        for round in 0..100 {
            assert!(limit.move_to(Moment::now() + hour));
            let runs = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let slots = schedule.slots();
                scope.spawn(|| {
                    runs.store(true, Ordering::SeqCst);
                    hold.renew_again_soon();
                });
                while !runs.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                // It waits for the slots by now, or nearly so.
                (0..100).for_each(|_| std::thread::yield_now());
                assert!(limit.move_to(Moment::now() + minute));
                drop(slots);
                hold.renew_again_soon();
            });
            let slots = schedule.slots();
            let checked_at = slots.due.iter().find(|(_, it)| Arc::ptr_eq(it, &hold));
            let checked_at = checked_at.map(|(&(at, _), _)| at);
            assert!(checked_at.is_some() && checked_at <= hold.deadline(), "in round {round}");
        }
    }
}
