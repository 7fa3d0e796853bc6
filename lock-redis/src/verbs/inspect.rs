//! Inspection of a lock.

use std::time::Duration;

use lock_core::backend::{Fault, Holder, LockState};
use lock_core::{Label, LockName};

use crate::backend::{Inner, Redis};
use crate::limits::duration;
use crate::scripts::Call;
use crate::topology::request::Request;
use crate::value::Value;

impl Redis {
    pub(crate) async fn inspect_lock(&self, name: &LockName) -> Result<LockState, Fault> {
        type AttemptOutcome = (Option<u64>, Option<Vec<u8>>, i64, u64, String);

        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(name)?;
        let script = &servers.client.scripts().inspect;
        let alone = Call::new(script, &[keys.lock()]);
        let request = Request::new("inspect", &keys, &alone);
        let with_queue;
        let request = match servers.client.is_fifo() {
            true => {
                with_queue = Call::new(script, &[keys.lock(), keys.queue()]);
                Request::new("inspect", &keys, &with_queue).with_fallback(&alone)
            }
            // Other waiters have no queue entry, so they are not known.
            false => request,
        };
        let (waiting, value, remaining, now, kind) =
            servers.run::<AttemptOutcome>(&request).await?.answer;
        let Some(value) = value else {
            return Ok(LockState::new(Vec::new(), waiting).with_key(keys.lock()));
        };
        // The value of a foreign client is not shown: it may be the right to unlock.
        let mut holder = Holder::new(None);
        if let Some(value) = Value::parse(&value) {
            holder.owner = Some(value.owner);
            // A lock that was taken without a script has no token until its first renewal.
            if value.token > 0 {
                holder.token = value.token();
                holder.held_for = now.checked_sub(value.token).map(Duration::from_micros);
            }
            holder.label = value.label;
        } else if !matches!(&*kind, "" | "string") {
            holder.label = Some(Label::new(&format!("a Redis {kind}")));
        }
        holder.expires_in = duration(remaining);
        Ok(LockState::new(vec![holder], waiting).with_key(keys.lock()))
    }
}
