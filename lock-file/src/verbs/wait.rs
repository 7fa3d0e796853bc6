//! Waits in the queue for the lock, and of a holder for its loss.

use std::path::Path;
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, Grant, HoldKind, Wake};
use lock_core::clock::sleep_between;

use crate::claims::WaitState;
use crate::config::FileLocks;
use crate::file_watch::FileWatch;
use crate::lock_file::LockFile;
use crate::queue::{Queue, QueueEntry};
use crate::record::Record;
use crate::verbs::acquire::Fairness;

/// Time between polls of a holder for the removal of its file, where no watch is available.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl FileLocks {
    /// Waits until the claim holds the lock.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.check(claim)?;
        self.wait_in_queue(claim).await.map(Wake::Granted)
    }

    /// Waits in the queue, and attempts the lock when it may be free.
    async fn wait_in_queue(&self, claim: &Claim) -> Result<Grant, Fault> {
        let path = self.path_of(&claim.name);
        let queue = self.queue_of(&path);
        let mut waiting = self.inner.claims.wait_state(claim);
        let mut watches_lock = false;
        loop {
            let state = &mut waiting.state;
            if state.entry.as_ref().is_none_or(QueueEntry::lost_position) {
                // Without a queue entry, as on a full disk, it waits like the head.
                state.entry = self.join(&queue).await?;
            }
            let ahead = match &mut state.entry {
                Some(entry) => entry.ahead()?,
                None => None,
            };
            let watch = match &ahead {
                Some(pipe) => FileWatch::on_pipe(pipe),
                // Watched before the attempt: a release from here on is noticed.
                None if watches_lock => FileWatch::on_lock(&path),
                None => None,
            };
            let has_watch = watch.is_some();
            let mut pause = state.pause(has_watch);
            let polls = match &ahead {
                None => true,
                Some(_) => state.is_due(pause) && self.has_stalled(state, &path, &mut pause)?,
            };
            if polls {
                state.polled();
                let fairness =
                    if ahead.is_none() { Fairness::Barging } else { Fairness::Overtaking };
                match self.attempt(claim, state, fairness).await? {
                    Attempt::Acquired(grant) => {
                        self.settle(claim, &mut waiting);
                        self.inner.claims.begin_turn(&claim.name);
                        return Ok(grant);
                    }
                    Attempt::Contended { expires_in } => {
                        pause = pause.min(expires_in.unwrap_or(pause));
                    }
                }
            }
            if ahead.is_none() && !watches_lock {
                // The holder is none of this queue.
                watches_lock = true;
                continue;
            }
            let watch_fires = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // A write that is heard may come before the unlock that follows it: look again
                // soon.
                () = watch_fires => waiting.state.woken(),
                () = sleep_between(pause / 2, pause) => waiting.state.timed_out(),
            }
        }
    }

    /// Joins the queue.
    async fn join(&self, queue: &Queue) -> Result<Option<QueueEntry>, Fault> {
        match queue.join().await {
            // The files that are kept open may use the missing descriptors.
            Err(_) if self.inner.open_files.close() => queue.join().await,
            joined => joined,
        }
    }

    /// Returns true if the lock was not taken since the last poll from further back: the process at
    /// the head does not respond. A release just now is no reason to overtake, but one to poll
    /// again soon.
    fn has_stalled(
        &self,
        state: &mut WaitState,
        path: &Path,
        pause: &mut Duration,
    ) -> Result<bool, Fault> {
        let file = match state.file.take() {
            Some(file) if file.is_in_place()? => file,
            _ => match LockFile::find(&self.inner.directory, path)? {
                Some(file) => file,
                None => return Ok(true),
            },
        };
        let record = file.parse()?.unwrap_or(Record::BLANK);
        state.file = Some(file);
        let is_free = record.holder.is_none();
        let has_stalled = state.is_unchanged(record);
        if !has_stalled {
            state.polled();
            if is_free {
                *pause = state.shortest_pause();
            }
        }
        Ok(has_stalled)
    }

    /// Waits until a held lock was removed or broken.
    pub(crate) async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        let path = self.path_of(&claim.name);
        let is_detached = claim.hold == HoldKind::Detached;
        // A break of a kernel lock replaces the file; one of a detached hold writes to it.
        let watch =
            if is_detached { FileWatch::on_lock(&path) } else { FileWatch::on_removal(&path) };
        while match is_detached {
            true => self.is_leased_to(&path, &claim.owner)?,
            false => match self.inner.claims.find(claim) {
                Some((held, _)) => held.is_in_place()?,
                None => false,
            },
        } {
            match &watch {
                Some(watch) => watch.changed().await,
                None => sleep_between(POLL_INTERVAL / 2, POLL_INTERVAL).await,
            }
        }
        Ok(())
    }
}
