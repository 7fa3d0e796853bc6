//! What came of a run: one file for each seed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::Takeover;
use serde::{Deserialize, Serialize};

use crate::bugs::Finding;
use crate::collector::Effects;
use crate::kind::Kind;
use crate::lines;
use crate::nemesis::Around;
use crate::times::{Losses, Spread};
use crate::verdict::first_verdict;

/// What a run is started with, besides its seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How many faults.
    pub faults: u32,
    /// How many grants there have to be between two faults of a client, or of the servers.
    pub grants: u64,
    /// How many client processes.
    pub clients: usize,
    /// How many tasks in each of them.
    pub tasks: usize,
    /// How many locks, if not as many as are usual for the backend: fewer are contended more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<usize>,
    /// The kinds of fault; all that the backend can have, if there are none here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Kind>,
    /// The bug that all clients have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<String>,
    /// True if other programs load the machine: typical hand-offs may take ten times as long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            faults: 60,
            grants: 200,
            clients: 4,
            tasks: 6,
            locks: None,
            only: Vec::new(),
            bug: None,
            busy: false,
        }
    }
}

impl Settings {
    /// As they stand on the command line: those that are not the default.
    pub(crate) fn to_arguments(&self) -> String {
        let usual = Self::default();
        let mut text = String::new();
        let mut add = |name: &str, value: u64, usual: u64| {
            if value != usual {
                text += &format!(" --{name} {value}");
            }
        };
        add("faults", self.faults.into(), usual.faults.into());
        add("grants", self.grants, usual.grants);
        add("clients", self.clients as u64, usual.clients as u64);
        add("tasks", self.tasks as u64, usual.tasks as u64);
        if let Some(locks) = self.locks {
            text += &format!(" --locks {locks}");
        }
        for kind in &self.only {
            text += &format!(" --only {}", kind.name());
        }
        if let Some(bug) = &self.bug {
            text += &format!(" --bug {bug}");
        }
        if self.busy {
            text += " --busy";
        }
        text
    }
}

/// How servers are called that run already: this, and a number for each of their URLs.
pub(crate) const REMOTE: &str = "remote-";

/// What stands for a backend on the command line. URLs may hold passwords, and are not kept.
pub(crate) fn command_name(backend: &str) -> &str {
    if backend.starts_with(REMOTE) { "URL" } else { backend }
}

/// How soon the next one holds a lock whose holder has crashed, as the backend declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// When the last process of the holder is gone.
    AtOnce,
    /// So long after the end of the lease.
    LeasePlus(Duration),
}

