//! The queue entries of this process on the server, and the messages that it has for them.
//!
//! An entry is as good as the connection on which it was confirmed: a message is lost while that
//! connection is down. One waiter of each lock attempts again in each lease, for all of them. A
//! waiter whose entry may be lost attempts again at once.
//!
//! Core bounds the number of waiting claims, and so this table. It holds owner ids, so `Debug`
//! shows none of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Claim, QUEUE_ENTRY_GRACE};
use lock_core::clock::{Moment, sleep_until};
use lock_core::{FencingToken, Label, OwnerId};
use tokio::sync::Notify;

use crate::clock::ServerTime;
use crate::owners::ByOwner;
use crate::value::shown;

/// A time that the server counts in milliseconds may last that much longer.
const ROUNDING: Duration = Duration::from_millis(1);

/// How long an owner that was queued is known as the holder, unless it releases before. A grant
/// that is given back is known for as long. No connection delivers a grant later than that.
const HOLDER_RETENTION: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Queues(Mutex<QueueTable>);

#[derive(Default)]
struct QueueTable {
    waiters: ByOwner<QueuedClaim>,
    locks: HashMap<Arc<str>, QueuedLock>,
    /// Owners that were queued for this lock and have it, until these moments. Their grants may
    /// still arrive.
    holders: ByOwner<(Arc<str>, Moment)>,
    /// Grants that are given back, by their tokens, until these moments. The owner may attempt
    /// again meanwhile, and must not be answered with such a grant.
    given_back: ByOwner<(u64, Moment)>,
    /// How many have come so far.
    came: u64,
}

struct QueuedClaim {
    /// Under this number it is in [`QueuedLock::owners`].
    came: u64,
    lock: Arc<str>,
    entry: QueueEntry,
    /// The number of its arrival, with which it gets its old position again.
    arrival: Option<u64>,
    status: EntryStatus,
    /// The connection of the last reply.
    connection: u64,
    /// Since it waits to be called.
    wake: Option<Arc<Notify>>,
}

enum EntryStatus {
    /// It has to ask.
    Unknown,
    /// It was queued at this time of the server.
    Queued(u64),
    /// It was sent the lock at this time of the server. `None`: it has taken it, or has to ask.
    Granted(Observed, Option<SentGrant>),
}

/// When something was true, as far as that is known: the server's clock may be set back.
#[derive(Clone, Copy)]
struct Observed {
    /// By the server's clock, in µs.
    at: u64,
    arrived: Moment,
}

/// A lock that was sent to its next owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentGrant {
    pub(crate) token: u64,
    pub(crate) lease: Duration,
    pub(crate) since: Moment,
}

/// The state of a lock with waiters.
#[derive(Default)]
struct QueuedLock {
    /// In order of arrival.
    owners: VecDeque<(u64, OwnerId)>,
    /// When the last answer was asked for.
    asked: Option<Moment>,
    /// The expiry of this process's queue entries: some waiters have longer leases than others.
    entries_until: Option<Moment>,
    /// The last time at which they may have been lost. An earlier reply does not confirm a
    /// position, however late it is read.
    lost: Option<Observed>,
    /// The time of the following fields.
    as_of: Option<Observed>,
    /// When the holder's lease ends, if it is not renewed.
    expires_at: Option<Moment>,
    holder_is_ours: bool,
    /// The claim that checks when the lease ends. Each of the first two processes in the queue has
    /// one, and so does another process after a grant.
    watcher: Option<OwnerId>,
    /// One asks for all.
    turn: Option<Arc<tokio::sync::Mutex<()>>>,
}

/// The state that a waiter sends with a request.
pub(crate) struct QueuePosition {
    pub(crate) entry: QueueEntry,
    pub(crate) arrival: Option<u64>,
}

/// The record of a claim in the queue, and nowhere else: see `queue.lua`.
#[derive(Clone)]
pub(crate) struct QueueEntry {
    owner: OwnerId,
    channel: Arc<str>,
    ttl: Duration,
    min_token: Option<FencingToken>,
    label: Option<Label>,
}

