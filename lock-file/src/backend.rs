//! The verbs.
//!
//! All of them are a few system calls on a local file system and run where they are polled: there is
//! no server to wait for, and none of the calls waits for a lock. What waits for a disk, once in a
//! minute of a busy lock, runs on a thread of its own, see [`attempt`](crate::attempt).

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Grant, HoldKind, Identity, Listed, LockState, Release,
    ReleaseMode, Renewal, Wake,
};
use lock_core::clock::{Moment, sleep_between};
use lock_core::{
    Capabilities, Durability, Encoding, Error, Fencing, LockName, Order, OwnerId, Reach, Support,
    Takeover, Wakeup,
};

use crate::attempt::Fairness;
use crate::break_marker::BreakMarker;
use crate::claims::{Claims, WaitState, WaitStateGuard};
use crate::directory::Directory;
use crate::fault::{fault, with_unknown_effect};
use crate::file_watch::{self, FileWatch};
use crate::holders;
use crate::lock_file::LockFile;
use crate::open_files::OpenFiles;
use crate::queue::{Queue, QueueEntry};
use crate::record::{Record, Written};

const SUFFIX: &str = ".lock";

/// What is left as it is, beside letters and digits: harmless in every shell.
const PUNCTUATION: &str = "-_.:@+=,";
const MAX_FILE_NAME: usize = 200;

/// How often a holder polls whether its file was removed, where no more files can be watched.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Locks in one directory of this host. Clones share everything.
///
/// See the [crate's documentation](crate) for what they promise.
#[derive(Clone, Debug)]
pub struct FileLocks {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) directory: Directory,
    encoding: Encoding,
    pub(crate) claims: Arc<Claims>,
    pub(crate) open_files: Arc<OpenFiles>,
    pub(crate) pid_space: u64,
    /// Which boot of the machine this is.
    pub(crate) boot: Option<String>,
    /// Whether what is synced outlasts that boot.
    pub(crate) durable: bool,
}

impl FileLocks {
    /// Locks in `directory`, which is created with mode 0700 if it is missing; its parents are not.
    /// Symbolic links above it are resolved here, once.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid): not an absolute path, the
    ///   root directory, not a directory but a file or a symbolic link, or its parent is missing.
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): it belongs to another user (root
    ///   excepted), others can write to it, or to a directory above it that is not sticky, or this
    ///   user cannot reach it.
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): it is on a network file
    ///   system.
    pub fn at(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Directory::open(directory.as_ref()).map(Self::in_directory)
    }

    /// Locks for all processes of this user, in `/run/lock/locks-<uid>`. Other users have other locks.
    ///
    /// No environment variable has a say: sessions, jobs of cron and services would not agree. Where
    /// this directory cannot be made, that is an error, and no other one is tried: the processes that
    /// came to it would not see those that did not.
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

    /// Locks for the members of the group of `directory`, whatever user they are. The directory must
    /// be there, belong to root, and have mode 3770. See [the model](crate#several-users).
    ///
    /// # Errors
    ///
    /// As [`at`](Self::at); and [`ErrorKind::Denied`](lock_core::ErrorKind::Denied) if the directory
    /// is missing or has another owner or mode, or this user is not in its group.
    pub fn shared_with_group(directory: impl AsRef<Path>) -> Result<Self, Error> {
        Directory::of_group(directory.as_ref()).map(Self::in_directory)
    }

    /// The directory of the lock files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.inner.directory.path()
    }

    /// The file of the lock `name`, for those who lock it by other means. It need not exist.
    #[must_use]
    pub fn path_of(&self, name: &LockName) -> PathBuf {
        let file_name = self.inner.encoding.encode(name) + SUFFIX;
        self.directory().join(file_name)
    }

    pub(crate) fn queue_of(&self, lock_file: &Path) -> Queue {
        Queue::beside(&self.inner.directory, lock_file)
    }

    pub(crate) fn break_marker(&self, lock_file: &Path) -> BreakMarker {
        BreakMarker::beside(&self.inner.directory, lock_file)
    }

    fn in_directory(directory: Directory) -> Self {
        let encoding = Encoding::new(PUNCTUATION, MAX_FILE_NAME - SUFFIX.len());
        let boot = boot();
        Self {
            inner: Arc::new(Inner {
                durable: boot.is_some() && directory.is_on_disk(),
                boot,
                directory,
                encoding: encoding.escape_leading_dot(),
                claims: Arc::default(),
                open_files: Arc::default(),
                pid_space: holders::pid_space(),
            }),
        }
    }
}

