//! Real servers whose addresses move.

use std::time::Duration;

use lock_conformance::proxy::{Count, Fault as Broken, Proxy};
use lock_core::clock::{Moment, sleep};
use lock_core::{ErrorKind, Locker, RenewalPolicy};
use lock_quorum::Quorum;
use test_servers::{Memcached, MemcachedOptions, Redis, RedisOptions};

const TTL: Duration = Duration::from_secs(10);

/// Real servers, each behind an address that can be moved.
struct Nodes(Vec<(Redis, Proxy)>);

impl Nodes {
    fn start() -> Self {
        let node = |_| {
            let server = Redis::start(RedisOptions::new());
            let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
            (server, proxy)
        };
        Self((0..3).map(node).collect())
    }

    async fn quorum(
        &self,
        urls: impl Iterator<Item = String>,
        forgets: Option<Duration>,
    ) -> Locker {
        let mut builder = Quorum::builder();
        for url in urls {
            let member = lock_redis::Redis::connect(url).await.expect("the server takes us");
            builder = builder.member(member);
        }
        let builder = match forgets {
            None => builder.members_remember(),
            Some(longest) => builder.longest_lease(longest),
        };
        Locker::new(builder.build().await.expect("a quorum can be made"))
    }

    async fn through_addresses(&self, forgets: Option<Duration>) -> Locker {
        let urls = self.0.iter().map(|(_, proxy)| format!("redis://{}", proxy.addr()));
        self.quorum(urls, forgets).await
    }

    async fn direct(&self, forgets: Option<Duration>) -> Locker {
        self.quorum(self.0.iter().map(|(server, _)| server.url()), forgets).await
    }

    /// The address of the second server leads to the first one, and its connections are made anew.
    async fn second_leads_to_first(&self) {
        self.0[1].1.repoint(self.0[0].0.addr());
        self.0[1].1.reset_connections().await;
    }

    async fn cut_the_third(&self) {
        self.0[2].1.set(Broken::Refuse);
        self.0[2].1.reset_connections().await;
    }
}

/// A request for each verb is what members cost while their connections last.
#[tokio::test]
async fn a_server_is_identified_once_for_each_connection() {
    for forgets in [None, Some(Duration::from_secs(1))] {
        let nodes = Nodes::start();
        let ours = nodes.through_addresses(forgets).await;
        let asked: Vec<_> = nodes.0.iter().map(|(_, proxy)| proxy.count("INFO")).collect();
        if let Some(longest) = forgets {
            // Old enough to be counted, by what it said when it was asked.
            sleep(longest * 3).await;
        }
        for _ in 0..5 {
            let guard =
                ours.lock("n").unwrap().ttl(Duration::from_secs(1)).acquire().await.unwrap();
            guard.verify().await.unwrap();
            guard.release().await.unwrap();
        }
        let sum = || asked.iter().map(Count::seen).sum::<u64>();
        assert_eq!(sum(), 0, "longest lease: {forgets:?}");
        nodes.0[0].1.reset_connections().await;
        nodes.0[1].1.reset_connections().await;
        let lock = ours.lock("n").unwrap().ttl(Duration::from_secs(1));
        let end = Moment::now() + TTL;
        // Requests may still go out on the connections that were reset.
        let guard = loop {
            match lock.try_acquire().await {
                Ok(Some(guard)) => break guard,
                answer => assert!(!end.has_passed(), "not had again: {answer:?}"),
            }
        };
        assert!(sum() > 0, "two connections of three are new");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn real_servers_are_counted_once_by_an_attempt() {
    let nodes = Nodes::start();
    let (ours, theirs) = (nodes.through_addresses(None).await, nodes.direct(None).await);
    nodes.second_leads_to_first().await;
    nodes.cut_the_third().await;
    let lock = ours.lock("n").unwrap().ttl(TTL);
    // The first ones may fail on the connections that were reset.
    for _ in 0..5 {
        let error = lock.try_acquire().await.expect_err("one server has voted twice");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let theirs = theirs.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    assert!(theirs.is_held());
}

#[tokio::test]
async fn real_servers_are_counted_once_by_a_renewal() {
    let ttl = Duration::from_secs(2);
    for forgets in [None, Some(ttl)] {
        let nodes = Nodes::start();
        if forgets.is_some() {
            // Old enough to be counted.
            sleep(ttl * 2 + Duration::from_secs(1)).await;
        }
        let (ours, theirs) = (nodes.through_addresses(forgets).await, nodes.direct(forgets).await);
        nodes.cut_the_third().await;
        let lock = ours.lock("n").unwrap().ttl(ttl);
        let guard = lock.acquire().await.unwrap();
        nodes.second_leads_to_first().await;
        guard.verify().await.expect_err("one server has confirmed it twice");
        let began = Moment::now();
        let theirs = theirs.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
        assert!(!guard.is_held(), "two holders after {:?}", Moment::now().saturating_since(began));
        assert!(theirs.is_held());
        let unrenewed = ours.lock("m").unwrap().ttl(ttl).renewal(RenewalPolicy::off());
        unrenewed.try_acquire().await.expect_err("one server has voted twice");
    }
}

/// The identity of a memcached is a key, so after a flush an older connection and a new one would
/// know different ones.
#[tokio::test]
async fn a_flushed_memcached_is_counted_once() {
    let nodes: [_; 3] = std::array::from_fn(|_| {
        let server = Memcached::start(MemcachedOptions::new());
        let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
        (server, proxy)
    });
    let mut builder = Quorum::builder();
    for (server, proxy) in &nodes {
        let url = server.url().replace(&server.addr().to_string(), &proxy.addr().to_string());
        builder = builder.member(lock_memcache::Memcached::connect(url.as_str()).await.unwrap());
    }
    let ours = Locker::new(builder.members_remember().build().await.unwrap());
    let [(flushed, _), (_, second), (_, third)] = &nodes;
    assert_eq!(flushed.command("flush_all"), "OK");
    second.repoint(flushed.addr());
    second.reset_connections().await;
    third.set(Broken::Refuse);
    third.reset_connections().await;
    let mut has_answered_twice = false;
    for nth in 0..20 {
        let lock = ours.lock(format!("{nth}")).unwrap().ttl(TTL);
        let error = lock.try_acquire().await.expect_err("one server has voted twice");
        let why = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        has_answered_twice |= why.contains("counted once");
    }
    assert!(has_answered_twice, "the address of the second member leads elsewhere");
}
