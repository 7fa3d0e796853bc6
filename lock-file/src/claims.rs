//! The locks that this process holds or waits for, by owner, and their lifetime.
//!
//! A lock is open as long as it stands in the table, and stands there until the claim is released
//! or can no longer be released. The [`Ticket`] that goes out with the grant tells: when its last
//! clone is dropped without a release, the lock goes too.
//!
//! * A ticket that came back with a later verb had arrived. When it is dropped, its guard is gone
//!   and so is the runtime that would have released it: the lock is freed at once.
//! * A ticket that never came back may have been lost on its way. The claim may still ask again, or
//!   release: the lock stays for one ttl, as does the residue of a lost reply everywhere, and then
//!   goes. The timer for that runs on the runtime that asked for the lock. If that one is gone, no
//!   claim asks any more, and the lock is freed at once.
//!
//! Freed here means closed, not unlocked: a process that was given the descriptor keeps the lock,
//! and so does a fork, whichever of the two comes to its end first.
//!
//! A wait state, with its queue entry, outlives the call that waited on it, because core polls
//! again by itself now and then. It goes with the claim's grant or release, or expires.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::backend::{Claim, Fault, QUEUE_ENTRY_GRACE, Ticket};
use lock_core::clock::{Moment, sleep};
use lock_core::{FencingToken, LockName, OwnerId};
use tokio::runtime::Handle;

use crate::lock_file::LockFile;
use crate::queue::QueueEntry;
use crate::record::Record;

/// Lifetime of a tombstone, which refuses late attempts of a released claim. It exceeds the delay
/// of any attempt.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// Time for which a process may take the lock again and again before other waiters, once it was
/// granted from the queue. A hand-off to another process costs as much as dozens of acquisitions
/// inside one.
const TURN: Duration = Duration::from_millis(5);

/// Shortest and longest pause between two polls of a waiter. A wake-up ends the pause.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(4));
/// The same without wake-ups.
const PAUSES_WITHOUT_WATCH: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_millis(50));

/// Limit of tombstones. Each is an attempt without an answer, which needs a wrapper around this
/// backend, because attempts here end when they are polled.
const MAX_TOMBSTONES: usize = 10_000;

/// Returns the open file of a held lock. A child process that is given it keeps the lock until it
/// has closed the descriptor or ends.
///
/// The ticket is that of the guard. Returns `None` for a ticket of another backend, or if the lock
/// was released. The descriptor is close-on-exec: give the child a duplicate without that flag.
#[must_use]
pub fn descriptor(ticket: &Ticket) -> Option<BorrowedFd<'_>> {
    let held = &ticket.get::<HoldTicket>()?.held;
    let file = held.file()?;
    Some(held.shared_file.get_or_init(|| file).as_fd())
}

/// Returns a copy of the pipe that the next waiter watches, for a child process that is given the
/// [`descriptor`].
///
/// With both, the next waiter sleeps until the child has closed them or ends. With the lock alone
/// it polls from then on, many times a second where the limits on inotify are used up. Returns
/// `None` if the lock was not waited for, or was released. The copy is close-on-exec.
#[must_use]
pub fn queue_descriptor(ticket: &Ticket) -> Option<OwnedFd> {
    ticket.get::<HoldTicket>()?.held.queue_entry().as_ref()?.copy()
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct HeldLock {
    /// `None` once it is released.
    file: Mutex<Option<Arc<LockFile>>>,
    /// The same, once other processes may have the descriptor too.
    shared_file: OnceLock<Arc<LockFile>>,
    /// The record in the file.
    record: Mutex<Record>,
    name: LockName,
    /// The queue entry of a lock that was granted in its turn. After the file: closing that wakes
    /// the waiter behind it.
    entry: Mutex<Option<QueueEntry>>,
}

impl HeldLock {
    pub(crate) fn new(file: LockFile, name: LockName, record: Record) -> Self {
        file.leave_locked();
        let (file, record) = (Mutex::new(Some(Arc::new(file))), Mutex::new(record));
        Self { file, shared_file: OnceLock::new(), record, name, entry: Mutex::default() }
    }

    /// Returns the open file; `None` once it is released.
    pub(crate) fn file(&self) -> Option<Arc<LockFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true while the held file is the one that other processes open under the same name.
    pub(crate) fn is_in_place(&self) -> Result<bool, Fault> {
        self.file().map_or(Ok(false), |file| file.is_in_place())
    }

    /// Returns the queue entry of the holder.
    pub(crate) fn queue_entry(&self) -> MutexGuard<'_, Option<QueueEntry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record in the file.
    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the file out. From here on the descriptor is not given away any more.
    pub(crate) fn take_file(&self) -> Option<Arc<LockFile>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns true if other processes may have the descriptor too.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared_file.get().is_some()
    }
}

