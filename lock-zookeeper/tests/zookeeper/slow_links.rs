//! Links on which a commit takes a good part of the session timeout.

use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_conformance::proxy::{Fault, Proxy};
use lock_core::Locker;
use lock_core::clock::{Moment, sleep};
use lock_zookeeper::ZooKeeper;
use test_servers::ZooKeeper as Server;

use crate::support::{TIMEOUT as SESSION, client, server, soon};

/// Long enough that the delay of a busy machine is a small part of a commit.
const TIMEOUT: Duration = Duration::from_secs(8);

/// A server, and a client from which a commit takes so long.
async fn far_away(commit: Duration) -> (Server, Proxy, Locker) {
    let server = server();
    // Its first sessions and nodes take long.
    let near = Locker::new(client(server.addr()).await);
    for name in ["held", "again"] {
        let guard = soon(near.lock(name).unwrap().acquire()).await.expect("it is free");
        soon(guard.release()).await.expect("it is held");
    }
    let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
    proxy.set(Fault::delay(commit / 2));
    let url = format!("zookeeper://{}?session_timeout={}ms", proxy.addr(), TIMEOUT.as_millis());
    let client = ZooKeeper::connect(url).await.expect("the server takes us");
    (server, proxy, Locker::new(client))
}

/// Holds one lock, and acquires another one again and again. Returns the shortest time that a grant
/// left.
async fn least_left(locks: &Locker) -> Duration {
    let held = soon(locks.lock("held").unwrap().acquire()).await.expect("it is free");
    let lock = locks.lock("again").unwrap();
    let (began, mut least_left) = (Moment::now(), TIMEOUT);
    while Moment::now() < began + TIMEOUT * 3 {
        let guard = soon(lock.acquire()).await.expect("it is free");
        least_left = least_left.min(guard.valid_for().expect("it has a lease"));
        soon(guard.release()).await.expect("it is held");
        assert!(held.is_held(), "lost after {:?}", Moment::now().saturating_since(began));
    }
    soon(held.release()).await.expect("it is held");
    least_left
}

#[tokio::test]
async fn commits_of_a_tenth_of_the_timeout_lose_no_lock() {
    let commit = TIMEOUT / 10;
    let (_server, _proxy, locks) = far_away(commit).await;
    let left = least_left(&locks).await;
    assert!(left > commit, "a grant left {left:?}, and a commit takes {commit:?}");
}

#[tokio::test]
async fn a_grant_leaves_a_quarter_of_the_timeout_on_a_quick_link() {
    let (_server, _proxy, locks) = far_away(TIMEOUT / 50).await;
    let left = least_left(&locks).await;
    assert!(left >= TIMEOUT / 4, "a grant left {left:?}");
}

/// The next acquisition makes a new connection, which proves the session at once.
#[tokio::test]
async fn an_idle_session_commits_nothing() {
    let server = server();
    let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
    let locks = Locker::new(client(proxy.addr()).await);
    let lock = locks.lock("n").unwrap();
    soon(lock.acquire()).await.unwrap().release().await.unwrap();
    let written = || {
        let status = server.word("srvr").expect("it answers");
        status.lines().find(|line| line.starts_with("Zxid")).map(str::to_owned)
    };
    let (mut last, mut since) = (written(), Moment::now());
    soon(async {
        while Moment::now() < since + SESSION / 2 {
            sleep(SESSION / 100).await;
            let now = written();
            if now != last {
                (last, since) = (now, Moment::now());
            }
        }
    })
    .await;

    proxy.set(Fault::delay(SESSION / 100));
    let began = Moment::now();
    let guard = soon(lock.acquire()).await.expect("it is free");
    let took = Moment::now().saturating_since(began);
    println!("acquired in {took:?}, where a round trip takes {:?}", SESSION / 50);
    // A span of proofs alone takes so long.
    assert!(took < SESSION / 3, "{took:?}");
    assert!(guard.valid_for() > Some(SESSION / 2), "{:?}", guard.valid_for());
    proxy.heal();
    // Beyond every lease that is acknowledged so far.
    let proven = guard.deadline().unwrap() + SESSION;
    soon(async {
        while guard.is_held() && guard.deadline() < Some(proven) {
            sleep(SESSION / 100).await;
        }
    })
    .await;
    assert!(guard.is_held(), "it is proven again");
}

#[tokio::test]
async fn slow_commits_are_warned_about() {
    let warned = |output: &Output| output.text().contains("a commit takes more than");
    for (commit, is_slow) in [(Duration::ZERO, false), (TIMEOUT / 15, true)] {
        let output = Output::default();
        let tracing = output.listen();
        let _client = far_away(commit).await;
        drop(tracing);
        assert_eq!(warned(&output), is_slow, "{commit:?}: {}", output.text());
    }
}
