//! The life of a claim: win, hold, let go. Every claim that may have left something on the backend
//! ends in [`PendingRelease`]; there is no second clean-up path.

use std::error::Error as _;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard, OwnedSemaphorePermit, SetOnce};
use tracing::Instrument;

use crate::backend::{
    Attempt, Claim, Effect, Fault, FaultKind, Grant, HoldKind, Lease, QUEUE_ENTRY_GRACE, Release,
    ReleaseMode, Wake,
};
use crate::capabilities::{Fencing, Order, Takeover};
use crate::clock::{Moment, sleep, sleep_until};
use crate::engine::{Engine, MAX_RELEASES, unpanicking};
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::guard::LockGuard;
use crate::handover::{HandoverKey, TakenOver};
use crate::hold::{ClaimState, Hold, HoldPolicy, HolderInfo, Loss};
use crate::local_queue::{HeadStatus, QueueHead, QueueTicket};
use crate::owner::OwnerId;

/// Grants that arrive after their lease is over, within the outage_timeout of a waiter, before it gives up.
const MAX_STALE_GRANTS: usize = 3;

/// What a caller and the seeker that works for it tell each other.
#[derive(Debug, Default)]
pub(crate) struct WaitProgress {
    /// Set when nobody waits for the result any more.
    pub(crate) gone: Arc<SetOnce<()>>,
    state: Mutex<ProgressState>,
    /// Notifies of each change of the progress.
    changed: Notify,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// The line that the claim waits in, behind a neighbour in this process.
    queue: Option<QueueTicket>,
    /// When the attempt was sent that has no answer yet.
    unanswered_since: Option<Moment>,
    /// The backend has answered the first attempt, by whatever.
    answered: bool,
    /// The fault that keeps a waiter from being served; `None` while it is contention.
    outage: Option<Error>,
}

/// How a bounded wait ends without the lock.
enum WaitOutcome {
    Contended,
    Failed(Error),
    /// What was sent then has to be answered first; without an answer, it is this error.
    Unknown {
        since: Moment,
        unanswered: Error,
    },
}

impl WaitProgress {
    /// Says how a wait ends that is over: `Ok` if it is contention. If the backend has not answered
    /// anything yet, it gets as long as any call gets, so that even the shortest wait is one whole
    /// attempt; and silence is no contention.
    pub(crate) async fn finish_wait(&self, timeout: Duration) -> Result<(), Error> {
        let mut limit = None;
        loop {
            let queue = self.state().queue.as_ref().map(QueueTicket::reissue);
            // Before the verdict: no change is missed.
            let changed = self.changed.notified();
            let queue_changed = queue.as_ref().map(QueueTicket::head_changed);
            let (since, unanswered) = match self.outcome(timeout) {
                WaitOutcome::Contended => return Ok(()),
                WaitOutcome::Failed(error) => return Err(error),
                WaitOutcome::Unknown { since, unanswered } => (since, unanswered),
            };
            let limit = *limit.get_or_insert(since + timeout);
            tokio::select! {
                biased;
                () = changed => {}
                Some(()) = async { queue_changed?.await; Some(()) } => {}
                () = sleep_until(limit) => return Err(unanswered),
            }
        }
    }

    fn outcome(&self, timeout: Duration) -> WaitOutcome {
        let state = self.state();
        if let Some(queue) = &state.queue {
            // Nothing was sent for this one.
            let not_sent = |error: Error| error.applied(Effect::NotApplied);
            return match queue.head_status() {
                (HeadStatus::Outage(_, error), _) => WaitOutcome::Failed(not_sent(error)),
                (HeadStatus::Unknown, since) => WaitOutcome::Unknown {
                    since: since.unwrap_or_else(Moment::now),
                    unanswered: not_sent(unanswered()),
                },
                (_, Some(since)) if is_silent(since, timeout) => {
                    WaitOutcome::Failed(not_sent(unanswered()))
                }
                (HeadStatus::Held | HeadStatus::Contended, _) => WaitOutcome::Contended,
            };
        }
        match (state.unanswered_since, &state.outage) {
            (_, Some(error)) => WaitOutcome::Failed(error.clone()),
            (Some(since), None) if !state.answered => {
                WaitOutcome::Unknown { since, unanswered: unanswered() }
            }
            (Some(since), None) if is_silent(since, timeout) => WaitOutcome::Failed(unanswered()),
            (_, None) => WaitOutcome::Contended,
        }
    }

