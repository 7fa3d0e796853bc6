//! Drawn faults of the stand-in and of its network.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use lock_conformance::{ClockMode, Harness, Script};
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::{Backend, LockName};
use lock_history::{Assumption, FaultNote, Recorder, Trouble};
use lock_redis::{Config, Redis};
use lock_simulation::{Site, SitePlan, Workload};
use tokio::sync::OnceCell;

use super::keyspace::Bytes;
use super::network::{Cut, World};
use super::order;

/// A lock space on a stand-in.
pub(crate) struct OnStandIn {
    pub(crate) world: World,
    drawn: Mutex<Drawn>,
    /// The faults that always happen.
    always: Vec<Hazard>,
    /// How long a release leaves the lock free for clients that poll.
    share: Option<Duration>,
    /// A client outside of the run.
    stranger: OnceCell<Arc<dyn Backend>>,
}

#[derive(Default)]
struct Drawn {
    rng: Rng,
    workload: Option<Workload>,
    /// The faults, and every how many leases each one happens.
    hazards: Vec<(Hazard, u32)>,
    slow: Duration,
    tally: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hazard {
    /// A connection is cut, and its requests do not arrive.
    RequestLost,
    /// A connection is cut, and its requests arrive, maybe later than those of the next one.
    ReplyLost,
    /// The server forgets a client, which does not hear of that.
    Forgotten,
    /// Nothing passes for a while, in one direction or both; then all of it does, or the connection
    /// is cut.
    Silence,
    /// Messages are late for a while.
    Slowness,
    /// The server is killed, and comes back with its data.
    Restart,
    /// The server is stopped for a while.
    ServerStops,
    /// The server comes back with older data, or none.
    DataLost,
    /// A queue has its entries of some time ago again: waiters that were served, or gave up.
    StaleQueue,
    /// The memory limit is reached for a while.
    MemoryLimit,
    /// The server forgets its scripts.
    ScriptsFlushed,
    /// Another library deletes a lock.
    ForeignDelete,
    /// Another library takes a lock if it is free, as it should.
    ForeignHold,
    /// Another library takes a lock by force.
    ForeignSet,
    /// The server's clock is set.
    ClockStep,
}

impl Hazard {
    /// Those that are drawn by their shares.
    const ALL: [Self; 14] = [
        Self::RequestLost,
        Self::ReplyLost,
        Self::Forgotten,
        Self::Silence,
        Self::Slowness,
        Self::Restart,
        Self::ServerStops,
        Self::DataLost,
        Self::MemoryLimit,
        Self::ScriptsFlushed,
        Self::ForeignDelete,
        Self::ForeignHold,
        Self::ForeignSet,
        Self::ClockStep,
    ];

    fn breaks(self) -> Option<Assumption> {
        match self {
            Self::ClockStep => Some(Assumption::A1),
            Self::DataLost => Some(Assumption::A2),
            Self::ForeignDelete | Self::ForeignSet => Some(Assumption::A3),
            _ => None,
        }
    }

    /// Returns in how many runs of a hundred it happens.
    fn share(self) -> u8 {
        match self.breaks() {
            // While it happens, overlaps are only counted.
            Some(_) => 6,
            None => 30,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::RequestLost => "connection cut, request lost",
            Self::ReplyLost => "connection cut, reply lost",
            Self::Forgotten => "client forgotten by the server",
            Self::Silence => "silence",
            Self::Slowness => "slow messages",
            Self::Restart => "server restarted with its data",
            Self::ServerStops => "server stopped",
            Self::DataLost => "data lost",
            Self::StaleQueue => "stale queue",
            Self::MemoryLimit => "memory limit",
            Self::ScriptsFlushed => "scripts flushed",
            Self::ForeignDelete => "foreign DEL",
            Self::ForeignHold => "foreign SET NX",
            Self::ForeignSet => "foreign SET",
            Self::ClockStep => "clock set",
        }
    }
}

/// How long clients may take to find a server that was away. A connection is tried again after 0.2
/// s at the latest, and a failed release after a second. Until then the waiters of their processes
/// cannot be queued.
const FOUND_AGAIN: Duration = Duration::from_millis(1250);

impl OnStandIn {
    pub(crate) fn new(seed: u64) -> Self {
        let (world, drawn) = (World::new(seed), Mutex::default());
        // In half of the runs, on each kind of server.
        let share =
            (seed % 4 > 1).then(|| Duration::from_millis([10, 100, 400][seed as usize % 3]));
        Self { world, drawn, always: Vec::new(), share, stranger: OnceCell::new() }
    }

