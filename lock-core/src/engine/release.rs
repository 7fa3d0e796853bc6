//! The end of a claim. Every claim that may have left something on the backend ends in
//! [`PendingRelease`]; there is no second clean-up path.

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;
use tracing::{Instrument, Span};

use super::backoff::{Backoff, jittered_up_to};
use super::hold::{ClaimState, Engine, Head, Hold};
use super::shared::{MAX_RELEASES, SharedEngine};
use crate::backend::{Claim, Effect, Fault, QUEUE_ENTRY_GRACE, Release, ReleaseMode, Takeover};
use crate::clock::{Moment, sleep, sleep_until};
use crate::entropy;
use crate::loss::Loss;
use crate::metrics::{Class, ReleaseResult};
use crate::token::FencingToken;

/// The length of a turn while releases fail or hang and many are to be repeated: with
/// [`MAX_RELEASES`] turns at a time, about 170 calls a second.
const RELEASE_TURN: Duration = Duration::from_millis(500);

/// A release that is not answered is repeated that often at least, until the lease is over.
const LONGEST_RELEASE_PAUSE: Duration = Duration::from_secs(60);

/// The same while `close` waits.
const LONGEST_CLOSING_PAUSE: Duration = Duration::from_millis(100);

/// The residue that a claim may have left on the backend.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Residue {
    /// A queue entry, or a grant.
    pub(super) left: bool,
    /// An attempt without answer, which may still land.
    pub(super) late_attempt: bool,
}

/// The release of a claim.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    engine: Arc<Engine>,
    target: ReleaseTarget,
    keep_until: Option<Moment>,
    /// The end of [`release_with_timeout`](Self::release_with_timeout).
    timeout_at: Moment,
    /// From then on the claim has expired on the backend.
    expires_at: Moment,
    has_leases: bool,
    /// The server keeps the lock for as long as the session goes on, also beyond the lease.
    in_session: bool,
    /// A release has not been answered.
    outcome_unknown: bool,
    /// Its holder got `Ok` for the release already.
    already_reported: bool,
    /// The metrics count it: it ends a hold that was not lost.
    is_counted: bool,
}

#[derive(Debug)]
enum ReleaseTarget {
    Hold(Arc<Hold>, OwnedMutexGuard<ClaimState>),
    Claim(ClaimState, Option<Head>),
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    NotHeld,
    /// Not there any more; the cause is unknown.
    Gone,
}

impl PendingRelease {
    /// Starts the release of a hold that has ended, after the verb that is under way.
    pub(crate) async fn of(hold: &Arc<Hold>, keep_until: Option<Moment>) -> Self {
        let claim_state = Arc::clone(&hold.claim_state).lock_owned().await;
        let now = Moment::now();
        if hold.ended.get() == Some(&Loss::Released) {
            hold.record_duration(|| now);
        }
        Self::of_hold(hold, claim_state, keep_until, now)
    }

    pub(crate) fn of_hold(
        hold: &Arc<Hold>,
        claim_state: OwnedMutexGuard<ClaimState>,
        keep_until: Option<Moment>,
        now: Moment,
    ) -> Self {
        let engine = Arc::clone(&hold.engine);
        let timeout_at = now + engine.settings.timeout;
        let ends = hold.expires_by().max(claim_state.latest_expiry).max(keep_until);
        Self {
            engine,
            target: ReleaseTarget::Hold(Arc::clone(hold), claim_state),
            keep_until,
            timeout_at,
            expires_at: ends.map_or(timeout_at, |ends| ends.max(timeout_at)),
            has_leases: hold.lease_ends().is_some(),
            in_session: hold.is_in_session(),
            outcome_unknown: false,
            already_reported: false,
            is_counted: hold.ended.get() == Some(&Loss::Released),
        }
    }

