//! The marker of a client that breaks a lock: a file beside the lock file, in the directory of the
//! [queue] where there is one.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lock_core::backend::{Fault, FaultKind};
use rustix::fs::{Access, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::fault::fault;
use crate::lock_file::gone;
use crate::queue;
use crate::share;

/// Suffix in a shared directory, where the directory of the queue may belong to a member.
const SHARED_SUFFIX: &str = ".breaking";
const BREAKING: &str = "breaking";
const DRAFT: &str = "draft";

/// Limit of removals of the directory in a row while a client enters it.
const TRIES: u32 = 100;

/// The location of the marker of a break.
#[derive(Clone, Debug)]
pub(crate) struct BreakMarker {
    path: PathBuf,
    /// The directory of the lock file, if that is shared.
    shared: Option<Directory>,
}

/// An announced break, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BreakGuard {
    marker: BreakMarker,
    _locked: File,
}

impl BreakMarker {
    pub(crate) fn beside(directory: &Directory, lock_file: &Path) -> Self {
        let shared = directory.share().map(|_| directory.clone());
        let mut path = OsString::from(lock_file);
        path.push(if shared.is_some() { SHARED_SUFFIX } else { queue::SUFFIX });
        Self { path: path.into(), shared }
    }

    /// Announces a break. Returns `None` if another client breaks the lock.
    pub(crate) fn announce(&self) -> Result<Option<BreakGuard>, Fault> {
        let locked = self.lock()?;
        Ok(locked.map(|locked| BreakGuard { marker: self.clone(), _locked: locked }))
    }

    /// Returns true while another client breaks the lock. `has_queue` tells whether the directory
    /// of the queue exists.
    pub(crate) fn is_announced(&self, has_queue: bool) -> Result<bool, Fault> {
        let may_be_there = match self.shared {
            None => has_queue,
            Some(_) => rustix::fs::access(&self.path, Access::EXISTS).is_ok(),
        };
        if !may_be_there {
            return Ok(false);
        }
        let path = self.file();
        let file = match self.open(&path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(e) => return Err(fault("open", &path, e.into())),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(fault("lock", &path, e.into())),
            // The next break uses the marker of an ended process: removing it could remove a newer
            // one.
            Ok(()) => Ok(false),
        }
    }

    /// Returns the path for a new file that is to replace the lock file.
    pub(crate) fn draft(&self) -> PathBuf {
        match &self.shared {
            // The draft that another user has left cannot be used.
            Some(directory) => directory.path().join(share::draft_name()),
            None => self.path.join(DRAFT),
        }
    }

    fn file(&self) -> PathBuf {
        match self.shared {
            Some(_) => self.path.clone(),
            None => self.path.join(BREAKING),
        }
    }

    fn open(&self, path: &Path, how: OFlags) -> Result<File, Errno> {
        let Some(directory) = &self.shared else {
            let how = how | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            return rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR).map(File::from);
        };
        let file = directory.open_file(path, how)?;
        let found = file.metadata().map_err(|_| Errno::IO)?;
        let is_ours = directory.share().is_some_and(|share| share.distrusts(&found).is_none());
        if is_ours && found.is_file() { Ok(file) } else { Err(Errno::INVAL) }
    }

    /// Creates the marker and locks it. Returns `None` if another client has it.
    fn lock(&self) -> Result<Option<File>, Fault> {
        let path = self.file();
        for _ in 0..TRIES {
            let file = match self.open(&path, OFlags::RDWR | OFlags::CREATE) {
                Ok(file) => file,
                Err(Errno::NOENT) => {
                    self.make()?;
                    continue;
                }
                Err(e) => return Err(fault("create", &path, e.into())),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(fault("lock", &path, e.into())),
            }
            let found = file.metadata().map_err(|e| fault("examine", &path, e))?;
            // Not if the one before has just removed it.
            if found.nlink() > 0 {
                return Ok(Some(file));
            }
        }
        let message =
            format!("{} is being deleted again and again; let it stay", self.path.display());
        Err(Fault::not_applied(FaultKind::Unavailable, message))
    }

    fn make(&self) -> Result<(), Fault> {
        if let Some(directory) = &self.shared {
            return directory.prepare().map_err(gone);
        }
        match rustix::fs::mkdir(&self.path, Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => Ok(()),
            Err(e) => Err(fault("create", &self.path, e.into())),
        }
    }
}

impl Drop for BreakGuard {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.marker.file());
        if self.marker.shared.is_none() {
            let _ = std::fs::remove_file(self.marker.draft());
            // Stays if a process queues.
            let _ = std::fs::remove_dir(&self.marker.path);
        }
    }
}