    /// One on which other libraries lock as well.
    pub(crate) fn with_others(mut self) -> Self {
        self.always = vec![Hazard::ForeignHold, Hazard::ForeignSet];
        self
    }

    async fn connect(&self, process: usize) -> Arc<dyn Backend> {
        let config = Config::new("redis://stand-in").expect("a good URL");
        let mut config = config.connector(self.world.network_of(process));
        if let Some(share) = self.share {
            config = config.polling_share(share).expect("a good share");
        }
        Arc::new(Redis::connect(config).await.expect("nothing is broken yet"))
    }

    fn drawn(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, what: &'static str) {
        *self.drawn().tally.entry(what).or_default() += 1;
    }

    async fn happen(&self, recorder: &Recorder, hazard: Hazard, mut rng: Rng) {
        let workload = self.drawn().workload.clone().expect("the run has begun");
        let process = rng.usize(..workload.processes);
        let lock = &workload.locks[rng.usize(..workload.locks.len())];
        let mut while_it_lasts = workload.ttl * rng.u32(1..100) / 40;
        let slow = workload.ttl / rng.u32(2..20);
        self.note(hazard.name());
        if hazard == Hazard::ForeignHold {
            // That is no fault.
            return self.hold_elsewhere(recorder, lock, while_it_lasts, &[b"NX"]).await;
        }
        // To the server, and from it.
        let held = match hazard {
            Hazard::ReplyLost => [[true, false], [false, false]][rng.usize(..2)],
            Hazard::Silence => [[true, true], [true, false], [false, true]][rng.usize(..3)],
            _ => [false, false],
        };
        let fault = noted(recorder, hazard, held, process, lock);
        let fault = fault.begin();
        let world = &self.world;
        match hazard {
            Hazard::RequestLost => world.cut(Some(process), Cut::Before),
            Hazard::ReplyLost => {
                if held[0] {
                    world.delay_requests(process, Moment::now() + while_it_lasts);
                    sleep(while_it_lasts / 2).await;
                }
                world.cut(Some(process), Cut::After);
            }
            Hazard::Forgotten => world.cut(Some(process), Cut::Forgotten(while_it_lasts)),
            Hazard::Silence => {
                world.hold(process, held, Moment::now() + while_it_lasts);
            }
            Hazard::Slowness => world.slow_down(process, slow),
            Hazard::Restart => world.shut_down(),
            Hazard::ServerStops => world.stop_until(Moment::now() + while_it_lasts),
            Hazard::DataLost => self.lose_data(&mut rng, while_it_lasts).await,
            Hazard::StaleQueue => {
                let before = self.entries(lock);
                sleep(while_it_lasts).await;
                self.restore(lock, &before);
                while_it_lasts = Duration::ZERO;
            }
            Hazard::MemoryLimit => _ = world.command(&[b"CONFIG", b"SET", b"maxmemory", b"1"]),
            Hazard::ScriptsFlushed => _ = world.command(&[b"SCRIPT", b"FLUSH"]),
            Hazard::ForeignDelete => _ = world.command(&[b"DEL", lock.as_bytes()]),
            Hazard::ForeignSet => {
                self.hold_elsewhere(recorder, lock, while_it_lasts, &[]).await;
                while_it_lasts = Duration::ZERO;
            }
            Hazard::ForeignHold => unreachable!("it has returned"),
            Hazard::ClockStep => {
                let by = i64::try_from(workload.ttl.as_micros()).expect("a short lease");
                let by = rng.i64(-by * 2..by * 2);
                world.step_clock(by);
                while_it_lasts = Duration::from_micros(by.unsigned_abs());
            }
        }
        sleep(while_it_lasts).await;
        match hazard {
            Hazard::Silence if rng.bool() => world.cut(Some(process), Cut::Before),
            Hazard::Slowness => {
                world.slow_down(process, self.drawn().slow);
                // Earlier messages are still under way, and no later one overtakes them.
                sleep(slow).await;
            }
            Hazard::Restart => {
                world.start();
                sleep(FOUND_AGAIN).await;
            }
            Hazard::MemoryLimit => _ = world.command(&[b"CONFIG", b"SET", b"maxmemory", b"0"]),
            _ => {}
        }
        if hazard.breaks().is_some() {
            // A holder believes in its lock until its next renewal, or its deadline.
            sleep(workload.ttl * 2).await;
        }
        fault.heal();
    }

