//! The life of a claim: win, hold, let go. Every claim that may have left something on the backend
//! ends in [`Leaving`]; there is no second clean-up path.

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
use crate::bequest::{Inherited, Wish};
use crate::capabilities::{Fencing, Order, Takeover};
use crate::clock::{Moment, sleep, sleep_until};
use crate::engine::{Engine, MAX_CLEANERS, unpanicking};
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::guard::LockGuard;
use crate::hold::{Hold, Loss, Tenure, Terms, Wire};
use crate::line::{Place, Standing, Visit};
use crate::owner::OwnerId;

/// Grants that arrive after their lease is over, within the outage_timeout of a waiter, before it gives up.
const MAX_STALE_GRANTS: usize = 3;

/// What a caller and the seeker that works for it tell each other.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    /// Set when nobody waits for the result any more.
    pub(crate) gone: Arc<SetOnce<()>>,
    progress: Mutex<Progress>,
    /// Notifies of each change of the progress.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Progress {
    /// The line that the claim waits in, behind a neighbour in this process.
    line: Option<Visit>,
    /// When the attempt was sent that has no answer yet.
    unanswered_since: Option<Moment>,
    /// The backend has answered the first attempt, by whatever.
    answered: bool,
    /// The fault that keeps a waiter from being served; `None` while it is contention.
    outage: Option<Error>,
}

/// How a bounded wait ends without the lock.
enum Verdict {
    Contended,
    Failed(Error),
    /// What was sent then has to be answered first; without an answer, it is this error.
    Unknown {
        since: Moment,
        unanswered: Error,
    },
}

impl Caller {
    /// Says how a wait ends that is over: `Ok` if it is contention. If the backend has not answered
    /// anything yet, it gets as long as any call gets, so that even the shortest wait is one whole
    /// attempt; and silence is no contention.
    pub(crate) async fn cut(&self, timeout: Duration) -> Result<(), Error> {
        let mut limit = None;
        loop {
            let line = self.progress().line.as_ref().map(Visit::again);
            // Before the verdict: no change is missed.
            let changed = self.changed.notified();
            let line_changed = line.as_ref().map(Visit::changed);
            let (since, unanswered) = match self.verdict(timeout) {
                Verdict::Contended => return Ok(()),
                Verdict::Failed(error) => return Err(error),
                Verdict::Unknown { since, unanswered } => (since, unanswered),
            };
            let limit = *limit.get_or_insert(since + timeout);
            tokio::select! {
                biased;
                () = changed => {}
                Some(()) = async { line_changed?.await; Some(()) } => {}
                () = sleep_until(limit) => return Err(unanswered),
            }
        }
    }

    fn verdict(&self, timeout: Duration) -> Verdict {
        let progress = self.progress();
        if let Some(line) = &progress.line {
            // Nothing was sent for this one.
            let not_sent = |error: Error| error.applied(Effect::NotApplied);
            return match line.standing() {
                (Standing::Outage(_, error), _) => Verdict::Failed(not_sent(error)),
                (Standing::Unknown, since) => Verdict::Unknown {
                    since: since.unwrap_or_else(Moment::now),
                    unanswered: not_sent(unanswered()),
                },
                (_, Some(since)) if is_silent(since, timeout) => {
                    Verdict::Failed(not_sent(unanswered()))
                }
                (Standing::Held | Standing::Contended, _) => Verdict::Contended,
            };
        }
        match (progress.unanswered_since, &progress.outage) {
            (_, Some(error)) => Verdict::Failed(error.clone()),
            (Some(since), None) if !progress.answered => {
                Verdict::Unknown { since, unanswered: unanswered() }
            }
            (Some(since), None) if is_silent(since, timeout) => Verdict::Failed(unanswered()),
            (_, None) => Verdict::Contended,
        }
    }

    fn waits_in(&self, line: Option<Visit>) {
        let before = self.changes(|progress| std::mem::replace(&mut progress.line, line));
        // Outside of the lock on the progress.
        drop(before);
    }

    fn asks(&self, since: Option<Moment>) {
        self.changes(|progress| progress.unanswered_since = since);
    }

    /// An attempt was answered. True if it was the first one.
    fn hears(&self) -> bool {
        self.changes(|progress| !std::mem::replace(&mut progress.answered, true))
    }

    fn report(&self, outage: Option<Error>) {
        self.changes(|progress| progress.outage = outage);
    }

