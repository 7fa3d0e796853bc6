//! One lock file, opened: the system calls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::Moment;
use lock_core::{Error, ErrorKind};
use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW, flock, futimens};
use rustix::io::Errno;

use crate::counter::{self, FILE_LEN, SLOTS, SlotOrigin};
use crate::directory::Directory;
use crate::fault::{fault, fault_of_unknown_effect, refused, with_unknown_effect};
use crate::record::{self, Record, Written};

/// An open lock file. Dropping it unlocks it, unless it is [left locked](Self::leave_locked), and
/// closes it.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
    opened: Moment,
    /// Closing alone would leave it to a child that is being started, which has a copy of the
    /// descriptor until it executes its program.
    is_locked: AtomicBool,
    /// Device and inode. No other file has them while this one is open.
    id: (u64, u64),
}

impl LockFile {
    /// Opens the file at `path`, and creates it if it is missing.
    pub(crate) fn make(directory: &Directory, path: &Path) -> Result<Self, Fault> {
        let how = OFlags::RDWR | OFlags::CREATE;
        let file = match directory.open_file(path, how) {
            Err(Errno::NOENT) => {
                directory.prepare().map_err(gone)?;
                directory.open_file(path, how)
            }
            other => other,
        };
        Self::of(directory, file.map_err(|e| fault("open the lock file", path, e.into()))?, path)
    }

    /// Opens the file at `path` if it is there.
    pub(crate) fn find(directory: &Directory, path: &Path) -> Result<Option<Self>, Fault> {
        Self::if_there(directory, OFlags::RDWR, path)
    }

    /// Opens the file at `path` for reading, if it is there.
    pub(crate) fn look_at(directory: &Directory, path: &Path) -> Result<Option<Self>, Fault> {
        Self::if_there(directory, OFlags::RDONLY, path)
    }

    fn if_there(directory: &Directory, how: OFlags, path: &Path) -> Result<Option<Self>, Fault> {
        match directory.open_file(path, how) {
            Ok(file) => Self::of(directory, file, path).map(Some),
            Err(e) if is_missing(&e.into()) => Ok(None),
            Err(e) => Err(fault("open the lock file", path, e.into())),
        }
    }

    /// Creates a new file at `path`, to be moved to its place.
    pub(crate) fn draft(directory: &Directory, path: &Path) -> Result<Self, Fault> {
        let file = directory.open_file(path, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        Self::of(directory, file.map_err(|e| fault("create", path, e.into()))?, path)
    }

    fn of(directory: &Directory, file: File, path: &Path) -> Result<Self, Fault> {
        let opened = Moment::now();
        let found = file.metadata().map_err(|e| fault("examine the lock file", path, e))?;
        if !found.is_file() {
            let why = "is not a regular file; remove it or use another directory";
            return Err(refused(path, why));
        }
        if let Some(why) = directory.share().and_then(|share| share.distrusts(&found)) {
            return Err(refused(path, why));
        }
        let id = (found.dev(), found.ino());
        Ok(Self { file, path: path.to_owned(), opened, is_locked: AtomicBool::new(false), id })
    }

    pub(crate) fn opened(&self) -> Moment {
        self.opened
    }

    /// Locks it. Returns false if another process has locked it.
    pub(crate) fn flock(&self) -> Result<bool, Fault> {
        let is_locked = match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => true,
            Err(Errno::WOULDBLOCK) => false,
            Err(e) => return Err(fault("lock", &self.path, e.into())),
        };
        self.is_locked.store(is_locked, Ordering::Relaxed);
        Ok(is_locked)
    }

    /// Keeps the lock on drop: it ends when it is unlocked, or its last descriptor is closed.
    pub(crate) fn leave_locked(&self) {
        self.is_locked.store(false, Ordering::Relaxed);
    }

    /// Returns true while this is the file that others open under the same name.
    pub(crate) fn is_in_place(&self) -> Result<bool, Fault> {
        match id_at(&self.path) {
            Ok(id) => Ok(id == self.id),
            Err(e) if is_missing(&e) => Ok(false),
            Err(e) => Err(fault("examine the lock file", &self.path, e)),
        }
    }

    /// Reads the record, without parsing if the file has the bytes of `written`.
    pub(crate) fn read_after(&self, written: Option<Written>) -> Result<Record, Fault> {
        let bytes = self.read_at(0)?;
        match written {
            Some(written) if written.bytes[..] == bytes => Ok(written.record),
            _ => self.understand(&bytes),
        }
    }

    /// Reads the record.
    pub(crate) fn read(&self) -> Result<Record, Fault> {
        self.read_after(None)
    }

