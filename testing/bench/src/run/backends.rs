//! The backends that can be measured.
//!
//! A new one is an entry here, a file in `services/` if it has a server, floors in
//! `worker/floors/`, and a goals file.

use super::error::{Result, RunError};
use super::others::{ON_FILES, ON_MEMCACHED, ON_QUORUMS, ON_REDIS, ON_ZOOKEEPER, OtherLib};
use super::services::{self, Target};

/// A backend, and the parameters of its measurements.
pub(crate) struct Backend {
    /// The prefix of its URLs.
    pub(crate) scheme: &'static str,
    /// Starts the target of a URL; a bare scheme gets a new one.
    pub(crate) start: fn(&str) -> Result<Target>,
    /// The floor for one task at a time.
    pub(crate) floor: &'static str,
    /// The floor for many tasks at once.
    pub(crate) crowd_floor: &'static str,
    /// Common alternatives, shown beside it where one task works.
    pub(crate) alternatives: &'static [&'static str],
    /// Our own requests without our library, shown beside it also where many tasks work.
    pub(crate) bare: Option<&'static str>,
    /// Libraries of other projects, which are measured on request.
    pub(crate) others: &'static [OtherLib],
    /// Locks exclude other processes, too.
    pub(crate) between_processes: bool,
    /// The moment from which a waiter can get the lock of a killed holder.
    pub(crate) takeover: Takeover,
    /// Waiters pause at random or poll: a hand-off is not a number of round trips.
    pub(crate) pauses: bool,
    /// Hand-offs in one measurement: fewer if waiters poll.
    pub(crate) hand_offs: u64,
    /// The number of locks that one process holds at once, and their lease in ms.
    pub(crate) held: (usize, u64),
    /// The number of waiters in the deepest queue.
    pub(crate) deep: usize,
    /// The same where only requests are counted.
    pub(crate) deep_counted: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takeover {
    /// The end of the last lease.
    Lease,
    /// So many seconds after the last request of the session.
    Session(u64),
    /// The end of the process.
    Death,
}

pub(crate) const BACKENDS: &[Backend] = &[
    Backend {
        scheme: "memory",
        start: services::memory,
        floor: "tokio-mutex",
        crowd_floor: "tokio-mutex",
        alternatives: &[],
        bare: None,
        others: &[],
        between_processes: false,
        takeover: Takeover::Lease,
        pauses: false,
        hand_offs: 400,
        held: (100_000, 30_000),
        deep: 10_000,
        deep_counted: 10_000,
    },
    Backend {
        scheme: "file",
        start: services::file,
        floor: "file-lock",
        crowd_floor: "file-lock",
        alternatives: &["flock(1)"],
        bare: None,
        others: ON_FILES,
        between_processes: true,
        takeover: Takeover::Death,
        pauses: false,
        hand_offs: 64,
        // Each one is an open file.
        held: (400, 5_000),
        deep: 400,
        deep_counted: 400,
    },
    Backend {
        scheme: "redis",
        start: services::redis,
        floor: "raw-redis",
        crowd_floor: "mux-redis",
        alternatives: &[],
        bare: Some("bare-redis"),
        others: ON_REDIS,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: false,
        hand_offs: 400,
        held: (10_000, 5_000),
        deep: 10_000,
        deep_counted: 10_000,
    },
    Backend {
        scheme: "zookeeper",
        start: services::zookeeper,
        floor: "raw-zookeeper",
        crowd_floor: "mux-zookeeper",
        alternatives: &[],
        bare: None,
        others: ON_ZOOKEEPER,
        between_processes: true,
        takeover: Takeover::Session(services::SHORT_SESSION),
        pauses: false,
        hand_offs: 400,
        held: (1_000, 5_000),
        // Each new waiter reads the whole queue.
        deep: 1_000,
        deep_counted: 10_000,
    },
    Backend {
        scheme: "memcache",
        start: services::memcached,
        floor: "raw-memcached",
        crowd_floor: "mux-memcached",
        alternatives: &[],
        bare: None,
        others: ON_MEMCACHED,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: true,
        // Between processes each waiter polls, after 15 ms on average.
        hand_offs: 64,
        held: (10_000, 5_000),
        deep: 10_000,
        deep_counted: 10_000,
    },
    Backend {
        scheme: "quorum",
        start: services::quorum,
        floor: "slowest-member",
        crowd_floor: "slowest-member",
        alternatives: &[],
        bare: None,
        others: ON_QUORUMS,
        between_processes: true,
        takeover: Takeover::Lease,
        pauses: true,
        // Waiters of several processes pause at random.
        hand_offs: 64,
        held: (1_000, 5_000),
        deep: 1_000,
        deep_counted: 1_000,
    },
];

/// Returns the name of its runs and goals files: `redis`, and by its size `quorum-5`.
pub(crate) fn run_name(backend: &Backend, servers: usize) -> String {
    match servers {
        0 | 1 => backend.scheme.to_owned(),
        many => format!("{}-{many}", backend.scheme),
    }
}

/// Finds the backend of a run by the name of the run.
fn by_name(run_name: &str) -> Option<&'static Backend> {
    let scheme = run_name.split('-').next().unwrap_or_default();
    BACKENDS.iter().find(|backend| backend.scheme == scheme)
}

/// Returns whether waiters for our locks on it pause at random or poll.
pub(crate) fn pauses(run_name: &str) -> bool {
    by_name(run_name).is_some_and(|backend| backend.pauses)
}

/// Returns why the library of another project was measured only with its defaults.
pub(crate) fn untuned(run_name: &str, lib: &str) -> Option<&'static str> {
    by_name(run_name)?.others.iter().find(|other| other.name() == lib)?.untuned()
}

pub(crate) fn of(url: &str) -> Result<&'static Backend> {
    let scheme = url.split(':').next().unwrap_or_default();
    BACKENDS.iter().find(|backend| backend.scheme == scheme).ok_or_else(|| {
        let known: Vec<String> = BACKENDS.iter().map(|b| format!("{}:", b.scheme)).collect();
        // Without the URL: if it has no colon, it can be anything, even a password.
        RunError::Failed(format!("no such backend to measure; known are {}", known.join(", ")))
    })
}