    fn changes<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        let result = change(&mut self.progress());
        self.changed.notify_waiters();
        result
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim on its way to a grant.
pub(crate) struct Seeker {
    engine: Arc<Engine>,
    claim: Claim,
    terms: Arc<Terms>,
    caller: Arc<Caller>,
    waits: bool,
    stood_in_line: bool,
    /// The backend handed the lock over while the claim waited.
    pushed: bool,
    _pending: OwnedSemaphorePermit,
    place: Option<Place>,
    traces: Traces,
}

/// What a claim may have left on the backend.
#[derive(Clone, Copy, Debug, Default)]
struct Traces {
    /// A place in line, or a grant.
    left: bool,
    /// An attempt without answer, which may still land.
    uncertain: bool,
}

impl Seeker {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: Claim,
        terms: Arc<Terms>,
        caller: Arc<Caller>,
        waits: bool,
        pending: OwnedSemaphorePermit,
    ) -> Self {
        let (place, traces) = (None, Traces::default());
        Self {
            engine,
            claim,
            terms,
            caller,
            waits,
            stood_in_line: false,
            pushed: false,
            _pending: pending,
            place,
            traces,
        }
    }

    /// Until the lock is won; `None` if it is held by somebody else and the claim does not wait.
    /// [`settle`](Self::settle) has to follow.
    ///
    /// Most claims are granted by their first attempt. What only the others await is boxed when they do: it would be
    /// the larger part of this future, which is made, and moved, for each acquisition.
    pub(crate) async fn seek(&mut self) -> Result<Option<Won>, Error> {
        if !self.stand_in_line().await? {
            return Ok(None);
        }
        match self.inherit().await {
            Some(inherited) => Ok(Some(Won::Inherited(inherited))),
            None => Ok(self.compete().await?.map(Won::Granted)),
        }
    }

    /// Makes a guard of a lock that was won, and lets go of everything else.
    pub(crate) fn settle(
        mut self,
        won: Result<Option<Won>, Error>,
    ) -> Result<Option<LockGuard>, Error> {
        // The guard is dropped at once. No caller had it, so it has no minimum hold to keep.
        if self.caller.gone.initialized() {
            self.terms = Arc::clone(&self.engine.usual_terms);
        }
        match won {
            Ok(Some(won)) => Ok(Some(self.into_guard(won))),
            Ok(None) => {
                self.let_go();
                Ok(None)
            }
            Err(error) => {
                self.let_go();
                Err(error)
            }
        }
    }

    /// Inside one process, first come, first served. A backend with a line of its own keeps all of
    /// them in order, so all of them may go there, unless locks are handed over here. False if there is
    /// nothing left to do.
    async fn stand_in_line(&mut self) -> Result<bool, Error> {
        if self.engine.caps.order == Order::Fifo {
            return Ok(true);
        }
        let visit = match self.engine.lines.visit(&self.claim.name).try_enter() {
            Ok(place) => {
                self.place = Some(place);
                return Ok(true);
            }
            Err(visit) => visit,
        };
        if !self.waits {
            // A neighbour that holds the lock is contention. One that is only trying proves
            // nothing, nor does one whose release is not answered: the backend is asked.
            let timeout = self.engine.settings.timeout;
            let is_held = match visit.standing() {
                (Standing::Held, since) => since.is_none_or(|since| !is_silent(since, timeout)),
                _ => false,
            };
            return Ok(!is_held);
        }
        Box::pin(self.wait_in_line(visit)).await
    }

    async fn wait_in_line(&mut self, visit: Visit) -> Result<bool, Error> {
        self.stood_in_line = true;
        self.caller.waits_in(Some(visit.again()));
        let entered = tokio::select! {
            biased;
            _ = self.engine.closing.wait() => Err(closed()),
            _ = self.caller.gone.wait() => Ok(false),
            place = visit.enter(Wish::of(&self.claim)) => {
                self.place = Some(place);
                Ok(true)
            }
        };
        self.caller.waits_in(None);
        entered
    }

    /// What the holder before in this process has left to who comes next. If that is of no use to this
    /// claim, it is given back first: who competes with the own process waits for nothing.
    async fn inherit(&mut self) -> Option<Box<Inherited>> {
        let mut bequest = self.place.as_ref()?.bequest()?;
        let inherited = bequest.accept(&self.claim).map(Box::new);
        if let Some(leaving) = bequest.give_back() {
            // Silence here is no contention: no attempt was made yet.
            self.asks(Some(Moment::now()));
            Box::pin(self.part_from(leaving)).await;
            self.asks(None);
        }
        inherited
    }