    fn set_queue(&self, queue: Option<QueueTicket>) {
        let before = self.update(|state| std::mem::replace(&mut state.queue, queue));
        // Outside of the lock on the progress.
        drop(before);
    }

    fn set_unanswered_since(&self, since: Option<Moment>) {
        self.update(|state| state.unanswered_since = since);
    }

    /// An attempt was answered. True if it was the first one.
    fn record_answer(&self) -> bool {
        self.update(|state| !std::mem::replace(&mut state.answered, true))
    }

    fn set_outage(&self, outage: Option<Error>) {
        self.update(|state| state.outage = outage);
    }

    fn update<T>(&self, change: impl FnOnce(&mut ProgressState) -> T) -> T {
        let result = change(&mut self.state());
        self.changed.notify_waiters();
        result
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim on its way to a grant.
pub(crate) struct Acquisition {
    engine: Arc<Engine>,
    claim: Claim,
    policy: Arc<HoldPolicy>,
    progress: Arc<WaitProgress>,
    waits: bool,
    was_queued: bool,
    /// The backend handed the lock over while the claim waited.
    pushed: bool,
    _pending: OwnedSemaphorePermit,
    head: Option<QueueHead>,
    residue: Residue,
}

/// What a claim may have left on the backend.
#[derive(Clone, Copy, Debug, Default)]
struct Residue {
    /// A place in line, or a grant.
    left: bool,
    /// An attempt without answer, which may still land.
    late_attempt: bool,
}

impl Acquisition {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        policy: Arc<HoldPolicy>,
        progress: Arc<WaitProgress>,
        waits: bool,
        pending: OwnedSemaphorePermit,
    ) -> Self {
        let (head, residue) = (None, Residue::default());
        Self {
            engine,
            claim,
            policy,
            progress,
            waits,
            was_queued: false,
            pushed: false,
            _pending: pending,
            head,
            residue,
        }
    }

    /// Until the lock is won; `None` if it is held by somebody else and the claim does not wait.
    /// [`finish`](Self::finish) has to follow.
    ///
    /// Most claims are granted by their first attempt. What only the others await is boxed when they do: it would be
    /// the larger part of this future, which is made, and moved, for each acquisition.
    pub(crate) async fn run(&mut self) -> Result<Option<Acquired>, Error> {
        if !self.enter_local_queue().await? {
            return Ok(None);
        }
        match self.take_over().await {
            Some(taken_over) => Ok(Some(Acquired::HandedOver(taken_over))),
            None => Ok(self.acquire_from_backend().await?.map(Acquired::Granted)),
        }
    }

    /// Makes a guard of a lock that was won, and lets go of everything else.
    pub(crate) fn finish(
        mut self,
        acquired: Result<Option<Acquired>, Error>,
    ) -> Result<Option<LockGuard>, Error> {
        // The guard is dropped at once. No caller had it, so it has no minimum hold to keep.
        if self.progress.gone.initialized() {
            self.policy = Arc::clone(&self.engine.default_policy);
        }
        match acquired {
            Ok(Some(acquired)) => Ok(Some(self.into_guard(acquired))),
            Ok(None) => {
                self.discard();
                Ok(None)
            }
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// Inside one process, first come, first served. A backend with a line of its own keeps all of
    /// them in order, so all of them may go there, unless locks are handed over here. False if there is
    /// nothing left to do.
    async fn enter_local_queue(&mut self) -> Result<bool, Error> {
        if self.engine.caps.order == Order::Fifo {
            return Ok(true);
        }
        let ticket = match self.engine.queues.ticket(&self.claim.name).try_become_head() {
            Ok(head) => {
                self.head = Some(head);
                return Ok(true);
            }
            Err(ticket) => ticket,
        };
        if !self.waits {
            // A neighbour that holds the lock is contention. One that is only trying proves
            // nothing, nor does one whose release is not answered: the backend is asked.
            let timeout = self.engine.settings.timeout;
            let is_held = match ticket.head_status() {
                (HeadStatus::Held, since) => since.is_none_or(|since| !is_silent(since, timeout)),
                _ => false,
            };
            return Ok(!is_held);
        }
        Box::pin(self.wait_in_local_queue(ticket)).await
    }

    async fn wait_in_local_queue(&mut self, ticket: QueueTicket) -> Result<bool, Error> {
        self.was_queued = true;
        self.progress.set_queue(Some(ticket.reissue()));
        let entered = tokio::select! {
            biased;
            _ = self.engine.closing.wait() => Err(closed()),
            _ = self.progress.gone.wait() => Ok(false),
            head = ticket.become_head(HandoverKey::of(&self.claim)) => {
                self.head = Some(head);
                Ok(true)
            }
        };
        self.progress.set_queue(None);
        entered
    }

    /// What the holder before in this process has left to who comes next. If that is of no use to this
    /// claim, it is given back first: who competes with the own process waits for nothing.
    async fn take_over(&mut self) -> Option<Box<TakenOver>> {
        let mut handover = self.head.as_ref()?.take_handover()?;
        let taken_over = handover.accept(&self.claim).map(Box::new);
        if let Some(release) = handover.into_release() {
            // Silence here is no contention: no attempt was made yet.
            self.set_unanswered_since(Some(Moment::now()));
            Box::pin(self.release_first(release)).await;
            self.set_unanswered_since(None);
        }
        taken_over
    }

    async fn acquire_from_backend(&mut self) -> Result<Option<Grant>, Error> {
        let mut backoff = Backoff::default();
        let mut stale_grants = Vec::new();
        let mut outage_since = None;
        loop {
            let started = Moment::now();
            let (answer, first) = self.attempt(started).await;
            if answer.is_ok() {
                outage_since = None;
                backoff.reset_outages();
                self.progress.set_outage(None);
            }
            let next = match answer {
                Ok(Attempt::Acquired(grant)) => Next::Granted(grant),
                Ok(Attempt::Contended { expires_in }) => {
                    if let Some(head) = &self.head {
                        head.set_contended();
                    }
                    if !self.waits {
                        return Ok(None);
                    }
                    self.residue.left |= self.claim.queues();
                    Box::pin(self.wait(expires_in, &mut backoff)).await?
                }
                Err(fault) => {
                    // A newcomer is told at once; who has waited goes on waiting.
                    let waiting = self.waits && (!first || self.was_queued);
                    let may_wait = waiting && fault.is_transient();
                    let error = Error::from_fault(fault);
                    // The outage_timeout of a line is one, however many stand in it.
                    let since = match &self.head {
                        Some(head) => head.record_outage(started, &error),
                        None => *outage_since.get_or_insert(started),
                    };
                    if !may_wait || (since + self.engine.settings.outage_timeout).has_passed() {
                        return Err(error);
                    }
                    tracing::debug!(lock.name = %self.claim.name, lock.error = %error, "waiting through an outage");
                    self.progress.set_outage(Some(error));
                    Box::pin(self.pause(backoff.next_outage_pause())).await?
                }
            };
            let grant = match next {
                Next::GiveUp => return Ok(None),
                Next::Retry => continue,
                // The next attempt is the same acquisition, and confirms it with the whole lease.
                Next::Pushed(grant) if self.needs_confirmation(&grant) => {
                    self.residue.left = true;
                    continue;
                }
                Next::Pushed(grant) => {
                    self.pushed = true;
                    grant
                }
                Next::Granted(grant) => grant,
            };
            self.residue.left = true;
            self.claim.ticket.clone_from(&grant.ticket);
            if Hold::leaves_enough(&self.engine, &grant, self.claim.ttl) {
                self.check_token(&grant)?;
                return Ok(Some(grant));
            }
            stale_grants
                .retain(|at: &Moment| !(*at + self.engine.settings.outage_timeout).has_passed());
            stale_grants.push(Moment::now());
            if self.waits && stale_grants.len() == 1 && self.is_in_force(&grant) {
                // The same acquisition, asked for once more, keeps the lock and has the whole lease.
                continue;
            }
            self.progress.set_outage(Some(too_slow()));
            Box::pin(self.restart_as_new_owner()).await;
            if !self.waits || stale_grants.len() == MAX_STALE_GRANTS {
                return Err(too_slow());
            }
        }
    }

    /// One attempt; and whether it was the first one.
    async fn attempt(&mut self, started: Moment) -> (Result<Attempt, Fault>, bool) {
        self.set_unanswered_since(Some(started));
        let verb = async { self.engine.backend.try_acquire(&self.claim).await };
        let answer = self.engine.call(self.engine.settings.timeout, verb).await;
        self.set_unanswered_since(None);
        let first = self.progress.record_answer();
        if answer.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown) {
            self.residue = Residue { left: true, late_attempt: true };
        }
        (answer, first)
    }

    /// Tells the caller, and those behind this one in its process, since when an answer is awaited.
    fn set_unanswered_since(&self, since: Option<Moment>) {
        self.progress.set_unanswered_since(since);
        if let Some(head) = &self.head {
            head.set_unanswered_since(since);
        }
    }

    /// Waits for a signal, and looks by itself when the holder's lease ends, or after a lease, or earlier:
    /// a signal may have been lost.
    async fn wait(
        &mut self,
        expires_in: Option<Duration>,
        backoff: &mut Backoff,
    ) -> Result<Next, Error> {
        let span = tracing::debug_span!(
            "wait",
            lock.name = %self.claim.name,
            lock.backend = self.engine.caps.backend,
            lock.owner = %self.claim.owner.short(),
        );
        backoff.note_expiry(expires_in);
        let at_most = self.claim.ttl.min(self.engine.recheck_every());
        let recheck = expires_in.map_or(at_most, |expires_in| expires_in.min(at_most));
        let jitter = entropy::between(Duration::from_millis(1), RECHECK_JITTER.min(at_most / 10));
        let recheck = recheck + jitter + backoff.before_recheck(recheck);
        let began = Moment::now();
        let woken = async {
            tokio::select! {
                biased;
                _ = self.engine.closing.wait() => Err(closed()),
                _ = self.progress.gone.wait() => Ok(Next::GiveUp),
                // Bounded by the sleep below.
                wake = unpanicking(async { self.engine.backend.wait(&self.claim).await }) => match wake {
                    Ok(Wake::Granted(grant)) => Ok(Next::Pushed(grant)),
                    Ok(Wake::Retry) => Ok(Next::Retry),
                    // The attempt that follows tells whether something is wrong.
                    Err(_) => self.pause(backoff.next_failed_wait_pause().min(recheck)).await,
                },
                () = sleep(recheck) => Ok(Next::Retry),
            }
        }
        .instrument(span)
        .await?;
        match woken {
            Next::Retry => match backoff.after_wait(Moment::now().saturating_since(began)) {
                Some(pause) => self.pause(pause).await,
                None => Ok(Next::Retry),
            },
            other => Ok(other),
        }
    }

    async fn pause(&self, duration: Duration) -> Result<Next, Error> {
        tokio::select! {
            biased;
            _ = self.engine.closing.wait() => Err(closed()),
            _ = self.progress.gone.wait() => Ok(Next::GiveUp),
            () = sleep(duration) => Ok(Next::Retry),
        }
    }

    fn is_in_force(&self, grant: &Grant) -> bool {
        Hold::deadline_of(&self.engine, grant).is_none_or(|deadline| !deadline.has_passed())
    }

    /// A grant that was pushed may have a short lease. The wheel renews it for as long as it was asked for,
    /// whatever the policy is; but a lock that is detached is nobody's to renew, so it has to have the
    /// whole lease before the guard is returned.
    fn needs_confirmation(&self, grant: &Grant) -> bool {
        let short = matches!(grant.lease, Lease::For(lease) if lease < self.claim.ttl);
        short && self.claim.hold == HoldKind::Detached
    }

    fn check_token(&self, grant: &Grant) -> Result<(), Error> {
        match grant.token {
            None if self.engine.caps.fencing == Fencing::None => Ok(()),
            None => Err(Error::new(
                ErrorKind::BackendBroken,
                "the backend declares fencing tokens and granted without one",
            )),
            Some(token) if self.engine.has_grown(&self.claim.name, token) => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::FenceRegressed,
                "the fencing token is lower than one seen before; did the backend lose its data?",
            )),
        }
    }

