//! A real server as the laws want it: with a network that can be broken, and a process that can be
//! stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::network::Network;
use lock_conformance::proxy::{Fault, Proxy};
use lock_conformance::{ClockMode, Harness, ServerProcess, Suite};
use lock_core::{Backend, LockName};
use lock_memcache::Memcached;
use test_servers::{Memcached as Server, MemcachedOptions};

/// Returns the suites. The first one is a server as it is found most often.
pub(crate) fn suites() -> [Suite; 2] {
    [
        Suite::new("memcache", || Box::new(OnServer::new())),
        Suite::new("memcache_far_away", || Box::new(OnServer::new().far_away())),
    ]
}

struct OnServer {
    server: Server,
    network: Network,
    /// A second network, with nothing but its length, for every client.
    far_away: Option<Proxy>,
}

const USER: &str = "locks:secret";
const PREFIX: &str = "app:";

impl OnServer {
    fn new() -> Self {
        let server = Server::start(MemcachedOptions::new().credentials("locks", "secret"));
        begin_counter(&server);
        let network = Network::to(server.addr());
        Self { server, network, far_away: None }
    }

    /// Puts all clients some milliseconds away.
    fn far_away(mut self) -> Self {
        let line = Proxy::start(self.server.addr()).expect("a proxy can be started");
        line.set(Fault::delay(Duration::from_millis(3)));
        self.far_away = Some(line);
        self
    }

    async fn connect(&self, addr: SocketAddr) -> Arc<dyn Backend> {
        let url = format!("memcache://{USER}@{addr}?prefix={PREFIX}");
        Arc::new(Memcached::connect(url).await.expect("the server takes us"))
    }
}

/// Starts the counter, as an earlier client would have: each trial has a server of its own, and its
/// first client would wait for the server's next second. The case without a counter has tests of
/// its own.
fn begin_counter(server: &Server) {
    let begun = format!("{}000000", server.stat("time"));
    let add = format!("add {PREFIX}%fence 0 0 {}\r\n{begun}", begun.len());
    assert_eq!(server.command(&add), "STORED");
}

#[async_trait]
impl Harness for OnServer {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let line = self.far_away.as_ref().map(Proxy::addr);
        self.connect(line.unwrap_or_else(|| self.server.addr())).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        // The names of the checks are plain, so they are the keys.
        self.server.command(&format!("delete {PREFIX}{}", name.as_str())) == "DELETED"
    }

    fn can_evict(&self) -> bool {
        true
    }

    async fn lose_data(&self) -> bool {
        self.server.command("flush_all") == "OK"
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
