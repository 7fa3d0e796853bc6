//! A Redis primary, its replica, and three Sentinels that make the replica the primary when that is
//! gone. With locks that the replica has to know of, a failover loses none.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Persistence, RedisOptions, Reply, SentinelGroup};

use super::redis::deleted;
use super::site::{BY_NETWORK, Removal, Site, SiteParams, Target, Undo, connect};
use crate::kind::{FaultSupport, Kind, Scope};

pub(super) const TARGET: Target = Target { name: "sentinel", start: || start(false), connect };

/// The only replica has to know of each lock.
pub(super) const WITH_REPLICAS: Target =
    Target { name: "sentinel-replicas", start: || start(true), connect };

/// What follows a failover has to come about within a lease: without one, a second is enough.
const LEASE: Duration = Duration::from_secs(1);

/// Longer than a failover takes, so that locks which are held outlast it.
const LONG_LEASE: Duration = Duration::from_secs(5);

/// So that many holds outlast a failover, and not leases alone.
const BEAT: Duration = Duration::from_secs(2);

/// The primary, and its replica.
const SERVERS: usize = 2;

/// For how long a grant waits for the replica.
const PATIENCE: Duration = Duration::from_millis(250);

fn start(lasting: bool) -> Box<dyn Site> {
    let group = SentinelGroup::start(RedisOptions::new().persistence(Persistence::Aof));
    Box::new(Group { group, lasting })
}

struct Group {
    group: SentinelGroup,
    /// The replica has to know of locks.
    lasting: bool,
}

impl Site for Group {
    fn params(&self) -> SiteParams {
        let moment = Duration::from_millis(1);
        let (ttl, typical_hold) = match self.lasting {
            true => (LONG_LEASE, BEAT),
            false => (LEASE, moment),
        };
        SiteParams {
            ttl,
            lease: None,
            typical_hold,
            timeout: LEASE,
            max_delay: LEASE / 4,
            locks: 16,
        }
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // The replica knows all locks, and not who has let go a moment ago.
            Kind::LeaderKilled | Kind::LeaderStopped | Kind::LeaderReplaced if self.lasting => {
                FaultSupport::Breaks(Assumption::Releases)
            }
            // Replication is asynchronous: who takes over may not know the newest locks.
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

    /// A primary without its replica gives no lock that the replica has to know of.
    fn scope(&self, kind: Kind) -> Scope {
        match kind {
            Kind::FollowerCut if self.lasting => Scope::Outage,
            kind => kind.scope(),
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        let patience = PATIENCE.as_millis();
        let url = match through.get(SERVERS..) {
            Some(sentinels) => {
                let hosts: Vec<_> = sentinels.iter().map(ToString::to_string).collect();
                format!("redis+sentinel://{}/{}", hosts.join(","), self.group.service())
            }
            None => self.group.url(),
        };
        match self.lasting {
            true => format!("{url}?min_replicas=1&min_replicas_timeout={patience}ms"),
            false => url,
        }
    }

    /// The servers, and the Sentinels.
    fn upstreams(&self) -> Vec<SocketAddr> {
        let servers = (0..SERVERS).map(|number| self.group.server(number).addr());
        servers.chain(self.group.sentinels().iter().map(|sentinel| sentinel.addr())).collect()
    }

    /// Each client reaches the servers at an address of its own, on their ports: Sentinels name
    /// them by it.
    fn client_proxies(&self, client: usize) -> io::Result<Vec<Proxy>> {
        let client = u8::try_from(client + 1).expect("there are few clients");
        let own = Ipv4Addr::new(127, 0, client, 1);
        let line = |(place, upstream): (usize, SocketAddr)| {
            if place < SERVERS {
                return Proxy::start_at((own, upstream.port()).into(), upstream);
            }
            let line = Proxy::start(upstream)?;
            line.rewrite(&upstream.ip().to_string(), &own.to_string());
            Ok(line)
        };
        self.upstreams().into_iter().enumerate().map(line).collect()
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
            // Refused if one is under way, or the replica was not heard lately.
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
        self.lasting
    }

    /// Who was missed for a moment may still be replaced when it is back.
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
