//! One lock file, opened: the system calls.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use lock_core::backend::{Fault, FaultKind};
use lock_core::{Error, ErrorKind};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::fault::{fault, refused, unsure};
use crate::record::{self, Record};

/// How often in a row a file may be replaced between opening and locking it.
const MAX_REPLACEMENTS: u32 = 16;

/// An open lock file. Dropping it closes the descriptor, and the lock ends with the last one.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
    /// Device and inode. They belong to nobody else while the file is open.
    id: (u64, u64),
}

impl LockFile {
    /// Locks the file at `path`, if nobody else has. If somebody has, the open file is left in
    /// `seat` for the next time.
    pub(crate) fn try_lock(
        directory: &Directory,
        path: &Path,
        seat: &mut Option<Self>,
    ) -> Result<Option<Self>, Fault> {
        for _ in 0..MAX_REPLACEMENTS {
            let file = match seat.take() {
                Some(file) if file.is_in_place()? => file,
                _ => Self::open(directory, path)?,
            };
            if !file.flock()? {
                *seat = Some(file);
                return Ok(None);
            }
            // Whoever deletes or replaces the file opens a second lock beside ours. The one that
            // counts is the one in the directory.
            if file.is_in_place()? {
                return Ok(Some(file));
            }
        }
        let message =
            format!("{} is being deleted again and again; let lock files stay", path.display());
        Err(Fault::not_applied(FaultKind::Unavailable, message))
    }

    fn open(directory: &Directory, path: &Path) -> Result<Self, Fault> {
        let file = match create(path) {
            Err(Errno::NOENT) => {
                directory.prepare().map_err(gone)?;
                create(path)
            }
            other => other,
        };
        let file = file.map_err(|e| fault("open the lock file", path, e.into()))?;
        let found = file.metadata().map_err(|e| fault("examine the lock file", path, e))?;
        if !found.is_file() {
            let why = "is not a regular file; remove it or use another directory";
            return Err(refused(path, why));
        }
        Ok(Self { file, path: path.to_owned(), id: (found.dev(), found.ino()) })
    }

    /// False if somebody else has it.
    fn flock(&self) -> Result<bool, Fault> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(e) => Err(fault("lock", &self.path, e.into())),
        }
    }

    /// True while this is the file that others open under the same name.
    pub(crate) fn is_in_place(&self) -> Result<bool, Fault> {
        match std::fs::symlink_metadata(&self.path) {
            Ok(found) => Ok((found.dev(), found.ino()) == self.id),
            Err(e) if is_missing(&e) => Ok(false),
            Err(e) => Err(fault("examine the lock file", &self.path, e)),
        }
    }

    /// What stands in it.
    pub(crate) fn read(&self) -> Result<Record, Fault> {
        let bytes = read_start(&self.file).map_err(|e| fault("read", &self.path, e))?;
        Record::parse(&bytes).ok_or_else(|| {
            refused(
                &self.path,
                "holds data that are not ours, and is left alone; move it away or use another directory",
            )
        })
    }

    /// Replaces what stands in it. Only for whoever has locked it and found a record, or nothing.
    pub(crate) fn write(&self, record: &Record) -> Result<(), Fault> {
        self.file.write_all_at(&record.to_bytes(), 0).map_err(|e| fault("write", &self.path, e))
    }

    /// Unlocks it for every process that has inherited the descriptor.
    pub(crate) fn unlock(&self) -> Result<(), Fault> {
        flock(&self.file, FlockOperation::Unlock)
            .map_err(|e| unsure("unlock", &self.path, e.into()))
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The first bytes of a lock file, one more than a record has.
pub(crate) fn read_start(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; record::LEN + 1];
    // One call: a regular file gives all that it has.
    let filled = file.read_at(&mut bytes, 0)?;
    bytes.truncate(filled);
    Ok(bytes)
}

pub(crate) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The directory is not there any more, and could not be made again.
fn gone(error: Error) -> Fault {
    let kind = match error.kind() {
        ErrorKind::Denied => FaultKind::Denied,
        _ => FaultKind::Unavailable,
    };
    Fault::not_applied(kind, error)
}

/// Non-blocking, or a named pipe in the place of the file could hold us up.
fn create(path: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}