    async fn compete(&mut self) -> Result<Option<Grant>, Error> {
        let mut pace = Pace::default();
        let mut stale_grants = Vec::new();
        let mut outage_since = None;
        loop {
            let started = Moment::now();
            let (answer, first) = self.attempt(started).await;
            if answer.is_ok() {
                outage_since = None;
                pace.outage_over();
                self.caller.report(None);
            }
            let next = match answer {
                Ok(Attempt::Acquired(grant)) => Next::Granted(grant),
                Ok(Attempt::Contended { expires_in }) => {
                    if let Some(place) = &self.place {
                        place.is_contended();
                    }
                    if !self.waits {
                        return Ok(None);
                    }
                    self.traces.left |= self.claim.queues();
                    Box::pin(self.wait(expires_in, &mut pace)).await?
                }
                Err(fault) => {
                    // A newcomer is told at once; who has waited goes on waiting.
                    let waiting = self.waits && (!first || self.stood_in_line);
                    let may_wait = waiting && fault.is_transient();
                    let error = Error::from_fault(fault);
                    // The outage_timeout of a line is one, however many stand in it.
                    let since = match &self.place {
                        Some(place) => place.fails(started, &error),
                        None => *outage_since.get_or_insert(started),
                    };
                    if !may_wait || (since + self.engine.settings.outage_timeout).has_passed() {
                        return Err(error);
                    }
                    tracing::debug!(lock.name = %self.claim.name, lock.error = %error, "waiting through an outage");
                    self.caller.report(Some(error));
                    Box::pin(self.pause(pace.outage())).await?
                }
            };
            let grant = match next {
                Next::GiveUp => return Ok(None),
                Next::Look => continue,
                // The next attempt is the same acquisition, and confirms it with the whole lease.
                Next::Pushed(grant) if self.needs_confirmation(&grant) => {
                    self.traces.left = true;
                    continue;
                }
                Next::Pushed(grant) => {
                    self.pushed = true;
                    grant
                }
                Next::Granted(grant) => grant,
            };
            self.traces.left = true;
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
            self.caller.report(Some(too_slow()));
            Box::pin(self.start_afresh()).await;
            if !self.waits || stale_grants.len() == MAX_STALE_GRANTS {
                return Err(too_slow());
            }
        }
    }

