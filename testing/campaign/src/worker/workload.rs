//! A task of a client, which makes one call at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::sleep;
use lock_core::{
    Capabilities, Detached, FencingToken, LockName, Locker, Loss, RenewalPolicy, Support, Takeover,
};
use lock_history::{Client, GrantId, Held, Why};

use super::{Duty, State};
use crate::collector::{CollectorLink, lock_name, unfenced};

pub(super) struct Workload {
    pub(super) client: Client,
    pub(super) rng: Rng,
    pub(super) link: CollectorLink,
    pub(super) state: Arc<State>,
    pub(super) duty: Duty,
}

/// What was read under a lock, to be written back one higher.
pub(super) struct Read {
    fence: u64,
    fenced: Option<u64>,
    unfenced: u64,
}

/// A rare way to ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Nothing,
    OtherTtl,
    LongestHold,
    ShortestHold,
    Detached,
    RunByLockctl,
    AcquiredByLockctl,
}

impl Workload {
    pub(super) fn new(
        client: Client,
        rng: Rng,
        link: CollectorLink,
        state: Arc<State>,
        duty: Duty,
    ) -> Self {
        Self { client, rng, link, state, duty }
    }

    pub(super) async fn play(mut self, locks: Locker) {
        while !self.state.quits.load(Ordering::SeqCst) {
            sleep(self.up_to(self.duty.beat)).await;
            let number = self.rng.usize(..self.duty.locks);
            // Some leases are never renewed: whoever counts them wrongly is found out.
            let is_short = self.rng.u8(..16) == 0 || self.state.short.load(Ordering::SeqCst);
            let extra = self.extra(&locks, is_short);
            self.client.leaves_unrenewed(is_short || extra == Extra::LongestHold);
            let shortest = (extra == Extra::ShortestHold).then(|| self.up_to(self.duty.ttl / 8));
            self.client.keeps_for(shortest);
            // A busy machine may stand still for longer than a short lease: its grant is missed
            // then.
            self.client.may_be_overtaken(extra == Extra::OtherTtl);
            if self.rng.u8(..32) == 0 {
                self.look_around(&locks, number).await;
            }
            let outlives = matches!(extra, Extra::Detached | Extra::AcquiredByLockctl)
                && locks.capabilities().takeover == Takeover::AtOnce;
            self.client.outlives_its_process(outlives.then_some(self.duty.ttl));
            if let Some(held) = self.take(&locks, number, (is_short, extra, shortest)).await {
                self.work(held, is_short, gives_up(number)).await;
            }
        }
    }

    /// Gets the lock, perhaps by way of a detached hold. Returns it if it is held by a guard then.
    async fn take(
        &mut self,
        locks: &Locker,
        number: usize,
        (is_short, extra, shortest): (bool, Extra, Option<Duration>),
    ) -> Option<Held> {
        let detached = match extra {
            Extra::RunByLockctl => {
                self.run_by_lockctl(number).await;
                return None;
            }
            Extra::AcquiredByLockctl => self.acquire_by_lockctl(number).await?,
            _ => {
                let held = self.win(locks, number, (is_short, extra, shortest)).await?;
                if extra != Extra::Detached {
                    return Some(held);
                }
                let detached = self.client.detach(held).await.ok()?;
                self.link.did("detach");
                detached
            }
        };
        self.pass_on(locks, detached).await
    }

    /// Draws whether the next acquisition is a rare one.
    fn extra(&mut self, locks: &Locker, is_short: bool) -> Extra {
        let has_lockctl = self.duty.lockctl && self.rng.u8(..4) == 0;
        match self.rng.u8(..24) {
            5 if !is_short && has_lockctl => Extra::RunByLockctl,
            6 | 7 if has_lockctl && can_detach(locks.capabilities()) => Extra::AcquiredByLockctl,
            0 => Extra::OtherTtl,
            1 if !is_short => Extra::LongestHold,
            4 => Extra::ShortestHold,
            2 | 3 if !is_short && can_detach(locks.capabilities()) => Extra::Detached,
            _ => Extra::Nothing,
        }
    }

