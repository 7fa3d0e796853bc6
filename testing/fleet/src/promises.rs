//! Promises of other clients that a check of their own shows to be broken.

/// A promise, and the name of the check that breaks it between processes of that client alone.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// The client.
    pub client: &'static str,
    /// The check.
    pub check: &'static str,
    /// Options of the client's worker.
    pub options: &'static [&'static str],
    /// The promise, in the words of the client's documentation where it has some.
    pub promise: &'static str,
    /// The course of events.
    pub events: &'static str,
}

/// All of them.
pub const PROMISES: &[Promise] = &[
    Promise {
        client: "sherlock",
        check: "endless",
        options: &["endless=1"],
        promise: "`expire=None`: the lock will not expire",
        events: "one process acquires, then another one",
    },
    Promise {
        client: "redis-semaphore",
        check: "semaphore",
        options: &["limit=1"],
        promise: "`Semaphore` with limit 1: one holder at a time",
        events: "one process acquires for 20 s, another one 1.3 s later for 1 s",
    },
];
