//! A task of a client, which makes one call at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::sleep;
use lock_core::{
    Capabilities, Detached, FencingToken, LockName, Locker, Loss, RenewalPolicy, Support, Takeover,
};
use lock_history::{Client, GrantId, Held, Terms, Why};

use super::state::ClientState;
use crate::collector::CollectorLink;
use crate::lock_names::{lock_name, unfenced};
use crate::orders::ClientConfig;

/// A task with its own client in the history and its own random choices.
pub(super) struct Workload {
    pub(super) client: Client,
    pub(super) rng: Rng,
    pub(super) link: CollectorLink,
    pub(super) state: Arc<ClientState>,
    pub(super) config: ClientConfig,
}

/// The values of the counters of a lock, to be written back plus one.
pub(super) struct Read {
    fence: u64,
    fenced: Option<u64>,
    unfenced: u64,
}

/// A rare way to acquire a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Nothing,
    OtherTtl,
    MaxHold,
    MinHold,
    Detached,
    RunByLockctl,
    AcquiredByLockctl,
}

impl Workload {
    pub(super) fn new(
        client: Client,
        rng: Rng,
        link: CollectorLink,
        state: Arc<ClientState>,
        config: ClientConfig,
    ) -> Self {
        Self { client, rng, link, state, config }
    }

    /// Acquires locks and works under them until the client quits.
    pub(super) async fn run(mut self, locks: Locker) {
        while !self.state.quits.load(Ordering::SeqCst) {
            sleep(self.up_to(self.config.typical_hold)).await;
            let number = self.rng.usize(..self.config.locks);
            // Some leases are never renewed, so that a client that miscounts a lease is detected.
            let unrenewed = self.rng.u8(..16) == 0 || self.state.unrenewed.load(Ordering::SeqCst);
            let extra = self.draw_extra(&locks, unrenewed);
            let min_hold = (extra == Extra::MinHold).then(|| self.up_to(self.config.ttl / 8));
            if self.rng.u8(..32) == 0 {
                self.inspect_and_list(&locks, number).await;
            }
            let outlives = matches!(extra, Extra::Detached | Extra::AcquiredByLockctl)
                && locks.capabilities().takeover == Takeover::AtOnce;
            self.client.next = Terms {
                unrenewed: unrenewed || extra == Extra::MaxHold,
                // A loaded machine may pause a client for longer than a short lease: the client
                // then misses its grant.
                overtakable: extra == Extra::OtherTtl,
                min_hold,
                lease: outlives.then_some(self.config.ttl),
            };
            if let Some(held) = self.take(&locks, number, (unrenewed, extra, min_hold)).await {
                self.work(held, unrenewed, may_cancel(number)).await;
            }
        }
    }

    /// Takes the lock, directly or by a detached hold. Returns the hold if a guard owns it then.
    async fn take(
        &mut self,
        locks: &Locker,
        number: usize,
        (unrenewed, extra, min_hold): (bool, Extra, Option<Duration>),
    ) -> Option<Held> {
        let detached = match extra {
            Extra::RunByLockctl => {
                self.run_by_lockctl(number).await;
                return None;
            }
            Extra::AcquiredByLockctl => self.acquire_by_lockctl(number).await?,
            _ => {
                let held = self.acquire(locks, number, (unrenewed, extra, min_hold)).await?;
                if extra != Extra::Detached {
                    return Some(held);
                }
                let detached = self.client.detach(held).await.ok()?;
                self.link.count_verb("detach");
                detached
            }
        };
        self.finish_detached(locks, detached).await
    }

    /// Draws whether the next acquisition is a rare one.
    fn draw_extra(&mut self, locks: &Locker, unrenewed: bool) -> Extra {
        let has_lockctl = self.config.lockctl && self.rng.u8(..4) == 0;
        match self.rng.u8(..24) {
            5 if !unrenewed && has_lockctl => Extra::RunByLockctl,
            6 | 7 if has_lockctl && can_detach(locks.capabilities()) => Extra::AcquiredByLockctl,
            0 => Extra::OtherTtl,
            1 if !unrenewed => Extra::MaxHold,
            4 => Extra::MinHold,
            2 | 3 if !unrenewed && can_detach(locks.capabilities()) => Extra::Detached,
            _ => Extra::Nothing,
        }
    }

