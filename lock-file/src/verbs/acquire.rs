//! Acquisition: one attempt on a lock file.
//!
//! The order of the steps carries the guarantees:
//!
//! 1. Leave the lock to waiters that are ahead in the queue.
//! 2. Lock the file. From here on every error unlocks it, and every kill closes it, which frees the
//!    lock.
//! 3. Read the record. A detached hold excludes this claim as the kernel does. A waiter that
//!    overtakes leaves a record that has changed to the head.
//! 4. Take the next token. If none is reserved, reserve a block first, and wait for the disk.
//! 5. Write the holder. From here on every error takes that back, or leaves an unknown outcome: the
//!    record is the detached hold.
//! 6. Yield to a client that breaks the lock. After 5: that client announces the break before it
//!    reads the holder, so one of the two sees the other. A file that was [kept
//!    open](crate::open_files) had no queue when it was released: step 1 is taken here.
//! 7. Check that the file is still the one in the directory. After 6: the break may be over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, FaultKind, Grant, HoldKind, Lease};
use lock_core::clock::{Moment, since_boot, wall};
use lock_core::{Effect, FencingToken};

use crate::break_marker::BreakMarker;
use crate::claims::{HeldLock, WaitState, WaitStateGuard};
use crate::config::FileLocks;
use crate::counter;
use crate::disk_thread::on_disk_thread;
use crate::fault::with_unknown_effect;
use crate::lock_file::LockFile;
use crate::queue::Queue;
use crate::record::{HolderRecord, LeaseRecord, Record, Reserved, Written};
use crate::verbs::lease::RequestTime;

/// Limit of replacements of a file in a row between opening and locking it.
const MAX_REPLACEMENTS: u32 = 16;

/// Whether an attempt respects the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fairness {
    /// Leaves a free lock to all waiters that came before.
    Queued,
    /// Takes a free lock.
    Barging,
    /// Takes a free lock if its record has not changed since the last poll. After a change it is
    /// the head's.
    Overtaking,
}

