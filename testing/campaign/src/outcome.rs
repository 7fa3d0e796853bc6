//! The outcomes of runs, one a line in a file for each backend.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::Takeover;
use serde::{Deserialize, Serialize};

use crate::bugs::Finding;
use crate::collector::Effects;
use crate::fault_traffic::FaultTraffic;
use crate::kind::Kind;
use crate::lines;
use crate::times::{Losses, Spread};
use crate::verdict::first_verdict;

/// The settings of a run, besides its seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The number of faults.
    pub faults: u32,
    /// The least number of grants between two faults of a client, or of the servers.
    pub grants: u64,
    /// The number of client processes.
    pub clients: usize,
    /// The number of tasks in each client.
    pub tasks: usize,
    /// The number of locks, if not the backend's default. Fewer locks are contended more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locks: Option<usize>,
    /// The kinds of fault. All that the backend supports, if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Kind>,
    /// The bug planted in all clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bug: Option<String>,
    /// True if other programs load the machine. Typical hand-offs may then take ten times as long.
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
    /// Formats the settings that differ from the default as command-line options.
    pub(crate) fn to_arguments(&self) -> String {
        let default = Self::default();
        let mut text = String::new();
        let mut add = |name: &str, value: u64, default: u64| {
            if value != default {
                text += &format!(" --{name} {value}");
            }
        };
        add("faults", self.faults.into(), default.faults.into());
        add("grants", self.grants, default.grants);
        add("clients", self.clients as u64, default.clients as u64);
        add("tasks", self.tasks as u64, default.tasks as u64);
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

/// The prefix of the names of servers that run already. A hash of the URL follows.
pub(crate) const REMOTE: &str = "remote-";

/// Returns the name of a backend on the command line, or a placeholder for its URL. URLs may
/// contain passwords, so no result stores them.
pub(crate) fn command_name(backend: &str) -> &str {
    if backend.starts_with(REMOTE) { "URL" } else { backend }
}

/// The declared bound on the time from a crash of the holder to the next grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The end of the holder's last process.
    AtOnce,
    /// The end of the lease and this time more.
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

/// The outcome of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the backend.
    pub backend: String,
    /// The seed of all random choices.
    pub seed: u64,
    /// The settings of the run.
    pub settings: Settings,
    /// The description of the tested code, from the option `--code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The version of the verdict.
    #[serde(default = "first_verdict")]
    pub verdict: u32,
    /// True if the run broke an assumption of exclusion for all locks.
    pub breaks_all: bool,
    /// The duration of the run.
    pub took: Duration,
    /// The duration of the traffic and the faults.
    pub played: Duration,
    /// The duration of the verdict.
    pub judged_in: Duration,
    /// The lease, where there is one.
    pub lease: Option<Duration>,
    /// The declared bound on takeover.
    pub takeover: Bound,
    /// The allowance of the verdict beyond the declared bound on takeover. In results of the first
    /// verdict, a part of it.
    pub slack: Duration,
    /// The faults, and the traffic around them.
    pub around: BTreeMap<Kind, FaultTraffic>,
    /// Faults that hit nothing, and do not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missed: BTreeMap<Kind, u64>,
    /// The kinds of fault that this backend does not support, with the reasons.
    pub refused_kinds: BTreeMap<Kind, String>,
    /// The calls of each verb, and the hits of holders. Since the sixth verdict.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub draws: BTreeMap<String, u64>,
    /// The verbs that this backend does not support, with the reasons.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_verbs: BTreeMap<String, String>,
    /// The counters that the locks guard.
    pub effects: Effects,
    /// Failures of the run itself, such as too little traffic or clients that did not end.
    pub failures: Vec<String>,
    /// The first violations of each rule, in words.
    pub violations: Vec<String>,
    /// The number of violations of each rule.
    pub broken: BTreeMap<String, u64>,
    /// The number of calls.
    pub operations: usize,
    /// The number of successful acquisitions.
    pub grants: usize,
    /// The number of locks and resources that were used.
    pub locks: usize,
    /// The number of calls with an unknown outcome.
    pub unknown: usize,
    /// The calls, and the renewed holds, whose clients felt no fault. Up to the second verdict,
    /// acquisitions only.
    #[serde(default)]
    pub undisturbed: u64,
    /// The number of `undisturbed` calls that failed, and holds that were lost.
    #[serde(default)]
    pub unexplained: u64,
    /// The acquisitions that waited for another holder, and felt no fault.
    #[serde(default)]
    pub waits: u64,
    /// The number of `waits` that could be judged: at their end, certainly no other client had the
    /// lock.
    #[serde(default)]
    pub judged_waits: u64,
    /// The overlaps of claims while an assumption was broken on purpose.
    pub excused_overlaps: u64,
    /// The claims that began while an assumption was broken.
    pub claims_at_risk: u64,
    /// The fencing tokens that decreased while data was lost and the clock was set back.
    pub excused_fences: u64,
    /// The times from the call of a release to the next grant.
    pub hand_offs: Spread,
    /// The hand-offs that no fault disturbed, and their bounds.
    #[serde(default)]
    pub prompt: Option<Prompt>,
    /// The times from the fault that ended a holder to the next grant.
    pub takeovers: Spread,
    /// The longest time after each failover and restart with older data in which a lock was
    /// contended and no client relied on it, by the kind of fault.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub standstills: BTreeMap<String, Spread>,
    /// The promised bound of a standstill, and the allowance for the load of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<[Duration; 2]>,
    /// The losses of which holders were notified.
    pub losses: Losses,
}