    /// Lets the claim go and goes on as a new owner.
    async fn restart_as_new_owner(&mut self) {
        let old = self.claim.clone();
        self.claim.owner = OwnerId::mint();
        self.claim.ticket = None;
        let residue = std::mem::take(&mut self.residue);
        self.release_first(PendingRelease::of_claim(self, old, residue, None)).await;
    }

    async fn release_first(&self, mut release: PendingRelease) {
        if release.release_once(self.engine.settings.timeout).await.is_err() {
            self.engine.spawn(release.release_until_expiry());
        }
    }

    fn discard(mut self) {
        if self.residue.left {
            let head = self.head.take();
            let release = PendingRelease::of_claim(&self, self.claim.clone(), self.residue, head);
            self.engine.spawn(release.release_until_expiry());
        }
    }

    fn into_guard(self, acquired: Acquired) -> LockGuard {
        if let Some(head) = &self.head {
            head.set_held();
        }
        let TakenOver { claim_state, grant, holder } = match acquired {
            Acquired::HandedOver(taken_over) => *taken_over,
            Acquired::Granted(grant) => {
                let holder =
                    HolderInfo { pushed: self.pushed, ..HolderInfo::first(self.claim.owner) };
                let claim_state = ClaimState::new(self.claim, self.residue.late_attempt);
                TakenOver { claim_state, grant, holder }
            }
        };
        let (engine, policy, head) = (self.engine, self.policy, self.head);
        LockGuard::new(Hold::new(engine, policy, claim_state, head, &grant, holder))
    }
}

