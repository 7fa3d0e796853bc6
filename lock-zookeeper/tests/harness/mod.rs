//! A real server as the laws want it: with a network that can be broken, and a process that can be
//! stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::network::Network;
use lock_conformance::proxy::{Fault, Proxy};
use lock_conformance::{ClockMode, CrashableClient, Harness, ServerProcess, Suite};
use lock_core::{Backend, LockName};
use lock_zookeeper::ZooKeeper;
use test_servers::{ZooKeeper as Server, ZooKeeperOptions};
use zookeeper_client::Client;

/// The user of the clients. It alone owns their nodes.
const USER: &str = "locks:secret";
const PREFIX: &str = "app/locks/";
const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn suite() -> Suite {
    Suite::new("zookeeper", || Box::new(OnServer::new()))
}

struct OnServer {
    server: Server,
    network: Network,
}

impl OnServer {
    fn new() -> Self {
        let server = Server::start(&ZooKeeperOptions::new());
        let network = Network::to(server.addr());
        Self { server, network }
    }

    async fn connect(&self, addr: SocketAddr) -> Arc<dyn Backend> {
        let timeout = TIMEOUT.as_millis();
        let url = format!("zookeeper://{USER}@{addr}?prefix={PREFIX}&session_timeout={timeout}ms");
        Arc::new(ZooKeeper::connect(url).await.expect("the server takes us"))
    }
}

#[async_trait]
impl Harness for OnServer {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect(self.server.addr()).await
    }

    async fn crashable_client(&self) -> CrashableClient {
        let line = Proxy::start(self.server.addr()).expect("a proxy can be started");
        let client = self.connect(line.addr()).await;
        // Its process is gone, and so is its host: not even a FIN comes.
        CrashableClient::new(client, move || line.set(Fault::BlackHole))
    }

    async fn evict(&self, name: &LockName) -> bool {
        let connector = Client::connector().with_auth("digest", USER.as_bytes());
        let operator = connector.connect(&self.server.addr().to_string()).await;
        let operator = operator.expect("the server takes an operator");
        // The names of the checks are plain, so they are the nodes.
        let lock = format!("/{PREFIX}{}", name.as_str());
        let mut line = operator.list_children(&lock).await.unwrap_or_default();
        line.sort_by_key(|node| node.rsplit_once('-').map(|(_, number)| number.to_owned()));
        match line.first() {
            Some(first) => operator.delete(&format!("{lock}/{first}"), None).await.is_ok(),
            None => false,
        }
    }

    fn can_evict(&self) -> bool {
        true
    }

    fn network(&self) -> Option<&Network> {
        Some(&self.network)
    }

    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.connect(self.network.addr()).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        Some(&self.server)
    }
}
