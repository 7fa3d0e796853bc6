//! What a backend author reads: the [`Backend`] trait and the words it is made of.
//!
//! A backend translates: request out, answer or [`Fault`] in. It does not retry a verb, sleep on its
//! own account, log decisions or watch deadlines; core does all of that once, for every backend.
//! The laws a backend has to keep are numbered in `LAWS.md`, and the crate `conformance-tests`
//! checks them.
//!
//! Three rules carry most of the weight:
//!
//! * **Every verb is idempotent under its claim.** Assume that each request is delivered late,
//!   twice, or without an answer reaching you. The owner id in the claim tells whose it was.
//! * **Say only what you know.** A [`Fault`] that certainly changed nothing is
//!   [`Effect::NotApplied`]; everything else is [`Effect::Unknown`]. Contention is not a fault.
//! * **Any future may be dropped at any await.** Core drops a verb at its bound and calls
//!   [`release`](Backend::release) afterwards. Keep your connection in step.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::capabilities::Capabilities;
use crate::clock::Moment;
use crate::dial::Epoch;
use crate::executor::Executor;
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::token::FencingToken;

/// How long, besides two leases, a place in line lasts after the last attempt of its claim.
pub const QUEUE_ENTRY_GRACE: Duration = Duration::from_secs(5);

/// A place where locks live.
///
/// No verb has a default: a forgotten one is a compile error. Verbs of one claim are never called
/// concurrently, except for [`wait_lost`](Self::wait_lost); verbs of different claims are.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this backend promises. Asked once; what is declared here is checked by the laws, and
    /// what is not declared is checked to be absent.
    fn capabilities(&self) -> Capabilities;

    /// Returns which server this really is, since when it is up, and for how long verbs reach it;
    /// `None` if the backend cannot tell. Asked again when the [epoch](Identity::epoch) is over.
    async fn identity(&self) -> Result<Option<Identity>, Fault>;

    /// One attempt to get the lock. Does not wait.
    ///
    /// The same claim again is the same acquisition: it is answered `Acquired` with the same token
    /// (or a higher one if [`Claim::min_token`] demands it) and a lease that is never shorter. With
    /// [`OnContention::Queue`] the claim may take a place in line; without, a `Contended` leaves no trace. A place
    /// lapses [`QUEUE_ENTRY_GRACE`] and two leases after the last attempt of its claim, and not before: core
    /// attempts again once a lease, and who has vanished must not stand in line for ever.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault>;

    /// Waits until another attempt is worthwhile, or until the server hands the lock over.
    ///
    /// Called after a `Contended`. Subscribe first, then look, then block, or a release between the
    /// attempt and the subscription is missed. May wake for nothing and may never wake: core looks
    /// again by itself after at most one lease. Core drops this future when it looks; a grant that
    /// was on its way then must be found by the next `try_acquire`.
    ///
    /// A claim that did not queue may wait as well: it is told to look when the lock may be free, and is
    /// handed nothing.
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault>;

    /// Waits until a claim that holds the lock may have lost it, so that core renews now.
    ///
    /// Called only where [`Capabilities::loss_push`] declares it, beside the other verbs of that claim.
    /// Returns at once if the lock was removed before. It takes, renews and ends nothing. Core drops
    /// the future when the hold ends, and perhaps only after the `release` was sent.
    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault>;

    /// Renews the leases of `claims`, one answer for each, in order.
    ///
    /// Never re-creates a lock that is gone, never adopts another owner's, and never shortens a
    /// lease: the new one ends at the later of the old end and `claim.ttl` from now.
    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>>;

    /// Removes every trace of the claim, held or queued, and nothing of any other owner's.
    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault>;

    /// Who holds the lock, and how many wait. Takes no lock and disturbs nobody.
    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault>;

    /// Locks that are held now, sorted by name: names that start with `prefix`, after `after`, at
    /// most `limit`.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault>;

    /// Ends the hold of `expected`, and only of that owner: a newer holder than the one inspected
    /// is left alone. True if it was ended by this call, false if it certainly was not.
    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault>;

    /// Returns where the tasks of this backend run. Asked once, before the first verb.
    ///
    /// The caller's task polls every verb [within](Executor::within) this executor. So tasks that a
    /// verb spawns, and timers and sockets that it makes, are the executor's, and need no line here. A
    /// backend that spawns tasks or opens sockets *before* its first verb, as in `connect`, does so
    /// within [`Executor::current_or_new`], keeps it, and returns it here. A backend around another
    /// one returns that one's. `None`: core makes one for each locker.
    ///
    /// A verb that blocks its thread delays its caller, or the renewals of its own lockers.
    fn executor(&self) -> Option<Executor> {
        None
    }
}