/// A lock that is ours, from the backend or from the holder before in this process.
pub(crate) enum Acquired {
    Granted(Grant),
    HandedOver(Box<TakenOver>),
}

enum Next {
    Retry,
    Granted(Grant),
    Pushed(Grant),
    GiveUp,
}

const RECHECK_JITTER: Duration = Duration::from_millis(20);

/// What a turn lasts while releases fail or hang and many are to be repeated: with
/// [`MAX_RELEASES`] turns at a time, about 170 calls a second.
const RELEASE_TURN: Duration = Duration::from_millis(500);

/// A release that is not answered is repeated that often at least, until the lease is over.
const LONGEST_RELEASE_PAUSE: Duration = Duration::from_secs(60);

/// Jittered back-off: for outages, for waits that fail, and for waits that wake for nothing.
#[derive(Debug, Default)]
struct Backoff {
    outages: u32,
    failed_waits: u32,
    idle_wakes: u32,
    /// When the holder's lease ended, as told at the first of these wakes.
    expires_at: Option<Moment>,
    early_rechecks: u32,
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(1);
    const SHORT_WAIT: Duration = Duration::from_millis(5);
    /// What the end of one and the same lease may seem to move by, from look to look.
    const SAME: Duration = Duration::from_millis(10);
    const SOON: Duration = Duration::from_millis(50);
    const IDLE_WAKES_FOR_FREE: u32 = 8;