impl FileLocks {
    /// Makes one attempt, and gives up the queue entry of a claim that was granted.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let fairness = if claim.queues() { Fairness::Queued } else { Fairness::Barging };
        let mut waiting = self.inner.claims.wait_state(claim);
        let answer = self.attempt(claim, &mut waiting.state, fairness).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            self.settle(claim, &mut waiting);
        }
        Ok(answer)
    }

    /// Returns the hold that the claim has already, or acquires the lock if it is free.
    pub(crate) async fn attempt(
        &self,
        claim: &Claim,
        state: &mut WaitState,
        fairness: Fairness,
    ) -> Result<Attempt, Fault> {
        match self.attempt_once(claim, state, fairness).await {
            // The files that are kept open may use the missing descriptors.
            Err(e) if e.effect() == Effect::NotApplied && self.inner.open_files.close() => {
                self.attempt_once(claim, state, fairness).await
            }
            answer => answer,
        }
    }

    async fn attempt_once(
        &self,
        claim: &Claim,
        state: &mut WaitState,
        fairness: Fairness,
    ) -> Result<Attempt, Fault> {
        let asked = RequestTime::now();
        self.check(claim)?;
        let mut min_token = claim.min_token;
        if let Some((held, token)) = self.inner.claims.find(claim) {
            if held.is_in_place()? {
                let token = self.raise_token(claim, &held, token).await?;
                return Ok(Attempt::Acquired(self.grant(claim, held, token, asked.at)));
            }
            // Deleted or replaced: it excludes no claim any more.
            self.inner.claims.remove(claim);
            min_token = min_token.max(Some(token));
        }
        let path = self.path_of(&claim.name);
        let side_files =
            SideFiles { queue: self.queue_of(&path), marker: self.break_marker(&path) };
        // Once in an attempt: it is a system call.
        let process = std::process::id();
        let kept = self.inner.open_files.take(&claim.name, process, asked.at);
        let is_queued = fairness == Fairness::Queued;
        // No queue was there when the file was kept. Step 6 finds one that has begun since then.
        let checks_queue_later = is_queued && kept.is_some();
        // Not even a short lock on the file: it could keep the head from the lock.
        if is_queued && !checks_queue_later && self.has_predecessor(claim, state, &side_files.queue)
        {
            return Ok(Attempt::Contended { expires_in: None });
        }
        let mut written = None;
        if let Some((file, last)) = kept {
            (state.file, written) = (Some(file), Some(last));
        }
        for _ in 0..MAX_REPLACEMENTS {
            let (file, mut record) = match self.lock_file(claim, state, &path, written.take())? {
                FileState::Locked(file, record) => (file, record),
                FileState::Contended(expires_in) => return Ok(Attempt::Contended { expires_in }),
                FileState::Replaced => continue,
            };
            if fairness == Fairness::Overtaking && !state.is_still(&record) {
                // Closing the file wakes the head, which this attempt may have kept from the lock.
                return Ok(Attempt::Contended { expires_in: Some(state.shortest_pause()) });
            }
            let mine = self.live_lease(&record).is_some();
            let file = self.assign_token(file, &mut record, mine, min_token).await?;
            self.write_holder(&mut record, claim, process);
            let signed = file.write(&record);
            let mut validate =
                || match !mine && self.must_yield(claim, state, &side_files, checks_queue_later)? {
                    true => Ok(Validation::Overtaken),
                    // A process that deletes or replaces the file opens a second lock beside this
                    // one. The file in the directory counts.
                    false if file.is_in_place()? => Ok(Validation::Valid),
                    false => Ok(Validation::Replaced),
                };
            let validated = match signed.and_then(|()| validate()) {
                // It may have been extended, or half written.
                Err(e) if mine => return Err(with_unknown_effect(e)),
                validated => validated,
            };
            if !matches!(validated, Ok(Validation::Valid)) {
                file.write(&Record { holder: None, ..record.clone() })
                    .map_err(with_unknown_effect)?;
            }
            match validated? {
                Validation::Valid => {
                    return self.grant_of(claim, file, &record, asked).map(Attempt::Acquired);
                }
                Validation::Overtaken => return Ok(Attempt::Contended { expires_in: None }),
                Validation::Replaced => {}
            }
        }
        let message =
            format!("{} is being deleted again and again; let lock files stay", path.display());
        Err(Fault::not_applied(FaultKind::Unavailable, message))
    }

    /// Locks the file at `path` and reads it. Uses the open file of `state` if it is still in
    /// place.
    fn lock_file(
        &self,
        claim: &Claim,
        state: &mut WaitState,
        path: &Path,
        written: Option<Written>,
    ) -> Result<FileState, Fault> {
        let file = match state.file.take() {
            Some(file) => file,
            None => LockFile::make(&self.inner.directory, path)?,
        };
        let is_locked = file.flock()?;
        let record = if is_locked { file.read_after(written) } else { Ok(Record::BLANK) };
        let lease = record.as_ref().ok().and_then(|record| self.live_lease(record));
        let theirs = lease.filter(|(owner, _)| *owner != claim.owner);
        if is_locked
            && theirs.is_none()
            && let Ok(record) = record
        {
            return Ok(FileState::Locked(file, record));
        }
        if is_locked {
            file.unlock()?;
        }
        // A file that was deleted or replaced keeps no one out, and may be a file of others by now.
        if !file.is_in_place()? {
            return Ok(FileState::Replaced);
        }
        record?;
        state.file = Some(file);
        Ok(FileState::Contended(theirs.map(|(_, left)| left)))
    }

    /// Returns true if another client comes first: one that breaks the lock, or one in the queue.
    fn must_yield(
        &self,
        claim: &Claim,
        state: &mut WaitState,
        side_files: &SideFiles,
        is_queued: bool,
    ) -> Result<bool, Fault> {
        let has_queue = side_files.queue.exists();
        let mut others =
            || is_queued && has_queue && self.has_predecessor(claim, state, &side_files.queue);
        Ok(side_files.marker.is_announced(has_queue)? || others())
    }

    /// Returns true if a process ahead in the queue may take the lock.
    fn has_predecessor(&self, claim: &Claim, state: &mut WaitState, queue: &Queue) -> bool {
        queue.exists()
            && !self.inner.claims.has_turn(&claim.name)
            && match &mut state.entry {
                Some(entry) => !matches!(entry.ahead(), Ok(None)),
                None => queue.is_occupied(),
            }
    }

    /// Refuses claims that this backend cannot serve, and those that were released.
    pub(crate) fn check(&self, claim: &Claim) -> Result<(), Fault> {
        claim.must_be_exclusive()?;
        if claim.hold == HoldKind::Detached && self.inner.boot.is_none() {
            return Err(Fault::unsupported("detached holds"));
        }
        if self.inner.claims.has_tombstone(claim.owner) {
            let why = "this claim was released before";
            return Err(Fault::not_applied(FaultKind::Invalid, why));
        }
        Ok(())
    }

    /// Returns a grant that lasts as long as the process.
    pub(crate) fn process_grant(token: FencingToken, asked: Moment) -> Grant {
        Grant::new(Lease::WhileProcessLives, asked).with_token(token)
    }

    /// Records the held lock and returns its grant.
    pub(crate) fn grant(
        &self,
        claim: &Claim,
        held: Arc<HeldLock>,
        token: FencingToken,
        asked: Moment,
    ) -> Grant {
        let ticket = self.inner.claims.keep(claim, held, token);
        Self::process_grant(token, asked).with_ticket(ticket)
    }

    /// Writes a token into `record`: the present one if it is `mine` and above the minimum, else
    /// the next one.
    async fn assign_token(
        &self,
        file: LockFile,
        record: &mut Record,
        mine: bool,
        min_token: Option<FencingToken>,
    ) -> Result<LockFile, Fault> {
        let last = record.number;
        if mine && last.and_then(FencingToken::from_backend) > min_token {
            return Ok(file);
        }
        let mut next = counter::next(last, min_token).ok_or_else(used_up)?;
        let reserved =
            record.reserved.as_ref().filter(|it| Some(&it.boot) == self.inner.boot.as_ref());
        if !self.inner.durable || reserved.is_some_and(|it| next.backend_number() <= it.up_to) {
            record.number = Some(next.backend_number());
            return Ok(file);
        }
        // Earlier reserved tokens may have been granted before a crash.
        let reserved = FencingToken::from_backend(file.reserved()?.unwrap_or(0));
        next = counter::next(last, min_token.max(reserved)).ok_or_else(used_up)?;
        let up_to = counter::block_from(next);
        // So that the file is ours at every moment.
        file.write(&Record { reserved: None, ..record.clone() })?;
        let file = on_disk_thread(move || file.reserve(up_to).map(|()| file)).await?;
        record.number = Some(next.backend_number());
        record.reserved = self.inner.boot.clone().map(|boot| Reserved { up_to, boot });
        Ok(file)
    }

    /// Writes the claim into `record` as its holder.
    fn write_holder(&self, record: &mut Record, claim: &Claim, process: u32) {
        let before = record.holder.take().filter(|before| before.owner == claim.owner);
        let lease = (claim.hold == HoldKind::Detached).then(|| {
            let until = before.as_ref().and_then(|before| before.lease.as_ref()).map(|it| it.until);
            LeaseRecord {
                until: until.unwrap_or_default().max(since_boot() + claim.ttl),
                boot: self.inner.boot.clone().unwrap_or_default(),
            }
        });
        record.holder = Some(HolderRecord {
            owner: claim.owner,
            pid: process,
            pid_space: self.inner.pid_space,
            since: before.map_or_else(wall, |before| before.since),
            label: claim.label.clone(),
            lease,
        });
    }

    /// Returns the grant of a record that was written and validated.
    fn grant_of(
        &self,
        claim: &Claim,
        file: LockFile,
        record: &Record,
        asked: RequestTime,
    ) -> Result<Grant, Fault> {
        let token = record.number.and_then(FencingToken::from_backend).ok_or_else(used_up)?;
        match record.holder.as_ref().and_then(|holder| holder.lease.as_ref()) {
            // The record keeps others out from here on, and the lock ends with the file.
            Some(lease) => Ok(Grant::new(asked.lease(lease), asked.at).with_token(token)),
            None => {
                let held = HeldLock::new(file, claim.name.clone(), record.clone());
                Ok(self.grant(claim, Arc::new(held), token, asked.at))
            }
        }
    }

    /// Returns the token of a lock that is held already, raised above the minimum token.
    async fn raise_token(
        &self,
        claim: &Claim,
        held: &Arc<HeldLock>,
        token: FencingToken,
    ) -> Result<FencingToken, Fault> {
        if claim.min_token.is_none_or(|min_token| token > min_token) {
            return Ok(token);
        }
        let file = held.file().ok_or_else(released)?;
        let mut record = held.record().clone();
        let next =
            counter::next(Some(token.backend_number()), claim.min_token).ok_or_else(used_up)?;
        let reserved = record.reserved.as_ref().map_or(0, |it| it.up_to);
        if self.inner.durable && next.backend_number() > reserved {
            let (file, up_to) = (Arc::clone(&file), counter::block_from(next));
            on_disk_thread(move || file.reserve(up_to)).await?;
            record.reserved = self.inner.boot.clone().map(|boot| Reserved { up_to, boot });
        }
        record.number = Some(next.backend_number());
        file.write(&record)?;
        *held.record() = record;
        Ok(next)
    }

    /// Takes a granted claim out of the queue, or keeps it at the head as the holder.
    pub(super) fn settle(&self, claim: &Claim, waiting: &mut WaitStateGuard<'_>) {
        let Some(mut entry) = waiting.leave() else { return };
        if !matches!(entry.ahead(), Ok(None)) {
            entry.overtake();
        } else if let Some((held, _)) = self.inner.claims.find(claim) {
            entry.becomes_holder();
            *held.queue_entry() = Some(entry);
        }
    }
}