    /// One attempt; and whether it was the first one.
    async fn attempt(&mut self, started: Moment) -> (Result<Attempt, Fault>, bool) {
        self.asks(Some(started));
        let verb = async { self.engine.backend.try_acquire(&self.claim).await };
        let answer = self.engine.call(self.engine.settings.timeout, verb).await;
        self.asks(None);
        let first = self.caller.hears();
        if answer.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown) {
            self.traces = Traces { left: true, uncertain: true };
        }
        (answer, first)
    }

    /// Tells the caller, and those behind this one in its process, since when an answer is awaited.
    fn asks(&self, since: Option<Moment>) {
        self.caller.asks(since);
        if let Some(place) = &self.place {
            place.asks(since);
        }
    }

    /// Waits for a signal, and looks by itself when the holder's lease ends, or after a lease, or earlier:
    /// a signal may have been lost.
    async fn wait(&mut self, expires_in: Option<Duration>, pace: &mut Pace) -> Result<Next, Error> {
        let span = tracing::debug_span!(
            "wait",
            lock.name = %self.claim.name,
            lock.backend = self.engine.caps.backend,
            lock.owner = %self.claim.owner.short(),
        );
        pace.sees(expires_in);
        let at_most = self.claim.ttl.min(self.engine.recheck_every());
        let recheck = expires_in.map_or(at_most, |expires_in| expires_in.min(at_most));
        let jitter = entropy::between(Duration::from_millis(1), RECHECK_JITTER.min(at_most / 10));
        let recheck = recheck + jitter + pace.before_look_in(recheck);
        let began = Moment::now();
        let woken = async {
            tokio::select! {
                biased;
                _ = self.engine.closing.wait() => Err(closed()),
                _ = self.caller.gone.wait() => Ok(Next::GiveUp),
                // Bounded by the sleep below.
                wake = unpanicking(async { self.engine.backend.wait(&self.claim).await }) => match wake {
                    Ok(Wake::Granted(grant)) => Ok(Next::Pushed(grant)),
                    Ok(Wake::Retry) => Ok(Next::Look),
                    // The attempt that follows tells whether something is wrong.
                    Err(_) => self.pause(pace.failed_wait().min(recheck)).await,
                },
                () = sleep(recheck) => Ok(Next::Look),
            }
        }
        .instrument(span)
        .await?;
        match woken {
            Next::Look => match pace.after_wait_of(Moment::now().saturating_since(began)) {
                Some(pause) => self.pause(pause).await,
                None => Ok(Next::Look),
            },
            other => Ok(other),
        }
    }

    async fn pause(&self, duration: Duration) -> Result<Next, Error> {
        tokio::select! {
            biased;
            _ = self.engine.closing.wait() => Err(closed()),
            _ = self.caller.gone.wait() => Ok(Next::GiveUp),
            () = sleep(duration) => Ok(Next::Look),
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
    async fn start_afresh(&mut self) {
        let old = self.claim.clone();
        self.claim.owner = OwnerId::mint();
        self.claim.ticket = None;
        let traces = std::mem::take(&mut self.traces);
        self.part_from(Leaving::of_claim(self, old, traces, None)).await;
    }

    async fn part_from(&self, mut leaving: Leaving) {
        if leaving.once(self.engine.settings.timeout).await.is_err() {
            self.engine.spawn(leaving.persist());
        }
    }

    fn let_go(mut self) {
        if self.traces.left {
            let place = self.place.take();
            let leaving = Leaving::of_claim(&self, self.claim.clone(), self.traces, place);
            self.engine.spawn(leaving.persist());
        }
    }

    fn into_guard(self, won: Won) -> LockGuard {
        if let Some(place) = &self.place {
            place.holds();
        }
        let Inherited { wire, grant, tenure } = match won {
            Won::Inherited(inherited) => *inherited,
            Won::Granted(grant) => {
                let tenure = Tenure { pushed: self.pushed, ..Tenure::first(self.claim.owner) };
                let wire = Wire::new(self.claim, self.traces.uncertain);
                Inherited { wire, grant, tenure }
            }
        };
        let (engine, terms, place) = (self.engine, self.terms, self.place);
        LockGuard::new(Hold::new(engine, terms, wire, place, &grant, tenure))
    }
}

/// A lock that is ours, from the backend or from the holder before in this process.
pub(crate) enum Won {
    Granted(Grant),
    Inherited(Box<Inherited>),
}

enum Next {
    Look,
    Granted(Grant),
    Pushed(Grant),
    GiveUp,
}

const RECHECK_JITTER: Duration = Duration::from_millis(20);

/// What a turn lasts while releases fail or hang and many are to be repeated: with
/// [`MAX_CLEANERS`] turns at a time, about 170 calls a second.
const CLEANER_PAUSE: Duration = Duration::from_millis(500);

/// A release that is not answered is repeated that often at least, until the lease is over.
const PERSIST_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// Jittered back-off: for outages, for waits that fail, and for waits that wake for nothing.
#[derive(Debug, Default)]
struct Pace {
    outages: u32,
    failed_waits: u32,
    idle_wakes: u32,
    /// When the holder's lease ended, as told at the first of these wakes.
    lapsed_at: Option<Moment>,
    short_looks: u32,
}

impl Pace {
    const LONGEST: Duration = Duration::from_secs(1);
    const SHORT_WAIT: Duration = Duration::from_millis(5);
    /// What the end of one and the same lease may seem to move by, from look to look.
    const SAME: Duration = Duration::from_millis(10);
    const LOOKS_SOON: Duration = Duration::from_millis(50);
    const IDLE_WAKES_FOR_FREE: u32 = 8;

    /// The holder's lease ends then. Another end is another holder, or a renewal: whatever woke us was not
    /// for nothing, however often it comes.
    fn sees(&mut self, expires_in: Option<Duration>) {
        let at = expires_in.map(|expires_in| Moment::now() + expires_in);
        let is_same = match (at, self.lapsed_at) {
            (Some(at), Some(before)) => at <= before + Self::SAME && before <= at + Self::SAME,
            (at, before) => at.is_some() == before.is_some(),
        };
        if !is_same {
            self.lapsed_at = at;
            self.idle_wakes = 0;
        }
    }

    /// The next pause while the backend fails.
    fn outage(&mut self) -> Duration {
        self.outages += 1;
        back_off(Duration::from_millis(10), self.outages)
    }

    fn outage_over(&mut self) {
        self.outages = 0;
    }

    /// The next pause while signals cannot be had.
    fn failed_wait(&mut self) -> Duration {
        self.failed_waits += 1;
        back_off(Duration::from_millis(10), self.failed_waits)
    }

    /// What is added to a look that is due in `recheck`: nothing, unless the end of the lease was said
    /// to be near many times in a row and did not come.
    fn before_look_in(&mut self, recheck: Duration) -> Duration {
        if recheck > Self::LOOKS_SOON {
            self.short_looks = 0;
            return Duration::ZERO;
        }
        self.short_looks += 1;
        match self.short_looks.checked_sub(Self::IDLE_WAKES_FOR_FREE) {
            Some(excess) => back_off(Duration::from_millis(1), excess),
            None => Duration::ZERO,
        }
    }

    /// A pause after a wait that ended at once, many times in a row.
    fn after_wait_of(&mut self, waited: Duration) -> Option<Duration> {
        if waited > Self::SHORT_WAIT {
            self.idle_wakes = 0;
            self.failed_waits = 0;
            return None;
        }
        self.idle_wakes += 1;
        let excess = self.idle_wakes.checked_sub(Self::IDLE_WAKES_FOR_FREE)?;
        Some(back_off(Duration::from_millis(1), excess))
    }
}

fn back_off(first: Duration, doublings: u32) -> Duration {
    back_off_to(Pace::LONGEST, first, doublings)
}

fn back_off_to(longest: Duration, first: Duration, doublings: u32) -> Duration {
    let pause = (first * 2_u32.pow(doublings.min(16))).min(longest);
    entropy::between(pause / 2, pause)
}

/// A claim on its way out.
#[derive(Debug)]
pub(crate) struct Leaving {
    engine: Arc<Engine>,
    wire: Departing,
    keep_until: Option<Moment>,
    /// Until then [`insist`](Self::insist) asks.
    insists_until: Moment,
    /// From then on the backend has forgotten the claim by itself.
    forgotten_at: Moment,
    has_leases: bool,
    /// The server keeps the lock for as long as the session goes on, whatever the lease was.
    in_session: bool,
    /// A release went unanswered.
    unsure: bool,
    /// Whoever held it was told already that it is released.
    is_told: bool,
}

#[derive(Debug)]
enum Departing {
    Held(Arc<Hold>, OwnedMutexGuard<Wire>),
    Sought(Wire, Option<Place>),
}

/// How a claim ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    Released,
    NotHeld,
    /// Not there any more, by whom is unknown.
    Gone,
}

