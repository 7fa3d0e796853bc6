//! Runs that are drawn from a seed: many clients, many faults, one paused clock, one verdict.
//!
//! A law checks one situation that its author had in mind. A simulation draws unforeseen ones: the
//! claims and their times, the acquisitions that are cancelled, the faults of each call, and the locks
//! that an operator removes. The run is recorded and judged as a [history](lock_history). The same
//! seed is the same run, step by step.
//!
//! Each seed turns on a few kinds of fault only, each with a rate of its own: where everything fails at
//! once, little happens.
//!
//! It needs a backend that can live on a paused clock ([`ClockMode::Paused`]) and on a single thread. One whose server
//! and connections are simulated as well brings along a [`Site`], which breaks those instead of the calls.

mod player;
mod seeds;
mod site;
mod stop;
mod variant;

use std::collections::BTreeMap;
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

pub use seeds::{Seeds, Sum, search};
pub use site::{Scene, Site, Stage};

use player::{Kept, Player};
use stop::Stopped;
use variant::Variant;

use lock_conformance::{ClockMode, Harness};
use lock_history::{
    Assumption, Clock, Header, History, Line, Recorder, Report, Trouble, Unreadable,
};

/// A run: what it did, and whether locks may do that.
#[derive(Debug)]
pub struct Run {
    /// What it was drawn from.
    pub seed: u64,
    /// What was drawn.
    pub plan: Plan,
    /// What was recorded.
    pub lines: Vec<Line>,
    /// What was disturbed.
    pub tally: Tally,
    /// The verdict.
    pub report: Report,
}

/// How often something happened to the verbs of a backend, or to a client.
#[derive(Clone, Debug, Default)]
pub struct Tally(BTreeMap<(&'static str, &'static str), u64>);

impl Tally {
    /// Adds up what happened in several runs.
    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.0 {
            *self.0.entry(*pair).or_default() += count;
        }
    }

    /// What happened to which verb, and how often.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.0.iter().map(|(&(what, verb), &count)| (what, verb, count))
    }

    fn note(&mut self, what: Injection, verb: Verb) {
        let what = match what {
            Injection::Refuse(_) => "refused",
            Injection::LoseReply => "reply lost",
            Injection::HangAfter => "no reply",
            Injection::Hang => "request lost",
            Injection::DelayRequest(_) => "request late",
            Injection::DelayReply(_) => "reply late",
            Injection::LandLate(_) => "given up, lands late",
            Injection::Panic => "panic",
            _ => "undisturbed",
        };
        let verb = match verb {
            Verb::TryAcquire => "try_acquire",
            Verb::Wait => "wait",
            Verb::WaitLost => "wait_lost",
            Verb::Renew => "renew",
            Verb::Release => "release",
        };
        *self.0.entry((what, verb)).or_default() += 1;
    }
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    clients: usize,
    tasks: usize,
    locks: usize,
    rounds: usize,
    ttl: Duration,
    /// The longest lease that is asked for, by an extension.
    longest: Duration,
    /// How long the backend is given for a call.
    timeout: Duration,
    /// In ten thousand calls of a verb, how many are disturbed in which way.
    mix: Vec<(What, u32)>,
    /// Whether clients are cut off for a while.
    partitions: bool,
    /// Whether clients are stopped for a while.
    stops: bool,
    /// By how many in ten thousand the server's clock is too fast.
    drift: u32,
    /// What is broken by hand.
    by_force: Option<Force>,
    /// How often in a row a process hands a lock over to itself.
    handovers: u8,
    /// The backend keeps no queue and no minimum hold.
    is_queueless: bool,
    /// How many runtimes of each process end while the process goes on.
    runtimes: usize,
    /// What is broken below the verbs, if that can be.
    scene: Option<Scene>,
}

/// What can happen to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Refuse,
    LoseReply,
    HangAfter,
    Hang,
    DelayRequest,
    DelayReply,
    LandLate,
    Panic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Force {
    Evict,
    Break,
    LoseData,
}

impl Force {
    fn breaks(self) -> Assumption {
        match self {
            Self::Evict | Self::Break => Assumption::A3,
            Self::LoseData => Assumption::A2,
        }
    }
}

