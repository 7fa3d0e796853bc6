//! A quorum of several sites, each of which is one server.

use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;

use super::site::{BY_NETWORK, BackendSpec, Removal, Site, SiteParams, connect};
use super::{memcached, redis};
use crate::kind::{FaultSupport, Kind};

pub(super) const REDIS: BackendSpec = BackendSpec {
    name: "quorum",
    start: || {
        let members = [redis::SPEC, redis::SPEC, redis::SPEC];
        Quorum::start(members, Duration::from_secs(2))
    },
    connect,
};

pub(super) const MIXED: BackendSpec = BackendSpec {
    name: "quorum-mixed",
    start: || {
        let members = [redis::SPEC, redis::SPEC, memcached::SPEC];
        Quorum::start(members, Duration::from_secs(3))
    },
    connect,
};

/// The bound on one call.
const TIMEOUT: Duration = Duration::from_secs(1);

struct Quorum {
    members: Vec<Box<dyn Site>>,
    /// The lease that all clients ask for, and the longest permitted one: a restarted member does
    /// not vote for this long. Clocks must be correct to within the lease less a second, and
    /// memcached's ticks once a second.
    lease: Duration,
    /// The proxy of each member.
    proxies: Vec<Proxy>,
}

impl Quorum {
    fn start(members: [BackendSpec; 3], lease: Duration) -> Box<dyn Site> {
        let members = members.map(|member| (member.start)());
        let proxies = members.iter().map(|member| {
            let [server] = member.upstreams()[..] else { panic!("a member is one server") };
            Proxy::start(server).expect("a port is free")
        });
        Box::new(Self { proxies: proxies.collect(), members: members.into(), lease })
    }
}

/// Returns true if a member can have this kind of fault while the quorum keeps its promises.
fn is_fit(member: &dyn Site, kind: Kind) -> bool {
    match kind {
        Kind::MemberStopped | Kind::TwoStopped => {
            member.support(Kind::ServerStopped) == FaultSupport::Yes
        }
        Kind::MemberRestarted | Kind::TwoRestarted => {
            member.support(Kind::ServerRestarted) == FaultSupport::Yes
        }
        // The member lost its locks, and does not vote before their leases would have expired.
        Kind::MemberEmptied => member.support(Kind::ServerEmptied).is_supported(),
        _ => true,
    }
}

impl Site for Quorum {
    fn params(&self) -> SiteParams {
        SiteParams::new(self.lease, TIMEOUT, TIMEOUT / 4)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // A lock on a bare majority may lose it, but no other client is granted the lock
            // before its lease expires.
            Kind::MemberEmptied => FaultSupport::Breaks(Assumption::Minority),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::ServerStopped | Kind::ServerRestarted => {
                let mut members = self.members.iter();
                match members.all(|member| member.support(kind) == FaultSupport::Yes) {
                    true => FaultSupport::Yes,
                    false => {
                        FaultSupport::No("not all members support it: see those of one member")
                    }
                }
            }
            Kind::ServerEmptied => FaultSupport::Breaks(Assumption::A2),
            Kind::ClientClockStepped => FaultSupport::No(
                "a member that lost its data relies on it, to within the longest lease",
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
        for (index, member) in self.members.iter().enumerate() {
            let through = through.get(index).map_or(&[][..], std::slice::from_ref);
            url += &format!("&member={}", escaped(&member.url(through)));
        }
        url
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(Proxy::addr).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        self.members.iter().flat_map(|member| member.servers()).collect()
    }

    fn members(&self, kind: Kind) -> Vec<&dyn ServerProcess> {
        let fit = self.members.iter().filter(|member| is_fit(&***member, kind));
        fit.flat_map(|member| member.servers()).collect()
    }

    fn member_proxies(&self) -> &[Proxy] {
        &self.proxies
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
        // Members have no queue for the waiters of a quorum. If a lease has expired since a waiter
        // began to wait, the release key stays for ten minutes.
        each.map(|names| [names.concat(), vec!["{n*}%wake"]].concat())
    }
}

/// Escapes a URL for use as an option of another URL.
fn escaped(url: &str) -> String {
    url.replace('%', "%25").replace('&', "%26").replace('?', "%3F").replace('=', "%3D")
}
