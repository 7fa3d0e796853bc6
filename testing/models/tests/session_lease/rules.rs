//! The rule by which a holder knows how long its lease lasts, as data, and rules that differ from
//! it slightly.

use crate::scenario::Time;

/// The request whose answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeartbeatKind {
    /// A write that changes nothing: the leader checks that the session lives, and commits.
    Commit,
    /// A ping of the client, which its member answers by itself.
    Ping,
}

/// The time of the next heartbeat write. No deadline depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// An eighth of the timeout after the sending of the one before; at once after an answer that
    /// took longer than a sixteenth.
    Even,
    /// At any time up to a third of the timeout after the answer, and often at once.
    Drawn,
}

/// The write before the answered one that the lease counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The answered write (0), the one before (1), …
    Back(usize),
    /// The last write from which there is a span to the answered one.
    Span(Span),
}

/// The time in which the leader has to send a ping: from the commit of the first write to that of
/// the last one before the answered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// In thousandths of the timeout.
    pub(crate) length: Time,
    /// The part of it that must be left without the longest time between two commits, in
    /// thousandths.
    pub(crate) rest: Time,
    /// True if it counts from the answer to the first write, which is after its commit.
    pub(crate) from_answer: bool,
    /// True if it counts up to the sending of the write before the answered one.
    pub(crate) to_one_before: bool,
}

/// The effect of an answered write on a later connection, before its chain is long enough. The
/// leader has touched the session when that connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopened {
    /// Nothing: the old deadline stands.
    StartsAnew,
    /// The lease counts from when the connection was asked for.
    FromAsking,
    /// The lease counts from when the connection was there.
    FromAnswer,
}

/// The effect of the timeouts that the connections of a client were granted, where members have
/// limits of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grants {
    /// From when a connection was asked for, nothing counts for longer than it was granted, or may
    /// have been if the answer is lost or late. The least timeout counts to the end.
    Counted,
    /// The first one is for good.
    FirstStands,
    /// The new one counts for new heartbeat writes, and old ones go on by the old one.
    DeadlineStands,
    /// A connection without an answer was granted nothing.
    LostIsNone,
    /// A connection that was given up is not granted later.
    NothingLate,
    /// A longer one counts again.
    GrowsAgain,
}

/// The way from answers to a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) heartbeat: HeartbeatKind,
    pub(crate) spacing: Spacing,
    /// The lease counts from the sending of this one.
    pub(crate) start: Start,
    pub(crate) reopened: Reopened,
    pub(crate) grants: Grants,
    /// The part of the timeout that the lease lasts, in thousandths. The rest is for clocks at
    /// different rates.
    pub(crate) share: u64,
    /// True if the lease of a new session counts from the answer, not from the sending.
    pub(crate) created_at_answer: bool,
    /// True if the notification of the predecessor's removal counts as a heartbeat write.
    pub(crate) event_counts: bool,
}

/// The rule: `t0` plus 98 % of the timeout. `t0` is the sending of the last write whose answer
/// precedes the write before the answered one by a third of the timeout.
pub(crate) const SPANNED: Rule = Rule {
    name: "spanned",
    heartbeat: HeartbeatKind::Commit,
    spacing: Spacing::Even,
    start: Start::Span(SPAN),
    reopened: Reopened::StartsAnew,
    grants: Grants::FirstStands,
    share: 980,
    created_at_answer: false,
    event_counts: false,
};

const SPAN: Span = Span { length: 333, rest: 166, from_answer: true, to_one_before: true };

/// An equivalent rule: heartbeat writes are sent at any time.
pub(crate) const AT_ANY_TIME: Rule =
    Rule { name: "at any time", spacing: Spacing::Drawn, ..SPANNED };

/// An equivalent rule: a new connection counts as a heartbeat write once its first write is
/// answered.
pub(crate) const REOPENED_COUNTS: Rule =
    Rule { name: "reopened counts", reopened: Reopened::FromAsking, ..SPANNED };

/// Each differs from the rule in one respect, and is wrong.
pub(crate) const NEAR_MISSES: [Rule; 13] = [
    Rule { name: "pings", heartbeat: HeartbeatKind::Ping, start: Start::Back(0), ..SPANNED },
    Rule { name: "a chain of pings", heartbeat: HeartbeatKind::Ping, ..SPANNED },
    Rule { name: "one heartbeat write", start: Start::Back(0), ..SPANNED },
    Rule { name: "last but one", start: Start::Back(1), ..SPANNED },
    Rule { name: "last but two", start: Start::Back(2), ..SPANNED },
    Rule { name: "last but three", start: Start::Back(3), ..AT_ANY_TIME },
    Rule { name: "short span", start: span(Span { length: 166, rest: 0, ..SPAN }), ..AT_ANY_TIME },
    Rule {
        name: "from the sending",
        start: span(Span { from_answer: false, ..SPAN }),
        ..AT_ANY_TIME
    },
    Rule {
        name: "to the last one",
        start: span(Span { to_one_before: false, rest: 0, ..SPAN }),
        ..AT_ANY_TIME
    },
    Rule { name: "no margin", share: 1000, ..SPANNED },
    Rule { name: "created at the answer", created_at_answer: true, ..SPANNED },
    Rule { name: "reopened at the answer", reopened: Reopened::FromAnswer, ..SPANNED },
    Rule { name: "the event counts", event_counts: true, ..SPANNED },
];

/// Is wrong where the loop of pings may be late after a stall, with short ticks.
pub(crate) const ONE_HOLE: Rule =
    Rule { name: "one hole", start: span(Span { rest: 0, ..SPAN }), ..AT_ANY_TIME };

const fn span(span: Span) -> Start {
    Start::Span(span)
}

/// For members with limits of their own.
pub(crate) const GRANTS_COUNT: Rule =
    Rule { name: "grants count", grants: Grants::Counted, ..REOPENED_COUNTS };

/// Each differs from that one in the effect of a grant, and is wrong.
pub(crate) const GRANT_MISSES: [Rule; 5] = [
    Rule { name: "the first timeout stands", grants: Grants::FirstStands, ..GRANTS_COUNT },
    Rule { name: "the old deadline stands", grants: Grants::DeadlineStands, ..GRANTS_COUNT },
    Rule { name: "a lost answer is none", grants: Grants::LostIsNone, ..GRANTS_COUNT },
    Rule { name: "nothing comes late", grants: Grants::NothingLate, ..GRANTS_COUNT },
    Rule { name: "a timeout grows again", grants: Grants::GrowsAgain, ..GRANTS_COUNT },
];
