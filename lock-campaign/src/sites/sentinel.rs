//! A Redis primary, its replica, and three Sentinels that make the replica the primary when that is gone.

use std::net::SocketAddr;
use std::time::Duration;

use conformance_tests::ServerProcess;
use conformance_tests::history::Assumption;
use conformance_tests::servers::{Persistence, RedisOptions, Reply, SentinelGroup};
use lock_core::LockName;

use super::{BY_NETWORK, Backing, Cut, Site, Terms, connect};
use crate::kind::{Kind, Offer};

pub(super) const BACKING: Backing = Backing { name: "sentinel", start, connect };

/// What follows a failover has to come about within a lease: without one, a second is enough.
const LEASE: Duration = Duration::from_secs(1);

fn start() -> Box<dyn Site> {
    Box::new(Group(SentinelGroup::start(RedisOptions::new().persistence(Persistence::Aof))))
}

struct Group(SentinelGroup);

impl Site for Group {
    fn terms(&self) -> Terms {
        Terms {
            ttl: LEASE,
            lease: None,
            beat: Duration::from_millis(1),
            timeout: LEASE,
            late: LEASE / 4,
            locks: 16,
        }
    }

    fn offer(&self, kind: Kind) -> Offer {
        match kind {
            // Replication is asynchronous: who takes over may not know the newest locks.
            Kind::LeaderKilled | Kind::LeaderStopped => Offer::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => Offer::Breaks(Assumption::A3),
            Kind::FollowerCut | Kind::MemberStopped | Kind::MemberRestarted => Offer::Yes,
            Kind::ServerStopped | Kind::ServerRestarted | Kind::ServerEmptied => {
                Offer::No("the primary is stopped and killed instead")
            }
            Kind::MemberEmptied | Kind::MemberCut => Offer::No("Sentinels have no locks"),
            Kind::ServerClockStepped | Kind::ServerFull => Offer::No("see the run of one server"),
            Kind::SlotMoved => Offer::No("there are no slots"),
            kind if kind.is_in_network() || kind.ways().iter().any(|way| way.is_in_network()) => {
                Offer::No(
                    "clients reach servers where Sentinels say that they are: no way of their own",
                )
            }
            kind if kind.is_in_calls() => Offer::No(BY_NETWORK),
            _ => Offer::Yes,
        }
    }

    fn url(&self, _: &[SocketAddr]) -> String {
        self.0.url()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        [0, 1].map(|number| self.0.server(number) as &dyn ServerProcess).into()
    }

    fn members(&self, _: Kind) -> Vec<&dyn ServerProcess> {
        self.0.sentinels().iter().map(|sentinel| sentinel as &dyn ServerProcess).collect()
    }

    fn leader(&self) -> Option<usize> {
        self.0.settled()
    }

    fn cut_follower(&self) -> Option<Cut<'_>> {
        let primary = self.leader()?;
        self.0.cut_from_replica(primary);
        Some(Box::new(move || self.0.heal(primary)))
    }

    fn evict(&self, name: &LockName) -> bool {
        let Some(primary) = self.leader() else { return false };
        self.0.server(primary).command(&["DEL", name.as_str()]).text() == "1"
    }

    fn left(&self) -> Option<Vec<String>> {
        match self.0.server(self.leader()?).command(&["KEYS", "*"]) {
            Reply::Array(keys) => Some(keys.iter().map(Reply::text).collect()),
            other => Some(vec![format!("{other:?}")]),
        }
    }

    fn documented(&self) -> Vec<&'static str> {
        vec!["{n*}%fence", "{n*}%gone:*"]
    }
}
