//! Locks without contention: taken by native commands, which cost the server less than the script.
//!
//! An attempt sends `SET NX PX` and `INCRBY` of the token key in one write. It is a grant if the
//! lock was free and the number is usable. Every other outcome is left to the script. It removes
//! the value without a token if the queue's head came before, and else adds a token. So this path
//! decides nothing but the simplest case.
//!
//! The increment is that from the last token of this client, which released the lock a moment ago
//! on this connection, to the next one, which is above a minimum token. A number counts only if it
//! is that one.
//!
//! * Then nobody is queued. That last hold began without a queue, and each claim that is queued
//!   since has raised the token key.
//! * The counter alone does not keep tokens growing when data is lost. But a restarted server
//!   breaks the connection. A server that is demoted, loses data to its new primary, and is
//!   promoted again needs longer than that moment.

use lock_core::backend::{Attempt, Claim, Effect, Fault, HoldKind};
use lock_core::clock::Moment;

use crate::backend::Redis;
use crate::keys::LockKeys;
use crate::limits::{TOKEN_RETENTION, millis};
use crate::recent::{MOMENT, is_recent};
use crate::value::Value;
use crate::verbs::held::HeldLock;

/// The outcome of an attempt without a script.
pub(crate) struct Uncontended {
    /// `None`: the script has to attempt.
    pub(crate) granted: Option<Attempt>,
    /// The lock may have a value of this claim.
    pub(crate) may_have_its_value: bool,
}

impl Uncontended {
    pub(crate) const NOTHING_DONE: Self = Self { granted: None, may_have_its_value: false };
}

impl Redis {
    /// Attempts without a script, if this client released the lock a moment ago.
    ///
    /// Not in a cluster, where keys move one by one. Not if locks are left free for clients that
    /// poll.
    pub(crate) async fn attempt_uncontended(
        &self,
        claim: &Claim,
        keys: &LockKeys,
    ) -> Result<Uncontended, Fault> {
        let servers = &self.inner.servers;
        let client = &servers.client;
        let is_plain = claim.hold == HoldKind::Guarded
            && claim.ticket.is_none()
            && !servers.are_many()
            && client.polling_share.is_none();
        let last = if is_plain { client.recent.take(keys.lock()) } else { None };
        let Some((released_at, last)) = last else { return Ok(Uncontended::NOTHING_DONE) };
        let (link, connection) = servers.reach(keys).await?;
        let lasts = last.token_key_until + MOMENT;
        let ends = Moment::now() + claim.ttl + TOKEN_RETENTION;
        if last.connection != connection.id() || !connection.may_count() || ends > lasts {
            return Ok(Uncontended::NOTHING_DONE);
        }
        let Some(token) = last.next_token(claim.min_token) else {
            return Ok(Uncontended::NOTHING_DONE);
        };
        let value = Value::text(&claim.owner, 0, claim.label.as_ref());
        let (by, ttl) = (token - last.token, millis(claim.ttl));
        let (asked, taken) = link.take(&connection, keys, &value, ttl, by).await?;
        // Another one would mean that somebody else had the lock meanwhile, or that data was lost.
        match taken.number == Some(token) {
            true if taken.is_set && is_recent(released_at) => {
                let held = HeldLock {
                    token,
                    token_key_until: last.token_key_until,
                    script_token: last.script_token,
                    connection: connection.id(),
                    is_new: true.into(),
                    is_stored: false,
                };
                let granted = Some(Attempt::Acquired(held.grant(claim.ttl, asked)?));
                client.waiters.leave(&claim.owner);
                self.inner.warned.forget(keys.lock());
                Ok(Uncontended { granted, may_have_its_value: true })
            }
            _ => {
                client.recent.contended(keys.lock());
                Ok(Uncontended { granted: None, may_have_its_value: taken.is_set })
            }
        }
    }
}

/// Returns the fault of a script after an attempt without one, whose value may be there.
pub(crate) fn after_a_value(fault: Fault) -> Fault {
    match fault.effect() {
        Effect::NotApplied => Fault::unknown(fault.kind(), fault.into_source()),
        _ => fault,
    }
}