/// The server's reply to a claim that has to wait.
#[derive(Debug)]
pub(crate) struct QueueReply {
    pub(crate) asked: Moment,
    /// On this connection.
    pub(crate) connection: u64,
    /// The server's time in µs.
    pub(crate) now: u64,
    pub(crate) arrival: u64,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) holder_is_ours: bool,
    /// This process is one of the first two in the queue.
    pub(crate) is_next: bool,
    /// The server had forgotten the process: other entries may be gone.
    pub(crate) is_new: bool,
    /// Its entry was gone.
    pub(crate) is_back: bool,
}

/// A lock that was granted to an owner which does not wait for it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclaimed {
    pub(crate) lock: Box<str>,
    pub(crate) owner: OwnerId,
    pub(crate) token: u64,
    /// Its stale entries arrived by then, in µs of the server's clock.
    pub(crate) arrived_by: u64,
    /// The owners of this client that wait for the lock, one after the other.
    pub(crate) waiting: String,
}

/// The end of a queued wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitEvent {
    Retry,
    Granted(SentGrant),
}

impl QueueReply {
    /// Returns true if the reply is newer than `when`. A message that arrived before the request
    /// was sent is older, even if the server's clock says otherwise.
    fn is_newer_than(&self, when: Observed) -> bool {
        self.now > when.at || when.arrived < self.asked
    }
}

impl Queues {
    /// Adds the claim to the waiters for the key `lock`. This happens before its first attempt,
    /// because the grant may arrive before the reply is read. Returns false if the claim already
    /// waits.
    pub(crate) fn enter(&self, claim: &Claim, lock: &str, channel: Arc<str>) -> bool {
        let mut table = self.table();
        if table.waiters.contains_key(&claim.owner) {
            return false;
        }
        let lock = match table.locks.get_key_value(lock) {
            Some((lock, _)) => Arc::clone(lock),
            None => Arc::from(lock),
        };
        table.came += 1;
        let came = table.came;
        table.locks.entry(Arc::clone(&lock)).or_default().owners.push_back((came, claim.owner));
        let waiter = QueuedClaim {
            came,
            lock,
            entry: QueueEntry::of(claim, channel),
            arrival: None,
            status: EntryStatus::Unknown,
            connection: 0,
            wake: None,
        };
        table.waiters.insert(claim.owner, waiter);
        true
    }

    /// Returns true if the claim waits.
    pub(crate) fn has(&self, owner: &OwnerId) -> bool {
        self.table().waiters.contains_key(owner)
    }

    /// Removes the claim, which neither waits nor holds its lock any more.
    pub(crate) fn leave(&self, owner: &OwnerId) {
        let mut table = self.table();
        table.holders.remove(owner);
        table.leave(owner);
    }

    /// Records that a queued claim has its lock.
    pub(crate) fn hold(&self, owner: &OwnerId) {
        let mut table = self.table();
        if let Some(waiter) = table.leave(owner) {
            table.holders.retain(|_, (_, until)| !until.has_passed());
            table.holders.insert(*owner, (waiter.lock, Moment::now() + HOLDER_RETENTION));
        }
    }

    /// Returns true if the grant with this token was sent to the owner, and is given back.
    pub(crate) fn is_given_back(&self, owner: &OwnerId, token: u64) -> bool {
        self.table().given_back.get(owner).is_some_and(|(given_back, _)| *given_back == token)
    }

    /// Returns true if the claim never had a queue entry, and no other claim of this process waits
    /// for its lock.
    pub(crate) fn is_alone(&self, owner: &OwnerId) -> bool {
        let table = self.table();
        let waiter = table.waiters.get(owner).filter(|waiter| waiter.arrival.is_none());
        let lock = waiter.and_then(|waiter| table.locks.get(&waiter.lock));
        lock.is_some_and(|lock| lock.owners.len() == 1)
    }

    /// Returns the channels on which waiters expect their notifications.
    pub(crate) fn channels(&self) -> HashSet<Arc<str>> {
        let table = self.table();
        table.waiters.values().map(|waiter| waiter.entry.channel()).collect()
    }

