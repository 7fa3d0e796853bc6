//! The state that a backend reports: its server, its locks and their holders.

use std::time::Duration;

use crate::dial::Epoch;
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::token::FencingToken;

/// A server, as far as it can be told apart from others.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Identity {
    /// The same for two connections exactly if they reach the same server process.
    pub id: String,
    /// The least time for which that process has been running. A server that lost its grants is
    /// excluded by it for as long as leases last, so an overestimate is worse than `None`.
    pub up_for: Option<Duration>,
    /// For how long verbs are answered by this server: while they use the connection that
    /// identified it. An address leads to another server one day, and the next connection with it.
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

/// The state of a lock, as `inspect` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The holders; empty if the lock is free.
    pub holders: Vec<Holder>,
    /// The number of waiters in the queue on the server; `None` if the server does not know.
    pub waiting: Option<u64>,
    /// The view of each member of a quorum; empty for a single server.
    pub members: Vec<MemberState>,
    /// The key of the lock on its server, for clients of other libraries; `None` if it has none.
    pub key: Option<String>,
}

impl LockState {
    /// Creates the state of a lock.
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

/// The state of a lock on one member of a quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberState {
    /// Which member it is; without credentials.
    pub name: String,
    /// The holders there, or the reason why the member does not answer.
    pub holders: Result<Vec<Holder>, String>,
}

impl MemberState {
    /// Creates the view of a member.
    #[must_use]
    pub fn new(name: impl Into<String>, holders: Result<Vec<Holder>, String>) -> Self {
        Self { name: name.into(), holders }
    }
}

/// A holder, as `inspect` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Whose it is; `None` if the holder is not one of ours and left no owner id.
    pub owner: Option<OwnerId>,
    /// The label that the holder gave. Of a foreign holder, the kind of record that stands in place
    /// of the usual one, as `a Redis hash`.
    pub label: Option<Label>,
    /// For how long it has been held.
    pub held_for: Option<Duration>,
    /// When the lease ends if it is not renewed.
    pub expires_in: Option<Duration>,
    /// The fencing token of the grant; `None` also if the server learns it with the first renewal
    /// only.
    pub token: Option<FencingToken>,
}

impl Holder {
    /// Creates a holder with its owner only; set the other fields from there.
    #[must_use]
    pub fn new(owner: Option<OwnerId>) -> Self {
        Self { owner, label: None, held_for: None, expires_in: None, token: None }
    }
}

/// An entry of `list`.
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
