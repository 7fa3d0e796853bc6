//! What stands in a history: one JSON object a line, told apart by `kind`.

use std::error::Error as _;
use std::time::Duration;

use lock_core::{Capabilities, Error, ErrorKind, Fencing, Loss, Order, Takeover};
use serde::{Deserialize, Serialize};

/// One line of a history.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// The first line: what was promised in this run.
    Header(Header),
    /// A call, its outcome, or a loss.
    Record(Record),
    /// Something was broken on purpose.
    Fault(Fault),
    /// The fault of that number is over.
    Heal(Heal),
    /// What was left on the server.
    Residue(Residue),
}

/// What was promised in a run, and what the run breaks on purpose. Durations are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Of this format: [`VERSION`](Self::VERSION).
    pub version: u32,
    /// Names the run.
    pub run: String,
    /// What the run was drawn from.
    pub seed: u64,
    /// The backend's name.
    pub backend: String,
    /// The clock that `t` was read from.
    pub clock: ClockName,
    /// True if one recorder has written all lines: then the order of lines is the order of time, also
    /// where `t` is equal.
    pub sequential: bool,
    /// Grade of the fencing tokens.
    pub fencing: Grade,
    /// First come, first served among waits that began at least this far apart: so long may it take a
    /// wait to get into line. `None` if no order is promised.
    #[serde(default, with = "nanos_option")]
    pub fifo_after: Option<Duration>,
    /// How long a server keeps a lock that is not renewed. `None` if it ends with its process.
    #[serde(default, with = "nanos_option")]
    pub lease: Option<Duration>,
    /// How long before the end of its lease a holder gives up.
    #[serde(with = "nanos")]
    pub margin: Duration,
    /// From the end of a crashed holder's lease until a waiter holds.
    #[serde(with = "nanos")]
    pub takeover: Duration,
    /// From the answer to a release until a waiter holds.
    #[serde(with = "nanos")]
    pub hand_off: Duration,
    /// Half of the hand-offs that no fault disturbed take no longer, from the call of the release on. Not judged if it is
    /// not there.
    #[serde(default, with = "nanos_option")]
    pub half: Option<Duration>,
    /// The same, for nine in ten of them.
    #[serde(default, with = "nanos_option")]
    pub most: Option<Duration>,
    /// The same, for all of them: none whose holder and waiter felt no fault, from a lease before its release on, takes
    /// longer.
    #[serde(default, with = "nanos_option")]
    pub all: Option<Duration>,
    /// From the end of a lease until its holder is told, if it runs.
    #[serde(with = "nanos")]
    pub told_within: Duration,
    /// From the end of a fault until nothing is left of it.
    #[serde(with = "nanos")]
    pub drain: Duration,
    /// From the end of a fault until a client that felt it waits no longer than one that did not. As `drain` if it
    /// is not there, and then nobody asks for a reason of what fails.
    #[serde(default, with = "nanos_option")]
    pub recovers: Option<Duration>,
    /// From the end of a call that no fault disturbed, and whose outcome nobody knows, until nothing is left of it, besides
    /// a lease. As `takeover` if it is not there.
    #[serde(default, with = "nanos_option")]
    pub fades: Option<Duration>,
    /// The machine takes no time, as on a paused clock: one failure without a reason is too many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// What a server that hands locks over may spend on each who stood in line when its process was killed, stopped or cut
    /// off.
    #[serde(default, with = "nanos_option")]
    pub absent: Option<Duration>,
    /// From the point where a server takes writes again, perhaps with older data
    /// ([`Trouble::Resumes`]), until a contended lock is granted again. Not judged if it is not
    /// there.
    #[serde(default, with = "nanos_option")]
    pub resumes: Option<Duration>,
    /// The bound on a call of the backend. Calls that meet a bound within one timeout count as one moment.
    #[serde(default, with = "nanos_option")]
    pub timeout: Option<Duration>,
    /// Which renewals stand in the history.
    #[serde(default)]
    pub renewals: Renewals,
    /// What may be left on the server in the end, with `*` for anything. `None`: nobody looks.
    #[serde(default)]
    pub residue: Option<Vec<String>>,
    /// The assumptions that faults of this run break.
    #[serde(default)]
    pub breaks: Vec<Assumption>,
    /// Locks are handed over inside of processes, which their servers do not see: the low byte of a token counts how
    /// often its hold was passed on.
    #[serde(default)]
    pub passes_on: bool,
    /// The low byte of a token counts hand-overs: it is zero where nothing is passed on.
    #[serde(default)]
    pub counts_hand_overs: bool,
    /// Locks are pushed to waiters. A waiter that lets a pushed lease expire without an answer counts
    /// as dead, and so do the other waiters of its process. Others may be served before them.
    #[serde(default)]
    pub passes_over: bool,
    /// Leases depend on a session whose timeout may shrink: a deadline may move back, and the latest
    /// one counts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moves_back: bool,
    /// A majority of servers grants a lock. A server that missed a release may keep out the clients
    /// that cannot reach another one. It cannot keep out clients that reach all servers.
    #[serde(default)]
    pub votes: bool,
}

