//! A Redis Cluster of three primaries with a replica each.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Persistence, Redis, RedisCluster, RedisOptions};

use super::redis::deleted;
use super::site::{BY_NETWORK, BackendSpec, Removal, Site, SiteParams, Undo, connect};
use crate::kind::{FaultSupport, Kind};
use crate::lock_names::lock_name;

pub(super) const SPEC: BackendSpec = BackendSpec { name: "cluster", start, connect };

const PRIMARIES: usize = 3;

const LEASE: Duration = Duration::from_secs(1);

/// The lock whose primary has the faults.
const FIRST_LOCK: &str = "n00";

fn start() -> Box<dyn Site> {
    let options = RedisOptions::new()
        .persistence(Persistence::Aof)
        .setting("cluster-node-timeout", "1000")
        .setting("cluster-replica-validity-factor", "0")
        .setting("repl-diskless-sync-delay", "0")
        // Without one primary, the others serve their slots, so its faults excuse no failure of
        // other locks.
        .setting("cluster-require-full-coverage", "no")
        // Members announce only their ports. A client reaches each of them at the address of the
        // first one, which is the client's own proxy address.
        .setting("cluster-preferred-endpoint-type", "unknown-endpoint");
    Box::new(Cluster(RedisCluster::start(&options, PRIMARIES, 1)))
}

struct Cluster(RedisCluster);

impl Cluster {
    fn nodes(&self) -> impl Iterator<Item = &Redis> {
        (0..self.0.len()).map(|index| self.0.member(index))
    }
}

impl Site for Cluster {
    fn params(&self) -> SiteParams {
        SiteParams::new(LEASE, LEASE, LEASE / 4)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // Replication is asynchronous: the new primary may not know the newest locks.
            Kind::LeaderKilled | Kind::LeaderStopped => FaultSupport::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::FollowerCut | Kind::SlotMoved => FaultSupport::Yes,
            Kind::ServerStopped | Kind::ServerRestarted | Kind::ServerEmptied => {
                FaultSupport::No("a primary is stopped and killed instead")
            }
            Kind::ServerAged | Kind::ServerClockStepped | Kind::ServerFull => {
                FaultSupport::No("see the run of one server")
            }
            Kind::LeaderReplaced => FaultSupport::No("see the runs with Sentinels"),
            kind if kind.hits_one_member() || kind.hits_two_members() => {
                FaultSupport::No("primaries and replicas are hit, one at a time")
            }
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::Yes,
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        let all = if through.is_empty() { self.upstreams() } else { through.to_vec() };
        let hosts: Vec<_> = all.iter().map(ToString::to_string).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        self.nodes().map(|node| node.addr()).collect()
    }

    /// Starts proxies on an address of the client's own, on the ports that the members announce.
    fn client_proxies(&self, client: usize) -> std::io::Result<Vec<Proxy>> {
        let client = u8::try_from(client + 1).expect("there are few clients");
        let own = |port| (Ipv4Addr::new(127, 1, client, 1), port).into();
        let proxy = |upstream: SocketAddr| Proxy::start_at(own(upstream.port()), upstream);
        self.upstreams().into_iter().map(proxy).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        self.nodes().map(|node| node as &dyn ServerProcess).collect()
    }

    /// Returns the primary of the first lock.
    fn leader(&self) -> Option<usize> {
        if self.0.is_settled() { self.0.try_home(FIRST_LOCK) } else { None }
    }

    fn has_replaced(&self, lost: usize) -> bool {
        self.0.has_replaced(lost, FIRST_LOCK)
    }

    /// Returns the locks of that primary, or of the moved slot.
    fn affected_locks(&self, kind: Kind, leader: usize) -> Option<Vec<String>> {
        let locks = (0..self.params().locks).map(lock_name);
        let moved = self.0.slot(FIRST_LOCK);
        let is_hit = |lock: &String| match kind {
            Kind::SlotMoved => self.0.slot(lock) == moved,
            _ => self.0.try_home(lock) == Some(leader),
        };
        Some(locks.filter(is_hit).collect())
    }

    fn cut_follower(&self) -> Option<Undo<'_>> {
        let primary = self.leader()?;
        self.0.cut_from_replica(primary);
        Some(Box::new(move || self.0.replicate_again(primary)))
    }

    fn move_slot(&self) -> bool {
        let Some(from) = self.leader() else { return false };
        let to = self.0.masters().into_iter().find(|primary| *primary != from);
        to.is_some_and(|to| {
            self.0.move_slot(self.0.slot(FIRST_LOCK), from, to);
            true
        })
    }

    /// Returns 3 s: a primary that was missed for a moment may still be replaced after its return.
    fn recovery_time(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn evict(&self, name: &LockName) -> Removal {
        let Some(home) = self.0.try_home(name.as_str()) else { return Removal::NotFound };
        deleted(&self.0.member(home).command(&["DEL", name.as_str()]))
    }

    fn residue(&self) -> Option<Vec<String>> {
        let keys = |primary: usize| self.0.member(primary).command(&["KEYS", "*"]).text();
        let all: Vec<_> = self.0.masters().into_iter().map(keys).collect();
        Some(all.iter().flat_map(|keys| keys.lines()).map(str::to_owned).collect())
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(vec!["{n*}%token", "{n*}%gone:*"])
    }
}
