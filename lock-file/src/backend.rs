//! The verbs.
//!
//! All of them are a few system calls on a local file system and run where they are polled: there
//! is no server to wait for, and none of the calls waits for a lock. Handing them to other threads
//! would put an await between winning a lock and handing it over, at which it could get lost; and a
//! pool that is full of waiters is none that the release can use.
//!
//! Invariant: no verb awaits anything but the pause between two looks of [`Backend::wait`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, Hold, Identity, Lease, LetGo, Listed,
    LockState, Mode, Release, Renewal, Wake,
};
use lock_core::clock::{Moment, sleep_between, wall};
use lock_core::{
    Capabilities, Encoding, Error, Fencing, FencingToken, LockName, Order, OwnerId, Reach, Support,
    Takeover, Wakeup,
};
use rustix::fs::OFlags;

use crate::claims::{Claims, Held};
use crate::directory::Directory;
use crate::fault::fault;
use crate::holders;
use crate::lock_file::{LockFile, is_missing, read_start};
use crate::record::{HolderRecord, Record};

/// The pause before a waiter looks again doubles from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

const SUFFIX: &str = ".lock";

/// What is left as it is, beside letters and digits: harmless in every shell.
const PUNCTUATION: &str = "-_.:@+=,";
const MAX_FILE_NAME: usize = 200;

/// Locks in one directory of this host. Clones share everything.
///
/// See the [crate's documentation](crate) for what they promise.
#[derive(Clone, Debug)]
pub struct FileLocks {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: Directory,
    encoding: Encoding,
    claims: Arc<Claims>,
    pid_space: u64,
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