    /// The holder's lease ends then. Another end is another holder, or a renewal: whatever woke us was not
    /// for nothing, however often it comes.
    fn note_expiry(&mut self, expires_in: Option<Duration>) {
        let at = expires_in.map(|expires_in| Moment::now() + expires_in);
        let is_same = match (at, self.expires_at) {
            (Some(at), Some(before)) => at <= before + Self::SAME && before <= at + Self::SAME,
            (at, before) => at.is_some() == before.is_some(),
        };
        if !is_same {
            self.expires_at = at;
            self.idle_wakes = 0;
        }
    }

    /// The next pause while the backend fails.
    fn next_outage_pause(&mut self) -> Duration {
        self.outages += 1;
        jittered(Duration::from_millis(10), self.outages)
    }

    fn reset_outages(&mut self) {
        self.outages = 0;
    }

    /// The next pause while signals cannot be had.
    fn next_failed_wait_pause(&mut self) -> Duration {
        self.failed_waits += 1;
        jittered(Duration::from_millis(10), self.failed_waits)
    }

    /// What is added to a look that is due in `recheck`: nothing, unless the end of the lease was said
    /// to be near many times in a row and did not come.
    fn before_recheck(&mut self, recheck: Duration) -> Duration {
        if recheck > Self::SOON {
            self.early_rechecks = 0;
            return Duration::ZERO;
        }
        self.early_rechecks += 1;
        match self.early_rechecks.checked_sub(Self::IDLE_WAKES_FOR_FREE) {
            Some(excess) => jittered(Duration::from_millis(1), excess),
            None => Duration::ZERO,
        }
    }

