//! Errors of the kernel as faults, with advice.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use lock_core::Error;
use lock_core::backend::{Fault, FaultKind};
use rustix::io::Errno;

/// Returns the fault of a failed system call that left the lock as it was: nothing was applied.
/// Other failures have an [unknown effect](with_unknown_effect).
pub(crate) fn fault(action: &'static str, path: &Path, source: io::Error) -> Fault {
    let (kind, advice) = classify(&source);
    Fault::not_applied(kind, SystemCallError::new(action, path, advice, source))
}

/// Returns the fault of a system call that may have released the lock although it failed.
pub(crate) fn fault_of_unknown_effect(
    action: &'static str,
    path: &Path,
    source: io::Error,
) -> Fault {
    let (kind, advice) = classify(&source);
    Fault::unknown(kind, SystemCallError::new(action, path, advice, source))
}

/// Returns the same fault with an unknown effect, for failures after a change.
pub(crate) fn with_unknown_effect(fault: Fault) -> Fault {
    Fault::unknown(fault.kind(), fault.into_source())
}

/// Returns the fault of a file that must not be locked.
pub(crate) fn refused(path: &Path, why: &'static str) -> Fault {
    let message = format!("{} {why}", path.display());
    Fault::not_applied(FaultKind::Invalid, message)
}

/// Returns the same as [`fault`], before there is a backend.
pub(crate) fn error(action: &'static str, path: &Path, source: io::Error) -> Error {
    let (kind, advice) = classify(&source);
    let message = format!("cannot {action} {}; {advice}", path.display());
    Error::new(kind.into(), message).with_source(source)
}

fn classify(error: &io::Error) -> (FaultKind, &'static str) {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => {
            (FaultKind::Unavailable, "make room on its file system")
        }
        Some(Errno::ROFS) => (
            FaultKind::Unavailable,
            "its file system is read-only: make it writable or use another directory",
        ),
        Some(Errno::MFILE | Errno::NFILE) => (
            FaultKind::Unavailable,
            "too many files are open: raise the limit (ulimit -n) or hold fewer locks",
        ),
        Some(Errno::ACCESS | Errno::PERM) => (
            FaultKind::Denied,
            "it must belong to this user, who must be allowed to read and write it",
        ),
        Some(Errno::NOENT | Errno::NOTDIR) => {
            (FaultKind::Unavailable, "the directory it belongs into is not there: create it")
        }
        Some(Errno::LOOP) => {
            (FaultKind::Invalid, "it is a symbolic link: remove it or use another directory")
        }
        Some(Errno::ISDIR | Errno::NXIO | Errno::NAMETOOLONG | Errno::INVAL) => {
            (FaultKind::Invalid, "it is not a regular file: remove it or use another directory")
        }
        Some(Errno::NOSYS | Errno::OPNOTSUPP) => {
            (FaultKind::Unsupported, "its file system has no flock(2): use another directory")
        }
        _ => (FaultKind::Unavailable, "check its file system, or use another directory"),
    }
}

/// A failed action with advice. The kernel's error is the source.
#[derive(Debug)]
struct SystemCallError {
    action: &'static str,
    path: PathBuf,
    advice: &'static str,
    source: io::Error,
}

impl SystemCallError {
    fn new(action: &'static str, path: &Path, advice: &'static str, source: io::Error) -> Self {
        Self { action, path: path.to_owned(), advice, source }
    }
}

impl fmt::Display for SystemCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {} {}; {}", self.action, self.path.display(), self.advice)
    }
}

impl std::error::Error for SystemCallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
