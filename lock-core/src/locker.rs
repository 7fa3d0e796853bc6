//! The source of locks: [`Locker`] and [`Lock`].

use std::convert::Infallible;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::backend::{
    Backend, Claim, Effect, Fault, Grant, HoldKind, Identity, Listed, LockState, OnContention,
    Renewal,
};
use crate::backend::{Capabilities, Fencing, Requirements, Support};
use crate::clock::{Moment, sleep, sleep_until};
use crate::engine::acquire::Acquisition;
use crate::engine::finish_on_drop::FinishOnDrop;
use crate::engine::hold::{ClaimState, Engine, Hold, HolderInfo, too_slow};
use crate::engine::release::{PendingRelease, ReleaseOutcome};
use crate::engine::renewer;
use crate::engine::shared::Settings;
use crate::engine::wait_progress::WaitProgress;
use crate::error::{Error, ErrorKind};
use crate::executor::Executor;
use crate::guard::{Detached, LockGuard, gone};
use crate::metrics::{AcquisitionRecord, Class, Classes};
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::policy::{HoldPolicy, RenewalPolicy};
use crate::token::FencingToken;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Gives out locks on one backend. Cloning is cheap; clones share everything.
///
/// Waiters of one locker are served first come, first served. Its methods can be awaited on any
/// runtime. Renewals, notifications of losses and background releases run on an [`Executor`], a
/// thread of the backend's own: they go on when the runtime that won a lock is idle, blocked or
/// gone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{Locker, Memory};
///
/// let locks = Locker::new(Memory::new());
/// let guard = locks.lock("orders/42")?.acquire().await?;
/// assert!(guard.is_held());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
}

/// Settings for a [`Locker`].
#[derive(Debug)]
pub struct LockerBuilder {
    backend: Arc<dyn Backend>,
    settings: Settings,
}

impl Locker {
    /// Creates a locker with the default settings.
    #[must_use]
    pub fn new(backend: impl Backend) -> Self {
        Self::builder(backend).build()
    }

    /// Starts from the default settings.
    #[must_use]
    pub fn builder(backend: impl Backend) -> LockerBuilder {
        Self::builder_from(Arc::new(backend))
    }

    /// Starts as [`builder`](Self::builder) does, from a backend that is shared already.
    #[must_use]
    pub fn builder_from(backend: Arc<dyn Backend>) -> LockerBuilder {
        LockerBuilder {
            backend,
            settings: Settings {
                timeout: Duration::from_secs(5),
                default_ttl: None,
                max_ttl: DAY,
                outage_timeout: Duration::from_secs(300),
                max_pending: 100_000,
                executor: None,
                label: None,
                local_handovers: 0,
                classes: Classes::default(),
            },
        }
    }

