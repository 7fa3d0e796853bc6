//! Those of this process who stand in line on the server, and what is known there of their locks.
//!
//! A place is as good as the connection on which it was confirmed: what the server sends while that is away
//! is lost. So whoever has a place need not ask again, but for one of them in each lease, for all; and
//! whoever may have lost it has to.
//!
//! The table is as large as the number of claims that wait, and core bounds those. It holds owner ids as the
//! server has them, so nothing of it can be shown.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Claim, QUEUE_ENTRY_GRACE};
use lock_core::clock::{Moment, sleep_until};
use lock_core::{FencingToken, Label, OwnerId};
use tokio::sync::Notify;

use crate::clock::Said;
use crate::owners::ByOwner;
use crate::value::shown;

/// What the server counts in milliseconds may last that much longer.
const ROUNDING: Duration = Duration::from_millis(1);

/// How long an owner that was queued is known as the holder, unless it releases before. No
/// connection delivers a grant later than that.
const REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Lines(Mutex<Table>);

#[derive(Default)]
struct Table {
    waiters: ByOwner<Waiter>,
    locks: HashMap<Arc<str>, Lock>,
    /// Owners that were queued for this lock and have it, until these moments. Their grants may
    /// still arrive.
    holders: ByOwner<(Arc<str>, Moment)>,
    /// How many have come so far.
    came: u64,
}

struct Waiter {
    /// Under this number it is in [`Lock::owners`].
    came: u64,
    lock: Arc<str>,
    member: Member,
    /// The number of its arrival, by which it gets its place again.
    arrival: Option<u64>,
    standing: Standing,
    /// The connection on which it was told so last.
    connection: u64,
    /// Since it waits to be called.
    wake: Option<Arc<Notify>>,
}

enum Standing {
    /// It has to ask.
    Unknown,
    /// It stood in line at this time of the server.
    Placed(u64),
    /// It was sent the lock at this time of the server. `None`: it has taken it, or has to ask.
    Sent(Heard, Option<Sent>),
}

/// When something was true, as far as that is known: the server's clock may be set back.
#[derive(Clone, Copy)]
struct Heard {
    /// By the server's clock, in µs.
    at: u64,
    arrived: Moment,
}

/// A lock that was sent to its next owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) number: u64,
    pub(crate) lease: Duration,
    pub(crate) since: Moment,
}

/// What is known of a lock that is waited for.
#[derive(Default)]
struct Lock {
    /// Whoever came first stands first.
    owners: VecDeque<(u64, OwnerId)>,
    /// When the last answer was asked for.
    asked: Option<Moment>,
    /// Until when the places of this process last: some waiters have longer leases than others.
    lasts: Option<Moment>,
    /// When they may have been lost last. An answer from before says nothing of a place, however late it is read.
    lost: Option<Heard>,
    /// When what follows was true.
    as_of: Option<Heard>,
    /// When the holder's lease ends, if it is not renewed.
    lapses: Option<Moment>,
    holder_is_ours: bool,
    /// Who is to look when the lease ends: one of each of the first two processes in line, and one of another
    /// process after the lock was sent to somebody.
    watcher: Option<OwnerId>,
    /// One asks for all.
    turn: Option<Arc<tokio::sync::Mutex<()>>>,
}

/// What a waiter takes along when it asks.
pub(crate) struct Place {
    pub(crate) member: Member,
    pub(crate) arrival: Option<u64>,
}

/// What stands in the queue for a claim, and in no other place: see `line.lua`.
#[derive(Clone)]
pub(crate) struct Member {
    owner: OwnerId,
    channel: Arc<str>,
    ttl: Duration,
    min_token: Option<FencingToken>,
    label: Option<Label>,
}

/// The answer of the server to who has to wait.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) asked: Moment,
    /// On this connection.
    pub(crate) connection: u64,
    /// The server's time in µs.
    pub(crate) now: u64,
    pub(crate) arrival: u64,
    pub(crate) expires_in: Option<Duration>,
    pub(crate) holder_is_ours: bool,
    /// One of the first two processes in line is this one.
    pub(crate) is_next: bool,
    /// The server had forgotten the process: other places may be gone.
    pub(crate) is_new: bool,
    /// It had a place, and that was gone.
    pub(crate) is_back: bool,
}