    pub(crate) fn position(&self, owner: &OwnerId) -> Option<QueuePosition> {
        let table = self.table();
        let waiter = table.waiters.get(owner)?;
        Some(QueuePosition { entry: waiter.entry.clone(), arrival: waiter.arrival })
    }

    /// Returns the mutex to hold during a request, for claims that may find that another claim has
    /// asked meanwhile.
    pub(crate) fn turn(&self, owner: &OwnerId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut table = self.table();
        let QueueTable { waiters, locks, .. } = &mut *table;
        let waiter = waiters.get(owner)?;
        let EntryStatus::Queued(_) = waiter.status else { return None };
        Some(Arc::clone(locks.get_mut(&waiter.lock)?.turn.get_or_insert_default()))
    }

    /// Returns the server's reply if it is known. It is known if the claim has its entry, a claim
    /// of this process has asked within a lease, and the entries last for another lease. Only the
    /// watcher checks at the expiry of the holder's lease.
    pub(crate) fn known_reply(&self, owner: &OwnerId) -> Option<Option<Duration>> {
        let table = self.table();
        let waiter = table.waiters.get(owner)?;
        let EntryStatus::Queued(_) = waiter.status else { return None };
        let lock = table.locks.get(&waiter.lock)?;
        let ttl = waiter.entry.ttl;
        let stays = ttl + QUEUE_ENTRY_GRACE;
        if (lock.asked? + ttl).has_passed() || lock.entries_until? < Moment::now() + stays {
            return None;
        }
        match lock.expires_at.filter(|_| lock.watcher == Some(*owner)) {
            Some(expires_at) if expires_at.has_passed() => None,
            expires_at => Some(expires_at.map(Moment::remaining)),
        }
    }

    /// Handles the reply that the claim has to wait. `is_alive` says whether the connection that
    /// brought the reply is still good; if it breaks later,
    /// [`connection_lost`](Self::connection_lost) follows.
    pub(crate) fn on_reply(
        &self,
        owner: &OwnerId,
        reply: &QueueReply,
        is_alive: impl Fn() -> bool,
    ) {
        let mut table = self.table();
        let QueueTable { waiters, locks, .. } = &mut *table;
        let Some(waiter) = waiters.get_mut(owner) else { return };
        waiter.arrival = Some(reply.arrival);
        waiter.connection = reply.connection;
        // If it was sure of its position, other claims that have lost theirs may be sure as well.
        let was_wrong = reply.is_back && matches!(waiter.status, EntryStatus::Queued(_));
        let Some(lock) = locks.get_mut(&waiter.lock) else { return };
        let is_late = lock.lost.is_some_and(|when| !reply.is_newer_than(when));
        match waiter.status {
            // It was sent the lock after this answer was made.
            EntryStatus::Granted(when, _) if !reply.is_newer_than(when) => {}
            _ if is_alive() && !is_late => waiter.status = EntryStatus::Queued(reply.now),
            _ => waiter.status = EntryStatus::Unknown,
        }
        lock.asked = lock.asked.max(Some(reply.asked));
        let before = lock.entries_until.filter(|_| !reply.is_new);
        let ttl = waiter.entry.ttl;
        if !is_late {
            lock.entries_until = before.max(Some(reply.asked + ttl + ttl + QUEUE_ENTRY_GRACE));
        }
        let is_newest =
            lock.as_of.is_none_or(|when| reply.is_newer_than(when) || reply.now == when.at);
        if is_newest {
            lock.as_of = Some(Observed { at: reply.now, arrived: Moment::now() });
            lock.holder_is_ours = reply.holder_is_ours;
            lock.expires_at = reply.expires_in.map(|left| Moment::now() + left + ROUNDING);
        }
        match lock.watcher {
            None if reply.is_next => lock.watcher = Some(*owner),
            // It has looked.
            Some(watcher) if watcher == *owner && !reply.is_next && is_newest => {
                lock.watcher = None;
            }
            _ => {}
        }
        if reply.is_new || was_wrong {
            lock.invalidate_entries_before(reply.now, waiters);
        }
    }

