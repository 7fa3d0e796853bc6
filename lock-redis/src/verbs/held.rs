//! The state of a held lock besides its lease: its token, and the connection that granted it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::{Claim, Fault, Grant, Lease, Ticket};
use lock_core::clock::Moment;

use crate::fault::unexpected_answer;
use crate::limits::TOKEN_RETENTION;

/// The state of a held lock besides its lease.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) token: u64,
    /// The token key exists at least until then.
    pub(crate) token_key_until: Moment,
    /// The token of the last grant by a script. The token key exists for at least
    /// [`TOKEN_RETENTION`] after the server's clock has passed it.
    pub(crate) script_token: u64,
    /// By which connection this was said; 0 if it was sent.
    pub(crate) connection: u64,
    /// True for a fresh grant without waiters, which was neither renewed nor released yet.
    pub(crate) is_new: AtomicBool,
    /// The lock's value has the token. It has none yet if no script has granted the lock.
    pub(crate) is_stored: bool,
}

impl HeldLock {
    pub(crate) fn grant(self, lease: Duration, since: Moment) -> Result<Grant, Fault> {
        let token = FencingToken::from_backend(self.token)
            .ok_or_else(|| unexpected_answer("read the fencing token", self.token))?;
        Ok(Grant::new(Lease::For(lease), since).with_token(token).with_ticket(Ticket::new(self)))
    }

    /// Returns true for a fresh grant without waiters, which was neither renewed nor released yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed)
    }

    /// Returns true if the token key might expire too early after a lease that starts now.
    pub(crate) fn token_key_expires_soon(&self, now: Moment, ttl: Duration) -> bool {
        now + ttl + TOKEN_RETENTION > self.token_key_until
    }
}

pub(crate) fn held(claim: &Claim) -> Option<&HeldLock> {
    claim.ticket.as_ref()?.get()
}
