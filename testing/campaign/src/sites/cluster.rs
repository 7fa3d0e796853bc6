//! A Redis Cluster of three masters with a replica each.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Persistence, RedisCluster, RedisOptions};

use super::redis::deleted;
use super::site::{BY_NETWORK, Removal, Site, SiteParams, Target, Undo, connect};
use crate::collector::lock_name;
use crate::kind::{FaultSupport, Kind};

pub(super) const TARGET: Target = Target { name: "cluster", start, connect };

const MASTERS: usize = 3;

const LEASE: Duration = Duration::from_secs(1);

/// A lock of all those that clients want.
const ONE: &str = "n00";

fn start() -> Box<dyn Site> {
    let options = RedisOptions::new()
        .persistence(Persistence::Aof)
        .setting("cluster-node-timeout", "1000")
        .setting("cluster-replica-validity-factor", "0")
        .setting("repl-diskless-sync-delay", "0")
        // Without one master, the others serve their slots, and what is done to it is no excuse for
        // theirs.
        .setting("cluster-require-full-coverage", "no")
        // Members tell their ports alone, so a client finds each of them at the address at which it
        // found the first one: its own.
        .setting("cluster-preferred-endpoint-type", "unknown-endpoint");
    Box::new(Cluster(RedisCluster::start(&options, MASTERS, 1)))
}

struct Cluster(RedisCluster);

impl Cluster {
    fn places(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }
}

impl Site for Cluster {
    fn params(&self) -> SiteParams {
        SiteParams {
            ttl: LEASE,
            lease: None,
            typical_hold: Duration::from_millis(1),
            timeout: LEASE,
            max_delay: LEASE / 4,
            locks: 16,
        }
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // Replication is asynchronous: who takes over may not know the newest locks.
            Kind::LeaderKilled | Kind::LeaderStopped => FaultSupport::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::FollowerCut | Kind::SlotMoved => FaultSupport::Yes,
            Kind::ServerStopped | Kind::ServerRestarted | Kind::ServerEmptied => {
                FaultSupport::No("a master is stopped and killed instead")
            }
            Kind::ServerAged | Kind::ServerClockStepped | Kind::ServerFull => {
                FaultSupport::No("see the run of one server")
            }
            Kind::LeaderReplaced => FaultSupport::No("see the runs with Sentinels"),
            kind if kind.hits_one_member() || kind.hits_two_members() => {
                FaultSupport::No("masters and replicas are hit, one at a time")
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
        self.places().map(|place| self.0.member(place).addr()).collect()
    }

    /// Each client reaches all members at an address of its own, on the ports that they tell.
    fn client_proxies(&self, client: usize) -> std::io::Result<Vec<Proxy>> {
        let client = u8::try_from(client + 1).expect("there are few clients");
        let own = |port| (Ipv4Addr::new(127, 1, client, 1), port).into();
        let line = |upstream: SocketAddr| Proxy::start_at(own(upstream.port()), upstream);
        self.upstreams().into_iter().map(line).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        self.places().map(|place| self.0.member(place) as &dyn ServerProcess).collect()
    }

    /// One of the masters.
    fn leader(&self) -> Option<usize> {
        if self.0.is_settled() { self.0.try_home(ONE) } else { None }
    }

    fn has_replaced(&self, lost: usize) -> bool {
        self.0.has_replaced(lost, ONE)
    }

    /// Those of that master, or of the slot.
    fn affected_locks(&self, kind: Kind, leader: usize) -> Option<Vec<String>> {
        let locks = (0..self.params().locks).map(lock_name);
        let moved = self.0.slot(ONE);
        let is_hit = |lock: &String| match kind {
            Kind::SlotMoved => self.0.slot(lock) == moved,
            _ => self.0.try_home(lock) == Some(leader),
        };
        Some(locks.filter(is_hit).collect())
    }

    fn cut_follower(&self) -> Option<Undo<'_>> {
        let master = self.leader()?;
        self.0.cut_from_replica(master);
        Some(Box::new(move || self.0.replicate_again(master)))
    }

    fn move_slot(&self) -> bool {
        let Some(from) = self.leader() else { return false };
        let to = self.0.masters().into_iter().find(|master| *master != from);
        to.is_some_and(|to| {
            self.0.move_slot(self.0.slot(ONE), from, to);
            true
        })
    }

    /// Who was missed for a moment may still be replaced when it is back.
    fn recovery_time(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn evict(&self, name: &LockName) -> Removal {
        let Some(home) = self.0.try_home(name.as_str()) else { return Removal::NotFound };
        deleted(&self.0.member(home).command(&["DEL", name.as_str()]))
    }

    fn residue(&self) -> Option<Vec<String>> {
        let keys = |master: usize| self.0.member(master).command(&["KEYS", "*"]).text();
        let all: Vec<_> = self.0.masters().into_iter().map(keys).collect();
        Some(all.iter().flat_map(|keys| keys.lines()).map(str::to_owned).collect())
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(vec!["{n*}%token", "{n*}%gone:*"])
    }
}
