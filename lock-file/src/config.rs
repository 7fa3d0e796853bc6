//! The directory of the locks, and the state that the verbs share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lock_core::{Error, LockName};

use crate::break_marker::BreakMarker;
use crate::claims::Claims;
use crate::directory::Directory;
use crate::holders;
use crate::names::Names;
use crate::open_files::OpenFiles;
use crate::queue::Queue;

/// Locks in one directory of this host. Clones share all state.
///
/// See the [crate's documentation](crate) for the guarantees and their limits.
#[derive(Clone, Debug)]
pub struct FileLocks {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) directory: Directory,
    names: Names,
    pub(crate) claims: Arc<Claims>,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) pid_space: u64,
    /// The id of the current boot of the machine.
    pub(crate) boot: Option<String>,
    /// Whether synced data outlasts that boot.
    pub(crate) durable: bool,
}

impl FileLocks {
    /// Creates locks in `directory`, which is created with mode 0700 if it is missing; its parents
    /// are not. Symbolic links above it are resolved here, once.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid): not an absolute path, the root
    ///   directory, a file, a symbolic link, or a directory whose parent is missing.
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): it belongs to another user (root
    ///   excepted), others can write to it, or to a directory above it that is not sticky, or this
    ///   user cannot reach it.
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): it is on a network file
    ///   system.
    pub fn at(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Directory::open(directory.as_ref()).map(Self::in_directory)
    }

    /// Creates locks for all processes of this user, in `/run/lock/locks-<uid>`. Other users have
    /// other locks.
    ///
    /// No environment variable changes the directory: sessions, cron jobs and services would not
    /// agree. If this directory cannot be created, that is an error. No other one is tried, because
    /// processes in two directories would not exclude each other.
    ///
    /// # Errors
    ///
    /// As [`at`](Self::at).
    pub fn for_this_user() -> Result<Self, Error> {
        Directory::of_this_user().map(Self::in_directory)
    }

    /// Returns the directory of [`for_this_user`](Self::for_this_user), without touching it.
    #[must_use]
    pub fn directory_of_this_user() -> PathBuf {
        Directory::path_of_this_user()
    }

    /// Creates locks for the members of the group of `directory`, of any user. The directory must
    /// exist, belong to root, and have mode 3770. See [the model](crate#several-users).
    ///
    /// # Errors
    ///
    /// As [`at`](Self::at); and [`ErrorKind::Denied`](lock_core::ErrorKind::Denied) if the
    /// directory is missing or has another owner or mode, or this user is not in its group.
    pub fn shared_with_group(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Directory::of_group(directory.as_ref()).map(Self::in_directory)
    }

    /// Returns the directory of the lock files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.inner.directory.path()
    }

    /// Returns the file of the lock `name`, for programs that lock it by other means. It need not
    /// exist.
    #[must_use]
    pub fn path_of(&self, name: &LockName) -> PathBuf {
        self.directory().join(self.inner.names.file_name(name))
    }

    pub(crate) fn names(&self) -> &Names {
        &self.inner.names
    }

    pub(crate) fn queue_of(&self, lock_file: &Path) -> Queue {
        Queue::beside(&self.inner.directory, lock_file)
    }

    pub(crate) fn break_marker(&self, lock_file: &Path) -> BreakMarker {
        BreakMarker::beside(&self.inner.directory, lock_file)
    }

    fn in_directory(directory: Directory) -> Self {
        let boot = boot();
        Self {
            inner: Arc::new(Inner {
                durable: boot.is_some() && directory.is_on_disk(),
                boot,
                directory,
                names: Names::new(),
                claims: Arc::default(),
                open_files: Arc::default(),
                pid_space: holders::pid_space(),
            }),
        }
    }
}

/// Returns the id of the current boot of the machine; `None` where it is unknown.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.trim();
    let is_one = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_one.then(|| id.to_owned())
}