/// A lock that was granted to an owner which does not wait for it here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclaimed {
    pub(crate) lock: Box<str>,
    pub(crate) owner: OwnerId,
    /// Its stale entries arrived by then, in µs of the server's clock.
    pub(crate) arrived_by: u64,
    /// The owners of this client that wait for the lock, one after the other.
    pub(crate) waiting: String,
}

/// Why a wait in line ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Called {
    Look,
    Sent(Sent),
}

impl Told {
    /// What had arrived before this was asked for is older, whatever the clock says.
    fn is_newer_than(&self, when: Heard) -> bool {
        self.now > when.at || when.arrived < self.asked
    }
}

impl Lines {
    /// The claim waits for what stands under the key `lock`: known from before its first attempt on, since
    /// the lock may be sent before the answer is read. False if it does already.
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
        let waiter = Waiter {
            came,
            lock,
            member: Member::of(claim, channel),
            arrival: None,
            standing: Standing::Unknown,
            connection: 0,
            wake: None,
        };
        table.waiters.insert(claim.owner, waiter);
        true
    }

    /// The claim does not wait any more, nor hold its lock.
    pub(crate) fn leave(&self, owner: &OwnerId) {
        let mut table = self.table();
        table.holders.remove(owner);
        table.leave(owner);
    }

    /// The claim was queued and has its lock.
    pub(crate) fn hold(&self, owner: &OwnerId) {
        let mut table = self.table();
        if let Some(waiter) = table.leave(owner) {
            table.holders.retain(|_, (_, until)| !until.has_passed());
            table.holders.insert(*owner, (waiter.lock, Moment::now() + REMEMBERED));
        }
    }

    /// True if the claim has never been given a place, and nobody else of this process waits for its lock.
    pub(crate) fn is_first(&self, owner: &OwnerId) -> bool {
        let table = self.table();
        let waiter = table.waiters.get(owner).filter(|waiter| waiter.arrival.is_none());
        let lock = waiter.and_then(|waiter| table.locks.get(&waiter.lock));
        lock.is_some_and(|lock| lock.owners.len() == 1)
    }

    /// The channels on which those who wait are to be told.
    pub(crate) fn channels(&self) -> HashSet<Arc<str>> {
        let table = self.table();
        table.waiters.values().map(|waiter| waiter.member.channel()).collect()
    }

    pub(crate) fn place(&self, owner: &OwnerId) -> Option<Place> {
        let table = self.table();
        let waiter = table.waiters.get(owner)?;
        Some(Place { member: waiter.member.clone(), arrival: waiter.arrival })
    }

    /// To be held while asking: for those who may find that another one has asked meanwhile.
    pub(crate) fn turn(&self, owner: &OwnerId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut table = self.table();
        let Table { waiters, locks, .. } = &mut *table;
        let waiter = waiters.get(owner)?;
        let Standing::Placed(_) = waiter.standing else { return None };
        Some(Arc::clone(locks.get_mut(&waiter.lock)?.turn.get_or_insert_default()))
    }

    /// What the server would answer, if that is known: the claim has its place, somebody of this process has
    /// asked within a lease, and its places last for another one. When the holder's lease ends is for the watcher to see to.
    pub(crate) fn answer(&self, owner: &OwnerId) -> Option<Option<Duration>> {
        let table = self.table();
        let waiter = table.waiters.get(owner)?;
        let Standing::Placed(_) = waiter.standing else { return None };
        let lock = table.locks.get(&waiter.lock)?;
        let ttl = waiter.member.ttl;
        let stays = ttl + QUEUE_ENTRY_GRACE;
        if (lock.asked? + ttl).has_passed() || lock.lasts? < Moment::now() + stays {
            return None;
        }
        match lock.lapses.filter(|_| lock.watcher == Some(*owner)) {
            Some(lapses) if lapses.has_passed() => None,
            lapses => Some(lapses.map(Moment::remaining)),
        }
    }

    /// The server has told the claim to wait. `is_alive` says whether the connection that brought the answer
    /// is still good; if it breaks later, [`lose_places`](Self::lose_places) follows.
    pub(crate) fn stands(&self, owner: &OwnerId, told: &Told, is_alive: impl Fn() -> bool) {
        let mut table = self.table();
        let Table { waiters, locks, .. } = &mut *table;
        let Some(waiter) = waiters.get_mut(owner) else { return };
        waiter.arrival = Some(told.arrival);
        waiter.connection = told.connection;
        // If it was sure of its place, so are others who have lost theirs.
        let was_wrong = told.is_back && matches!(waiter.standing, Standing::Placed(_));
        let Some(lock) = locks.get_mut(&waiter.lock) else { return };
        let is_late = lock.lost.is_some_and(|when| !told.is_newer_than(when));
        match waiter.standing {
            // It was sent the lock after this answer was made.
            Standing::Sent(when, _) if !told.is_newer_than(when) => {}
            _ if is_alive() && !is_late => waiter.standing = Standing::Placed(told.now),
            _ => waiter.standing = Standing::Unknown,
        }
        lock.asked = lock.asked.max(Some(told.asked));
        let before = lock.lasts.filter(|_| !told.is_new);
        let ttl = waiter.member.ttl;
        if !is_late {
            lock.lasts = before.max(Some(told.asked + ttl + ttl + QUEUE_ENTRY_GRACE));
        }
        if lock.as_of.is_none_or(|when| told.is_newer_than(when) || told.now == when.at) {
            lock.as_of = Some(Heard { at: told.now, arrived: Moment::now() });
            lock.holder_is_ours = told.holder_is_ours;
            lock.lapses = told.expires_in.map(|left| Moment::now() + left + ROUNDING);
        }
        match lock.watcher {
            None if told.is_next => lock.watcher = Some(*owner),
            // It has looked.
            Some(watcher) if watcher == *owner && !told.is_next => lock.watcher = None,
            _ => {}
        }
        if told.is_new || was_wrong {
            lock.loses_places_before(told.now, waiters);
        }
    }

    /// Nothing is known any more of the place of this claim: it asked, and there was no answer, or an error.
    pub(crate) fn doubt(&self, owner: &OwnerId) {
        if let Some(waiter) = self.table().waiters.get_mut(owner) {
            waiter.loses_place_before(u64::MAX);
        }
    }

    /// Nothing is known any more of the places of this process in the line of this claim.
    pub(crate) fn doubt_all(&self, owner: &OwnerId) {
        let mut table = self.table();
        let Table { waiters, locks, .. } = &mut *table;
        let lock = waiters.get(owner).and_then(|waiter| locks.get_mut(&waiter.lock));
        if let Some(lock) = lock {
            lock.loses_places_before(u64::MAX, waiters);
        }
    }

    /// A connection is gone: what was sent since is lost, and every waiter that has its place by it has to look
    /// once.
    pub(crate) fn lose_places(&self, connection: u64) {
        let mut table = self.table();
        let waiters = table.waiters.values_mut();
        let mut lost: Vec<_> = waiters.filter(|waiter| waiter.connection == connection).collect();
        // In an order: what happens is to be repeatable.
        lost.sort_unstable_by_key(|waiter| waiter.came);
        lost.into_iter().for_each(|waiter| waiter.loses_place_before(u64::MAX));
    }

    /// The claim is the watcher, and the lock is held by somebody who does not tell us when it is free.
    pub(crate) fn has_to_watch(&self, owner: &OwnerId) -> bool {
        let table = self.table();
        let lock = table.waiters.get(owner).and_then(|waiter| table.locks.get(&waiter.lock));
        lock.is_some_and(|lock| lock.watcher == Some(*owner) && !lock.holder_is_ours)
    }

    /// Waits until the lock is sent to the claim, or until it has to ask, or to watch if it does not yet.
    ///
    /// Cancel safe: what is sent and not taken is kept, for the next call or until it is asked for.
    pub(crate) async fn called(&self, owner: &OwnerId, watches: bool) -> Called {
        loop {
            let (wake, lapses) = {
                let mut table = self.table();
                let Table { waiters, locks, .. } = &mut *table;
                let Some(waiter) = waiters.get_mut(owner) else { return Called::Look };
                match waiter.standing {
                    Standing::Unknown => return Called::Look,
                    Standing::Sent(when, sent) => {
                        waiter.standing = Standing::Sent(when, None);
                        return sent.map_or(Called::Look, Called::Sent);
                    }
                    Standing::Placed(_) => {}
                }
                let lock = locks.get(&waiter.lock).filter(|lock| lock.watcher == Some(*owner));
                if !watches && lock.is_some_and(|lock| !lock.holder_is_ours) {
                    return Called::Look;
                }
                (Arc::clone(waiter.wake.get_or_insert_default()), lock.and_then(|lock| lock.lapses))
            };
            let lapsed = async {
                match lapses {
                    Some(lapses) => sleep_until(lapses).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = lapsed => return Called::Look,
            }
        }
    }

    /// Handles a message of the server, which may be dated by an earlier answer on the same
    /// connection. Returns the lock to give back, if its new owner does not wait for it here.
    pub(crate) fn hear(&self, message: &str, clock: Option<Said>) -> Option<Unclaimed> {
        let arrived = Moment::now();
        // A key comes last: it may contain spaces.
        let (verb, rest) = message.split_once(' ')?;
        let parts = if verb == "grant" { 6 } else { 4 };
        let words: Vec<_> = rest.splitn(parts, ' ').collect();
        let mut table = self.table();
        match (verb, &words[..]) {
            ("grant", &[owner, number, lease, now, arrived_by, lock]) => {
                let (owner, number, now) =
                    (owner.parse().ok()?, number.parse().ok()?, now.parse().ok()?);
                let lease = Duration::from_millis(lease.parse().ok()?);
                if table.is_unclaimed(lock, &owner) {
                    let waiting = table.locks.get(lock).into_iter().flat_map(|lock| &lock.owners);
                    let waiting = waiting.map(|(_, owner)| owner.expose()).collect();
                    let arrived_by = arrived_by.parse().ok()?;
                    return Some(Unclaimed { lock: lock.into(), owner, arrived_by, waiting });
                }
                table.is_sent(owner, number, lease, now, clock, arrived);
            }
            ("next", &[left, now, is_ours, lock]) => {
                let (left, now) = (left.parse::<i64>().ok()?, now.parse().ok()?);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                let Table { waiters, locks, .. } = &mut *table;
                let lock = locks.get_mut(lock)?;
                lock.lapses_at(now, left.map(|left| arrived + left), is_ours == "1");
                lock.appoint_watcher(waiters);
            }
            _ => {}
        }
        None
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let table = self.table();
        table.waiters.is_empty() && table.locks.is_empty() && table.holders.is_empty()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Removes the claim from those that wait.
    fn leave(&mut self, owner: &OwnerId) -> Option<Waiter> {
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
                waiter.loses_place_before(u64::MAX);
                true
            }
            None => !holds,
        }
    }

    fn is_sent(
        &mut self,
        owner: OwnerId,
        number: u64,
        lease: Duration,
        now: u64,
        clock: Option<Said>,
        arrived: Moment,
    ) {
        let Some(waiter) = self.waiters.get_mut(&owner) else { return };
        let since = clock.and_then(|clock| clock.local(now, waiter.member.ttl));
        let sent = since
            .map(|since| Sent { number, lease, since: since.min(arrived) })
            // What comes too late may not be there any more.
            .filter(|sent| !(sent.since + lease).has_passed());
        waiter.standing = Standing::Sent(Heard { at: now, arrived }, sent);
        waiter.wake();
        if let Some(lock) = self.locks.get_mut(&waiter.lock) {
            lock.lapses_at(now, Some(arrived + lease), true);
            lock.appoint_watcher(&self.waiters);
        }
    }
}

