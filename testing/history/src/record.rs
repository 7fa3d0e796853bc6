//! The lines of a history: one JSON object each, distinguished by `kind`.

use std::time::Duration;

use lock_core::{Capabilities, Error, ErrorKind, Fencing, Loss, Order, Takeover};
use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The first line: the promises of this run.
    Header(Header),
    /// An operation's invocation or completion, or a loss.
    Record(Record),
    /// The start of an injected fault.
    Fault(Fault),
    /// The end of the fault of that number.
    Heal(Heal),
    /// The state left on the server.
    Residue(Residue),
}

/// The promises of a run, and the assumptions that it breaks on purpose. Durations are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// The version of this format: [`VERSION`](Self::VERSION).
    pub version: u32,
    /// Names the run.
    pub run: String,
    /// The seed of the run.
    pub seed: u64,
    /// The backend's name.
    pub backend: String,
    /// The clock that `t` was read from.
    pub clock: ClockName,
    /// True if one recorder has written all lines. Then the order of lines is the order of time,
    /// also where `t` is equal.
    pub sequential: bool,
    /// The grade of the fencing tokens.
    pub fencing: Grade,
    /// Waits that began at least this far apart are served first come, first served: a wait may
    /// take this long to be queued. `None` if no order is promised.
    #[serde(default, with = "nanos_option")]
    pub fifo_after: Option<Duration>,
    /// The time for which a server keeps a lock that is not renewed. `None` if the lock ends with
    /// its process.
    #[serde(default, with = "nanos_option")]
    pub lease: Option<Duration>,
    /// The time before the end of its lease at which a holder stops treating the lock as held.
    #[serde(with = "nanos")]
    pub margin: Duration,
    /// The bound from the end of a crashed holder's lease until a waiter holds the lock.
    #[serde(with = "nanos")]
    pub takeover: Duration,
    /// The bound from the answer to a release until a waiter holds the lock.
    #[serde(with = "nanos")]
    pub hand_off: Duration,
    /// The bound on the median of the undisturbed hand-offs, from the invocation of the release.
    /// Not checked if absent.
    #[serde(default, with = "nanos_option")]
    pub half: Option<Duration>,
    /// The same bound for nine in ten of them.
    #[serde(default, with = "nanos_option")]
    pub most: Option<Duration>,
    /// The same bound for all of them: hand-offs whose holder and waiter met no fault, from one
    /// lease before the release.
    #[serde(default, with = "nanos_option")]
    pub all: Option<Duration>,
    /// The bound from the end of a lease until its holder is notified, if it runs.
    #[serde(with = "nanos")]
    pub told_within: Duration,
    /// The time from the end of a fault until it has no more effects.
    #[serde(with = "nanos")]
    pub drain: Duration,
    /// The time from the end of a fault until a client that met it waits no longer than another
    /// one. `drain` if absent, and then failures need no reason.
    #[serde(default, with = "nanos_option")]
    pub recovers: Option<Duration>,
    /// The time from the end of an undisturbed call with unknown outcome until only a lease is left
    /// of it. `takeover` if absent.
    #[serde(default, with = "nanos_option")]
    pub fades: Option<Duration>,
    /// True if the machine takes no time, as on a paused clock: then a single failure without a
    /// reason is a violation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// The time that a server with hand-off may spend on each queued waiter whose process was
    /// killed, stopped or partitioned.
    #[serde(default, with = "nanos_option")]
    pub absent: Option<Duration>,
    /// The bound from the point where a server takes writes again, perhaps with older data
    /// ([`Trouble::Resumes`]), until a contended lock is granted again. Not checked if absent.
    #[serde(default, with = "nanos_option")]
    pub resumes: Option<Duration>,
    /// The bound on a call of the backend. Calls that meet a bound within one timeout count as one
    /// moment.
    #[serde(default, with = "nanos_option")]
    pub timeout: Option<Duration>,
    /// The renewals that the history contains.
    #[serde(default)]
    pub renewals: Renewals,
    /// The names that may be left on the server in the end, with `*` for anything. `None` if they
    /// are not checked.
    #[serde(default)]
    pub residue: Option<Vec<String>>,
    /// The assumptions that faults of this run break.
    #[serde(default)]
    pub breaks: Vec<Assumption>,
    /// True if locks are handed over inside processes without their servers: the low byte of a
    /// token counts the hand-overs of its hold.
    #[serde(default)]
    pub passes_on: bool,
    /// True if the low byte of a token counts hand-overs: it is zero where there are none.
    #[serde(default)]
    pub counts_hand_overs: bool,
    /// Locks are pushed to waiters. A waiter that lets a pushed lease expire without an answer
    /// counts as dead, and so do the other waiters of its process. Others may be served before
    /// them.
    #[serde(default)]
    pub passes_over: bool,
    /// Leases depend on a session. Its timeout may shrink, so that a deadline moves back, and the
    /// latest one counts. A client whose link fails gives it up before the deadline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves_back: bool,
    /// A majority of servers grants a lock. A server that missed a release may keep out the clients
    /// that cannot reach another one. It cannot keep out clients that reach all servers.
    #[serde(default)]
    pub votes: bool,
}

