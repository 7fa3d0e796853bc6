//! Holds that no kernel lock keeps: leases that stand in the lock file; and ending a hold by force.
//!
//! The kernel's lock on the file is held only while the record is changed.
//!
//! A kernel lock cannot be taken from a living process. So a break puts a new file in the place of
//! the one that is locked, with a higher number in it: whoever comes now locks the new one, and the
//! holder finds out at its next look.

use std::path::Path;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind, Grant, Release, Renewal};
use lock_core::clock::{Moment, since_boot, sleep_between};
use lock_core::{FencingToken, LockName, OwnerId};

use crate::attempt::{RequestTime, on_disk_thread};
use crate::backend::FileLocks;
use crate::break_marker::{BreakGuard, BreakMarker};
use crate::fault::with_unknown_effect;
use crate::holders;
use crate::lock_file::LockFile;
use crate::record::Record;

/// How long the lock on a file may be in the way of changing its record. Others of us have it for
/// some system calls.
const LOCK_TIMEOUT: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

impl FileLocks {
    pub(crate) async fn renew_detached(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let asked = RequestTime::now();
        let path = self.path_of(&claim.name);
        let Some((file, mut record)) = self.open_lease(&path, &claim.owner).await? else {
            return Ok(Renewal::NotHeld);
        };
        let lease = record.holder.as_mut().and_then(|holder| holder.lease.as_mut());
        let token = record.number.and_then(FencingToken::from_backend);
        let (Some(lease), Some(token)) = (lease, token) else {
            return Ok(Renewal::NotHeld);
        };
        lease.until = lease.until.max(since_boot() + claim.ttl);
        let left = asked.lease(lease);
        // A record that was half written is none.
        file.write(&record).map_err(with_unknown_effect)?;
        Ok(Renewal::Held(Grant::new(left, asked.at).with_token(token)))
    }

    pub(crate) async fn release_detached(&self, claim: &Claim) -> Result<Release, Fault> {
        let path = self.path_of(&claim.name);
        Ok(match self.end_lease(&path, &claim.owner).await? {
            true => Release::Released,
            false => Release::NotHeld,
        })
    }

    /// Ends the hold of `expected`. A detached one is erased. That of a living process is left behind:
    /// a new file takes the place of the one that it has locked.
    pub(crate) async fn break_hold(
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

    /// Whether the lease in the file is that of `owner`. A record that is just being written is not
    /// one, and then a renewal looks closer.
    pub(crate) fn is_leased_to(&self, path: &Path, owner: &OwnerId) -> Result<bool, Fault> {
        let Some(file) = LockFile::look_at(&self.inner.directory, path)? else {
            return Ok(false);
        };
        let lease = self.live_lease(&file.read()?);
        Ok(lease.is_some_and(|(holder, _)| holder == *owner))
    }

    async fn end_lease(&self, path: &Path, owner: &OwnerId) -> Result<bool, Fault> {
        let Some((file, record)) = self.open_lease(path, owner).await? else {
            return Ok(false);
        };
        file.write(&Record { holder: None, ..record }).map_err(with_unknown_effect)?;
        Ok(true)
    }

    /// The locked file and its record, if it has a lease of `owner`.
    async fn open_lease(
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
                // A record that says something was whole.
                false if !ours && record != Record::BLANK => return Ok(None),
                false if end.has_passed() && !ours => return Ok(None),
                false if end.has_passed() => return Err(is_locked(path)),
                false => {}
            }
            drop(file);
            sleep_between(PAUSE / 2, PAUSE).await;
        }
    }

    async fn replace_file(&self, path: &Path, expected: &OwnerId) -> Result<bool, Fault> {
        let marker = self.break_marker(path);
        // From here on nobody wins the lock on the file that is there: see `attempt`.
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
            // The holder may be the one at the front, for whose end the others wait.
            queue.remove_holder();
            Ok(())
        })
        .await?;
        Ok(true)
    }
}

/// Waits for others who break the same lock.
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

fn is_locked(path: &Path) -> Fault {
    let message = format!(
        "{} is locked by somebody who keeps no record in it, such as flock(1); try again when they are done",
        path.display()
    );
    Fault::not_applied(FaultKind::Unavailable, message)
}
