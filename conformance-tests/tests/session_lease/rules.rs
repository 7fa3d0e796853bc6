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

/// How a client gets from answers to a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) proof: Proof,
    pub(crate) spacing: Spacing,
    /// The lease counts from the sending of the answered proof (0), of the one before (1), …
    pub(crate) back: usize,
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
    share: 980,
    created_at_answer: false,
    event_proves: false,
};

/// Each differs from the rule in one respect, and is wrong.
pub(crate) const NEAR_MISSES: [Rule; 9] = [
    Rule { name: "pings", proof: Proof::Ping, back: 0, ..LAST_BUT_THREE },
    Rule { name: "a chain of pings", proof: Proof::Ping, ..LAST_BUT_THREE },
    Rule { name: "one proof", back: 0, ..LAST_BUT_THREE },
    Rule { name: "last but one", back: 1, ..LAST_BUT_THREE },
    Rule { name: "last but two", back: 2, ..LAST_BUT_THREE },
    Rule { name: "spacing from the sending", spacing: Spacing::FromSending, ..LAST_BUT_THREE },
    Rule { name: "no margin", share: 1000, ..LAST_BUT_THREE },
    Rule { name: "created at the answer", created_at_answer: true, ..LAST_BUT_THREE },
    Rule { name: "the event proves", event_proves: true, ..LAST_BUT_THREE },
];
