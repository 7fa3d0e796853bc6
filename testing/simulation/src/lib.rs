//! Simulated runs, drawn from a seed: many clients, many faults, one paused clock, one verdict.
//!
//! A law checks one situation that its author had in mind. A simulation draws unforeseen ones: the
//! claims and their times, the acquisitions that are cancelled, the faults of each call, and the
//! locks that an operator removes. The run is recorded and judged as a [history](lock_history). The
//! same seed is the same run, step by step.
//!
//! Each seed turns on a few kinds of fault only, each with a rate of its own: where everything
//! fails at once, little happens.
//!
//! A simulation needs a backend that can live on a paused clock ([`ClockMode::Paused`]) and on a
//! single thread. A backend whose server and connections are simulated as well provides a [`Site`],
//! which injects faults into those instead of the calls.

mod client;
mod seeds;
mod site;
mod stop;
mod variant;
mod world;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lock_core::backend::{FaultKind, QUEUE_ENTRY_GRACE};
use lock_core::clock::{Moment, repeat_pauses, sleep, sleep_until};
use lock_core::faults::{Call, Injection, Verb};
use lock_core::layer::Layered;
use lock_core::{Backend, FenceGate, LockName, Locker};
use tokio::task::JoinSet;

pub use seeds::{Seeds, Summary, search};
pub use site::{Site, SitePlan, Workload};
pub use world::{Plan, Tally};

use client::{ClientTask, Holding};
use stop::ProcessState;
use variant::Variant;
use world::{CallFault, OperatorFault, World, name};

use lock_conformance::{ClockMode, Harness};
use lock_history::{Clock, Header, History, Line, Recorder, Report, Trouble, Unreadable};

/// A simulated run, with its history and the verdict on it.
#[derive(Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The plan that was drawn from it.
    pub plan: Plan,
    /// The recorded history.
    pub lines: Vec<Line>,
    /// The counts of injected faults and other events.
    pub tally: Tally,
    /// The verdict.
    pub report: Report,
}

/// Simulates the run of `seed` on one lock space.
///
/// # Errors
///
/// The recorded lines are no history: the simulation itself is broken.
///
/// # Panics
///
/// The harness does not run on a paused clock.
pub fn run(
    seed: u64,
    harness: Arc<dyn Harness>,
    site: Option<Arc<dyn Site>>,
) -> Result<Run, Unreadable> {
    assert_eq!(harness.clock_mode(), ClockMode::Paused, "a simulation needs a clock that jumps");
    // On a thread of its own, which ends with its settings for repeatability.
    let simulation = move || {
        repeat_pauses(seed);
        silence_scripted_panics();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().expect("a runtime");
        let run = runtime.block_on(World::run(seed, harness, site));
        runtime.shutdown_background();
        run
    };
    std::thread::spawn(simulation).join().expect("a simulation does not panic")
}

impl World {
    async fn run(
        seed: u64,
        harness: Arc<dyn Harness>,
        site: Option<Arc<dyn Site>>,
    ) -> Result<Run, Unreadable> {
        let mut rng = Rng::with_seed(seed);
        let mut plan = Plan::draw(&mut rng);
        if let Some(site) = site.as_deref() {
            plan = plan.at(site, &mut rng);
        }
        let inner = harness.client().await;
        let Plan { drift, is_queueless, .. } = plan;
        let caps = Layered::new(inner, Variant { drift, is_queueless }).capabilities();
        let recorder = Recorder::in_memory(Clock::core(), header(seed, &plan, &caps));
        let resources = (0..plan.locks).map(|_| FenceGate::new(0)).collect();
        let is_faulty = AtomicBool::new(!plan.is_calm());
        let tally = Mutex::default();
        let world = Arc::new(Self { plan, recorder, harness, site, resources, is_faulty, tally });
        let _players = world.run_clients(&mut rng).await;
        world.record_residue().await;
        let lines = world.recorder.lines();
        let report = lock_history::check(&History::new(lines.iter().cloned())?);
        let mut tally = world.tally.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (what, count) in world.site.as_deref().into_iter().flat_map(Site::tally) {
            *tally.0.entry((what, "")).or_default() += count;
        }
        Ok(Run { seed, plan: world.plan.clone(), lines, tally, report })
    }

