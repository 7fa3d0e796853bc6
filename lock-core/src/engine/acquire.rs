//! The acquisition of a lock: [`Acquisition`].

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;

use super::backoff::Backoff;
use super::handover::{Handover, TakenOver};
use super::hold::{ClaimState, Engine, Head, Hold, HolderInfo, too_slow};
use super::local_queue::{HandoverKey, HeadStatus, QueueTicket};
use super::release::{PendingRelease, Residue};
use super::shared::unpanicking;
use super::wait_progress::{WaitProgress, is_silent};
use crate::backend::{Attempt, Claim, Effect, Fault, Fencing, Grant, HoldKind, Lease, Order, Wake};
use crate::clock::{Moment, sleep};
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::guard::LockGuard;
use crate::metrics::{Class, CountedWaiter};
use crate::owner::OwnerId;
use crate::policy::HoldPolicy;

/// The number of grants that may arrive after their lease is over, within the outage timeout of a
/// waiter, before it fails.
const MAX_STALE_GRANTS: usize = 3;

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
    head: Option<Head>,
    residue: Residue,
    class: Class,
    /// Since the claim has found another one in its way.
    counted: Option<CountedWaiter>,
}

impl Acquisition {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        policy: Arc<HoldPolicy>,
        progress: Arc<WaitProgress>,
        waits: bool,
        pending: OwnedSemaphorePermit,
        class: Class,
    ) -> Self {
        let (head, residue, counted) = (None, Residue::default(), None);
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
            class,
            counted,
        }
    }

    /// Acquires the lock; `None` if another claim holds it and this one does not wait.
    /// [`finish`](Self::finish) has to follow.
    ///
    /// Most claims are granted by their first attempt. The futures that only the others await are
    /// boxed: they would be the larger part of this future, which is made, and moved, for each
    /// acquisition.
    pub(crate) async fn run(&mut self) -> Result<Option<Acquired>, Error> {
        if !self.enter_local_queue().await? {
            return Ok(None);
        }
        match self.take_over().await {
            Some(taken_over) => Ok(Some(Acquired::HandedOver(taken_over))),
            None => self.acquire_from_backend().await,
        }
    }

    /// Makes a guard of a granted lock, and releases the claim otherwise.
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

    /// Waits for the head of the local queue, so that one process serves its waiters first come,
    /// first served. A backend with a queue keeps all of them in order, so all of them may go
    /// there, unless locks are handed over here. Returns false if the acquisition has ended.
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
            // A local holder is contention. A local claim that only attempts proves nothing, nor
            // does one whose release is not answered: then an attempt is sent.
            let timeout = self.engine.settings.timeout;
            let is_held = match ticket.head_status() {
                (HeadStatus::Held, since) => since.is_none_or(|since| !is_silent(since, timeout)),
                _ => false,
            };
            return Ok(!is_held);
        }
        Box::pin(self.wait_in_local_queue(ticket)).await
    }

    async fn wait_in_local_queue(&mut self, ticket: QueueTicket<Handover>) -> Result<bool, Error> {
        self.was_queued = true;
        self.count_as_waiter();
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

    /// Takes the lock that the holder before in this process has handed over. If this claim cannot
    /// use it, the lock is released first: an attempt would otherwise compete with its own process.
    async fn take_over(&mut self) -> Option<Box<TakenOver>> {
        let mut handover = self.head.as_ref()?.take_handover()?;
        let taken_over = handover.accept(&self.claim).map(Box::new);
        if let Some(release) = handover.take_release() {
            // Silence here is no contention: no attempt was made yet.
            self.set_unanswered_since(Some(Moment::now()));
            Box::pin(self.release_first(release)).await;
            self.set_unanswered_since(None);
        }
        taken_over
    }

    async fn acquire_from_backend(&mut self) -> Result<Option<Acquired>, Error> {
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
                    self.count_as_waiter();
                    self.residue.left |= self.claim.queues();
                    Box::pin(self.wait(expires_in, &mut backoff)).await?
                }
                Err(fault) => {
                    // A newcomer gets the error at once; a waiter goes on waiting.
                    let waiting = self.waits && (!first || self.was_queued);
                    let may_wait = waiting && fault.is_transient();
                    let error = Error::from_fault(fault);
                    // A queue has one outage timeout, with any number of waiters.
                    let since = match &self.head {
                        Some(head) => head.record_outage(started, &error),
                        None => *outage_since.get_or_insert(started),
                    };
                    if !may_wait || (since + self.engine.settings.outage_timeout).has_passed() {
                        return Err(error);
                    }
                    tracing::debug!(
                        lock.name = self.claim.name.as_str(),
                        lock.backend = self.engine.caps.backend,
                        lock.error = %error,
                        "waiting through an outage"
                    );
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
            let now = Moment::now();
            if Hold::leaves_enough(&self.engine, &grant, self.claim.ttl, now) {
                self.check_token(&grant)?;
                return Ok(Some(Acquired::Granted(grant, now)));
            }
            stale_grants
                .retain(|at: &Moment| !(*at + self.engine.settings.outage_timeout).has_passed());
            stale_grants.push(now);
            // If the wait ends meanwhile, no other claim is the reason.
            self.progress.set_outage(Some(too_slow()));
            if self.waits && stale_grants.len() == 1 && self.is_in_force(&grant) {
                // The same acquisition, asked for once more, keeps the lock and has the whole
                // lease.
                continue;
            }
            Box::pin(self.restart_as_new_owner()).await;
            if !self.waits || stale_grants.len() == MAX_STALE_GRANTS {
                return Err(too_slow());
            }
        }
    }

    /// Makes one attempt. Returns its answer, and whether it was the first one.
    async fn attempt(&mut self, started: Moment) -> (Result<Attempt, Fault>, bool) {
        self.set_unanswered_since(Some(started));
        let verb = async { self.engine.backend.try_acquire(&self.claim).await };
        let answer = self.engine.call(self.engine.settings.timeout, verb).await;
        self.set_unanswered_since(None);
        let first = self.progress.record_answer();
        if answer.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown) {
            self.residue = Residue { left: true, late_attempt: true };
        }
        if let Err(fault) = &answer {
            self.engine.metrics.attempted(self.class, fault);
        }
        (answer, first)
    }

    fn count_as_waiter(&mut self) {
        let (metrics, class) = (&self.engine.metrics, self.class);
        self.counted.get_or_insert_with(|| metrics.waiter(class));
    }

    /// Records, for the caller and the local waiters, since when an answer is awaited.
    fn set_unanswered_since(&self, since: Option<Moment>) {
        self.progress.set_unanswered_since(since);
        if let Some(head) = &self.head {
            head.set_unanswered_since(since);
        }
    }

    /// Waits for a wake-up, and polls when the holder's lease ends, or after a lease, or earlier: a
    /// notification may have been lost.
    async fn wait(
        &mut self,
        expires_in: Option<Duration>,
        backoff: &mut Backoff,
    ) -> Result<Next, Error> {
        let span = tracing::debug_span!(
            "wait",
            lock.name = self.claim.name.as_str(),
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
                    // The next attempt shows whether the backend fails.
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

    /// Returns true if a pushed grant has to be confirmed. It may have a short lease. The renewer
    /// prolongs it to the ttl under any policy, but it does not renew a detached lock, which
    /// therefore needs its whole lease before the guard is returned.
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

    /// Releases the claim and goes on as a new owner.
    async fn restart_as_new_owner(&mut self) {
        let old = self.claim.clone();
        self.claim.owner = OwnerId::mint();
        self.claim.ticket = None;
        let residue = std::mem::take(&mut self.residue);
        self.release_first(PendingRelease::of_claim(&self.engine, old, residue, None, self.class))
            .await;
    }

    async fn release_first(&self, mut release: PendingRelease) {
        if release.release_once(self.engine.settings.timeout).await.is_err() {
            self.engine.spawn(release.release_until_expiry());
        }
    }

    fn discard(mut self) {
        if self.residue.left {
            let head = self.head.take();
            let release = PendingRelease::of_claim(
                &self.engine,
                self.claim.clone(),
                self.residue,
                head,
                self.class,
            );
            self.engine.spawn(release.release_until_expiry());
        }
    }

    fn into_guard(self, acquired: Acquired) -> LockGuard {
        if let Some(head) = &self.head {
            head.set_held();
        }
        let TakenOver { claim_state, grant, holder } = match acquired {
            Acquired::HandedOver(taken_over) => *taken_over,
            Acquired::Granted(grant, at) => {
                let holder =
                    HolderInfo { pushed: self.pushed, ..HolderInfo::first(self.claim.owner, at) };
                let claim_state =
                    ClaimState::new(self.claim, self.residue.late_attempt, self.class);
                TakenOver { claim_state, grant, holder }
            }
        };
        let (engine, policy, head) = (self.engine, self.policy, self.head);
        LockGuard::new(Hold::new(engine, policy, claim_state, head, &grant, holder))
    }
}

/// A lock that was acquired, from the backend or from the holder before in this process.
pub(crate) enum Acquired {
    /// When the grant arrived.
    Granted(Grant, Moment),
    HandedOver(Box<TakenOver>),
}

enum Next {
    Retry,
    Granted(Grant),
    Pushed(Grant),
    GiveUp,
}

const RECHECK_JITTER: Duration = Duration::from_millis(20);

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the locker was closed")
}
