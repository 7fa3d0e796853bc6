//! Waits for a grant, for a change of a key, and for the loss of a lock.

use lock_core::OwnerId;
use lock_core::backend::{Claim, Fault, Wake};
use lock_core::clock::sleep_between;

use crate::backend::{Inner, Redis};
use crate::connection::client_state::ClientState;
use crate::limits::TOKEN_RETENTION;
use crate::queue::WaitEvent;
use crate::value::Value;
use crate::verbs::held::{HeldLock, held};

impl Redis {
    pub(crate) async fn wait_for_claim(&self, claim: &Claim) -> Result<Wake, Fault> {
        let ClientState { queues, .. } = &*self.inner.servers.client;
        if !claim.queues() || !self.inner.servers.client.is_fifo() {
            return self.wait_for_signal(claim).await;
        }
        let watches = queues.must_watch(&claim.owner);
        let signal = async {
            match watches {
                true => self.wait_for_signal(claim).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            call = queues.wait_event(&claim.owner, watches) => match call {
                WaitEvent::Retry => Ok(Wake::Retry),
                // The attempt that follows finds the lock, and makes sure of its replicas.
                WaitEvent::Granted(_) if self.inner.waits_for_replicas => Ok(Wake::Retry),
                WaitEvent::Granted(sent) => {
                    let token_key_until = sent.since + sent.lease + TOKEN_RETENTION;
                    let held = HeldLock {
                        token: sent.token,
                        token_key_until,
                        script_token: sent.token,
                        connection: 0,
                        is_new: false.into(),
                        is_stored: true,
                    };
                    held.grant(sent.lease, sent.since).map(Wake::Granted)
                }
            },
            wake = signal => {
                queues.invalidate(&claim.owner);
                wake
            }
        }
    }

    /// Asks the server for a signal at a change, polls once, and then sends nothing until the
    /// signal.
    async fn wait_for_signal(&self, claim: &Claim) -> Result<Wake, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let (keys, ClientState { waiters, .. }) = (keys.of(&claim.name)?, &*servers.client);
        // Most have one since their attempt was contended.
        let _seat = waiters.watch_until_dropped(claim.owner, keys.release_key());
        // An attempt that does not queue leaves no state, and so no release key.
        let mut is_armed = claim.queues();
        let mut is_string = true;
        loop {
            if let Some((watched, signals)) = waiters.not_armed(&claim.owner) {
                let (link, connection) = servers.reach(&keys).await?;
                if !connection.has_signals {
                    return Ok(self.pause(&claim.owner).await);
                }
                let outcome = link.watch(&connection, &watched, keys.lock()).await?;
                let Some((is_there, value)) = outcome else {
                    return Ok(Wake::Retry);
                };
                is_string = value.is_some();
                let value = value.unwrap_or_default();
                let holder = Value::parse(&value);
                if holder.as_ref().is_some_and(|holder| holder.owner == claim.owner) {
                    return Ok(Wake::Retry);
                }
                let watched_key = keys.watched_key(holder.is_some());
                // A holder that sees no mark may release without deleting the release key.
                let is_marked = holder.as_ref().is_none_or(|holder| holder.is_marked);
                if watched_key != watched {
                    waiters.enter(claim.owner, watched_key);
                    continue;
                } else if is_there && is_marked {
                    waiters.arm(&claim.owner, signals);
                } else if !is_armed && holder.is_some() {
                    is_armed = true;
                    link.arm_release_key(&connection, &keys, &value).await?;
                    continue;
                } else {
                    // There is no armed release key: a release has deleted it, or the server
                    // refused to set it.
                    return Ok(self.pause(&claim.owner).await);
                }
            }
            waiters.woken(&claim.owner).await;
            if is_string {
                // At once: a foreign client may leave the lock free for a moment only.
                return Ok(Wake::Retry);
            }
            // Redisson renews often, and each renewal changes its hash.
        }
    }

    /// Waits before the next poll, where the server sends no signals.
    pub(crate) async fn pause(&self, owner: &OwnerId) -> Wake {
        let pause = self.inner.servers.client.waiters.next_pause(owner);
        sleep_between(pause / 2, pause).await;
        Wake::Retry
    }

    /// Waits until the lock may have been taken away: its key has changed, or the connection by
    /// which it was proven is gone, and with it perhaps the server that had it.
    pub(crate) async fn wait_for_loss(&self, claim: &Claim) -> Result<(), Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let (keys, ClientState { waiters, .. }) = (keys.of(&claim.name)?, &*servers.client);
        let proven_by = held(claim).map(|held| held.connection);
        let _seat = waiters.leave_when_dropped(claim.owner);
        loop {
            // Anew each time: a release runs beside this wait, and leaves. Without an entry,
            // nothing below would wait.
            waiters.enter(claim.owner, keys.lock());
            let (link, connection) = servers.reach_again(&keys).await;
            if proven_by != Some(connection.id()) {
                return Ok(());
            }
            if connection.has_signals
                && let Some((watched, signals)) = waiters.not_armed(&claim.owner)
            {
                let Ok(outcome) = link.watch(&connection, &watched, keys.lock()).await else {
                    continue;
                };
                // Our own renewals change the key as well.
                let value = outcome.and_then(|(_, value)| Value::parse(&value?));
                if value.is_none_or(|value| value.owner != claim.owner) {
                    return Ok(());
                }
                waiters.arm(&claim.owner, signals);
            }
            waiters.woken(&claim.owner).await;
        }
    }
}
