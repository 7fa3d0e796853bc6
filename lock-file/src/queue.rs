//! The queue of the processes that wait for one lock: named pipes in a directory beside the lock
//! file.
//!
//! This is a queue lock after Craig, and Landin and Hagersten ("Queue locks on cache coherent
//! multiprocessors", 1994), made of directory entries. Each process in the queue has a pipe of its
//! own. It keeps the pipe open for writing while it waits, and while it holds the lock if it was
//! granted in its turn. The process behind it has that pipe open for reading. The kernel hangs up
//! when the last copy of the writing end is closed: at the release, at a cancellation, or when the
//! process dies. So a release wakes one process, needs no inotify, and costs the same however many
//! wait.
//!
//! `tail` names the pipe of the last process. A newcomer exchanges its own pipe and that one in one
//! step (`RENAME_EXCHANGE`). Then the entry that is called by the inode of a process's pipe *is*
//! the pipe ahead of it. A process that leaves before its turn leaves this entry, and the one
//! behind it takes that over. One that is granted in its turn removes it: a pipe that is gone and
//! has no entry ends the queue.
//!
//! Joining takes a shared kernel lock on the directory for some system calls, so that joins do not
//! wait for each other. Only a removal of ended processes from the end takes an exclusive one, and
//! no process blocks in either.
//!
//! The queue gives the order only; the lock on the lock file decides.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::sleep_between;
use rustix::fs::{
    Access, AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, mkfifoat,
    openat, renameat, renameat_with, unlinkat,
};
use rustix::io::{Errno, ioctl_fionread, read, write};

use crate::directory::Directory;
use crate::fault::fault;
use crate::share;

/// Of its directory.
pub(crate) const SUFFIX: &str = ".d";
const TAIL: &str = "tail";

/// Limit of retries of a newcomer whose directory is removed or tidied.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(2);

/// Limit of retries for the exclusive lock on the directory while others join.
const TIDYING_TRIES: u32 = 20;

/// Limit of the length. A queue that a member of a group has made circular has no end.
const MAX_HOPS: u32 = 20_000;

/// The content of a pipe whose process has left while a child of it may have the pipe. It is longer
/// than a byte, because a concurrent reader takes one away.
const LEFT_MARK: [u8; 64] = [b'.'; 64];

/// The queue before one lock.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    path: PathBuf,
    /// The directory of the lock file.
    parent: Directory,
}

/// An entry in the queue. Dropping it leaves the queue: a waiter always, a holder as far as no
/// child process has inherited the entry.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    queue: Queue,
    /// `None` only while it is dropped.
    ours: Option<Pipe>,
    ahead: Option<Pipe>,
    waits: bool,
}

/// An open pipe, and its inode, which belongs to no other pipe as long as this one is open.
#[derive(Debug)]
struct Pipe {
    file: Arc<File>,
    id: u64,
}

impl Queue {
    pub(crate) fn beside(directory: &Directory, lock_file: &Path) -> Self {
        let mut path = OsString::from(lock_file);
        path.push(SUFFIX);
        Self { path: path.into(), parent: directory.clone() }
    }

    /// Returns false if no process waits.
    pub(crate) fn exists(&self) -> bool {
        rustix::fs::access(&self.path, Access::EXISTS).is_ok()
    }

    /// Joins at the end. Returns `None` where there can be no queue, as on a full disk.
    ///
    /// # Errors
    ///
    /// A process without descriptors is refused: without an entry it would overtake the others.
    pub(crate) async fn join(&self) -> Result<Option<QueueEntry>, Fault> {
        for _ in 0..TRIES {
            let why = match self.try_join() {
                Ok(entry) => return Ok(Some(entry)),
                // The last process has just left, or others take the dead away.
                Err(Errno::NOENT) => match self.make() {
                    Ok(()) => continue,
                    Err(why) => why,
                },
                Err(Errno::WOULDBLOCK) => {
                    sleep_between(PAUSE / 2, PAUSE).await;
                    continue;
                }
                Err(why) => why,
            };
            return self.check_descriptors(why).map(|()| None);
        }
        Ok(None)
    }

