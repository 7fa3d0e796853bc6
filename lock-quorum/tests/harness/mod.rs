//! Lock spaces of several members, as the laws need them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::network::Network;
use lock_conformance::{ClockMode, Harness, ServerProcess};
use lock_core::clock::sleep;
use lock_core::{Backend, LockName, Memory};
use lock_file::FileLocks;
use lock_quorum::{Quorum, QuorumBuilder};
use test_servers::{KeepData, Memcached, MemcachedOptions, Redis, RedisOptions};
use tokio::sync::OnceCell;

/// Members that stand for servers, on a paused clock.
pub(crate) struct InMemory {
    members: Vec<Memory>,
    age: Age,
}

impl InMemory {
    pub(crate) fn of(size: usize) -> Self {
        Self {
            members: (0..size).map(|_| Memory::new()).collect(),
            age: Age::of_those_that_remember(),
        }
    }

    /// Makes members with the defaults of a quorum, and a longest lease that suffices for the
    /// checks.
    pub(crate) fn that_forget(size: usize) -> Self {
        Self { age: Age::of_those_that_forget(Duration::from_secs(200)), ..Self::of(size) }
    }
}

#[async_trait]
impl Harness for InMemory {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let members = self.members.iter().cloned();
        self.age.built(members.fold(Quorum::builder(), QuorumBuilder::member)).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        self.members.iter().for_each(|member| member.evict(name));
        true
    }

    fn can_evict(&self) -> bool {
        true
    }

    async fn lose_data(&self) -> bool {
        self.members.iter().for_each(Memory::lose_data);
        true
    }
}

/// Real servers. A fault hits all of them, or the ways to them, together.
pub(crate) struct OnServers {
    servers: Servers,
    network: Network,
    age: Age,
}

struct Servers {
    all: Vec<Server>,
    /// How many of them a fault hits.
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
        let age = Age::of_those_that_remember();
        Self { servers: Servers { broken: all.len(), all }, network, age }
    }

    /// Leaves faults out, because the checks with faults use leases of minutes.
    pub(crate) fn that_forget(self) -> Self {
        Self { age: Age::of_those_that_forget(Duration::from_secs(12)), ..self }
    }

    /// Lets only a majority fail, while the others stay up.
    pub(crate) fn of_which_most_fail(self) -> Self {
        let broken = self.servers.all.len() / 2 + 1;
        let servers = Servers { broken, ..self.servers };
        Self { servers, network: self.network.breaking(broken), ..self }
    }

    async fn connect(&self, addrs: impl Iterator<Item = SocketAddr>) -> Arc<dyn Backend> {
        let mut builder = Quorum::builder();
        for (server, addr) in self.servers.all.iter().zip(addrs) {
            builder = builder.member_from(server.client_at(addr).await);
        }
        self.age.built(builder).await
    }
}

#[async_trait]
impl Harness for OnServers {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
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
        self.age.longest_lease.is_none().then_some(&self.network)
    }

    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.connect(self.network.addrs()).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        self.age.longest_lease.is_none().then_some(&self.servers as &dyn ServerProcess)
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

    /// Removes the keys, which are the names, since the names of the checks need no encoding.
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

/// One member of each kind. With files among them the locks belong to one host, and the laws about
/// networks do not apply.
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
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let files = FileLocks::at(self.files.path());
        let builder = Quorum::builder()
            .member_from(self.redis.client_at(self.redis.addr()).await)
            .member_from(self.memcached.client_at(self.memcached.addr()).await)
            .member(files.expect("the directory is fit for locks"));
        Age::of_those_that_remember().built(builder).await
    }
}

/// The age of members: they have just been started. Members that remember count at once, others
/// when they are old enough.
struct Age {
    longest_lease: Option<Duration>,
    is_enough: OnceCell<()>,
}

impl Age {
    fn of_those_that_remember() -> Self {
        Self { longest_lease: None, is_enough: OnceCell::new() }
    }

    fn of_those_that_forget(longest_lease: Duration) -> Self {
        Self { longest_lease: Some(longest_lease), is_enough: OnceCell::new() }
    }

    async fn built(&self, builder: QuorumBuilder) -> Arc<dyn Backend> {
        let builder = match self.longest_lease {
            None => builder.members_remember(),
            Some(longest) => {
                // Servers tell their age in whole seconds, and count them by a clock of their own.
                let enough = longest + longest / 100 + Duration::from_secs(2);
                self.is_enough.get_or_init(|| sleep(enough)).await;
                builder.longest_lease(longest)
            }
        };
        Arc::new(builder.build().await.expect("a quorum can be made"))
    }
}
