//! Locks among the processes of one user, or of a group, on one host: kernel locks on files, no server.
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
//! * **One host.** A directory on a known network file system is refused: NFS, SMB, AFS, Coda, Ceph,
//!   Lustre, 9P, file systems of clusters and of virtual machines, and some on FUSE, such as sshfs. Any
//!   other FUSE file system is accepted, because its type does not show where its data are. It
//!   excludes the processes that use this mount. Containers exclude each other only if they share the
//!   directory.
//! * **One user, unless a directory is shared.** Each user has a separate directory, so root and
//!   another user hold the lock of one name at the same time. Lock files have mode 0600. A directory
//!   in which others can replace files is refused, and so is one that they can move away because they
//!   can write to a directory above it that is not sticky. A group is not others if the user's own
//!   directory belongs to it and `/etc/passwd` and `/etc/group` show that it has no other member.
//!   See [several users](#several-users).
//! * **No lease of a guard.** A lock lasts as long as its holder keeps the file open, even if the
//!   holder is stopped for hours. Three times per ttl the holder checks that its file is still the one
//!   in the directory. A lock file that was deleted or replaced by hand lets others in.
//!   The holder is notified at once ([`notices`]) if the process got an inotify instance, and within a
//!   second otherwise; not in the first 0.1 s of its hold.
//! * **No strict order among processes**, see below.
//! * **`inspect` sees what `/proc/locks` shows**: nothing of holders in a pid namespace that this
//!   process cannot look into. Inside a container, a lock that only an inherited descriptor keeps is
//!   shown as that of the process which has the descriptor, without an owner, and cannot be broken: end
//!   that process. On a machine with hundreds of locks that come and go, a holder can be missed.
//! * **Names that differ only in case** are one lock on file systems that ignore case.
//!
//! # Several users
//!
//! [`FileLocks::shared_with_group`], `file:///dir?share=group`, is for the users in the group of a
//! directory that root has made: `install -d -o root -g GROUP -m 3770 /var/lib/locks`. Its reach is
//! the host, [`Reach::Host`], as far as its users are in the group.
//!
//! | | can | cannot |
//! |---|---|---|
//! | members of the group | hold locks; write anything into a lock file: each holder writes its record and advances the counter; refuse locks to others, by holding them or by planting a file | make a process of another user open, create, change or delete anything outside of the directory; delete or replace the files of others |
//! | everybody else | nothing | read or lock the files, see their names |
//!
//! A planted object under the name of a lock file is refused, and the error names its path: a link, a
//! pipe, a file with a second name, another group or another mode than 0660. Spoiled contents are noticed: a
//! record has a checksum, and a token that is lower than one that a process has seen is
//! [`ErrorKind::FenceRegressed`](lock_core::ErrorKind::FenceRegressed). Files get their mode after
//! they are created, whatever the umask, and work with `fs.protected_regular=2`.
//!
//! Processes queue there as elsewhere, but members can disorder a queue: each of them may change its
//! directory. A queue that is not such a directory of the group is not used. Then all waiters watch the
//! lock file, and one of them wins.
//!
//! Two things differ. A kernel lock is broken by the owner of its file, who was its first holder, and
//! by root. And flock(1) excludes our holders, but must not create the file: with another mode than
//! 0660 it is refused. The directory of a queue stays, empty, if another user has made it.
//!
//! # Fencing tokens
//!
//! [`Fencing::Durable`]: up to which number tokens may be given out is synced to the disk before the
//! first of them is. A sync reserves tokens for a minute of the wall clock. A busy lock is therefore
//! synced once a minute, and a lock that is acquired less often is synced at each acquisition. A
//! sync takes some milliseconds and runs on a thread of its own; there are at most 64 such threads.
//! The crash of a process loses no token, and the crash of the machine skips the rest of the minute.
//! A failed sync is an error, and the lock is not granted.
//!
//! On tmpfs, as `/run/lock` is, nothing outlasts the machine: tokens are [`Fencing::Seeded`] there, and
//! declared so. After a restart the wall clock keeps them growing, unless it was set back.
//!
//! # Waiting
//!
//! Processes that wait queue. Each has a named pipe in `<name>.lock.d`, a directory which is there only
//! while somebody waits, and the process behind it reads that pipe. It hangs up when its process
//! releases the lock, gives up waiting or dies. So a hand-over wakes one process and costs the same
//! however many wait, with or without inotify. Joining costs the same, too.
//!
//! The first process of the queue has no predecessor. If the holder did not queue, because it came to
//! a free lock, is flock(1) or keeps a detached hold, the first process watches the lock file by
//! inotify. Without an instance the first one alone polls every 1 to 50 ms. Where there can be no
//! queue, as on a full disk or on a file system that cannot exchange two names, all waiters do as the
//! first one.
//!
//! Each waiter also polls, after 0.1 s first and then at longer and longer intervals of up to 4 s. A
//! lost wake-up costs no more than that.
//!
//! A newcomer leaves a free lock to the queue, with four exceptions:
//!
//! * A try takes a free lock.
//! * flock(1) and similar programs take a free lock.
//! * A process whose turn has come may take the lock again for 5 ms.
//! * A waiter that does not take a free lock, because it is stopped, is passed over. The next waiter
//!   polls, finds the queue unchanged since its last poll, and takes the lock. The stopped waiter
//!   goes to the end of the queue.
//!
//! Inside one process, a locker serves first come, first served, and has one position in the queue.
//!
//! A process starts one thread when it first waits, or when it has held a lock for 0.1 s, and keeps it.
//! It takes an inotify instance when it first watches a lock file: as the first of a queue, or as a
//! holder after 0.1 s. A user has 128 instances unless `fs.inotify.max_user_instances` says otherwise.
//! Where they are used up, a holder looks once a second whether its file was removed or replaced.
//!
//! A lock that is held keeps one file open, and two if it was waited for; one that a locker waits for,
//! three or four. The file of a released lock stays open for up to two seconds, for the next hold, if no
//! process waits: at most 64 files for each locker. They are closed where the limit on open files is
//! reached. If that does not help, it is an error, and the wait ends.
//!
//! # Detached holds
//!
//! A lock that was asked for as [`detachable`] is a lease that stands in the lock file, with the boot
//! of the machine to which it belongs and its end on `CLOCK_BOOTTIME`, which goes on while the machine is
//! suspended. It binds the users of this backend only: *flock(1) does not see it*, and while flock(1)
//! has the file locked, it cannot be renewed. A restart of the machine ends it. Processes in
//! different time namespaces do not agree about its end.
//!
//! # Breaking a lock
//!
//! A detached hold is erased from the file. A kernel lock cannot be taken from a living process, so its
//! file is replaced. The next acquisition succeeds, with a higher token, although the old holder's
//! process may still be at work. The holder is notified at once, without inotify within a second, or as soon as
//! it goes on if it was stopped. Until then only a resource that checks fencing tokens tells the two
//! apart, as after a break on any backend. Where the holder's process can be killed, do that: its lock is
//! free at once, and no two overlap. A flock(1) that was waiting for the old file gets the old file.
//!
//! A break names the owner that it expects, and ends no newer hold, also if it comes late, and no hold of
//! flock(1).
//!
//! # Descriptors and child processes
//!
//! Descriptors are close-on-exec. A process that was given one on purpose, through [`descriptor`],
//! keeps the lock when the guard's process is gone without having released it. Given the copy of
//! [`place_descriptor`] as well, it keeps the next waiter asleep. A release unlocks for all of them. A process that forks
//! without `exec` shares its locks with the child, and those that it takes again within a second on the
//! files that it has open. In the child waiters are not woken. A child that closes what it inherits, as `sudo` and daemons do, keeps
//! nothing.
//!
//! # SingleFlight with flock(1)
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
//! [`Reach::Host`]: lock_core::Reach::Host
//! [`Fencing::Durable`]: lock_core::Fencing::Durable
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded
//! [`notices`]: lock_core::Capabilities::loss_push
//! [`detachable`]: lock_core::Lock::detachable

mod attempt;
mod backend;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod bell;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[path = "no_bell.rs"]
mod bell;
mod breaking;
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
mod lock_file;
mod open_files;
mod queue;
mod record;
mod share;

pub use backend::FileLocks;
pub use claims::{descriptor, place_descriptor};
