//! Locks inside one process: the reference backend.
//!
//! It keeps every promise that the trait knows, first come first served with direct hand-off, runs
//! on a paused clock, and shows what a backend has to do when nothing is in the way. For tests, for
//! single-process programs, and as the yardstick of the conformance suite.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, Holder, Identity, Lease, LetGo, Listed,
    LockState, PLACE_LASTS, Release, Renewal, Wake,
};
use crate::capabilities::{Capabilities, Fencing, Order, Reach, Support, Takeover, Wakeup};
use crate::clock::{Moment, sleep_until, wall};
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::token::FencingToken;

/// The lease of a lock that was handed to a waiter, until the waiter renews it: a waiter that has
/// died meanwhile holds up the line no longer than this.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

/// How long a claim that was let go is remembered, so that an attempt of it which arrives late is
/// refused. Longer than any attempt stays on its way.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// From one look for lapsed locks to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// A lock space in memory. Clones are clients of the same space.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    space: Arc<Space>,
}

#[derive(Debug)]
struct Space {
    id: OwnerId,
    born: Moment,
    locks: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    by_name: HashMap<LockName, Entry>,
    last_number: u64,
    tombstones: VecDeque<(Moment, OwnerId)>,
    /// Waiters to be woken once this is unlocked: a waker may run anything.
    woken: Vec<Arc<Notify>>,
    /// When, or at how many names, to look for locks that lapsed unseen.
    sweep_after: Option<Moment>,
    sweep_at: usize,
}

/// A lock that is held or waited for.
#[derive(Debug, Default)]
struct Entry {
    held: Option<Held>,
    line: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Held {
    owner: OwnerId,
    label: Option<Label>,
    token: FencingToken,
    since: Moment,
    until: Moment,
    /// Let go already, and kept from others until the minimum hold is over.
    parted: bool,
}

#[derive(Debug)]
struct Waiter {
    owner: OwnerId,
    label: Option<Label>,
    ttl: Duration,
    /// When its place lapses, unless it attempts again.
    until: Moment,
    wake: Arc<Notify>,
}

impl Default for Space {
    fn default() -> Self {
        Self { id: OwnerId::mint(), born: Moment::now(), locks: Mutex::default() }
    }
}

impl Memory {
    /// A lock space of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets every lock, every waiter and every claim that was let go, as a server does that
    /// restarts without its data. Tokens go on growing.
    pub fn lose_data(&self) {
        let mut locks = self.locks();
        // In the order of names, so that a simulation can be repeated.
        let entries: BTreeMap<_, _> = std::mem::take(&mut locks.by_name).into_iter().collect();
        let waiters = entries.into_values().flat_map(|entry| entry.line);
        locks.woken.extend(waiters.map(|waiter| waiter.wake));
        locks.tombstones.clear();
    }

    /// Removes one lock by hand, whoever holds it, as an operator or an eviction would.
    pub fn evict(&self, name: &LockName) {
        let mut locks = self.locks();
        if let Some(entry) = locks.by_name.get_mut(name) {
            entry.held = None;
        }
        locks.settle(name, Moment::now());
    }

    /// How many names have an entry: held or waited for, or lapsed not long ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks().by_name.len()
    }

    /// True if nothing is held and nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn locks(&self) -> Open<'_> {
        Open(Some(self.space.locks.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The locks, until it is dropped; then those are woken for whom something has changed.
struct Open<'a>(Option<MutexGuard<'a, Locks>>);

impl Deref for Open<'_> {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        self.0.as_ref().expect("open until it is dropped")
    }
}

