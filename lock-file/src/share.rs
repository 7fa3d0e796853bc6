//! A directory that the members of a group share.
//!
//! Members trust each other with the contents of lock files: every holder writes its record and
//! advances the counter. They do not trust each other with anything else. A member can plant
//! anything that it likes under the name of a lock file: a link, a pipe, a file with a second name
//! other. So nothing is opened outside of the directory. An opened file is neither locked nor read
//! unless it is a regular file with one name, and has the group and the mode of our own files.
//!
//! The kernel does the rest: the directory belongs to root and is sticky, so no member can delete
//! or replace the file of another one; and it is closed to users outside of the group.
//!
//! No file is opened with `O_CREAT` under the name of a lock: `fs.protected_regular` refuses that
//! in sticky directories if the file belongs to another user, for root as well. A new file gets its
//! mode and group under a name of its own. Then it is renamed, unless another process was faster.
//! So no process sees it half made, and the umask does not matter.
//!
//! The directory of a [queue](crate::queue) is not sticky, because each newcomer exchanges its own
//! entry and that of the last one, of any member. So members can disorder a queue, as they can keep
//! others out by holding a lock. They can do no more by it: a queue is used only if each member may
//! do there all that we do, and only through its descriptor, with names that have no slash in them.
//! A file that is planted there is opened without following links, without blocking and without
//! making it, and is not read unless it is a pipe with one name and the group and mode of ours.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lock_core::{Error, ErrorKind, OwnerId};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, fchmod, fchown, fstat};
use rustix::io::Errno;

use crate::fault::error;

/// The mode of the directory: its group may write, it is sticky, and its files get its group.
const DIRECTORY_MODE: u32 = 0o3770;
const FILE_MODE: u32 = 0o660;
/// The mode of the directory of a queue, in which members exchange each other's entries.
const QUEUE_MODE: u32 = 0o2770;

/// Prefix of a file that is not in its place yet. No lock file has it.
const DRAFT: &str = ".new-";

/// The group that shares a directory.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    group: u32,
}

