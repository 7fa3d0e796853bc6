//! The rule by which a holder knows how long its lease lasts, as data, and the rules that nearly are it.

use crate::scenario::Time;

/// Whose answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A write that changes nothing: the leader looks whether the session lives, and commits.
    Commit,
    /// A ping of the client, which its member answers by itself.
    Ping,
}

/// When the next proof is sent. No deadline depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// An eighth of the timeout after the sending of the one before; at once after an answer that
    /// took longer than a sixteenth.
    Even,
    /// At any time up to a third of the timeout after the answer, and often at once.
    Drawn,
}

/// Which proof before the answered one the lease counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The answered proof (0), the one before (1), …
    Back(usize),
    /// The last one from which there is a span to the answered proof.
    Span(Span),
}

/// The time in which the leader has to send a ping: between the commits of the first proof and of
/// the last one before the answered proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// In thousandths of the timeout.
    pub(crate) length: Time,
    /// What has to be left of it without the longest time between two commits, in thousandths.
    pub(crate) rest: Time,
    /// Whether it counts from the answer to the first proof, which is after its commit.
    pub(crate) from_answer: bool,
    /// Whether it counts up to the sending of the proof before the answered one.
    pub(crate) to_one_before: bool,
}

/// What an answered proof says on a connection that is not the session's first, before its chain is long
/// enough: the leader has touched the session when that connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reopened {
    /// Nothing: the old deadline stands.
    StartsAnew,
    /// The lease counts from when the connection was asked for.
    FromAsking,
    /// The lease counts from when the connection was there.
    FromAnswer,
}

/// What a client makes of the timeouts that its connections were granted, where members have limits
/// of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grants {
    /// From when a connection was asked for, nothing counts for longer than it was granted, or may
    /// have been if the answer is lost or late. The least timeout counts to the end.
    Counted,
    /// The first one is for good.
    FirstStands,
    /// The new one counts for new proofs, and old ones go on by the old one.
    DeadlineStands,
    /// A connection without an answer was granted nothing.
    LostIsNone,
    /// A connection that was given up is not granted later.
    NothingLate,
    /// A longer one counts again.
    GrowsAgain,
}

/// How a client gets from answers to a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) proof: Proof,
    pub(crate) spacing: Spacing,
    /// The lease counts from the sending of this one.
    pub(crate) start: Start,
    pub(crate) reopened: Reopened,
    pub(crate) grants: Grants,
    /// How much of the timeout the lease is, in thousandths: the rest is for clocks of unlike speed.
    pub(crate) share: u64,
    /// Whether the lease of a new session counts from the answer, not from the sending.
    pub(crate) created_at_answer: bool,
    /// Whether the news that the predecessor is gone proves the session as well.
    pub(crate) event_proves: bool,
}

/// The rule: `t0` of the last proof that was answered a third of the timeout before the one before
/// the answered proof was sent, plus 98 % of the timeout.
pub(crate) const SPANNED: Rule = Rule {
    name: "spanned",
    proof: Proof::Commit,
    spacing: Spacing::Even,
    start: Start::Span(SPAN),
    reopened: Reopened::StartsAnew,
    grants: Grants::FirstStands,
    share: 980,
    created_at_answer: false,
    event_proves: false,
};

const SPAN: Span = Span { length: 333, rest: 166, from_answer: true, to_one_before: true };

/// Sent at any time: as good.
pub(crate) const AT_ANY_TIME: Rule =
    Rule { name: "at any time", spacing: Spacing::Drawn, ..SPANNED };

/// As good: a new connection counts as a proof, once one of its own is answered.
pub(crate) const REOPENED_COUNTS: Rule =
    Rule { name: "reopened counts", reopened: Reopened::FromAsking, ..SPANNED };

/// Each differs from the rule in one respect, and is wrong.
pub(crate) const NEAR_MISSES: [Rule; 13] = [
    Rule { name: "pings", proof: Proof::Ping, start: Start::Back(0), ..SPANNED },
    Rule { name: "a chain of pings", proof: Proof::Ping, ..SPANNED },
    Rule { name: "one proof", start: Start::Back(0), ..SPANNED },
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
    Rule { name: "the event proves", event_proves: true, ..SPANNED },
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

/// Each differs from that one in what is made of a grant, and is wrong.
pub(crate) const GRANT_MISSES: [Rule; 5] = [
    Rule { name: "the first timeout stands", grants: Grants::FirstStands, ..GRANTS_COUNT },
    Rule { name: "the old deadline stands", grants: Grants::DeadlineStands, ..GRANTS_COUNT },
    Rule { name: "a lost answer is none", grants: Grants::LostIsNone, ..GRANTS_COUNT },
    Rule { name: "nothing comes late", grants: Grants::NothingLate, ..GRANTS_COUNT },
    Rule { name: "a timeout grows again", grants: Grants::GrowsAgain, ..GRANTS_COUNT },
];