impl DerefMut for Open<'_> {
    fn deref_mut(&mut self) -> &mut Locks {
        self.0.as_mut().expect("open until it is dropped")
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let woken = std::mem::take(&mut self.woken);
        self.0 = None;
        woken.iter().for_each(|wake| wake.notify_one());
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            backend: "memory",
            fencing: Fencing::Seeded,
            order: Order::Fifo,
            wakeup: Wakeup::HandOff,
            reach: Reach::Process,
            ttl_min: Duration::from_millis(1),
            ttl_max: Duration::from_secs(365 * 24 * 3600),
            margin: Duration::ZERO,
            takeover: Takeover::LeasePlus(Duration::from_millis(50)),
            detached: Support::Present,
            minimum_hold: Support::Present,
            late_attempts_refused: Support::Present,
            raisable: Support::Present,
            inspecting: Support::Present,
            listing: Support::Present,
            breaking: Support::Present,
        }
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let up_for = Moment::now().saturating_since(self.space.born);
        Ok(Some(Identity::new(self.space.id.short(), Some(up_for))))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let now = Moment::now();
        self.locks().attempt(claim, now)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        loop {
            let (wake, until) = {
                let mut locks = self.locks();
                locks.settle(&claim.name, Moment::now());
                let Some(entry) = locks.by_name.get(&claim.name) else {
                    return Ok(Wake::Look);
                };
                if let Some(held) = entry.held_by(&claim.owner) {
                    return Ok(Wake::Granted(held.grant(held.since)));
                }
                match entry.line.iter().find(|waiter| waiter.owner == claim.owner) {
                    Some(waiter) => {
                        (Arc::clone(&waiter.wake), entry.held.as_ref().map(|held| held.until))
                    }
                    None => return Ok(Wake::Look),
                }
            };
            // A notification that comes before this is stored.
            // Or, when the lease ends, see to it that the next one is served.
            let at_end = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = wake.notified() => {}
                () = at_end => {}
            }
        }
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let now = Moment::now();
        let mut locks = self.locks();
        claims.iter().map(|claim| Ok(locks.renew(claim, now))).collect()
    }

    async fn release(&self, claim: &Claim, how: LetGo) -> Result<Release, Fault> {
        let now = Moment::now();
        Ok(self.locks().release(claim, how, now))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let now = Moment::now();
        let mut locks = self.locks();
        locks.settle(name, now);
        Ok(locks
            .by_name
            .get(name)
            .map_or_else(|| LockState::new(Vec::new(), Some(0)), |entry| entry.state(now)))
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let now = Moment::now();
        let mut locks = self.locks();
        let mut names: Vec<LockName> = locks
            .by_name
            .keys()
            .filter(|name| {
                name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after)
            })
            .cloned()
            .collect();
        names.sort_unstable();
        names.iter().for_each(|name| locks.settle(name, now));
        let held = names.into_iter().filter_map(|name| {
            let state = locks.by_name.get(&name).filter(|entry| entry.held.is_some())?.state(now);
            Some(Listed::new(name, state))
        });
        Ok(held.take(limit).collect())
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let now = Moment::now();
        let mut locks = self.locks();
        locks.settle(name, now);
        let Some(entry) = locks.by_name.get_mut(name) else {
            return Ok(false);
        };
        let ours = entry.held.take_if(|held| held.owner == *expected);
        locks.settle(name, now);
        Ok(ours.is_some())
    }
}

impl Locks {
    fn attempt(&mut self, claim: &Claim, now: Moment) -> Result<Attempt, Fault> {
        if self.tombstones.iter().any(|(_, owner)| *owner == claim.owner) {
            return Err(Fault::not_applied(FaultKind::Invalid, "this claim was let go before"));
        }
        self.settle(&claim.name, now);
        let number = self.next_number(claim.floor);
        let Some(entry) = self.by_name.get_mut(&claim.name) else {
            let token = number?;
            self.last_number = token.backend_number();
            let held = Held::new(&Waiter::of(claim, now), token, now, claim.ttl);
            let grant = held.grant(now);
            self.by_name.insert(claim.name.clone(), Entry::held_as(held));
            self.sweep(now);
            return Ok(Attempt::Acquired(grant));
        };
        match &mut entry.held {
            Some(held) if held.owner == claim.owner && !held.parted => {
                held.until = held.until.max(now + claim.ttl);
                if claim.floor.is_some_and(|floor| held.token <= floor) {
                    held.token = number?;
                    self.last_number = held.token.backend_number();
                }
                Ok(Attempt::Acquired(held.grant(now)))
            }
            held => {
                let lapses_in = held.as_ref().map(|held| held.until.saturating_since(now));
                let in_line = entry.line.iter_mut().find(|waiter| waiter.owner == claim.owner);
                match in_line {
                    Some(waiter) => waiter.until = Waiter::lasts(claim, now),
                    None if claim.queue => entry.line.push_back(Waiter::of(claim, now)),
                    None => {}
                }
                Ok(Attempt::Contended { lapses_in })
            }
        }
    }

    fn renew(&mut self, claim: &Claim, now: Moment) -> Renewal {
        self.settle(&claim.name, now);
        let entry = self.by_name.get_mut(&claim.name);
        let held = entry.and_then(|entry| entry.held.as_mut());
        match held.filter(|held| held.owner == claim.owner && !held.parted) {
            Some(held) => {
                held.until = held.until.max(now + claim.ttl);
                Renewal::Held(held.grant(now))
            }
            None => Renewal::NotHeld,
        }
    }