    /// Forgets the queue position of this claim, after a request without an answer, or with an
    /// error.
    pub(crate) fn invalidate(&self, owner: &OwnerId) {
        if let Some(waiter) = self.table().waiters.get_mut(owner) {
            waiter.invalidate_before(u64::MAX);
        }
    }

    /// Forgets all queue positions of this process for the lock of this claim.
    pub(crate) fn invalidate_all(&self, owner: &OwnerId) {
        let mut table = self.table();
        let QueueTable { waiters, locks, .. } = &mut *table;
        let lock = waiters.get(owner).and_then(|waiter| locks.get_mut(&waiter.lock));
        if let Some(lock) = lock {
            lock.invalidate_entries_before(u64::MAX, waiters);
        }
    }

    /// Handles the loss of a connection. Messages since then are lost, and every waiter that has
    /// its position through that connection checks once.
    pub(crate) fn connection_lost(&self, connection: u64) {
        let mut table = self.table();
        let waiters = table.waiters.values_mut();
        let mut lost: Vec<_> = waiters.filter(|waiter| waiter.connection == connection).collect();
        // Sorted, so that the sequence of events is repeatable.
        lost.sort_unstable_by_key(|waiter| waiter.came);
        lost.into_iter().for_each(|waiter| waiter.invalidate_before(u64::MAX));
    }

    /// Returns true if the claim is the watcher, and a foreign client, which sends no notification,
    /// holds the lock.
    pub(crate) fn must_watch(&self, owner: &OwnerId) -> bool {
        let table = self.table();
        let lock = table.waiters.get(owner).and_then(|waiter| table.locks.get(&waiter.lock));
        lock.is_some_and(|lock| lock.watcher == Some(*owner) && !lock.holder_is_ours)
    }

