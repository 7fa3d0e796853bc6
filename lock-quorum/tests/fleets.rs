//! Clients of two libraries on the same nodes: rslock, another Redlock client, and this one.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ErrorKind, Locker, Loss};
use lock_quorum::{Quorum, QuorumBuilder};
use rslock::LockManager;
use test_servers::{Redis, RedisOptions};

const TTL: Duration = Duration::from_secs(20);

struct Fleet {
    nodes: Vec<Redis>,
    ours: Locker,
    theirs: LockManager,
}

impl Fleet {
    async fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| Redis::start(RedisOptions::new())).collect();
        let mut builder = Quorum::builder();
        for node in &nodes {
            let member = lock_redis::Redis::connect(node.url()).await.expect("the server takes us");
            builder = QuorumBuilder::member(builder, member);
        }
        let quorum = builder.members_remember().build().await.expect("a quorum can be made");
        let clients = nodes.iter().map(|node| redis::Client::open(node.url()).expect("a good URL"));
        let mut theirs = LockManager::from_clients(clients.collect());
        theirs.set_retry(0, Duration::ZERO);
        Self { nodes, ours: Locker::new(quorum), theirs }
    }

    fn values(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.command(&["GET", "n"]).text()).collect()
    }
}

#[tokio::test]
async fn a_member_that_leaves_locks_free_is_refused() {
    let node = Redis::start(RedisOptions::new());
    let url = format!("{}?polling_share=1s", node.url());
    let member = lock_redis::Redis::connect(url).await.expect("the server takes us");
    let error = Quorum::builder().member(member).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("leaves locks free for clients that poll"), "{error}");
}

#[tokio::test]
async fn we_keep_them_out() {
    let fleet = Fleet::start().await;
    let guard = fleet.ours.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    assert!(fleet.theirs.lock("n", TTL).await.is_err(), "two holders");
    assert!(guard.verify().await.is_ok(), "their attempt has harmed us");
    guard.release().await.unwrap();
    let lock = fleet.theirs.lock("n", TTL).await.expect("it is free");
    fleet.theirs.unlock(&lock).await;
}

#[tokio::test]
async fn they_keep_us_out_and_their_release_lets_us_in() {
    let fleet = Fleet::start().await;
    let lock = fleet.theirs.lock("n", TTL).await.expect("it is free");
    assert!(fleet.ours.lock("n").unwrap().try_acquire().await.unwrap().is_none(), "two holders");
    let values = fleet.values();
    assert!(values.iter().all(|value| !value.is_empty()), "we have taken a vote of theirs");
    let theirs = fleet.theirs.extend(&lock, TTL).await;
    assert!(theirs.is_ok(), "our attempt has harmed them");

    let ours = fleet.ours.lock("n").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { ours.acquire().await });
    lock_core::clock::sleep(Duration::from_millis(300)).await;
    fleet.theirs.unlock(&theirs.unwrap()).await;
    let guard =
        tokio::time::timeout(TTL / 2, waiting).await.expect("woken long before the lease ends");
    guard.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_member_whose_key_is_a_hash_votes_against() {
    let fleet = Fleet::start().await;
    let take = |node: &Redis| {
        node.command(&["HSET", "n", "8743c9c0:1", "1"]);
        node.command(&["PEXPIRE", "n", "20000"]);
    };
    take(&fleet.nodes[0]);
    let lock = fleet.ours.lock("n").unwrap().ttl(TTL);
    lock.try_acquire().await.unwrap().expect("two members are free").release().await.unwrap();
    take(&fleet.nodes[1]);
    assert!(lock.try_acquire().await.unwrap().is_none(), "a vote for a lock that others hold");
}

/// Leaves a new holder alone when a late request of either library arrives.
#[tokio::test]
async fn late_releases_leave_other_holders_alone() {
    let fleet = Arc::new(Fleet::start().await);
    let late = fleet.theirs.lock("n", TTL).await.expect("it is free");
    fleet.nodes.iter().for_each(|node| drop(node.command(&["DEL", "n"])));
    let guard = fleet.ours.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    fleet.theirs.unlock(&late).await;
    assert!(fleet.theirs.extend(&late, TTL).await.is_err());
    assert!(guard.verify().await.is_ok(), "their late release has freed our lock");

    fleet.nodes.iter().for_each(|node| drop(node.command(&["DEL", "n"])));
    let lock = fleet.theirs.lock("n", TTL).await.expect("it is free");
    let before = fleet.values();
    // Another member may have our vote: the attempt there was late, or a renewal regained it.
    let is_theirs = |value: &&String| before.iter().filter(|other| other == value).count() > 1;
    let theirs = before.iter().find(is_theirs).expect("two members have their lock");
    let votes = |values: &[String]| values.iter().filter(|value| *value == theirs).count();
    assert_eq!(guard.verify().await.map(|_| ()).map_err(|e| e.kind()), Err(ErrorKind::Lost));
    assert_eq!(guard.lost().await, Loss::NotHeld);
    drop(guard);
    lock_core::clock::sleep(Duration::from_millis(300)).await;
    assert_eq!(votes(&fleet.values()), votes(&before), "our late release has freed their lock");
    fleet.theirs.unlock(&lock).await;
}
