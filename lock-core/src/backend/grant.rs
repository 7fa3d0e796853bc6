//! The answers to attempts, waits and renewals: [`Grant`] and its [`Lease`].

use std::time::Duration;

use tokio::sync::watch;

use super::claim::Ticket;
use crate::clock::Moment;
use crate::token::FencingToken;

/// The answer to an attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// The lock is this claim's.
    Acquired(Grant),
    /// Another claim holds the lock or is queued before this one.
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
    /// The fencing token; `None` exactly where
    /// [`Capabilities::fencing`](crate::Capabilities::fencing) declares none. A renewal of a claim
    /// that another client acquired may leave it out, if the backend cannot tell it.
    pub token: Option<FencingToken>,
    /// The ticket to put into later claims.
    pub ticket: Option<Ticket>,
    /// How long the grant lasts.
    pub lease: Lease,
    /// From when the lease counts: a lower bound, for deadlines. Never later than the moment at
    /// which the server began to count: read the clock *before* the first byte of the request is
    /// written. An absolute moment, because a relative age goes stale while a process is stopped.
    pub since: Moment,
    /// The limit of the session that the lease lives in. `None` where each lease stands by itself.
    pub limit: Option<LeaseLimit>,
}

impl Grant {
    /// Creates a grant without token and ticket.
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
/// No lease counts beyond its limit, even if a longer one was acknowledged. For a backend whose
/// session may turn out to be shorter than it was, as when a server grants it less at a reconnect:
/// guards see the earlier end at once, without a task that has to run. All grants of one claim have
/// the same limit. A backend with limits declares [`loss_push`](crate::Capabilities::loss_push). A
/// task that awaits the loss learns of a move back once the lock has been held for a tenth of a
/// second, not before.
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
    /// [`renew`](crate::Backend::renew) at each third of the ttl, so that the backend can check.
    WhileProcessLives,
}
