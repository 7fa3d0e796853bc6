//! Releases.

use std::sync::Arc;

use lock_core::backend::{Claim, Fault, HoldKind, Release, ReleaseMode};

use crate::config::FileLocks;
use crate::fault::with_unknown_effect;
use crate::record::Written;

impl FileLocks {
    /// Releases the lock and removes the claim from the queue.
    pub(crate) async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        self.inner.claims.remove_wait_state(claim);
        if how.expects_late_attempt() {
            self.inner.claims.add_tombstone(claim.owner);
        }
        match claim.hold {
            HoldKind::Detached => self.release_detached(claim).await,
            _ => self.release_guarded(claim),
        }
    }

    /// Unlocks the file and wakes the next waiter.
    fn release_guarded(&self, claim: &Claim) -> Result<Release, Fault> {
        let Some((held, _)) = self.inner.claims.remove(claim) else {
            return Ok(Release::NotHeld);
        };
        let Some(file) = held.take_file() else {
            return Ok(Release::NotHeld);
        };
        let in_place = file.is_in_place();
        let mut record = held.record().clone();
        let process = record.holder.take().map(|holder| holder.pid);
        let free = Written::from(record);
        // For `inspect` alone, which asks the kernel as well.
        let is_written = matches!(in_place, Ok(true)) && file.write_bytes(&free.bytes).is_ok();
        file.unlock()?;
        let has_queue = self.queue_of(&self.path_of(&claim.name)).exists();
        // Others may have the file open as well: child processes, and a task that waits for its
        // removal.
        if held.is_shared() || has_queue {
            file.notify_waiters();
        }
        if let Some(entry) = held.queue_entry().take() {
            entry.leave();
        }
        // Where processes wait, each hold opens the file anew: closing it wakes them.
        if let (Some(file), Some(process)) = (Arc::into_inner(file), process)
            && is_written
            && !has_queue
        {
            self.inner.open_files.keep(&claim.name, process, file, free);
        }
        match in_place {
            Ok(true) => Ok(Release::Released),
            Ok(false) => Ok(Release::NotHeld),
            Err(e) => Err(with_unknown_effect(e)),
        }
    }

    /// Ends the lease in the lock file.
    async fn release_detached(&self, claim: &Claim) -> Result<Release, Fault> {
        let path = self.path_of(&claim.name);
        Ok(match self.end_lease(&path, &claim.owner).await? {
            true => Release::Released,
            false => Release::NotHeld,
        })
    }
}