    /// Inspects and lists, as an operator does.
    async fn look_around(&mut self, locks: &Locker, number: usize) {
        let (caps, name) = (locks.capabilities(), lock_name(number));
        if caps.inspecting == Support::Present {
            let name = LockName::new(name).expect("a good name");
            let _ = locks.inspect(&name).await;
            self.link.did("inspect");
        }
        if caps.listing == Support::Present {
            let _ = locks.list("n", None, 100).await;
            self.link.did("list");
        }
    }

    /// Adopts a detached lock, or releases it as it is. Returns it if it is still held.
    async fn pass_on(
        &mut self,
        locks: &Locker,
        (detached, id): (Detached, GrantId),
    ) -> Option<Held> {
        sleep(self.up_to(self.duty.beat * 4)).await;
        let is_renewed = self.rng.bool();
        if is_renewed {
            let renewed = self.client.renew_detached(locks, (&detached, &id)).await;
            self.link.did("renew-detached");
            if renewed.is_err() {
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                return None;
            }
        }
        match self.rng.u8(..4) {
            0 if self.duty.lockctl => {
                self.release_by_lockctl((&detached, &id)).await;
                return None;
            }
            0 | 1 => {
                self.link.did("release-detached");
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                return None;
            }
            _ => {}
        }
        self.link.did("adopt");
        match self.client.adopt(locks, (detached.clone(), id.clone())).await {
            Ok(held) => {
                tell_of_loss(&held);
                Some(held)
            }
            Err(_) => {
                // The lock is released, or ends with its lease.
                let _ = self.client.release_detached(locks, (&detached, &id)).await;
                None
            }
        }
    }

    async fn win(
        &mut self,
        locks: &Locker,
        number: usize,
        (is_short, extra, shortest): (bool, Extra, Option<Duration>),
    ) -> Option<Held> {
        let ttl = match extra {
            Extra::OtherTtl => (self.duty.ttl / 2).max(locks.capabilities().ttl_min),
            _ => self.duty.ttl,
        };
        let lock = locks.lock(lock_name(number)).expect("a good name").ttl(ttl);
        let limit = self.duty.beat + self.up_to(self.duty.ttl / 4);
        let lock = match extra {
            Extra::LongestHold => lock.renewal(RenewalPolicy::default().max_hold(limit)),
            _ if is_short && shortest.is_none() => lock.renewal(RenewalPolicy::off()),
            Extra::Detached => lock.detachable(),
            _ => match shortest {
                Some(shortest) => lock.min_hold(shortest),
                None => lock,
            },
        };
        let (way, wait) = (self.rng.u8(..8), self.up_to(self.duty.ttl));
        // Some calls are dropped after a while, wherever they are: half of them soon.
        let longest = [self.duty.beat * 8, self.duty.ttl][usize::from(self.rng.bool())];
        let given_up = (self.rng.u8(..8) == 0).then(|| self.up_to(longest));
        // Seldom where the waits of others are judged.
        let given_up = given_up.filter(|_| gives_up(number) || self.rng.u8(..8) == 0);
        let client = &mut self.client;
        let winning = async {
            match way {
                0 => client.try_acquire(&lock).await,
                1 if gives_up(number) => client.try_acquire_for(&lock, wait).await,
                _ => client.acquire(&lock).await.map(Some),
            }
        };
        let won = match given_up {
            None => winning.await,
            Some(bound) => match tokio::time::timeout(bound, winning).await {
                Ok(won) => won,
                Err(_) => {
                    self.link.did("cancel");
                    return None;
                }
            },
        };
        let held = match won {
            Ok(held) => held?,
            Err(_) => {
                // Not at once again at a backend that refuses.
                sleep(self.duty.timeout / 20).await;
                return None;
            }
        };
        tell_of_loss(&held);
        match extra {
            Extra::OtherTtl => self.link.did("other-ttl"),
            Extra::LongestHold => self.link.did("longest-hold"),
            Extra::ShortestHold => self.link.did("shortest-hold"),
            _ => {}
        }
        Some(held)
    }

