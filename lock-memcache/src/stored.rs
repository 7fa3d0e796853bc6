//! Items under the key of a lock, as the server returns them.

use std::time::Duration;

use lock_core::backend::{Attempt, Fault, FaultKind};

use crate::connection::wire::{Item, Reply};
use crate::fault::unexpected_reply;
use crate::value::Value;

/// How often a verb looks again because somebody else has changed the key since its last look.
pub(crate) const MAX_ROUNDS: u32 = 16;

/// What stands under the key of a lock.
pub(crate) enum StoredItem {
    Nothing,
    /// A value of ours, of whatever owner.
    Ours(Value, Item),
    Foreign(Item),
}

pub(crate) fn seen(reply: Option<Reply>, doing: &'static str) -> Result<StoredItem, Fault> {
    match reply {
        Some(Reply::Missing) => Ok(StoredItem::Nothing),
        Some(Reply::Value(item)) => Ok(match item.value.as_deref().and_then(Value::parse) {
            Some(value) => StoredItem::Ours(value, item),
            None => StoredItem::Foreign(item),
        }),
        Some(other) => Err(other.unexpected(doing)),
        None => Err(unexpected_reply(doing, "nothing")),
    }
}

pub(crate) fn contended(item: &Item) -> Attempt {
    Attempt::Contended { expires_in: item.expires_in.map(Duration::from_secs) }
}

pub(crate) fn contested_key(key: &str) -> Fault {
    let why = format!("somebody else changes the key {key:?} all the time");
    Fault::unknown(FaultKind::Unavailable, why)
}
