//! The rule by which a holder knows how long its lease lasts, as data, and the rules that nearly are it.

/// Whose answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A write that changes nothing: the leader looks whether the session lives, and commits.
    Commit,
    /// A ping of the client, which its member answers by itself.
    Ping,
}

/// When the next proof is sent: a sixth of the timeout later than what?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// Than the answer to the one before.
    FromAnswer,
    /// Than the sending of the one before, but not before its answer.
    FromSending,
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
    /// The lease counts from the sending of the answered proof (0), of the one before (1), …
    pub(crate) back: usize,
    pub(crate) reopened: Reopened,
    pub(crate) grants: Grants,
    /// How much of the timeout the lease is, in thousandths: the rest is for clocks of unlike speed.
    pub(crate) share: u64,
    /// Whether the lease of a new session counts from the answer, not from the sending.
    pub(crate) created_at_answer: bool,
    /// Whether the news that the predecessor is gone proves the session as well.
    pub(crate) event_proves: bool,
}

/// The rule: `t0` of the last proof but three, plus 98 % of the timeout; each proof sent a sixth of the
/// timeout after the answer to the one before.
pub(crate) const LAST_BUT_THREE: Rule = Rule {
    name: "last but three",
    proof: Proof::Commit,
    spacing: Spacing::FromAnswer,
    back: 3,
    reopened: Reopened::StartsAnew,
    grants: Grants::FirstStands,
    share: 980,
    created_at_answer: false,
    event_proves: false,
};

/// As good: a new connection counts as a proof, once one of its own is answered.
pub(crate) const REOPENED_COUNTS: Rule =
    Rule { name: "reopened counts", reopened: Reopened::FromAsking, ..LAST_BUT_THREE };

/// Each differs from the rule in one respect, and is wrong.
pub(crate) const NEAR_MISSES: [Rule; 10] = [
    Rule { name: "pings", proof: Proof::Ping, back: 0, ..LAST_BUT_THREE },
    Rule { name: "a chain of pings", proof: Proof::Ping, ..LAST_BUT_THREE },
    Rule { name: "one proof", back: 0, ..LAST_BUT_THREE },
    Rule { name: "last but one", back: 1, ..LAST_BUT_THREE },
    Rule { name: "last but two", back: 2, ..LAST_BUT_THREE },
    Rule { name: "spacing from the sending", spacing: Spacing::FromSending, ..LAST_BUT_THREE },
    Rule { name: "no margin", share: 1000, ..LAST_BUT_THREE },
    Rule { name: "created at the answer", created_at_answer: true, ..LAST_BUT_THREE },
    Rule { name: "reopened at the answer", reopened: Reopened::FromAnswer, ..LAST_BUT_THREE },
    Rule { name: "the event proves", event_proves: true, ..LAST_BUT_THREE },
];

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
