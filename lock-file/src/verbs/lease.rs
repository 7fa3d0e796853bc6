//! Leases of detached holds, which are in the lock file. The kernel's lock on the file is held only
//! while the record is changed.

use std::path::Path;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Fault, FaultKind, Lease};
use lock_core::clock::{Moment, since_boot, sleep_between};

use crate::config::FileLocks;
use crate::fault::with_unknown_effect;
use crate::lock_file::LockFile;
use crate::record::{LeaseRecord, Record};

/// Time for which another lock on the file may delay a change of its record. Other clients of this
/// backend hold it for some system calls.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// The start of an attempt, on both clocks. The moment is the earlier of the two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTime {
    pub(crate) at: Moment,
    since_boot: Duration,
}

impl RequestTime {
    /// Reads both clocks.
    pub(crate) fn now() -> Self {
        let at = Moment::now();
        Self { at, since_boot: since_boot() }
    }

    /// Returns the rest of a lease, counted from here.
    pub(crate) fn lease(self, lease: &LeaseRecord) -> Lease {
        Lease::For(lease.until.saturating_sub(self.since_boot))
    }
}

impl FileLocks {
    /// Returns the owner of a detached hold and the rest of its lease. A lease of an earlier boot
    /// is over.
    pub(crate) fn live_lease(&self, record: &Record) -> Option<(OwnerId, Duration)> {
        let holder = record.holder.as_ref()?;
        let lease = holder.lease.as_ref()?;
        let left = lease.until.saturating_sub(since_boot());
        let lives = self.inner.boot.as_ref() == Some(&lease.boot) && !left.is_zero();
        lives.then_some((holder.owner, left))
    }

    /// Returns whether the lease in the file is that of `owner`. A record in the middle of a write
    /// counts as none, and a renewal then checks it.
    pub(crate) fn is_leased_to(&self, path: &Path, owner: &OwnerId) -> Result<bool, Fault> {
        let Some(file) = LockFile::look_at(&self.inner.directory, path)? else {
            return Ok(false);
        };
        let lease = self.live_lease(&file.read()?);
        Ok(lease.is_some_and(|(holder, _)| holder == *owner))
    }

    /// Erases the lease of `owner`. Returns false if there is none.
    pub(super) async fn end_lease(&self, path: &Path, owner: &OwnerId) -> Result<bool, Fault> {
        let Some((file, record)) = self.open_lease(path, owner).await? else {
            return Ok(false);
        };
        file.write(&Record { holder: None, ..record }).map_err(with_unknown_effect)?;
        Ok(true)
    }

    /// Returns the locked file and its record, if it has a lease of `owner`.
    pub(super) async fn open_lease(
        &self,
        path: &Path,
        owner: &OwnerId,
    ) -> Result<Option<(LockFile, Record)>, Fault> {
        let end = Moment::now() + LOCK_TIMEOUT;
        loop {
            let Some(file) = LockFile::find(&self.inner.directory, path)? else {
                return Ok(None);
            };
            let locked = file.flock()?;
            let record = file.read()?;
            let ours = self.live_lease(&record).is_some_and(|(holder, _)| holder == *owner);
            match locked {
                true if !file.is_in_place()? => continue,
                true => return Ok(ours.then_some((file, record))),
                // A record with content was whole.
                false if !ours && record != Record::BLANK => return Ok(None),
                false if end.has_passed() && !ours => return Ok(None),
                false if end.has_passed() => return Err(is_locked(path)),
                false => {}
            }
            drop(file);
            sleep_between(PAUSE / 2, PAUSE).await;
        }
    }
}

/// Returns the fault of a file that a foreign program keeps locked.
pub(super) fn is_locked(path: &Path) -> Fault {
    let message = format!(
        "{} is locked by a program that keeps no record in it, such as flock(1); try again when it is done",
        path.display()
    );
    Fault::not_applied(FaultKind::Unavailable, message)
}