/// The state of a waiting claim from one poll to the next.
#[derive(Debug, Default)]
pub(crate) struct WaitState {
    /// `None` before it waits, or where there can be no queue.
    pub(crate) entry: Option<QueueEntry>,
    /// Open, so that a poll is few system calls.
    pub(crate) file: Option<LockFile>,
    polled_at: Option<Moment>,
    has_timed_out: bool,
    pauses: u32,
    /// The record in the lock file at the last poll from further back.
    seen: Option<Record>,
}

impl WaitState {
    /// Returns the time until the next poll at most. It doubles with each poll in vain.
    pub(crate) fn pause(&self, has_watch: bool) -> Duration {
        let (shortest, longest) = if has_watch { PAUSES } else { PAUSES_WITHOUT_WATCH };
        (shortest * 2_u32.pow(self.pauses.min(16))).min(longest)
    }

    /// Returns the time until the next poll of a lock that was free just now.
    pub(crate) fn shortest_pause(&self) -> Duration {
        PAUSES.0
    }

    /// Returns true if the last poll is so long ago that the claim may poll from any position.
    pub(crate) fn is_due(&mut self, pause: Duration) -> bool {
        let last = *self.polled_at.get_or_insert_with(Moment::now);
        self.has_timed_out || (last + pause).has_passed()
    }

    /// Records that no wake-up came for a whole pause.
    pub(crate) fn timed_out(&mut self) {
        self.has_timed_out = true;
        self.pauses += 1;
    }

    /// Records a poll.
    pub(crate) fn polled(&mut self) {
        self.has_timed_out = false;
        self.polled_at = Some(Moment::now());
    }

    /// Records a wake-up: the process ahead has left, or the lock file was changed. The next poll
    /// is less likely to be in vain.
    pub(crate) fn woken(&mut self) {
        self.pauses = 0;
    }

    /// Returns true if the record is the same as at the last poll.
    pub(crate) fn is_unchanged(&mut self, record: Record) -> bool {
        let is_unchanged = self.seen.as_ref() == Some(&record);
        self.seen = Some(record);
        is_unchanged
    }

    /// Returns true if the record has not changed since the last poll, or was not read then.
    pub(crate) fn is_still(&self, record: &Record) -> bool {
        self.seen.as_ref().is_none_or(|seen| seen == record)
    }
}

/// A wait state in use. When dropped with a queue entry, it returns to the table.
#[derive(Debug)]
pub(crate) struct WaitStateGuard<'a> {
    claims: &'a Claims,
    owner: OwnerId,
    lasts: Duration,
    pub(crate) state: WaitState,
}

impl WaitStateGuard<'_> {
    /// Takes the queue entry out.
    pub(crate) fn leave(&mut self) -> Option<QueueEntry> {
        std::mem::take(&mut self.state).entry
    }
}

impl Drop for WaitStateGuard<'_> {
    fn drop(&mut self) {
        let state = std::mem::take(&mut self.state);
        if state.entry.is_some() {
            let expires = Moment::now() + self.lasts;
            let expired = self.claims.table().put_back(self.owner, expires, state);
            drop(expired);
        }
    }
}

/// The locks held through one backend.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<ClaimTable>);

#[derive(Debug, Default)]
struct ClaimTable {
    held: HashMap<OwnerId, Entry>,
    /// Number of the last ticket that was handed out. Counted for the whole table: were it counted
    /// by owner, a ticket of an earlier hold could have the number of a later hold of the same
    /// owner.
    last_ticket: u64,
    waiting: HashMap<OwnerId, (Moment, WaitState)>,
    /// Ends of the turns of this process.
    turns: HashMap<LockName, Moment>,
    tombstones: VecDeque<(Moment, OwnerId)>,
}

impl ClaimTable {
    /// Puts a state back. Returns those that have expired, to be dropped outside of the lock.
    fn put_back(
        &mut self,
        owner: OwnerId,
        expires: Moment,
        state: WaitState,
    ) -> Vec<(Moment, WaitState)> {
        let now = Moment::now();
        let expired = self.waiting.extract_if(|_, (expires, _)| *expires <= now);
        let expired = expired.map(|(_, state)| state).collect();
        self.waiting.insert(owner, (expires, state));
        expired
    }
}

#[derive(Debug)]
struct Entry {
    held: Arc<HeldLock>,
    token: FencingToken,
    /// Number of the ticket that was handed out last. Earlier tickets have no effect.
    ticket: u64,
}

impl Claims {
    /// Returns true if the claim was released before.
    pub(crate) fn has_tombstone(&self, owner: OwnerId) -> bool {
        self.table().tombstones.iter().any(|&(_, it)| it == owner)
    }

    /// Refuses attempts of this claim from now on.
    pub(crate) fn add_tombstone(&self, owner: OwnerId) {
        let now = Moment::now();
        let tombstones = &mut self.table().tombstones;
        while tombstones.len() >= MAX_TOMBSTONES
            || tombstones.front().is_some_and(|&(until, _)| until <= now)
        {
            tombstones.pop_front();
        }
        tombstones.push_back((now + TOMBSTONE, owner));
    }

