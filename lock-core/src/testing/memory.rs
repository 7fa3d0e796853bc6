//! Locks inside one process: the reference backend.
//!
//! It keeps every promise that the trait knows, first come first served with direct hand-off, runs
//! on a paused clock, and shows the duties of a backend without a network. For tests, for
//! single-process programs, and as the yardstick of the conformance suite.

use std::collections::hash_map;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, Holder, Identity, Lease, Listed, LockState,
    QUEUE_ENTRY_GRACE, Release, ReleaseMode, Renewal, Wake,
};
use crate::backend::{Capabilities, Durability, Fencing, Order, Support, Takeover, Wakeup};
use crate::clock::{Moment, sleep_until, wall};
use crate::dial::Epoch;
use crate::name::LockName;
use crate::owner::{Label, OwnerId};
use crate::token::FencingToken;

/// The lease of a lock that was handed to a waiter, until the waiter renews it: a waiter that has
/// died meanwhile holds up the queue no longer than this.
const HANDOFF_LEASE: Duration = Duration::from_secs(3);

/// The time for which a released claim is remembered, so that its late attempts are refused. Longer
/// than any attempt is under way.
const TOMBSTONE: Duration = Duration::from_secs(60);

/// The time from one sweep for expired locks to the next.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// A lock space in memory. Clones are clients of the same space.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    space: Arc<Space>,
    loss_push: Support,
}

#[derive(Debug)]
struct Space {
    id: OwnerId,
    born: Moment,
    locks: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    held: HashMap<LockName, HeldLock>,
    /// The waiters of held locks.
    queues: HashMap<LockName, WaitQueue>,
    /// The waiters outside of the queue, to be woken when a hold ends.
    unqueued: HashMap<LockName, Vec<Weak<Notify>>>,
    tokens: TokenCounter,
    tombstones: VecDeque<(Moment, OwnerId)>,
    /// Waiters to be woken once this is unlocked: a waker may run anything.
    woken: Vec<Arc<Notify>>,
    /// When, or at how many names, to sweep for expired locks.
    sweep_after: Option<Moment>,
    sweep_at: usize,
}

/// The fencing tokens.
#[derive(Debug, Default)]
struct TokenCounter {
    last: u64,
}

#[derive(Debug)]
struct HeldLock {
    owner: OwnerId,
    label: Option<Label>,
    token: FencingToken,
    since: Moment,
    until: Moment,
    /// Released already, and unavailable until the minimum hold is over.
    released: bool,
    /// Notified when it ends.
    holder: Option<Arc<Notify>>,
}

/// Waiters, first come, first served, at a cost that hardly grows with their number.
#[derive(Debug, Default)]
struct WaitQueue {
    order: BTreeMap<u64, OwnerId>,
    waiters: HashMap<OwnerId, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    position: u64,
    label: Option<Label>,
    ttl: Duration,
    /// When its queue entry expires, unless it attempts again.
    until: Moment,
    wake: Arc<Notify>,
}

impl Default for Space {
    fn default() -> Self {
        Self { id: OwnerId::mint(), born: Moment::now(), locks: Mutex::default() }
    }
}

impl Memory {
    /// Creates a lock space of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares [`loss_push`](Capabilities::loss_push), and pushes the removal of locks by hand. A
    /// lock that is held for more than a moment then takes about a kilobyte more.
    #[must_use]
    pub fn with_loss_push(mut self) -> Self {
        self.loss_push = Support::Present;
        self
    }

    /// Forgets every lock, every waiter and every released claim, as a server does that restarts
    /// without its data. Tokens go on growing.
    pub fn lose_data(&self) {
        let mut locks = self.locks();
        // In the order of names, so that a simulation can be repeated.
        let queues: BTreeMap<_, _> = std::mem::take(&mut locks.queues).into_iter().collect();
        let held: BTreeMap<_, _> = std::mem::take(&mut locks.held).into_iter().collect();
        locks.woken.extend(queues.values().flat_map(WaitQueue::wakes));
        locks.woken.extend(held.into_values().filter_map(|held| held.holder));
        let unqueued: BTreeMap<_, _> = std::mem::take(&mut locks.unqueued).into_iter().collect();
        locks.woken.extend(unqueued.values().flatten().filter_map(Weak::upgrade));
        locks.tombstones.clear();
    }

