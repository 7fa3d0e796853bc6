//! The backends that can be measured. A new one is an entry here, a file in `services/` if it has a
//! server, floors in `worker/floors/`, and a goals file.

use super::error::{Result, RunError};
use super::others::{ON_FILES, ON_MEMCACHED, ON_QUORUMS, ON_REDIS, ON_ZOOKEEPER, OtherLib};
use super::services::{self, Target};

/// How a backend is measured.
pub(crate) struct Backend {
    /// What its URLs begin with.
    pub(crate) scheme: &'static str,
    /// Puts up what the URL names; a bare scheme gets something of its own.
    pub(crate) start: fn(&str) -> Result<Target>,
    /// The floor for one task at a time.
    pub(crate) floor: &'static str,
    /// The floor for many tasks at once.
    pub(crate) crowd_floor: &'static str,
    /// What people use instead, shown beside it where one task is at work.
    pub(crate) beside: &'static [&'static str],
    /// Our own requests without us, shown beside it where many tasks are at work, too.
    pub(crate) bare: Option<&'static str>,
    /// Libraries of other projects, which are measured if they are asked for.
    pub(crate) others: &'static [OtherLib],
    /// Locks exclude other processes, too.
    pub(crate) between_processes: bool,
    /// When a waiter gets the lock of a holder that was killed.
    pub(crate) takeover: Takeover,
    /// Those who wait pause at random, or look from time to time: a hand-off is no number of round trips.
    pub(crate) pauses: bool,
    /// Hand-offs in one measurement: fewer where waiters look from time to time.
    pub(crate) hand_offs: u64,
    /// How many locks one process holds at once, and their lease.
    pub(crate) held: (usize, u64),
    /// How many wait in the deepest queue.
    pub(crate) deep: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takeover {
    /// When the last lease ends.
    Lease,
    /// When so many seconds have passed since the server heard of its session.
    Session(u64),
    /// When the process ends.
    Death,
}

pub(crate) const BACKENDS: &[Backend] = &[
    Backend {
        scheme: "memory",
        start: services::memory,
        floor: "tokio-mutex",
        crowd_floor: "tokio-mutex",
        beside: &[],
        bare: None,
        others: &[],
        between_processes: false,
        takeover: Takeover::Lease,
        pauses: false,
        hand_offs: 400,
        held: (100_000, 30_000),
        deep: 10_000,
    },
    Backend {
        scheme: "file",
        start: services::file,
        floor: "file-lock",
        crowd_floor: "file-lock",
        beside: &["flock(1)"],
        bare: None,
        others: ON_FILES,
        between_processes: true,
        takeover: Takeover::Death,
        pauses: false,
        hand_offs: 64,
        // Each one is an open file.
        held: (400, 5_000),
        deep: 400,
    },
    Backend {
        scheme: "redis",
        start: services::redis,
        floor: "raw-redis",
        crowd_floor: "mux-redis",
        beside: &[],
        bare: Some("bare-redis"),
        others: ON_REDIS,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: false,
        hand_offs: 400,
        held: (10_000, 5_000),
        deep: 10_000,
    },
    Backend {
        scheme: "zookeeper",
        start: services::zookeeper,
        floor: "raw-zookeeper",
        crowd_floor: "mux-zookeeper",
        beside: &[],
        bare: None,
        others: ON_ZOOKEEPER,
        between_processes: true,
        takeover: Takeover::Session(services::SHORT_SESSION),
        pauses: false,
        hand_offs: 400,
        held: (1_000, 5_000),
        // Each one who comes reads the whole line.
        deep: 1_000,
    },
    Backend {
        scheme: "memcache",
        start: services::memcached,
        floor: "raw-memcached",
        crowd_floor: "mux-memcached",
        beside: &[],
        bare: None,
        others: ON_MEMCACHED,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: true,
        // Between processes each one takes a look, 15 ms on average.
        hand_offs: 64,
        held: (10_000, 5_000),
        deep: 10_000,
    },
    Backend {
        scheme: "quorum",
        start: services::quorum,
        floor: "slowest-member",
        crowd_floor: "slowest-member",
        beside: &[],
        bare: None,
        others: ON_QUORUMS,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: true,
        // Waiters of several processes pause at random.
        hand_offs: 64,
        held: (1_000, 5_000),
        deep: 1_000,
    },
];

/// What runs of it and their goals files are called: `redis`, and by its size `quorum-5`.
pub(crate) fn run_name(backend: &Backend, servers: usize) -> String {
    match servers {
        0 | 1 => backend.scheme.to_owned(),
        many => format!("{}-{many}", backend.scheme),
    }
}

/// The backend of a run that is called like that.
fn by_name(run_name: &str) -> Option<&'static Backend> {
    let scheme = run_name.split('-').next().unwrap_or_default();
    BACKENDS.iter().find(|backend| backend.scheme == scheme)
}

/// Those who wait for its locks of ours pause at random, or look from time to time.
pub(crate) fn pauses(run_name: &str) -> bool {
    by_name(run_name).is_some_and(|backend| backend.pauses)
}

/// Why that library of another project was measured on it only as it comes.
pub(crate) fn untuned(run_name: &str, lib: &str) -> Option<&'static str> {
    by_name(run_name)?.others.iter().find(|other| other.name() == lib)?.untuned()
}

pub(crate) fn of(url: &str) -> Result<&'static Backend> {
    let scheme = url.split(':').next().unwrap_or_default();
    BACKENDS.iter().find(|backend| backend.scheme == scheme).ok_or_else(|| {
        let known: Vec<String> = BACKENDS.iter().map(|b| format!("{}:", b.scheme)).collect();
        // Not what was written: without a colon in its place it may be anything, also a password.
        RunError::Failed(format!("no such backend to measure; known are {}", known.join(", ")))
    })
}