/// How far fencing tokens can be trusted; see [`Fencing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// There are none.
    None,
    /// At least the server's clock.
    Seeded,
    /// Logged or synced before the grant returns.
    Durable,
}

/// Which renewals stand in the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewals {
    /// Some may be missing: core renews in the background. The last `valid_until` may be too early, by what was learned
    /// since the guard was asked.
    #[default]
    Background,
    /// All of them, or there are none: the last `valid_until` is the deadline.
    Recorded,
}

/// A clock of a recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockName {
    /// Core's clock, of one process; perhaps paused.
    Moment,
    /// `CLOCK_MONOTONIC_RAW`, of one host.
    MonotonicRaw,
}

/// What exclusion rests on. Broken on purpose, overlapping claims are counted and not a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Assumption {
    /// The server's clock runs at our rate and is not stepped.
    A1,
    /// The server keeps what it acknowledged.
    A2,
    /// Nobody breaks, evicts or closes by force.
    A3,
    /// Each member of a quorum keeps what it acknowledged. Exclusion does not rest on it while a majority does, but
    /// a lock that a bare majority has may be lost before its lease ends.
    Minority,
    /// A release outlasts the server that has confirmed it. Nobody who holds a lock rests on it: one that was let go comes back
    /// for the rest of its lease.
    Releases,
}

/// A call, its outcome, or a loss.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// See [`Kind`].
    pub kind: Kind,
    /// Nanoseconds on the recorder's clock.
    pub t: u64,
    /// Who: has one call under way at most, and none any more after `info`. Up to the first `/`, the
    /// name of the operating system's process that faults speak of.
    #[serde(rename = "proc")]
    pub process: String,
    /// On which lock, or on the resource that this lock guards.
    pub lock: String,
    /// What.
    pub op: Op,
    /// Which acquisition: named by its first record, repeated by all that follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// The fencing token, of a grant, of a write, or of a read that shows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u64>,
    /// Of an acquisition: nobody renews its lease, so that its end has a reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unrenewed: bool,
    /// Of an acquisition: later ones may be served before it. A program has to start before it is queued,
    /// or its lease is so short that a busy machine misses the grant.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overtakable: bool,
    /// Up to when the lock was ours at least, on the recorder's clock. Of a release when it is called: what the guard
    /// knew then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<u64>,
    /// Of an acquisition with a minimum hold: the lock may stay shut until then, also if it is given back before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<u64>,
    /// Of an acquisition whose hold outlasts its process, where others end with theirs: its lease.
    #[serde(default, with = "nanos_option", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// What the guarded counter was after a write, or at a read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<u64>,
    /// Why not, or why lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub err: Option<Why>,
    /// As in the header, if it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run: String,
    /// As in the header, if it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// What a [`Record`] tells about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It is about to be made.
    Invoke,
    /// It succeeded.
    Ok,
    /// It certainly changed nothing.
    Fail,
    /// Nobody knows: it may take effect at any time after its invocation, once or never.
    Info,
    /// No call: something happened to a grant.
    Event,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Takes the lock, waiting for it; with or without a bound.
    Acquire,
    /// Takes the lock if it is free.
    Try,
    /// Makes the lease last longer. As an event: the guard has learned of a later deadline by itself.
    Renew,
    /// Asks the guard whether the lock is held: `ok` if so, `fail` if not.
    Check,
    /// Gives the lock back: `ok` if the backend confirmed that it was held until now.
    Release,
    /// The event that the guard was told of its loss.
    Lost,
    /// Increments the guarded counter: `ok` if it let the fence pass, `fail` if not.
    Write,
    /// Reads the guarded counter.
    Read,
}