/// One acquisition, from the first attempt to the release. Built by core; a backend reads it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// Who asks: new for every acquisition, and the only right to renew and release it.
    pub owner: OwnerId,
    /// What `inspect` may show of the holder.
    pub label: Option<Label>,
    /// The lease asked for, within the declared limits.
    pub ttl: Duration,
    /// How the lock is to be held.
    pub mode: Mode,
    /// How the claim responds to contention.
    pub on_contention: OnContention,
    /// Whether the hold may pass to another process.
    pub hold: HoldKind,
    /// The token must be higher than this. Only set where
    /// [`Capabilities::min_token_supported`] declares it.
    pub min_token: Option<FencingToken>,
    /// What the backend returned with the last grant of this claim.
    pub ticket: Option<Ticket>,
}

impl Claim {
    /// A plain claim: exclusive, guarded, does not queue. For core, and for checks that speak to a
    /// backend directly; set the fields from there.
    #[must_use]
    pub fn new(name: LockName, owner: OwnerId, ttl: Duration) -> Self {
        Self {
            name,
            owner,
            label: None,
            ttl,
            mode: Mode::Exclusive,
            on_contention: OnContention::Return,
            hold: HoldKind::Guarded,
            min_token: None,
            ticket: None,
        }
    }

    /// Returns whether the claim waits if it is contended.
    #[must_use]
    pub fn queues(&self) -> bool {
        self.on_contention == OnContention::Queue
    }

    /// For backends that know no other [`Mode`].
    ///
    /// # Errors
    ///
    /// [`FaultKind::Unsupported`] if the claim is for another one.
    pub fn must_be_exclusive(&self) -> Result<(), Fault> {
        match self.mode {
            Mode::Exclusive => Ok(()),
        }
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    #[default]
    Exclusive,
}

/// The response of a claim to contention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnContention {
    /// The claim returns: a contended attempt leaves no residue on the server.
    #[default]
    Return,
    /// The claim waits: it may enter the queue, and its wake-ups may be set up with the attempt. Core
    /// releases the claim when the wait ends without the lock.
    Queue,
}

/// Whether a hold is bound to the process that won it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldKind {
    /// By a guard in this process.
    #[default]
    Guarded,
    /// By whoever knows the owner id, until the lease ends.
    Detached,
}

/// Opaque state that a backend wants back with each later verb of the claim: a compare-and-swap
/// number, a session, an open file. Cloning is cheap. When the last clone is dropped, so is the state.
#[derive(Clone)]
pub struct Ticket(Arc<dyn Any + Send + Sync>);

impl Ticket {
    /// Wraps the state.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(state: T) -> Self {
        Self(Arc::new(state))
    }

    /// The state, if it is a `T`.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Ticket {
    /// Shows nothing of the state: it may be a right.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// The answer to an attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The lock is this claim's.
    Acquired(Grant),
    /// Somebody else has it, or is before us in line.
    Contended {
        /// When the holder's lease ends if it is not renewed; `None` if unknown or without lease.
        expires_in: Option<Duration>,
    },
}

/// Why a wait ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Wake {
    /// Another attempt may succeed now.
    Retry,
    /// The server handed the lock to this claim.
    Granted(Grant),
}

/// The answer to a renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// Still this claim's, with this lease.
    Held(Grant),
    /// Not this claim's any more.
    NotHeld,
}

/// A lock that was given to a claim.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The fencing token; `None` exactly where [`Capabilities::fencing`] declares none.
    pub token: Option<FencingToken>,
    /// What to put into later claims.
    pub ticket: Option<Ticket>,
    /// How long the grant lasts.
    pub lease: Lease,
    /// From when the lease counts: a lower bound, for deadlines. Never later than the moment at which the server began to count:
    /// read the clock *before* the first byte of the request is written. An absolute moment, because
    /// a relative age goes stale while a process is stopped.
    pub since: Moment,
    /// The limit of the session that the lease lives in. `None` where each lease stands by itself.
    pub limit: Option<LeaseLimit>,
}

impl Grant {
    /// A grant without token and ticket.
    #[must_use]
    pub fn new(lease: Lease, since: Moment) -> Self {
        Self { token: None, ticket: None, lease, since, limit: None }
    }

    /// Adds the fencing token.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds state that the backend wants back.
    #[must_use]
    pub fn with_ticket(mut self, ticket: Ticket) -> Self {
        self.ticket = Some(ticket);
        self
    }

