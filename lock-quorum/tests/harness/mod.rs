//! Lock spaces of several members, as the laws want them.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::network::Network;
use conformance_tests::servers::{KeepData, Memcached, MemcachedOptions, Redis, RedisOptions};
use conformance_tests::{Harness, Pace, ServerProcess};
use lock_core::{Backend, LockName, Memory};
use lock_file::FileLocks;
use lock_quorum::{Quorum, QuorumBuilder};

/// Members that stand for servers, on a paused clock.
pub(crate) struct InMemory(Vec<Memory>);

impl InMemory {
    pub(crate) fn of(size: usize) -> Self {
        Self((0..size).map(|_| Memory::new()).collect())
    }
}

#[async_trait]
impl Harness for InMemory {
    fn pace(&self) -> Pace {
        Pace::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let members = self.0.iter().cloned();
        built(members.fold(Quorum::builder(), QuorumBuilder::member)).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        self.0.iter().for_each(|member| member.evict(name));
        true
    }

    fn can_evict(&self) -> bool {
        true
    }

    async fn lose_data(&self) -> bool {
        self.0.iter().for_each(Memory::lose_data);
        true
    }
}

/// Real servers. All that breaks them, or the ways to them, breaks them together.
pub(crate) struct OnServers {
    servers: Servers,
    network: Network,
}

struct Servers {
    all: Vec<Server>,
    /// How many of them fail, if they do.
    broken: usize,
}

pub(crate) enum Server {
    Redis(Redis),
    Memcached(Memcached),
}

impl OnServers {
    pub(crate) fn redis(size: usize) -> Self {
        Self::of((0..size).map(|_| Server::Redis(Redis::start(RedisOptions::new()))).collect())
    }

    pub(crate) fn redis_and_two_memcached() -> Self {
        let memcached = || Server::Memcached(Memcached::start(MemcachedOptions::new()));
        let redis = Server::Redis(Redis::start(RedisOptions::new()));
        Self::of(vec![memcached(), redis, memcached()])
    }

    fn of(all: Vec<Server>) -> Self {
        let network = Network::to_each(all.iter().map(Server::addr));
        Self { servers: Servers { broken: all.len(), all }, network }
    }

    /// Only a majority fails, and the others have to be put up with.
    pub(crate) fn of_which_most_fail(self) -> Self {
        let broken = self.servers.all.len() / 2 + 1;
        let servers = Servers { broken, ..self.servers };
        Self { servers, network: self.network.breaking(broken) }
    }

    async fn connect(&self, addrs: impl Iterator<Item = SocketAddr>) -> Arc<dyn Backend> {
        let mut builder = Quorum::builder();
        for (server, addr) in self.servers.all.iter().zip(addrs) {
            builder = builder.member_from(server.client_at(addr).await);
        }
        built(builder).await
    }
}

#[async_trait]
impl Harness for OnServers {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect(self.servers.all.iter().map(Server::addr)).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        self.servers.all.iter().for_each(|server| server.evict(name));
        true
    }

    fn can_evict(&self) -> bool {
        true
    }

    fn network(&self) -> Option<&Network> {
        Some(&self.network)
    }

    async fn distant_client(&self) -> Arc<dyn Backend> {
        self.connect(self.network.addrs()).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        Some(&self.servers)
    }
}

impl Server {
    fn addr(&self) -> SocketAddr {
        match self {
            Self::Redis(server) => server.addr(),
            Self::Memcached(server) => server.addr(),
        }
    }

    async fn client_at(&self, addr: SocketAddr) -> Arc<dyn Backend> {
        match self {
            Self::Redis(_) => {
                let client = lock_redis::Redis::connect(format!("redis://{addr}")).await;
                Arc::new(client.expect("the server takes us"))
            }
            Self::Memcached(_) => {
                let client = lock_memcache::Memcached::connect(format!("memcache://{addr}")).await;
                Arc::new(client.expect("the server takes us"))
            }
        }
    }

    /// The names of the checks are plain, so they are the keys.
    fn evict(&self, name: &LockName) {
        match self {
            Self::Redis(server) => drop(server.command(&["DEL", name.as_str()])),
            Self::Memcached(server) => drop(server.command(&format!("delete {}", name.as_str()))),
        }
    }

    fn process(&self) -> &dyn ServerProcess {
        match self {
            Self::Redis(server) => server,
            Self::Memcached(server) => server,
        }
    }
}

impl Servers {
    fn broken(&self) -> impl Iterator<Item = &dyn ServerProcess> {
        self.all.iter().take(self.broken).map(Server::process)
    }
}

impl ServerProcess for Servers {
    fn stop(&self) {
        self.broken().for_each(ServerProcess::stop);
    }

    fn cont(&self) {
        self.broken().for_each(ServerProcess::cont);
    }

    fn kill(&self) {
        self.broken().for_each(ServerProcess::kill);
    }

    fn restart(&self, keep_data: KeepData) {
        self.broken().for_each(|server| server.restart(keep_data));
    }
}

/// One member of each kind.
pub(crate) struct Mixed {
    redis: Server,
    memcached: Server,
    files: tempfile::TempDir,
}

impl Mixed {
    pub(crate) fn new() -> Self {
        Self {
            redis: Server::Redis(Redis::start(RedisOptions::new())),
            memcached: Server::Memcached(Memcached::start(MemcachedOptions::new())),
            files: tempfile::tempdir().expect("a temporary directory can be made"),
        }
    }
}

#[async_trait]
impl Harness for Mixed {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let files = FileLocks::at(self.files.path());
        let builder = Quorum::builder()
            .member_from(self.redis.client_at(self.redis.addr()).await)
            .member_from(self.memcached.client_at(self.memcached.addr()).await)
            .member(files.expect("the directory is fit for locks"));
        built(builder).await
    }
}

/// The members have just been started.
async fn built(builder: QuorumBuilder) -> Arc<dyn Backend> {
    let quorum = builder.members_remember().build().await;
    Arc::new(quorum.expect("a quorum can be made"))
}