/// Runs what `seed` stands for on one lock space.
///
/// # Errors
///
/// What was recorded is no history: the simulation itself is broken.
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
    // A thread of its own: what is repeatable on it ends with it.
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

impl Plan {
    fn draw(rng: &mut Rng) -> Self {
        let all = [
            What::Refuse,
            What::LoseReply,
            What::HangAfter,
            What::Hang,
            What::DelayRequest,
            What::DelayReply,
            What::LandLate,
            What::Panic,
        ];
        let mut mix = Vec::new();
        // One run in four is calm: there the bounds on waiting hold without exception.
        if rng.u8(..4) > 0 {
            for what in all {
                if rng.u8(..3) == 0 {
                    mix.push((what, rng.u32(50..2500)));
                }
            }
        }
        let ttl = Duration::from_millis(rng.u64(200..8000));
        Self {
            clients: rng.usize(2..=4),
            tasks: rng.usize(1..=3),
            locks: rng.usize(1..=3),
            rounds: rng.usize(4..=12),
            ttl,
            timeout: ttl * rng.u32(1..8) / 4,
            partitions: !mix.is_empty() && rng.u8(..3) == 0,
            stops: rng.u8(..3) == 0,
            // Up to what the margin is for.
            drift: if rng.bool() { rng.u32(..=100) } else { 0 },
            by_force: match rng.u8(..12) {
                0 => Some(Force::Evict),
                1 => Some(Force::Break),
                2 => Some(Force::LoseData),
                _ => None,
            },
            handovers: [0, 0, rng.u8(1..4), u8::MAX][rng.usize(..4)],
            longest: ttl * [1, 1, 3][rng.usize(..3)],
            is_queueless: rng.u8(..4) == 0,
            runtimes: [0, 0, 1, 3][rng.usize(..4)],
            mix,
            scene: None,
        }
    }

    /// The same, where calls are left alone, and what they are made of is not.
    fn at(mut self, site: &dyn Site, rng: &mut Rng) -> Self {
        // Lines are long where many want the same.
        self.clients = rng.usize(2..=5);
        self.tasks = rng.usize(1..=4);
        self.locks = rng.usize(1..=2);
        let locks = (0..self.locks).map(|number| name(number).as_str().to_owned()).collect();
        let stage = Stage { processes: self.clients, locks, ttl: self.ttl };
        let scene = site.begin(rng.fork(), &stage);
        self.mix.clear();
        (self.partitions, self.drift, self.is_queueless) = (false, 0, false);
        self.rounds = rng.usize(scene.rounds.clone());
        if self.by_force == Some(Force::LoseData) {
            self.by_force = None;
        }
        self.scene = Some(scene);
        self
    }

    fn is_calm(&self) -> bool {
        self.mix.is_empty()
    }

    /// How long waiters bear an outage.
    fn outage_timeout(&self) -> Duration {
        self.ttl * 20
    }
}

