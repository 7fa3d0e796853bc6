//! A ZooKeeper server, and an ensemble of three.

use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Fault;
use lock_history::Assumption;
use test_servers::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
use zookeeper_client::{Client, Error};

use super::site::{BY_NETWORK, BackendSpec, Site, SiteParams, Undo, connect};
use crate::kind::{FaultSupport, Kind};

pub(super) const ALONE: BackendSpec = BackendSpec {
    name: "zookeeper",
    start: || Box::new(Alone(ZooKeeper::start(&ZooKeeperOptions::new()))),
    connect,
};

pub(super) const ENSEMBLE: BackendSpec = BackendSpec {
    name: "zookeeper-3",
    start: || Box::new(Ensemble(ZooKeeperEnsemble::start(&ZooKeeperOptions::new().links()))),
    connect,
};

/// The session timeout that clients ask for.
const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

struct Alone(ZooKeeper);

struct Ensemble(ZooKeeperEnsemble);

fn params() -> SiteParams {
    // Four heartbeat writes in a row, and an answer, must arrive within a session timeout.
    let params = SiteParams::new(SESSION_TIMEOUT, SESSION_TIMEOUT, SESSION_TIMEOUT / 16);
    SiteParams { lease: Some(SESSION_TIMEOUT), ..params }
}

fn url(through: &[SocketAddr]) -> String {
    let hosts: Vec<String> = through.iter().map(ToString::to_string).collect();
    format!("zookeeper://{}?session_timeout={}ms", hosts.join(","), SESSION_TIMEOUT.as_millis())
}

fn support(kind: Kind) -> FaultSupport {
    match kind {
        Kind::Broken => FaultSupport::Breaks(Assumption::A3),
        Kind::Evicted => FaultSupport::No("the operator's break deletes the node: it is the same"),
        Kind::ServerEmptied => {
            FaultSupport::No("durable tokens depend on its log, and decrease without it")
        }
        Kind::ServerAged => FaultSupport::No("tokens decrease with its log"),
        Kind::ServerClockStepped => FaultSupport::No("it counts sessions by a monotonic clock"),
        Kind::ServerFull => FaultSupport::No("it has no such limit"),
        Kind::SlotMoved => FaultSupport::No("there are no slots"),
        kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
        _ => FaultSupport::Yes,
    }
}

/// The permitted residue: the nodes of locks, which the server removes later. No watch may remain.
const DOCUMENTED: [&str; 1] = ["/n*"];

/// Lists the residue on the servers: the nodes, as `reader` has them, and the watches of `all`.
fn residue(reader: &ZooKeeper, all: &[&ZooKeeper]) -> Vec<String> {
    let tree = tokio::runtime::Handle::current().block_on(tree(reader.addr()));
    let mut residue = tree.unwrap_or_else(|error| vec![format!("? ({error})")]);
    residue.extend(all.iter().filter_map(|server| watches(server)));
    residue
}

async fn tree(addr: SocketAddr) -> Result<Vec<String>, Error> {
    let client = Client::connect(&addr.to_string()).await?;
    let mut nodes = Vec::new();
    for top in client.list_children("/").await?.into_iter().filter(|top| top != "zookeeper") {
        let lock = format!("/{top}");
        // The lock's node may just have been removed.
        let children = client.list_children(&lock).await.unwrap_or_default();
        nodes.extend(children.into_iter().map(|node| format!("{node} in {lock}")));
        nodes.push(lock);
    }
    Ok(nodes)
}

fn watches(server: &ZooKeeper) -> Option<String> {
    match server.word("wchs") {
        Ok(reply) if reply.contains("Total watches:0") => None,
        Ok(reply) => Some(reply.split_whitespace().collect::<Vec<_>>().join(" ")),
        Err(error) => Some(format!("? ({error})")),
    }
}

impl Site for Alone {
    fn params(&self) -> SiteParams {
        params()
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            kind if kind.needs_several_servers() => {
                FaultSupport::No("there is one server; see zookeeper-3")
            }
            kind => support(kind),
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        url(if through.is_empty() { vec![self.0.addr()] } else { through.to_vec() }.as_slice())
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        vec![self.0.addr()]
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        vec![&self.0]
    }

    fn residue(&self) -> Option<Vec<String>> {
        Some(residue(&self.0, &[&self.0]))
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(DOCUMENTED.to_vec())
    }
}

impl Site for Ensemble {
    fn params(&self) -> SiteParams {
        params()
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            Kind::LeaderReplaced => FaultSupport::No("no command chooses its leader"),
            Kind::ServerStopped | Kind::ServerRestarted => FaultSupport::No(
                "the leader, or two members at once, are stopped and killed instead",
            ),
            kind if kind.hits_one_member() => {
                FaultSupport::No("a leader and its followers are hit")
            }
            kind => support(kind),
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        url(if through.is_empty() { self.upstreams() } else { through.to_vec() }.as_slice())
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        self.0.members().iter().map(|member| member.addr()).collect()
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        self.0.members().iter().map(|member| member as &dyn ServerProcess).collect()
    }

    fn members(&self, _: Kind) -> Vec<&dyn ServerProcess> {
        self.servers()
    }

    fn leader(&self) -> Option<usize> {
        self.0.find("leader")
    }

    fn cut_follower(&self) -> Option<Undo<'_>> {
        let link = self.0.link(self.0.find("follower")?, self.leader()?);
        link.set(Fault::BlackHole);
        Some(Box::new(move || link.heal()))
    }

    fn residue(&self) -> Option<Vec<String>> {
        let all: Vec<_> = self.0.members().iter().collect();
        self.leader().map(|leader| residue(self.0.member(leader), &all))
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(DOCUMENTED.to_vec())
    }
}