    /// Returns the end of the lease as far as it is known now, within its limit; `None` without a
    /// lease.
    #[must_use]
    pub fn ends(&self) -> Option<Moment> {
        match (self.lease, &self.limit) {
            (Lease::For(lease), Some(limit)) => Some(limit.at().min(self.since + lease)),
            (Lease::For(lease), None) => Some(self.since + lease),
            (Lease::WhileProcessLives, _) => None,
        }
    }

    /// Adds the limit of the session that the lease lives in.
    #[must_use]
    pub fn with_limit(mut self, limit: LeaseLimit) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// The end of a session that leases live in, as far as it is known now. Clones share it.
///
/// No lease counts beyond its limit, whatever was acknowledged before. For a backend whose session
/// may turn out to be shorter than it was, as when a server grants it less at a reconnect: guards
/// see the earlier end at once, without a task that has to run. All grants of one claim have the
/// same limit. A backend with limits declares [`notices`](Capabilities::loss_push). A task that awaits
/// the loss learns of a move back once the lock has been held for a tenth of a second, not before.
#[derive(Clone, Debug)]
pub struct LeaseLimit(watch::Sender<Moment>);

impl LeaseLimit {
    /// Creates a limit.
    #[must_use]
    pub fn new(at: Moment) -> Self {
        Self(watch::Sender::new(at))
    }

    /// Returns the moment beyond which no lease counts.
    #[must_use]
    pub fn at(&self) -> Moment {
        *self.0.borrow()
    }

    /// Moves the limit, to an earlier or a later moment. Returns false if it has passed: then it
    /// stays, because holders have given up.
    #[must_use]
    pub fn move_to(&self, at: Moment) -> bool {
        let mut may_move = false;
        self.0.send_if_modified(|limit| {
            may_move = !limit.has_passed();
            may_move && std::mem::replace(limit, at) != at
        });
        may_move
    }

    /// Returns a receiver that hears of each move from now on.
    pub(crate) fn moves(&self) -> watch::Receiver<Moment> {
        self.0.subscribe()
    }
}

/// How long a grant lasts if nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lease {
    /// For this long from [`Grant::since`].
    For(Duration),
    /// As long as the holder's process lives: a kernel lock. Core still calls
    /// [`renew`](Backend::renew) at the rhythm of the ttl, so that the backend can look.
    WhileProcessLives,
}

/// How to let a claim go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseMode {
    /// Whether an attempt of this claim may still reach the server.
    pub late_attempt: LateAttempt,
    /// Keep others out for this much longer, and not longer, instead of letting them in now. Only
    /// set where [`Capabilities::minimum_hold`] declares it.
    pub keep: Option<Duration>,
}

impl ReleaseMode {
    /// At once, and nothing of the claim is under way any more.
    #[must_use]
    pub fn now() -> Self {
        Self::default()
    }

    /// Like [`now`](Self::now), after an attempt with an unknown outcome.
    #[must_use]
    pub fn after_unknown_outcome() -> Self {
        Self { late_attempt: LateAttempt::Possible, ..Self::default() }
    }

    /// Returns whether an attempt of this claim may still reach the server.
    #[must_use]
    pub fn expects_late_attempt(self) -> bool {
        self.late_attempt == LateAttempt::Possible
    }

    /// After `keep` from now.
    #[must_use]
    pub fn keep_for(keep: Duration) -> Self {
        Self { keep: Some(keep), ..Self::default() }
    }
}

/// Whether an attempt of a released claim may still reach the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LateAttempt {
    /// Each attempt was answered.
    #[default]
    Excluded,
    /// One may arrive later. A backend that can makes sure that it is refused.
    Possible,
}

impl From<bool> for LateAttempt {
    fn from(possible: bool) -> Self {
        if possible { Self::Possible } else { Self::Excluded }
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// This claim held the lock until this call.
    Released,
    /// It did not: it never won, lapsed, was broken, or was released before.
    NotHeld,
}

/// A server, as far as it can be told apart from others.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Identity {
    /// The same for two connections exactly if they reach the same server process.
    pub id: String,
    /// For how long that process has been running at least: who has forgotten what it gave is kept out by this for as
    /// long as leases last, so more than the truth is worse than nothing.
    pub up_for: Option<Duration>,
    /// For how long verbs are answered by this server: while they use the connection that told. An
    /// address leads to another server one day, and the next connection with it.
    pub epoch: Epoch,
}

