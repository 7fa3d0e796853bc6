//! The kinds of fault.

use lock_history::Assumption;
use serde::{Deserialize, Serialize};

/// Defines the kinds of fault with their descriptions.
macro_rules! kinds {
    ($($kind:ident = $description:literal,)+) => {
        /// A kind of fault.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind {
            $(#[doc = $description] $kind,)+
        }

        impl Kind {
            /// All kinds, in order.
            pub const ALL: [Self; 49] = [$(Self::$kind,)+];

            /// Returns a description of the fault.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$kind => $description,)+
                }
            }
        }
    };
}

kinds! {
    ClientKilled = "client killed (SIGKILL), and replaced by a new one",
    ClientStopped = "client stopped and continued (SIGSTOP, SIGCONT; a thread: blocked)",
    ClientStarved = "client's application blocked, its locks renewed",
    ClientClockStepped = "client's wall clock stepped by an hour",
    ShortLeases = "leases not renewed, and held beyond their end",
    CallsRefused = "calls of the backend refused",
    CallsRepliesLost = "calls applied, replies lost",
    CallsUnanswered = "calls applied, never answered",
    CallsLate = "calls applied late",
    CallsRepliesLate = "calls answered late",
    CallsLandLate = "calls abandoned by the client, applied later",
    CallsCutOff = "all calls of a client lost",
    BlackHole = "network: all packets lost without an error",
    RequestsLost = "network: requests lost, replies delivered",
    RepliesLost = "network: requests delivered, replies lost",
    Reset = "network: connections reset",
    Refused = "network: connections reset, new ones refused",
    CutBeforeReply = "network: cut after the request, before the reply",
    HeldAndDelivered = "network: a request held, delivered later",
    Trickle = "network: a few bytes at a time",
    Slices = "network: one byte at a time",
    Delay = "network: high latency",
    AttemptCut = "aimed: cut after an attempt, before its answer",
    ReleaseCut = "aimed: cut after a release, before its answer",
    LateGrant = "aimed: a grant delivered late, not renewed, and held to its end",
    CutFromGrant = "aimed: client cut off from a grant on, beyond its lease",
    StoppedFromGrant = "aimed: client stopped from a grant on, beyond its lease",
    StarvedFromGrant = "aimed: client's application blocked from a grant on, and its lock held",
    KilledFromGrant = "aimed: client killed right after a grant",
    BrokenFromGrant = "aimed: a lock broken, and held until its holder is notified",
    ServerStopped = "server stopped and continued",
    ServerRestarted = "server killed, restarted with its data",
    ServerEmptied = "server killed, restarted without its data",
    ServerAged = "server killed, restarted with older data",
    ServerClockStepped = "server's clock stepped",
    ServerFull = "server at its memory limit",
    LeaderKilled = "leader killed, restarted later",
    LeaderStopped = "leader stopped and continued",
    LeaderReplaced = "leader replaced by command (SENTINEL FAILOVER)",
    FollowerCut = "a follower cut off from its leader only",
    SlotMoved = "a slot moved to another server, with its keys",
    TwoStopped = "two of three members stopped at once and continued",
    TwoRestarted = "two of three members killed at once, restarted with their data",
    MemberStopped = "one member of a quorum stopped and continued",
    MemberRestarted = "one member killed, restarted with its data",
    MemberEmptied = "one member killed, restarted without its data",
    MemberCut = "one member cut off from all clients",
    Evicted = "a held lock removed on the server",
    Broken = "a held lock broken by an operator",
}

/// The part of the traffic that a fault interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// That of one client process.
    Client,
    /// All traffic.
    Outage,
    /// That of one server or one lock, while most of it continues.
    Partial,
}

/// The support of a backend for a kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSupport {
    /// The backend can have the fault, and keeps all its promises meanwhile.
    Yes,
    /// The backend can have the fault, which breaks an assumption of exclusion.
    Breaks(Assumption),
    /// The backend cannot have the fault, for this reason.
    No(&'static str),
}

impl Kind {
    /// Returns the part of the traffic that the fault interrupts on most sites.
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

    /// Returns the name of the kind in results and histories.
    #[must_use]
    pub fn name(self) -> String {
        let name = serde_json::to_value(self).expect("a unit variant is a string");
        name.as_str().expect("a unit variant is a string").to_owned()
    }

    /// Returns true if the fault disturbs calls of the backend inside the client.
    #[must_use]
    pub fn is_in_calls(self) -> bool {
        self >= Self::CallsRefused && self <= Self::CallsCutOff
    }

    /// Returns true if the fault disturbs the network.
    #[must_use]
    pub fn is_in_network(self) -> bool {
        self >= Self::BlackHole && self <= Self::Delay
    }

    /// Returns true if the fault hits a client while it executes an order to acquire a lock.
    #[must_use]
    pub fn is_aimed(self) -> bool {
        self >= Self::AttemptCut && self <= Self::BrokenFromGrant
    }

    /// Returns the kinds that can inject an aimed fault, of which a site uses the first that it
    /// supports.
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

    /// Returns true if the fault needs several servers with one lock space.
    #[must_use]
    pub fn needs_several_servers(self) -> bool {
        self >= Self::LeaderKilled && self <= Self::MemberCut
    }

    /// Returns true if the fault needs a leader among several servers.
    #[must_use]
    pub fn needs_leader(self) -> bool {
        self >= Self::LeaderKilled && self <= Self::SlotMoved
    }

    /// Returns true if the fault hits two of several members at once.
    #[must_use]
    pub fn hits_two_members(self) -> bool {
        matches!(self, Self::TwoStopped | Self::TwoRestarted)
    }

    /// Returns true if the fault hits one of several independent servers.
    #[must_use]
    pub fn hits_one_member(self) -> bool {
        self >= Self::MemberStopped && self <= Self::MemberCut
    }
}

impl FaultSupport {
    /// Returns true if the backend can have the fault.
    #[must_use]
    pub fn is_supported(self) -> bool {
        !matches!(self, Self::No(_))
    }

    /// Returns the assumption that the fault breaks.
    #[must_use]
    pub fn broken_assumption(self) -> Option<Assumption> {
        if let Self::Breaks(assumption) = self { Some(assumption) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn all_kinds_are_listed_in_order() {
        for pair in Kind::ALL.windows(2) {
            assert_eq!(pair[0] as u8 + 1, pair[1] as u8);
        }
        assert_eq!(Kind::HeldAndDelivered.name(), "held-and-delivered");
    }
}