impl Leaving {
    /// Takes leave of a hold that has ended, after the verb that is under way.
    pub(crate) async fn of(hold: &Arc<Hold>, keep_until: Option<Moment>) -> Self {
        let wire = Arc::clone(&hold.wire).lock_owned().await;
        Self::of_hold(hold, wire, keep_until)
    }

    pub(crate) fn of_hold(
        hold: &Arc<Hold>,
        wire: OwnedMutexGuard<Wire>,
        keep_until: Option<Moment>,
    ) -> Self {
        let engine = Arc::clone(&hold.engine);
        let in_a_call = Moment::now() + engine.settings.timeout;
        let ends = hold.lease_ends().max(wire.may_end).max(keep_until);
        Self {
            engine,
            wire: Departing::Held(Arc::clone(hold), wire),
            keep_until,
            insists_until: in_a_call,
            forgotten_at: ends.map_or(in_a_call, |ends| ends.max(in_a_call)),
            has_leases: hold.lease_ends().is_some(),
            in_session: hold.is_in_session(),
            unsure: false,
            is_told: false,
        }
    }

    fn of_claim(seeker: &Seeker, claim: Claim, traces: Traces, place: Option<Place>) -> Self {
        // The last attempt was sent before now, and lands within the bound of a call or never.
        let lands = Moment::now() + seeker.engine.settings.timeout;
        let forgotten_at = match claim.queues() && seeker.engine.has_places {
            true => lands + claim.ttl + claim.ttl + QUEUE_ENTRY_GRACE,
            false => lands + claim.ttl,
        };
        let wire = Wire::new(claim, traces.uncertain);
        Self {
            engine: Arc::clone(&seeker.engine),
            wire: Departing::Sought(wire, place),
            keep_until: None,
            insists_until: lands,
            forgotten_at,
            has_leases: true,
            in_session: false,
            unsure: false,
            is_told: false,
        }
    }