/// The durability of fencing tokens; see [`Fencing`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// There are none.
    #[default]
    None,
    /// At least the server's clock.
    Seeded,
    /// Logged or synced before the grant returns.
    Durable,
}

/// The renewals that a history contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewals {
    /// Some may be missing, as core renews in the background. The last `valid_until` may be too
    /// early, by the renewals since the last reading of the guard.
    #[default]
    Background,
    /// All renewals, or there are none: the last `valid_until` is the deadline.
    Recorded,
}

/// A clock of a recorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockName {
    /// Core's clock, of one process; perhaps paused.
    #[default]
    Moment,
    /// `CLOCK_MONOTONIC_RAW`, of one host.
    MonotonicRaw,
}

/// A condition of exclusion. While it is broken on purpose, overlapping claims are counted and are
/// no violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Assumption {
    /// The server's clock runs at the clients' rate and is not stepped.
    A1,
    /// The server keeps what it acknowledged.
    A2,
    /// No operator breaks, evicts or closes by force.
    A3,
    /// Each member of a quorum keeps what it acknowledged. Exclusion does not depend on it while a
    /// majority of members does. But a lock with a bare majority may be lost before its lease ends.
    Minority,
    /// A release survives the failure of the server that has confirmed it. No holder depends on it:
    /// a released lock may come back for the rest of its lease.
    Releases,
}

/// An operation's invocation or completion, or a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// See [`Kind`].
    pub kind: Kind,
    /// Nanoseconds on the recorder's clock.
    pub t: u64,
    /// The client, with at most one operation in progress, and none after `info`. The part before
    /// the first `/` names the operating system's process, to which faults refer.
    #[serde(rename = "proc")]
    pub process: String,
    /// The lock, or the resource that this lock guards.
    pub lock: String,
    /// The operation.
    pub op: Op,
    /// The acquisition: named by its first record, repeated by all that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// The fencing token, of a grant, of a write, or of a read that shows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Marks an acquisition whose lease is not renewed, so that its end has a reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unrenewed: bool,
    /// Marks an acquisition that later ones may overtake. A program has to start before it is
    /// queued, or its lease is so short that a busy machine misses the grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overtakable: bool,
    /// The time up to which the lock is certainly held, on the recorder's clock. For the invocation
    /// of a release: the deadline that the guard knew then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<u64>,
    /// For an acquisition with a minimum hold: the time up to which the lock may stay unavailable,
    /// even if it is released before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<u64>,
    /// The lease of a hold that outlasts its process, on a backend whose other holds end with
    /// theirs.
    #[serde(default, with = "nanos_option", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// The value of the guarded counter after a write, or at a read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// The reason of the failure or loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<Why>,
    /// The run of the header, if present.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// The seed of the header, if present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// The type of a [`Record`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The invocation.
    Invoke,
    /// The completion of an operation that succeeded.
    Ok,
    /// The completion of an operation that certainly changed nothing.
    Fail,
    /// The completion with unknown outcome: the operation may take effect at any time after its
    /// invocation, once or never.
    Info,
    /// An event of a grant, without an operation.
    Event,
}

/// A type of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Acquires the lock, waiting for it, with or without a bound.
    Acquire,
    /// Acquires the lock if it is free.
    Try,
    /// Prolongs the lease. As an event: the guard has learned of a later deadline by itself.
    Renew,
    /// Asks the guard whether the lock is held: `ok` if so, `fail` if not.
    Check,
    /// Releases the lock: `ok` if the backend confirmed that it was held until now.
    Release,
    /// The event that the guard was notified of its loss.
    Lost,
    /// Increments the guarded counter: `ok` if it accepted the token, `fail` if not.
    Write,
    /// Reads the guarded counter.
    Read,
}

