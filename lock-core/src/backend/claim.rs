//! The request for a lock: [`Claim`], and the [`Ticket`] that a backend gets back with each verb.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::token::FencingToken;

/// One acquisition, from the first attempt to the release. Built by core; a backend reads it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub name: LockName,
    /// The owner id: new for every acquisition, and the only right to renew and release it.
    pub owner: OwnerId,
    /// The label of the holder, which `inspect` may show.
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
    /// [`Capabilities::min_token_supported`](crate::Capabilities::min_token_supported) declares it.
    /// All attempts of a claim that queues have the same one, because the queue entry may contain
    /// it.
    pub min_token: Option<FencingToken>,
    /// The ticket of the last grant of this claim.
    pub ticket: Option<Ticket>,
}

impl Claim {
    /// Creates a plain claim: exclusive, guarded, not queued. For core, and for checks that speak
    /// to a backend directly; set the fields from there.
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

    /// Checks the mode, for backends that support no other [`Mode`].
    ///
    /// # Errors
    ///
    /// [`FaultKind::Unsupported`](crate::backend::FaultKind::Unsupported) if the claim is for another one.
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
    /// The claim waits: it may enter the queue, and its wake-ups may be set up with the attempt.
    /// Core releases the claim when the wait ends without the lock.
    Queue,
}

/// Whether a hold is bound to the process that won it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldKind {
    /// By a guard in this process.
    #[default]
    Guarded,
    /// By any process that knows the owner id, until the lease ends.
    Detached,
}

/// Opaque state that a backend wants back with each later verb of the claim: a compare-and-swap
/// number, a session, an open file. Cloning is cheap. When the last clone is dropped, so is the
/// state.
#[derive(Clone)]
pub struct Ticket(Arc<dyn Any + Send + Sync>);

impl Ticket {
    /// Wraps the state.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(state: T) -> Self {
        Self(Arc::new(state))
    }

    /// Returns the state, if it is a `T`.
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