    /// Returns the capabilities of the backend, as far as [the
    /// settings](LockerBuilder::local_handovers) leave them.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.caps
    }

    /// Returns the leases that can be asked for: those of the backend, up to
    /// [`max_ttl`](LockerBuilder::max_ttl).
    #[must_use]
    pub fn ttl_range(&self) -> RangeInclusive<Duration> {
        self.engine.ttl_range()
    }

    /// Returns this locker, if its backend declares at least `requirements`: so that a wrong
    /// backend fails at start-up and not at night.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], naming everything that is missing.
    pub fn require(&self, requirements: &Requirements) -> Result<Self, Error> {
        requirements.check(&self.engine.caps)?;
        Ok(self.clone())
    }

    /// Creates a lock by name. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the name is empty or too long.
    pub fn lock<N>(&self, name: N) -> Result<Lock, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let (caps, settings) = (&self.engine.caps, &self.engine.settings);
        let usual = || DEFAULT_TTL.min(caps.ttl_max.min(settings.max_ttl)).max(caps.ttl_min);
        let name = name.try_into().map_err(Error::from)?;
        Ok(Lock {
            engine: Arc::clone(&self.engine),
            class: self.engine.metrics.class_of(&name),
            name,
            ttl: settings.default_ttl.unwrap_or_else(usual),
            policy: Arc::clone(&self.engine.default_policy),
            hold: HoldKind::Guarded,
        })
    }

    /// Takes over a lock that was [detached](LockGuard::detach), by renewing it. It is renewed from
    /// then on as locks are by default; a renewal policy or minimum hold of before is not known
    /// here.
    ///
    /// One adopter at a time: two of them would hold the same lock as the same owner.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::NotHeld`]: the backend does not know the owner as the holder any more.
    /// * [`ErrorKind::Unsupported`]: the backend has no detached holds.
    /// * [`ErrorKind::FenceRegressed`]: the token went back. The detached lock had a higher one, or
    ///   this locker has seen a higher one.
    /// * [`ErrorKind::Unavailable`]: also if [`Detached::token`] is unknown, and the backend cannot
    ///   tell it. The lease was renewed, and the lock stays detached.
    /// * Any other kind: the backend did not say. The lock stays detached.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the lease renewed. The lock stays detached.
    pub async fn adopt(&self, detached: Detached) -> Result<LockGuard, Error> {
        let name = detached.name.clone();
        self.engine
            .within(self.adopt_detached(detached))
            .await
            .map_err(|error| self.engine.explain(error, "adopt", Some(&name)))
    }

    async fn adopt_detached(&self, detached: Detached) -> Result<LockGuard, Error> {
        let engine = &self.engine;
        let (claim_state, grant) = self.confirm(&detached).await?;
        if grant.token.is_none() && engine.caps.fencing != Fencing::None {
            let message = "the backend cannot tell its fencing token; pass the token on with the \
                           owner id";
            return Err(Error::new(ErrorKind::Unavailable, message).applied(Effect::Unknown));
        }
        let policy = Arc::clone(&engine.default_policy);
        let holder = HolderInfo::first(detached.owner, Moment::now());
        let hold = Hold::new(Arc::clone(engine), policy, claim_state, None, &grant, holder);
        Ok(LockGuard::new(hold))
    }

    /// Renews a [detached](LockGuard::detach) lock once, and leaves it detached: for a lock that is
    /// passed from one short-lived process to the next. Returns how long it is held from now on if
    /// nothing more is done, with the same margin as [`valid_for`](LockGuard::valid_for): the lease
    /// lasts at least [`Detached::ttl`], and is never shortened.
    ///
    /// # Errors
    ///
    /// As [`adopt`](Self::adopt), but the token need not be known.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave the lease renewed. The lock stays detached.
    pub async fn renew_detached(&self, detached: &Detached) -> Result<Duration, Error> {
        let renewed = async {
            let (_, grant) = self.confirm(detached).await?;
            let deadline = Hold::deadline_of(&self.engine, &grant).ok_or_else(|| {
                Error::new(
                    ErrorKind::BackendBroken,
                    "the backend granted a detached lock without end",
                )
            })?;
            Ok(deadline.remaining())
        };
        let renewed = self.engine.within(renewed).await;
        renewed.map_err(|error| self.engine.explain(error, "renew", Some(&detached.name)))
    }

    /// Releases a [detached](LockGuard::detach) lock, and waits for the answer for at most the
    /// locker's timeout. It is not renewed before, so a failure excludes other clients no longer.
    ///
    /// `Ok` exactly if the backend confirmed that the owner held the lock until now. A minimum hold
    /// there is not: a detachable lock has none.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::NotHeld`]: the backend does not know the owner as the holder any more.
    /// * [`ErrorKind::Gone`]: it is gone, but an answer was lost, so the cause is unknown.
    /// * [`ErrorKind::Unsupported`]: the backend has no detached holds.
    /// * Any other kind: it is not known to be gone. It ends with its lease; the same call again
    ///   does no harm to a later holder.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the lock was released.
    pub async fn release_detached(&self, detached: &Detached) -> Result<(), Error> {
        self.engine
            .within(self.release_claim(detached))
            .await
            .map_err(|error| self.engine.explain(error, "release", Some(&detached.name)))
    }

    async fn release_claim(&self, detached: &Detached) -> Result<(), Error> {
        let engine = &self.engine;
        self.demand(engine.caps.detached, "detached holds")?;
        let class = engine.metrics.class_of(&detached.name);
        let mut release = PendingRelease::of_detached(engine, claim_of(detached), class);
        match release.release_with_timeout().await {
            Ok(ReleaseOutcome::Released) => Ok(()),
            Ok(ReleaseOutcome::NotHeld) => Err(not_held()),
            Ok(ReleaseOutcome::Gone) => Err(gone()),
            Err(fault) => Err(Error::from_fault(fault).applied(Effect::Unknown)),
        }
    }

    /// Renews a detached lock. The claim that it is held by now, and its grant.
    async fn confirm(&self, detached: &Detached) -> Result<(ClaimState, Grant), Error> {
        let engine = &self.engine;
        self.demand(engine.caps.detached, "detached holds")?;
        engine.check_ttl(detached.ttl)?;
        engine.check_open()?;
        // Whether attempts of it are under way is not known here.
        let class = engine.metrics.class_of(&detached.name);
        let mut claim_state = ClaimState::new(claim_of(detached), true, class);
        let claim_states = &mut [&mut claim_state];
        let answer =
            renewer::renew(engine, claim_states, None, engine.settings.timeout).await.pop();
        let mut grant = match answer {
            // A later grant of the same owner is that of a late attempt. No holder uses it.
            Some(Ok(Renewal::Held(grant))) if is_later(grant.token, detached.token) => {
                let release = PendingRelease::of_detached(engine, claim_of(detached), class);
                engine.spawn(release.release_until_expiry());
                return Err(not_held());
            }
            Some(Ok(Renewal::Held(grant))) => grant,
            Some(Err(fault)) => return Err(Error::from_fault(fault)),
            Some(Ok(Renewal::NotHeld)) | None => return Err(not_held()),
        };
        if !Hold::leaves_enough(engine, &grant, detached.ttl, Moment::now()) {
            return Err(too_slow());
        }
        grant.token = grant.token.or(detached.token);
        if grant.token < detached.token {
            let message = "the fencing token is lower than the one that was detached";
            return Err(Error::new(ErrorKind::FenceRegressed, message));
        }
        if grant.token.is_some_and(|token| !engine.has_not_shrunk(&detached.name, token)) {
            let message =
                "the fencing token is lower than one seen before; did the backend lose its data?";
            return Err(Error::new(ErrorKind::FenceRegressed, message));
        }
        claim_state.claim.ticket.clone_from(&grant.ticket);
        Ok((claim_state, grant))
    }

    /// Returns the holder of a lock and the number of waiters. Takes no lock and affects no client.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the backend cannot tell, before anything is sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect<N>(&self, name: N) -> Result<LockState, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = &name.try_into().map_err(Error::from)?;
        let explain = |error| self.engine.explain(error, "inspect", Some(name));
        self.demand(self.engine.caps.inspecting, "inspect").map_err(explain)?;
        let verb = async { self.engine.backend.inspect(name).await };
        self.ask(verb).await.map_err(explain)
    }

    /// Returns the locks held now whose names start with `prefix`, sorted by name: at most `limit`
    /// that come after `after`, and fewer only if there are no more. Very long names may be left
    /// out: see the limits of the backend.
    ///
    /// Each page may cost a look at every key of the server. So ask for few large pages, and raise
    /// [`LockerBuilder::timeout`] for a server with many keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the backend cannot list, before anything is sent, or if the
    /// server has more keys than a list may look at.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Error> {
        let explain = |error| self.engine.explain(error, "list the locks", None);
        self.demand(self.engine.caps.listing, "list").map_err(explain)?;
        let verb = async { self.engine.backend.list(prefix, after, limit).await };
        self.ask(verb).await.map_err(explain)
    }

    /// Ends the hold of `expected` by force, and of no other owner: a holder that came after the
    /// one inspected is left alone. The holder is notified at its next renewal. Returns true if
    /// this call ended it.
    ///
    /// If the lock was [handed over](LockerBuilder::local_handovers) in this locker, `expected` may
    /// be the owner of its guard as well as the one that the backend knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the backend cannot break locks, before anything is sent. After
    /// one whose [`effect`](Error::effect) is unknown the hold may have ended: no answer came, or
    /// of several servers some have ended it, or may have, and most did not know it.
    /// [`inspect`](Self::inspect) shows the current holder.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves open whether the hold was ended.
    pub async fn break_lock<N>(&self, name: N, expected: &OwnerId) -> Result<bool, Error>
    where
        N: TryInto<LockName>,
        Error: From<N::Error>,
    {
        let name = &name.try_into().map_err(Error::from)?;
        let explain = |error| self.engine.explain(error, "break", Some(name));
        self.demand(self.engine.caps.breaking, "break").map_err(explain)?;
        let verb = async {
            let Some(successor) = renewer::successor(&self.engine, name, expected) else {
                return self.engine.backend.break_lock(name, expected).await;
            };
            // While this is under way, the lock is not handed over.
            let claim_state = successor.claim_state.lock().await;
            match successor.ended.get() {
                None => self.engine.backend.break_lock(name, &claim_state.claim.owner).await,
                Some(_) => Ok(false),
            }
        };
        self.ask(verb).await.map_err(explain)
    }

    /// Returns which server this is, and for how long it has been up; `None` if the backend cannot
    /// tell.
    ///
    /// # Errors
    ///
    /// If the backend cannot be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn identity(&self) -> Result<Option<Identity>, Error> {
        let explain = |error| self.engine.explain(error, "identify the server", None);
        let verb = async { self.engine.backend.identity().await };
        self.ask(verb).await.map_err(explain)
    }

    /// Refuses new acquisitions, ends the waiting ones with [`ErrorKind::Closed`], and waits until
    /// they are gone and the releases that run in the background are done, at most the locker's
    /// timeout. A release that pauses after a failure is repeated at once, and then every 100 ms
    /// for that time. Guards stay valid; drop them first if their releases are to be waited for.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Timeout`] if some were not done. They go on as long as the process lives; their
    /// residue expires with its lease.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the locker closed.
    pub async fn close(&self) -> Result<(), Error> {
        let engine = &self.engine;
        let explain = |error| engine.explain(error, "close the locker", None);
        let closing = async {
            let _ = engine.closing.set(Moment::now());
            engine.tasks.close();
            tokio::select! {
                biased;
                // Acquisitions as well: each is one of the tasks until its release is another.
                () = engine.tasks.wait() => Ok(()),
                () = sleep_until(Moment::now() + engine.settings.timeout) => {
                    let message = format!(
                        "{} acquisitions and {} releases did not end within {:?}; what they leave ends with its lease",
                        engine.settings.max_pending - engine.pending.available_permits(),
                        engine.tasks.len(),
                        engine.settings.timeout
                    );
                    Err(Error::new(ErrorKind::Timeout, message))
                }
            }
        };
        engine.within(closing).await.map_err(explain)
    }

    /// Calls a verb within the locker's timeout.
    async fn ask<T>(&self, verb: impl Future<Output = Result<T, Fault>>) -> Result<T, Error> {
        let answer = async {
            let answer = self.engine.call(self.engine.settings.timeout, verb).await;
            answer.map_err(Error::from_fault)
        };
        self.engine.within(answer).await
    }

    fn demand(&self, support: Support, what: &str) -> Result<(), Error> {
        match support {
            Support::Present => Ok(()),
            Support::Absent => Err(Error::new(
                ErrorKind::Unsupported,
                format!("the {} backend does not support {what}", self.engine.caps.backend),
            )),
        }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("backend", &self.engine.caps.backend).finish_non_exhaustive()
    }
}

