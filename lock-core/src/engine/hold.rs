//! A lock that was won, until it ends: its deadline, its loss, and its renewals' answers.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, SetOnce, oneshot};

use super::local_queue::{HandoverKey, QueueHead};
use super::shared::Held;
use crate::backend::{Claim, Fault, FaultKind, Grant, Lease, LeaseLimit, Renewal, Support};
use crate::clock::{Moment, sleep_until};
use crate::entropy;
use crate::error::Error;
use crate::executor::shield;
use crate::loss::Loss;
use crate::metrics::Class;
use crate::name::LockName;
use crate::owner::OwnerId;
use crate::policy::HoldPolicy;
use crate::token::FencingToken;

/// The state that all acquisitions of a locker share.
pub(crate) type Engine = super::shared::SharedEngine<Hold>;

/// The head of a local queue.
pub(crate) type Head = QueueHead<<Hold as Held>::Handover>;

/// A hold is watched for its loss from this age on: short holds cost nothing more.
const WATCHED_AFTER: Duration = Duration::from_millis(100);

/// One grant in force. The guard, its signals and the renewer share it.
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) name: LockName,
    pub(crate) token: Option<FencingToken>,
    pub(crate) ttl: Duration,
    pub(crate) policy: Arc<HoldPolicy>,
    pub(crate) holder: HolderInfo,
    /// Invariant: a verb of this claim is under way only while its sender holds this mutex.
    pub(crate) claim_state: Arc<tokio::sync::Mutex<ClaimState>>,
    pub(crate) ended: SetOnce<Loss>,
    pub(crate) class: Class,
    /// Of all grants of the claim.
    limit: Option<LeaseLimit>,
    /// The head of the local queue, if this hold is it.
    head: Mutex<Option<Head>>,
    state: Mutex<HoldState>,
}

/// The holder, and how it got the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderInfo {
    pub(crate) owner: OwnerId,
    /// When the grant arrived here. The server may have made it earlier, and never later.
    pub(crate) granted_at: Moment,
    /// How often the lock was handed over in this process since the backend gave it to the claim.
    pub(crate) handed_over: u8,
    /// The backend handed the lock over to a claim that waited for it.
    pub(crate) pushed: bool,
}

impl HolderInfo {
    /// Returns the holder of a claim that the backend has granted.
    pub(crate) fn first(owner: OwnerId, granted_at: Moment) -> Self {
        Self { owner, granted_at, handed_over: 0, pushed: false }
    }

    /// Returns the next holder in this process, from now on.
    pub(crate) fn next(&self, owner: OwnerId) -> Self {
        let handed_over = self.handed_over.saturating_add(1);
        Self { owner, granted_at: Moment::now(), handed_over, pushed: false }
    }
}

/// The state that the verbs of a claim need. The claim may have been another holder's before.
#[derive(Clone, Debug)]
pub(crate) struct ClaimState {
    pub(crate) claim: Claim,
    /// An attempt of the claim went unanswered and may still land.
    pub(crate) late_attempt: bool,
    /// When the lease ends at the latest if the renewals that went unanswered were applied.
    pub(crate) latest_expiry: Option<Moment>,
    /// The last renewal has not been answered: whether the claim still holds the lock is unknown.
    pub(crate) renewal_unknown: bool,
    pub(crate) class: Class,
}

impl ClaimState {
    pub(crate) fn new(claim: Claim, late_attempt: bool, class: Class) -> Self {
        Self { claim, late_attempt, latest_expiry: None, renewal_unknown: false, class }
    }
}

/// The wire of a hold while a renewal is under way there.
pub(crate) struct RenewingClaim {
    pub(crate) hold: Arc<Hold>,
    /// `None` only while it is dropped.
    claim_state: Option<OwnedMutexGuard<ClaimState>>,
}

impl RenewingClaim {
    pub(crate) fn new(hold: Arc<Hold>, claim_state: OwnedMutexGuard<ClaimState>) -> Self {
        Self { hold, claim_state: Some(claim_state) }
    }
}