    /// Waits until the lock is sent to the claim, or until it has to ask, or to watch if it does
    /// not yet.
    ///
    /// Cancel safe: a grant that was sent and not taken is kept, for the next call or until a poll.
    pub(crate) async fn wait_event(&self, owner: &OwnerId, watches: bool) -> WaitEvent {
        loop {
            let (wake, expires_at) = {
                let mut table = self.table();
                let QueueTable { waiters, locks, .. } = &mut *table;
                let Some(waiter) = waiters.get_mut(owner) else { return WaitEvent::Retry };
                match waiter.status {
                    EntryStatus::Unknown => return WaitEvent::Retry,
                    EntryStatus::Granted(when, sent) => {
                        waiter.status = EntryStatus::Granted(when, None);
                        return sent.map_or(WaitEvent::Retry, WaitEvent::Granted);
                    }
                    EntryStatus::Queued(_) => {}
                }
                let lock = locks.get(&waiter.lock).filter(|lock| lock.watcher == Some(*owner));
                if !watches && lock.is_some_and(|lock| !lock.holder_is_ours) {
                    return WaitEvent::Retry;
                }
                (
                    Arc::clone(waiter.wake.get_or_insert_default()),
                    lock.and_then(|lock| lock.expires_at),
                )
            };
            let lapsed = async {
                match expires_at {
                    Some(expires_at) => sleep_until(expires_at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = lapsed => return WaitEvent::Retry,
            }
        }
    }

    /// Handles a message of the server, which may be dated by an earlier answer on the same
    /// connection. Returns the lock to give back, if its new owner does not wait for it here.
    pub(crate) fn on_message(&self, message: &str, clock: Option<ServerTime>) -> Option<Unclaimed> {
        let arrived = Moment::now();
        // A key comes last: it may contain spaces.
        let (verb, rest) = message.split_once(' ')?;
        let parts = if verb == "grant" { 6 } else { 4 };
        let views: Vec<_> = rest.splitn(parts, ' ').collect();
        let mut table = self.table();
        match (verb, &views[..]) {
            ("grant", &[owner, token, lease, now, arrived_by, lock]) => {
                let (owner, token, now) =
                    (owner.parse().ok()?, token.parse().ok()?, now.parse().ok()?);
                let lease = Duration::from_millis(lease.parse().ok()?);
                if table.is_unclaimed(lock, &owner) {
                    let waiting = table.locks.get(lock).into_iter().flat_map(|lock| &lock.owners);
                    let waiting = waiting.map(|(_, owner)| owner.expose()).collect();
                    let arrived_by = arrived_by.parse().ok()?;
                    table.given_back.retain(|_, (_, until)| !until.has_passed());
                    table.given_back.insert(owner, (token, Moment::now() + HOLDER_RETENTION));
                    return Some(Unclaimed {
                        lock: lock.into(),
                        owner,
                        token,
                        arrived_by,
                        waiting,
                    });
                }
                table.on_grant(owner, token, lease, now, clock, arrived);
            }
            ("next", &[left, now, is_ours, lock]) => {
                let (left, now) = (left.parse::<i64>().ok()?, now.parse().ok()?);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                let QueueTable { waiters, locks, .. } = &mut *table;
                let lock = locks.get_mut(lock)?;
                lock.set_expiry(now, left.map(|left| arrived + left), is_ours == "1");
                lock.appoint_watcher(waiters);
            }
            _ => {}
        }
        None
    }

    #[cfg(any(test, feature = "__fuzzing"))]
    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table();
        table.waiters.is_empty() && table.locks.is_empty() && table.holders.is_empty()
    }

    fn table(&self) -> MutexGuard<'_, QueueTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueTable {
    /// Removes the claim from those that wait.
    fn leave(&mut self, owner: &OwnerId) -> Option<QueuedClaim> {
        let Self { waiters, locks, .. } = self;
        let waiter = waiters.remove(owner)?;
        if let Some(lock) = locks.get_mut(&waiter.lock) {
            if let Ok(at) = lock.owners.binary_search_by_key(&waiter.came, |&(came, _)| came) {
                lock.owners.remove(at);
            }
            if lock.owners.is_empty() {
                locks.remove(&waiter.lock);
            } else if lock.watcher == Some(*owner) {
                lock.appoint_watcher(waiters);
            }
        }
        Some(waiter)
    }

    /// Returns true if the owner neither waits for this lock nor holds it. A waiter for another
    /// lock has to ask where it stands: its entry was in the wrong queue.
    fn is_unclaimed(&mut self, lock: &str, owner: &OwnerId) -> bool {
        let holds = self.holders.get(owner).is_some_and(|(held, _)| **held == *lock);
        match self.waiters.get_mut(owner) {
            Some(waiter) if *waiter.lock == *lock => false,
            Some(waiter) => {
                waiter.invalidate_before(u64::MAX);
                true
            }
            None => !holds,
        }
    }

    fn on_grant(
        &mut self,
        owner: OwnerId,
        token: u64,
        lease: Duration,
        now: u64,
        clock: Option<ServerTime>,
        arrived: Moment,
    ) {
        let Some(waiter) = self.waiters.get_mut(&owner) else { return };
        let since = clock.and_then(|clock| clock.local(now, waiter.entry.ttl));
        let sent = since
            .map(|since| SentGrant { token, lease, since: since.min(arrived) })
            // A late grant may have expired.
            .filter(|sent| !(sent.since + lease).has_passed());
        waiter.status = EntryStatus::Granted(Observed { at: now, arrived }, sent);
        waiter.wake();
        if let Some(lock) = self.locks.get_mut(&waiter.lock) {
            lock.set_expiry(now, Some(arrived + lease), true);
            lock.appoint_watcher(&self.waiters);
        }
    }
}

impl QueuedLock {
    /// Records the expiry of the holder's lease, as of the server's time `now`. If that time is
    /// earlier than the last one, the message is late or the server's clock was set back. Then the
    /// earlier expiry counts: a needless poll harms nothing.
    fn set_expiry(&mut self, now: u64, expires_at: Option<Moment>, holder_is_ours: bool) {
        let expires_at = expires_at.map(|expires_at| expires_at + ROUNDING);
        if self.as_of.is_none_or(|when| now >= when.at) {
            self.as_of = Some(Observed { at: now, arrived: Moment::now() });
            self.expires_at = expires_at;
            self.holder_is_ours |= holder_is_ours;
        } else {
            self.expires_at = [self.expires_at, expires_at].into_iter().flatten().min();
        }
    }