    /// Takes leave of a claim of which nothing is known but its owner: when its lease ends is not, and
    /// an attempt of it may still be on its way.
    pub(crate) fn of_detached(engine: &Arc<Engine>, claim: Claim) -> Self {
        let lands = Moment::now() + engine.settings.timeout;
        let forgotten_at = lands + claim.ttl;
        let wire = Wire::new(claim, true);
        Self {
            engine: Arc::clone(engine),
            wire: Departing::Sought(wire, None),
            keep_until: None,
            insists_until: lands,
            forgotten_at,
            has_leases: false,
            in_session: false,
            unsure: false,
            is_told: false,
        }
    }

    /// Asks the backend once.
    pub(crate) async fn once(&mut self, limit: Duration) -> Result<Farewell, Fault> {
        let keep = self.keep_until.map(Moment::remaining).filter(|keep| !keep.is_zero());
        let Wire { claim, uncertain, .. } = self.wire.get();
        let how = ReleaseMode { late_attempt: (*uncertain).into(), keep };
        let span = tracing::debug_span!(
            "release",
            lock.name = %claim.name,
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            lock.outcome = tracing::field::Empty,
        );
        self.wire.asks();
        let verb = async { self.engine.backend.release(claim, how).await };
        let answer = self.engine.call(limit, verb).instrument(span.clone()).await;
        let farewell = match answer {
            Ok(Release::Released) => Ok(Farewell::Released),
            Ok(Release::NotHeld) if self.unsure => Ok(Farewell::Gone),
            Ok(Release::NotHeld) => {
                if self.is_told {
                    self.tell_nobody();
                }
                Ok(Farewell::NotHeld)
            }
            Err(fault) => {
                self.unsure |= fault.effect() == Effect::Unknown;
                Err(fault)
            }
        };
        span.record("lock.outcome", tracing::field::debug(&farewell));
        // Whoever is next in this process need not wait for our retries.
        self.wire.leave_line();
        farewell
    }

    /// Asks until the backend has answered, within the bound of a call.
    pub(crate) async fn insist(&mut self) -> Result<Farewell, Fault> {
        let mut limit = self.engine.settings.timeout;
        let mut pace = Pace::default();
        loop {
            let fault = match self.once(limit).await {
                Ok(farewell) => return Ok(farewell),
                Err(fault) => fault,
            };
            let pause = pace.outage();
            if !fault.is_transient() || pause >= self.insists_until.remaining() {
                return Err(fault);
            }
            Box::pin(sleep(pause)).await;
            limit = self.insists_until.remaining().max(Duration::from_millis(1));
        }
    }

    /// Asks until the backend has answered, or has forgotten the claim by itself.
    pub(crate) async fn persist(mut self) {
        let mut tries = 0;
        // The first release of a lock that is let go waits for no other. After an outage, thousands may be
        // lost at once; their leases are over.
        let first = match self.is_lost() {
            false => Some(self.once(self.engine.settings.timeout).await),
            true => None,
        };
        let _repeated = Arc::clone(&self.engine.repeated);
        let mut answer = match first {
            Some(answer) => answer,
            None => self.once_in_turn().await,
        };
        while let Err(fault) = answer {
            if self.forgotten_at.has_passed() {
                let claim = &self.wire.get().claim;
                tracing::warn!(
                    lock.name = %claim.name,
                    lock.owner = %claim.owner.short(),
                    lock.error = %fault,
                    lock.cause = fault.source().map(tracing::field::display),
                    "release was never confirmed; the lease is over"
                );
                return;
            }
            tries += 1;
            let ttl = self.wire.get().claim.ttl;
            let longest = (ttl / 10).clamp(Pace::LONGEST, PERSIST_AT_LEAST_EVERY);
            sleep(back_off_to(longest, Duration::from_millis(10), tries)).await;
            answer = self.once_in_turn().await;
        }
    }