impl Share {
    pub(crate) fn of(directory: &Path) -> Result<Self, Error> {
        let found = std::fs::symlink_metadata(directory).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => refusal(directory, "is missing"),
            _ => error("examine the lock directory", directory, e),
        })?;
        Ok(Self { group: found.gid() })
    }

    /// Returns the number of the group.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// Checks that the directory can be trusted.
    pub(crate) fn check(&self, directory: &Path) -> Result<(), Error> {
        let handle = open_directory(directory).map_err(|e| match e {
            Errno::NOTDIR | Errno::LOOP => refusal(directory, "is not a directory"),
            Errno::NOENT => refusal(directory, "is missing"),
            other => error("open the lock directory", directory, other.into()),
        })?;
        let found =
            fstat(&handle).map_err(|e| error("examine the lock directory", directory, e.into()))?;
        if !self.trusts(&found) {
            let (owner, mode) = (found.st_uid, found.st_mode & 0o7777);
            let why = format!("belongs to user {owner} and has mode {mode:04o}");
            return Err(refusal(directory, &why));
        }
        rustix::fs::accessat(
            &handle,
            ".",
            rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
            AtFlags::EACCESS,
        )
        .map_err(|e| {
            let message = format!(
                "this user is not in group {}, which shares the lock directory {}",
                self.group,
                directory.display()
            );
            Error::new(ErrorKind::Denied, message).with_source(std::io::Error::from(e))
        })
    }

    fn trusts(&self, found: &Stat) -> bool {
        found.st_uid == 0 && found.st_gid == self.group && found.st_mode & 0o7777 == DIRECTORY_MODE
    }

    /// Returns the reason why a file is foreign and must not be touched. A file that has just been
    /// replaced has no name at all.
    pub(crate) fn distrusts(&self, found: &Metadata) -> Option<&'static str> {
        self.distrust(found.nlink() > 1, found.gid(), found.mode())
    }

    /// Returns true if a pipe of a queue is one of this backend.
    pub(crate) fn trusts_pipe(&self, found: &Stat) -> bool {
        self.distrust(found.st_nlink > 1, found.st_gid, found.st_mode).is_none()
    }

    fn distrust(&self, has_second_name: bool, group: u32, mode: u32) -> Option<&'static str> {
        match () {
            () if has_second_name => Some("has a second name; remove it"),
            () if group != self.group => Some("is not in the directory's group; remove it"),
            () if mode & 0o7777 != FILE_MODE => Some("has not mode 0660; remove it"),
            () => None,
        }
    }

    /// Opens the file at `path`, which is in `directory`.
    pub(crate) fn open_file(
        &self,
        directory: &Path,
        path: &Path,
        how: OFlags,
    ) -> Result<File, Errno> {
        let (handle, name) = self.enter(directory, path)?;
        let is_made = how.contains(OFlags::CREATE);
        let how = how.difference(OFlags::CREATE);
        match rustix::fs::openat(&handle, name, how, Mode::empty()) {
            Err(Errno::NOENT) if is_made => {
                self.make_file(&handle, name)?;
                rustix::fs::openat(&handle, name, how, Mode::empty()).map(File::from)
            }
            opened => opened.map(File::from),
        }
    }

    /// Opens the directory of a queue at `path`, which is in `directory`.
    pub(crate) fn open_queue(
        &self,
        directory: &Path,
        path: &Path,
        how: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let (handle, name) = self.enter(directory, path)?;
        let queue = rustix::fs::openat(&handle, name, how, Mode::empty())?;
        let found = fstat(&queue)?;
        let is_ours = found.st_gid == self.group && found.st_mode & 0o7777 == QUEUE_MODE;
        if is_ours { Ok(queue) } else { Err(Errno::PERM) }
    }

    /// Creates the directory of a queue at `path`, which is in `directory`.
    pub(crate) fn make_queue(&self, directory: &Path, path: &Path) -> Result<(), Errno> {
        let (handle, name) = self.enter(directory, path)?;
        let draft = draft_name();
        rustix::fs::mkdirat(&handle, &draft, Mode::RWXU)?;
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&handle, &draft, how, Mode::empty());
        let placed =
            made.and_then(|queue| self.set_group_and_mode(&queue, QUEUE_MODE)).and_then(|()| {
                let only_if_missing = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(&handle, &draft, &handle, name, only_if_missing)
            });
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&handle, &draft, AtFlags::REMOVEDIR);
        }
        placed
    }

    /// Gives a pipe that this process has just made to the group.
    pub(crate) fn share_pipe(&self, pipe: impl AsFd) -> Result<(), Errno> {
        self.set_group_and_mode(pipe, FILE_MODE)
    }

    /// Opens the directory, and returns it with a name in it.
    fn enter<'a>(&self, directory: &Path, path: &'a Path) -> Result<(OwnedFd, &'a OsStr), Errno> {
        let handle = open_directory(directory)?;
        if !self.trusts(&fstat(&handle)?) {
            return Err(Errno::PERM);
        }
        Ok((handle, path.file_name().ok_or(Errno::INVAL)?))
    }

    fn make_file(&self, directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        let draft = draft_name();
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &draft, how, Mode::RUSR | Mode::WUSR)?;
        let placed = self.set_group_and_mode(&file, FILE_MODE).and_then(|()| {
            let only_if_missing = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(directory, &draft, directory, name, only_if_missing)
        });
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(directory, &draft, AtFlags::empty());
        }
        match placed {
            // Another process was faster.
            Err(Errno::EXIST) => Ok(()),
            placed => placed,
        }
    }

    fn set_group_and_mode(&self, file: impl AsFd, mode: u32) -> Result<(), Errno> {
        if fstat(&file)?.st_gid != self.group {
            fchown(&file, None, Some(Gid::from_raw(self.group)))?;
        }
        fchmod(&file, Mode::from_raw_mode(mode))
    }
}

/// Returns a name that no other file has.
pub(crate) fn draft_name() -> String {
    format!("{DRAFT}{}", OwnerId::mint().expose())
}

/// Returns true if a file with this name was not moved to its place.
pub(crate) fn is_draft(name: &str) -> bool {
    name.starts_with(DRAFT)
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, how, Mode::empty())
}

fn refusal(directory: &Path, why: &str) -> Error {
    let message = format!(
        "the lock directory {path} {why}; to share it with a group, run `install -d -o root -g GROUP -m 3770 {path}`",
        path = directory.display()
    );
    Error::new(ErrorKind::Denied, message)
}
