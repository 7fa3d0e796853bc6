//! The directory of the lock files, and whether it can be trusted.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind};
use rustix::io::Errno;

use crate::fault::error;

/// A directory in which nobody else can replace our files: a real one, not a link, on this host,
/// owned by this user or root, writable by its owner alone, and in directories from which others
/// cannot move it away.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// Without links in it: the lock space stays where it is when somebody turns a link.
    path: PathBuf,
}

impl Directory {
    /// `path`, created with mode 0700 if it is missing. Its parents are not created: a mistyped
    /// path would make a lock space that nobody else looks into.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let refuse = |why: &str| {
            let message = format!("the lock directory {path:?} {why}");
            Err(Error::new(ErrorKind::Invalid, message))
        };
        if !path.is_absolute() {
            return refuse("must be an absolute path, so that it is the same for every process");
        }
        if path.as_os_str().as_bytes().contains(&0) {
            return refuse("has a NUL byte in its path; no path has");
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return refuse("must have a name: neither / nor a path that ends in ..");
        };
        let parent = match parent.canonicalize() {
            Ok(parent) => parent,
            Err(e) => return Err(no_parent(path, e)),
        };
        // The last name as it is: a link in its place is refused.
        let directory = Self { path: parent.join(name) };
        directory.prepare()?;
        Ok(directory)
    }

    /// `/run/lock/locks-<uid>`, or `/tmp/locks-<uid>` on systems whose `/run/lock` is not for users.
    ///
    /// Not `$XDG_RUNTIME_DIR` and not `$TMPDIR`: sessions have them and jobs of cron do not, and the
    /// two would each have a lock of their own. And not the second directory because somebody else
    /// has made the first one: that would let them split us.
    pub(crate) fn of_this_user() -> Result<Self, Error> {
        let name = format!("locks-{}", user());
        let preferred = Path::new("/run/lock").join(&name);
        match make(&preferred) {
            Err(why) if is_not_for_users(&why) => Self::open(&Path::new("/tmp").join(&name)),
            Err(other) => Err(error("create the lock directory", &preferred, other)),
            Ok(()) => Self::open(&preferred),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes sure that it is there and can be trusted. Again when it turns out to be gone: runtime
    /// directories are removed when their user logs out.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        match make(&self.path) {
            Ok(()) => {}
            Err(e) => return Err(no_parent(&self.path, e)),
        }
        let found = std::fs::symlink_metadata(&self.path)
            .map_err(|e| error("examine the lock directory", &self.path, e))?;
        self.check(&found)?;
        self.check_parents()?;
        self.check_file_system()
    }

    fn check(&self, found: &Metadata) -> Result<(), Error> {
        let refuse = |kind, why: &str| {
            let message = format!("the lock directory {} {why}", self.path.display());
            Err(Error::new(kind, message))
        };
        if found.is_symlink() {
            let why = "is a symbolic link; give the directory itself";
            return refuse(ErrorKind::Invalid, why);
        }
        if !found.is_dir() {
            let why = "is not a directory; remove the file or give another directory";
            return refuse(ErrorKind::Invalid, why);
        }
        if let Err(why) = trusts(found.uid(), found.mode(), user()) {
            return refuse(ErrorKind::Denied, &why);
        }
        Ok(())
    }

    /// Whoever can write to a directory can rename what is in it, and put another lock directory in
    /// the place of ours. Not so in a sticky one, as `/tmp`.
    fn check_parents(&self) -> Result<(), Error> {
        for parent in self.path.ancestors().skip(1) {
            let found = std::fs::symlink_metadata(parent)
                .map_err(|e| error("examine the directory", parent, e))?;
            if lets_others_rename(found.mode()) {
                let message = format!(
                    "the lock directory {} is in {}, which has mode {:04o}: others could move it away; run `chmod go-w` on that or give a directory elsewhere",
                    self.path.display(),
                    parent.display(),
                    found.mode() & 0o7777
                );
                return Err(Error::new(ErrorKind::Denied, message));
            }
        }
        Ok(())
    }

    /// False if its files are gone when the machine is.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn is_on_disk(&self) -> bool {
        const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6]; // tmpfs, ramfs
        rustix::fs::statfs(&self.path).is_ok_and(|it| !IN_MEMORY.contains(&type_of(&it)))
    }

    /// Elsewhere nobody knows.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn is_on_disk(&self) -> bool {
        false
    }

    /// On a network file system, a lock may be kept from this host's processes only, or not at all,
    /// and is lost without a word when its server restarts.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn check_file_system(&self) -> Result<(), Error> {
        let found = rustix::fs::statfs(&self.path)
            .map_err(|e| error("examine the lock directory", &self.path, e.into()))?;
        let number = type_of(&found);
        match NETWORK_FILE_SYSTEMS.iter().find(|&&(of, _)| of == number) {
            None => Ok(()),
            Some((_, name)) => {
                let message = format!(
                    "the lock directory {} is on {name}, a network file system; these locks are for one host: give a local directory",
                    self.path.display()
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Elsewhere the type is not looked at.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn check_file_system(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Makes the directory, unless something is there already.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// True if the error of making a directory in `/run/lock` means that this system has none, or none
/// for users: that is so for every process of this user, today and tomorrow. A full or read-only file
/// system is not: a process that came to `/tmp` for that would not see the locks of those that came
/// before or after it.
fn is_not_for_users(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS))
}

/// Why the directory at `path` cannot be made, or its parent not be found.
fn no_parent(path: &Path, why: io::Error) -> Error {
    if why.kind() != io::ErrorKind::NotFound {
        return error("create the lock directory", path, why);
    }
    let message = format!(
        "cannot create the lock directory {}; its parent directory does not exist: create it first",
        path.display()
    );
    Error::new(ErrorKind::Invalid, message).with_source(why)
}

/// The width of the field differs between architectures; the numbers have 32 bits.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn type_of(file_system: &rustix::fs::StatFs) -> u64 {
    file_system.f_type as u64 & 0xffff_ffff
}

fn lets_others_rename(mode: u32) -> bool {
    const STICKY: u32 = 0o1000;
    mode & 0o022 != 0 && mode & STICKY == 0
}

/// Whether nobody but `user` (and root, who can do anything) can replace files in a directory of
/// `owner` with `mode`.
fn trusts(owner: u32, mode: u32, user: u32) -> Result<(), String> {
    if owner != user && owner != 0 {
        return Err(format!(
            "belongs to user {owner}, who could replace locks of user {user}; give a directory of your own"
        ));
    }
    if mode & 0o022 != 0 {
        return Err(format!(
            "has mode {:04o}: others could replace its locks; run `chmod go-w` on it or give a directory of your own",
            mode & 0o7777
        ));
    }
    Ok(())
}

/// From statfs(2) and linux/magic.h.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORK_FILE_SYSTEMS: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0102_1997, "9P"),
];

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_system_without_run_lock_for_users_uses_tmp() {
        let is_not_for_users = |errno: Errno| is_not_for_users(&errno.into());
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::ACCESS] {
            assert!(is_not_for_users(errno), "{errno:?}");
        }
        for errno in [
            Errno::ROFS,
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::IO,
            Errno::LOOP,
            Errno::MLINK,
            Errno::NOMEM,
            Errno::PERM,
            Errno::MFILE,
            Errno::INTR,
        ] {
            assert!(!is_not_for_users(errno), "{errno:?} would split the lock space");
        }
    }

    #[test]
    fn others_rename_what_is_in_a_directory_that_they_can_write_to_unless_it_is_sticky() {
        for mode in [0o40755, 0o40700, 0o41777, 0o41775] {
            assert!(!lets_others_rename(mode), "{mode:o}");
        }
        for mode in [0o40777, 0o40775, 0o40722, 0o42770] {
            assert!(lets_others_rename(mode), "{mode:o}");
        }
    }

    #[test]
    fn a_directory_is_trusted_if_nobody_else_can_write_to_it() {
        assert!(trusts(1000, 0o40700, 1000).is_ok());
        assert!(trusts(1000, 0o40755, 1000).is_ok());
        assert!(trusts(0, 0o40755, 1000).is_ok());
        assert!(trusts(1001, 0o40700, 1000).is_err(), "another user's");
        assert!(trusts(1001, 0o40700, 0).is_err(), "root is careful too");
        for mode in [0o40770, 0o40720, 0o40702, 0o41777] {
            assert!(trusts(1000, mode, 1000).is_err(), "{mode:o}");
        }
    }
}