impl Lock {
    /// At the server's time `now`, the holder's lease ended then.
    fn lapses_at(&mut self, now: u64, lapses: Option<Moment>, holder_is_ours: bool) {
        if self.as_of.is_none_or(|when| now >= when.at) {
            self.as_of = Some(Heard { at: now, arrived: Moment::now() });
            self.lapses = lapses.map(|lapses| lapses + ROUNDING);
            self.holder_is_ours |= holder_is_ours;
        }
    }

    /// Whoever has a place that was confirmed before the server's time `now` has to ask for it.
    fn loses_places_before(&mut self, now: u64, waiters: &mut ByOwner<Waiter>) {
        // Answers may be read out of order: what was in doubt stays so.
        let at = self.lost.map_or(now, |before| before.at.max(now));
        self.lost = Some(Heard { at, arrived: Moment::now() });
        for (_, owner) in &self.owners {
            if let Some(waiter) = waiters.get_mut(owner) {
                waiter.loses_place_before(now);
            }
        }
    }

    /// Any waiter will do, but not one that was sent the lock, or has left.
    fn appoint_watcher(&mut self, waiters: &ByOwner<Waiter>) {
        let waits = |owner: &&OwnerId| {
            waiters.get(owner).is_some_and(|waiter| !matches!(waiter.standing, Standing::Sent(..)))
        };
        let owners = self.owners.iter().map(|(_, owner)| owner);
        self.watcher = self.watcher.iter().chain(owners).find(waits).copied();
        if let Some(waiter) = self.watcher.and_then(|owner| waiters.get(&owner)) {
            waiter.wake();
        }
    }
}

