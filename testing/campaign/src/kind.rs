//! The kinds of fault.

use lock_history::Assumption;
use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`Kind::what` says in words what each of them does")]
pub enum Kind {
    ClientKilled,
    ClientStopped,
    ClientStarved,
    ClientClockStepped,
    ShortLeases,
    CallsRefused,
    CallsRepliesLost,
    CallsUnanswered,
    CallsLate,
    CallsRepliesLate,
    CallsLandLate,
    CallsCutOff,
    BlackHole,
    RequestsLost,
    RepliesLost,
    Reset,
    Refused,
    CutBeforeReply,
    HeldAndDelivered,
    Trickle,
    Slices,
    Delay,
    AttemptCut,
    ReleaseCut,
    LateGrant,
    CutFromGrant,
    StoppedFromGrant,
    StarvedFromGrant,
    KilledFromGrant,
    BrokenFromGrant,
    ServerStopped,
    ServerRestarted,
    ServerEmptied,
    ServerAged,
    ServerClockStepped,
    ServerFull,
    LeaderKilled,
    LeaderStopped,
    LeaderReplaced,
    FollowerCut,
    SlotMoved,
    TwoStopped,
    TwoRestarted,
    MemberStopped,
    MemberRestarted,
    MemberEmptied,
    MemberCut,
    Evicted,
    Broken,
}

/// Whom a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One client process, while the others go on.
    Client,
    /// The server: nobody gets anything done meanwhile.
    Outage,
    /// The server or one lock, while most goes on.
    Partial,
}