#[async_trait]
impl Backend for FileLocks {
    fn capabilities(&self) -> Capabilities {
        let listed_by_kernel = cfg!(any(target_os = "linux", target_os = "android"));
        Capabilities {
            backend: "file",
            fencing: if self.inner.durable { Fencing::Durable } else { Fencing::Seeded },
            order: Order::PerProcess,
            wakeup: if file_watch::IS_SUPPORTED { Wakeup::Signal } else { Wakeup::Poll },
            durability: Durability::Durable,
            reach: match self.inner.directory.share() {
                Some(_) => Reach::Host,
                None => Reach::User,
            },
            ttl_min: Duration::from_millis(1),
            ttl_max: Duration::from_secs(365 * 24 * 3600),
            margin: Duration::ZERO,
            takeover: Takeover::AtOnce,
            detached: if self.inner.boot.is_some() { Support::Present } else { Support::Absent },
            minimum_hold: Support::Absent,
            late_attempts_refused: Support::Present,
            min_token_supported: Support::Present,
            loss_push: if file_watch::IS_SUPPORTED { Support::Present } else { Support::Absent },
            inspecting: if listed_by_kernel { Support::Present } else { Support::Absent },
            listing: Support::Absent,
            breaking: Support::Present,
        }
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let Some(boot) = &self.inner.boot else {
            return Ok(None);
        };
        let directory = std::fs::metadata(self.directory())
            .map_err(|e| fault("examine the lock directory", self.directory(), e))?;
        let id = format!("{boot}/{:x}:{:x}", directory.dev(), directory.ino());
        Ok(Some(Identity::new(id, None)))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let fairness = if claim.queues() { Fairness::Queued } else { Fairness::Barging };
        let mut waiting = self.inner.claims.wait_state(claim);
        let answer = self.attempt(claim, &mut waiting.state, fairness).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            self.settle(claim, &mut waiting);
        }
        Ok(answer)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.check(claim)?;
        self.wait_in_queue(claim).await.map(Wake::Granted)
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.wait_removed(claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(match claim.hold {
                HoldKind::Detached => self.renew_detached(claim).await,
                _ => self.renew_guarded(claim),
            });
        }
        answers
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        self.inner.claims.remove_wait_state(claim);
        if how.expects_late_attempt() {
            self.inner.claims.add_tombstone(claim.owner);
        }
        match claim.hold {
            HoldKind::Detached => self.release_detached(claim).await,
            _ => self.release_guarded(claim),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let path = self.path_of(name);
        let Some(file) = LockFile::look_at(&self.inner.directory, &path)? else {
            return Ok(LockState::new(Vec::new(), Some(0)));
        };
        // Who locks a file of other data, as flock(1) may, is shown as well.
        let record = file.parse()?.unwrap_or(Record::BLANK);
        let holders = match self.live_lease(&record) {
            Some((_, left)) => holders::detached(&record, left),
            None => holders::holders(file.as_file(), &path, &record)?,
        };
        Ok(LockState::new(holders, self.queue_of(&path).len()))
    }

    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.break_hold(name, expected).await
    }
}

