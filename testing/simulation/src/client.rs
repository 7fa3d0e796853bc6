//! The tasks of a process: each acquires locks, works under them, and releases them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::{Detached, Lock, Locker, Loss, RenewalPolicy};
use tokio::time::timeout;

use super::stop::ProcessState;
use super::world::{World, name};
use lock_history::{Client, GrantId, Held, Op, Terms, Why};

/// A task of a process, which makes one call at a time.
pub(super) struct ClientTask {
    pub(super) world: Arc<World>,
    pub(super) client: Client,
    pub(super) rng: Rng,
    pub(super) stopped: ProcessState,
    /// The times at which the runtimes of its process end, one after the other. The task continues
    /// in the next one.
    pub(super) ends: Arc<[Moment]>,
    /// The lock that it holds, and how.
    pub(super) kept: Holding,
}

#[derive(Default)]
pub(super) enum Holding {
    #[default]
    Nothing,
    Guarded(Held),
    /// Detached, or about to be.
    Detached(GrantId),
}

/// The settings of an acquisition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AcquireMode {
    Plain,
    Unrenewed,
    /// With a maximum hold.
    LongestHold(Duration),
    /// Renewed while a callback returns true, which it does for this long.
    Probed(Duration),
    /// With a minimum hold.
    MinimumHold(Duration),
    Detachable,
}

impl ClientTask {
    pub(super) async fn run(mut self, locks: Locker) {
        let mut rounds = self.world.plan.rounds;
        for end in Arc::clone(&self.ends).iter() {
            tokio::select! {
                biased;
                () = sleep_until(*end) => {}
                () = self.rounds(&locks, &mut rounds) => return,
            }
            // The end of a runtime drops all of its tasks.
            self.world.count("runtime ended");
            self.drop_all();
        }
        self.rounds(&locks, &mut rounds).await;
    }

    fn drop_all(&mut self) {
        match std::mem::take(&mut self.kept) {
            Holding::Nothing => {}
            Holding::Guarded(held) => self.client.drop(held),
            Holding::Detached(id) => self.client.invoke_on(Op::Release, &id).info(Why::Dropped),
        }
    }

    async fn rounds(&mut self, locks: &Locker, rounds: &mut usize) {
        while *rounds > 0 {
            *rounds -= 1;
            self.pause(1).await;
            let number = self.rng.usize(..self.world.plan.locks);
            let mode = self.mode();
            if let Some(held) = self.acquire(locks, number, mode).await {
                self.kept = Holding::Guarded(held);
                if mode == AcquireMode::Detachable {
                    self.detach(locks).await;
                }
                self.work(number).await;
                self.release().await;
            }
        }
    }

    /// Sleeps for up to this many leases.
    async fn pause(&mut self, leases: u32) {
        sleep(self.up_to(self.world.plan.ttl * leases)).await;
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        // Short and long durations, not only those in the middle.
        let scale = [1000, 30, 3, 1][self.rng.usize(..4)];
        Duration::from_nanos(self.rng.u64(..=longest.as_nanos() as u64 / scale))
    }

    fn mode(&mut self) -> AcquireMode {
        let ttl = self.world.plan.ttl;
        match self.rng.u8(..20) {
            0..=2 => AcquireMode::Unrenewed,
            // A maximum hold of zero is not allowed.
            3 | 4 => AcquireMode::LongestHold(self.up_to(ttl * 3) + ttl / 100),
            5 | 6 => AcquireMode::Probed(self.up_to(ttl * 3)),
            7 | 8 => AcquireMode::MinimumHold(self.up_to(ttl)),
            9 | 10 => AcquireMode::Detachable,
            _ => AcquireMode::Plain,
        }
    }

    fn ask(lock: Lock, mode: AcquireMode) -> Lock {
        let policy = RenewalPolicy::default();
        match mode {
            AcquireMode::Plain => lock,
            AcquireMode::Unrenewed => lock.renewal(RenewalPolicy::off()),
            AcquireMode::LongestHold(limit) => lock.renewal(policy.max_hold(limit)),
            AcquireMode::Probed(lasts) => {
                let until = Moment::now() + lasts;
                lock.renewal(policy.only_while(move || !until.has_passed()))
            }
            AcquireMode::MinimumHold(minimum) => lock.min_hold(minimum),
            AcquireMode::Detachable => lock.detachable(),
        }
    }

    async fn acquire(&mut self, locks: &Locker, number: usize, mode: AcquireMode) -> Option<Held> {
        let ttl = self.world.plan.ttl;
        let lock = locks.lock(name(number)).expect("a good name").ttl(ttl);
        let lock = Self::ask(lock, mode);
        let may_end = matches!(
            mode,
            AcquireMode::Unrenewed | AcquireMode::LongestHold(_) | AcquireMode::Probed(_)
        );
        let min_hold = match mode {
            AcquireMode::MinimumHold(minimum) => Some(minimum),
            _ => None,
        };
        self.client.next = Terms { unrenewed: may_end, min_hold, ..Terms::default() };
        let (way, wait) = (self.rng.u8(..4), self.up_to(ttl * 3));
        let cancellation = self.cancellation();
        let client = &mut self.client;
        let acquiring = async {
            match way {
                0 => client.try_acquire(&lock).await,
                1 => client.try_acquire_for(&lock, wait).await,
                _ => client.acquire(&lock).await.map(Some),
            }
        };
        let held = cancellation.during(acquiring).await?.ok().flatten()?;
        self.world.count(match mode {
            AcquireMode::Plain => "held",
            AcquireMode::Unrenewed => "held, not renewed",
            AcquireMode::LongestHold(_) => "held, with a longest hold",
            AcquireMode::Probed(_) => "held, with a probe",
            AcquireMode::MinimumHold(_) => "held, with a minimum hold",
            AcquireMode::Detachable => "held, detachable",
        });
        self.watch_loss(&held);
        Some(held)
    }

