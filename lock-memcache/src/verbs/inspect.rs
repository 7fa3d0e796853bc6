//! Reads: the holder of a lock and the identity of a server.

use std::time::Duration;

use lock_core::backend::{Fault, Holder, Identity, LockState};
use lock_core::{LockName, OwnerId};

use crate::client::Client;
use crate::connection::stat;
use crate::connection::wire::{Item, Reply, Request};
use crate::stored::{StoredItem, seen};

/// The key of a server's identity, once a client has asked for it. No lock has it, since no escape
/// begins like this.
const IDENTITY_KEY: &str = "%server";

/// Seconds by which the reported uptime of a server may exceed the truth: its count begins at 2,
/// and the fractions of its start and of now are cut off.
const UPTIME_EXCESS: u64 = 3;

impl Client {
    /// Returns the holder. The value of a foreign client is not shown, because it may be the right
    /// to unlock.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let (key, server) = self.server_of_lock(name);
        let connection = server.link.connection().await?;
        let reply = connection.ask_one(&Request::new().get(&key)).await?;
        // A foreign value is not shown: it may be the right to unlock.
        let mut holder = Holder::new(None);
        let item = match seen(Some(reply), "inspect a lock")? {
            StoredItem::Nothing => return Ok(LockState::new(Vec::new(), None).with_key(key)),
            StoredItem::Foreign(item) => item,
            StoredItem::Ours(value, item) => {
                holder.owner = Some(value.owner);
                holder.token = value.token();
                holder.label = value.label;
                item
            }
        };
        holder.expires_in = item.expires_in.map(Duration::from_secs);
        Ok(LockState::new(vec![holder], None).with_key(key))
    }

    /// Returns the identity of a single server; `None` for several, or for one that has been
    /// flushed. A flushed server has forgotten its identity: older connections know one that no new
    /// one learns.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let [server] = self.servers.as_slice() else { return Ok(None) };
        let connection = server.link.connection().await?;
        let request =
            Request::new().add(IDENTITY_KEY, 0, &OwnerId::mint().expose()).get(IDENTITY_KEY);
        let (_, mut replies) = connection.ask(&request).await?;
        let Some(Reply::Value(Item { value: Some(id), .. })) = replies.pop() else {
            return Ok(None);
        };
        // Asked afterwards: until now, no flush has deleted the key.
        let stats = connection.stats("").await?;
        if stat(&stats, "cmd_flush") != Some("0") {
            return Ok(None);
        }
        let up_for = stat(&stats, "uptime").and_then(|seconds| seconds.parse().ok());
        let up_for =
            up_for.map(|uptime: u64| Duration::from_secs(uptime.saturating_sub(UPTIME_EXCESS)));
        let identity = Identity::new(String::from_utf8_lossy(&id), up_for);
        Ok(Some(identity.during(server.link.epoch_of(&connection))))
    }
}