    /// Forgets the positions that were confirmed before the server's time `now`.
    fn invalidate_entries_before(&mut self, now: u64, waiters: &mut ByOwner<QueuedClaim>) {
        // Replies may be read out of order: a position in doubt stays in doubt.
        let at = self.lost.map_or(now, |before| before.at.max(now));
        self.lost = Some(Observed { at, arrived: Moment::now() });
        for (_, owner) in &self.owners {
            if let Some(waiter) = waiters.get_mut(owner) {
                waiter.invalidate_before(now);
            }
        }
    }

    /// Appoints a watcher: any waiter that was not granted the lock and has not left.
    fn appoint_watcher(&mut self, waiters: &ByOwner<QueuedClaim>) {
        let waits = |owner: &&OwnerId| {
            waiters
                .get(owner)
                .is_some_and(|waiter| !matches!(waiter.status, EntryStatus::Granted(..)))
        };
        let owners = self.owners.iter().map(|(_, owner)| owner);
        self.watcher = self.watcher.iter().chain(owners).find(waits).copied();
        if let Some(waiter) = self.watcher.and_then(|owner| waiters.get(&owner)) {
            waiter.wake();
        }
    }
}

impl QueuedClaim {
    /// Wakes the claim to check its status. A claim that does not wait yet checks when it does.
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.notify_one();
        }
    }

    fn invalidate_before(&mut self, now: u64) {
        if matches!(self.status, EntryStatus::Queued(at) if at < now) {
            self.status = EntryStatus::Unknown;
            self.wake();
        }
    }
}

impl QueueEntry {
    pub(crate) fn of(claim: &Claim, channel: Arc<str>) -> Self {
        let Claim { owner, ttl, min_token, ref label, .. } = *claim;
        Self { owner, channel, ttl, min_token, label: label.clone() }
    }

    /// Returns the channel on which the entry's process is notified.
    pub(crate) fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }
}