    /// A pause after a wait that ended at once, many times in a row.
    fn after_wait(&mut self, waited: Duration) -> Option<Duration> {
        if waited > Self::SHORT_WAIT {
            self.idle_wakes = 0;
            self.failed_waits = 0;
            return None;
        }
        self.idle_wakes += 1;
        let excess = self.idle_wakes.checked_sub(Self::IDLE_WAKES_FOR_FREE)?;
        Some(jittered(Duration::from_millis(1), excess))
    }
}

fn jittered(first: Duration, doublings: u32) -> Duration {
    jittered_up_to(Backoff::LONGEST, first, doublings)
}

fn jittered_up_to(longest: Duration, first: Duration, doublings: u32) -> Duration {
    let pause = (first * 2_u32.pow(doublings.min(16))).min(longest);
    entropy::between(pause / 2, pause)
}

/// A claim on its way out.
#[derive(Debug)]
pub(crate) struct PendingRelease {
    engine: Arc<Engine>,
    target: ReleaseTarget,
    keep_until: Option<Moment>,
    /// Until then [`release_with_timeout`](Self::release_with_timeout) asks.
    timeout_at: Moment,
    /// From then on the backend has forgotten the claim by itself.
    expires_at: Moment,
    has_leases: bool,
    /// The server keeps the lock for as long as the session goes on, whatever the lease was.
    in_session: bool,
    /// A release went unanswered.
    outcome_unknown: bool,
    /// Whoever held it was told already that it is released.
    already_reported: bool,
}

#[derive(Debug)]
enum ReleaseTarget {
    Hold(Arc<Hold>, OwnedMutexGuard<ClaimState>),
    Claim(ClaimState, Option<QueueHead>),
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    Released,
    NotHeld,
    /// Not there any more, by whom is unknown.
    Gone,
}

impl PendingRelease {
    /// Takes leave of a hold that has ended, after the verb that is under way.
    pub(crate) async fn of(hold: &Arc<Hold>, keep_until: Option<Moment>) -> Self {
        let claim_state = Arc::clone(&hold.claim_state).lock_owned().await;
        Self::of_hold(hold, claim_state, keep_until)
    }

