//! The line of those who wait for one lock, and the mark of whoever breaks it.
//!
//! Both are files in a directory beside the lock file, which is there only while they are. A place in
//! the line is a file named after the moment at which it was taken, locked by whoever stands there: so
//! the kernel gives it up when that process dies. Each waiter watches the place before its own, and
//! the first one watches the lock file. One release thus wakes one waiter, and the place that this one
//! gives up wakes the next: as in the lock recipe of ZooKeeper, after Mellor-Crummey and Scott,
//! "Algorithms for scalable synchronization on shared-memory multiprocessors", 1991.
//!
//! The line excludes nobody. It tells who should go first; the lock on the lock file decides.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use lock_core::OwnerId;
use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::since_boot;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::directory::Directory;
use crate::fault::fault;
use crate::lock_file::{gone, is_missing};
use crate::share;

const SUFFIX: &str = ".d";
/// In a shared directory: of the mark alone.
const SHARED_SUFFIX: &str = ".breaking";
const BREAKING: &str = "breaking";
const DRAFT: &str = "draft";

/// How often in a row the directory may vanish under a newcomer.
const TRIES: u32 = 100;

/// The directory beside a lock file.
///
/// A shared directory has none: it would belong to the member that made it, who could delete the
/// places of the others. There, processes do not queue, and the mark of a break is a file beside the
/// lock file.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    path: PathBuf,
    /// Where the lock file is, if that is shared.
    shared: Option<Directory>,
}

/// A place in the line. Dropping it gives it up.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    line: Line,
    _locked: File,
}

/// Says that the lock is being broken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Breaking {
    line: Line,
    _locked: File,
}

impl Line {
    pub(crate) fn beside(directory: &Directory, lock_file: &Path) -> Self {
        let shared = directory.share().map(|_| directory.clone());
        let mut path = OsString::from(lock_file);
        path.push(if shared.is_some() { SHARED_SUFFIX } else { SUFFIX });
        Self { path: path.into(), shared }
    }

    /// False if nobody waits and nobody breaks the lock.
    pub(crate) fn exists(&self) -> bool {
        rustix::fs::access(&self.path, rustix::fs::Access::EXISTS).is_ok()
    }

    /// Takes the last place.
    pub(crate) fn join(&self, owner: OwnerId) -> Result<Place, Fault> {
        if self.shared.is_some() {
            return Err(Fault::unsupported("queues in a shared directory"));
        }
        let name = format!("{:020}-{}", since_boot().as_nanos(), owner.short());
        let locked = self.lock(&name)?.ok_or_else(|| self.is_busy())?;
        Ok(Place { name, line: self.clone(), _locked: locked })
    }

    /// Announces a break. `None` if somebody else is at it.
    pub(crate) fn announce_break(&self) -> Result<Option<Breaking>, Fault> {
        let locked = self.lock(BREAKING)?;
        Ok(locked.map(|locked| Breaking { line: self.clone(), _locked: locked }))
    }

    /// True while somebody breaks the lock.
    pub(crate) fn is_breaking(&self) -> Result<bool, Fault> {
        // What a dead one left is used by the next: to remove it could take a newer one's away.
        self.is_locked(BREAKING, || {})
    }

    /// The place before `mine`, or the last one. Reads the whole line, which may be long.
    pub(crate) fn before(&self, mine: Option<&Place>) -> Result<Option<String>, Fault> {
        let mut places = self.places()?;
        if let Some(mine) = mine {
            places.retain(|place| *place < mine.name);
        }
        while let Some(last) = places.pop() {
            if self.is_taken(&last)? {
                return Ok(Some(last));
            }
        }
        Ok(None)
    }