/// The reason why an operation failed, why its outcome is unknown, or why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Another client has the lock.
    Busy,
    /// The backend reports that this grant did not hold the lock any more.
    NotHeld,
    /// The guard had been notified of its loss before.
    Lost,
    /// The lock is gone, perhaps by this operation.
    Gone,
    /// The resource has seen a higher token.
    Fenced,
    /// The lease ended without a renewal.
    Expired,
    /// The call was dropped before it returned, or the guard without a release.
    Dropped,
    /// Anything else, in words.
    #[serde(untagged)]
    Other(String),
}

/// The start of an injected fault, which lasts until it is healed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Nanoseconds on the recorder's clock, read before the fault was caused.
    pub t: u64,
    /// The number of the fault, for [`Heal`].
    pub id: u64,
    /// The type of the fault.
    pub what: Trouble,
    /// The process that it affects; `None` for all, as when the server is stopped.
    #[serde(rename = "proc", default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The lock or locks that it affects; `None` for all.
    #[serde(
        rename = "lock",
        default,
        with = "one_or_more",
        skip_serializing_if = "Option::is_none"
    )]
    pub locks: Option<Vec<String>>,
    /// The assumptions that do not hold during the fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<Assumption>,
    /// True if clients need not notice it, as when one member of a quorum is down: it excuses no
    /// wait and no error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// A type of fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The process was stopped: it neither renews nor receives notifications.
    Stop,
    /// The process was killed.
    Kill,
    /// The runtime of the application was blocked: it made no calls and received no notifications,
    /// while its locks were renewed.
    Starve,
    /// No data passes between the process and its server.
    Partition,
    /// A client of another library has the lock, and its operations are not recorded. It affects
    /// only the locks that it is taken from.
    Foreign,
    /// A server takes writes again after a failover or a restart, perhaps with older data. A point
    /// in time inside the fault whose name it bears, and no fault itself.
    Resumes,
    /// Any other fault, in words: a slow network, a restart, a step of the clock.
    #[serde(untagged)]
    Other(String),
}

/// The end of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heal {
    /// Nanoseconds on the recorder's clock, read after the fault had ended.
    pub t: u64,
    /// The number of the fault.
    pub id: u64,
    /// False if the fault did not happen, for example because there was no lock to remove. Then it
    /// excuses nothing.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub happened: bool,
    /// True if it has certainly removed the lock that it names: its holder does not hold it any
    /// more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// The state left on the server after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residue {
    /// Nanoseconds on the recorder's clock.
    pub t: u64,
    /// Names of keys, nodes, files.
    pub left: Vec<String>,
}

impl Header {
    /// The version of the format that is written and read.
    pub const VERSION: u32 = 1;

    /// Returns the promises of a backend for locks with this ttl, with an allowance of two seconds
    /// wherever the load of the machine counts. The run overrides those that it knows better.
    #[must_use]
    pub fn new(run: &str, seed: u64, caps: &Capabilities, ttl: Duration) -> Self {
        let slack = Duration::from_secs(2);
        let (lease, takeover) = match caps.takeover {
            Takeover::AtOnce => (None, Duration::ZERO),
            Takeover::LeasePlus(more) => (Some(ttl), more),
        };
        let fencing = match caps.fencing {
            Fencing::None => Grade::None,
            Fencing::Seeded => Grade::Seeded,
            Fencing::Durable => Grade::Durable,
        };
        Self {
            version: Self::VERSION,
            run: run.to_owned(),
            seed,
            backend: caps.backend.to_owned(),
            sequential: true,
            fencing,
            fifo_after: (caps.order == Order::Fifo).then_some(slack),
            lease,
            margin: caps.margin + ttl / 100,
            takeover: takeover + slack,
            hand_off: slack,
            told_within: slack,
            drain: 2 * ttl + Duration::from_secs(5),
            counts_hand_overs: true,
            ..Self::default()
        }
    }
}

impl Header {
    /// Returns the time from the end of a fault until its clients have recovered.
    pub(super) fn recovery(&self) -> Duration {
        self.recovers.unwrap_or(self.drain)
    }

    /// Returns the time until only a lease is left of a call with unknown outcome.
    pub(super) fn fading(&self) -> Duration {
        self.fades.unwrap_or(self.takeover)
    }

    /// Returns the longest time for which a server keeps a lock by its own clock.
    pub(super) fn longest_lease(&self) -> Duration {
        self.lease.unwrap_or_default() + self.margin
    }
}

impl Assumption {
    /// Returns true if exclusion depends on it.
    #[must_use]
    pub fn guards_exclusion(self) -> bool {
        !matches!(self, Self::Minority | Self::Releases)
    }

