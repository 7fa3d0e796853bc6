//! A real server for the laws: its network can be broken, and its process can be stopped.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use lock_conformance::network::Network;
use lock_conformance::proxy::{Fault, Proxy};
use lock_conformance::{ClockMode, Harness, ServerProcess, Suite};
use lock_core::{Backend, LockName, Support, Wakeup};
use lock_redis::Redis;
use test_servers::{Redis as Server, RedisOptions, Reply, Sentinel, SentinelGroup};

#[allow(clippy::duplicate_mod, reason = "some programs have the other harness, too")]
#[path = "../redis/least_rights.rs"]
mod least_rights;

use least_rights::{LEAST_RIGHTS, RIGHTS_TO_LIST, rights_to_delete};

/// Returns the suites. The first is the usual server. Other ways of waiting, slow checks behind
/// Sentinels, and most checks with replicas run only with `REDIS_LAWS=all`.
pub(crate) fn suites() -> Vec<Suite> {
    let mut suites = vec![
        Suite::new("redis", || Box::new(OnServer::new())),
        Suite::new("redis_in_any_order", || Box::new(OnServer::in_any_order())),
    ];
    let sentinels = by_sentinels("redis_by_sentinel", "");
    // As long as the usual leases of the laws allow: replicas of a busy machine are slow.
    let with_replicas = "&min_replicas=1&min_replicas_timeout=490ms";
    let with_replicas = by_sentinels("redis_with_replicas", with_replicas);
    if std::env::var("REDIS_LAWS").as_deref() != Ok("all") {
        suites.extend(sentinels.map(|suite| suite.only(|law| !law.is_slow)));
        suites.extend(with_replicas.map(|it| it.only(|law| WITH_REPLICAS.contains(&law.number))));
        return suites;
    }
    suites.extend(sentinels);
    suites.extend(with_replicas);
    suites.extend([
        // Nothing is handed over inside a process then. A release grants nothing, so the next lease
        // does not count from it, and no notification of a grant can be late.
        Suite::new("redis_with_a_share", || Box::new(OnServer::with_a_share()))
            .only(|law| law.chapter() != "14" && !["1.3", "12.13"].contains(&law.number)),
        Suite::new("redis_without_signals", || Box::new(OnServer::without_signals())),
        Suite::new("redis_far_away", || Box::new(OnServer::new().far_away())),
        Suite::new("redis_far_away_in_any_order", || Box::new(OnServer::in_any_order().far_away())),
    ]);
    suites
}

/// The fast checks that waiting for replicas could break: the holder, the start of a grant, the
/// outcomes of a renewal and a release, tokens, the next waiter, and an attempt that is cut.
const WITH_REPLICAS: [&str; 14] = [
    "1.1", "1.2", "1.3", "2.2", "2.3", "2.5", "4.2", "4.3", "4.5", "5.1", "5.2", "6.3", "8.1",
    "12.1",
];

/// Returns the suite on shared servers, and the suite on servers of their own, which are stopped
/// and killed.
fn by_sentinels(name: &str, options_of_url: &'static str) -> [Suite; 2] {
    let shared = Suite::new(name, move || Box::new(BySentinel::new(options_of_url)));
    let alone =
        Suite::new(format!("{name}_alone"), move || Box::new(BySentinel::alone(options_of_url)));
    [shared.only(|law| law.chapter() != "13"), alone.only(|law| law.chapter() == "13")]
}

struct OnServer {
    server: Server,
    network: Network,
    /// A second network for every client, which only adds delay.
    far_away: Option<Proxy>,
    /// Options of the URL.
    order: &'static str,
    /// The wake-up that clients declare for that.
    wakeup: Wakeup,
}

/// The credentials of the clients: a user with the documented rights and no others.
const USER: &str = "locks:secret";
const PREFIX: &str = "app:";

impl OnServer {
    fn new() -> Self {
        Self::with_user(LEAST_RIGHTS[0], "fifo", Wakeup::HandOff)
    }

    /// Creates servers whose waiters race for the lock.
    fn in_any_order() -> Self {
        Self::with_user(LEAST_RIGHTS[1], "any", Wakeup::Signal)
    }

    /// Creates servers whose releases leave the lock free now and then, for other clients.
    fn with_a_share() -> Self {
        Self::with_user(LEAST_RIGHTS[0], "fifo&polling_share=20ms", Wakeup::HandOff)
    }

    /// Creates servers without signals, so that waiters poll.
    fn without_signals() -> Self {
        let rights = format!("{} -client|tracking", LEAST_RIGHTS[1]);
        Self::with_user(&rights, "any", Wakeup::Poll)
    }