    /// The file of a place, or the mark of a break.
    pub(crate) fn file_of(&self, name: &str) -> PathBuf {
        match self.shared {
            Some(_) => self.path.clone(),
            None => self.path.join(name),
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

    /// Sends the first one away: the lock was free, and it did not come.
    pub(crate) fn pass_over_first(&self, mine: &Place) -> Result<(), Fault> {
        if let Some(first) = self.places()?.first().filter(|first| **first < mine.name) {
            let _ = std::fs::remove_file(self.path.join(first));
        }
        Ok(())
    }

    /// How many wait; `None` if they do not queue.
    pub(crate) fn len(&self) -> Result<Option<u64>, Fault> {
        if self.shared.is_some() {
            return Ok(None);
        }
        let mut waiting = 0;
        for place in self.places()? {
            waiting += u64::from(self.is_taken(&place)?);
        }
        Ok(Some(waiting))
    }

    /// Where a file can be prepared that is to replace the lock file.
    pub(crate) fn draft(&self) -> PathBuf {
        match &self.shared {
            // The draft that another user has left cannot be used.
            Some(directory) => directory.path().join(share::name_of_draft()),
            None => self.path.join(DRAFT),
        }
    }

    /// The places, the first one first; also those of the dead.
    fn places(&self) -> Result<Vec<String>, Fault> {
        if self.shared.is_some() {
            return Ok(Vec::new());
        }
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if is_missing(&e) => return Ok(Vec::new()),
            Err(e) => return Err(fault("read", &self.path, e)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut places: Vec<_> =
            names.filter(|name| name.starts_with(|c: char| c.is_ascii_digit())).collect();
        places.sort_unstable();
        Ok(places)
    }

    /// Whether somebody stands there. If nobody does, the place is removed.
    pub(crate) fn is_taken(&self, place: &str) -> Result<bool, Fault> {
        // Its owner died, or has not locked it yet: then that one notices. No other place is called so.
        self.is_locked(place, || self.remove(place))
    }

    /// Whether somebody has locked this file. Nobody can, while it does what is to be done then.
    fn is_locked(&self, name: &str, if_not: impl FnOnce()) -> Result<bool, Fault> {
        let path = self.file_of(name);
        // Not for writing: closing it must not wake who waits for the one who has it.
        let file = match self.open(&path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
            Err(e) => return Err(fault("open", &path, e.into())),
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(fault("lock", &path, e.into())),
            Ok(()) => {
                if_not();
                Ok(false)
            }
        }
    }

    /// Makes a file and locks it. `None` if somebody else has it.
    fn lock(&self, name: &str) -> Result<Option<File>, Fault> {
        let path = self.file_of(name);
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
                Err(Errno::WOULDBLOCK) if name == BREAKING => return Ok(None),
                // Somebody looks whether it is taken.
                Err(Errno::WOULDBLOCK) => continue,
                Err(e) => return Err(fault("lock", &path, e.into())),
            }
            let found = file.metadata().map_err(|e| fault("examine", &path, e))?;
            // Not if somebody has found it unlocked meanwhile.
            if found.nlink() > 0 {
                return Ok(Some(file));
            }
        }
        Err(self.is_busy())
    }

    fn make(&self) -> Result<(), Fault> {
        if let Some(directory) = &self.shared {
            return directory.prepare().map_err(gone);
        }
        match DirBuilder::new().mode(0o700).create(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(fault("create", &self.path, e))
            }
            _ => Ok(()),
        }
    }

    /// Removes a file of ours, and the directory if it was the last one.
    fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.file_of(name));
        if self.shared.is_none() {
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    fn is_busy(&self) -> Fault {
        let message =
            format!("{} is being deleted again and again; let it stay", self.path.display());
        Fault::not_applied(FaultKind::Unavailable, message)
    }
}

impl Place {
    /// False if it was passed over.
    pub(crate) fn stands(&self) -> bool {
        self.line.path.join(&self.name).exists()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.remove(&self.name);
    }
}

impl Drop for Breaking {
    fn drop(&mut self) {
        if self.line.shared.is_none() {
            let _ = std::fs::remove_file(self.line.draft());
        }
        self.line.remove(BREAKING);
    }
}
