//! Items under the key of a lock, as the server returns them.

use std::time::Duration;

use lock_core::backend::{Attempt, Fault, FaultKind};

use crate::connection::wire::{Item, Reply};
use crate::fault::unexpected_reply;
use crate::value::Value;

/// Limit of repeated reads of a verb after changes by other clients.
pub(crate) const MAX_ROUNDS: u32 = 16;

/// The item under the key of a lock.
pub(crate) enum StoredItem {
    Nothing,
    /// A value of this backend, of any owner.
    Ours(Value, Item),
    Foreign(Item),
}

/// Returns the item of a reply to `get`.
pub(crate) fn seen(reply: Option<Reply>, action: &'static str) -> Result<StoredItem, Fault> {
    match reply {
        Some(Reply::Missing) => Ok(StoredItem::Nothing),
        Some(Reply::Value(item)) => Ok(match item.value.as_deref().and_then(Value::parse) {
            Some(value) => StoredItem::Ours(value, item),
            None => StoredItem::Foreign(item),
        }),
        Some(other) => Err(other.unexpected(action)),
        None => Err(unexpected_reply(action, "nothing")),
    }
}

/// Returns the answer to an attempt on a held lock.
pub(crate) fn contended(item: &Item) -> Attempt {
    Attempt::Contended { expires_in: item.expires_in.map(Duration::from_secs) }
}

/// Returns the fault of a key that other clients change all the time.
pub(crate) fn contested_key(key: &str) -> Fault {
    let why = format!("another client changes the key {key:?} all the time");
    Fault::unknown(FaultKind::Unavailable, why)
}