    /// Returns an error only for a lack of descriptors.
    pub(crate) fn check_descriptors(&self, why: Errno) -> Result<(), Fault> {
        match lacks_descriptors(why) {
            true => Err(fault("queue in", &self.path, why.into())),
            false => Ok(()),
        }
    }

    /// Returns true if a process is in the queue. Removes the entries of processes that ended.
    pub(crate) fn is_occupied(&self) -> bool {
        let Ok(directory) = self.open() else { return false };
        let nearest = match self.look_at(&directory, TAIL) {
            Ok(Some(tail)) => self.nearest(&directory, tail),
            other => other,
        };
        let is_occupied = matches!(nearest, Ok(Some(_)));
        if !is_occupied {
            self.tidy();
        }
        is_occupied
    }

    /// Returns the number of waiters; `None` where there can be no queue.
    pub(crate) fn len(&self) -> Option<u64> {
        let directory = match self.open() {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Some(0),
            Err(_) => return None,
        };
        let mut waiting = 0;
        let mut pipe = self.look_at(&directory, TAIL).ok()?;
        for _ in 0..MAX_HOPS {
            let Some(last) = pipe else { break };
            pipe = self.look_at(&directory, &last.name()).ok()?;
            // Without an entry it holds the lock.
            waiting += u64::from(pipe.is_some() && !last.is_gone());
        }
        Some(waiting)
    }

    /// Removes the holder of a lock that was broken. The process behind it is the head then. If the
    /// holder did not come from the queue, all keep their positions.
    pub(crate) fn remove_holder(&self) {
        if let Ok(directory) = self.open() {
            let _ = self.remove_head(&directory, TAIL.to_owned(), true);
        }
    }

    /// Removes the head, as seen from the process with this entry.
    fn remove_head(
        &self,
        directory: &OwnedFd,
        mut entry: String,
        only_holder: bool,
    ) -> Result<(), Errno> {
        let mut first = None;
        for _ in 0..MAX_HOPS {
            let Some(pipe) = self.look_at(directory, &entry)? else { break };
            let next = pipe.name();
            if !pipe.is_gone() {
                first = Some((entry, pipe));
            }
            entry = next;
        }
        let end = entry;
        let Some((entry, first)) = first else { return Ok(()) };
        // A process that waits has an entry.
        if only_holder && first.name() != end {
            return Ok(());
        }
        let _ = unlinkat(directory, first.name(), AtFlags::empty());
        let how = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let again = self.check_pipe(openat(directory, entry, how, Mode::empty())?)?;
        if again.id == first.id {
            again.mark_left();
        }
        Ok(())
    }

    fn try_join(&self) -> Result<QueueEntry, Errno> {
        let directory = LockedDirectory::lock(self.open()?, FlockOperation::NonBlockingLockShared)?;
        let directory = &directory.0;
        let ours = self.make_pipe(directory)?;
        let name = ours.name();
        let swapped = match self.swap(directory, &name) {
            Err(Errno::NOENT) => self.begin(directory).and_then(|()| self.swap(directory, &name)),
            swapped => swapped,
        };
        if let Err(why) = swapped {
            let _ = unlinkat(directory, &name, AtFlags::empty());
            // Where names cannot be exchanged, there is no queue.
            return Err(if why == Errno::NOENT { Errno::IO } else { why });
        }
        let mut entry =
            QueueEntry { queue: self.clone(), ours: Some(ours), ahead: None, waits: true };
        entry.ahead = match self.look_at(directory, &name) {
            Err(why) if lacks_descriptors(why) => return Err(why),
            ahead => ahead.unwrap_or_default(),
        };
        Ok(entry)
    }

    /// Exchanges `name` with the tail: from here on the entry `name` is the pipe that was the last
    /// one.
    fn swap(&self, directory: &OwnedFd, name: &str) -> Result<(), Errno> {
        renameat_with(directory, name, directory, TAIL, RenameFlags::EXCHANGE)
    }

