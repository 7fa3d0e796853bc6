//! A Redis primary, its replica, and three Sentinels that promote the replica when the primary
//! fails. If each grant waits for the replica, a failover loses no lock.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Persistence, RedisOptions, Reply, SentinelGroup};

use super::redis::deleted;
use super::site::{BY_NETWORK, BackendSpec, Removal, Site, SiteParams, Undo, connect};
use crate::kind::{FaultSupport, Kind, Scope};

pub(super) const SPEC: BackendSpec =
    BackendSpec { name: "sentinel", start: || start(false), connect };

/// The variant in which each grant waits for the replica.
pub(super) const WITH_REPLICAS: BackendSpec =
    BackendSpec { name: "sentinel-replicas", start: || start(true), connect };

/// The lease without replication of locks. The events after a failover must follow within a lease,
/// and in an undisturbed run a second is enough.
const LEASE: Duration = Duration::from_secs(1);

/// The lease with replication of locks. It exceeds a failover, so that held locks outlast it.
const LONG_LEASE: Duration = Duration::from_secs(5);

/// The typical hold with replication of locks, so that many holds outlast a failover, and not only
/// their leases.
const LONG_HOLD: Duration = Duration::from_secs(2);

/// The number of servers: the primary and its replica.
const SERVERS: usize = 2;

/// The time for which a grant waits for the replica.
const REPLICA_TIMEOUT: Duration = Duration::from_millis(250);

fn start(replicates: bool) -> Box<dyn Site> {
    let group = SentinelGroup::start(RedisOptions::new().persistence(Persistence::Aof));
    Box::new(Group { group, replicates })
}

struct Group {
    group: SentinelGroup,
    /// True if each grant waits for the replica.
    replicates: bool,
}

impl Site for Group {
    fn params(&self) -> SiteParams {
        let params = SiteParams::new(LEASE, LEASE, LEASE / 4);
        match self.replicates {
            true => SiteParams { ttl: LONG_LEASE, typical_hold: LONG_HOLD, ..params },
            false => params,
        }
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // The replica knows all locks, but not the releases of the last moment.
            Kind::LeaderKilled | Kind::LeaderStopped | Kind::LeaderReplaced if self.replicates => {
                FaultSupport::Breaks(Assumption::Releases)
            }
            // Replication is asynchronous: the new primary may not know the newest locks.
            Kind::LeaderKilled | Kind::LeaderStopped | Kind::LeaderReplaced => {
                FaultSupport::Breaks(Assumption::A2)
            }
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::FollowerCut | Kind::MemberStopped | Kind::MemberRestarted => FaultSupport::Yes,
            Kind::ServerStopped | Kind::ServerRestarted | Kind::ServerEmptied => {
                FaultSupport::No("the primary is stopped and killed instead")
            }
            Kind::MemberEmptied | Kind::MemberCut => FaultSupport::No("Sentinels have no locks"),
            Kind::ServerAged | Kind::ServerClockStepped | Kind::ServerFull => {
                FaultSupport::No("see the run of one server")
            }
            Kind::SlotMoved => FaultSupport::No("there are no slots"),
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::Yes,
        }
    }

    /// Returns an outage for a cut replica if grants wait for it.
    fn scope(&self, kind: Kind) -> Scope {
        match kind {
            Kind::FollowerCut if self.replicates => Scope::Outage,
            kind => kind.scope(),
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        let timeout = REPLICA_TIMEOUT.as_millis();
        let url = match through.get(SERVERS..) {
            Some(sentinels) => {
                let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                format!("redis+sentinel://{}/{}", hosts.join(","), self.group.service())
            }
            None => self.group.url(),
        };
        match self.replicates {
            true => format!("{url}?min_replicas=1&min_replicas_timeout={timeout}ms"),
            false => url,
        }
    }

    /// Returns the addresses of the servers, then those of the Sentinels.
    fn upstreams(&self) -> Vec<SocketAddr> {
        let servers = (0..SERVERS).map(|number| self.group.server(number).addr());
        servers.chain(self.group.sentinels().iter().map(|sentinel| sentinel.addr())).collect()
    }

    /// Starts proxies to the servers on an address of the client's own, on the servers' ports. The
    /// client's proxies of the Sentinels replace the servers' address by it.
    fn client_proxies(&self, client: usize) -> io::Result<Vec<Proxy>> {
        let client = u8::try_from(client + 1).expect("there are few clients");
        let own = Ipv4Addr::new(127, 0, client, 1);
        let proxy = |(index, upstream): (usize, SocketAddr)| {
            if index < SERVERS {
                return Proxy::start_at((own, upstream.port()).into(), upstream);
            }
            let proxy = Proxy::start(upstream)?;
            proxy.rewrite(&upstream.ip().to_string(), &own.to_string());
            Ok(proxy)
        };
        self.upstreams().into_iter().enumerate().map(proxy).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        (0..SERVERS).map(|number| self.group.server(number) as &dyn ServerProcess).collect()
    }

    fn members(&self, _: Kind) -> Vec<&dyn ServerProcess> {
        self.group.sentinels().iter().map(|sentinel| sentinel as &dyn ServerProcess).collect()
    }

    fn leader(&self) -> Option<usize> {
        self.group.settled()
    }

    fn replace_leader(&self, leader: usize) {
        let sentinel = self.group.sentinel(0);
        if sentinel.named() == Some(self.group.server(leader).addr().port()) {
            // Refused during a failover, or if the replica has not answered lately.
            sentinel.command(&["SENTINEL", "FAILOVER", self.group.service()]);
        }
    }

    fn has_replaced(&self, lost: usize) -> bool {
        self.group.has_replaced(lost)
    }

    fn cut_follower(&self) -> Option<Undo<'_>> {
        let primary = self.leader()?;
        self.group.cut_from_replica(primary);
        Some(Box::new(move || self.group.heal(primary)))
    }

    fn isolates_leaders_first(&self) -> bool {
        self.replicates
    }

    /// Returns 3 s: a primary that was missed for a moment may still be replaced after its return.
    fn recovery_time(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn evict(&self, name: &LockName) -> Removal {
        let Some(primary) = self.leader() else { return Removal::NotFound };
        deleted(&self.group.server(primary).command(&["DEL", name.as_str()]))
    }

    fn residue(&self) -> Option<Vec<String>> {
        match self.group.server(self.leader()?).command(&["KEYS", "*"]) {
            Reply::Array(keys) => Some(keys.iter().map(Reply::text).collect()),
            other => Some(vec![format!("{other:?}")]),
        }
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(vec!["{n*}%token", "{n*}%gone:*"])
    }
}