    /// Locks for all processes of this user, in `/run/lock/locks-<uid>`, or in `/tmp/locks-<uid>` on
    /// systems that have no `/run/lock` for users. If the first one cannot be made for another reason,
    /// such as a full or read-only file system, that is an error: other processes may have it.
    ///
    /// No environment variable has a say: sessions, jobs of cron and services would not agree.
    /// Services with a `/tmp` of their own need a directory given by [`at`](Self::at) if it comes to
    /// `/tmp`.
    ///
    /// # Errors
    ///
    /// As [`at`](Self::at).
    pub fn for_this_user() -> Result<Self, Error> {
        Directory::of_this_user().map(Self::in_directory)
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

    fn in_directory(directory: Directory) -> Self {
        let encoding = Encoding::new(PUNCTUATION, MAX_FILE_NAME - SUFFIX.len());
        Self {
            inner: Arc::new(Inner {
                directory,
                encoding: encoding.escape_leading_dot(),
                claims: Arc::default(),
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
            fencing: Fencing::Seeded,
            order: Order::PerProcess,
            wakeup: Wakeup::Poll,
            reach: Reach::Host,
            ttl_min: Duration::from_millis(1),
            ttl_max: Duration::from_secs(365 * 24 * 3600),
            margin: Duration::ZERO,
            takeover: Takeover::AtOnce,
            detached: Support::Absent,
            minimum_hold: Support::Absent,
            late_attempts_refused: Support::Present,
            raisable: Support::Present,
            inspecting: if listed_by_kernel { Support::Present } else { Support::Absent },
            listing: Support::Absent,
            breaking: Support::Absent,
        }
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        use std::os::unix::fs::MetadataExt;

        let path = Path::new("/proc/sys/kernel/random/boot_id");
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            return Ok(None);
        }
        let boot = std::fs::read_to_string(path).map_err(|e| fault("read", path, e))?;
        let directory = std::fs::metadata(self.directory())
            .map_err(|e| fault("examine the lock directory", self.directory(), e))?;
        let (device, inode) = (directory.dev(), directory.ino());
        let id = format!("{}/{device:x}:{inode:x}", boot.trim());
        Ok(Some(Identity::new(id, None)))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let grant = self.attempt(claim, &mut None)?;
        Ok(grant.map_or(Attempt::Contended { lapses_in: None }, Attempt::Acquired))
    }

    /// Looks again and again, after pauses that grow, so that the waiters of a busy lock leave the
    /// processor to its holders. Jittered, so that they do not look all at once.
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        // Stays open between two looks: a look is then two system calls.
        let mut seat = None;
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Some(grant) = self.attempt(claim, &mut seat)? {
                return Ok(Wake::Granted(grant));
            }
            sleep_between(pause / 2, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        claims.iter().map(|claim| self.look_after(claim)).collect()
    }

    async fn release(&self, claim: &Claim, how: LetGo) -> Result<Release, Fault> {
        let claims = &self.inner.claims;
        if how.uncertain {
            claims.bury(claim.owner);
        }
        let Some((held, token)) = claims.remove(claim) else {
            return Ok(Release::NotHeld);
        };
        held.let_go();
        let in_place = held.file.is_in_place();
        if matches!(in_place, Ok(true)) {
            let record = Record { number: Some(token.backend_number()), holder: None };
            // For `inspect` alone, which asks the kernel as well.
            let _ = held.file.write(&record);
        }
        held.file.unlock()?;
        match in_place {
            Ok(true) => Ok(Release::Released),
            Ok(false) => Ok(Release::NotHeld),
            Err(e) => Err(Fault::unknown(e.kind(), e.into_source())),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let path = self.path_of(name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
            Ok(file) => File::from(file),
            Err(e) if is_missing(&e.into()) => return Ok(LockState::default()),
            Err(e) => return Err(fault("open the lock file", &path, e.into())),
        };
        let bytes = read_start(&file).map_err(|e| fault("read", &path, e))?;
        let record = Record::parse(&bytes).unwrap_or(Record::BLANK);
        let holders = holders::holders(&file, &path, &record)?;
        Ok(LockState::new(holders, None))
    }

    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    /// A kernel lock ends with its holder's descriptors, not by force.
    async fn break_lock(&self, _name: &LockName, _expected: &OwnerId) -> Result<bool, Fault> {
        Err(Fault::unsupported("break"))
    }
}

impl FileLocks {
    /// One look: what the claim holds already, or the lock if it is free.
    fn attempt(&self, claim: &Claim, seat: &mut Option<LockFile>) -> Result<Option<Grant>, Fault> {
        let asked = Moment::now();
        self.check(claim)?;
        let mut floor = claim.floor;
        if let Some((held, token)) = self.inner.claims.find(claim) {
            if held.file.is_in_place()? {
                let token = self.raise(claim, &held, token)?;
                return Ok(Some(self.grant(claim, held, token, asked)));
            }
            // Deleted or replaced: it keeps nobody out any more.
            self.inner.claims.remove(claim);
            floor = floor.max(Some(token));
        }
        let path = self.path_of(&claim.name);
        let Some(file) = LockFile::try_lock(&self.inner.directory, &path, seat)? else {
            return Ok(None);
        };
        // From here on every error closes the file, and so frees the lock.
        let token = next_token(file.read()?.number, floor)?;
        let held = Held::new(file, claim.name.clone(), wall());
        self.note(claim, &held, token)?;
        Ok(Some(self.grant(claim, Arc::new(held), token, asked)))
    }

    fn check(&self, claim: &Claim) -> Result<(), Fault> {
        if claim.mode != Mode::Exclusive {
            return Err(Fault::unsupported("this mode"));
        }
        if claim.hold != Hold::Guarded {
            return Err(Fault::unsupported("detached holds"));
        }
        if self.inner.claims.is_buried(claim.owner) {
            let why = "this claim was let go before";
            return Err(Fault::not_applied(FaultKind::Invalid, why));
        }
        Ok(())
    }

    /// The token of a lock that is held already, above the floor.
    fn raise(
        &self,
        claim: &Claim,
        held: &Held,
        token: FencingToken,
    ) -> Result<FencingToken, Fault> {
        if claim.floor.is_none_or(|floor| token > floor) {
            return Ok(token);
        }
        let token = next_token(Some(token.backend_number()), claim.floor)?;
        self.note(claim, held, token)?;
        Ok(token)
    }

    /// Writes the token down, before anybody else hears of it.
    fn note(&self, claim: &Claim, held: &Held, token: FencingToken) -> Result<(), Fault> {
        held.file.write(&Record {
            number: Some(token.backend_number()),
            holder: Some(HolderRecord {
                owner: claim.owner,
                pid: std::process::id(),
                pid_space: self.inner.pid_space,
                since: held.since,
                label: claim.label.clone(),
            }),
        })
    }

    fn grant(&self, claim: &Claim, held: Arc<Held>, token: FencingToken, asked: Moment) -> Grant {
        let ticket = self.inner.claims.keep(claim, held, token);
        lasting(token, asked).with_ticket(ticket)
    }

    fn look_after(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let asked = Moment::now();
        let Some((held, token)) = self.inner.claims.find(claim) else {
            return Ok(Renewal::NotHeld);
        };
        if !held.file.is_in_place()? {
            return Ok(Renewal::NotHeld);
        }
        // Whoever has the ticket needs no other; who has lost it gets one.
        Ok(Renewal::Held(if claim.ticket.is_some() {
            lasting(token, asked)
        } else {
            self.grant(claim, held, token, asked)
        }))
    }
}

fn lasting(token: FencingToken, asked: Moment) -> Grant {
    Grant::new(Lease::WhileProcessLives, asked).with_token(token)
}

/// More than the last one and the floor, and at least the wall clock in microseconds: it carries on
/// where the number in the file was lost.
fn next_token(last: Option<u64>, floor: Option<FencingToken>) -> Result<FencingToken, Fault> {
    let clock = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
    let floor = floor.map(FencingToken::backend_number);
    let next = last.max(floor).map_or(0, |highest| highest + 1);
    FencingToken::from_backend(next.max(clock))
        .ok_or_else(|| Fault::not_applied(FaultKind::Invalid, "the fencing tokens are used up"))
}