impl Waiter {
    /// Has it look how it stands. Who is not there yet looks when it comes.
    fn wake(&self) {
        if let Some(wake) = &self.wake {
            wake.notify_one();
        }
    }

    fn loses_place_before(&mut self, now: u64) {
        if matches!(self.standing, Standing::Placed(at) if at < now) {
            self.standing = Standing::Unknown;
            self.wake();
        }
    }
}

impl Member {
    pub(crate) fn of(claim: &Claim, channel: Arc<str>) -> Self {
        let Claim { owner, ttl, min_token, ref label, .. } = *claim;
        Self { owner, channel, ttl, min_token, label: label.clone() }
    }

    /// Where it is told.
    pub(crate) fn channel(&self) -> Arc<str> {
        Arc::clone(&self.channel)
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, channel, ttl, min_token, label } = self;
        write!(f, "{} {channel} {} ", owner.expose(), crate::backend::millis(*ttl))?;
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

    /// A table, and those who stand in one line of it, placed one after the other.
    fn line_of(waiters: u64) -> (Lines, Vec<OwnerId>) {
        let lines = Lines::default();
        let owners = (1..=waiters).map(|now| {
            let owner = enter(&lines, LEASE);
            lines.stands(&owner, &told(now), || true);
            owner
        });
        let owners = owners.collect();
        (lines, owners)
    }