    /// Returns true if a hold may end early without it.
    #[must_use]
    pub fn guards_holds(self) -> bool {
        self != Self::Releases
    }
}

impl Record {
    /// Returns a record without a time, and without optional fields.
    #[must_use]
    pub fn new(kind: Kind, op: Op, process: &str, lock: &str) -> Self {
        Self {
            kind,
            t: 0,
            process: process.to_owned(),
            lock: lock.to_owned(),
            op,
            grant: None,
            fence: None,
            unrenewed: false,
            overtakable: false,
            valid_until: None,
            kept_until: None,
            lease: None,
            value: None,
            err: None,
            run: String::new(),
            seed: None,
        }
    }
}

impl Op {
    /// Returns true if it may lead to a grant.
    #[must_use]
    pub fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::Try)
    }
}

impl From<&Error> for Why {
    fn from(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::NotHeld => Self::NotHeld,
            ErrorKind::Lost => Self::Lost,
            ErrorKind::Gone => Self::Gone,
            ErrorKind::FenceRegressed => Self::Fenced,
            other => Self::Other(format!("{other:?}: {error:#}")),
        }
    }
}

impl From<Loss> for Why {
    fn from(loss: Loss) -> Self {
        match loss {
            Loss::Expired => Self::Expired,
            Loss::NotHeld => Self::NotHeld,
            other => Self::Other(other.to_string()),
        }
    }
}

impl Line {
    /// Parses a line. Fields that this version does not know are skipped.
    ///
    /// # Errors
    ///
    /// The defect, without the line number.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Peek<'a> {
            #[serde(borrow)]
            kind: std::borrow::Cow<'a, str>,
        }
        fn whole<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
            serde_json::from_slice(text).map_err(|error| error.to_string())
        }
        let peek: Peek<'_> = whole(text)?;
        match &*peek.kind {
            "header" => whole(text).map(Self::Header),
            "fault" => whole(text).map(Self::Fault),
            "heal" => whole(text).map(Self::Heal),
            "residue" => whole(text).map(Self::Residue),
            _ => whole(text).map(Self::Record),
        }
    }

    /// Returns the line as it is written, with its end.
    #[must_use]
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Tagged<'a, T> {
            kind: &'static str,
            #[serde(flatten)]
            line: &'a T,
        }
        fn tagged<T: Serialize>(kind: &'static str, line: &T) -> serde_json::Result<String> {
            serde_json::to_string(&Tagged { kind, line })
        }
        let text = match self {
            Self::Header(line) => tagged("header", line),
            Self::Record(line) => serde_json::to_string(line),
            Self::Fault(line) => tagged("fault", line),
            Self::Heal(line) => tagged("heal", line),
            Self::Residue(line) => tagged("residue", line),
        };
        text.expect("names and numbers can be written as JSON") + "\n"
    }

    /// Returns the time of the line; the header has none.
    #[must_use]
    pub fn t(&self) -> Option<u64> {
        match self {
            Self::Header(_) => None,
            Self::Record(line) => Some(line.t),
            Self::Fault(line) => Some(line.t),
            Self::Heal(line) => Some(line.t),
            Self::Residue(line) => Some(line.t),
        }
    }
}

fn yes() -> bool {
    true
}

/// Returns a duration as nanoseconds, capped at 64 bits.
pub(super) fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

mod nanos {
    use super::{Deserialize, Duration, nanos_of};

    pub(super) fn serialize<S: serde::Serializer>(d: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(nanos_of(*d))
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Duration, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

mod nanos_option {
    use super::{Deserialize, Duration, Serialize, nanos_of};

    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(super) fn serialize<S>(d: &Option<Duration>, to: S) -> Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        d.map(nanos_of).serialize(to)
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_nanos))
    }
}

/// One name or a list of them, where there is any.
mod one_or_more {
    use super::{Deserialize, Serialize};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMore {
        One(String),
        More(Vec<String>),
    }

    #[allow(clippy::ref_option, reason = "the signature that serde asks for")]
    pub(super) fn serialize<S>(names: &Option<Vec<String>>, to: S) -> Result<S::Ok, S::Error>
    where
        S: serde::Serializer,
    {
        match names.as_deref() {
            Some([one]) => one.serialize(to),
            names => names.serialize(to),
        }
    }

    pub(super) fn deserialize<'de, D>(from: D) -> Result<Option<Vec<String>>, D::Error>
    where
        D: serde::Deserializer<'de>,
    {
        Ok(Option::<OneOrMore>::deserialize(from)?.map(|names| match names {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        }))
    }
}