    pub(super) fn of_claim(
        engine: &Arc<Engine>,
        claim: Claim,
        residue: Residue,
        head: Option<Head>,
        class: Class,
    ) -> Self {
        // The last attempt was sent before now, and lands within the bound of a call or never.
        let arrives_by = Moment::now() + engine.settings.timeout;
        let expires_at = match claim.queues() && engine.has_server_queue {
            true => arrives_by + claim.ttl + claim.ttl + QUEUE_ENTRY_GRACE,
            false => arrives_by + claim.ttl,
        };
        let claim_state = ClaimState::new(claim, residue.late_attempt, class);
        Self {
            engine: Arc::clone(engine),
            target: ReleaseTarget::Claim(claim_state, head),
            keep_until: None,
            timeout_at: arrives_by,
            expires_at,
            has_leases: true,
            in_session: false,
            outcome_unknown: false,
            already_reported: false,
            is_counted: false,
        }
    }

    /// Starts the release of a claim of which only the owner is known. Its lease may end at any
    /// time, and an attempt of it may still arrive.
    pub(crate) fn of_detached(engine: &Arc<Engine>, claim: Claim, class: Class) -> Self {
        let arrives_by = Moment::now() + engine.settings.timeout;
        let expires_at = arrives_by + claim.ttl;
        let claim_state = ClaimState::new(claim, true, class);
        Self {
            engine: Arc::clone(engine),
            target: ReleaseTarget::Claim(claim_state, None),
            keep_until: None,
            timeout_at: arrives_by,
            expires_at,
            has_leases: false,
            in_session: false,
            outcome_unknown: false,
            already_reported: false,
            is_counted: true,
        }
    }

    /// Sends one release.
    pub(crate) async fn release_once(&mut self, limit: Duration) -> Result<ReleaseOutcome, Fault> {
        let keep = self.keep_until.map(Moment::remaining).filter(|keep| !keep.is_zero());
        let ClaimState { claim, late_attempt, .. } = self.target.get();
        let how = ReleaseMode { late_attempt: (*late_attempt).into(), keep };
        let span = tracing::debug_span!(
            "release",
            lock.name = claim.name.as_str(),
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            lock.outcome = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
        );
        self.target.note_request();
        let verb = async { self.engine.backend.release(claim, how).await };
        let answer = self.engine.call(limit, verb).instrument(span.clone()).await;
        let outcome = match answer {
            Ok(Release::Released) => Ok(ReleaseOutcome::Released),
            Ok(Release::NotHeld) if self.outcome_unknown => Ok(ReleaseOutcome::Gone),
            Ok(Release::NotHeld) => {
                if self.already_reported {
                    self.warn_lost();
                }
                Ok(ReleaseOutcome::NotHeld)
            }
            Err(fault) => {
                self.outcome_unknown |= fault.effect() == Effect::Unknown;
                Err(fault)
            }
        };
        self.record(&span, &outcome);
        // The next local waiter does not wait for the retries.
        self.target.leave_queue();
        outcome
    }

    fn record(&self, span: &Span, outcome: &Result<ReleaseOutcome, Fault>) {
        let released = match outcome {
            Ok(ReleaseOutcome::Released) => ReleaseResult::Released,
            Ok(ReleaseOutcome::NotHeld) => ReleaseResult::NotHeld,
            Ok(ReleaseOutcome::Gone) => ReleaseResult::Gone,
            Err(fault) if fault.effect() == Effect::Unknown => ReleaseResult::Unknown,
            Err(_) => ReleaseResult::Failed,
        };
        span.record("lock.outcome", released.as_str());
        self.count(released);
        if let Err(fault) = outcome {
            span.record("otel.status_code", "ERROR");
            self.engine.metrics.release_failed(self.target.get().class, fault);
        }
    }

    fn count(&self, outcome: ReleaseResult) {
        if self.is_counted {
            self.engine.metrics.released(self.target.get().class, outcome);
        }
    }

    /// Repeats the release until it is answered, within the timeout of a call.
    pub(crate) async fn release_with_timeout(&mut self) -> Result<ReleaseOutcome, Fault> {
        let mut limit = self.engine.settings.timeout;
        let mut backoff = Backoff::default();
        loop {
            let fault = match self.release_once(limit).await {
                Ok(outcome) => return Ok(outcome),
                Err(fault) => fault,
            };
            let pause = backoff.next_outage_pause();
            if !fault.is_transient() || pause >= self.timeout_at.remaining() {
                return Err(fault);
            }
            Box::pin(sleep(pause)).await;
            limit = self.timeout_at.remaining().max(Duration::from_millis(1));
        }
    }

