//! Releases, and breaking the hold of another client.

use std::sync::atomic::Ordering;

use lock_core::backend::{Claim, Fault, Release, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::{LockName, OwnerId};

use crate::backend::{Inner, Redis};
use crate::connection::client_state::ClientState;
use crate::fault::unexpected_answer;
use crate::keys::LockKeys;
use crate::limits::millis;
use crate::queue::QueueEntry;
use crate::scripts::Call;
use crate::topology::request::Request;
use crate::value::Value;
use crate::verbs::held::{HeldLock, held};

impl Redis {
    pub(crate) async fn release_claim(
        &self,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let ClientState { waiters, queues, .. } = &*servers.client;
        waiters.leave(&claim.owner);
        queues.leave(&claim.owner);
        let keys = keys.of(&claim.name)?;
        let scripts = servers.client.scripts();
        // A granted claim has no queue entry any more.
        let may_wait = claim.queues() && claim.ticket.is_none();
        let channel = servers.client.channel(&keys).filter(|_| may_wait);
        let channel = channel.filter(|_| servers.client.is_fifo());
        // A claim that has raced in vain wakes no waiter. The shorter form does that, even if the
        // claim does not hold the lock.
        let may_hold = claim.ticket.is_some() || !claim.queues();
        let is_plain = channel.is_none() && may_hold && how == ReleaseMode::now();
        let (asked, is_new) = (Moment::now(), held(claim).is_some_and(HeldLock::is_new));
        if is_plain && self.release_uncontended(claim, &keys).await? {
            servers.client.recent.released(keys.lock(), claim, asked);
            return Ok(Release::Released);
        }
        let share = servers.client.polling_share;
        let call = if is_plain && share.is_none() {
            let mut call = Call::new(&scripts.release, &keys.all());
            call.arg(claim.owner.expose());
            call
        } else {
            let (tombstone, [lock, token_key, queue, processes, release_key]) =
                (keys.tombstone(&claim.owner), keys.all());
            let share_key = share.map(|_| keys.share()).unwrap_or_default();
            let keys = [lock, token_key, queue, processes, release_key, &tombstone, &share_key];
            let count = if share.is_some() { 7 } else { 6 };
            let mut call = Call::new(&scripts.release, keys.get(..count).unwrap_or_default());
            let entry = channel.map(|channel| QueueEntry::of(claim, channel).to_string());
            call.arg(claim.owner.expose()).arg(how.keep.map_or(0, millis));
            call.arg(i32::from(how.expects_late_attempt())).arg(entry.unwrap_or_default());
            if let Some(share) = share {
                call.arg(millis(share));
            }
            call
        };
        // Larger than a release without this script.
        match Box::pin(servers.run(&Request::new("release", &keys, &call))).await?.answer {
            1 => {
                if is_plain && is_new {
                    servers.client.recent.released(keys.lock(), claim, asked);
                }
                Ok(Release::Released)
            }
            0 => Ok(Release::NotHeld),
            other => Err(unexpected_answer("release", other)),
        }
    }

    /// Releases a lock that was granted without waiters and not renewed since, by deleting its
    /// value: on a server with a command for that, or if it was granted without a script. A later
    /// waiter marks the lock, which changes the value. Returns false if `release.lua` has to do the
    /// release.
    async fn release_uncontended(&self, claim: &Claim, keys: &LockKeys) -> Result<bool, Fault> {
        // A repeated release uses that script, which has an answer in every case.
        let is_new = |held: &&HeldLock| held.is_new.swap(false, Ordering::Relaxed);
        let Some(held) = held(claim).filter(is_new) else { return Ok(false) };
        let recent = &self.inner.servers.client.recent;
        let (link, connection) = self.inner.servers.reach(keys).await?;
        // A hold that a script granted may be the first one for long. Then `release.lua` takes no
        // longer, and hands the lock over in the same request.
        if held.is_stored && !connection.may_delete_if_equal() || recent.is_contended(keys.lock()) {
            return Ok(false);
        }
        let token = if held.is_stored { held.token } else { 0 };
        let value = Value::text(&claim.owner, token, claim.label.as_ref());
        let is_released = link.delete_if_equal(&connection, keys.lock(), &value).await?;
        if !is_released {
            recent.contended(keys.lock());
        }
        Ok(is_released)
    }

    pub(crate) async fn break_holder(
        &self,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(name)?;
        let mut call = Call::new(&servers.client.scripts().break_lock, &keys.all());
        call.arg(expected.expose());
        match servers.run(&Request::new("break", &keys, &call)).await?.answer {
            1 => Ok(true),
            0 => Ok(false),
            other => Err(unexpected_answer("break", other)),
        }
    }
}
