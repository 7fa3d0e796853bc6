//! A majority of several sites, each of which is one server.

use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;

use super::site::{BY_NETWORK, Removal, Site, SiteParams, Target, connect};
use super::{memcached, redis};
use crate::kind::{FaultSupport, Kind};

pub(super) const REDIS: Target = Target {
    name: "quorum",
    start: || {
        let members = [redis::TARGET, redis::TARGET, redis::TARGET];
        Quorum::of(members, Duration::from_secs(2))
    },
    connect,
};

pub(super) const MIXED: Target = Target {
    name: "quorum-mixed",
    start: || {
        let members = [redis::TARGET, redis::TARGET, memcached::TARGET];
        Quorum::of(members, Duration::from_secs(3))
    },
    connect,
};

/// The bound on one call.
const TIMEOUT: Duration = Duration::from_secs(1);

struct Quorum {
    members: Vec<Box<dyn Site>>,
    /// What all clients ask for, and the longest that they may: for so long a member that was
    /// restarted stays out. Clocks have to be right to within this, less a second, and memcached's
    /// ticks once a second.
    lease: Duration,
    /// The way to each of them.
    ways: Vec<Proxy>,
}

impl Quorum {
    fn of(members: [Target; 3], lease: Duration) -> Box<dyn Site> {
        let members = members.map(|member| (member.start)());
        let ways = members.iter().map(|member| {
            let [server] = member.upstreams()[..] else { panic!("a member is one server") };
            Proxy::start(server).expect("a port is free")
        });
        Box::new(Self { ways: ways.collect(), members: members.into(), lease })
    }

    fn all(&self, kind: Kind) -> impl Iterator<Item = FaultSupport> {
        self.members.iter().map(move |member| member.support(kind))
    }
}

/// What has to happen to a member, if it were alone, and whether it can keep what it promises then.
fn is_fit(member: &dyn Site, kind: Kind) -> bool {
    match kind {
        Kind::MemberStopped | Kind::TwoStopped => {
            member.support(Kind::ServerStopped) == FaultSupport::Yes
        }
        Kind::MemberRestarted | Kind::TwoRestarted => {
            member.support(Kind::ServerRestarted) == FaultSupport::Yes
        }
        // It has forgotten its locks, and is not counted before they would have ended.
        Kind::MemberEmptied => member.support(Kind::ServerEmptied).is_supported(),
        _ => true,
    }
}

impl Site for Quorum {
    fn params(&self) -> SiteParams {
        SiteParams {
            ttl: self.lease,
            lease: None,
            typical_hold: Duration::from_millis(1),
            timeout: TIMEOUT,
            max_delay: TIMEOUT / 4,
            locks: 16,
        }
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // A lock may be on a bare majority, and lose it, but nobody else gets it before its
            // lease ends.
            Kind::MemberEmptied => FaultSupport::Breaks(Assumption::Minority),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::ServerStopped | Kind::ServerRestarted => {
                match self.all(kind).all(|support| support == FaultSupport::Yes) {
                    true => FaultSupport::Yes,
                    false => {
                        FaultSupport::No("not all members can have it: see those of one member")
                    }
                }
            }
            Kind::ServerEmptied => FaultSupport::Breaks(Assumption::A2),
            Kind::ClientClockStepped => FaultSupport::No(
                "a member that has lost its data counts by it: within the longest lease",
            ),
            Kind::ServerAged | Kind::ServerClockStepped | Kind::ServerFull => {
                FaultSupport::No("see the members' own runs")
            }
            Kind::LeaderKilled
            | Kind::LeaderStopped
            | Kind::LeaderReplaced
            | Kind::FollowerCut
            | Kind::SlotMoved => FaultSupport::No("no member leads"),
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::Yes,
        }
    }

    fn decides_by_majority(&self) -> bool {
        true
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        let longest = self.lease.as_millis();
        let mut url = format!("quorum:?max_ttl={longest}ms&member_timeout=500ms");
        for (place, member) in self.members.iter().enumerate() {
            let through = through.get(place).map_or(&[][..], std::slice::from_ref);
            url += &format!("&member={}", escaped(&member.url(through)));
        }
        url
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        self.ways.iter().map(Proxy::addr).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        self.members.iter().flat_map(|member| member.servers()).collect()
    }

    fn members(&self, kind: Kind) -> Vec<&dyn ServerProcess> {
        let fit = self.members.iter().filter(|member| is_fit(&***member, kind));
        fit.flat_map(|member| member.servers()).collect()
    }

    fn member_proxies(&self) -> &[Proxy] {
        &self.ways
    }

    fn evict(&self, name: &LockName) -> Removal {
        let removed: Vec<_> = self.members.iter().map(|member| member.evict(name)).collect();
        let done = removed.iter().filter(|removal| **removal == Removal::Removed).count();
        match done > self.members.len() / 2 {
            true => Removal::Removed,
            false if removed.iter().all(|removal| *removal == Removal::NotFound) => {
                Removal::NotFound
            }
            false => Removal::Unknown,
        }
    }

    fn residue(&self) -> Option<Vec<String>> {
        Some(self.members.iter().filter_map(|member| member.residue()).flatten().collect())
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        let each: Option<Vec<_>> =
            self.members.iter().map(|member| member.documented_residue()).collect();
        // Its waiters stand in no line: where a lease has lapsed since one went to rest, the bell
        // is left for ten minutes.
        each.map(|names| [names.concat(), vec!["{n*}%wake"]].concat())
    }
}

/// As the value of an option of a URL.
fn escaped(url: &str) -> String {
    url.replace('%', "%25").replace('&', "%26").replace('?', "%3F").replace('=', "%3D")
}
