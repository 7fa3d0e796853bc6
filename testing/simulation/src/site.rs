//! The faults that a simulation can inject below the verbs.

use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use lock_core::clock::Moment;

use lock_history::{Assumption, Recorder};

/// The simulated server and connections of a backend. With a site, the verbs are left alone, and
/// faults are injected into their messages.
#[async_trait]
pub trait Site: Send + Sync {
    /// Draws the plan of the run. Called once, before anything else.
    fn begin(&self, rng: Rng, workload: &Workload) -> SitePlan;

    /// Stops the process: until then it sends and receives nothing.
    fn stop(&self, process: usize, until: Moment);

    /// Kills the process: its connections end, and it never sends again.
    fn kill(&self, process: usize);

    /// Injects faults until then, and records each before it happens and after it is over. No fault
    /// is left when this returns.
    async fn disturb(&self, recorder: &Recorder, until: Moment);

    /// Returns the counts of events.
    fn tally(&self) -> Vec<(&'static str, u64)>;

    /// Returns the defects and the residue of the server, after the end of all leases.
    fn left(&self) -> Vec<String>;
}

/// The part of a run's plan that a site needs.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The number of processes.
    pub processes: usize,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// The ttl of all locks.
    pub ttl: Duration,
}

/// The faults that a site has drawn.
#[derive(Clone, Debug)]
pub struct SitePlan {
    /// The number of acquisitions of each task.
    pub rounds: RangeInclusive<usize>,
    /// The faults, in words.
    pub what: String,
    /// True if there are none.
    pub is_calm: bool,
    /// The additional time that a request and its answer may take, at any time.
    pub slow: Duration,
    /// The additional time that a hand-off may take while processes are silent: messages to them
    /// are lost.
    pub silence: Duration,
    /// The additional time until the faults have no more effects.
    pub drain: Duration,
    /// True if processes are killed.
    pub kills: bool,
    /// True if a waiter that lets the lease of a pushed lock expire is passed over, together with
    /// its process.
    pub passes_over: bool,
    /// Assumptions that are broken.
    pub breaks: Vec<Assumption>,
}