    /// Records the loss also while the holder does something else.
    fn watch_loss(&self, held: &Held) {
        let (signal, id) = (held.guard.loss_signal(), held.id.clone());
        tokio::spawn(self.stopped.task(async move {
            let loss = signal.lost().await;
            if loss != Loss::Released {
                id.lost(loss, signal.deadline());
            }
        }));
    }

    /// Detaches the lock, and adopts it or releases it as it is.
    async fn detach(&mut self, locks: &Locker) {
        let Holding::Guarded(held) = std::mem::take(&mut self.kept) else { return };
        self.kept = Holding::Detached(held.id.clone());
        let left = held.guard.valid_for().unwrap_or_default();
        match self.client.detach(held).await {
            Ok((detached, _)) => self.use_detached(locks, &detached, left).await,
            Err(_) => self.kept = Holding::Nothing,
        }
    }

    async fn use_detached(&mut self, locks: &Locker, detached: &Detached, left: Duration) {
        let Holding::Detached(id) = &self.kept else { return };
        let (id, mut ends) = (id.clone(), Moment::now() + left);
        sleep(self.up_to(left / 3)).await;
        // Without a guard the deadline is unknown, so no call waits for longer.
        if self.rng.bool() {
            let renewing = self.client.renew_detached(locks, (detached, &id));
            if let Ok(Ok(left)) = timeout(ends.remaining(), renewing).await {
                ends = ends.max(Moment::now() + left);
            }
            sleep(self.up_to(ends.remaining() / 3)).await;
        }
        if self.rng.u8(..3) > 0 {
            let adopting = self.client.adopt(locks, (detached.clone(), id.clone()));
            if let Ok(Ok(held)) = timeout(ends.remaining(), adopting).await {
                self.world.count("adopted");
                self.watch_loss(&held);
                self.kept = Holding::Guarded(held);
                return;
            }
        }
        let _ = self.client.release_detached(locks, (detached, &id)).await;
        self.kept = Holding::Nothing;
    }

    async fn work(&mut self, number: usize) {
        let (ttl, longest) = (self.world.plan.ttl, self.world.plan.longest);
        for _ in 0..self.rng.usize(..4) {
            let (nap, what) = (self.up_to(ttl * 2), self.rng.u8(..6));
            let more = ttl / 2 + self.up_to(longest.saturating_sub(ttl / 2));
            let delay = self.up_to(ttl);
            let Holding::Guarded(held) = &self.kept else { return };
            held.sleep(nap).await;
            match what {
                0 => self.world.count_ok("verified", &self.client.verify(held).await),
                1 => _ = self.client.check(held),
                2 => self.world.count_ok("extended", &self.client.extend(held, more).await),
                _ => write(&self.world, &mut self.client, held, (number, delay)).await,
            }
        }
    }

    async fn release(&mut self) {
        let (way, cancellation) = (self.rng.u8(..6), self.cancellation());
        let Holding::Guarded(held) = std::mem::take(&mut self.kept) else { return };
        match way {
            0 => self.client.drop(held),
            1 => _ = cancellation.during(self.client.release(held)).await,
            _ => _ = self.client.release(held).await,
        }
    }

    /// Draws whether a call is cancelled. Most run to their end. Some are dropped after a while,
    /// and some after a number of polls, which is to say at any await.
    fn cancellation(&mut self) -> Cancellation {
        match self.rng.u8(..6) {
            0 => Cancellation::After(self.up_to(self.world.plan.ttl * 2)),
            1 => Cancellation::AfterPolls(self.rng.u32(1..8)),
            _ => Cancellation::Never,
        }
    }
}

/// Writes to the resource, perhaps after the end of the hold.
async fn write(
    world: &World,
    client: &mut Client,
    held: &Held,
    (number, delay): (usize, Duration),
) {
    let Some(token) = held.guard.fencing_token() else { return };
    let pending = client.invoke_write(name(number).as_str(), Some(token.as_u64()));
    held.sleep(delay).await;
    match world.resources[number].admit(token, |counter| {
        *counter += 1;
        *counter
    }) {
        Ok(value) => pending.ok_value(value),
        Err(_) => pending.fail(Why::Fenced),
    }
}

enum Cancellation {
    Never,
    After(Duration),
    AfterPolls(u32),
}

impl Cancellation {
    async fn during<T>(self, call: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Never => Some(call.await),
            Self::After(bound) => timeout(bound, call).await.ok(),
            Self::AfterPolls(left) => Polled { call: pin!(call), left }.await,
        }
    }
}

/// A future that is polled a limited number of times.
struct Polled<'a, F> {
    call: Pin<&'a mut F>,
    left: u32,
}

impl<F: Future> Future for Polled<'_, F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.call.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