/// Why a call failed, why its outcome is unknown, or why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Somebody else has the lock.
    Busy,
    /// The backend says that the lock was not held by this grant any more.
    NotHeld,
    /// The guard had been told of its loss before.
    Lost,
    /// The lock is gone; whether by this call is unknown.
    Gone,
    /// The resource has seen a higher fence.
    Fenced,
    /// The lease ended without a renewal.
    Expired,
    /// The call was dropped before it returned, or the guard without a release.
    Dropped,
    /// Anything else, in words.
    #[serde(untagged)]
    Other(String),
}

/// Something was broken on purpose, from now until it is healed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Nanoseconds on the recorder's clock, read before the fault was caused.
    pub t: u64,
    /// Which, for [`Heal`].
    pub id: u64,
    /// What was done.
    pub what: Trouble,
    /// To which process; `None` for all, as when the server is stopped.
    #[serde(rename = "proc", default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// To which lock, or to which of them; `None` for all.
    #[serde(
        rename = "lock",
        default,
        with = "one_or_more",
        skip_serializing_if = "Option::is_none"
    )]
    pub locks: Option<Vec<String>>,
    /// The assumptions that do not hold meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<Assumption>,
    /// Clients need not notice it, as when one member of a quorum is away: it excuses no wait and no error.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
}

/// What was done on purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The process was stopped: it neither renews nor can be told anything.
    Stop,
    /// The process was killed.
    Kill,
    /// The runtime of the application was blocked: it called nothing and heard nothing, while its locks
    /// were renewed.
    Starve,
    /// Nothing passes between the process and its server.
    Partition,
    /// Somebody has the lock whose calls are not recorded: a client of another library. That disturbs nobody, but
    /// for the locks that it is taken from.
    Foreign,
    /// A server takes writes again after a failover or a restart, perhaps with older data. A point
    /// in time inside of the fault that it is named after, and no fault itself.
    Resumes,
    /// Anything else, in words: a slow network, a restart, a step of the clock.
    #[serde(untagged)]
    Other(String),
}

/// The end of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heal {
    /// Nanoseconds on the recorder's clock, read after the fault had ended.
    pub t: u64,
    /// Which.
    pub id: u64,
    /// False if it came to nothing, as when there was no lock to remove: then nothing is excused by it.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub happened: bool,
    /// It has certainly removed the lock that it names: its holder does not hold it any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// What was left on the server when all was over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Residue {
    /// Nanoseconds on the recorder's clock.
    pub t: u64,
    /// Names of keys, nodes, files.
    pub left: Vec<String>,
}

impl Header {
    /// The format that is written and understood.
    pub const VERSION: u32 = 1;

    /// What a backend declares for locks with this ttl, with two seconds more wherever the load of the
    /// machine counts. Set what the run knows better.
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
            clock: ClockName::Moment,
            sequential: true,
            fencing,
            fifo_after: (caps.order == Order::Fifo).then_some(slack),
            lease,
            margin: caps.margin + ttl / 100,
            takeover: takeover + slack,
            hand_off: slack,
            half: None,
            most: None,
            all: None,
            told_within: slack,
            drain: 2 * ttl + Duration::from_secs(5),
            recovers: None,
            exact: false,
            fades: None,
            absent: None,
            resumes: None,
            timeout: None,
            renewals: Renewals::default(),
            residue: None,
            breaks: Vec::new(),
            passes_on: false,
            counts_hand_overs: true,
            passes_over: false,
            moves_back: false,
            votes: false,
        }
    }
}

impl Assumption {
    /// True if exclusion rests on it.
    #[must_use]
    pub fn guards_exclusion(self) -> bool {
        !matches!(self, Self::Minority | Self::Releases)
    }

    /// True if a hold may end before its time without it.
    #[must_use]
    pub fn guards_holds(self) -> bool {
        self != Self::Releases
    }
}

impl Op {
    /// True if a grant comes of it.
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
            other => {
                let mut text = format!("{other:?}: {error}");
                let mut source = error.source();
                while let Some(cause) = source {
                    text += &format!(": {cause}");
                    source = cause.source();
                }
                Self::Other(text)
            }
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
    /// Reads a line.
    ///
    /// # Errors
    ///
    /// What is wrong with it, without its number. Fields that this version does not know are skipped.
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

    /// The line as it is written, with its end.
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

    /// When; the header has no time.
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

/// A duration as nanoseconds, as far as 64 bits go.
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
