//! Real locks under a random load, recorded: many clients of one lock space, on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::Harness;
use lock_core::clock::sleep;
use lock_core::faults::{Call, Injection};
use lock_core::{FenceGate, Lock, Locker, RenewalPolicy};
use lock_history::{Client, Clock, Header, Held, Line, Recorder, Renewals, Trouble, Why};

use crate::model::Dice;

/// The size of the load, and its faults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) seed: u64,
    pub(crate) clients: usize,
    pub(crate) rounds: usize,
    /// Whether answers get lost.
    pub(crate) disturbed: bool,
}

const TTL: Duration = Duration::from_secs(10);

/// Runs a load against a lock space, and returns its records, at the latest after an hour.
pub(crate) async fn run(harness: &dyn Harness, load: Load) -> Vec<Line> {
    let mut lockers = Vec::new();
    for client in 0..load.clients {
        lockers.push(locker(harness, load, client).await);
    }
    let mut header = Header::new("load", load.seed, lockers[0].capabilities(), TTL);
    let slack = Duration::from_millis(200);
    (header.takeover, header.hand_off, header.told_within) = (slack * 2, slack, slack);
    header.fifo_after = header.fifo_after.map(|_| Duration::from_millis(50));
    header.renewals = Renewals::Background;
    let recorder = Recorder::in_memory(Clock::core(), header);
    // With message loss every call is under a fault.
    let fault =
        load.disturbed.then(|| recorder.fault(Trouble::Other("lost replies".into())).begin());
    let store = Arc::new(FenceGate::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for (index, locks) in lockers.iter().cloned().enumerate() {
        let client = recorder.client(format!("p{index}/c"));
        let (dice, store) = (Dice(load.seed * 1000 + index as u64), Arc::clone(&store));
        let user = User { client, locks, dice, store };
        tasks.spawn(user.work(load.rounds));
    }
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.expect("no client panics");
        }
    };
    if tokio::time::timeout(Duration::from_secs(3600), all).await.is_ok() {
        for locks in lockers {
            let _ = locks.close().await;
        }
        if let Some(fault) = fault {
            fault.heal();
        }
    }
    // Before the drop of clients that hang, which is recorded as well.
    recorder.lines()
}

async fn locker(harness: &dyn Harness, load: Load, client: usize) -> Locker {
    let backend = if load.disturbed {
        let seed = load.seed * 77 + client as u64;
        let script = move |call: &Call<'_>| match Dice(seed ^ call.nth).roll(20) {
            0 => Injection::LoseReply,
            1 => Injection::DelayReply(Duration::from_millis(300)),
            2 => Injection::DelayRequest(Duration::from_millis(300)),
            3 => Injection::HangAfter,
            4 => Injection::LandLate(Duration::from_millis(700)),
            _ => Injection::None,
        };
        harness.client_with_faults(Box::new(script)).await
    } else {
        harness.client().await
    };
    Locker::builder_from(backend).timeout(Duration::from_secs(1)).default_ttl(TTL).build()
}

struct User {
    client: Client,
    locks: Locker,
    dice: Dice,
    store: Arc<FenceGate<u64>>,
}

impl User {
    async fn work(mut self, rounds: usize) {
        for _ in 0..rounds {
            self.pause(400).await;
            let number = self.dice.roll(2);
            let lock = self.locks.lock(format!("lock {number}")).expect("a good name");
            let lapses = self.dice.roll(6) == 0;
            let lock = if lapses { lock.renewal(RenewalPolicy::off()) } else { lock };
            let Some(held) = self.take(&lock).await else { continue };
            if number == 0 {
                self.write(&held).await;
            }
            self.hold(held, lapses).await;
        }
    }

    async fn take(&mut self, lock: &Lock) -> Option<Held> {
        let wait = Duration::from_millis(self.dice.roll(3000));
        match self.dice.roll(6) {
            0 => self.client.try_acquire(lock).await.ok().flatten(),
            1 => self.client.try_acquire_for(lock, wait).await.ok().flatten(),
            2 => {
                // Cancelled after a while.
                let taken = tokio::time::timeout(wait, self.client.acquire(lock)).await;
                taken.ok().and_then(Result::ok)
            }
            _ => self.client.acquire(lock).await.ok(),
        }
    }

    async fn write(&mut self, held: &Held) {
        let Some(token) = held.guard.fencing_token() else { return };
        let pending = self.client.invoke_write("lock 0", Some(token.as_u64()));
        match self.store.admit(token, |count| {
            *count += 1;
            *count
        }) {
            Ok(value) => pending.ok_value(value),
            Err(_) => pending.fail(Why::Fenced),
        }
    }

    async fn hold(&mut self, held: Held, lapses: bool) {
        self.pause(300).await;
        self.client.check(&held);
        if lapses {
            held.lost().await;
            self.client.check(&held);
            return drop(held);
        }
        match self.dice.roll(8) {
            0 => {
                let _ = self.client.verify(&held).await;
            }
            1 => held.sleep(Duration::from_millis(self.dice.roll(30_000))).await,
            2 => return self.client.drop(held),
            _ => {}
        }
        if !self.client.check(&held) {
            held.lost().await;
        }
        let _ = self.client.release(held).await;
    }

    async fn pause(&mut self, below: u64) {
        sleep(Duration::from_millis(self.dice.roll(below))).await;
    }
}