/// What all parts of a run share.
struct World {
    plan: Plan,
    recorder: Recorder,
    harness: Arc<dyn Harness>,
    /// What is broken below the verbs, instead of the calls.
    site: Option<Arc<dyn Site>>,
    /// The guarded counters.
    resources: Vec<FenceGate<u64>>,
    /// Until then every call of everybody may be disturbed.
    stormy: AtomicBool,
    tally: Mutex<Tally>,
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
        let stormy = AtomicBool::new(!plan.is_calm());
        let tally = Mutex::default();
        let world = Arc::new(Self { plan, recorder, harness, site, resources, stormy, tally });
        let _players = world.play(&mut rng).await;
        world.look_what_is_left().await;
        let lines = world.recorder.lines();
        let report = lock_history::check(&History::new(lines.iter().cloned())?);
        let mut tally = world.tally.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (what, count) in world.site.as_deref().into_iter().flat_map(Site::tally) {
            *tally.0.entry((what, "")).or_default() += count;
        }
        Ok(Run { seed, plan: world.plan.clone(), lines, tally, report })
    }

    /// Returns the tasks of those who did not end.
    async fn play(self: &Arc<Self>, rng: &mut Rng) -> Vec<JoinSet<()>> {
        let (mut players, mut stopped): (Vec<JoinSet<()>>, Vec<_>) = Default::default();
        let mut troubles = JoinSet::new();
        let mut lockers = Vec::new();
        for process in 0..self.plan.clients {
            let of_process = Stopped::default();
            let locks = self.locker(process, rng.fork(), of_process.clone()).await;
            let ends = self.runtimes(rng);
            let mut tasks = JoinSet::new();
            for task in 0..self.plan.tasks {
                let (world, stopped) = (Arc::clone(self), of_process.clone());
                let client = self.recorder.client(format!("p{process}/t{task}"));
                let task = stopped.clone();
                let (rng, ends, kept) = (rng.fork(), Arc::clone(&ends), Kept::default());
                let player = Player { world, client, rng, stopped, ends, kept };
                tasks.spawn(task.task(player.play(locks.clone())));
            }
            players.push(tasks);
            if self.plan.stops {
                troubles.spawn(Arc::clone(self).stop(process, of_process.clone(), rng.fork()));
            }
            stopped.push(of_process);
            lockers.push(locks);
        }
        let storm = (!self.plan.is_calm())
            .then(|| self.recorder.fault(Trouble::Other("storm".to_owned())).begin());
        troubles.spawn(Arc::clone(self).force(rng.fork()));
        // Long enough for some rounds, and over while most have more of them to come.
        let rounds = u32::try_from(self.plan.rounds / 8).unwrap_or(1).max(1);
        let storm_ends = Moment::now() + self.plan.ttl * rng.u32(2..20) * rounds;
        let killed = self.plan.scene.as_ref().is_some_and(|scene| scene.kills);
        let killed = killed.then(|| rng.usize(..players.len()));
        if let Some(process) = killed {
            let (after, stopped) = (self.plan.ttl * rng.u32(1..15), stopped[process].clone());
            troubles.spawn(Arc::clone(self).kill(process, after, stopped));
        }
        troubles.spawn(Arc::clone(self).disturb(storm_ends));
        sleep_until(storm_ends).await;
        self.stormy.store(false, Ordering::SeqCst);
        if let Some(storm) = storm {
            storm.heal();
        }
        // Who is not served by then never will be; a call that has not returned is a violation.
        let all_end = async {
            for (process, tasks) in players.iter_mut().enumerate() {
                // Whoever was killed never ends, nor is it dropped before the history has been judged.
                while killed != Some(process)
                    && let Some(ended) = tasks.join_next().await
                {
                    ended.expect("a player does not panic");
                }
            }
        };
        let _ = tokio::time::timeout(self.plan.outage_timeout() * 20, all_end).await;
        while let Some(ended) = troubles.join_next().await {
            ended.expect("trouble does not panic");
        }
        for locks in lockers {
            // A call that the last gust has hit ends within its bound.
            sleep(self.plan.timeout * 2).await;
            // An acquisition that never ends is seen in the history.
            let _ = locks.close().await;
        }
        players
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

    /// A process: its calls are disturbed as long as the storm lasts.
    async fn locker(self: &Arc<Self>, process: usize, rng: Rng, stopped: Stopped) -> Locker {
        let weather = Mutex::new(Weather { rng, cut_off: 0 });
        let world = Arc::clone(self);
        let script = move |call: &Call<'_>| {
            let what = if let Some(goes_on) = stopped.ends().filter(|_| world.plan.scene.is_none())
            {
                // What it was about to send when it was stopped.
                Injection::DelayRequest(goes_on.remaining())
            } else if world.stormy.load(Ordering::SeqCst) {
                let mut weather = weather.lock().unwrap_or_else(PoisonError::into_inner);
                weather.gust(call, &world.plan)
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

    /// Counts something that happened to a client.
    fn count(&self, what: &'static str) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        *tally.0.entry((what, "")).or_default() += 1;
    }

    fn count_ok<T, E>(&self, what: &'static str, answer: &Result<T, E>) {
        if answer.is_ok() {
            self.count(what);
        }
    }

    /// Stops a process now and then, for longer than a lease or not.
    async fn stop(self: Arc<Self>, process: usize, stopped: Stopped, mut rng: Rng) {
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

    /// Kills a process that the site knows: what it was about to do is never done.
    async fn kill(self: Arc<Self>, process: usize, after: Duration, stopped: Stopped) {
        sleep(after).await;
        let name = format!("p{process}");
        let _for_ever = self.recorder.fault(Trouble::Kill).process(&name).begin();
        stopped.for_ever();
        if let Some(site) = &self.site {
            site.kill(process);
        }
    }

    /// Has the site break what it can.
    async fn disturb(self: Arc<Self>, until: Moment) {
        if let Some(site) = &self.site {
            site.disturb(&self.recorder, until).await;
        }
    }

    /// Removes locks behind their holders' backs, now and then.
    async fn force(self: Arc<Self>, mut rng: Rng) {
        let Some(force) = self.plan.by_force else { return };
        for _ in 0..3 {
            sleep(self.plan.ttl * rng.u32(1..5)).await;
            let number = rng.usize(..self.plan.locks);
            let name = name(number);
            let what = Trouble::Other(format!("{force:?}"));
            let fault = self.recorder.fault(what).breaks(force.breaks());
            let fault = match force {
                Force::LoseData => fault.begin(),
                Force::Evict | Force::Break => fault.lock(name.as_str()).begin(),
            };
            match force {
                Force::Evict => drop(self.harness.evict(&name).await),
                Force::Break => self.break_lock(&name).await,
                Force::LoseData => drop(self.harness.lose_data().await),
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
            // Whoever it is by then: it names the holder that was seen.
            let _ = operator.break_lock(name, &owner).await;
        }
    }

    /// When what was not let go has lapsed, nothing is held.
    async fn look_what_is_left(&self) {
        sleep(self.plan.longest * 2 + self.plan.timeout + QUEUE_ENTRY_GRACE).await;
        let stranger = Locker::builder_from(self.harness.client().await).build();
        let mut left = Vec::new();
        for number in 0..self.plan.locks {
            let lock = stranger.lock(name(number)).expect("a good name").ttl(self.plan.ttl);
            match lock.try_acquire().await {
                // What becomes of it is no matter of this run.
                Ok(Some(guard)) => drop(guard),
                taken => left.push(format!("{}: {taken:?}", name(number))),
            }
        }
        if let Some(site) = &self.site {
            // Places and what is kept of those who have left end by themselves.
            sleep(Duration::from_secs(300)).await;
            left.extend(site.left());
        }
        self.recorder.residue(left);
    }
}

/// What the network of one process is like.
struct Weather {
    rng: Rng,
    /// So many calls more get no answer at all.
    cut_off: u32,
}

impl Weather {
    /// What happens to a call in the storm.
    fn gust(&mut self, call: &Call<'_>, plan: &Plan) -> Injection {
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
            Some(What::Refuse) => Injection::Refuse(FaultKind::Unavailable),
            Some(What::LoseReply) => Injection::LoseReply,
            Some(What::HangAfter) => Injection::HangAfter,
            Some(What::Hang) => Injection::Hang,
            Some(What::DelayRequest) => Injection::DelayRequest(delay),
            Some(What::DelayReply) => Injection::DelayReply(delay),
            // A wait changes nothing on the backend, so there is nothing to land.
            Some(What::LandLate) if matches!(call.verb, Verb::Wait | Verb::WaitLost) => {
                Injection::None
            }
            Some(What::LandLate) => Injection::LandLate(delay),
            Some(What::Panic) => Injection::Panic,
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
    // A hand-off to somebody who has just gone away costs a claim lease, which is no longer than the
    // whole; and one to a process that is stopped costs one for each of its tasks, or what a site says.
    header.hand_off = plan.timeout + plan.ttl + moment;
    let silent = match &plan.scene {
        Some(scene) if plan.stops || !scene.is_calm => scene.silence,
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
    header.breaks = plan.by_force.map(Force::breaks).into_iter().collect();
    if let Some(scene) = &plan.scene {
        for bound in [&mut header.takeover, &mut header.hand_off, &mut header.told_within] {
            *bound += scene.slow;
        }
        header.drain += scene.drain;
        header.recovers = Some(header.drain);
        header.fifo_after = header.fifo_after.map(|after| after + scene.slow);
        header.passes_over = scene.passes_over;
        header.breaks.extend(&scene.breaks);
    }
    header
}

fn name(number: usize) -> LockName {
    LockName::new(format!("n{number}")).expect("a good name")
}

/// A backend that panics as the script says is no news.
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