impl Deref for RenewingClaim {
    type Target = ClaimState;

    fn deref(&self) -> &ClaimState {
        self.claim_state.as_ref().expect("there until it is dropped")
    }
}

impl DerefMut for RenewingClaim {
    fn deref_mut(&mut self) -> &mut ClaimState {
        self.claim_state.as_mut().expect("there until it is dropped")
    }
}

impl Drop for RenewingClaim {
    /// Runs also when the renewer's runtime ends before an answer. It unlocks the claim first: of
    /// this and the hold's release, the later one drops the ticket.
    fn drop(&mut self) {
        self.hold.renew_if_unanswered();
        self.claim_state = None;
        self.hold.drop_ticket_if_abandoned();
    }
}

#[derive(Debug)]
struct HoldState {
    /// When we give up by ourselves. `None`: no lease, the process' life is the bound.
    deadline: Option<Moment>,
    /// The lease that was acknowledged for the longest time, as we count it: from then, until it
    /// ends on the server.
    leased_at: Moment,
    lease_ends: Option<Moment>,
    /// When the acknowledged leases have ended on a server that counts each from its answer, by a
    /// slow clock.
    expires_by: Option<Moment>,
    /// `None` while one is under way, or when there will be none.
    next_renewal: Option<Moment>,
    /// Up to when the lock was asked for, by the acquisition or explicitly since, as we count it: a
    /// lease that ends before is renewed under any policy.
    asked_until: Option<Moment>,
    /// From one renewal to the next.
    interval: Duration,
    /// The probe has said no: nothing is renewed any more.
    refused: bool,
    /// The watch for a loss is supported and has not started.
    unwatched: bool,
    /// No task is going to release the claim any more: its runtime is gone.
    abandoned: bool,
    /// The guard was dropped or released: nothing runs under the lock any more.
    guard_gone: bool,
    /// Dropped with the guard, if the lock was lost before.
    kept_for_guard: Option<oneshot::Sender<()>>,
    /// The slot of this hold in the schedule.
    slot: Option<(Moment, u64)>,
}

impl Hold {
    pub(crate) fn new(
        engine: Arc<Engine>,
        policy: Arc<HoldPolicy>,
        claim_state: ClaimState,
        head: Option<Head>,
        grant: &Grant,
        holder: HolderInfo,
    ) -> Arc<Self> {
        // The claim asked before its grant. A successor asked now, and its grant is older.
        let asked_at = if holder.handed_over == 0 { grant.since } else { holder.granted_at };
        let asked = Grant::new(Lease::For(claim_state.claim.ttl), asked_at);
        // A minimum hold that is kept here needs the lock until its release is sent.
        let kept_here = policy.min_hold.filter(|_| engine.caps.minimum_hold != Support::Present);
        let kept_until = kept_here.map(|kept| holder.granted_at + kept + engine.settings.timeout);
        let asked_until = Self::deadline_of(&engine, &asked).max(kept_until);
        let hold = Arc::new(Self {
            name: claim_state.claim.name.clone(),
            token: grant.token,
            ttl: claim_state.claim.ttl,
            class: claim_state.class,
            holder,
            claim_state: Arc::new(tokio::sync::Mutex::new(claim_state)),
            ended: SetOnce::new(),
            limit: grant.limit.clone(),
            head: Mutex::new(head),
            state: Mutex::new(HoldState {
                deadline: None,
                leased_at: grant.since,
                lease_ends: None,
                expires_by: None,
                next_renewal: None,
                asked_until,
                interval: Duration::MAX,
                refused: false,
                unwatched: engine.caps.loss_push == Support::Present,
                abandoned: false,
                guard_gone: false,
                kept_for_guard: None,
                slot: None,
            }),
            engine,
            policy,
        });
        hold.engine.metrics.held(hold.class);
        hold.extend_to(grant, Some(hold.ttl), holder.granted_at);
        hold
    }

