//! A cluster of three masters as the laws need it. All trials share it, each with a prefix of its
//! own, except for those that stop and kill all members. `redis/cluster.rs` and
//! `redis/cluster_faults.rs` test the replacement of a member.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use lock_conformance::network::Network;
use lock_conformance::proxy::Proxy;
use lock_conformance::{ClockMode, Harness, ServerProcess, Suite};
use lock_core::{Backend, LockName, Wakeup};
use lock_redis::Redis;
use test_servers::{RedisCluster, RedisOptions, Reply};

#[allow(clippy::duplicate_mod, reason = "some programs have the other harness, too")]
#[path = "../redis/least_rights.rs"]
mod least_rights;

use least_rights::{LEAST_RIGHTS, RIGHTS_TO_LIST, rights_to_delete};

/// The first address at which members are found across a network.
const BEYOND: Ipv4Addr = Ipv4Addr::new(127, 2, 0, 1);

/// Returns the suites. Slow checks, checks with racing waiters, and those with replicas run only
/// with `CLUSTER_LAWS=all`.
pub(crate) fn suites() -> Vec<Suite> {
    let fifo = ("order=fifo", Wakeup::HandOff);
    let suites = suites_of("redis_cluster", 0, fifo);
    if std::env::var("CLUSTER_LAWS").as_deref() != Ok("all") {
        return suites.into_iter().map(|suite| suite.only(|law| !law.is_slow)).collect();
    }
    let racing = suites_of("redis_cluster_in_any_order", 0, ("order=any", Wakeup::Signal));
    // As long as the usual leases of the laws allow: replicas of a busy machine are slow.
    let asking = ("min_replicas=1&min_replicas_timeout=490ms", Wakeup::Signal);
    let with_replicas = suites_of("redis_cluster_with_replicas", 1, asking);
    [suites, racing, with_replicas].into_iter().flatten().collect()
}

/// Returns the suite on a shared cluster, and the suite on clusters of their own, whose members are
/// stopped and killed. `clients` are the options of the URL and the wake-up that clients declare
/// for them.
fn suites_of(name: &str, replicas: usize, clients: (&'static str, Wakeup)) -> [Suite; 2] {
    let start = move || Arc::new(RedisCluster::start(&options(), 3, replicas));
    let cluster = start();
    let shared =
        Suite::new(name, move || Box::new(InCluster::new(Arc::clone(&cluster), false, clients)));
    let alone = Suite::new(format!("{name}_alone"), move || {
        Box::new(InCluster::new(start(), true, clients))
    });
    [shared.only(|law| law.chapter() != "13"), alone.only(|law| law.chapter() == "13")]
}

fn options() -> RedisOptions {
    let user = RedisOptions::new().setting("user", "locks").and("on").and(">secret");
    let rights = LEAST_RIGHTS[0]
        .replace("+publish +subscribe", "+spublish +ssubscribe +cluster|slots +asking");
    let rights = format!("{rights} {} {RIGHTS_TO_LIST} +wait", rights_to_delete());
    let options = rights.split_whitespace().fold(user, RedisOptions::and);
    // Members announce their ports alone, so a client finds each at the address of the first.
    let options = options.setting("cluster-preferred-endpoint-type", "unknown-endpoint");
    options.setting("repl-diskless-sync-delay", "0")
}

struct InCluster {
    cluster: Arc<RedisCluster>,
    /// No other trial uses it, so it may be stopped.
    is_alone: bool,
    /// In front of all members. They are found there at the address of the first one, each on its
    /// own port.
    network: Network,
    prefix: String,
    /// Options of the URL, and the wake-up that clients declare for them.
    clients: (&'static str, Wakeup),
}

impl InCluster {
    fn new(cluster: Arc<RedisCluster>, is_alone: bool, clients: (&'static str, Wakeup)) -> Self {
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
        Self { cluster, is_alone, network: line.into(), prefix, clients }
    }

    async fn connect(&self, hosts: &str) -> Arc<dyn Backend> {
        let url = hosts.replace("://", "://locks:secret@");
        let (options, wakeup) = self.clients;
        let url = format!("{url}?prefix={}&{options}", self.prefix);
        let client = Redis::connect(url).await.expect("the cluster takes us");
        assert_eq!(client.capabilities().wakeup, wakeup);
        Arc::new(client)
    }
}

#[async_trait]
impl Harness for InCluster {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        self.connect(&self.cluster.url()).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        // The names in the checks are plain, so they are the keys.
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

    async fn proxied_client(&self) -> Arc<dyn Backend> {
        let there = self.network.addr().ip().to_string();
        self.connect(&self.cluster.url().replace("127.0.0.1", &there)).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        self.is_alone.then_some(&*self.cluster as &dyn ServerProcess)
    }
}
