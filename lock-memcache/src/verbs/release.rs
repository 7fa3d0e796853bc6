//! Releases and breaks: deletions that compare the owner.

use std::sync::Arc;

use lock_core::backend::{Claim, Fault, Release, ReleaseMode};
use lock_core::{LockName, OwnerId};

use crate::client::Client;
use crate::connection::Connection;
use crate::connection::wire::{Reply, Request};
use crate::holds::HoldTicket;
use crate::stored::{MAX_ROUNDS, StoredItem, contested_key, seen};

impl Client {
    /// Deletes the value of the claim. The value of a late attempt is deleted as well, and is not
    /// reported as the grant.
    pub(crate) async fn release(&self, claim: &Claim, _: ReleaseMode) -> Result<Release, Fault> {
        let (key, server) = self.server_of_lock(&claim.name);
        self.waiters.leave(&claim.owner, &key);
        let connection = server.link.connection().await?;
        let known = held(claim).map(HoldTicket::known);
        let here = known.filter(|known| known.connection == connection.id());
        let seen = here.map(|known| (known.cas, known.attempt));
        // The value of a late attempt is deleted as well, and was not the grant.
        match delete(&connection, &key, &claim.owner, seen, "release a lock").await? {
            Some(attempt) if known.is_none_or(|known| known.attempt == attempt) => {
                Ok(Release::Released)
            }
            _ => Ok(Release::NotHeld),
        }
    }

    /// Deletes the value of the owner `expected`.
    pub(crate) async fn break_lock(
        &self,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        let (key, server) = self.server_of_lock(name);
        let connection = server.link.connection().await?;
        Ok(delete(&connection, &key, expected, None, "break a lock").await?.is_some())
    }
}

/// Deletes the value of `owner`, and returns its attempt. Takes one round trip if its CAS number
/// and attempt were `seen` on this connection, and so in this life of the server.
pub(super) async fn delete(
    connection: &Connection,
    key: &str,
    owner: &OwnerId,
    mut seen: Option<(u64, u64)>,
    action: &'static str,
) -> Result<Option<u64>, Fault> {
    for _ in 0..MAX_ROUNDS {
        if let Some((cas, attempt)) = seen {
            match connection.ask_one(&Request::new().delete(key, cas)).await? {
                Reply::Done => return Ok(Some(attempt)),
                Reply::Missing => return Ok(None),
                Reply::Exists => {}
                other => return Err(other.unexpected(action)),
            }
        }
        let reply = connection.ask_one(&Request::new().get(key)).await?;
        match self::seen(Some(reply), action)? {
            StoredItem::Ours(value, item) if value.owner == *owner => {
                seen = Some((item.cas, value.attempt));
            }
            _ => return Ok(None),
        }
    }
    Err(contested_key(key))
}

/// Returns the ticket of a claim.
pub(super) fn held(claim: &Claim) -> Option<&HoldTicket> {
    claim.ticket.as_ref()?.get::<Arc<HoldTicket>>().map(|held| &**held)
}