impl FileLocks {
    /// Waits in the queue, and polls when the lock may be free.
    async fn wait_in_queue(&self, claim: &Claim) -> Result<Grant, Fault> {
        let path = self.path_of(&claim.name);
        let queue = self.queue_of(&path);
        let mut waiting = self.inner.claims.wait_state(claim);
        let mut watches_lock = false;
        loop {
            let state = &mut waiting.state;
            if state.entry.as_ref().is_none_or(QueueEntry::lost_position) {
                // Without a place, as on a full disk, it waits with the first one.
                state.entry = self.join(&queue).await?;
            }
            let ahead = match &mut state.entry {
                Some(entry) => entry.ahead()?,
                None => None,
            };
            let watch = match &ahead {
                Some(pipe) => FileWatch::on_pipe(pipe),
                // Hung up before the look: what is let go from here on is heard.
                None if watches_lock => FileWatch::on_lock(&path),
                None => None,
            };
            let has_watch = watch.is_some();
            let mut pause = state.pause(has_watch);
            let polls = match &ahead {
                None => true,
                Some(_) => state.is_due(pause) && self.has_stalled(state, &path, &mut pause)?,
            };
            if polls {
                state.polled();
                match self.attempt(claim, state, Fairness::Barging).await? {
                    Attempt::Acquired(grant) => {
                        self.settle(claim, &mut waiting);
                        self.inner.claims.begin_turn(&claim.name);
                        return Ok(grant);
                    }
                    Attempt::Contended { expires_in } => {
                        pause = pause.min(expires_in.unwrap_or(pause));
                    }
                }
            }
            if ahead.is_none() && !watches_lock {
                // The holder is none of this queue.
                watches_lock = true;
                continue;
            }
            let watch_fires = async {
                match &watch {
                    Some(watch) => watch.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // A write that is heard may come before the unlock that follows it: look again soon.
                () = watch_fires => waiting.state.woken(),
                () = sleep_between(pause / 2, pause) => waiting.state.timed_out(),
            }
        }
    }

    async fn join(&self, queue: &Queue) -> Result<Option<QueueEntry>, Fault> {
        match queue.join().await {
            // The descriptors of the files that are kept may be what is missing.
            Err(_) if self.inner.open_files.close() => queue.join().await,
            joined => joined,
        }
    }

    /// True if the lock was not taken since the last look from behind others: then the first one does
    /// not come. That it was released just now is no reason to overtake, but one to look again soon.
    fn has_stalled(
        &self,
        state: &mut WaitState,
        path: &Path,
        pause: &mut Duration,
    ) -> Result<bool, Fault> {
        let file = match state.file.take() {
            Some(file) if file.is_in_place()? => file,
            _ => match LockFile::find(&self.inner.directory, path)? {
                Some(file) => file,
                None => return Ok(true),
            },
        };
        let record = file.parse()?.unwrap_or(Record::BLANK);
        state.file = Some(file);
        let is_free = record.holder.is_none();
        let has_stalled = state.is_unchanged(record);
        if !has_stalled {
            state.polled();
            if is_free {
                *pause = state.shortest_pause();
            }
        }
        Ok(has_stalled)
    }

    /// Who has won leaves the queue, or stays at its front as the holder.
    fn settle(&self, claim: &Claim, waiting: &mut WaitStateGuard<'_>) {
        let Some(mut entry) = waiting.leave() else { return };
        if !matches!(entry.ahead(), Ok(None)) {
            entry.overtake();
        } else if let Some((held, _)) = self.inner.claims.find(claim) {
            entry.becomes_holder();
            *held.queue_entry() = Some(entry);
        }
    }

    /// Waits until a lock that is held was removed or broken.
    async fn wait_removed(&self, claim: &Claim) -> Result<(), Fault> {
        let path = self.path_of(&claim.name);
        let is_detached = claim.hold == HoldKind::Detached;
        // A break of a kernel lock replaces the file; one of a detached hold writes to it.
        let watch =
            if is_detached { FileWatch::on_lock(&path) } else { FileWatch::on_removal(&path) };
        while match is_detached {
            true => self.is_leased_to(&path, &claim.owner)?,
            false => match self.inner.claims.find(claim) {
                Some((held, _)) => held.is_in_place()?,
                None => false,
            },
        } {
            match &watch {
                Some(watch) => watch.changed().await,
                None => sleep_between(POLL_INTERVAL / 2, POLL_INTERVAL).await,
            }
        }
        Ok(())
    }

    fn renew_guarded(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let asked = Moment::now();
        let Some((held, token)) = self.inner.claims.find(claim) else {
            return Ok(Renewal::NotHeld);
        };
        if !held.is_in_place()? {
            return Ok(Renewal::NotHeld);
        }
        // Whoever has the ticket needs no other; who has lost it gets one.
        Ok(Renewal::Held(if claim.ticket.is_some() {
            Self::process_grant(token, asked)
        } else {
            self.grant(claim, held, token, asked)
        }))
    }

    fn release_guarded(&self, claim: &Claim) -> Result<Release, Fault> {
        let Some((held, _)) = self.inner.claims.remove(claim) else {
            return Ok(Release::NotHeld);
        };
        let Some(file) = held.take_file() else {
            return Ok(Release::NotHeld);
        };
        let in_place = file.is_in_place();
        let mut record = held.record().clone();
        let process = record.holder.take().map(|holder| holder.pid);
        let free = Written::from(record);
        // For `inspect` alone, which asks the kernel as well.
        let is_written = matches!(in_place, Ok(true)) && file.write_bytes(&free.bytes).is_ok();
        file.unlock()?;
        let has_queue = self.queue_of(&self.path_of(&claim.name)).exists();
        // Others may have the file open as well: child processes, and a task that waits for its removal.
        if held.is_shared() || has_queue {
            file.notify_waiters();
        }
        if let Some(entry) = held.queue_entry().take() {
            entry.leave();
        }
        // Where processes wait, each hold opens the file anew: closing it wakes them.
        if let (Some(file), Some(process)) = (Arc::into_inner(file), process)
            && is_written
            && !has_queue
        {
            self.inner.open_files.keep(&claim.name, process, file, free);
        }
        match in_place {
            Ok(true) => Ok(Release::Released),
            Ok(false) => Ok(Release::NotHeld),
            Err(e) => Err(with_unknown_effect(e)),
        }
    }
}

/// Which boot of the machine this is; `None` where it cannot be told.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.trim();
    let is_one = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_one.then(|| id.to_owned())
}