    /// Removes one lock by hand, as an operator or an eviction would.
    pub fn evict(&self, name: &LockName) {
        let mut locks = self.locks();
        locks.end_hold(name, Moment::now());
    }

    /// Returns how many names have an entry: held, or expired not long ago.
    #[must_use]
    pub fn len(&self) -> usize {
        self.locks().held.len()
    }

    /// Returns true if no lock is held and no claim waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn locks(&self) -> Unlocked<'_> {
        Unlocked(Some(self.space.locks.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The locks, until it is dropped; then the waiters are woken for which something has changed.
struct Unlocked<'a>(Option<MutexGuard<'a, Locks>>);

impl Deref for Unlocked<'_> {
    type Target = Locks;

    fn deref(&self) -> &Locks {
        self.0.as_ref().expect("open until it is dropped")
    }
}

impl DerefMut for Unlocked<'_> {
    fn deref_mut(&mut self) -> &mut Locks {
        self.0.as_mut().expect("open until it is dropped")
    }
}

impl Drop for Unlocked<'_> {
    fn drop(&mut self) {
        let woken = std::mem::take(&mut self.woken);
        self.0 = None;
        woken.iter().for_each(|wake| wake.notify_one());
    }
}

#[async_trait]
impl Backend for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities::minimal("memory")
            .fencing(Fencing::Seeded)
            .order(Order::Fifo)
            .wakeup(Wakeup::HandOff)
            .durability(Durability::Durable)
            .ttl_max(Duration::from_secs(365 * 24 * 3600))
            .takeover(Takeover::LeasePlus(Duration::from_millis(50)))
            .detached(Support::Present)
            .minimum_hold(Support::Present)
            .late_attempts_refused(Support::Present)
            .min_token_supported(Support::Present)
            .loss_push(self.loss_push)
            .inspecting(Support::Present)
            .listing(Support::Present)
            .breaking(Support::Present)
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let up_for = Moment::now().saturating_since(self.space.born);
        let identity = Identity::new(self.space.id.short(), Some(up_for));
        Ok(Some(identity.during(Epoch::fixed())))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let now = Moment::now();
        self.locks().attempt(claim, now)
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let mut is_unqueued = false;
        loop {
            let (wake, until) = {
                let mut locks = self.locks();
                locks.expire(&claim.name, Moment::now());
                let Some(held) = locks.held.get(&claim.name) else {
                    return Ok(Wake::Retry);
                };
                if held.is_of(claim) {
                    return Ok(Wake::Granted(held.grant(held.since)));
                }
                let (queue, until) = (locks.queues.get(&claim.name), held.until);
                match queue.and_then(|queue| queue.waiters.get(&claim.owner)) {
                    Some(waiter) => (Arc::clone(&waiter.wake), until),
                    // It was queued and is not any more.
                    None if is_unqueued || claim.queues() => return Ok(Wake::Retry),
                    None => {
                        is_unqueued = true;
                        (locks.unqueued_waiter(&claim.name), until)
                    }
                }
            };
            tokio::select! {
                biased;
                // A notification that comes before this is stored.
                () = wake.notified() => {}
                // When the lease ends, serve the next waiter.
                () = sleep_until(until) => {}
            }
        }
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        let end = self.locks().end_of(claim);
        if let Some(end) = end {
            end.notified().await;
        }
        Ok(())
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let now = Moment::now();
        let mut locks = self.locks();
        claims.iter().map(|claim| Ok(locks.renew(claim, now))).collect()
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        let now = Moment::now();
        Ok(self.locks().release(claim, how, now))
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let now = Moment::now();
        let mut locks = self.locks();
        locks.expire(name, now);
        Ok(locks.state(name, now))
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
            .held
            .keys()
            .filter(|name| {
                name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after)
            })
            .cloned()
            .collect();
        names.sort_unstable();
        names.iter().for_each(|name| locks.expire(name, now));
        names.retain(|name| locks.held.contains_key(name));
        names.truncate(limit);
        Ok(names
            .into_iter()
            .map(|name| {
                let state = locks.state(&name, now);
                Listed::new(name, state)
            })
            .collect())
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let now = Moment::now();
        let mut locks = self.locks();
        locks.expire(name, now);
        if locks.held.get(name).is_none_or(|held| held.owner != *expected) {
            return Ok(false);
        }
        locks.end_hold(name, now);
        Ok(true)
    }
}

