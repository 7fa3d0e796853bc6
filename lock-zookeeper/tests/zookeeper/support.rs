//! Real servers for the tests, and a client of the operator's.

use std::net::SocketAddr;
use std::time::Duration;

pub(crate) use lock_conformance::helpers::{name, until};
use lock_core::backend::{Attempt, Claim, Grant, OnContention};
use lock_core::{Backend, OwnerId};
use lock_zookeeper::ZooKeeper;
use test_servers::{ZooKeeper as Server, ZooKeeperOptions};
use zookeeper_client::Client;

/// Longer than anything here takes on a busy machine. A test that works does not wait for it.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Sessions that outlive every stall of a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn server() -> Server {
    Server::start(&ZooKeeperOptions::new())
}

pub(crate) fn url(addr: SocketAddr) -> String {
    format!("zookeeper://{addr}?session_timeout={}ms", TIMEOUT.as_millis())
}

pub(crate) async fn client(addr: SocketAddr) -> ZooKeeper {
    ZooKeeper::connect(url(addr)).await.expect("the server takes us")
}

/// Somebody who sees and deletes nodes.
pub(crate) async fn operator(addr: SocketAddr) -> Client {
    Client::connector().connect(&addr.to_string()).await.expect("the server takes an operator")
}

/// The nodes in line for a lock, first come first.
pub(crate) async fn line(operator: &Client, lock: &str) -> Vec<String> {
    let mut line = operator.list_children(&format!("/{lock}")).await.unwrap_or_default();
    line.sort_by_key(|node| node.rsplit_once("lock").map(|(_, number)| number.to_owned()));
    line
}

pub(crate) fn claim(lock: &str, queue: bool) -> Claim {
    let mut claim = Claim::new(name(lock), OwnerId::mint(), Duration::from_secs(60));
    claim.on_contention = if queue { OnContention::Queue } else { OnContention::Return };
    claim
}

pub(crate) async fn win(client: &ZooKeeper, claim: &Claim) -> Grant {
    match client.try_acquire(claim).await {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("{} was not won: {other:?}", claim.name),
    }
}

pub(crate) async fn is_contended(client: &ZooKeeper, claim: &Claim) -> bool {
    matches!(client.try_acquire(claim).await, Ok(Attempt::Contended { .. }))
}

/// What must not take for ever.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.expect("it ends soon")
}