    /// Returns the tasks that did not end.
    async fn run_clients(self: &Arc<Self>, rng: &mut Rng) -> Vec<JoinSet<()>> {
        let (mut clients, mut stopped): (Vec<JoinSet<()>>, Vec<_>) = Default::default();
        let mut faults = JoinSet::new();
        let mut lockers = Vec::new();
        for process in 0..self.plan.clients {
            let of_process = ProcessState::default();
            let locks = self.locker(process, rng.fork(), of_process.clone()).await;
            let ends = self.runtimes(rng);
            let mut tasks = JoinSet::new();
            for task in 0..self.plan.tasks {
                let (world, stopped) = (Arc::clone(self), of_process.clone());
                let client = self.recorder.client(format!("p{process}/t{task}"));
                let task = stopped.clone();
                let (rng, ends, kept) = (rng.fork(), Arc::clone(&ends), Holding::default());
                let player = ClientTask { world, client, rng, stopped, ends, kept };
                tasks.spawn(task.task(player.run(locks.clone())));
            }
            clients.push(tasks);
            if self.plan.stops {
                faults.spawn(Arc::clone(self).stop(process, of_process.clone(), rng.fork()));
            }
            stopped.push(of_process);
            lockers.push(locks);
        }
        let phase = (!self.plan.is_calm())
            .then(|| self.recorder.fault(Trouble::Other("faults".to_owned())).begin());
        faults.spawn(Arc::clone(self).force(rng.fork()));
        // Long enough for some rounds, and over while most clients have more of them to come.
        let rounds = u32::try_from(self.plan.rounds / 8).unwrap_or(1).max(1);
        let faults_end = Moment::now() + self.plan.ttl * rng.u32(2..20) * rounds;
        let killed = self.plan.site_plan.as_ref().is_some_and(|site_plan| site_plan.kills);
        let killed = killed.then(|| rng.usize(..clients.len()));
        if let Some(process) = killed {
            let (after, stopped) = (self.plan.ttl * rng.u32(1..15), stopped[process].clone());
            faults.spawn(Arc::clone(self).kill(process, after, stopped));
        }
        faults.spawn(Arc::clone(self).disturb(faults_end));
        sleep_until(faults_end).await;
        self.is_faulty.store(false, Ordering::SeqCst);
        if let Some(phase) = phase {
            phase.heal();
        }
        // A waiter that is not served by then never will be; a call that has not returned is a
        // violation.
        let all_end = async {
            for (process, tasks) in clients.iter_mut().enumerate() {
                // A killed process never ends, and is not dropped before the history has been
                // judged.
                while killed != Some(process)
                    && let Some(ended) = tasks.join_next().await
                {
                    ended.expect("a player does not panic");
                }
            }
        };
        let _ = tokio::time::timeout(self.plan.outage_timeout() * 20, all_end).await;
        while let Some(ended) = faults.join_next().await {
            ended.expect("trouble does not panic");
        }
        for locks in lockers {
            // A call with the last fault ends within its bound.
            sleep(self.plan.timeout * 2).await;
            // An acquisition that never ends shows in the history.
            let _ = locks.close().await;
        }
        clients
    }

    /// Draws when the runtimes of a process end.
    fn runtimes(&self, rng: &mut Rng) -> Arc<[Moment]> {
        let lasts = (0..self.plan.runtimes).map(|_| self.plan.ttl * rng.u32(1..60) / 10);
        let ends = lasts.scan(Moment::now(), |end, lasts| {
            *end = *end + lasts;
            Some(*end)
        });
        ends.collect()
    }