impl Locks {
    fn attempt(&mut self, claim: &Claim, now: Moment) -> Result<Attempt, Fault> {
        if self.tombstones.iter().any(|(_, owner)| *owner == claim.owner) {
            return Err(Fault::not_applied(FaultKind::Invalid, "this claim was let go before"));
        }
        self.expire(&claim.name, now);
        let held = match self.held.entry(claim.name.clone()) {
            hash_map::Entry::Occupied(held) => held.into_mut(),
            hash_map::Entry::Vacant(free) => {
                let token = self.tokens.next(claim.min_token)?;
                let held = HeldLock::new(claim.owner, claim.label.clone(), token, now, claim.ttl);
                let grant = free.insert(held).grant(now);
                self.sweep(now);
                return Ok(Attempt::Acquired(grant));
            }
        };
        if held.is_of(claim) {
            held.until = held.until.max(now + claim.ttl);
            if claim.min_token.is_some_and(|min_token| held.token <= min_token) {
                held.token = self.tokens.next(claim.min_token)?;
            }
            return Ok(Attempt::Acquired(held.grant(now)));
        }
        let expires_in = Some(held.until.saturating_since(now));
        let queue = self.queues.get_mut(&claim.name);
        match queue.and_then(|queue| queue.waiters.get_mut(&claim.owner)) {
            Some(waiter) => waiter.until = Waiter::lasts_until(claim, now),
            None if claim.queues() => {
                self.queues.entry(claim.name.clone()).or_default().add(claim, now);
            }
            None => {}
        }
        Ok(Attempt::Contended { expires_in })
    }

    fn renew(&mut self, claim: &Claim, now: Moment) -> Renewal {
        self.expire(&claim.name, now);
        match self.held.get_mut(&claim.name).filter(|held| held.is_of(claim)) {
            Some(held) => {
                held.until = held.until.max(now + claim.ttl);
                Renewal::Held(held.grant(now))
            }
            None => Renewal::NotHeld,
        }
    }

    fn release(&mut self, claim: &Claim, how: ReleaseMode, now: Moment) -> Release {
        if how.expects_late_attempt() {
            self.add_tombstone(claim.owner, now);
        }
        self.expire(&claim.name, now);
        let ours = self.held.get_mut(&claim.name).filter(|held| held.is_of(claim));
        match (ours, how.keep) {
            (None, _) => {
                self.leave_queue(claim);
                Release::NotHeld
            }
            (Some(held), Some(keep)) => {
                held.until = now + keep;
                held.released = true;
                // The end that the waiters know of has moved.
                self.woken
                    .extend(self.queues.get(&claim.name).into_iter().flat_map(WaitQueue::wakes));
                self.wake_unqueued(&claim.name);
                Release::Released
            }
            (Some(_), None) => {
                self.end_hold(&claim.name, now);
                Release::Released
            }
        }
    }

    fn leave_queue(&mut self, claim: &Claim) {
        if let hash_map::Entry::Occupied(mut queue) = self.queues.entry(claim.name.clone()) {
            queue.get_mut().remove(&claim.owner);
            if queue.get().waiters.is_empty() {
                queue.remove();
            }
        }
    }