    /// Inspects and lists locks, as an operator does.
    async fn inspect_and_list(&mut self, locks: &Locker, number: usize) {
        let (caps, name) = (locks.capabilities(), lock_name(number));
        if caps.inspecting == Support::Present {
            let name = LockName::new(name).expect("a good name");
            let _ = locks.inspect(&name).await;
            self.link.count_verb("inspect");
        }
        if caps.listing == Support::Present {
            let _ = locks.list("n", None, 100).await;
            self.link.count_verb("list");
        }
    }

    /// Adopts a detached lock, or releases it without adopting it. Returns the hold if it was
    /// adopted.
    async fn finish_detached(
        &mut self,
        locks: &Locker,
        (detached, id): (Detached, GrantId),
    ) -> Option<Held> {
        sleep(self.up_to(self.config.typical_hold * 4)).await;
        let is_renewed = self.rng.bool();
        if is_renewed {
            let renewed = self.client.renew_detached(locks, (&detached, &id)).await;
            self.link.count_verb("renew-detached");
            if renewed.is_err() {
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                return None;
            }
        }
        match self.rng.u8(..4) {
            0 if self.config.lockctl => {
                self.release_by_lockctl((&detached, &id)).await;
                return None;
            }
            0 | 1 => {
                self.link.count_verb("release-detached");
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                return None;
            }
            _ => {}
        }
        self.link.count_verb("adopt");
        match self.client.adopt(locks, (detached.clone(), id.clone())).await {
            Ok(held) => {
                record_loss(&held);
                Some(held)
            }
            Err(_) => {
                // If this release fails as well, the lock ends with its lease.
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                None
            }
        }
    }

    /// Acquires the lock by a drawn method, and cancels some of the calls.
    async fn acquire(
        &mut self,
        locks: &Locker,
        number: usize,
        (unrenewed, extra, min_hold): (bool, Extra, Option<Duration>),
    ) -> Option<Held> {
        let ttl = match extra {
            Extra::OtherTtl => (self.config.ttl / 2).max(locks.capabilities().ttl_min),
            _ => self.config.ttl,
        };
        let lock = locks.lock(lock_name(number)).expect("a good name").ttl(ttl);
        let max_hold = self.config.typical_hold + self.up_to(self.config.ttl / 4);
        let lock = match extra {
            Extra::MaxHold => lock.renewal(RenewalPolicy::default().max_hold(max_hold)),
            _ if unrenewed && min_hold.is_none() => lock.renewal(RenewalPolicy::off()),
            Extra::Detached => lock.detachable(),
            _ => match min_hold {
                Some(min_hold) => lock.min_hold(min_hold),
                None => lock,
            },
        };
        let (method, wait) = (self.rng.u8(..8), self.up_to(self.config.ttl));
        // Some calls are cancelled at any point, half of them early.
        let longest = [self.config.typical_hold * 8, self.config.ttl][usize::from(self.rng.bool())];
        let cancel_after = (self.rng.u8(..8) == 0).then(|| self.up_to(longest));
        // Few of them on locks where waits are judged.
        let cancel_after = cancel_after.filter(|_| may_cancel(number) || self.rng.u8(..8) == 0);
        let client = &mut self.client;
        let acquisition = async {
            match method {
                0 => client.try_acquire(&lock).await,
                1 if may_cancel(number) => client.try_acquire_for(&lock, wait).await,
                _ => client.acquire(&lock).await.map(Some),
            }
        };
        let acquired = match cancel_after {
            None => acquisition.await,
            Some(bound) => match tokio::time::timeout(bound, acquisition).await {
                Ok(acquired) => acquired,
                Err(_) => {
                    self.link.count_verb("cancel");
                    return None;
                }
            },
        };
        let held = match acquired {
            Ok(held) => held?,
            Err(_) => {
                // A backend that refuses is not called again at once.
                sleep(self.config.timeout / 20).await;
                return None;
            }
        };
        record_loss(&held);
        match extra {
            Extra::OtherTtl => self.link.count_verb("other-ttl"),
            Extra::MaxHold => self.link.count_verb("longest-hold"),
            Extra::MinHold => self.link.count_verb("shortest-hold"),
            _ => {}
        }
        Some(held)
    }