    /// Returns the locker of a process, whose calls are disturbed until the fault phase ends.
    async fn locker(self: &Arc<Self>, process: usize, rng: Rng, stopped: ProcessState) -> Locker {
        let source = Mutex::new(FaultSource { rng, cut_off: 0 });
        let world = Arc::clone(self);
        let script = move |call: &Call<'_>| {
            let what =
                if let Some(goes_on) = stopped.ends().filter(|_| world.plan.site_plan.is_none()) {
                    // The request that it was about to send when it was stopped.
                    Injection::DelayRequest(goes_on.remaining())
                } else if world.is_faulty.load(Ordering::SeqCst) {
                    let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
                    source.next(call, &world.plan)
                } else {
                    Injection::None
                };
            world.tally.lock().unwrap_or_else(PoisonError::into_inner).note(what, call.verb);
            what
        };
        let inner = self.harness.client_of(process, Box::new(script)).await;
        let Plan { drift, is_queueless, .. } = self.plan;
        self.count(if is_queueless { "client without a queue" } else { "client" });
        let backend = Arc::new(Layered::new(inner, Variant { drift, is_queueless }));
        Locker::builder_from(backend)
            .timeout(self.plan.timeout)
            .default_ttl(self.plan.ttl)
            .outage_timeout(self.plan.outage_timeout())
            .local_handovers(self.plan.handovers)
            .build()
    }

    /// Stops a process now and then, for longer than a lease or not.
    async fn stop(self: Arc<Self>, process: usize, stopped: ProcessState, mut rng: Rng) {
        for _ in 0..3 {
            sleep(self.plan.ttl * rng.u32(1..400) / 50).await;
            let name = format!("p{process}");
            let fault = self.recorder.fault(Trouble::Stop).process(&name).begin();
            let goes_on = Moment::now() + self.plan.ttl * rng.u32(1..100) / 40;
            stopped.until(goes_on);
            if let Some(site) = &self.site {
                site.stop(process, goes_on);
            }
            sleep_until(goes_on).await;
            fault.heal();
        }
    }

    /// Kills a process, also at the site: its pending work is never done.
    async fn kill(self: Arc<Self>, process: usize, after: Duration, stopped: ProcessState) {
        sleep(after).await;
        let name = format!("p{process}");
        let _for_ever = self.recorder.fault(Trouble::Kill).process(&name).begin();
        stopped.for_ever();
        if let Some(site) = &self.site {
            site.kill(process);
        }
    }

    /// Makes the site inject its faults.
    async fn disturb(self: Arc<Self>, until: Moment) {
        if let Some(site) = &self.site {
            site.disturb(&self.recorder, until).await;
        }
    }

    /// Removes locks at times, without notifying their holders.
    async fn force(self: Arc<Self>, mut rng: Rng) {
        let Some(force) = self.plan.by_force else { return };
        for _ in 0..3 {
            sleep(self.plan.ttl * rng.u32(1..5)).await;
            let number = rng.usize(..self.plan.locks);
            let name = name(number);
            let what = Trouble::Other(format!("{force:?}"));
            let fault = self.recorder.fault(what).breaks(force.breaks());
            let fault = match force {
                OperatorFault::LoseData => fault.begin(),
                OperatorFault::Evict | OperatorFault::Break => fault.lock(name.as_str()).begin(),
            };
            match force {
                OperatorFault::Evict => drop(self.harness.evict(&name).await),
                OperatorFault::Break => self.break_lock(&name).await,
                OperatorFault::LoseData => drop(self.harness.lose_data().await),
            }
            // The holder believes in its lock until its next renewal, or its deadline.
            sleep(self.plan.ttl * 2).await;
            fault.heal();
        }
    }

    async fn break_lock(&self, name: &LockName) {
        let operator = self.harness.client().await;
        let seen = operator.inspect(name).await.ok();
        let holder = seen.and_then(|seen| seen.holders.first()?.owner);
        if let Some(owner) = holder {
            // The holder may have changed: the call names the holder that was seen.
            let _ = operator.break_lock(name, &owner).await;
        }
    }

    /// Waits until all unreleased locks have expired, and records the locks that are still held.
    async fn record_residue(&self) {
        sleep(self.plan.longest * 2 + self.plan.timeout + QUEUE_ENTRY_GRACE).await;
        let stranger = Locker::builder_from(self.harness.client().await).build();
        let mut left = Vec::new();
        for number in 0..self.plan.locks {
            let lock = stranger.lock(name(number)).expect("a good name").ttl(self.plan.ttl);
            match lock.try_acquire().await {
                // Its release is not part of this run.
                Ok(Some(guard)) => drop(guard),
                taken => left.push(format!("{}: {taken:?}", name(number))),
            }
        }
        if let Some(site) = &self.site {
            // Queue entries and records of clients that have left expire by themselves.
            sleep(Duration::from_secs(300)).await;
            left.extend(site.left());
        }
        self.recorder.residue(left);
    }
}