    /// Repeats the release until it is answered, or the claim has expired.
    pub(crate) async fn release_until_expiry(mut self) {
        let mut attempts = 0;
        // The first release of a held lock waits for no other. After an outage, thousands may be
        // lost at once; their leases are over.
        let first = match self.is_lost() {
            false => Some(self.release_once(self.engine.settings.timeout).await),
            true => None,
        };
        let _repeated = Arc::clone(&self.engine.repeated_releases);
        let mut answer = match first {
            Some(answer) => answer,
            None => self.release_in_turn().await,
        };
        while let Err(fault) = answer {
            if self.expires_at.has_passed() {
                let claim = &self.target.get().claim;
                tracing::warn!(
                    lock.name = claim.name.as_str(),
                    lock.backend = self.engine.caps.backend,
                    lock.owner = %claim.owner.short(),
                    lock.error = %fault,
                    lock.error_source = fault.source().map(tracing::field::display),
                    "release not confirmed"
                );
                self.count(ReleaseResult::Unconfirmed);
                return;
            }
            attempts += 1;
            self.pause(attempts).await;
            answer = self.release_in_turn().await;
        }
    }

    /// Pauses before the release is repeated, and not for long while `close` waits for it.
    async fn pause(&self, attempts: u32) {
        let SharedEngine { closing, settings, .. } = &*self.engine;
        let closed_at = closing.get().copied();
        let longest = match closed_at {
            Some(at) if !(at + settings.timeout).has_passed() => LONGEST_CLOSING_PAUSE,
            _ => {
                let tenth = self.target.get().claim.ttl / 10;
                tenth.clamp(Backoff::LONGEST, LONGEST_RELEASE_PAUSE)
            }
        };
        tokio::select! {
            biased;
            () = sleep(jittered_up_to(longest, Duration::from_millis(10), attempts)) => {}
            _ = closing.wait(), if closed_at.is_none() => {}
        }
    }

    /// Repeats a release, at a bounded rate: after an outage there may be thousands. A call that
    /// hangs gives its turn to another one.
    async fn release_in_turn(&mut self) -> Result<ReleaseOutcome, Fault> {
        let engine = Arc::clone(&self.engine);
        let turn = engine.release_turns.acquire().await;
        let mut turn_ends = pin!(sleep(entropy::between(RELEASE_TURN / 2, RELEASE_TURN)));
        let mut call = pin!(self.release_once(engine.settings.timeout));
        tokio::select! {
            biased;
            answer = &mut call => {
                let others_wait = Arc::strong_count(&engine.repeated_releases) > MAX_RELEASES;
                if answer.is_err() && others_wait {
                    // They will fare no better: slowly.
                    turn_ends.await;
                }
                return answer;
            }
            () = &mut turn_ends => drop(turn),
        }
        call.await
    }

    fn is_lost(&self) -> bool {
        match &self.target {
            ReleaseTarget::Hold(hold, _) => hold.ended.get() != Some(&Loss::Released),
            ReleaseTarget::Claim(..) => false,
        }
    }

    /// Marks the release of a hand-over, whose former holder got `Ok` already.
    pub(crate) fn already_reported(mut self) -> Self {
        self.already_reported = true;
        self
    }

    /// Logs that a lock was left to the next waiter of its process, and had been lost by then.
    fn warn_lost(&self) {
        let claim = &self.target.get().claim;
        tracing::warn!(
            lock.name = claim.name.as_str(),
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            "released after a loss"
        );
    }

    /// Returns how soon another client can hold the lock, after a release that failed by `fault`.
    /// `None` if no bound is known: there is no lease, or the session goes on and its server
    /// refuses to let the lock go.
    pub(crate) fn free_within(&self, fault: &Fault) -> Option<Duration> {
        let expires = self.has_leases && (fault.is_transient() || !self.in_session);
        expires.then(|| match self.engine.caps.takeover {
            Takeover::LeasePlus(more) => self.expires_at.remaining() + more,
            Takeover::AtOnce => self.expires_at.remaining(),
        })
    }
}

impl Drop for PendingRelease {
    /// Drops the ticket: no request follows for this claim, whether it was answered or its runtime
    /// is gone.
    fn drop(&mut self) {
        self.target.leave_queue();
        self.target.forget_ticket();
    }
}