const DEFAULT_TTL: Duration = Duration::from_secs(30);

fn claim_of(detached: &Detached) -> Claim {
    let mut claim = Claim::new(detached.name.clone(), detached.owner, detached.ttl);
    claim.hold = HoldKind::Detached;
    claim
}

/// Returns true if both tokens are known and the first one is of a later grant.
fn is_later(token: Option<FencingToken>, than: Option<FencingToken>) -> bool {
    than.is_some() && token > than
}

fn not_held() -> Error {
    Error::new(ErrorKind::NotHeld, "the owner does not hold it any more")
}

impl LockerBuilder {
    /// Returns the backend that it is built on.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Sets how long one call of the backend may take, whether or not the server answers. Default:
    /// 5 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets the lease that locks ask for by default. Default: 30 s, within the backend's limits.
    #[must_use]
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.settings.default_ttl = Some(ttl);
        self
    }

    /// Sets the longest lease that may be asked for: a lock whose holder crashed stays shut that
    /// long. Default: one day.
    #[must_use]
    pub fn max_ttl(mut self, ttl: Duration) -> Self {
        self.settings.max_ttl = ttl;
        self
    }

    /// Sets how long a waiter goes on waiting while the backend does not answer at all. Default: 5
    /// min.
    #[must_use]
    pub fn outage_timeout(mut self, outage_timeout: Duration) -> Self {
        self.settings.outage_timeout = outage_timeout;
        self
    }

    /// Sets how many acquisitions may be under way at once, at most 2²⁴. Default: 100 000.
    #[must_use]
    pub fn max_pending(mut self, limit: usize) -> Self {
        self.settings.max_pending = limit.min(1 << 24);
        self
    }

    /// Sets where renewals, notifications of losses and background releases run. Default: on the
    /// backend's [executor](Backend::executor), or on a thread that is started with the first lock;
    /// and in a runtime whose clock is paused, on that one. A test may give its own runtime here.
    #[must_use]
    pub fn executor(mut self, executor: Executor) -> Self {
        self.settings.executor = Some(executor);
        self
    }

    /// Sets the label that `inspect` shows of the holder. Default: none.
    #[must_use]
    pub fn label(mut self, label: Label) -> Self {
        self.settings.label = Some(label);
        self
    }

    /// Hands a released lock to the next waiter of this locker, without a request, up to `at_most`
    /// times in a row; then it is released on the backend. Default: 0, not at all.
    ///
    /// Where the backend keeps waiters [in order](crate::Order::Fifo), other processes have their
    /// turn then. Where it does not, they may have it: the next waiter of this process asks for the
    /// lock like theirs, and at once.
    ///
    /// A hand-over costs a few microseconds and no request, so many waiters of one process cost the
    /// backend little more than one. It keeps all promises but one: waiters of other processes,
    /// which may have come before, wait for up to `at_most` holds more. So the
    /// [order](Capabilities::order) is [`PerProcess`](crate::Order::PerProcess) then, and only one
    /// waiter of this locker at a time is in its queue.
    ///
    /// Each holder has its own owner id and a higher [fencing token](FencingToken). The backend
    /// knows only the owner id of the first one, and [`inspect`](Locker::inspect) shows that.
    /// [`break_lock`](Locker::break_lock) with it ends the hold of the current holder. A lock is
    /// released on the backend if it is [detachable](Lock::detachable), or if one of the waiters
    /// asks for a detachable lock or for another ttl. The same holds if its lease is nearly over,
    /// if its last renewal was not answered, and before the end of a [minimum hold](Lock::min_hold).
    ///
    /// A backend with a [`polling_share`](Capabilities::polling_share) never hands a lock over: its
    /// locks have to be free now and then.
    ///
    /// Await [`close`](Locker::close) before the process ends, also after releases that were
    /// awaited: a lock that was handed to a waiter that is gone by then is released in the
    /// background.
    #[must_use]
    pub fn local_handovers(mut self, at_most: u8) -> Self {
        self.settings.local_handovers = at_most;
        self
    }

    /// Sets the label `class` of metrics by the name of the lock. Default: `default` for all.
    ///
    /// A name is never a label: applications make names from their data, and each label value costs
    /// the monitoring system a time series. So a class is a `&'static str`, and a locker records at
    /// most 32 of them; the locks of further ones are of the class `other`. The function is called
    /// when a [`Lock`] is made. The same name has to have the same class each time.
    ///
    /// Install the recorder before the first lock is made: its handles are kept from then on.
    ///
    /// ```
    /// use lock_core::{LockName, Locker, Memory};
    ///
    /// let class = |name: &LockName| match name.as_str().split_once('/') {
    ///     Some(("orders", _)) => "orders",
    ///     Some(("reports", _)) => "reports",
    ///     _ => "other",
    /// };
    /// let locks = Locker::builder(Memory::new()).metrics_class(class).build();
    /// ```
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn metrics_class(
        mut self,
        class: impl Fn(&LockName) -> &'static str + Send + Sync + 'static,
    ) -> Self {
        self.settings.classes = Classes::new(class);
        self
    }

    /// Builds the locker.
    #[must_use]
    pub fn build(self) -> Locker {
        Locker { engine: Arc::new(Engine::new(self.backend, self.settings)) }
    }
}

