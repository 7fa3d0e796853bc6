//! The contract for backend authors: the [`Backend`] trait and its types.
//!
//! A backend translates: request out, answer or [`Fault`] in. It does not retry a verb, sleep on
//! its own account, log decisions or watch deadlines; core does all of that once, for every
//! backend. The laws a backend has to keep are numbered in `LAWS.md`, and the crate
//! `lock-conformance` checks them.
//!
//! Three rules carry most of the weight:
//!
//! * **Every verb is idempotent under its claim.** Assume that each request is delivered late,
//!   twice, or without an answer reaching you. The owner id in the claim tells whose it was.
//! * **Say only what you know.** A [`Fault`] that certainly changed nothing is
//!   [`Effect::NotApplied`]; everything else is [`Effect::Unknown`]. Contention is not a fault.
//! * **Any future may be dropped at any await.** Core drops a verb at its bound and calls
//!   [`release`](Backend::release) afterwards. Keep your connection in step.

mod capabilities;
mod claim;
pub(crate) mod fault;
mod grant;
mod release;
mod state;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

pub use capabilities::{
    Capabilities, Durability, Fencing, Order, Reach, Requirements, Support, Takeover, Wakeup,
};
pub use claim::{Claim, HoldKind, Mode, OnContention, Ticket};
pub use fault::{Effect, Fault, FaultKind};
pub use grant::{Attempt, Grant, Lease, LeaseLimit, Renewal, Wake};
pub use release::{LateAttempt, Release, ReleaseMode};
pub use state::{Holder, Identity, Listed, LockState, MemberState};

use crate::executor::Executor;
use crate::name::LockName;
use crate::owner::OwnerId;

/// The time, besides two leases, for which a queue entry lasts after the last attempt of its claim.
pub const QUEUE_ENTRY_GRACE: Duration = Duration::from_secs(5);

/// A store of locks.
///
/// No verb has a default: a forgotten one is a compile error. Verbs of one claim are never called
/// concurrently, except for [`wait_lost`](Self::wait_lost); verbs of different claims are.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Returns the capabilities of this backend. Core calls it once. The laws check each declared
    /// capability, and check that the others are absent.
    fn capabilities(&self) -> Capabilities;

    /// Returns which server this really is, since when it is up, and for how long verbs reach it;
    /// `None` if the backend cannot tell. Asked again when the [epoch](Identity::epoch) is over.
    async fn identity(&self) -> Result<Option<Identity>, Fault>;

    /// Makes one attempt to get the lock, and does not wait.
    ///
    /// The same claim again is the same acquisition: it is answered `Acquired` with the same token
    /// or a higher one, above [`Claim::min_token`], and a lease that is never shorter. With
    /// [`OnContention::Queue`] the claim may enter the queue; without, a `Contended` leaves no
    /// residue. After a release that was answered and [expects no late attempt](LateAttempt), the
    /// claim may be attempted again. A queue entry expires [`QUEUE_ENTRY_GRACE`] and two leases
    /// after the last attempt of its claim, and not before: core attempts again once a lease, and a
    /// vanished client must not keep its queue entry for ever.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault>;

    /// Waits until another attempt is worthwhile, or until the server hands the lock over.
    ///
    /// Called after a `Contended`. Subscribe first, then check, then block, or a release between
    /// the attempt and the subscription is missed. May wake for nothing and may never wake: core
    /// polls after at most one lease. Core drops this future when it polls; a grant that was on its
    /// way then must be found by the next `try_acquire`.
    ///
    /// A claim that did not queue may wait as well: it gets [`Wake::Retry`] when the lock may be
    /// free, and no grant.
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault>;

    /// Waits until a claim that holds the lock may have lost it, so that core renews now.
    ///
    /// Called only where [`Capabilities::loss_push`] declares it, beside the other verbs of that
    /// claim. Returns at once if the lock was removed before. It takes, renews and ends nothing.
    /// Core drops the future when the hold ends, and perhaps only after the `release` was sent.
    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault>;

    /// Renews the leases of `claims`, one answer for each, in order.
    ///
    /// Never re-creates a lock that is gone, never adopts another owner's, and never shortens a
    /// lease: the new one ends at the later of the old end and `claim.ttl` from now.
    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>>;

    /// Removes all state of the claim, held or queued, and no state of another owner.
    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault>;

    /// Returns the holder of the lock and the number of waiters. Takes no lock and affects no
    /// client.
    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault>;

    /// Returns locks that are held now, sorted by name: names that start with `prefix`, after
    /// `after`, at most `limit`, and fewer only if there are no more.
    ///
    /// A page may cost a look at every key of the server. Where that has a bound, more keys than it
    /// are [`FaultKind::Unsupported`]. Names that cannot be told from their keys are left out.
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
    /// verb spawns, and timers and sockets that it makes, are the executor's, and need no line
    /// here. A backend that spawns tasks or opens sockets *before* its first verb, as in `connect`,
    /// does so within [`Executor::current_or_new`], keeps it, and returns it here. A backend around
    /// another one returns that one's. `None`: core makes one for each locker.
    ///
    /// A verb that blocks its thread delays its caller, or the renewals of its own lockers.
    fn executor(&self) -> Option<Executor> {
        None
    }
}