    pub(crate) fn of_hold(
        hold: &Arc<Hold>,
        claim_state: OwnedMutexGuard<ClaimState>,
        keep_until: Option<Moment>,
    ) -> Self {
        let engine = Arc::clone(&hold.engine);
        let timeout_at = Moment::now() + engine.settings.timeout;
        let ends = hold.lease_ends().max(claim_state.latest_expiry).max(keep_until);
        Self {
            engine,
            target: ReleaseTarget::Hold(Arc::clone(hold), claim_state),
            keep_until,
            timeout_at: timeout_at,
            expires_at: ends.map_or(timeout_at, |ends| ends.max(timeout_at)),
            has_leases: hold.lease_ends().is_some(),
            in_session: hold.is_in_session(),
            outcome_unknown: false,
            already_reported: false,
        }
    }

    fn of_claim(
        acquisition: &Acquisition,
        claim: Claim,
        residue: Residue,
        head: Option<QueueHead>,
    ) -> Self {
        // The last attempt was sent before now, and lands within the bound of a call or never.
        let arrives_by = Moment::now() + acquisition.engine.settings.timeout;
        let expires_at = match claim.queues() && acquisition.engine.has_server_queue {
            true => arrives_by + claim.ttl + claim.ttl + QUEUE_ENTRY_GRACE,
            false => arrives_by + claim.ttl,
        };
        let claim_state = ClaimState::new(claim, residue.late_attempt);
        Self {
            engine: Arc::clone(&acquisition.engine),
            target: ReleaseTarget::Claim(claim_state, head),
            keep_until: None,
            timeout_at: arrives_by,
            expires_at,
            has_leases: true,
            in_session: false,
            outcome_unknown: false,
            already_reported: false,
        }
    }

    /// Takes leave of a claim of which nothing is known but its owner: when its lease ends is not, and
    /// an attempt of it may still be on its way.
    pub(crate) fn of_detached(engine: &Arc<Engine>, claim: Claim) -> Self {
        let arrives_by = Moment::now() + engine.settings.timeout;
        let expires_at = arrives_by + claim.ttl;
        let claim_state = ClaimState::new(claim, true);
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
        }
    }

    /// Asks the backend once.
    pub(crate) async fn release_once(&mut self, limit: Duration) -> Result<ReleaseOutcome, Fault> {
        let keep = self.keep_until.map(Moment::remaining).filter(|keep| !keep.is_zero());
        let ClaimState { claim, late_attempt, .. } = self.target.get();
        let how = ReleaseMode { late_attempt: (*late_attempt).into(), keep };
        let span = tracing::debug_span!(
            "release",
            lock.name = %claim.name,
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            lock.outcome = tracing::field::Empty,
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
        span.record("lock.outcome", tracing::field::debug(&outcome));
        // Whoever is next in this process need not wait for our retries.
        self.target.leave_queue();
        outcome
    }

    /// Asks until the backend has answered, within the bound of a call.
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

    /// Asks until the backend has answered, or has forgotten the claim by itself.
    pub(crate) async fn release_until_expiry(mut self) {
        let mut attempts = 0;
        // The first release of a lock that is let go waits for no other. After an outage, thousands may be
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
                    lock.name = %claim.name,
                    lock.owner = %claim.owner.short(),
                    lock.error = %fault,
                    lock.cause = fault.source().map(tracing::field::display),
                    "release was never confirmed; the lease is over"
                );
                return;
            }
            attempts += 1;
            let ttl = self.target.get().claim.ttl;
            let longest = (ttl / 10).clamp(Backoff::LONGEST, LONGEST_RELEASE_PAUSE);
            sleep(jittered_up_to(longest, Duration::from_millis(10), attempts)).await;
            answer = self.release_in_turn().await;
        }
    }

    /// A bounded number in a given time: after an outage there may be thousands. A call that hangs gives
    /// its turn to another one.
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

    /// For a bequest that goes back: its holder was told that it is released.
    pub(crate) fn already_reported(mut self) -> Self {
        self.already_reported = true;
        self
    }

    fn warn_lost(&self) {
        let claim = &self.target.get().claim;
        tracing::warn!(
            lock.name = %claim.name,
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            "a lock was left to the next waiter of its process, and had been lost by then: the backend says that it was \
             not held any more"
        );
    }

    /// Returns how soon the lock is free whatever happens, after a release that failed by `fault`.
    /// `None` if no bound is known: nothing lapses, or the session goes on and its server refuses to
    /// let the lock go.
    pub(crate) fn free_within(&self, fault: &Fault) -> Option<Duration> {
        let expires = self.has_leases && (fault.is_transient() || !self.in_session);
        expires.then(|| match self.engine.caps.takeover {
            Takeover::LeasePlus(more) if self.in_session => self.expires_at.remaining() + more,
            _ => self.expires_at.remaining(),
        })
    }
}

