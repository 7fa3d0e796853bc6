//! Breaks: ending the hold of another client.
//!
//! A kernel lock cannot be taken from a living process. A break replaces the locked file with a new
//! one that has a higher token. Later clients lock the new file, and the holder detects the
//! replacement at its next check.

use std::path::Path;

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::{Moment, sleep_between};
use lock_core::{LockName, OwnerId};

use crate::break_marker::{BreakGuard, BreakMarker};
use crate::config::FileLocks;
use crate::disk_thread::on_disk_thread;
use crate::holders;
use crate::lock_file::LockFile;
use crate::record::Record;
use crate::verbs::lease::{LOCK_TIMEOUT, PAUSE, is_locked};

impl FileLocks {
    /// Ends the hold of `expected`. A detached one is erased. The file of a living process is
    /// replaced by a new one.
    pub(crate) async fn break_lock(
        &self,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        let path = self.path_of(name);
        let Some(file) = LockFile::find(&self.inner.directory, &path)? else {
            return Ok(false);
        };
        let holder = file.read()?.holder.filter(|holder| holder.owner == *expected);
        drop(file);
        match holder {
            None => Ok(false),
            Some(holder) if holder.lease.is_some() => self.end_lease(&path, expected).await,
            Some(_) => self.replace_file(&path, expected).await,
        }
    }

    /// Replaces the file that `expected` has locked. Returns false if another claim holds it.
    async fn replace_file(&self, path: &Path, expected: &OwnerId) -> Result<bool, Fault> {
        let marker = self.break_marker(path);
        // From here on no claim is granted the lock on the present file: see `attempt`.
        let breaking = announce(&marker, path).await?;
        let Some(file) = LockFile::find(&self.inner.directory, path)? else {
            return Ok(false);
        };
        let record = file.read()?;
        // Not the record of the dead, while flock(1) has the lock.
        let holders = holders::holders(file.as_file(), path, &record)?;
        if !holders.iter().any(|holder| holder.owner == Some(*expected)) {
            return Ok(false);
        }
        if self.inner.directory.share().is_some() && !file.is_replaceable()? {
            return Err(owned_by_another_user(path));
        }
        let highest = record.reserved.as_ref().map(|it| it.up_to).max(record.number);
        let highest = file.reserved()?.max(highest);
        let new = LockFile::draft(&self.inner.directory, &marker.draft())?;
        let queue = self.queue_of(path);
        let (path, durable) = (path.to_owned(), self.inner.durable);
        on_disk_thread(move || {
            new.write(&Record { number: highest, ..Record::BLANK })?;
            if let Some(highest) = highest.filter(|_| durable) {
                new.reserve(highest)?;
            }
            // Still announced.
            let _breaking = breaking;
            new.move_to(&path)?;
            // The others may wait for the holder, if it is the head.
            queue.remove_holder();
            Ok(())
        })
        .await?;
        Ok(true)
    }
}

/// Announces a break, after other clients that break the same lock.
async fn announce(marker: &BreakMarker, path: &Path) -> Result<BreakGuard, Fault> {
    let end = Moment::now() + LOCK_TIMEOUT;
    loop {
        match marker.announce()? {
            Some(breaking) => return Ok(breaking),
            None if end.has_passed() => return Err(is_locked(path)),
            None => sleep_between(PAUSE / 2, PAUSE).await,
        }
    }
}

/// Returns the fault of a shared directory, in which only the owner of a file and root replace it.
fn owned_by_another_user(path: &Path) -> Fault {
    let message = format!(
        "{} belongs to another user, who can break this lock, as root can; or end its holder",
        path.display()
    );
    Fault::not_applied(FaultKind::Denied, message)
}
