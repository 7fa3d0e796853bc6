//! Locks among the processes of one user, or of a group, on one host: kernel locks on files, no
//! server.
//!
//! # What is not promised
//!
//! * **More than one host.** Directories on known network file systems are refused. Other FUSE file
//!   systems are accepted, because their type does not show where the data are. Containers exclude
//!   each other only if they share the directory.
//! * **More than one user**, unless a directory is shared: root and another user hold the lock of
//!   one name at the same time. A directory in which others can replace files is refused.
//! * **A lease of a guard.** A lock lasts while its holder keeps the file open, even if it is
//!   stopped for hours. A lock file that was deleted or replaced by hand lets others in. The holder
//!   is notified at once, without inotify within a second; not in the first 0.1 s of its hold.
//! * **Strict order among processes.** A try, flock(1) and a process whose turn has just come may
//!   take a free lock before the queue, and a stopped waiter is skipped.
//! * **`inspect` and `list` beyond `/proc/locks`.** They see no holder in a foreign pid namespace.
//!   Where hundreds of locks come and go, they can miss one. A list looks at 50 000 files at most.
//! * **Detached holds against flock(1)**: they stand in the file, and flock(1) does not see them. A
//!   restart of the machine ends them.
//! * **A break of a kernel lock does not stop its process.** The file is replaced, and the next
//!   acquisition has a higher token. Kill the process instead where that is possible.
//! * **Names that differ only in case** are one lock on file systems that ignore case.
//!
//! # Guarantees
//!
//! The kernel frees the lock when the last descriptor of the holder is closed, so the lock of a
//! killed process is free at once. Tokens are [`Fencing::Durable`]: the limit up to which they may
//! be granted is synced first. On tmpfs, as `/run/lock` is, they are [`Fencing::Seeded`]. A release
//! wakes one process, however many wait. A program that locks `<directory>/<name>.lock` by
//! [flock(1)] excludes our holders.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! # let scratch = tempfile::tempdir().unwrap();
//! # let directory = scratch.path().join("locks");
//! use lock_core::Locker;
//! use lock_file::FileLocks;
//!
//! let locks = Locker::new(FileLocks::at(directory)?);
//! let guard = locks.lock("nightly-backup")?.acquire().await?;
//! let token = guard.fencing_token(); // for a resource that checks it
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! # URL and options
//!
//! `file:` is `/run/lock/locks-<uid>`, and `file:///dir` another directory of this user.
//!
//! # Several users
//!
//! `file:///dir?share=group`, or [`FileLocks::shared_with_group`], is for the members of a group.
//! Root makes the directory: `install -d -o root -g GROUP -m 3770 /dir`. Members can spoil lock
//! files and refuse locks to others, but cannot reach files outside of the directory.
//!
//! # Errors
//!
//! A planted or foreign file is refused, and the error names its path. A token below one that the
//! process has seen is [`ErrorKind::FenceRegressed`]. A failed sync and a lack of descriptors are
//! errors.
//!
//! # Child processes
//!
//! Descriptors are close-on-exec. A process that gets one from [`descriptor`] keeps the lock
//! without its guard's process; with [`queue_descriptor`] as well, it keeps the next waiter asleep.
//!
//! # More in the repository
//!
//! `docs/protocol/file.md` has the files, the record, the queue, several users, breaks and
//! containers.
//!
//! [flock(1)]: https://man7.org/linux/man-pages/man1/flock.1.html
//! [`ErrorKind::FenceRegressed`]: lock_core::ErrorKind::FenceRegressed
//! [`Fencing::Durable`]: lock_core::Fencing::Durable
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded

mod backend;
mod break_marker;
mod claims;
mod config;
mod counter;
mod diagnose;
mod directory;
mod disk_thread;
mod fault;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod file_watch;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "no_file_watch.rs"]
mod file_watch;
#[cfg(feature = "__fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod holders;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "no_holders.rs"]
mod holders;
mod lock_file;
mod names;
mod open_files;
mod queue;
mod record;
mod share;
mod verbs;

pub use claims::{descriptor, queue_descriptor};
pub use config::FileLocks;
pub use diagnose::{diagnose, forget};
