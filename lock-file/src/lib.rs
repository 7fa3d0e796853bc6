//! Locks among the processes of one host: kernel locks on files, no server.
//!
//! Each lock is a file in one directory, locked with `flock(2)`. The kernel frees it when the last
//! descriptor of the holder is closed, so the lock of a process that was killed is free at once.
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
//! # What is not promised
//!
//! * **One host.** A directory on a network file system is refused where its type tells (NFS, SMB,
//!   AFS, Coda, Ceph, Lustre, 9P). A FUSE file system does not tell what is behind it and is
//!   accepted: it excludes the processes that use this mount. Containers exclude each other only if
//!   they share the directory.
//! * **One user.** Lock files have mode 0600. A directory in which others can replace files is
//!   refused, and so is one that they can move away because they can write to a directory above it
//!   that is not sticky.
//! * **No lease.** A lock lasts as long as its holder has it open, be it stopped for hours: the ttl
//!   is only the rhythm in which the holder looks, three times per ttl, whether its file is still
//!   the one in the directory. Until then, a lock file that was deleted or replaced by hand lets
//!   others in.
//! * **No order among processes.** A waiter looks again after 1 to 50 ms; who looks first after a
//!   release wins. A busy process can keep waiters of other processes out: one that takes the lock
//!   again as soon as it has released it is always first. Pause for more than 50 ms between two
//!   rounds of such a loop. Inside one process, a locker serves first come, first served.
//! * **Tokens survive crashes of processes, not of the machine.** They are written into the lock
//!   file before the grant returns, but not synced: [`Fencing::Seeded`]. After a power cut the wall
//!   clock keeps them growing, unless it was set back.
//! * **`inspect` sees what `/proc/locks` shows**: nothing of holders in a pid namespace that this
//!   process cannot look into, which includes, inside a container, a lock that only an inherited
//!   descriptor keeps. On a machine with hundreds of locks that come and go, a holder can be missed.
//! * **Names that differ only in case** are one lock on file systems that ignore case.
//!
//! # Descriptors and child processes
//!
//! Descriptors are close-on-exec. A process that was given one on purpose, through [`descriptor`],
//! keeps the lock when the guard's process is gone without having released it. A release unlocks
//! for all of them. A process that forks without `exec` shares its locks with the child. A child that
//! closes what it inherits, as `sudo` and daemons do, keeps nothing.
//!
//! # Together with flock(1)
//!
//! The file of a lock with a plain name is `<directory>/<name>.lock`. Whoever locks it with
//! `flock(2)`, as [flock(1)] does, excludes our holders and is excluded by them. Every other
//! character is escaped, see [`Encoding`](lock_core::Encoding). A file that holds somebody else's
//! data is never written: such a lock is refused.
//!
//! Lock files are never deleted. Deleting one while another process opens it would let two of them
//! in, and each file also keeps the counter of its fencing tokens.
//!
//! See [flock(2)] for the kernel's side.
//!
//! [flock(2)]: https://man7.org/linux/man-pages/man2/flock.2.html
//! [flock(1)]: https://man7.org/linux/man-pages/man1/flock.1.html
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded

mod attempt;
mod backend;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod bell;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "no_bell.rs"]
mod bell;
mod claims;
mod counter;
mod detached;
mod directory;
mod fault;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod holders;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "no_holders.rs"]
mod holders;
mod line;
mod lock_file;
mod record;

pub use backend::FileLocks;
pub use claims::descriptor;
