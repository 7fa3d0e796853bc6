//! The tasks of a process: each acquires locks, works under them, and gives them back.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::{Detached, Lock, Locker, Loss, RenewalPolicy};
use tokio::time::timeout;

use super::stop::Stopped;
use super::{World, name};
use lock_history::{Client, GrantId, Held, Op, Why};

/// A task of a process, which makes one call at a time.
pub(super) struct Player {
    pub(super) world: Arc<World>,
    pub(super) client: Client,
    pub(super) rng: Rng,
    pub(super) stopped: Stopped,
    /// When the runtimes of its process end, one after the other. The task goes on in the next one.
    pub(super) ends: Arc<[Moment]>,
    /// The lock that it has, and how.
    pub(super) kept: Kept,
}

#[derive(Default)]
pub(super) enum Kept {
    #[default]
    Nothing,
    Guarded(Held),
    /// Without a guard, or soon.
    Detached(GrantId),
}

/// How a lock is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Plain,
    Unrenewed,
    /// Not for longer than this.
    LongestHold(Duration),
    /// Renewed while a probe says so, which it does for this long.
    Probed(Duration),
    /// For this long at least.
    MinimumHold(Duration),
    Detachable,
}

impl Player {
    pub(super) async fn play(mut self, locks: Locker) {
        let mut rounds = self.world.plan.rounds;
        for end in Arc::clone(&self.ends).iter() {
            tokio::select! {
                biased;
                () = sleep_until(*end) => {}
                () = self.rounds(&locks, &mut rounds) => return,
            }
            // All that a runtime runs is dropped when it ends.
            self.world.count("runtime ended");
            self.drop_all();
        }
        self.rounds(&locks, &mut rounds).await;
    }

    fn drop_all(&mut self) {
        match std::mem::take(&mut self.kept) {
            Kept::Nothing => {}
            Kept::Guarded(held) => self.client.drop(held),
            Kept::Detached(id) => self.client.invoke_on(Op::Release, &id).info(Why::Dropped),
        }
    }

    async fn rounds(&mut self, locks: &Locker, rounds: &mut usize) {
        while *rounds > 0 {
            *rounds -= 1;
            self.rest(1).await;
            let number = self.rng.usize(..self.world.plan.locks);
            let wish = self.wish();
            if let Some(held) = self.win(locks, number, wish).await {
                self.kept = Kept::Guarded(held);
                if wish == Wish::Detachable {
                    self.pass_on(locks).await;
                }
                self.work(number).await;
                self.give_back().await;
            }
        }
    }

    /// For up to so many leases.
    async fn rest(&mut self, leases: u32) {
        sleep(self.up_to(self.world.plan.ttl * leases)).await;
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        // Short ones and long ones, not only those in the middle.
        let scale = [1000, 30, 3, 1][self.rng.usize(..4)];
        Duration::from_nanos(self.rng.u64(..=longest.as_nanos() as u64 / scale))
    }

    fn wish(&mut self) -> Wish {
        let ttl = self.world.plan.ttl;
        match self.rng.u8(..20) {
            0..=2 => Wish::Unrenewed,
            // Zero is no hold at all.
            3 | 4 => Wish::LongestHold(self.up_to(ttl * 3) + ttl / 100),
            5 | 6 => Wish::Probed(self.up_to(ttl * 3)),
            7 | 8 => Wish::MinimumHold(self.up_to(ttl)),
            9 | 10 => Wish::Detachable,
            _ => Wish::Plain,
        }
    }

    fn ask(lock: Lock, wish: Wish) -> Lock {
        let policy = RenewalPolicy::default();
        match wish {
            Wish::Plain => lock,
            Wish::Unrenewed => lock.renewal(RenewalPolicy::off()),
            Wish::LongestHold(limit) => lock.renewal(policy.max_hold(limit)),
            Wish::Probed(lasts) => {
                let until = Moment::now() + lasts;
                lock.renewal(policy.only_while(move || !until.has_passed()))
            }
            Wish::MinimumHold(minimum) => lock.min_hold(minimum),
            Wish::Detachable => lock.detachable(),
        }
    }