/// The queue and the break marker beside a lock file.
struct SideFiles {
    queue: Queue,
    marker: BreakMarker,
}

/// The state of a lock file after an attempt to lock it.
enum FileState {
    Locked(LockFile, Record),
    /// Another holder has it, with a lease that ends after this time.
    Contended(Option<Duration>),
    /// The file is no longer the one in the directory.
    Replaced,
}

/// The result of the checks after the holder was written.
enum Validation {
    /// The file is the one in the directory.
    Valid,
    /// Another client breaks the lock and comes first.
    Overtaken,
    /// It was deleted or replaced.
    Replaced,
}

fn released() -> Fault {
    Fault::not_applied(FaultKind::Invalid, "the lock was released meanwhile")
}

fn used_up() -> Fault {
    Fault::not_applied(FaultKind::Invalid, "the fencing tokens are used up")
}

#[cfg(test)]
mod tests {
    use lock_core::backend::{HoldKind, ReleaseMode};
    use lock_core::{LockName, OwnerId};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// The backend as it is after a restart of the machine.
    fn at_boot(dir: &Path, boot: char) -> FileLocks {
        let mut locks = FileLocks::at(dir).unwrap();
        let inner = Arc::get_mut(&mut locks.inner).unwrap();
        (inner.boot, inner.durable) = (Some(boot.to_string().repeat(36)), true);
        locks
    }