/// The hand-offs that no fault disturbed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prompt {
    /// The durations.
    pub took: Spread,
    /// The bound on the median.
    pub half: Duration,
    /// The bound on the 90th percentile.
    pub most: Duration,
    /// True if there were enough hand-offs to judge them.
    pub judged: bool,
}

impl Outcome {
    fn order(&self) -> (&str, &Option<String>, u64) {
        (&self.backend, &self.settings.bug, self.seed)
    }

    /// Returns true if the run broke no rule and had enough traffic.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.broken.is_empty() && self.failures.is_empty()
    }

    /// Returns the allowance of the verdict beyond the declared bound on takeover. `None` for the
    /// first verdict, whose results have only a part of it.
    #[must_use]
    pub fn allowed(&self) -> Option<Duration> {
        (self.verdict > 1).then_some(self.slack)
    }

    /// Returns the number of faults.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.around.values().map(|around| around.faults).sum()
    }

    /// Returns the command that repeats the run.
    #[must_use]
    pub fn command(&self) -> String {
        let (backend, seed) = (command_name(&self.backend), self.seed);
        format!("lock-campaign run {backend} --seed {seed}{}", self.settings.to_arguments())
    }

    /// Returns the path of the file with the outcomes of a backend, one a line.
    #[must_use]
    pub fn path(directory: &Path, backend: &str) -> PathBuf {
        directory.join(format!("{backend}.jsonl"))
    }

    /// Stores the outcome in the place of an earlier one of its seed.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn store(&self, directory: &Path) -> io::Result<()> {
        let path = Self::path(directory, &self.backend);
        let mut all: Vec<Self> = lines::read(&path)?;
        all.retain(|other| other.seed != self.seed);
        all.push(self.clone());
        all.sort_by_key(|outcome| outcome.seed);
        lines::write(&path, &all)
    }

    /// Returns the stored outcome of a seed, if there is one.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn find(directory: &Path, backend: &str, seed: u64) -> io::Result<Option<Self>> {
        let all: Vec<Self> = lines::read(&Self::path(directory, backend))?;
        Ok(all.into_iter().find(|outcome| outcome.seed == seed))
    }

    /// Returns all outcomes in a directory, by backend and seed. The file of findings in the same
    /// directory is left out.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn load_all(directory: &Path) -> io::Result<Vec<Self>> {
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