impl Identity {
    /// Creates an identity that may be over: verbs may be answered by another server at any time.
    #[must_use]
    pub fn new(id: impl Into<String>, up_for: Option<Duration>) -> Self {
        Self { id: id.into(), up_for, epoch: Epoch::unknown() }
    }

    /// Sets for how long verbs are answered by this server.
    #[must_use]
    pub fn during(mut self, epoch: Epoch) -> Self {
        self.epoch = epoch;
        self
    }
}

/// What `inspect` sees of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// Who holds it; empty if it is free.
    pub holders: Vec<Holder>,
    /// How many wait in line on the server; `None` if the server does not know.
    pub waiting: Option<u64>,
    /// What each member of a quorum sees; empty if there is only one server to ask.
    pub members: Vec<MemberState>,
    /// The key of the lock on its server, for clients of other libraries; `None` if it has none.
    pub key: Option<String>,
}

impl LockState {
    /// The state of a lock.
    #[must_use]
    pub fn new(holders: Vec<Holder>, waiting: Option<u64>) -> Self {
        Self { holders, waiting, members: Vec::new(), key: None }
    }

    /// Adds the key of the lock on its server.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// What one member of a quorum sees of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberState {
    /// Which member it is; without credentials.
    pub name: String,
    /// Who holds the lock there; or why it does not say.
    pub holders: Result<Vec<Holder>, String>,
}

impl MemberState {
    /// What a member sees.
    #[must_use]
    pub fn new(name: impl Into<String>, holders: Result<Vec<Holder>, String>) -> Self {
        Self { name: name.into(), holders }
    }
}

/// What `inspect` sees of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Whose it is; `None` if the holder is not one of ours and left no owner id.
    pub owner: Option<OwnerId>,
    /// The label that the holder gave. Of a foreign holder, the kind of record that stands in place of
    /// the usual one, as `a Redis hash`.
    pub label: Option<Label>,
    /// For how long it has been held.
    pub held_for: Option<Duration>,
    /// When the lease ends if it is not renewed.
    pub expires_in: Option<Duration>,
    /// The fencing token of the grant; `None` also if the server learns it with the first renewal only.
    pub token: Option<FencingToken>,
}

impl Holder {
    /// A holder of whom only the owner is known; set the other fields from there.
    #[must_use]
    pub fn new(owner: Option<OwnerId>) -> Self {
        Self { owner, label: None, held_for: None, expires_in: None, token: None }
    }
}

/// A line of `list`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The lock.
    pub name: LockName,
    /// Its holders.
    pub state: LockState,
}

impl Listed {
    /// A line.
    #[must_use]
    pub fn new(name: LockName, state: LockState) -> Self {
        Self { name, state }
    }
}

/// Whether a failed operation may have changed something on the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It certainly changed nothing, now or later.
    NotApplied,
    /// It may have changed something, or may still do so.
    Unknown,
}

/// Why a verb failed. Contention is not a fault, and a fault is never reported as contention.
#[derive(Debug)]
pub struct Fault {
    effect: Effect,
    kind: FaultKind,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Unreachable, or refusing work for now: a waiter goes on trying.
    Unavailable,
    /// Wrong credentials, missing rights: trying again does not help.
    Denied,
    /// The backend does not do this.
    Unsupported,
    /// The server cannot take the request as it is.
    Invalid,
    /// No answer within the bound. Usually core's own finding.
    TimedOut,
    /// The backend broke its contract. Usually core's own finding: it caught a panic.
    Broken,
}

impl Fault {
    /// A failure that certainly changed nothing.
    #[must_use]
    pub fn not_applied(
        kind: FaultKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { effect: Effect::NotApplied, kind, source: source.into() }
    }

    /// A failure after which the request may have been applied, or may still be.
    #[must_use]
    pub fn unknown(
        kind: FaultKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { effect: Effect::Unknown, kind, source: source.into() }
    }

    /// For a verb that the backend does not declare.
    #[must_use]
    pub fn unsupported(what: &'static str) -> Self {
        Self::not_applied(FaultKind::Unsupported, what)
    }

    /// Whether something may have changed.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// The cause, in the backend's own words, without credentials.
    #[must_use]
    pub fn into_source(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.source
    }

    /// The same fault once more, for another claim of the batch.
    #[must_use]
    pub fn repeated(&self) -> Self {
        Self { effect: self.effect, kind: self.kind, source: self.source.to_string().into() }
    }

    /// True if waiting and asking again may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, FaultKind::Unavailable | FaultKind::TimedOut)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            Effect::NotApplied => "not applied",
            Effect::Unknown => "outcome unknown",
        };
        write!(f, "{:?}, {effect}", self.kind)
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