    /// Returns the moment up to which `grant` may be relied on; `None` without a lease.
    pub(crate) fn deadline_of(engine: &Engine, grant: &Grant) -> Option<Moment> {
        let deadline = Self::deadline_of_lease(engine, grant);
        deadline.map(|deadline| within_limit(deadline, grant.limit.as_ref()))
    }

    /// Returns the same as [`deadline_of`](Self::deadline_of) without the limit, which may move
    /// later.
    pub(crate) fn deadline_of_lease(engine: &Engine, grant: &Grant) -> Option<Moment> {
        match grant.lease {
            Lease::For(lease) => Some(grant.since + lease.saturating_sub(engine.margin(lease))),
            Lease::WhileProcessLives => None,
        }
    }

    /// Returns true if `grant` leaves a caller that asked for `ttl` at `now` the least that is
    /// promised: a tenth of the ttl, or 100 ms if that is less.
    pub(crate) fn leaves_enough(
        engine: &Engine,
        grant: &Grant,
        ttl: Duration,
        now: Moment,
    ) -> bool {
        let left = Self::deadline_of(engine, grant).map(|deadline| deadline.saturating_since(now));
        left.is_none_or(|left| left >= (ttl / 10).min(LEAST_LEFT))
    }

    /// Returns why the lock is not held any more, if so. It is computed from the clock, so it is
    /// right at the first call after a stop, a starved executor or a suspension.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        if self.ended.get().is_none() {
            if self.engine.executor().is_gone() {
                return Some(Loss::RuntimeGone);
            }
            if self.deadline().is_some_and(Moment::has_passed) {
                self.lose(self.reason_at_deadline());
            }
        }
        self.ended.get().copied()
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.state().deadline.map(|deadline| within_limit(deadline, self.limit.as_ref()))
    }

    /// Returns the time from one renewal to the next.
    pub(crate) fn interval(&self) -> Duration {
        self.state().interval
    }

    /// Waits until the lock is not held any more. The renewer watches the deadline, by a clock that
    /// no caller can stop.
    pub(crate) async fn lost(self: &Arc<Self>) -> Loss {
        match self.loss() {
            Some(loss) => loss,
            None => {
                let mut ended = pin!(self.ended.wait());
                let poll = |cx: &mut Context<'_>| {
                    ended.as_mut().poll(&mut Context::from_waker(&shield(cx)))
                };
                *poll_fn(poll).await
            }
        }
    }

    /// Updates the schedule at each move of the limit. Never resolves.
    pub(crate) async fn follow_limit(self: &Arc<Self>) {
        let Some(limit) = &self.limit else { return std::future::pending().await };
        let mut moves = limit.moves();
        loop {
            self.reschedule();
            // The hold has a sender.
            let _ = moves.changed().await;
        }
    }

    /// Waits until the margin after `from` has passed, or the guard is gone.
    pub(super) async fn let_holder_learn(&self, from: Moment) {
        let (sender, gone) = oneshot::channel();
        {
            let mut state = self.state();
            if state.guard_gone {
                return;
            }
            state.kept_for_guard = Some(sender);
        }
        let lease = match self.acknowledged().lease {
            Lease::For(lease) => lease.max(self.ttl),
            Lease::WhileProcessLives => self.ttl,
        };
        tokio::select! {
            biased;
            _ = gone => {}
            () = sleep_until(from + self.engine.margin(lease)) => {}
        }
    }

    /// Records that the guard is gone: the release of a lost lock then does not wait for the
    /// holder.
    pub(crate) fn guard_dropped(&self) {
        let sender = {
            let mut state = self.state();
            state.guard_gone = true;
            state.kept_for_guard.take()
        };
        drop(sender);
    }

    pub(crate) fn leave_queue(&self) {
        drop(self.take_head());
    }

    /// Notifies the local waiters that the release is sent.
    pub(crate) fn note_request(&self) {
        if let Some(head) = &*self.head() {
            head.set_unanswered_since(Some(Moment::now()));
        }
    }

    pub(crate) fn take_head(&self) -> Option<Head> {
        self.head().take()
    }

    /// Returns whether there are local waiters behind this hold, and all of them ask for `key`.
    pub(crate) fn all_waiters_want(&self, key: HandoverKey) -> bool {
        self.head().as_ref().is_some_and(|head| head.all_waiters_want(key))
    }

    pub(super) fn head(&self) -> MutexGuard<'_, Option<Head>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that no task is going to release the claim any more.
    pub(super) fn abandon(&self) {
        self.state().abandoned = true;
        self.drop_ticket_if_abandoned();
    }

    /// Drops the ticket of a claim that no task releases any more. A verb that is under way does so
    /// at its end.
    fn drop_ticket_if_abandoned(&self) {
        if self.state().abandoned
            && let Ok(mut claim_state) = self.claim_state.try_lock()
        {
            claim_state.claim.ticket = None;
        }
    }

    /// Ends the hold, which is not renewed any more. Returns false if it had ended before.
    pub(crate) fn end(&self, why: Loss) -> bool {
        let first = self.ended.set(why).is_ok();
        if first {
            self.engine.schedule.remove(self);
            self.engine.metrics.unheld(self.class);
        }
        first
    }

    /// Records how long the lock was held, at its end.
    pub(crate) fn record_duration(&self, ended_at: impl FnOnce() -> Moment) {
        let held_for = || ended_at().saturating_since(self.holder.granted_at);
        self.engine.metrics.held_for(self.class, held_for);
    }

    /// Returns the end of the minimum hold, if it has not passed.
    pub(crate) fn not_before(&self) -> Option<Moment> {
        let until = self.holder.granted_at + self.policy.min_hold?;
        (!until.has_passed()).then_some(until)
    }

    /// Returns the end of the minimum hold, if this process has to keep it.
    pub(crate) fn kept_here_until(&self) -> Option<Moment> {
        self.not_before().filter(|_| self.engine.caps.minimum_hold != Support::Present)
    }

    /// Returns the end of the minimum hold by a server's clock that runs fast, if the server has to
    /// keep it.
    pub(super) fn kept_by_server_until(&self) -> Option<Moment> {
        let until =
            self.not_before().filter(|_| self.engine.caps.minimum_hold == Support::Present)?;
        Some(until + self.engine.margin(until.remaining()))
    }

    /// Returns true if the lease lives in a session that may outlast it.
    pub(crate) fn is_in_session(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns the moment at which the lease ends, counted from before its request.
    pub(crate) fn lease_ends(&self) -> Option<Moment> {
        self.state().lease_ends.map(|ends| within_limit(ends, self.limit.as_ref()))
    }

    /// Returns the moment by which the lease has expired on the server. The request may have been
    /// under way for as long as its answer took.
    pub(crate) fn expires_by(&self) -> Option<Moment> {
        self.state().expires_by.map(|ends| within_limit(ends, self.limit.as_ref()))
    }

    /// Returns the acknowledged grant whose lease ends last.
    pub(crate) fn acknowledged(&self) -> Grant {
        let state = self.state();
        let lease = state.lease_ends.map(|ends| ends.saturating_since(state.leased_at));
        let lease = lease.map_or(Lease::WhileProcessLives, Lease::For);
        let mut grant = Grant::new(lease, state.leased_at);
        grant.limit.clone_from(&self.limit);
        grant
    }

    /// Applies the answer to a renewal, which a caller `asked` for or the policy. Only an
    /// acknowledged renewal moves the deadline. After a fault, `RenewingClaim` schedules the next
    /// one when it is dropped, unless one is scheduled already.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        claim: &mut Claim,
        asked: Option<Duration>,
        answer: Result<Renewal, Fault>,
    ) -> Result<(), Option<Fault>> {
        match answer {
            // Another token means another grant: the lock was lost, perhaps held by another client
            // since, and then taken anew by a late attempt of this claim.
            Ok(Renewal::Held(grant)) if self.is_another(&grant) => {
                self.lose(Loss::NotHeld);
                Err(None)
            }
            // `loss` first: an answer that comes after the deadline does not move it.
            Ok(Renewal::Held(grant)) if self.loss().is_none() => {
                if grant.ticket.is_some() {
                    claim.ticket.clone_from(&grant.ticket);
                }
                self.engine.metrics.lease_left(self.class, || self.deadline());
                self.extend_to(&grant, asked, Moment::now());
                Ok(())
            }
            Ok(Renewal::Held(_)) => Err(None),
            Ok(Renewal::NotHeld) => {
                self.lose(Loss::NotHeld);
                Err(None)
            }
            Err(fault) => Err(Some(fault)),
        }
    }

    /// Returns true if `grant` is not the one of this hold or its predecessors in this process.
    fn is_another(&self, grant: &Grant) -> bool {
        let number = |token: FencingToken| token.backend_number();
        grant.token.is_some() && grant.token.map(number) != self.token.map(number)
    }

    /// Schedules a renewal after one that was not sent, or not answered.
    pub(crate) fn renew_again_soon(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if !self.is_to_be_renewed(&state) {
                return;
            }
            let pause = state.interval / 4;
            state.next_renewal = Some(Moment::now() + entropy::between(pause / 2, pause));
        }
        self.reschedule();
    }

    /// Schedules a renewal after one that failed, or whose task has panicked.
    fn renew_if_unanswered(self: &Arc<Self>) {
        if self.state().next_renewal.is_none() {
            self.renew_again_soon();
        }
    }

    /// Schedules a renewal at once, after a push. If one is under way, the backend pushes again.
    pub(crate) fn renew_at_once(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.next_renewal.is_none() || !self.is_to_be_renewed(&state) {
                return;
            }
            state.next_renewal = Some(Moment::now());
        }
        self.reschedule();
    }

    /// Returns true if the lock is to be renewed: by its policy, or because its lease ends before
    /// the time that was asked for.
    pub(crate) fn needs_renewals(&self) -> bool {
        self.is_to_be_renewed(&self.state())
    }

    fn is_to_be_renewed(&self, state: &HoldState) -> bool {
        let falls_short = state.deadline.is_some() && state.deadline < state.asked_until;
        !state.refused && (falls_short || !self.policy.renewal.is_off())
    }

    /// Applies a grant that has arrived by `now`.
    fn extend_to(self: &Arc<Self>, grant: &Grant, asked: Option<Duration>, now: Moment) {
        let limit = self.policy.renewal.limit().map(|limit| self.holder.granted_at + limit);
        let mut state = self.state();
        if let Some(ttl) = asked {
            let asked = Grant::new(Lease::For(ttl), grant.since);
            let until = Self::deadline_of_lease(&self.engine, &asked);
            let granted = Self::deadline_of_lease(&self.engine, grant);
            state.asked_until = state.asked_until.max(until).max(granted);
        }
        match grant.lease {
            Lease::For(lease) => {
                let deadline = Self::deadline_of_lease(&self.engine, grant);
                state.deadline = state.deadline.max(deadline);
                let ends = Some(grant.since + lease);
                if ends > state.lease_ends {
                    (state.leased_at, state.lease_ends) = (grant.since, ends);
                }
                let expires_by = now + lease + self.engine.margin(lease);
                state.expires_by = state.expires_by.max(Some(expires_by));
                // Bounded below, however short the leases that the backend grants.
                state.interval = sensible((lease / 3).max((self.ttl / 100).min(HASTE)));
            }
            // No lease expires: the ttl is only the period of the backend's checks.
            Lease::WhileProcessLives => {
                state.leased_at = grant.since;
                state.interval = sensible(self.ttl / 3);
                state.deadline = state.asked_until.filter(|_| self.policy.renewal.is_off());
            }
        }
        if self.policy.renewal.is_off() && state.deadline.is_some() {
            state.deadline = state.deadline.min(state.asked_until);
        }
        if let Some(limit) = limit {
            state.deadline = Some(state.deadline.map_or(limit, |deadline| deadline.min(limit)));
            state.asked_until = state.asked_until.min(Some(limit));
        }
        if self.is_to_be_renewed(&state) {
            state.next_renewal = Some(grant.since + state.interval);
        }
        drop(state);
        self.reschedule();
    }

    /// Returns true, once, when the hold is to be watched for its loss from now on.
    pub(super) fn starts_watch(&self, now: Moment) -> bool {
        now >= self.watched_from() && std::mem::take(&mut self.state().unwatched)
    }

    /// Returns true if the lock is to be renewed now: then the caller renews it.
    pub(super) fn starts_renewal(self: &Arc<Self>, now: Moment) -> bool {
        let due = self.state().next_renewal.is_some_and(|due| due <= now);
        if due {
            self.state().next_renewal = None;
            if self.policy.renewal.allows() {
                return true;
            }
            self.state().refused = true;
            if self.deadline().is_none() {
                // Without a lease that could end, this is the end.
                self.lose(Loss::Expired);
            }
        }
        false
    }

    /// Returns the moment of the next work. There always is one: the renewer ends all its holds
    /// when its runtime ends.
    pub(crate) fn next_check(&self) -> Moment {
        let state = self.state();
        let listening = state.unwatched.then(|| self.watched_from());
        let deadline = state.deadline.map(|at| within_limit(at, self.limit.as_ref()));
        let next = earlier(earlier(state.next_renewal, deadline), listening);
        next.unwrap_or_else(|| Moment::now() + IDLE)
    }

    /// Returns when the watch for a loss starts: at once after a push, since the claim listened
    /// until then.
    fn watched_from(&self) -> Moment {
        let after = if self.holder.pushed { Duration::ZERO } else { WATCHED_AFTER };
        self.holder.granted_at + after
    }

    /// Updates the schedule with the next work of this hold.
    fn reschedule(self: &Arc<Self>) {
        {
            let mut state = self.state();
            // Kept aligned: a renewal that is checked on the grid must be due on the grid.
            let interval = state.interval;
            state.next_renewal =
                state.next_renewal.map(|at| self.engine.schedule.align(at, interval));
        }
        self.engine.schedule.update(self);
    }

    /// Replaces the slot of this hold. Only the schedule calls it, under its own lock.
    pub(crate) fn swap_slot(&self, slot: Option<(Moment, u64)>) -> Option<(Moment, u64)> {
        std::mem::replace(&mut self.state().slot, slot)
    }

    fn reason_at_deadline(&self) -> Loss {
        match self.policy.renewal.limit() {
            Some(limit) if (self.holder.granted_at + limit).has_passed() => Loss::HoldLimit,
            _ => Loss::Expired,
        }
    }

    fn state(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name)
            .field("owner", &self.holder.owner)
            .field("token", &self.token)
            .field("ended", &self.ended.get())
            .finish_non_exhaustive()
    }
}

fn within_limit(deadline: Moment, limit: Option<&LeaseLimit>) -> Moment {
    limit.map_or(deadline, |limit| deadline.min(limit.at()))
}

fn sensible(interval: Duration) -> Duration {
    interval.clamp(Duration::from_millis(1), IDLE)
}

/// The least rest of a lease that is returned to a caller, unless the ttl is short. Sessions may be
/// much shorter than a ttl, so a part of the ttl alone would refuse their leases.
const LEAST_LEFT: Duration = Duration::from_millis(100);

/// From one renewal to the next, at least, unless the ttl is short itself.
const HASTE: Duration = Duration::from_millis(100);

/// From one check of a hold that needs none to the next.
const IDLE: Duration = Duration::from_secs(24 * 3600);

fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

pub(crate) fn too_slow() -> Error {
    Error::from_fault(Fault::unknown(
        FaultKind::TimedOut,
        "the answer arrived when its lease had ended, or nearly so; ask for a longer ttl",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process may hold a hundred thousand locks.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_hold_is_small() {
        let hold = size_of::<Hold>();
        let claim_state = size_of::<tokio::sync::Mutex<ClaimState>>();
        assert!(hold + claim_state <= 456, "{hold} and {claim_state} bytes");
    }
}