impl fmt::Display for QueueEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, channel, ttl, min_token, label } = self;
        write!(f, "{} {channel} {} ", owner.expose(), crate::limits::millis(*ttl))?;
        match min_token {
            Some(min_token) => write!(f, "{} ", min_token.backend_number())?,
            None => f.write_str("- ")?,
        }
        f.write_str(shown(label.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use lock_core::LockName;

    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    /// Creates a table with one queue of this many waiters, in their order.
    fn queue_of(waiters: u64) -> (Queues, Vec<OwnerId>) {
        let queues = Queues::default();
        let owners = (1..=waiters).map(|now| {
            let owner = enter(&queues, LEASE);
            queues.on_reply(&owner, &reply(now), || true);
            owner
        });
        let owners = owners.collect();
        (queues, owners)
    }

    fn enter(queues: &Queues, lease: Duration) -> OwnerId {
        let mut claim = Claim::new(LockName::new("n").unwrap(), OwnerId::mint(), lease);
        claim.on_contention = lock_core::backend::OnContention::Queue;
        queues.enter(&claim, "n", "c".into());
        claim.owner
    }

    fn reply(now: u64) -> QueueReply {
        QueueReply {
            asked: Moment::now(),
            connection: 1,
            now,
            arrival: now,
            expires_in: Some(LEASE),
            holder_is_ours: true,
            is_next: true,
            is_new: false,
            is_back: false,
        }
    }

    fn grant(owner: &OwnerId, now: u64) -> String {
        format!("grant {} 7 3000 {now} {now} n", owner.expose())
    }

    fn said(said: u64) -> Option<ServerTime> {
        Some(ServerTime { asked: Moment::now(), time: said })
    }

    #[tokio::test]
    async fn a_grant_before_the_reply_is_kept() {
        let (queues, owners) = queue_of(1);
        let late = reply(8);
        queues.on_message(&grant(&owners[0], 9), said(1));
        // Made before the lock was sent, and read after that.
        queues.on_reply(&owners[0], &late, || true);
        assert!(queues.known_reply(&owners[0]).is_none(), "it has to take it, or ask");
        assert!(matches!(
            queues.wait_event(&owners[0], false).await,
            WaitEvent::Granted(SentGrant { token: 7, .. })
        ));
        assert!(queues.known_reply(&owners[0]).is_none(), "it may have to confirm it");
        assert_eq!(
            queues.wait_event(&owners[0], false).await,
            WaitEvent::Retry,
            "it is taken once"
        );
        // The grant has lapsed, and the claim waits again.
        queues.on_reply(&owners[0], &reply(10), || true);
        assert!(queues.known_reply(&owners[0]).is_some());
    }

    #[test]
    fn one_claim_of_a_process_watches() {
        let (queues, owners) = queue_of(3);
        let watchers = || {
            let expires_at = |owner: &&OwnerId| {
                queues.known_reply(owner).is_some_and(|expires_at| expires_at.is_some())
            };
            owners.iter().filter(expires_at).copied().collect::<Vec<_>>()
        };
        assert_eq!(watchers(), [owners[0]]);
        queues.leave(&owners[0]);
        assert_eq!(watchers().len(), 1);
        // A claim that was sent the lock does not watch any more.
        let watcher = watchers()[0];
        queues.on_message(&grant(&watcher, 9), said(1));
        assert_eq!(watchers().len(), 1);
        assert_ne!(watchers(), [watcher]);
    }

    #[test]
    fn a_forgotten_process_asks_for_each_entry() {
        let (queues, owners) = queue_of(3);
        let mut reply = reply(10);
        reply.is_new = true;
        queues.on_reply(&owners[1], &reply, || true);
        let known =
            owners.iter().map(|owner| queues.known_reply(owner).is_some()).collect::<Vec<_>>();
        assert_eq!(known, [false, true, false]);
        queues.on_reply(&owners[0], &self::reply(11), || true);
        queues.connection_lost(2);
        assert!(queues.known_reply(&owners[0]).is_some(), "another connection is gone");
        queues.connection_lost(1);
        assert!(owners.iter().all(|owner| queues.known_reply(owner).is_none()));
        queues.on_reply(&owners[0], &reply, || false);
        assert!(queues.known_reply(&owners[0]).is_none(), "the connection was lost meanwhile");
        assert_eq!(queues.position(&owners[0]).unwrap().arrival, Some(10));
    }

    #[test]
    fn a_late_reply_does_not_confirm_a_lost_entry() {
        let (queues, owners) = queue_of(2);
        let late = || reply(8);
        let (read_late, read_too_late) = (late(), late());
        let mut forgotten = reply(10);
        forgotten.is_new = true;
        queues.on_reply(&owners[0], &forgotten, || true);
        queues.on_reply(&owners[1], &read_late, || true);
        assert!(
            queues.known_reply(&owners[1]).is_none(),
            "its place was lost after that answer was made"
        );
        queues.on_reply(&owners[1], &reply(11), || true);
        assert!(queues.known_reply(&owners[1]).is_some());
        // Another claim has asked, and the outcome is unknown.
        queues.invalidate_all(&owners[0]);
        queues.on_reply(&owners[1], &read_too_late, || true);
        assert!(queues.known_reply(&owners[1]).is_none());
        queues.on_reply(&owners[1], &reply(12), || true);
        assert!(queues.known_reply(&owners[1]).is_some());
    }

    #[test]
    fn a_late_reply_does_not_move_a_loss_back() {
        let forgotten = |now: u64| QueueReply { is_new: true, ..reply(now) };
        let (late, read_too_late, older) = (reply(9), reply(9), forgotten(8));
        let (queues, owners) = queue_of(3);
        queues.on_reply(&owners[2], &forgotten(10), || true);
        queues.on_reply(&owners[0], &older, || true);
        queues.on_reply(&owners[1], &late, || true);
        assert!(queues.known_reply(&owners[1]).is_none(), "its place was lost at 10");
        let (queues, owners) = queue_of(2);
        queues.invalidate_all(&owners[0]);
        queues.on_reply(&owners[0], &older, || true);
        queues.on_reply(&owners[1], &read_too_late, || true);
        assert!(queues.known_reply(&owners[1]).is_none(), "its place was in doubt");
        queues.on_reply(&owners[1], &reply(12), || true);
        assert!(queues.known_reply(&owners[1]).is_some());
    }

    #[tokio::test]
    async fn a_clock_step_back_ends_no_wait_for_good() {
        let (queues, owners) = queue_of(2);
        // The grant of the first one is over, and so is the lease that the second one was told of.
        queues.on_message(&grant(&owners[1], 1000), None);
        queues.on_message("next 0 1000 1 n", None);
        lock_core::clock::sleep(ROUNDING * 2).await;
        assert!(owners.iter().all(|owner| queues.known_reply(owner).is_none()));
        for owner in &owners {
            queues.on_reply(owner, &reply(500), || true);
            assert!(queues.known_reply(owner).is_some(), "it has just been told");
        }
    }

    #[tokio::test]
    async fn a_message_after_a_clock_step_back_is_heeded() {
        let (queues, owners) = queue_of(1);
        queues.on_reply(&owners[0], &reply(1000), || true);
        assert!(queues.known_reply(&owners[0]).is_some());
        queues.on_message("next 0 500 1 n", None);
        lock_core::clock::sleep(ROUNDING * 2).await;
        assert!(queues.known_reply(&owners[0]).is_none(), "it has to check");
        assert_eq!(queues.wait_event(&owners[0], false).await, WaitEvent::Retry);
    }

    #[test]
    fn a_late_reply_keeps_the_watcher() {
        let (queues, owners) = queue_of(1);
        let late = QueueReply { is_next: false, ..reply(8) };
        queues.on_message("next 60000 1000 1 n", None);
        queues.on_reply(&owners[0], &late, || true);
        assert!(queues.known_reply(&owners[0]).is_some_and(|expires_in| expires_in.is_some()));
    }

    #[test]
    fn frequent_polls_do_not_keep_longer_entries() {
        let (queues, owners) = queue_of(1);
        let hasty = enter(&queues, LEASE / 60);
        // A lease later, but for the hasty one's answers nothing was heard since.
        let mut table = queues.table();
        let lock = table.locks.get_mut("n").unwrap();
        lock.entries_until =
            lock.entries_until.map(|entries_until| entries_until.saturating_sub(LEASE));
        drop(table);
        queues.on_reply(&hasty, &reply(2), || true);
        assert!(queues.known_reply(&hasty).is_some());
        assert!(queues.known_reply(&owners[0]).is_none(), "its place would lapse before it asks");
    }

    #[test]
    fn a_grant_is_given_back_unless_its_owner_waits_or_holds() {
        let (queues, owners) = queue_of(3);
        let strange = OwnerId::mint();
        let is_given_back = |grant: &str| queues.on_message(grant, said(1)).is_some();
        assert!(is_given_back(&grant(&strange, 9)));
        assert!(!is_given_back(&grant(&owners[0], 9)));
        let of_another_lock = grant(&owners[1], 9).replace(" n", " m");
        assert!(is_given_back(&of_another_lock));
        assert!(queues.known_reply(&owners[1]).is_none(), "it has to look where it stands");
        // A connection that was given up may bring a grant that another one has shown already.
        queues.hold(&owners[2]);
        assert!(!is_given_back(&grant(&owners[2], 9)));
        assert!(is_given_back(&grant(&owners[2], 9).replace(" n", " m")));
        queues.leave(&owners[2]);
        assert!(is_given_back(&grant(&owners[2], 9)));
    }

    #[test]
    fn a_claim_that_leaves_leaves_no_state() {
        let (queues, owners) = queue_of(3);
        owners.iter().for_each(|owner| queues.leave(owner));
        assert!(queues.is_empty());
    }
}
