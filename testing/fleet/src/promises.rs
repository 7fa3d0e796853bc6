//! Promises of other clients that a check of their own shows to be broken.

/// A promise, and the name of the check that breaks it. The client alone breaks it, unless the
/// events name another one.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The client.
    pub client: &'static str,
    /// The check.
    pub check: &'static str,
    /// Options of the client's worker.
    pub options: &'static [&'static str],
    /// The promise of the client's documentation, in other words.
    pub promise: &'static str,
    /// The part of the documentation.
    pub source: &'static str,
    /// The course of events.
    pub events: &'static str,
}

/// The name of the observation that waiters wait for a free lock. Load makes it, in some runs.
pub const STOPPED_WAITERS: &str = "stopped_waiters";

impl Promise {
    /// Returns the check that sees it.
    #[must_use]
    pub fn seen_by(&self) -> &'static str {
        if self.check == STOPPED_WAITERS { "load" } else { self.check }
    }
}

/// All of them.
pub const PROMISES: &[Promise] = &[
    Promise {
        client: "sherlock",
        check: "endless",
        options: &["endless=1"],
        promise: "`expire=None`: the lock will not expire",
        source: "docstring of `RedisLock`",
        events: "one process acquires, then another one",
    },
    Promise {
        client: "redis-semaphore",
        check: "semaphore",
        options: &["limit=1"],
        promise: "`Semaphore` with limit 1: one holder at a time",
        source: "README, *Semaphore*",
        events: "one process acquires for 20 s, another one 1.3 s later for 1 s",
    },
    Promise {
        client: "redis-semaphore",
        check: "clock_ahead",
        options: &["limit=1"],
        promise: "`Semaphore` with limit 1: most reliable if the lease is longer than the clocks \
                  of clients differ, with renewals as by default",
        source: "README, *Semaphore*",
        events: "one process acquires for 20 s; another one, whose clock is 15 s ahead, asks 5.5 s \
                 later for 20 s",
    },
    Promise {
        client: "rueidislock",
        check: "server_ahead",
        options: &[],
        promise: "the context of a holder ends at once when the lock is not held any more",
        source: "README, *Features*",
        events: "the server's clock is ahead of the clients' by more than the lease: by 21 s, with \
                 a lease of 20 s; two processes acquire",
    },
    Promise {
        client: "rueidislock",
        check: "slow_request",
        options: &[],
        promise: "`WithContext` acquires the lock by waiting for it",
        source: "documentation of `Locker`",
        events: "the lock is free, on a new server; the first request for it takes 30 ms",
    },
    Promise {
        client: "rueidislock",
        check: STOPPED_WAITERS,
        options: &[],
        promise: "`WithContext` acquires the lock by waiting for it",
        source: "documentation of `Locker`",
        events: "load with `FLEET_SECONDS=60`, in some runs: an attempt fails, and its clean-up runs \
                 before the failure is counted",
    },
    Promise {
        client: "redis-py",
        check: "lost_reply_by_default",
        options: &["defaults=1"],
        promise: "`acquire(blocking=False)` returns `True` if the lock was acquired, and `False` \
                  if it was not",
        source: "docstring of `Lock.acquire`",
        events: "`Redis(host, port).lock(name)`; the connection is cut after the server has \
                 granted the lock, before the reply; by default the client repeats the request",
    },
    Promise {
        client: "redisson",
        check: "string_beside",
        options: &["watchdog=6000"],
        promise: "the watchdog prolongs a lock while the client that holds it is alive",
        source: "documentation, *Lock*",
        events: "a client holds six locks; the key of the first one in its renewals is deleted, \
                 and a lock of another client, a string, takes the name before the next renewal",
    },
];