    /// A bounded number in a given time: after an outage there may be thousands. A call that hangs gives
    /// its turn to another one.
    async fn once_in_turn(&mut self) -> Result<Farewell, Fault> {
        let engine = Arc::clone(&self.engine);
        let turn = engine.cleaners.acquire().await;
        let mut lasts = pin!(sleep(entropy::between(CLEANER_PAUSE / 2, CLEANER_PAUSE)));
        let mut call = pin!(self.once(engine.settings.timeout));
        tokio::select! {
            biased;
            answer = &mut call => {
                let others_wait = Arc::strong_count(&engine.repeated) > MAX_CLEANERS;
                if answer.is_err() && others_wait {
                    // They will fare no better: slowly.
                    lasts.await;
                }
                return answer;
            }
            () = &mut lasts => drop(turn),
        }
        call.await
    }

    fn is_lost(&self) -> bool {
        match &self.wire {
            Departing::Held(hold, _) => hold.ended.get() != Some(&Loss::Released),
            Departing::Sought(..) => false,
        }
    }

    /// For a bequest that goes back: its holder was told that it is released.
    pub(crate) fn already_told(mut self) -> Self {
        self.is_told = true;
        self
    }

    fn tell_nobody(&self) {
        let claim = &self.wire.get().claim;
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
        let lapses = self.has_leases && (fault.is_transient() || !self.in_session);
        lapses.then(|| match self.engine.caps.takeover {
            Takeover::LeasePlus(more) if self.in_session => self.forgotten_at.remaining() + more,
            _ => self.forgotten_at.remaining(),
        })
    }
}

impl Drop for Leaving {
    /// Nothing is asked for this claim any more, whether it was answered or its runtime is gone.
    fn drop(&mut self) {
        self.wire.leave_line();
        self.wire.forget_ticket();
    }
}

impl Departing {
    fn get(&self) -> &Wire {
        match self {
            Self::Held(_, wire) => wire,
            Self::Sought(wire, _) => wire,
        }
    }

    /// Tells those behind in the line that an answer is awaited from now on.
    fn asks(&self) {
        match self {
            Self::Held(hold, _) => hold.asks(),
            Self::Sought(_, Some(place)) => place.asks(Some(Moment::now())),
            Self::Sought(_, None) => {}
        }
    }

    fn leave_line(&mut self) {
        match self {
            Self::Held(hold, _) => hold.leave_line(),
            Self::Sought(_, place) => *place = None,
        }
    }

    fn forget_ticket(&mut self) {
        match self {
            Self::Held(_, wire) => wire.claim.ticket = None,
            Self::Sought(wire, _) => wire.claim.ticket = None,
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
        let longest = (first * 2_u32.pow(doublings)).min(Pace::LONGEST);
        (longest / 2..=longest).contains(&pause)
    }

    #[test]
    fn pauses_double_up_to_a_second_and_begin_anew_when_all_is_well() {
        let mut pace = Pace::default();
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(pace.outage(), millis(10), doublings.min(16)));
            }
            pace.outage_over();
        }
        for _ in 0..2 {
            for doublings in 1..40 {
                assert!(is_doubled(pace.failed_wait(), millis(10), doublings.min(16)));
            }
            assert_eq!(pace.after_wait_of(Pace::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn waits_that_wake_for_nothing_are_free_eight_times_in_a_row() {
        let mut pace = Pace::default();
        for _ in 0..2 {
            for _ in 1..Pace::IDLE_WAKES_FOR_FREE {
                assert_eq!(pace.after_wait_of(Pace::SHORT_WAIT), None);
            }
            for doublings in 0..12 {
                let pause = pace.after_wait_of(Duration::ZERO).expect("it is not free any more");
                assert!(is_doubled(pause, millis(1), doublings));
            }
            assert_eq!(pace.after_wait_of(Pace::SHORT_WAIT + millis(1)), None);
        }
    }

    #[test]
    fn looks_that_are_due_soon_are_free_eight_times_in_a_row() {
        let mut pace = Pace::default();
        for _ in 0..2 {
            for _ in 1..Pace::IDLE_WAKES_FOR_FREE {
                assert_eq!(pace.before_look_in(Pace::LOOKS_SOON), Duration::ZERO);
            }
            for doublings in 0..12 {
                assert!(is_doubled(pace.before_look_in(Duration::ZERO), millis(1), doublings));
            }
            assert_eq!(pace.before_look_in(Pace::LOOKS_SOON + millis(1)), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_wake_was_for_nothing_only_if_the_same_lease_is_in_the_way() {
        let mut pace = Pace::default();
        let mut was_for_nothing = |expires_in: Option<u64>| {
            pace.idle_wakes = 5;
            pace.sees(expires_in.map(millis));
            pace.idle_wakes == 5
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