    /// Lets another library take the lock, and hold it until its lease ends or a client takes it
    /// away.
    async fn hold_elsewhere(&self, recorder: &Recorder, lock: &str, ttl: Duration, how: &[&[u8]]) {
        let (key, value) = (lock.as_bytes(), self.world.draw_token());
        let ms = ttl.as_millis().max(1).to_string();
        let set: [&[u8]; 5] = [b"SET", key, &value, b"PX", ms.as_bytes()];
        let holder = recorder.fault(Trouble::Foreign).lock(lock).begin();
        self.world.command(&[&set, how].concat());
        self.world.until_gone(key, &value).await;
        holder.heal();
    }

    /// Returns the entries of a queue, with their arrivals.
    fn entries(&self, lock: &str) -> Vec<(f64, Bytes)> {
        self.world.look(|keys| keys.members(&queue_of(lock)).to_vec())
    }

    /// Queues the entries of before again, but for that of the holder.
    fn restore(&self, lock: &str, before: &[(f64, Bytes)]) {
        let there = self.entries(lock);
        let value = self.world.look(|keys| keys.text(lock.as_bytes()).map(<[u8]>::to_vec));
        let holds = |member: &Bytes| {
            value.as_ref().is_some_and(|value| value.get(..32) == member.get(..32))
        };
        for (arrival, member) in before {
            if !holds(member) && !there.iter().any(|(_, other)| other == member) {
                let arrival = arrival.to_string();
                self.world.command(&[b"ZADD", &queue_of(lock), arrival.as_bytes(), member]);
            }
        }
    }

    /// Loses data, as a failover to a lagging replica does, or a restart without data.
    async fn lose_data(&self, rng: &mut Rng, after: Duration) {
        let snapshot = rng.bool().then(|| self.world.look(|keys| keys.snapshot()));
        sleep(after).await;
        self.world.shut_down();
        self.world.look(|keys| match snapshot {
            Some(snapshot) => keys.come_back_to(snapshot),
            None => keys.lose_everything(),
        });
        self.world.start();
    }
}

fn queue_of(lock: &str) -> Vec<u8> {
    format!("{{{lock}}}%queue").into_bytes()
}

/// Records a fault before it happens.
fn noted<'a>(
    recorder: &'a Recorder,
    hazard: Hazard,
    held: [bool; 2],
    process: usize,
    lock: &str,
) -> FaultNote<'a> {
    let fault = recorder.fault(match held {
        [true, _] => Trouble::Partition,
        // A client without an answer connects anew, and its requests arrive.
        [false, _] => Trouble::Other(hazard.name().to_owned()),
    });
    let fault = match hazard {
        Hazard::RequestLost
        | Hazard::ReplyLost
        | Hazard::Forgotten
        | Hazard::Silence
        | Hazard::Slowness => fault.process(&format!("p{process}")),
        Hazard::ForeignDelete | Hazard::ForeignSet | Hazard::StaleQueue => fault.lock(lock),
        _ => fault,
    };
    match hazard.breaks() {
        Some(assumption) => fault.breaks(assumption),
        None => fault,
    }
}