    /// Expires the lease of one lock, if it is over.
    fn expire(&mut self, name: &LockName, now: Moment) {
        if self.held.get(name).is_some_and(|held| held.until <= now) {
            self.end_hold(name, now);
        }
    }

    /// Ends a hold: the lock passes to the next waiter, or is free.
    fn end_hold(&mut self, name: &LockName, now: Moment) {
        let ended = match self.next_waiter(name, now) {
            Some(held) => self.held.insert(name.clone(), held),
            None => self.held.remove(name),
        };
        self.woken.extend(ended.and_then(|held| held.holder));
        self.wake_unqueued(name);
    }

    fn wake_unqueued(&mut self, name: &LockName) {
        let unqueued = self.unqueued.remove(name).unwrap_or_default();
        self.woken.extend(unqueued.iter().filter_map(Weak::upgrade));
    }

    /// Returns the notification of a waiter outside of the queue, for the end of the hold.
    fn unqueued_waiter(&mut self, name: &LockName) -> Arc<Notify> {
        let unqueued = self.unqueued.entry(name.clone()).or_default();
        unqueued.retain(|unqueued_waiter| unqueued_waiter.strong_count() > 0);
        let wake = Arc::default();
        unqueued.push(Arc::downgrade(&wake));
        wake
    }

    /// Returns the notification of the holder for the end of its hold; `None` if it is over.
    fn end_of(&mut self, claim: &Claim) -> Option<Arc<Notify>> {
        let held = self.held.get_mut(&claim.name).filter(|held| held.is_of(claim))?;
        Some(Arc::clone(held.holder.get_or_insert_default()))
    }

    fn next_waiter(&mut self, name: &LockName, now: Moment) -> Option<HeldLock> {
        let queue = self.queues.get_mut(name)?;
        let next = queue.pop(now);
        if queue.waiters.is_empty() {
            self.queues.remove(name);
        }
        let (owner, next) = next?;
        self.woken.push(next.wake);
        // Without a number to give, the waiter finds out by its own next attempt.
        let token = self.tokens.next(None).ok()?;
        Some(HeldLock::new(owner, next.label, token, now, next.ttl.min(HANDOFF_LEASE)))
    }

    /// Removes expired locks that were not used since: when the names may have doubled, and at most
    /// once a minute otherwise.
    fn sweep(&mut self, now: Moment) {
        let due = self.sweep_after.is_none_or(|after| after <= now);
        if !due && self.held.len() < self.sweep_at {
            return;
        }
        self.sweep_after = Some(now + SWEEP_EVERY);
        self.queues.retain(|_, queue| queue.waiters.values().any(|waiter| waiter.until > now));
        self.unqueued.retain(|_, unqueued| unqueued.iter().any(|o| o.strong_count() > 0));
        let queues = &self.queues;
        self.held.retain(|name, held| held.until > now || queues.contains_key(name));
        self.sweep_at = (2 * self.held.len()).max(64);
    }

    fn state(&self, name: &LockName, now: Moment) -> LockState {
        let holders = self.held.get(name).map(|held| held.to_holder(now));
        let waiting = self.queues.get(name).map_or(0, |queue| queue.waiters.len());
        LockState::new(holders.into_iter().collect(), u64::try_from(waiting).ok())
    }

    fn add_tombstone(&mut self, owner: OwnerId, now: Moment) {
        while self.tombstones.front().is_some_and(|&(until, _)| until <= now) {
            self.tombstones.pop_front();
        }
        self.tombstones.push_back((now + TOMBSTONE, owner));
    }
}