    fn claim() -> Claim {
        Claim::new(LockName::new("n").unwrap(), OwnerId::mint(), LONG)
    }

    async fn token(locks: &FileLocks) -> u64 {
        let claim = claim();
        let Attempt::Acquired(grant) = locks.try_acquire(&claim).await.unwrap() else {
            panic!("it is free");
        };
        locks.release(&claim, ReleaseMode::now()).await.unwrap();
        grant.token.unwrap().backend_number()
    }

    #[tokio::test]
    async fn a_detached_hold_ends_with_its_boot() {
        let dir = tempfile::tempdir().unwrap();
        let (before, after) = (at_boot(dir.path(), 'a'), at_boot(dir.path(), 'b'));
        let mut held = claim();
        held.hold = HoldKind::Detached;
        assert!(matches!(before.try_acquire(&held).await, Ok(Attempt::Acquired(_))));
        let contended = before.try_acquire(&claim()).await.unwrap();
        let Attempt::Contended { expires_in: Some(left) } = contended else {
            panic!("{contended:?}");
        };
        assert!(left > LONG / 2 && left <= LONG);
        assert_eq!(after.inspect(&held.name).await.unwrap().holders, []);
        assert!(matches!(after.try_acquire(&claim()).await, Ok(Attempt::Acquired(_))));
    }

    #[tokio::test]
    async fn tokens_grow_over_every_residue_of_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n.lock");
        let locks = at_boot(dir.path(), 'a');
        // The disk's content once the first block is reserved. All later grants may be lost.
        let mut last = token(&locks).await;
        let synced = std::fs::read(&path).unwrap();
        // Numbers far ahead of the clock, which would hide a number that is given out again.
        let mut raised = claim();
        raised.min_token = FencingToken::from_backend(last + (1 << 45));
        assert!(matches!(locks.try_acquire(&raised).await, Ok(Attempt::Acquired(_))));
        locks.release(&raised, ReleaseMode::now()).await.unwrap();
        let reserved = std::fs::read(&path).unwrap();
        assert_ne!(synced[4096..], reserved[4096..]);
        for boot in 'b'..='k' {
            let now = std::fs::read(&path).unwrap();
            let locks = at_boot(dir.path(), boot);
            for _ in 0..3 {
                last = last.max(token(&locks).await);
            }
            // Power fails. The record is that of any earlier time, or torn; a slot that was being
            // written is torn as well, which is the one with the lower number.
            let mut left = std::fs::read(&path).unwrap();
            let torn = counter_in(&left, 0) > counter_in(&left, 1);
            match boot {
                'b' | 'f' => left[..512].copy_from_slice(&now[..512]),
                'c' | 'g' => left[..512].fill(0),
                'd' | 'h' => left[..300].fill(0),
                _ => left[..512].copy_from_slice(&reserved[..512]),
            }
            let at = 4096 * (1 + usize::from(torn));
            left[at..at + 100].fill(0);
            std::fs::write(&path, &left).unwrap();
            let next = token(&at_boot(dir.path(), boot.to_ascii_uppercase())).await;
            assert!(next > last, "boot {boot}: {next} after {last}");
            last = next;
        }
    }

    fn counter_in(file: &[u8], slot: usize) -> Option<u64> {
        let at = usize::try_from(counter::SLOTS[slot]).unwrap();
        file.get(at..at + 512).and_then(counter::parse)
    }
}