    fn understand(&self, bytes: &[u8]) -> Result<Record, Fault> {
        let record = Record::parse(bytes);
        match record {
            Some(record) if record != Record::BLANK => Ok(record),
            // Nothing, or the start of anything: then the slots tell its writer.
            _ => {
                let found = self.file.metadata().map_err(|e| fault("examine", &self.path, e))?;
                let slots = [self.read_at(SLOTS[0])?, self.read_at(SLOTS[1])?];
                let ours = match counter::origin(&slots) {
                    SlotOrigin::Ours => true,
                    SlotOrigin::Empty => record.is_some(),
                    SlotOrigin::Foreign => false,
                };
                (ours && found.len() <= FILE_LEN)
                    .then_some(Record::BLANK)
                    .ok_or_else(|| self.is_foreign())
            }
        }
    }

    /// Reads the record without the slots; `None` if the file begins with foreign data.
    pub(crate) fn parse(&self) -> Result<Option<Record>, Fault> {
        Ok(Record::parse(&self.read_at(0)?))
    }

    /// Replaces the record. Only for a process that has locked the file and found a record, or
    /// nothing.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Fault> {
        self.write_bytes(&record.to_bytes())
    }

    /// Replaces the record by bytes.
    pub(crate) fn write_bytes(&self, record: &[u8; record::LEN]) -> Result<(), Fault> {
        self.write_at(record, 0)
    }

    /// Returns the highest reserved token; `None` if that is unknown.
    pub(crate) fn reserved(&self) -> Result<Option<u64>, Fault> {
        Ok(self.slots()?.into_iter().flatten().max())
    }

    /// Reserves tokens durably: returns when they are on the disk.
    pub(crate) fn reserve(&self, up_to: u64) -> Result<(), Fault> {
        let [first, second] = self.slots()?;
        let at = SLOTS[usize::from(first > second)];
        self.write_at(&counter::to_bytes(up_to), at)?;
        self.file.sync_data().map_err(|e| fault("sync", &self.path, e))?;
        if first.or(second).is_none() {
            self.sync_name()?;
        }
        Ok(())
    }

    /// Syncs the directory. After a crash, a new file exists only if its directory was synced.
    fn sync_name(&self) -> Result<(), Fault> {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        File::open(directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|e| fault("sync the lock directory", directory, e))
    }

    /// Unlocks it for every process that has inherited the descriptor.
    pub(crate) fn unlock(&self) -> Result<(), Fault> {
        flock(&self.file, FlockOperation::Unlock)
            .map_err(|e| fault_of_unknown_effect("unlock", &self.path, e.into()))?;
        self.is_locked.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Wakes the waiters that watch this file, where other processes have it open as well.
    pub(crate) fn notify_waiters(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // They look by themselves after a while.
        let _ = futimens(&self.file, &Timestamps { last_access: now, last_modification: now });
    }

    /// Returns whether the kernel lets this user replace it in a sticky directory.
    pub(crate) fn is_replaceable(&self) -> Result<bool, Fault> {
        let found = self.file.metadata().map_err(|e| fault("examine", &self.path, e))?;
        let user = rustix::process::geteuid().as_raw();
        Ok(user == 0 || user == found.uid())
    }

    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// Moves this file to `path` durably.
    pub(crate) fn move_to(mut self, path: &Path) -> Result<(), Fault> {
        if let Err(why) = std::fs::rename(&self.path, path) {
            let _ = std::fs::remove_file(&self.path);
            return Err(fault("replace", path, why));
        }
        path.clone_into(&mut self.path);
        self.sync_name().map_err(with_unknown_effect)
    }

    fn slots(&self) -> Result<[Option<u64>; 2], Fault> {
        let slot = |at| self.read_at(at).map(|bytes| counter::parse(&bytes));
        Ok([slot(SLOTS[0])?, slot(SLOTS[1])?])
    }

    /// Reads the bytes of a record or slot.
    fn read_at(&self, at: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; record::LEN];
        // One call: a regular file gives all that it has.
        let filled = self.file.read_at(&mut bytes, at);
        bytes.truncate(filled.map_err(|e| fault("read", &self.path, e))?);
        Ok(bytes)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Fault> {
        self.file.write_all_at(bytes, at).map_err(|e| fault("write", &self.path, e))
    }

    fn is_foreign(&self) -> Fault {
        let why = "holds data that are not ours, and is left alone; move it away or use another directory";
        refused(&self.path, why)
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if *self.is_locked.get_mut() {
            let _ = self.unlock();
        }
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the device and the inode of the file at `path`.
///
/// Only these are asked for. Since Linux 6.13, a file whose times were asked for gets a new time
/// with its next write, and each write would change the inode, too.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn id_at(path: &Path) -> io::Result<(u64, u64)> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::INO) {
        Ok(found) => Ok((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino)),
        // Before Linux 4.11, and in sandboxes that do not know it.
        Err(Errno::NOSYS | Errno::PERM) => id_by_stat(path),
        Err(e) => Err(e.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn id_at(path: &Path) -> io::Result<(u64, u64)> {
    id_by_stat(path)
}

fn id_by_stat(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns the fault of a directory that vanished and could not be created again.
pub(crate) fn gone(error: Error) -> Fault {
    let kind = match error.kind() {
        ErrorKind::Denied => FaultKind::Denied,
        _ => FaultKind::Unavailable,
    };
    Fault::not_applied(kind, error)
}
