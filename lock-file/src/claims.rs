//! The locks that this process holds, by owner; and who keeps them open.
//!
//! A lock is open as long as it stands in the table, and stands there until the claim is released
//! or nobody can release it any more. The [`Ticket`] that goes out with the grant tells: when its
//! last clone is dropped without a release, the lock goes too.
//!
//! * A ticket that came back with a later verb had arrived. When it is dropped, its guard is gone
//!   and so is the runtime that would have released it: the lock is freed at once.
//! * A ticket that never came back may have been lost on its way. The claim may still ask again, or
//!   release: the lock stays for one ttl, as what a lost reply leaves does everywhere, and then
//!   goes. The timer for that runs on the runtime that asked for the lock. If that one is gone,
//!   nobody asks any more, and the lock is freed at once.
//!
//! Freed here means closed, not unlocked: a process that was given the descriptor keeps the lock.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Claim, Ticket};
use lock_core::clock::{Moment, sleep};
use lock_core::{FencingToken, LockName, OwnerId};
use tokio::runtime::Handle;

use crate::lock_file::LockFile;

/// How long a claim that was let go is remembered, so that a late attempt of it is refused. Longer
/// than any attempt stays on its way.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// How many of them are remembered: each is an attempt that went unanswered, which takes a wrapper
/// around this backend, because attempts here end when they are polled.
const MAX_TOMBSTONES: usize = 10_000;

/// The open file of a held lock: for handing it to a child process, which then keeps the lock until
/// it has closed the descriptor or ends.
///
/// The ticket is that of the guard. `None` if it is not one of this backend, or if the lock was
/// released. The descriptor is close-on-exec: give the child a duplicate without that flag.
#[must_use]
pub fn descriptor(ticket: &Ticket) -> Option<BorrowedFd<'_>> {
    let held = &ticket.get::<Stub>()?.held;
    (!held.let_go.load(Ordering::Acquire)).then(|| held.file.as_fd())
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) file: LockFile,
    /// Wall clock, as time since 1970.
    pub(crate) since: Duration,
    name: LockName,
    let_go: AtomicBool,
}

impl Held {
    pub(crate) fn new(file: LockFile, name: LockName, since: Duration) -> Self {
        Self { file, since, name, let_go: AtomicBool::new(false) }
    }

    /// From here on the descriptor is not given away any more.
    pub(crate) fn let_go(&self) {
        self.let_go.store(true, Ordering::Release);
    }
}

/// The locks held through one backend.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    held: HashMap<OwnerId, Entry>,
    tombstones: VecDeque<(Moment, OwnerId)>,
}

#[derive(Debug)]
struct Entry {
    held: Arc<Held>,
    token: FencingToken,
    /// Number of the ticket that was handed out last: the others have no say any more.
    ticket: u64,
}

impl Claims {
    /// True if the claim was let go before.
    pub(crate) fn is_buried(&self, owner: OwnerId) -> bool {
        self.table().tombstones.iter().any(|&(_, it)| it == owner)
    }

    /// Refuses attempts of this claim from now on.
    pub(crate) fn bury(&self, owner: OwnerId) {
        let now = Moment::now();
        let tombstones = &mut self.table().tombstones;
        while tombstones.len() >= MAX_TOMBSTONES
            || tombstones.front().is_some_and(|&(until, _)| until <= now)
        {
            tombstones.pop_front();
        }
        tombstones.push_back((now + TOMBSTONE, owner));
    }

    /// What the claim holds. Notes that its ticket has arrived.
    pub(crate) fn find(&self, claim: &Claim) -> Option<(Arc<Held>, FencingToken)> {
        if let Some(stub) = claim.ticket.as_ref().and_then(Ticket::get::<Stub>) {
            stub.arrived.store(true, Ordering::Relaxed);
        }
        let table = self.table();
        let entry = table.held.get(&claim.owner)?;
        (entry.held.name == claim.name).then(|| (Arc::clone(&entry.held), entry.token))
    }

    /// Takes in a lock, or its new token, and hands out a ticket for it.
    pub(crate) fn keep(
        self: &Arc<Self>,
        claim: &Claim,
        held: Arc<Held>,
        token: FencingToken,
    ) -> Ticket {
        let mut table = self.table();
        let number = table.held.get(&claim.owner).map_or(0, |it| it.ticket) + 1;
        let entry = Entry { held: Arc::clone(&held), token, ticket: number };
        table.held.insert(claim.owner, entry);
        Ticket::new(Stub {
            held,
            arrived: AtomicBool::new(false),
            grace: claim.ttl,
            runtime: Handle::try_current().ok(),
            orphan: Orphan { claims: Arc::clone(self), owner: claim.owner, ticket: number },
        })
    }

    /// Takes the lock of the claim out of the table.
    pub(crate) fn remove(&self, claim: &Claim) -> Option<(Arc<Held>, FencingToken)> {
        let mut table = self.table();
        let ours = table.held.get(&claim.owner)?.held.name == claim.name;
        let entry = ours.then(|| table.held.remove(&claim.owner))??;
        Some((entry.held, entry.token))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a ticket of ours holds.
struct Stub {
    held: Arc<Held>,
    /// Came back with a later verb.
    arrived: AtomicBool,
    grace: Duration,
    runtime: Option<Handle>,
    orphan: Orphan,
}

impl Drop for Stub {
    fn drop(&mut self) {
        let orphan = self.orphan.clone();
        if !orphan.is_held() {
            return;
        }
        match &self.runtime {
            Some(runtime) if !self.arrived.load(Ordering::Relaxed) => {
                let grace = self.grace;
                // A runtime that is gone, or goes, drops the task, and with it `leaving`.
                let leaving = Leaving(orphan);
                drop(runtime.spawn(async move {
                    sleep(grace).await;
                    drop(leaving);
                }));
            }
            _ => orphan.close(),
        }
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stub").finish_non_exhaustive()
    }
}

/// The lock of a ticket, once nobody has the ticket any more.
#[derive(Clone)]
struct Orphan {
    claims: Arc<Claims>,
    owner: OwnerId,
    ticket: u64,
}

impl Orphan {
    /// False if the claim was released, or found again and given another ticket.
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

/// Closes the lock when it is dropped.
struct Leaving(Orphan);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.close();
    }
}
