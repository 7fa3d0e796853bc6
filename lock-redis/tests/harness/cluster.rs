//! A cluster of three masters as the laws want it. All trials share it, each with a prefix of its own, but for those in
//! which all members are stopped and killed. What becomes of locks when one of them is replaced is in
//! `redis/cluster.rs` and `redis/cluster_faults.rs`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use conformance_tests::network::Network;
use conformance_tests::proxy::Proxy;
use conformance_tests::servers::{RedisCluster, RedisOptions, Reply};
use conformance_tests::{Harness, Pace, ServerProcess, Suite};
use lock_core::{Backend, LockName, Wakeup};
use lock_redis::Redis;

/// What a user needs whose prefix is `app:`, as the documentation of the crate has it.
const LEAST_RIGHTS: &str = "resetkeys ~app:* ~{app:* resetchannels &app:* -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +pexpire +del +zadd +zrange +zscore \
     +zcard +zrem +zremrangebyscore +spublish +ssubscribe +cluster|slots +asking";

/// The first address at which members are found beyond a network.
const BEYOND: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

/// Those that need long, and those where waiters race, only with `CLUSTER_LAWS=all`.
pub(crate) fn suites() -> Vec<Suite> {
    let user = RedisOptions::new().setting("user", "locks").and("on").and(">secret");
    let options = LEAST_RIGHTS.split_whitespace().fold(user, RedisOptions::and);
    // Members tell their ports alone, so a client finds each of them at the address at which it found the first one.
    let options = options.setting("cluster-preferred-endpoint-type", "unknown-endpoint");
    let cluster = Arc::new(RedisCluster::start(&options, 3, 0));
    let suite = |name: &str, order, wakeup| {
        let cluster = Arc::clone(&cluster);
        Suite::new(name, move || Box::new(InCluster::new(Arc::clone(&cluster), order, wakeup)))
            .only(|law| law.chapter() != "13")
    };
    let alone = Suite::new("redis_cluster_alone", move || {
        Box::new(InCluster::alone(&options, "fifo", Wakeup::HandOff))
    });
    let mut suites = vec![
        suite("redis_cluster", "fifo", Wakeup::HandOff),
        alone.only(|law| law.chapter() == "13"),
    ];
    if std::env::var("CLUSTER_LAWS").as_deref() == Ok("all") {
        suites.push(suite("redis_cluster_in_any_order", "any", Wakeup::Signal));
        return suites;
    }
    suites.into_iter().map(|suite| suite.only(|law| !law.is_slow)).collect()
}

struct InCluster {
    cluster: Arc<RedisCluster>,
    /// It may be stopped: nobody else uses it.
    is_alone: bool,
    /// Before all members, which are found in it at the address at which the first one was, on their own ports.
    network: Network,
    prefix: String,
    /// An option of the URL.
    order: &'static str,
    /// What clients have to declare for that.
    wakeup: Wakeup,
}

impl InCluster {
    fn new(cluster: Arc<RedisCluster>, order: &'static str, wakeup: Wakeup) -> Self {
        static TRIALS: AtomicU32 = AtomicU32::new(0);

        let trial = TRIALS.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::from_bits(BEYOND.to_bits() + trial);
        let own = |place: usize| SocketAddr::from((address, cluster.member(place).addr().port()));
        let started = Proxy::start_at(own(0), cluster.member(0).addr());
        let line = started.expect("a proxy can be started");
        for place in 1..cluster.len() {
            let opened = line.also_at(own(place), cluster.member(place).addr());
            opened.expect("another way can be opened");
        }
        let prefix = format!("app:{trial}:");
        Self { cluster, is_alone: false, network: line.into(), prefix, order, wakeup }
    }

    fn alone(options: &RedisOptions, order: &'static str, wakeup: Wakeup) -> Self {
        let cluster = Arc::new(RedisCluster::start(options, 3, 0));
        Self { is_alone: true, ..Self::new(cluster, order, wakeup) }
    }

    async fn connect(&self, hosts: &str) -> Arc<dyn Backend> {
        let url = hosts.replace("://", "://locks:secret@");
        let url = format!("{url}?prefix={}&order={}", self.prefix, self.order);
        let client = Redis::connect(url).await.expect("the cluster takes us");
        assert_eq!(client.capabilities().wakeup, self.wakeup);
        Arc::new(client)
    }
}

#[async_trait]
impl Harness for InCluster {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect(&self.cluster.url()).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        // The names of the checks are plain, so they are the keys.
        let key = format!("{}{}", self.prefix, name.as_str());
        let home = self.cluster.member(self.cluster.home(&key));
        home.command(&["DEL", &key]) == Reply::Integer(1)
    }

    fn can_evict(&self) -> bool {
        true
    }

    fn network(&self) -> Option<&Network> {
        Some(&self.network)
    }

    async fn distant_client(&self) -> Arc<dyn Backend> {
        let there = self.network.addr().ip().to_string();
        self.connect(&self.cluster.url().replace("127.0.0.1", &there)).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        self.is_alone.then_some(&*self.cluster as &dyn ServerProcess)
    }
}