#[async_trait]
impl Harness for OnStandIn {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        // One that was made before anything was broken.
        let stranger = self.stranger.get_or_init(|| self.connect(usize::MAX));
        Arc::clone(stranger.await)
    }

    async fn client_of(&self, process: usize, _: Script) -> Arc<dyn Backend> {
        self.world.slow_down(process, self.drawn().slow);
        self.connect(process).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        self.world.command(&[b"DEL", name.as_str().as_bytes()]);
        true
    }

    fn can_evict(&self) -> bool {
        true
    }
}

#[async_trait]
impl Site for OnStandIn {
    fn begin(&self, mut rng: Rng, workload: &Workload) -> SitePlan {
        let mut hazards = Vec::new();
        // One run in five is calm, but for processes that are stopped.
        if rng.u8(..5) > 0 {
            for hazard in Hazard::ALL {
                if rng.u8(..100) < hazard.share() {
                    hazards.push((hazard, rng.u32(2..15)));
                }
            }
            // In a third of the runs. The lease decides, so that nothing else is drawn otherwise.
            if workload.ttl.as_millis().is_multiple_of(3) {
                hazards.push((Hazard::StaleQueue, 5));
            }
        }
        if !self.always.is_empty() {
            hazards = self.always.iter().map(|hazard| (*hazard, 2)).collect();
        }
        let slow = Duration::from_micros([0, 500, 3000, 20_000][rng.usize(..4)]);
        let slow = slow.min(workload.ttl / 50);
        if rng.bool() {
            self.world.let_clock_drift(rng.u64(..=100));
        }
        let is_calm = hazards.is_empty();
        let kills = !is_calm && rng.u8(..4) == 0;
        let share = self.share.unwrap_or_default();
        let what = format!("{hazards:?}, messages take up to {slow:?}, {share:?} for others");
        let breaks = hazards.iter().filter_map(|(hazard, _)| hazard.breaks()).collect();
        let mut drawn = self.drawn();
        (drawn.hazards, drawn.slow, drawn.workload) = (hazards, slow, Some(workload.clone()));
        drawn.rng = rng;
        SitePlan {
            rounds: 20..=80,
            what,
            is_calm,
            slow: slow * 8 + share,
            // One claim lease for each process: it is passed over then.
            silence: workload.ttl.min(Duration::from_secs(3)) * workload.processes as u32,
            drain: Duration::from_secs(10),
            kills,
            passes_over: true,
            breaks,
        }
    }

    fn stop(&self, process: usize, until: Moment) {
        self.note("process stopped");
        self.world.hold(process, [true, true], until);
    }

    fn kill(&self, process: usize) {
        self.note("process killed");
        self.world.kill(process);
    }

    async fn disturb(&self, recorder: &Recorder, until: Moment) {
        let (hazards, ttl) = {
            let mut drawn = self.drawn();
            let hazards = drawn.hazards.clone();
            let hazards: Vec<_> =
                hazards.into_iter().map(|(what, every)| (what, every, drawn.rng.fork())).collect();
            (hazards, drawn.workload.as_ref().expect("the run has begun").ttl)
        };
        let lanes = hazards.into_iter().map(async |(hazard, every, mut rng)| {
            loop {
                let next = Moment::now() + ttl * rng.u32(1..=every * 10) / 10;
                if next >= until {
                    return;
                }
                sleep_until(next).await;
                self.happen(recorder, hazard, rng.fork()).await;
            }
        });
        join_all(lanes).await;
    }

    fn tally(&self) -> Vec<(&'static str, u64)> {
        self.drawn().tally.iter().map(|(what, count)| (*what, *count)).collect()
    }

    fn left(&self) -> Vec<String> {
        let workload = self.drawn().workload.clone().expect("the run has begun");
        self.world.look(|keys| {
            let names =
                keys.names().into_iter().map(|name| String::from_utf8_lossy(&name).into_owned());
            let mut left: Vec<_> = names.filter(|name| !name.ends_with("%token")).collect();
            left.extend(order::violations(&workload, keys));
            left
        })
    }
}

/// Waits for all, which work at the same time.
async fn join_all(work: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let mut work: Vec<_> = work.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        work.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if work.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
