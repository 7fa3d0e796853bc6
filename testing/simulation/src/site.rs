//! What a simulation can break below the verbs.

use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use lock_core::clock::Moment;

use lock_history::{Assumption, Recorder};

/// Where a backend is simulated together with its server and its connections. Then nothing is done to its verbs:
/// what is drawn happens to what they are made of.
#[async_trait]
pub trait Site: Send + Sync {
    /// Draws what is going to happen. Called once, before anything else.
    fn begin(&self, rng: Rng, workload: &Workload) -> SitePlan;

    /// The process is stopped: until then nothing leaves it, and nothing reaches it.
    fn stop(&self, process: usize, until: Moment);

    /// The process is killed: its connections end, and it is never heard of again.
    fn kill(&self, process: usize);

    /// Breaks things until then, and notes each before it happens and after it is over. All is well again when
    /// this returns.
    async fn disturb(&self, recorder: &Recorder, until: Moment);

    /// How often what happened.
    fn tally(&self) -> Vec<(&'static str, u64)>;

    /// What is wrong at the server, or left on it, when all is over and all leases have ended.
    fn left(&self) -> Vec<String>;
}

/// A run, as far as a site has to know it.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many processes there are.
    pub processes: usize,
    /// The names of the locks.
    pub locks: Vec<String>,
    /// Of all locks.
    pub ttl: Duration,
}

/// What a site has drawn.
#[derive(Clone, Debug)]
pub struct SitePlan {
    /// How many locks each task wants.
    pub rounds: RangeInclusive<usize>,
    /// What is going to be broken, in words.
    pub what: String,
    /// Nothing is.
    pub is_calm: bool,
    /// So much longer may a request and its answer take, at any time.
    pub slow: Duration,
    /// So much longer may a hand-off take while processes are silent: what they are sent is lost.
    pub silence: Duration,
    /// So much longer may it take until nothing is left of what was broken.
    pub drain: Duration,
    /// Processes are killed.
    pub kills: bool,
    /// Who lets the lease of a lock that it was sent run out is passed over, with its process.
    pub passes_over: bool,
    /// Assumptions that are broken.
    pub breaks: Vec<Assumption>,
}