/// One lock by name, and how it is to be held. Nothing is sent before one of the acquiring methods
/// is awaited.
///
/// Not re-entrant: a task that holds the lock and acquires it again waits for itself.
#[derive(Clone)]
#[must_use = "nothing is acquired before one of the acquiring methods is awaited"]
pub struct Lock {
    engine: Arc<Engine>,
    name: LockName,
    ttl: Duration,
    policy: Arc<HoldPolicy>,
    hold: HoldKind,
    class: Class,
}

impl Lock {
    /// Sets the lease: how long the lock stays unavailable after its holder crashed. It is renewed
    /// at each third. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets whether and how long the lock is renewed. Default: at each third of the lease, for
    /// ever.
    pub fn renewal(mut self, policy: RenewalPolicy) -> Self {
        Arc::make_mut(&mut self.policy).renewal = policy;
        self
    }

    /// Keeps others out for at least this long after the grant arrived, even if the lock is
    /// released earlier: for jobs that must run once per period although the hosts' clocks differ.
    ///
    /// Where the backend declares [`minimum_hold`](Capabilities::minimum_hold), a release keeps the
    /// lease until then, and up to one per cent longer, since the server's clock may run fast.
    /// Where it does not, the release is held back until then, in this process. Neither survives a
    /// crash of the holder for longer than its lease. An acquisition that is dropped excludes no
    /// client: without a guard there is no minimum.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        Arc::make_mut(&mut self.policy).min_hold = Some(min_hold);
        self
    }

    /// Makes the guard [detachable](LockGuard::detach). Not together with a minimum hold or a
    /// longest hold, which the adopting process would not know.
    pub fn detachable(mut self) -> Self {
        self.hold = HoldKind::Detached;
        self
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Waits for the lock, as long as it takes.
    ///
    /// If the backend does not answer the first attempt, that is an error at once. A waiter goes on
    /// waiting through an outage, up to the locker's
    /// [outage_timeout](LockerBuilder::outage_timeout).
    ///
    /// A tenth of the ttl is left when this returns a guard, or 100 ms if that is less. The lease
    /// counts from before the attempt was sent: if a slow answer leaves less, the backend is asked
    /// once more. After that, the claim is released and made anew.
    /// [`valid_for`](LockGuard::valid_for) tells how much is left.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`]. The residue of a failed acquisition is cleaned up in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the position in the queue. A request on the wire is not cut: its
    /// outcome is awaited in the background and undone. Do not keep the future without polling it:
    /// it keeps its position meanwhile, and the waiters behind it wait.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        match self.acquire_for(Waits::ForEver).await? {
            Some(guard) => Ok(guard),
            None => {
                Err(self
                    .explain(Error::new(ErrorKind::BackendBroken, "waiting ended without a lock")))
            }
        }
    }

    /// Takes the lock if it is free; `None` if another claim holds it. Never queues. As much of the
    /// lease is left as by [`acquire`](Self::acquire), or it is an error.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). A failure is never reported as `None`.
    ///
    /// # Cancel safety
    ///
    /// A request on the wire is not cut: its outcome is awaited in the background and undone.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, Error> {
        self.acquire_for(Waits::Not).await
    }

    /// Waits for the lock for at most `wait`; `None` if other claims held it all the time.
    ///
    /// Returns within `wait`, or within the locker's timeout from the first attempt if the backend
    /// does not answer that one before. Behind another waiter of this process, the first attempt is
    /// that waiter's. A `wait` of zero is [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire). If the backend fails while `wait` ends, or has been silent
    /// for half a timeout by then, that is the error: a failure is never reported as `None`.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<LockGuard>, Error> {
        self.acquire_for(if wait.is_zero() { Waits::Not } else { Waits::For(wait) }).await
    }

    async fn acquire_for(&self, waits: Waits) -> Result<Option<LockGuard>, Error> {
        let progress = Arc::new(WaitProgress::default());
        let claim = self.claim(&waits);
        let span = tracing::debug_span!(
            "acquire",
            lock.name = self.name.as_str(),
            lock.backend = self.engine.caps.backend,
            lock.owner = %claim.owner.short(),
            lock.token = tracing::field::Empty,
            lock.outcome = tracing::field::Empty,
            "error.type" = tracing::field::Empty,
            otel.status_code = tracing::field::Empty,
        );
        let record = self.engine.metrics.acquisition(self.class);
        let record_failure = |record: AcquisitionRecord<'_>, error: &Error| {
            record.failed(error.kind(), progress.began());
            span.record("lock.outcome", "failed");
            span.record("error.type", error.kind().as_str());
            span.record("otel.status_code", "ERROR");
        };
        let mut acquiring = match self.start(claim, &waits, &progress) {
            Ok(acquiring) => acquiring,
            Err(error) => {
                record_failure(record, &error);
                return Err(error);
            }
        };
        let interrupted = |interrupted| Err(Error::from(interrupted));
        let result = async {
            let seeking = async {
                match waits {
                    Waits::Not | Waits::ForEver => acquiring.await.unwrap_or_else(interrupted),
                    Waits::For(wait) => {
                        tokio::select! {
                            biased;
                            result = &mut acquiring => result.unwrap_or_else(interrupted),
                            cut = Box::pin(self.engine.within(async {
                                sleep(wait).await;
                                progress.finish_wait(self.engine.settings.timeout).await
                            })) => cut.map(|()| None),
                        }
                    }
                }
            };
            if matches!(waits, Waits::Not) || !tracing::enabled!(tracing::Level::INFO) {
                return seeking.await;
            }
            tokio::select! {
                biased;
                result = seeking => result,
                never = Box::pin(self.report_long_wait()) => match never {},
            }
        }
        .instrument(span.clone())
        .await;
        match &result {
            Ok(Some(guard)) => {
                record.acquired(progress.began(), guard.hold().holder.granted_at);
                let token = guard.fencing_token().map(FencingToken::as_i64);
                span.record("lock.token", token);
                span.record("lock.outcome", "acquired");
                span.in_scope(|| tracing::debug!("acquired"));
            }
            Ok(None) => {
                record.contended(progress.began());
                span.record("lock.outcome", "contended");
                span.in_scope(|| tracing::debug!("contended"));
            }
            Err(error) => record_failure(record, error),
        }
        result.map_err(|error| self.explain(error))
    }

    /// Logs a wait that lasts, with the holder, once: an operator looks for the process to blame.
    async fn report_long_wait(&self) -> Infallible {
        const LONG: Duration = Duration::from_secs(10);
        let report = async {
            sleep(LONG).await;
            let seen = match self.engine.caps.inspecting {
                Support::Present => {
                    let verb = async { self.engine.backend.inspect(&self.name).await };
                    self.engine.call(self.engine.settings.timeout, verb).await.ok()
                }
                Support::Absent => None,
            };
            let holder = seen.as_ref().and_then(|seen| seen.holders.first());
            // The span of the acquisition is at DEBUG, so this event names the lock itself.
            tracing::info!(
                lock.name = self.name.as_str(),
                lock.backend = self.engine.caps.backend,
                lock.holder = holder.and_then(|holder| holder.label.as_ref()).map(Label::as_str),
                lock.waiting = seen.as_ref().and_then(|seen| i64::try_from(seen.waiting?).ok()),
                "still waiting after 10 s"
            );
            Ok(())
        };
        // Without a runtime the wait itself ends with an error.
        let _ = self.engine.within(report).await;
        std::future::pending().await
    }

    fn claim(&self, waits: &Waits) -> Claim {
        let mut claim = Claim::new(self.name.clone(), OwnerId::mint(), self.ttl);
        claim.label.clone_from(&self.engine.settings.label);
        claim.on_contention = match waits {
            Waits::Not => OnContention::Return,
            Waits::For(_) | Waits::ForEver => OnContention::Queue,
        };
        claim.hold = self.hold;
        claim
    }

    /// Checks everything that can be checked before anything is sent.
    fn start(
        &self,
        claim: Claim,
        waits: &Waits,
        progress: &Arc<WaitProgress>,
    ) -> Result<FinishOnDrop<Result<Option<LockGuard>, Error>>, Error> {
        let engine = &self.engine;
        let explain = |error| self.explain(error);
        engine.check_ttl(self.ttl).map_err(explain)?;
        engine.check_policy(&self.policy, self.ttl, self.hold).map_err(explain)?;
        let policy = self.policy.for_caller().map_err(explain)?;
        if self.hold == HoldKind::Detached && engine.caps.detached == Support::Absent {
            let message = format!("the {} backend has no detached holds", engine.caps.backend);
            return Err(explain(Error::new(ErrorKind::Unsupported, message)));
        }
        engine.check_open().map_err(explain)?;
        engine.start().map_err(explain)?;
        let (tasks, runtime) = engine.background();
        let pending = Arc::clone(&engine.pending).try_acquire_owned().map_err(|_| {
            explain(Error::new(
                ErrorKind::Exhausted,
                format!("{} acquisitions are under way already", engine.settings.max_pending),
            ))
        })?;
        let mut acquisition = Acquisition::new(
            Arc::clone(engine),
            claim,
            policy,
            Arc::clone(progress),
            !matches!(waits, Waits::Not),
            pending,
            self.class,
        );
        let acquiring = async move {
            let acquired = acquisition.run().await;
            acquisition.finish(acquired)
        };
        Ok(FinishOnDrop::new(acquiring, Some(Arc::clone(progress)), tasks, runtime))
    }

    fn explain(&self, error: Error) -> Error {
        self.engine.explain(error, "acquire", Some(&self.name))
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
enum Waits {
    Not,
    For(Duration),
    ForEver,
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