/// The faults of one process's network.
struct FaultSource {
    rng: Rng,
    /// The number of following calls that get no answer.
    cut_off: u32,
}

impl FaultSource {
    /// Returns the fault of a call in the fault phase.
    fn next(&mut self, call: &Call<'_>, plan: &Plan) -> Injection {
        let Self { rng, cut_off } = self;
        if *cut_off > 0 {
            *cut_off -= 1;
            return Injection::Hang;
        }
        if plan.partitions && rng.u8(..50) == 0 {
            *cut_off = rng.u32(1..12);
        }
        let hit = plan.mix.iter().find(|(_, rate)| rng.u32(..10_000) < *rate);
        let delay = Duration::from_nanos(rng.u64(..plan.ttl.as_nanos() as u64 * 2));
        match hit.map(|(what, _)| what) {
            None => Injection::None,
            Some(CallFault::Refuse) => Injection::Refuse(FaultKind::Unavailable),
            Some(CallFault::LoseReply) => Injection::LoseReply,
            Some(CallFault::HangAfter) => Injection::HangAfter,
            Some(CallFault::Hang) => Injection::Hang,
            Some(CallFault::DelayRequest) => Injection::DelayRequest(delay),
            Some(CallFault::DelayReply) => Injection::DelayReply(delay),
            // A wait changes nothing on the backend, so there is no late effect.
            Some(CallFault::LandLate) if matches!(call.verb, Verb::Wait | Verb::WaitLost) => {
                Injection::None
            }
            Some(CallFault::LandLate) => Injection::LandLate(delay),
            Some(CallFault::Panic) => Injection::Panic,
        }
    }
}

/// Returns the promises of a run. The clock is paused: only delays of the script take time.
fn header(seed: u64, plan: &Plan, caps: &lock_core::Capabilities) -> Header {
    let mut header = Header::new("simulation", seed, caps, plan.longest);
    let moment = Duration::from_millis(100);
    let is_in_order = plan.is_calm() && plan.handovers == 0;
    header.fifo_after = header.fifo_after.filter(|_| is_in_order).map(|_| moment);
    header.takeover = match caps.takeover {
        lock_core::Takeover::AtOnce => moment,
        lock_core::Takeover::LeasePlus(more) => more + moment,
    };
    // A hand-off to a client that has just gone away costs a claim lease, which is no longer than
    // the full one. A hand-off to a stopped process costs one for each of its tasks, or the time
    // that a site declares.
    header.hand_off = plan.timeout + plan.ttl + moment;
    let silent = match &plan.site_plan {
        Some(site_plan) if plan.stops || !site_plan.is_calm => site_plan.silence,
        None if plan.stops => plan.ttl * u32::try_from(plan.tasks).expect("a few"),
        _ => Duration::ZERO,
    };
    header.hand_off += silent;
    header.takeover += silent;
    header.told_within = moment;
    header.drain = plan.longest * 2 + plan.timeout * 2 + Duration::from_secs(4);
    (header.recovers, header.exact) = (Some(header.drain), true);
    header.residue = Some(Vec::new());
    header.passes_on = plan.handovers > 0;
    header.breaks = plan.by_force.map(OperatorFault::breaks).into_iter().collect();
    if let Some(site_plan) = &plan.site_plan {
        for bound in [&mut header.takeover, &mut header.hand_off, &mut header.told_within] {
            *bound += site_plan.slow;
        }
        header.drain += site_plan.drain;
        header.recovers = Some(header.drain);
        header.fifo_after = header.fifo_after.map(|after| after + site_plan.slow);
        header.passes_over = site_plan.passes_over;
        header.breaks.extend(&site_plan.breaks);
    }
    header
}

/// Silences the panics that the script injects.
fn silence_scripted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_scripted = panic.location().is_some_and(|at| at.file().ends_with("faults.rs"));
            if !is_scripted {
                tell(panic);
            }
        }));
    });
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {:?}", self.seed, self.plan)?;
        write!(f, "{}", self.report)
    }
}
