//! The laws in a cluster of three masters, which all trials share: each has a prefix of its own. Those about networks
//! and servers that fail are for one server; what a cluster makes of that is in `redis/cluster.rs`. With
//! `CLUSTER_LAWS=all` also where waiters race.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use conformance_tests::servers::{RedisCluster, RedisOptions, Reply};
use conformance_tests::{Harness, Pace, Suite};
use lock_core::{Backend, LockName, Wakeup};
use lock_redis::Redis;

/// What a user needs whose prefix is `app:`, as the documentation of the crate has it.
const LEAST_RIGHTS: &str = "resetkeys ~app:* ~{app:* resetchannels &app:* -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +pexpire +del +zadd +zrange +zscore \
     +zcard +zrem +zremrangebyscore +spublish +ssubscribe +cluster|slots +asking";

fn main() -> ExitCode {
    let user = RedisOptions::new().setting("user", "locks").and("on").and(">secret");
    let options = LEAST_RIGHTS.split_whitespace().fold(user, RedisOptions::and);
    let cluster = Arc::new(RedisCluster::start(&options, 3, 0));
    let suite = |name: &str, order, wakeup| {
        let cluster = Arc::clone(&cluster);
        Suite::new(name, move || Box::new(InCluster::new(Arc::clone(&cluster), order, wakeup)))
    };
    let mut suites = vec![suite("redis_cluster", "fifo", Wakeup::HandOff)];
    if std::env::var("CLUSTER_LAWS").as_deref() == Ok("all") {
        suites.push(suite("redis_cluster_in_any_order", "any", Wakeup::Signal));
    }
    conformance_tests::run(&suites)
}

struct InCluster {
    cluster: Arc<RedisCluster>,
    prefix: String,
    /// An option of the URL.
    order: &'static str,
    /// What clients have to declare for that.
    wakeup: Wakeup,
}

impl InCluster {
    fn new(cluster: Arc<RedisCluster>, order: &'static str, wakeup: Wakeup) -> Self {
        static TRIALS: AtomicU32 = AtomicU32::new(0);

        let prefix = format!("app:{}:", TRIALS.fetch_add(1, Ordering::Relaxed));
        Self { cluster, prefix, order, wakeup }
    }
}

#[async_trait]
impl Harness for InCluster {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let url = self.cluster.url().replace("://", "://locks:secret@");
        let url = format!("{url}?prefix={}&order={}", self.prefix, self.order);
        let client = Redis::connect(url).await.expect("the cluster takes us");
        assert_eq!(client.capabilities().wakeup, self.wakeup);
        Arc::new(client)
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
}