    /// Returns the wait state of a claim, or an empty one.
    pub(crate) fn wait_state(&self, claim: &Claim) -> WaitStateGuard<'_> {
        let had = self.table().waiting.remove(&claim.owner);
        WaitStateGuard {
            claims: self,
            owner: claim.owner,
            lasts: claim.ttl.saturating_mul(2).saturating_add(QUEUE_ENTRY_GRACE),
            state: had.map(|(_, state)| state).unwrap_or_default(),
        }
    }

    /// Begins the turn of a process whose waiter was granted the lock.
    pub(crate) fn begin_turn(&self, name: &LockName) {
        let now = Moment::now();
        let turns = &mut self.table().turns;
        turns.retain(|_, end| *end > now);
        turns.insert(name.clone(), now + TURN);
    }

    /// Returns true during the turn of this process.
    pub(crate) fn has_turn(&self, name: &LockName) -> bool {
        self.table().turns.get(name).is_some_and(|end| !end.has_passed())
    }

    /// Takes the lock of the claim out of the table.
    pub(crate) fn remove_wait_state(&self, claim: &Claim) {
        let state = self.table().waiting.remove(&claim.owner);
        drop(state);
    }

    /// Returns the held lock of a claim. Notes that its ticket has arrived.
    pub(crate) fn find(&self, claim: &Claim) -> Option<(Arc<HeldLock>, FencingToken)> {
        if let Some(ticket) = claim.ticket.as_ref().and_then(Ticket::get::<HoldTicket>) {
            ticket.arrived.store(true, Ordering::Relaxed);
        }
        let table = self.table();
        let entry = table.held.get(&claim.owner)?;
        (entry.held.name == claim.name).then(|| (Arc::clone(&entry.held), entry.token))
    }

    /// Records a held lock, or its new token, and returns a ticket for it.
    pub(crate) fn keep(
        self: &Arc<Self>,
        claim: &Claim,
        held: Arc<HeldLock>,
        token: FencingToken,
    ) -> Ticket {
        let mut table = self.table();
        table.last_ticket += 1;
        let number = table.last_ticket;
        let entry = Entry { held: Arc::clone(&held), token, ticket: number };
        table.held.insert(claim.owner, entry);
        Ticket::new(HoldTicket {
            held,
            arrived: AtomicBool::new(false),
            grace: claim.ttl,
            runtime: Handle::try_current().ok(),
            orphan: Orphan { claims: Arc::clone(self), owner: claim.owner, ticket: number },
        })
    }

    /// Takes the lock of the claim out of the table.
    pub(crate) fn remove(&self, claim: &Claim) -> Option<(Arc<HeldLock>, FencingToken)> {
        let mut table = self.table();
        let ours = table.held.get(&claim.owner)?.held.name == claim.name;
        let entry = ours.then(|| table.held.remove(&claim.owner))??;
        Some((entry.held, entry.token))
    }

    fn table(&self) -> MutexGuard<'_, ClaimTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content of a ticket of this backend.
struct HoldTicket {
    held: Arc<HeldLock>,
    /// Came back with a later verb.
    arrived: AtomicBool,
    grace: Duration,
    runtime: Option<Handle>,
    orphan: Orphan,
}

impl Drop for HoldTicket {
    fn drop(&mut self) {
        let orphan = self.orphan.clone();
        if !orphan.is_held() {
            return;
        }
        match &self.runtime {
            Some(runtime) if !self.arrived.load(Ordering::Relaxed) => {
                let grace = self.grace;
                // A runtime that is gone, or goes, drops the task, and with it `close`.
                let close = CloseOnDrop(orphan);
                drop(runtime.spawn(async move {
                    sleep(grace).await;
                    drop(close);
                }));
            }
            _ => orphan.close(),
        }
    }
}

impl fmt::Debug for HoldTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldTicket").finish_non_exhaustive()
    }
}

/// The lock of a ticket that was dropped.
#[derive(Clone)]
struct Orphan {
    claims: Arc<Claims>,
    owner: OwnerId,
    ticket: u64,
}

impl Orphan {
    /// Returns false if the claim was released, or found again and given another ticket.
    fn is_held(&self) -> bool {
        let table = self.claims.table();
        let entry = table.held.get(&self.owner);
        entry.is_some_and(|entry| entry.ticket == self.ticket)
    }

    fn close(&self) {
        let mut table = self.claims.table();
        if let Some(entry) = table.held.get(&self.owner)
            && entry.ticket == self.ticket
        {
            table.held.remove(&self.owner);
        }
    }
}

/// A lock that is closed on drop.
struct CloseOnDrop(Orphan);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