    fn enter(lines: &Lines, lease: Duration) -> OwnerId {
        let mut claim = Claim::new(LockName::new("n").unwrap(), OwnerId::mint(), lease);
        claim.on_contention = lock_core::backend::OnContention::Queue;
        lines.enter(&claim, "n", "c".into());
        claim.owner
    }

    fn told(now: u64) -> Told {
        Told {
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

    fn said(said: u64) -> Option<Said> {
        Some(Said { asked: Moment::now(), said })
    }

    #[tokio::test]
    async fn what_is_sent_before_the_answer_is_read_is_not_lost() {
        let (lines, owners) = line_of(1);
        let late = told(8);
        lines.hear(&grant(&owners[0], 9), said(1));
        // Made before the lock was sent, and read after that.
        lines.stands(&owners[0], &late, || true);
        assert!(lines.answer(&owners[0]).is_none(), "it has to take it, or ask");
        assert!(matches!(
            lines.called(&owners[0], false).await,
            Called::Sent(Sent { number: 7, .. })
        ));
        assert!(lines.answer(&owners[0]).is_none(), "it may have to confirm it");
        assert_eq!(lines.called(&owners[0], false).await, Called::Look, "it is taken once");
        // What was sent has lapsed, and it waits again.
        lines.stands(&owners[0], &told(10), || true);
        assert!(lines.answer(&owners[0]).is_some());
    }

    #[test]
    fn one_of_a_process_watches() {
        let (lines, owners) = line_of(3);
        let watchers = || {
            let lapses =
                |owner: &&OwnerId| lines.answer(owner).is_some_and(|lapses| lapses.is_some());
            owners.iter().filter(lapses).copied().collect::<Vec<_>>()
        };
        assert_eq!(watchers(), [owners[0]]);
        lines.leave(&owners[0]);
        assert_eq!(watchers().len(), 1);
        // Whoever is sent the lock does not watch any more.
        let watcher = watchers()[0];
        lines.hear(&grant(&watcher, 9), said(1));
        assert_eq!(watchers().len(), 1);
        assert_ne!(watchers(), [watcher]);
    }

    #[test]
    fn a_process_that_was_forgotten_asks_for_each_place() {
        let (lines, owners) = line_of(3);
        let mut told = told(10);
        told.is_new = true;
        lines.stands(&owners[1], &told, || true);
        let known = owners.iter().map(|owner| lines.answer(owner).is_some()).collect::<Vec<_>>();
        assert_eq!(known, [false, true, false]);
        lines.stands(&owners[0], &self::told(11), || true);
        lines.lose_places(2);
        assert!(lines.answer(&owners[0]).is_some(), "another connection is gone");
        lines.lose_places(1);
        assert!(owners.iter().all(|owner| lines.answer(owner).is_none()));
        lines.stands(&owners[0], &told, || false);
        assert!(lines.answer(&owners[0]).is_none(), "the connection was lost meanwhile");
        assert_eq!(lines.place(&owners[0]).unwrap().arrival, Some(10));
    }

    #[test]
    fn an_answer_that_is_read_after_places_were_lost_is_no_place() {
        let (lines, owners) = line_of(2);
        let late = || told(8);
        let (read_late, read_too_late) = (late(), late());
        let mut forgotten = told(10);
        forgotten.is_new = true;
        lines.stands(&owners[0], &forgotten, || true);
        lines.stands(&owners[1], &read_late, || true);
        assert!(
            lines.answer(&owners[1]).is_none(),
            "its place was lost after that answer was made"
        );
        lines.stands(&owners[1], &told(11), || true);
        assert!(lines.answer(&owners[1]).is_some());
        // Somebody else has asked, and what came of it is not known.
        lines.doubt_all(&owners[0]);
        lines.stands(&owners[1], &read_too_late, || true);
        assert!(lines.answer(&owners[1]).is_none());
        lines.stands(&owners[1], &told(12), || true);
        assert!(lines.answer(&owners[1]).is_some());
    }

    #[test]
    fn what_is_read_late_makes_no_loss_earlier() {
        let forgotten = |now: u64| Told { is_new: true, ..told(now) };
        let (late, read_too_late, older) = (told(9), told(9), forgotten(8));
        let (lines, owners) = line_of(3);
        lines.stands(&owners[2], &forgotten(10), || true);
        lines.stands(&owners[0], &older, || true);
        lines.stands(&owners[1], &late, || true);
        assert!(lines.answer(&owners[1]).is_none(), "its place was lost at 10");
        let (lines, owners) = line_of(2);
        lines.doubt_all(&owners[0]);
        lines.stands(&owners[0], &older, || true);
        lines.stands(&owners[1], &read_too_late, || true);
        assert!(lines.answer(&owners[1]).is_none(), "its place was in doubt");
        lines.stands(&owners[1], &told(12), || true);
        assert!(lines.answer(&owners[1]).is_some());
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_makes_nobody_ask_for_ever() {
        let (lines, owners) = line_of(2);
        // What one was sent is over, and so is the lease of which the other one was told.
        lines.hear(&grant(&owners[1], 1000), None);
        lines.hear("next 0 1000 1 n", None);
        lock_core::clock::sleep(ROUNDING * 2).await;
        assert!(owners.iter().all(|owner| lines.answer(owner).is_none()));
        for owner in &owners {
            lines.stands(owner, &told(500), || true);
            assert!(lines.answer(owner).is_some(), "it has just been told");
        }
    }

    #[test]
    fn who_asks_more_often_does_not_keep_the_places_of_the_patient() {
        let (lines, owners) = line_of(1);
        let hasty = enter(&lines, LEASE / 60);
        // A lease later, but for the hasty one's answers nothing was heard since.
        let mut table = lines.table();
        let lock = table.locks.get_mut("n").unwrap();
        lock.lasts = lock.lasts.map(|lasts| lasts.saturating_sub(LEASE));
        drop(table);
        lines.stands(&hasty, &told(2), || true);
        assert!(lines.answer(&hasty).is_some());
        assert!(lines.answer(&owners[0]).is_none(), "its place would lapse before it asks");
    }

    #[test]
    fn a_grant_is_given_back_unless_its_owner_waits_for_that_lock_or_holds_it() {
        let (lines, owners) = line_of(3);
        let strange = OwnerId::mint();
        let is_given_back = |grant: &str| lines.hear(grant, said(1)).is_some();
        assert!(is_given_back(&grant(&strange, 9)));
        assert!(!is_given_back(&grant(&owners[0], 9)));
        let of_another_lock = grant(&owners[1], 9).replace(" n", " m");
        assert!(is_given_back(&of_another_lock));
        assert!(lines.answer(&owners[1]).is_none(), "it has to look where it stands");
        // A connection that was given up may bring a grant that another one has shown already.
        lines.hold(&owners[2]);
        assert!(!is_given_back(&grant(&owners[2], 9)));
        assert!(is_given_back(&grant(&owners[2], 9).replace(" n", " m")));
        lines.leave(&owners[2]);
        assert!(is_given_back(&grant(&owners[2], 9)));
    }

    #[test]
    fn who_leaves_leaves_nothing() {
        let (lines, owners) = line_of(3);
        owners.iter().for_each(|owner| lines.leave(owner));
        assert!(lines.is_empty());
    }
}