/// Whether a backend can have a kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSupport {
    /// It can, and all that is promised holds meanwhile.
    Yes,
    /// It can, and what exclusion rests on does not hold meanwhile.
    Breaks(Assumption),
    /// It cannot, and why.
    No(&'static str),
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 49] = [
        Self::ClientKilled,
        Self::ClientStopped,
        Self::ClientStarved,
        Self::ClientClockStepped,
        Self::ShortLeases,
        Self::CallsRefused,
        Self::CallsRepliesLost,
        Self::CallsUnanswered,
        Self::CallsLate,
        Self::CallsRepliesLate,
        Self::CallsLandLate,
        Self::CallsCutOff,
        Self::BlackHole,
        Self::RequestsLost,
        Self::RepliesLost,
        Self::Reset,
        Self::Refused,
        Self::CutBeforeReply,
        Self::HeldAndDelivered,
        Self::Trickle,
        Self::Slices,
        Self::Delay,
        Self::AttemptCut,
        Self::ReleaseCut,
        Self::LateGrant,
        Self::CutFromGrant,
        Self::StoppedFromGrant,
        Self::StarvedFromGrant,
        Self::KilledFromGrant,
        Self::BrokenFromGrant,
        Self::ServerStopped,
        Self::ServerRestarted,
        Self::ServerEmptied,
        Self::ServerAged,
        Self::ServerClockStepped,
        Self::ServerFull,
        Self::LeaderKilled,
        Self::LeaderStopped,
        Self::LeaderReplaced,
        Self::FollowerCut,
        Self::SlotMoved,
        Self::TwoStopped,
        Self::TwoRestarted,
        Self::MemberStopped,
        Self::MemberRestarted,
        Self::MemberEmptied,
        Self::MemberCut,
        Self::Evicted,
        Self::Broken,
    ];

    /// What is done, in words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::ClientKilled => "client killed (SIGKILL), another one started in its place",
            Self::ClientStopped => {
                "client stopped and continued (SIGSTOP, SIGCONT; a thread: blocked)"
            }
            Self::ClientStarved => "client's application blocked, its locks renewed",
            Self::ClientClockStepped => "client's wall clock stepped by an hour",
            Self::ShortLeases => "leases not renewed, and held beyond their end",
            Self::CallsRefused => "calls of the backend refused",
            Self::CallsRepliesLost => "calls applied, replies lost",
            Self::CallsUnanswered => "calls applied, no reply ever",
            Self::CallsLate => "calls applied late",
            Self::CallsRepliesLate => "calls answered late",
            Self::CallsLandLate => "calls given up by the client, applied later",
            Self::CallsCutOff => "no call of a client gets through",
            Self::BlackHole => "network: nothing passes, nobody is told",
            Self::RequestsLost => "network: requests do not pass, replies do",
            Self::RepliesLost => "network: requests pass, replies do not",
            Self::Reset => "network: connections reset",
            Self::Refused => "network: connections reset, new ones refused",
            Self::CutBeforeReply => "network: cut after the request, before the reply",
            Self::HeldAndDelivered => "network: a request held, delivered later",
            Self::Trickle => "network: a few bytes at a time",
            Self::Slices => "network: each byte by itself",
            Self::Delay => "network: a long way",
            Self::AttemptCut => "aimed: cut after an attempt, before its answer",
            Self::ReleaseCut => "aimed: cut after a release, before its answer",
            Self::LateGrant => "aimed: a grant told late, not renewed, and held to its end",
            Self::CutFromGrant => "aimed: nothing passes from a grant on, beyond its lease",
            Self::StoppedFromGrant => "aimed: client stopped from a grant on, beyond its lease",
            Self::StarvedFromGrant => {
                "aimed: client's application blocked from a grant on, and its lock held"
            }
            Self::KilledFromGrant => "aimed: client killed that has just been granted a lock",
            Self::BrokenFromGrant => {
                "aimed: a lock broken, and held on to until its holder is told"
            }
            Self::ServerStopped => "server stopped and continued",
            Self::ServerRestarted => "server killed, restarted with its data",
            Self::ServerEmptied => "server killed, restarted without its data",
            Self::ServerAged => "server killed, restarted with older data",
            Self::ServerClockStepped => "server's clock stepped",
            Self::ServerFull => "server at its memory limit",
            Self::LeaderKilled => "leader killed, restarted later",
            Self::LeaderStopped => "leader stopped and continued",
            Self::LeaderReplaced => "leader replaced by hand (SENTINEL FAILOVER)",
            Self::FollowerCut => "a follower cut off from its leader, and from nobody else",
            Self::SlotMoved => "a slot moved to another server, with its keys",
            Self::TwoStopped => "two of three members stopped at once and continued",
            Self::TwoRestarted => "two of three members killed at once, restarted with their data",
            Self::MemberStopped => "one member of a quorum stopped and continued",
            Self::MemberRestarted => "one member killed, restarted with its data",
            Self::MemberEmptied => "one member killed, restarted without its data",
            Self::MemberCut => "one member cut off from all clients",
            Self::Evicted => "a held lock removed behind everybody's back",
            Self::Broken => "a held lock broken by an operator",
        }
    }

    /// Whom it hits.
    #[must_use]
    pub fn scope(self) -> Scope {
        match self {
            Self::ServerStopped
            | Self::ServerRestarted
            | Self::ServerEmptied
            | Self::ServerAged
            | Self::ServerFull
            | Self::LeaderKilled
            | Self::LeaderStopped
            | Self::LeaderReplaced
            | Self::TwoStopped
            | Self::TwoRestarted => Scope::Outage,
            Self::ServerClockStepped
            | Self::FollowerCut
            | Self::SlotMoved
            | Self::Evicted
            | Self::Broken => Scope::Partial,
            kind if kind.hits_one_member() => Scope::Partial,
            _ => Scope::Client,
        }
    }

    /// Its name, as in results and histories.
    #[must_use]
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).expect("a unit variant is a string");
        name.as_str().expect("a unit variant is a string").to_owned()
    }

    /// True if calls of the backend are disturbed inside of the client.
    #[must_use]
    pub fn is_in_calls(self) -> bool {
        self >= Self::CallsRefused && self <= Self::CallsCutOff
    }

    /// True if the network is disturbed.
    #[must_use]
    pub fn is_in_network(self) -> bool {
        self >= Self::BlackHole && self <= Self::Delay
    }

    /// True if a client is told to take a lock, and hit in the act.
    #[must_use]
    pub fn is_aimed(self) -> bool {
        self >= Self::AttemptCut && self <= Self::BrokenFromGrant
    }

    /// What a fault that is aimed is done by: the first of these that a site can have.
    #[must_use]
    pub fn mechanisms(self) -> &'static [Self] {
        match self {
            Self::AttemptCut | Self::ReleaseCut => &[Self::CutBeforeReply, Self::CallsRepliesLost],
            Self::LateGrant => &[Self::Delay, Self::CallsRepliesLate],
            Self::CutFromGrant => &[Self::BlackHole, Self::CallsCutOff],
            Self::StoppedFromGrant => &[Self::ClientStopped],
            Self::StarvedFromGrant => &[Self::ClientStarved],
            Self::KilledFromGrant => &[Self::ClientKilled],
            Self::BrokenFromGrant => &[Self::Broken],
            _ => &[],
        }
    }

    /// True if it takes several servers that make one lock space.
    #[must_use]
    pub fn needs_several_servers(self) -> bool {
        self >= Self::LeaderKilled && self <= Self::MemberCut
    }

    /// True if it takes one of several servers that leads the others.
    #[must_use]
    pub fn needs_leader(self) -> bool {
        self >= Self::LeaderKilled && self <= Self::SlotMoved
    }

    /// True if it hits two of several members at once.
    #[must_use]
    pub fn hits_two_members(self) -> bool {
        matches!(self, Self::TwoStopped | Self::TwoRestarted)
    }

    /// True if it hits one of several servers that know nothing of each other.
    #[must_use]
    pub fn hits_one_member(self) -> bool {
        self >= Self::MemberStopped && self <= Self::MemberCut
    }
}

impl FaultSupport {
    /// True if the backend can have it.
    #[must_use]
    pub fn is_supported(self) -> bool {
        !matches!(self, Self::No(_))
    }

    /// What does not hold meanwhile.
    #[must_use]
    pub fn broken_assumption(self) -> Option<Assumption> {
        if let Self::Breaks(assumption) = self { Some(assumption) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn all_are_all_in_order_and_have_names() {
        for pair in Kind::ALL.windows(2) {
            assert_eq!(pair[0] as u8 + 1, pair[1] as u8);
        }
        assert_eq!(Kind::HeldAndDelivered.name(), "held-and-delivered");
    }
}