impl From<Takeover> for Bound {
    fn from(declared: Takeover) -> Self {
        match declared {
            Takeover::AtOnce => Self::AtOnce,
            Takeover::LeasePlus(more) => Self::LeasePlus(more),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// On which backend.
    pub backend: String,
    /// What it was drawn from.
    pub seed: u64,
    /// With which settings.
    pub settings: Settings,
    /// Which code it was, in the words of who ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// By which version of the verdict.
    #[serde(default = "first_verdict")]
    pub verdict: u32,
    /// Whether what exclusion rests on was broken for all locks.
    pub breaks_all: bool,
    /// How long all of it took.
    pub took: Duration,
    /// How long clients and faults were at it.
    pub played: Duration,
    /// How long the verdict took.
    pub judged_in: Duration,
    /// The lease, where there is one.
    pub lease: Option<Duration>,
    /// The declared bound on takeover.
    pub takeover: Bound,
    /// What the verdict adds to the declared bound on takeover. In results of the first verdict, a
    /// part of it.
    pub slack: Duration,
    /// The faults, and what happened around them.
    pub around: BTreeMap<Kind, Around>,
    /// Faults that hit nothing, and do not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<Kind, u64>,
    /// The kinds of fault that this backend cannot have, and why.
    pub refused_kinds: BTreeMap<Kind, String>,
    /// How often clients did what, and how often holders were hit. Since the sixth verdict.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub draws: BTreeMap<String, u64>,
    /// The verbs that this backend cannot have, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_verbs: BTreeMap<String, String>,
    /// The guarded counters.
    pub effects: Effects,
    /// What is wrong with the run itself: too little traffic, clients that did not end.
    pub failures: Vec<String>,
    /// The first violations of each rule, in words.
    pub violations: Vec<String>,
    /// How many violations there are of each rule.
    pub broken: BTreeMap<String, u64>,
    /// Calls.
    pub operations: usize,
    /// Acquisitions that succeeded.
    pub grants: usize,
    /// Locks and resources that were used.
    pub locks: usize,
    /// Calls whose outcome nobody knows.
    pub unknown: usize,
    /// Calls, and holds that had to be renewed, whose clients felt no fault; up to the second
    /// verdict acquisitions only.
    #[serde(default)]
    pub undisturbed: u64,
    /// Of these, how many failed, or were lost.
    #[serde(default)]
    pub unexplained: u64,
    /// Acquisitions that waited for another holder, and felt no fault.
    #[serde(default)]
    pub waits: u64,
    /// Of these, how many could be judged: when they ended, certainly nobody else had the lock.
    #[serde(default)]
    pub judged_waits: u64,
    /// Overlapping claims while an assumption was broken on purpose.
    pub excused_overlaps: u64,
    /// Claims that began in such a time.
    pub claims_at_risk: u64,
    /// Fences that went back while data was lost and the clock was set back.
    pub excused_fences: u64,
    /// From the call of a release until the next waiter held.
    pub hand_offs: Spread,
    /// Those of them that no fault disturbed, and their bounds.
    #[serde(default)]
    pub prompt: Option<Prompt>,
    /// From the fault that ended a holder until the next waiter held.
    pub takeovers: Spread,
    /// After each failover and restart with older data, by its kind: the longest time for which a
    /// lock was contended, and no client relied on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub standstills: BTreeMap<String, Spread>,
    /// The promised bound of a standstill, and the time that the run adds for the load of the
    /// machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<[Duration; 2]>,
    /// Losses that holders were told of.
    pub losses: Losses,
}

/// Hand-offs that no fault disturbed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prompt {
    /// How long they took.
    pub took: Spread,
    /// What half of them may take.
    pub half: Duration,
    /// What nine in ten of them may take.
    pub most: Duration,
    /// Whether there were enough of them to judge that.
    pub judged: bool,
}

impl Outcome {
    fn order(&self) -> (&str, &Option<String>, u64) {
        (&self.backend, &self.settings.bug, self.seed)
    }

    /// True if no rule is broken, and enough has happened.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.failures.is_empty()
    }

    /// What the verdict allows beyond the declared bound on takeover; the first one did not say all
    /// of it.
    #[must_use]
    pub fn allowed(&self) -> Option<Duration> {
        (self.verdict > 1).then_some(self.slack)
    }

    /// How many faults there were.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.around.values().map(|around| around.faults).sum()
    }

    /// The command that repeats the run.
    #[must_use]
    pub fn command(&self) -> String {
        let (backend, seed) = (command_name(&self.backend), self.seed);
        format!("lock-campaign run {backend} --seed {seed}{}", self.settings.to_arguments())
    }

    /// Returns the file with the outcomes of a backend, one a line.
    #[must_use]
    pub fn path(directory: &Path, backend: &str) -> PathBuf {
        directory.join(format!("{backend}.jsonl"))
    }

    /// Stores it in the place of an earlier outcome of its seed.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let path = Self::path(directory, &self.backend);
        let mut all: Vec<Self> = lines::read(&path)?;
        all.retain(|other| other.seed != self.seed);
        all.push(self.clone());
        all.sort_by_key(|outcome| outcome.seed);
        lines::write(&path, &all)
    }

    /// Returns the one of a seed, if it is there.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn of(directory: &Path, backend: &str, seed: u64) -> io::Result<Option<Self>> {
        let all: Vec<Self> = lines::read(&Self::path(directory, backend))?;
        Ok(all.into_iter().find(|outcome| outcome.seed == seed))
    }

    /// Returns all in a directory, by backend and seed. The findings about planted bugs stand
    /// beside them.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            let is_of_outcomes = path.extension().is_some_and(|extension| extension == "jsonl");
            if is_of_outcomes && path != Finding::path(directory) {
                all.extend(lines::read::<Self>(&path)?);
            }
        }
        all.sort_by(|a: &Self, b| a.order().cmp(&b.order()));
        Ok(all)
    }
}
