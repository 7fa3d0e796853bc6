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

/// Connects a client that sees and deletes nodes.
pub(crate) async fn operator(addr: SocketAddr) -> Client {
    Client::connector().connect(&addr.to_string()).await.expect("the server takes an operator")
}

/// Returns the queue of a lock in order.
pub(crate) async fn queue_of(operator: &Client, lock: &str) -> Vec<String> {
    let mut queue = operator.list_children(&format!("/{lock}")).await.unwrap_or_default();
    queue.sort_by_key(|node| node.rsplit_once("lock").map(|(_, number)| number.to_owned()));
    queue
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

/// Waits for `work`, up to [`BOUND`].
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.expect("it ends soon")
}