    /// Holds the lock for a drawn time, perhaps uses the guarded counters, and ends the hold.
    async fn work(&mut self, held: Held, unrenewed: bool, may_cancel: bool) {
        let name = held.guard.name().as_str().to_owned();
        let fence = held.guard.fencing_token().map(FencingToken::as_u64);
        let read = if self.rng.bool() { self.read(&name, fence) } else { None };
        let duration = self.draw_hold(unrenewed);
        held.sleep(duration).await;
        if duration > self.config.ttl {
            self.link.count_verb("outlast");
        }
        let still_held = match self.rng.u8(..16) {
            0 | 1 => {
                self.link.count_verb("verify");
                self.client.verify(&held).await.is_ok()
            }
            2 => {
                self.link.count_verb("extend");
                let ttl = self.config.ttl.mul_f64(0.5 + self.rng.f64() / 2.0);
                self.client.extend(&held, ttl).await.is_ok()
            }
            3..=8 => self.client.check(&held),
            // Most programs check only at the beginning.
            _ => true,
        };
        if let Some(read) = read.filter(|_| still_held) {
            if self.rng.u8(..4) == 0 {
                // Delays the write after the check: no check can prevent a stale write here.
                held.sleep(self.up_to(self.config.ttl / 4)).await;
            }
            self.write(&name, &read);
        }
        match self.rng.u8(..16) {
            0 if may_cancel => self.client.drop(held),
            1 if may_cancel => {
                let bound = self.up_to(self.config.typical_hold * 4);
                let _ = tokio::time::timeout(bound, self.client.release(held)).await;
            }
            _ => _ = self.client.release(held).await,
        }
    }

    /// Draws the duration of a hold: short in most cases, which makes for more traffic, and now and
    /// then longer than a lease.
    pub(super) fn draw_hold(&mut self, unrenewed: bool) -> Duration {
        let ttl = self.config.ttl;
        match self.rng.u8(..32) {
            0 => self.up_to(ttl * 2),
            1..=4 => self.up_to(ttl / 20),
            5..=12 if unrenewed => self.up_to(ttl * 3 / 2),
            _ => self.up_to(self.config.typical_hold),
        }
    }

    /// Reads both counters of a lock, and records the read of the fenced one.
    pub(super) fn read(&mut self, lock: &str, fence: Option<u64>) -> Option<Read> {
        let fence = fence?;
        let pending = self.client.invoke_read(lock, Some(fence));
        let (fenced, unfenced) = self.link.read_counters(lock, fence);
        match fenced {
            Some(value) => pending.ok_value(value),
            None => pending.fail(Why::Fenced),
        }
        Some(Read { fence, fenced, unfenced })
    }

    /// Writes both counters back plus one, and records the writes.
    pub(super) fn write(&mut self, lock: &str, read: &Read) {
        if let Some(value) = read.fenced {
            let pending = self.client.invoke_write(lock, Some(read.fence));
            if self.link.write_fenced(lock, read.fence, value + 1) {
                pending.ok_value(value + 1);
            } else {
                pending.fail(Why::Fenced);
            }
        }
        let pending = self.client.invoke_write(&unfenced(lock), None);
        self.link.write_unfenced(lock, read.unfenced + 1);
        pending.ok_value(read.unfenced + 1);
    }

    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.f64())
    }
}

/// Returns true if clients often cancel acquisitions of this lock, which is every other one. The
/// residue of a cancelled call may hold the lock or a position in the queue for an unknown time. No
/// wait can be judged during that time.
pub(super) fn may_cancel(number: usize) -> bool {
    !number.is_multiple_of(2)
}

/// Returns true if a lock may outlast its process.
pub(crate) fn can_detach(caps: &Capabilities) -> bool {
    caps.detached == Support::Present
}

/// Records a loss of the lock as soon as core signals it, in a task of its own: the holder may be
/// busy at that moment.
pub(super) fn record_loss(held: &Held) {
    let (signal, id) = (held.guard.loss_signal(), held.id.clone());
    tokio::spawn(async move {
        let loss = signal.lost().await;
        if loss != Loss::Released {
            id.lost(loss, signal.deadline());
        }
    });
}