    fn release(&mut self, claim: &Claim, how: LetGo, now: Moment) -> Release {
        if how.uncertain {
            self.bury(claim.owner, now);
        }
        self.settle(&claim.name, now);
        let Some(entry) = self.by_name.get_mut(&claim.name) else {
            return Release::NotHeld;
        };
        let ours = entry.held.as_mut().filter(|held| held.owner == claim.owner && !held.parted);
        let answer = match (ours, how.keep) {
            (None, _) => {
                entry.line.retain(|waiter| waiter.owner != claim.owner);
                Release::NotHeld
            }
            (Some(held), Some(keep)) => {
                held.until = now + keep;
                held.parted = true;
                // The end that the waiters know of has moved.
                self.woken.extend(entry.line.iter().map(|waiter| Arc::clone(&waiter.wake)));
                Release::Released
            }
            (Some(_), None) => {
                entry.held = None;
                Release::Released
            }
        };
        self.settle(&claim.name, now);
        answer
    }

    /// Brings one lock up to date: ends a lease that is over, hands a free lock to the first in
    /// line, forgets a lock that nobody holds or waits for.
    fn settle(&mut self, name: &LockName, now: Moment) {
        let Some(entry) = self.by_name.get_mut(name) else {
            return;
        };
        entry.held.take_if(|held| held.until <= now);
        if entry.held.is_none() {
            while entry.line.front().is_some_and(|waiter| waiter.until <= now) {
                entry.line.pop_front();
            }
            let Some(next) = entry.line.pop_front() else {
                self.by_name.remove(name);
                return;
            };
            self.woken.push(Arc::clone(&next.wake));
            // Without a number to give, the waiter finds out by its own next attempt.
            if let Ok(token) = self.next_number(None) {
                self.last_number = token.backend_number();
                if let Some(entry) = self.by_name.get_mut(name) {
                    entry.held = Some(Held::new(&next, token, now, next.ttl.min(CLAIM_LEASE)));
                }
            }
        }
    }

    /// Forgets locks that lapsed and were not looked at since: when the names may have doubled, and at
    /// most once a minute otherwise.
    fn sweep(&mut self, now: Moment) {
        let due = self.sweep_after.is_none_or(|after| after <= now);
        if !due && self.by_name.len() < self.sweep_at {
            return;
        }
        self.sweep_after = Some(now + SWEEP_EVERY);
        let over = |entry: &Entry| entry.held.as_ref().is_some_and(|held| held.until <= now);
        let waits = |entry: &Entry| entry.line.iter().any(|waiter| waiter.until > now);
        self.by_name.retain(|_, entry| waits(entry) || !over(entry));
        self.sweep_at = (2 * self.by_name.len()).max(64);
    }

    /// At least the wall clock in microseconds, and more than every number before.
    fn next_number(&self, floor: Option<FencingToken>) -> Result<FencingToken, Fault> {
        let clock = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
        let floor = floor.map_or(0, |floor| floor.backend_number() + 1);
        FencingToken::from_backend((self.last_number + 1).max(clock).max(floor))
            .ok_or_else(|| Fault::not_applied(FaultKind::Invalid, "the fencing tokens are used up"))
    }

    fn bury(&mut self, owner: OwnerId, now: Moment) {
        while self.tombstones.front().is_some_and(|&(until, _)| until <= now) {
            self.tombstones.pop_front();
        }
        self.tombstones.push_back((now + TOMBSTONE, owner));
    }
}

impl Entry {
    fn held_as(held: Held) -> Self {
        Self { held: Some(held), line: VecDeque::new() }
    }

    fn held_by(&self, owner: &OwnerId) -> Option<&Held> {
        self.held.as_ref().filter(|held| held.owner == *owner && !held.parted)
    }

    fn state(&self, now: Moment) -> LockState {
        let holders = self.held.iter().map(|held| {
            let mut holder = Holder::new(Some(held.owner));
            holder.label.clone_from(&held.label);
            holder.held_for = Some(now.saturating_since(held.since));
            holder.lapses_in = Some(held.until.saturating_since(now));
            holder.token = Some(held.token);
            holder
        });
        LockState::new(holders.collect(), u64::try_from(self.line.len()).ok())
    }
}

impl Held {
    fn new(claim: &Waiter, token: FencingToken, now: Moment, lease: Duration) -> Self {
        Self {
            owner: claim.owner,
            label: claim.label.clone(),
            token,
            since: now,
            until: now + lease,
            parted: false,
        }
    }

    /// What is left of the lease at `asked`, which is not later than now.
    fn grant(&self, asked: Moment) -> Grant {
        let lease = Lease::For(self.until.saturating_since(asked));
        Grant::new(lease, asked).with_token(self.token)
    }
}

impl Waiter {
    fn lasts(claim: &Claim, now: Moment) -> Moment {
        now + claim.ttl + claim.ttl + PLACE_LASTS
    }

    fn of(claim: &Claim, now: Moment) -> Self {
        Self {
            until: Self::lasts(claim, now),
            owner: claim.owner,
            label: claim.label.clone(),
            ttl: claim.ttl,
            wake: Arc::new(Notify::new()),
        }
    }
}