    async fn work(&mut self, held: Held, is_short: bool, gives_up: bool) {
        let name = held.guard.name().as_str().to_owned();
        let fence = held.guard.fencing_token().map(FencingToken::as_u64);
        let read = if self.rng.bool() { self.read(&name, fence) } else { None };
        let long = self.hold_for(is_short);
        held.sleep(long).await;
        if long > self.duty.ttl {
            self.link.did("outlast");
        }
        let goes_on = match self.rng.u8(..16) {
            0 | 1 => {
                self.link.did("verify");
                self.client.verify(&held).await.is_ok()
            }
            2 => {
                self.link.did("extend");
                let ttl = self.duty.ttl.mul_f64(0.5 + self.rng.f64() / 2.0);
                self.client.extend(&held, ttl).await.is_ok()
            }
            3..=8 => self.client.check(&held),
            // Most programs look only at the beginning.
            _ => true,
        };
        if let Some(read) = read.filter(|_| goes_on) {
            if self.rng.u8(..4) == 0 {
                // The write is on its way for a while: no check can help here.
                held.sleep(self.up_to(self.duty.ttl / 4)).await;
            }
            self.write(&name, &read);
        }
        match self.rng.u8(..16) {
            0 if gives_up => self.client.drop(held),
            1 if gives_up => {
                let bound = self.up_to(self.duty.beat * 4);
                let _ = tokio::time::timeout(bound, self.client.release(held)).await;
            }
            _ => _ = self.client.release(held).await,
        }
    }

    /// Mostly short, so that much happens; now and then longer than a lease.
    pub(super) fn hold_for(&mut self, is_short: bool) -> Duration {
        let ttl = self.duty.ttl;
        match self.rng.u8(..32) {
            0 => self.up_to(ttl * 2),
            1..=4 => self.up_to(ttl / 20),
            5..=12 if is_short => self.up_to(ttl * 3 / 2),
            _ => self.up_to(self.duty.beat),
        }
    }

    pub(super) fn read(&mut self, lock: &str, fence: Option<u64>) -> Option<Read> {
        let fence = fence?;
        let pending = self.client.invoke_read(lock, Some(fence));
        let (fenced, unfenced) = self.link.look(lock, fence);
        match fenced {
            Some(value) => pending.ok_value(value),
            None => pending.fail(Why::Fenced),
        }
        Some(Read { fence, fenced, unfenced })
    }

    pub(super) fn write(&mut self, lock: &str, read: &Read) {
        if let Some(value) = read.fenced {
            let pending = self.client.invoke_write(lock, Some(read.fence));
            if self.link.write(lock, read.fence, value + 1) {
                pending.ok_value(value + 1);
            } else {
                pending.fail(Why::Fenced);
            }
        }
        let pending = self.client.invoke_write(&unfenced(lock), None);
        self.link.put(lock, read.unfenced + 1);
        pending.ok_value(read.unfenced + 1);
    }

    pub(super) fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.rng.f64())
    }
}

/// Returns true if clients often cancel acquisitions of this lock, which is every other one. The
/// residue of a cancelled call may hold the lock or a position in the queue for an unknown time,
/// and during that time no wait can be judged.
pub(super) fn gives_up(number: usize) -> bool {
    !number.is_multiple_of(2)
}

/// True if a lock may outlast its process.
pub(crate) fn can_detach(caps: &Capabilities) -> bool {
    caps.detached == Support::Present
}

/// The loss is noted even while its holder looks elsewhere.
pub(super) fn tell_of_loss(held: &Held) {
    let (signal, id) = (held.guard.loss_signal(), held.id.clone());
    tokio::spawn(async move {
        let loss = signal.lost().await;
        if loss != Loss::Released {
            id.lost(loss, signal.deadline());
        }
    });
}