    async fn win(&mut self, locks: &Locker, number: usize, wish: Wish) -> Option<Held> {
        let ttl = self.world.plan.ttl;
        let lock = locks.lock(name(number)).expect("a good name").ttl(ttl);
        let lock = Self::ask(lock, wish);
        let may_end = matches!(wish, Wish::Unrenewed | Wish::LongestHold(_) | Wish::Probed(_));
        self.client.leaves_unrenewed(may_end);
        self.client.keeps_for(match wish {
            Wish::MinimumHold(minimum) => Some(minimum),
            _ => None,
        });
        let (way, wait) = (self.rng.u8(..4), self.up_to(ttl * 3));
        let given_up = self.given_up();
        let client = &mut self.client;
        let winning = async {
            match way {
                0 => client.try_acquire(&lock).await,
                1 => client.try_acquire_for(&lock, wait).await,
                _ => client.acquire(&lock).await.map(Some),
            }
        };
        let held = given_up.during(winning).await?.ok().flatten()?;
        self.world.count(match wish {
            Wish::Plain => "held",
            Wish::Unrenewed => "held, not renewed",
            Wish::LongestHold(_) => "held, with a longest hold",
            Wish::Probed(_) => "held, with a probe",
            Wish::MinimumHold(_) => "held, with a minimum hold",
            Wish::Detachable => "held, detachable",
        });
        self.listen(&held);
        Some(held)
    }

    /// Notes the loss also while the holder looks elsewhere.
    fn listen(&self, held: &Held) {
        let (signal, id) = (held.guard.loss_signal(), held.id.clone());
        tokio::spawn(self.stopped.task(async move {
            let loss = signal.lost().await;
            if loss != Loss::Released {
                id.lost(loss, signal.deadline());
            }
        }));
    }

    /// Detaches the lock, and adopts it or releases it as it is.
    async fn pass_on(&mut self, locks: &Locker) {
        let Kept::Guarded(held) = std::mem::take(&mut self.kept) else { return };
        self.kept = Kept::Detached(held.id.clone());
        let left = held.guard.valid_for().unwrap_or_default();
        match self.client.detach(held).await {
            Ok((detached, _)) => self.keep_detached(locks, &detached, left).await,
            Err(_) => self.kept = Kept::Nothing,
        }
    }

    async fn keep_detached(&mut self, locks: &Locker, detached: &Detached, left: Duration) {
        let Kept::Detached(id) = &self.kept else { return };
        let (id, mut ends) = (id.clone(), Moment::now() + left);
        sleep(self.up_to(left / 3)).await;
        // No guard tells of the deadline: no call waits for longer.
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
                self.listen(&held);
                self.kept = Kept::Guarded(held);
                return;
            }
        }
        let _ = self.client.release_detached(locks, (detached, &id)).await;
        self.kept = Kept::Nothing;
    }

    async fn work(&mut self, number: usize) {
        let (ttl, longest) = (self.world.plan.ttl, self.world.plan.longest);
        for _ in 0..self.rng.usize(..4) {
            let (nap, what) = (self.up_to(ttl * 2), self.rng.u8(..6));
            let more = ttl / 2 + self.up_to(longest.saturating_sub(ttl / 2));
            let delay = self.up_to(ttl);
            let Kept::Guarded(held) = &self.kept else { return };
            held.sleep(nap).await;
            match what {
                0 => self.world.count_ok("verified", &self.client.verify(held).await),
                1 => _ = self.client.check(held),
                2 => self.world.count_ok("extended", &self.client.extend(held, more).await),
                _ => write(&self.world, &mut self.client, held, (number, delay)).await,
            }
        }
    }

    async fn give_back(&mut self) {
        let (way, given_up) = (self.rng.u8(..6), self.given_up());
        let Kept::Guarded(held) = std::mem::take(&mut self.kept) else { return };
        match way {
            0 => self.client.drop(held),
            1 => _ = given_up.during(self.client.release(held)).await,
            _ => _ = self.client.release(held).await,
        }
    }

    /// Most calls are waited for; some are dropped after a while, some after a number of polls, which
    /// is to say at any await there is.
    fn given_up(&mut self) -> GivenUp {
        match self.rng.u8(..6) {
            0 => GivenUp::After(self.up_to(self.world.plan.ttl * 2)),
            1 => GivenUp::AfterPolls(self.rng.u32(1..8)),
            _ => GivenUp::Never,
        }
    }
}

/// Writes, perhaps for longer than the lock is held.
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

enum GivenUp {
    Never,
    After(Duration),
    AfterPolls(u32),
}

impl GivenUp {
    async fn during<T>(self, call: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Never => Some(call.await),
            Self::After(bound) => timeout(bound, call).await.ok(),
            Self::AfterPolls(left) => Polled { call: pin!(call), left }.await,
        }
    }
}

/// Polls a future so many times and not more often.
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