impl ReleaseTarget {
    fn get(&self) -> &ClaimState {
        match self {
            Self::Hold(_, claim_state) => claim_state,
            Self::Claim(claim_state, _) => claim_state,
        }
    }

    /// Notifies the local waiters that an answer is awaited from now on.
    fn note_request(&self) {
        match self {
            Self::Hold(hold, _) => hold.note_request(),
            Self::Claim(_, Some(head)) => head.set_unanswered_since(Some(Moment::now())),
            Self::Claim(_, None) => {}
        }
    }

    fn leave_queue(&mut self) {
        match self {
            Self::Hold(hold, _) => hold.leave_queue(),
            Self::Claim(_, head) => *head = None,
        }
    }

    fn forget_ticket(&mut self) {
        match self {
            Self::Hold(_, claim_state) => claim_state.claim.ticket = None,
            Self::Claim(claim_state, _) => claim_state.claim.ticket = None,
        }
    }
}

impl Hold {
    /// Ends the hold as lost and releases the claim in the background: at once if the lock is not
    /// ours any more, otherwise after the margin in which the holder is notified. The first reason
    /// stays.
    pub(crate) fn lose(self: &Arc<Self>, loss: Loss) {
        if self.end(loss) {
            let from = Moment::now();
            self.engine.metrics.lost(self.class, loss);
            self.record_duration(|| from);
            let left = self.deadline().map(|deadline| deadline.saturating_since(from));
            tracing::warn!(
                lock.name = self.name.as_str(),
                lock.backend = self.engine.caps.backend,
                lock.owner = %self.holder.owner.short(),
                lock.token = self.token.map(FencingToken::as_i64),
                lock.cause = loss.as_str(),
                lock.reason = %loss,
                lock.lease_left = left.map(|left| left.as_secs_f64()),
                "lost"
            );
            if let Some(head) = &*self.head() {
                head.set_unknown();
            }
            let ending = ReleaseOnDrop(Arc::clone(self));
            self.engine.spawn(async move {
                if loss != Loss::NotHeld {
                    ending.0.let_holder_learn(from).await;
                }
                let keep_until = ending.0.kept_by_server_until();
                PendingRelease::of(&ending.0, keep_until).await.release_until_expiry().await;
            });
        }
    }

    /// Releases the claim in the background.
    pub(crate) fn release_in_background(self: &Arc<Self>) {
        let ending = ReleaseOnDrop::begin(self);
        self.engine.spawn(async move {
            if let Some(release) = ending.ended().await {
                release.release_until_expiry().await;
            }
        });
    }
}

/// A hold that ends. When it is dropped, also unpolled by a runtime that shuts down, it drops the
/// ticket and leaves the queue, and does not leave them to guards and signals.
pub(crate) struct ReleaseOnDrop(pub(crate) Arc<Hold>);

impl ReleaseOnDrop {
    /// Ends a hold that is not lost: now, so that no later event makes it a loss; or at the end of
    /// the minimum hold, where the backend cannot keep it.
    pub(crate) fn begin(hold: &Arc<Hold>) -> Self {
        if hold.kept_here_until().is_none() {
            hold.end(Loss::Released);
        }
        Self(Arc::clone(hold))
    }

    /// Waits until the hold has ended. Returns `None` if it was lost meanwhile: then the loss
    /// releases it.
    pub(crate) async fn ended(&self) -> Option<PendingRelease> {
        let hold = &self.0;
        if hold.ended.get().is_none() {
            if let Some(until) = hold.kept_here_until() {
                // Renewed meanwhile, unless it is lost. Seldom, so it takes no room in each
                // release.
                let kept = async {
                    tokio::select! {
                        biased;
                        () = sleep_until(until) => {}
                        _ = hold.ended.wait() => {}
                    }
                };
                Box::pin(kept).await;
            }
            if hold.loss().is_none() {
                hold.end(Loss::Released);
            }
        }
        match hold.ended.get() {
            Some(Loss::Released) => {
                Some(PendingRelease::of(hold, hold.kept_by_server_until()).await)
            }
            _ => None,
        }
    }
}

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.leave_queue();
        self.0.abandon();
    }
}