    /// Puts a pipe without a process at the end of a new queue.
    fn begin(&self, directory: &OwnedFd) -> Result<(), Errno> {
        let name = self.make_pipe(directory)?.name();
        match renameat_with(directory, &name, directory, TAIL, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => unlinkat(directory, &name, AtFlags::empty()),
            begun => begun,
        }
    }

    /// Creates a pipe with an entry of its own name. It is created under another one, because an
    /// earlier pipe of the same inode may have left its entry.
    fn make_pipe(&self, directory: &OwnedFd) -> Result<Pipe, Errno> {
        let draft = share::draft_name();
        mkfifoat(directory, &draft, Mode::RUSR | Mode::WUSR)?;
        let how = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(directory, &draft, how, Mode::empty()).and_then(|pipe| {
            if let Some(share) = self.parent.share() {
                share.share_pipe(&pipe)?;
            }
            let pipe = self.check_pipe(pipe)?;
            renameat(directory, &draft, directory, pipe.name()).map(|()| pipe)
        });
        if made.is_err() {
            let _ = unlinkat(directory, &draft, AtFlags::empty());
        }
        made
    }

    /// Returns the nearest process that has not left, from `pipe` on.
    fn nearest(&self, directory: &OwnedFd, mut pipe: Pipe) -> Result<Option<Pipe>, Errno> {
        for _ in 0..MAX_HOPS {
            if !pipe.is_gone() {
                return Ok(Some(pipe));
            }
            match self.look_at(directory, &pipe.name())? {
                Some(ahead) => pipe = ahead,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Removes processes that left from the end of the queue, and the queue if it is empty.
    fn tidy(&self) {
        let Ok(directory) = self.open() else { return };
        // Most of the time others wait, and newcomers are not to be disturbed.
        if self.look_at(&directory, TAIL).is_ok_and(|tail| tail.is_some_and(|it| !it.is_gone())) {
            return;
        }
        let Some(directory) = LockedDirectory::soon(directory) else { return };
        let directory = &directory.0;
        for _ in 0..MAX_HOPS {
            match self.look_at(directory, TAIL) {
                Ok(Some(tail)) if tail.is_gone() => {
                    if renameat(directory, tail.name(), directory, TAIL).is_err() {
                        let _ = unlinkat(directory, TAIL, AtFlags::empty());
                    }
                }
                Ok(None) => break,
                // In use, or none of ours.
                _ => return,
            }
        }
        if rustix::fs::rmdir(&self.path) == Err(Errno::NOTEMPTY) {
            self.sweep();
            let _ = rustix::fs::rmdir(&self.path);
        }
    }

    /// Removes the drafts of processes that ended while they joined. The exclusive lock keeps
    /// newcomers out.
    fn sweep(&self) {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
            if name.starts_with(|c: char| c.is_ascii_digit()) || share::is_draft(&name) {
                let _ = std::fs::remove_file(self.path.join(name));
            }
        }
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        self.parent.open_queue(&self.path)
    }

    fn make(&self) -> Result<(), Errno> {
        match self.parent.make_queue(&self.path) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }
    }

    /// Opens the pipe that an entry names; `None` if there is no such entry.
    fn look_at(&self, directory: &OwnedFd, entry: &str) -> Result<Option<Pipe>, Errno> {
        let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(directory, entry, how | OFlags::NOCTTY, Mode::empty()) {
            Ok(file) => self.check_pipe(file).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Refuses a file that is no pipe of this backend. Nothing of it was read.
    fn check_pipe(&self, file: OwnedFd) -> Result<Pipe, Errno> {
        let found = fstat(&file)?;
        let is_ours = self.parent.share().is_none_or(|share| share.trusts_pipe(&found));
        if is_ours && FileType::from_raw_mode(found.st_mode) == FileType::Fifo {
            Ok(Pipe { file: Arc::new(file.into()), id: found.st_ino })
        } else {
            Err(Errno::INVAL)
        }
    }
}

impl QueueEntry {
    /// Returns the pipe of the process ahead, which hangs up when that process leaves; `None` for
    /// the head. Takes over the entry of a process that has left.
    ///
    /// # Errors
    ///
    /// The takeover needs descriptors and there are none.
    pub(crate) fn ahead(&mut self) -> Result<Option<Arc<File>>, Fault> {
        while let Some(ahead) = &self.ahead {
            if !ahead.is_gone() {
                return Ok(Some(Arc::clone(&ahead.file)));
            }
            self.ahead = match self.take_over(ahead) {
                Ok(next) => next,
                Err(why) => {
                    self.queue.check_descriptors(why)?;
                    None
                }
            };
        }
        Ok(None)
    }

    /// Returns true if it did not respond as the head, and lost its position.
    pub(crate) fn lost_position(&self) -> bool {
        self.ours.as_ref().is_none_or(Pipe::has_left)
    }

    /// Records that it holds the lock, in its turn.
    pub(crate) fn becomes_holder(&mut self) {
        self.waits = false;
        if let (Some(ours), Ok(directory)) = (&self.ours, self.queue.open()) {
            let _ = unlinkat(&directory, ours.name(), AtFlags::empty());
        }
    }

    /// Records that it took the lock before its turn, because the head did not.
    pub(crate) fn overtake(self) {
        if let (Some(ours), Ok(directory)) = (&self.ours, self.queue.open()) {
            let _ = self.queue.remove_head(&directory, ours.name(), false);
        }
    }

    /// Leaves the queue, also where child processes have inherited the entry.
    pub(crate) fn leave(self) {
        if let Some(ours) = &self.ours {
            ours.mark_left();
        }
    }

    /// Returns a copy for a child process, which keeps the entry with it.
    pub(crate) fn copy(&self) -> Option<OwnedFd> {
        self.ours.as_ref()?.file.as_fd().try_clone_to_owned().ok()
    }

    /// Takes the entry of the process ahead, if that one left before its turn.
    fn take_over(&self, gone: &Pipe) -> Result<Option<Pipe>, Errno> {
        let directory = self.queue.open()?;
        let next = self.queue.look_at(&directory, &gone.name())?;
        if let (Some(_), Some(ours)) = (&next, &self.ours) {
            renameat(&directory, gone.name(), &directory, ours.name())?;
        }
        Ok(next)
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        if let Some(ours) = self.ours.take()
            && self.waits
        {
            // A child process that is being started has a copy until it executes its program.
            ours.mark_left();
        }
        self.queue.tidy();
    }
}

impl Pipe {
    /// Returns the name of the entry of its process.
    fn name(&self) -> String {
        self.id.to_string()
    }

    /// Returns true if its process has ended, or has marked that it left.
    fn is_gone(&self) -> bool {
        self.has_left() || !matches!(read(&self.file, &mut [0_u8; 1]), Err(Errno::AGAIN))
    }

    fn has_left(&self) -> bool {
        ioctl_fionread(&self.file).is_ok_and(|bytes| bytes > 0)
    }

    fn mark_left(&self) {
        // A full pipe says so already.
        let _ = write(&self.file, &LEFT_MARK);
    }
}

fn lacks_descriptors(why: Errno) -> bool {
    matches!(why, Errno::MFILE | Errno::NFILE)
}

/// A directory with a kernel lock on it. Closing alone would leave that to a child process that is
/// being started.
struct LockedDirectory(OwnedFd);

impl LockedDirectory {
    fn lock(directory: OwnedFd, how: FlockOperation) -> Result<Self, Errno> {
        flock(&directory, how).map(|()| Self(directory))
    }

    /// Locks it exclusively, unless others join for longer than a moment.
    fn soon(directory: OwnedFd) -> Option<Self> {
        for _ in 0..TIDYING_TRIES {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Self(directory)),
                Err(Errno::WOULDBLOCK) => std::thread::yield_now(),
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for LockedDirectory {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