impl Drop for PendingRelease {
    /// Nothing is asked for this claim any more, whether it was answered or its runtime is gone.
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

    /// Tells those behind in the line that an answer is awaited from now on.
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

/// Contended before; but silent for so long by now that it is a fault.
fn is_silent(since: Moment, timeout: Duration) -> bool {
    (since + timeout / 2).has_passed()
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the locker was closed")
}

pub(crate) fn unanswered() -> Error {
    Error::from_fault(Fault::unknown(FaultKind::TimedOut, "no answer by the end of the wait"))
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

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Whether a pause is one that begins at `first` and was doubled so often.
    fn is_doubled(pause: Duration, first: Duration, doublings: u32) -> bool {
        let longest = (first * 2_u32.pow(doublings)).min(Backoff::LONGEST);
        (longest / 2..=longest).contains(&pause)
    }

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew_when_all_is_well() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(backoff.next_outage_pause(), millis(10), doublings.min(16)));
            }
            backoff.reset_outages();
        }
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(
                    backoff.next_failed_wait_pause(),
                    millis(10),
                    doublings.min(16)
                ));
            }
            assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn waits_that_wake_for_nothing_are_free_eight_times_in_a_row() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for _ in 1..Backoff::IDLE_WAKES_FOR_FREE {
                assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT), None);
            }
            for doublings in 0..12 {
                let pause = backoff.after_wait(Duration::ZERO).expect("it is not free any more");
                assert!(is_doubled(pause, millis(1), doublings));
            }
            assert_eq!(backoff.after_wait(Backoff::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn looks_that_are_due_soon_are_free_eight_times_in_a_row() {
        let mut backoff = Backoff::default();
        for _ in 0..2 {
            for _ in 1..Backoff::IDLE_WAKES_FOR_FREE {
                assert_eq!(backoff.before_recheck(Backoff::SOON), Duration::ZERO);
            }
            for doublings in 0..12 {
                assert!(is_doubled(backoff.before_recheck(Duration::ZERO), millis(1), doublings));
            }
            assert_eq!(backoff.before_recheck(Backoff::SOON + millis(1)), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_was_for_nothing_only_if_the_same_lease_is_in_the_way() {
        let mut backoff = Backoff::default();
        let mut was_for_nothing = |expires_in: Option<u64>| {
            backoff.idle_wakes = 5;
            backoff.note_expiry(expires_in.map(millis));
            backoff.idle_wakes == 5
        };
        assert!(was_for_nothing(None));
        assert!(!was_for_nothing(Some(1000)));
        assert!(was_for_nothing(Some(1000)) && was_for_nothing(Some(1010)));
        assert!(was_for_nothing(Some(990)));
        assert!(!was_for_nothing(Some(989)) && !was_for_nothing(Some(1000)));
        tokio::time::advance(millis(600)).await;
        assert!(was_for_nothing(Some(400)) && !was_for_nothing(Some(1000)));
        assert!(!was_for_nothing(None) && was_for_nothing(None));
    }
}