    fn with_user(rights: &str, order: &'static str, wakeup: Wakeup) -> Self {
        let server = Server::start(options(rights));
        let network = Network::to(server.addr());
        Self { server, network, far_away: None, order, wakeup }
    }

    /// Puts all clients some milliseconds away.
    fn far_away(mut self) -> Self {
        let line = Proxy::start(self.server.addr()).expect("a proxy can be started");
        line.set(Fault::delay(Duration::from_millis(3)));
        self.far_away = Some(line);
        self
    }

    async fn connect(&self, addr: SocketAddr) -> Arc<dyn Backend> {
        let url = format!("redis://{USER}@{addr}?prefix={PREFIX}&order={}", self.order);
        let client = Redis::connect(url).await.expect("the server takes us");
        assert_eq!(client.capabilities().wakeup, self.wakeup);
        Arc::new(client)
    }
}

/// Returns the options of a server. The user exists from the start, and so after a restart as well.
fn options(rights: &str) -> RedisOptions {
    let user = RedisOptions::new().setting("user", "locks").and("on").and(">secret");
    rights
        .split_whitespace()
        .chain(rights_to_delete().split_whitespace())
        .chain(RIGHTS_TO_LIST.split_whitespace())
        .fold(user, RedisOptions::and)
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
        // The names in the checks are plain, so they are the keys.
        self.server.command(&["DEL", &format!("{PREFIX}{}", name.as_str())]) == Reply::Integer(1)
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

/// A lock space on servers with Sentinels.
struct BySentinel {
    group: Arc<SentinelGroup>,
    /// No other trial uses these servers, so they may be stopped.
    is_alone: bool,
    /// In front of the primary and all Sentinels.
    network: Network,
    /// The name of the primary beyond the network.
    service: String,
    prefix: String,
    url: String,
    distant_url: String,
}

impl BySentinel {
    /// Creates a lock space. All lock spaces at the same time share the servers.
    fn new(options_of_url: &str) -> Self {
        static GROUP: Mutex<Weak<SentinelGroup>> = Mutex::new(Weak::new());

        let mut current = GROUP.lock().expect("no trial panics here");
        let group = current.upgrade().unwrap_or_else(|| Arc::new(group()));
        *current = Arc::downgrade(&group);
        Self::with(group, options_of_url)
    }

    /// Creates a lock space on separate servers.
    fn alone(options_of_url: &str) -> Self {
        let mut alone = Self::with(Arc::new(group()), options_of_url);
        alone.is_alone = true;
        alone
    }

    fn with(group: Arc<SentinelGroup>, options_of_url: &str) -> Self {
        static SPACES: AtomicU64 = AtomicU64::new(0);

        let space = SPACES.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{space}/");
        let options = format!("?prefix={prefix}{options_of_url}");
        let line = Proxy::start(group.server(0).addr()).expect("a proxy can be started");
        // Sentinels report one address to all clients, so clients beyond the network ask for
        // another service.
        let service = format!("beyond-{space}");
        group.name_beyond(&service, &line);
        let way = |it: &Sentinel| line.also(it.addr()).expect("another way can be opened");
        let ways: Vec<_> = group.sentinels().iter().map(|it| way(it).to_string()).collect();
        let distant_url = format!("redis+sentinel://{USER}@{}/{service}{options}", ways.join(","));
        let url = format!("{}{options}", group.url_for(USER));
        Self { group, is_alone: false, network: line.into(), service, prefix, url, distant_url }
    }
}

impl Drop for BySentinel {
    fn drop(&mut self) {
        self.group.forget(&self.service);
    }
}

/// Starts servers whose primary is never replaced, although a busy machine may stop it for a while:
/// a failover is not part of these checks.
fn group() -> SentinelGroup {
    let group = SentinelGroup::start(options(&format!("{} +role +wait", LEAST_RIGHTS[0])));
    group.disable_failover();
    group
}

async fn by_sentinel(url: &str) -> Arc<dyn Backend> {
    let client = Redis::connect(url).await.expect("the servers take us");
    assert_eq!(client.capabilities().loss_push, Support::Present);
    Arc::new(client)
}

#[async_trait]
impl Harness for BySentinel {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        by_sentinel(&self.url).await
    }

    async fn evict(&self, name: &LockName) -> bool {
        let key = format!("{}{}", self.prefix, name.as_str());
        self.group.server(0).command(&["DEL", &key]) == Reply::Integer(1)
    }

    fn can_evict(&self) -> bool {
        true
    }

    fn network(&self) -> Option<&Network> {
        Some(&self.network)
    }

    async fn proxied_client(&self) -> Arc<dyn Backend> {
        by_sentinel(&self.distant_url).await
    }

    fn server(&self) -> Option<&dyn ServerProcess> {
        self.is_alone.then(|| self.group.server(0) as &dyn ServerProcess)
    }
}
