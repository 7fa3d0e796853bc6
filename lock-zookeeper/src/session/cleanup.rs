//! Removes the residue of claims: nodes of released claims, and queue entries that expired.

use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::clock::{Moment, sleep_until};

use super::Session;
use super::queue_entry::QueueEntry;

/// The time that a release has before the cleanup task removes its node.
const GRACE: Duration = Duration::from_secs(1);

/// The pause between two attempts to remove a node.
const CLEANUP_PAUSE: Duration = Duration::from_millis(200);

impl Session {
    /// Marks the claim's node for removal, by the caller or else by the cleanup task.
    pub(crate) fn mark_released(&self, entry: &QueueEntry) {
        let expires_at = Moment::now() + GRACE;
        entry.update(|state| {
            state.releasing = true;
            state.expires_at = expires_at;
        });
        self.clean_up_by(expires_at);
    }

    /// Schedules a cleanup at `at` or sooner.
    pub(super) fn clean_up_by(&self, at: Moment) {
        let next_cleanup = *self.next_cleanup();
        if next_cleanup.is_none_or(|next_cleanup| at < next_cleanup) {
            self.cleanup_due.notify_one();
        }
    }

    /// Cleans up for as long as the session lives.
    pub(super) async fn clean_up(&self) {
        loop {
            let now = Moment::now();
            // An entry that is added meanwhile is checked as well.
            *self.next_cleanup() = None;
            let entries: Vec<_> =
                self.entries().iter().map(|(owner, entry)| (*owner, Arc::clone(entry))).collect();
            let mut next: Option<Moment> = None;
            for (owner, entry) in entries {
                let expires_at = entry.state().expires_at;
                let next_check = if expires_at > now {
                    expires_at
                } else {
                    self.clean_up_entry(&owner, &entry).await;
                    entry.state().expires_at
                };
                next = Some(next.map_or(next_check, |next| next.min(next_check)));
            }
            let next = next.map(|next| next.max(now + CLEANUP_PAUSE / 10));
            *self.next_cleanup() = next;
            let at = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = at => {}
                () = self.cleanup_due.notified() => {}
            }
        }
    }

    /// Removes an entry that has expired or was released.
    async fn clean_up_entry(&self, owner: &OwnerId, entry: &Arc<QueueEntry>) {
        // It is checked again, because it may have been renewed meanwhile.
        entry.update(|state| state.releasing |= state.expires_at.has_passed());
        if !entry.state().releasing {
            return;
        }
        // A creation without an answer ends with its connection at the latest. Other entries are
        // waiting.
        let is_idle = !entry.state().creating;
        if is_idle && self.is_connected() {
            let bound = self.timeout() / 3;
            let _ = tokio::time::timeout(bound, self.remove_entry(owner, entry)).await;
        }
        entry.state().expires_at = Moment::now() + CLEANUP_PAUSE;
    }
}
