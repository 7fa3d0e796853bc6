//! Lock spaces of several members, as the laws want them.

use std::sync::Arc;

use async_trait::async_trait;
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

/// Real servers, which stop and die together.
pub(crate) struct OnRedis(Nodes);

struct Nodes(Vec<Redis>);

impl OnRedis {
    pub(crate) fn nodes(size: usize) -> Self {
        Self(Nodes((0..size).map(|_| Redis::start(RedisOptions::new())).collect()))
    }
}

#[async_trait]
impl Harness for OnRedis {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let mut builder = Quorum::builder();
        for node in &self.0.0 {
            let member = lock_redis::Redis::connect(node.url()).await;
            builder = builder.member(member.expect("the server takes us"));
        }
        built(builder).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        // The names of the checks are plain, so they are the keys.
        self.0.0.iter().for_each(|node| drop(node.command(&["DEL", name.as_str()])));
        true
    }

    fn can_evict(&self) -> bool {
        true
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        Some(&self.0)
    }
}

impl ServerProcess for Nodes {
    fn stop(&self) {
        self.0.iter().for_each(Redis::stop);
    }

    fn cont(&self) {
        self.0.iter().for_each(Redis::cont);
    }

    fn kill(&self) {
        self.0.iter().for_each(Redis::kill);
    }

    fn restart(&self, keep_data: KeepData) {
        self.0.iter().for_each(|node| node.restart(keep_data));
    }
}

/// One member of each kind.
pub(crate) struct Mixed {
    redis: Redis,
    memcached: Memcached,
    files: tempfile::TempDir,
}

impl Mixed {
    pub(crate) fn new() -> Self {
        Self {
            redis: Redis::start(RedisOptions::new()),
            memcached: Memcached::start(MemcachedOptions::new()),
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
        let redis = lock_redis::Redis::connect(self.redis.url()).await;
        let url = format!("memcache://{}", self.memcached.addr());
        let memcached = lock_memcache::Memcached::connect(url).await;
        let files = FileLocks::at(self.files.path());
        let builder = Quorum::builder()
            .member(redis.expect("the server takes us"))
            .member(memcached.expect("the server takes us"))
            .member(files.expect("the directory is fit for locks"));
        built(builder).await
    }
}

/// The members have just been started.
async fn built(builder: QuorumBuilder) -> Arc<dyn Backend> {
    let quorum = builder.members_remember().build().await;
    Arc::new(quorum.expect("a quorum can be made"))
}