impl TokenCounter {
    /// Returns a token of at least the wall clock in microseconds, and higher than all before.
    fn next(&mut self, min_token: Option<FencingToken>) -> Result<FencingToken, Fault> {
        let clock = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
        let min_token = min_token.map_or(0, |min_token| min_token.backend_number() + 1);
        let token = FencingToken::from_backend((self.last + 1).max(clock).max(min_token))
            .ok_or_else(|| {
                Fault::not_applied(FaultKind::Invalid, "the fencing tokens are used up")
            })?;
        self.last = token.backend_number();
        Ok(token)
    }
}

impl WaitQueue {
    fn add(&mut self, claim: &Claim, now: Moment) {
        let position = self.order.last_key_value().map_or(0, |(last, _)| last + 1);
        self.order.insert(position, claim.owner);
        self.waiters.insert(claim.owner, Waiter::new(position, claim, now));
    }

    fn remove(&mut self, owner: &OwnerId) {
        if let Some(waiter) = self.waiters.remove(owner) {
            self.order.remove(&waiter.position);
        }
    }

    /// Takes the first waiter whose queue entry has not expired.
    fn pop(&mut self, now: Moment) -> Option<(OwnerId, Waiter)> {
        loop {
            let (_, owner) = self.order.pop_first()?;
            let waiter = self.waiters.remove(&owner)?;
            if waiter.until > now {
                return Some((owner, waiter));
            }
        }
    }

    /// Returns the notifications of the waiters, in their order.
    fn wakes(&self) -> impl Iterator<Item = Arc<Notify>> {
        self.order.values().filter_map(|owner| Some(Arc::clone(&self.waiters.get(owner)?.wake)))
    }
}

impl HeldLock {
    fn new(
        owner: OwnerId,
        label: Option<Label>,
        token: FencingToken,
        now: Moment,
        lease: Duration,
    ) -> Self {
        Self { owner, label, token, since: now, until: now + lease, released: false, holder: None }
    }

    fn is_of(&self, claim: &Claim) -> bool {
        self.owner == claim.owner && !self.released
    }

    /// Returns the rest of the lease at `asked`, which is not later than now.
    fn grant(&self, asked: Moment) -> Grant {
        let lease = Lease::For(self.until.saturating_since(asked));
        Grant::new(lease, asked).with_token(self.token)
    }

    fn to_holder(&self, now: Moment) -> Holder {
        let mut holder = Holder::new(Some(self.owner));
        holder.label.clone_from(&self.label);
        holder.held_for = Some(now.saturating_since(self.since));
        holder.expires_in = Some(self.until.saturating_since(now));
        holder.token = Some(self.token);
        holder
    }
}

impl Waiter {
    fn new(position: u64, claim: &Claim, now: Moment) -> Self {
        Self {
            position,
            label: claim.label.clone(),
            ttl: claim.ttl,
            until: Self::lasts_until(claim, now),
            wake: Arc::new(Notify::new()),
        }
    }

    fn lasts_until(claim: &Claim, now: Moment) -> Moment {
        now + claim.ttl + claim.ttl + QUEUE_ENTRY_GRACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A waiter outside of the queue is woken as well when the end of a lease moves.
    #[tokio::test(start_paused = true)]
    async fn an_unqueued_waiter_wakes_when_a_release_keeps_the_lock() {
        const HOUR: Duration = Duration::from_secs(3600);

        let memory = Memory::new();
        let claim = || Claim::new(LockName::new("n").unwrap(), OwnerId::mint(), HOUR);
        let held = claim();
        assert!(matches!(memory.try_acquire(&held).await, Ok(Attempt::Acquired(_))));
        let (onlooking, unqueued_waiter) = (memory.clone(), claim());
        let waiting = tokio::spawn(async move { onlooking.wait(&unqueued_waiter).await });
        tokio::task::yield_now().await;
        let keep = Duration::from_secs(1);
        memory.release(&held, ReleaseMode::keep_for(keep)).await.unwrap();
        let told = tokio::time::timeout(keep, waiting).await;
        let told = told.expect("it waits for the end of a lease that was given up");
        assert!(matches!(told.unwrap(), Ok(Wake::Retry)));
    }
}
