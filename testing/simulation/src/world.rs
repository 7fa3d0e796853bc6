//! The plan of a run, and the state that its tasks share.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lock_conformance::Harness;
use lock_core::faults::{Injection, Verb};
use lock_core::{FenceGate, LockName};
use lock_history::{Assumption, Recorder};

use super::site::{Site, SitePlan, Workload};

/// The counts of the faults of a backend's verbs, and of other events.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub(super) BTreeMap<(&'static str, &'static str), u64>);

impl Tally {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (pair, count) in &other.0 {
            *self.0.entry(*pair).or_default() += count;
        }
    }

    /// Returns the counts by event and verb.
    pub fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        self.0.iter().map(|(&(what, verb), &count)| (what, verb, count))
    }

    pub(super) fn note(&mut self, what: Injection, verb: Verb) {
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

/// The settings that a seed draws.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) clients: usize,
    pub(super) tasks: usize,
    pub(super) locks: usize,
    pub(super) rounds: usize,
    pub(super) ttl: Duration,
    /// The longest lease that an extension asks for.
    pub(super) longest: Duration,
    /// The bound on a call of the backend.
    pub(super) timeout: Duration,
    /// The faults of calls, each with its rate in ten-thousandths.
    pub(super) mix: Vec<(CallFault, u32)>,
    /// Whether clients are partitioned for a while.
    pub(super) partitions: bool,
    /// Whether clients are stopped for a while.
    pub(super) stops: bool,
    /// The rate by which the server's clock is too fast, in ten-thousandths.
    pub(super) drift: u32,
    /// The actions of an operator.
    pub(super) by_force: Option<OperatorFault>,
    /// The number of consecutive hand-overs inside a process.
    pub(super) handovers: u8,
    /// True if the backend keeps no queue and no minimum hold.
    pub(super) is_queueless: bool,
    /// The number of runtimes of each process that end while the process continues.
    pub(super) runtimes: usize,
    /// The faults below the verbs, if there is a site.
    pub(super) site_plan: Option<SitePlan>,
}

/// A fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFault {
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
pub(super) enum OperatorFault {
    Evict,
    Break,
    LoseData,
}

impl OperatorFault {
    pub(super) fn breaks(self) -> Assumption {
        match self {
            Self::Evict | Self::Break => Assumption::A3,
            Self::LoseData => Assumption::A2,
        }
    }
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let all = [
            CallFault::Refuse,
            CallFault::LoseReply,
            CallFault::HangAfter,
            CallFault::Hang,
            CallFault::DelayRequest,
            CallFault::DelayReply,
            CallFault::LandLate,
            CallFault::Panic,
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
            // Up to the drift that the margin covers.
            drift: if rng.bool() { rng.u32(..=100) } else { 0 },
            by_force: match rng.u8(..12) {
                0 => Some(OperatorFault::Evict),
                1 => Some(OperatorFault::Break),
                2 => Some(OperatorFault::LoseData),
                _ => None,
            },
            handovers: [0, 0, rng.u8(1..4), u8::MAX][rng.usize(..4)],
            longest: ttl * [1, 1, 3][rng.usize(..3)],
            is_queueless: rng.u8(..4) == 0,
            runtimes: [0, 0, 1, 3][rng.usize(..4)],
            mix,
            site_plan: None,
        }
    }

    /// Adapts the plan to a site, which disturbs messages instead of calls.
    pub(super) fn at(mut self, site: &dyn Site, rng: &mut Rng) -> Self {
        // Queues are long where many clients want the same lock.
        self.clients = rng.usize(2..=5);
        self.tasks = rng.usize(1..=4);
        self.locks = rng.usize(1..=2);
        let locks = (0..self.locks).map(|number| name(number).as_str().to_owned()).collect();
        let workload = Workload { processes: self.clients, locks, ttl: self.ttl };
        let site_plan = site.begin(rng.fork(), &workload);
        self.mix.clear();
        (self.partitions, self.drift, self.is_queueless) = (false, 0, false);
        self.rounds = rng.usize(site_plan.rounds.clone());
        if self.by_force == Some(OperatorFault::LoseData) {
            self.by_force = None;
        }
        self.site_plan = Some(site_plan);
        self
    }

    pub(super) fn is_calm(&self) -> bool {
        self.mix.is_empty()
    }

    /// Returns how long waiters tolerate an outage.
    pub(super) fn outage_timeout(&self) -> Duration {
        self.ttl * 20
    }
}

/// The state that all parts of a run share.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) recorder: Recorder,
    pub(super) harness: Arc<dyn Harness>,
    /// The site that injects faults below the verbs, instead of the calls.
    pub(super) site: Option<Arc<dyn Site>>,
    /// The guarded counters.
    pub(super) resources: Vec<FenceGate<u64>>,
    /// True in the fault phase, in which every call may be disturbed.
    pub(super) is_faulty: AtomicBool,
    pub(super) tally: Mutex<Tally>,
}

impl World {
    /// Counts an event of a client.
    pub(super) fn count(&self, what: &'static str) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        *tally.0.entry((what, "")).or_default() += 1;
    }

    pub(super) fn count_ok<T, E>(&self, what: &'static str, answer: &Result<T, E>) {
        if answer.is_ok() {
            self.count(what);
        }
    }
}

pub(super) fn name(number: usize) -> LockName {
    LockName::new(format!("n{number}")).expect("a good name")
}
