//! Waiting, and its cost.

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::helpers::eventually;
use lock_conformance::proxy::Proxy;
use lock_core::clock::{Moment, sleep};
use lock_core::{Locker, Wakeup};
use lock_memcache::Memcached;

mod support;

use support::{client, start};

const LONG: Duration = Duration::from_secs(300);

/// However many wait in one process, and through however many lockers: one asks, at a bounded rate.
#[tokio::test]
async fn one_asks_for_all_of_a_process() {
    const SECONDS: u64 = 3;

    let server = start();
    let (proxy, url) = server.proxied();
    let backend = Memcached::connect(url).await.unwrap();
    let holder = Locker::new(client(&server).await);
    let guard = holder.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locks = Locker::new(backend.clone());
        assert_eq!(locks.capabilities().wakeup, Wakeup::Poll);
        for _ in 0..8 {
            let lock = locks.lock("n").unwrap().ttl(LONG);
            waiters.spawn(async move { lock.acquire().await?.release().await });
        }
    }
    // The pauses have grown by then.
    sleep(Duration::from_millis(500)).await;
    let before = looks(&proxy);
    sleep(Duration::from_secs(SECONDS)).await;
    let asked_for = looks(&proxy) - before;
    println!("{asked_for} requests of 32 waiters in {SECONDS} s");
    assert!((20 * SECONDS..=40 * SECONDS).contains(&asked_for), "{asked_for} in {SECONDS} s");
    guard.release().await.unwrap();
    let served = tokio::time::timeout(Duration::from_secs(20), waiters.join_all()).await;
    assert!(served.expect("all are served").into_iter().all(|end| end.is_ok()));
}

/// Returns the number of polls that were sent: `mg n` and the end of its line.
fn looks(proxy: &Proxy) -> u64 {
    proxy.stats().to_server.received / 6
}

#[tokio::test]
async fn waiters_of_other_processes_are_served_soon() {
    const ROUNDS: u32 = 40;

    let server = start();
    let lockers = [Locker::new(client(&server).await), Locker::new(client(&server).await)];
    let mut guard = lockers[0].lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let mut total = Duration::ZERO;
    for round in 1..=ROUNDS {
        let lock = lockers[round as usize % 2].lock("n").unwrap().ttl(LONG);
        let waiter = tokio::spawn(async move {
            let guard = lock.acquire().await;
            (Moment::now(), guard)
        });
        sleep(Duration::from_millis(u64::from(100 + round * 7 % 60))).await;
        let released = Moment::now();
        guard.release().await.unwrap();
        let (served, next) = waiter.await.unwrap();
        total += served.saturating_since(released);
        guard = next.unwrap();
    }
    let mean = total / ROUNDS;
    println!("hand-over in {mean:?} on average");
    assert!(mean < Duration::from_millis(500), "{mean:?}: nobody asks until a lease is over");
}

#[tokio::test]
async fn dropped_waiters_ask_no_more() {
    let server = start();
    let (proxy, url) = server.proxied();
    let locks = Locker::new(Memcached::connect(url).await.unwrap());
    let holder = Locker::new(client(&server).await);
    let _guard = holder.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let lock = Arc::new(locks.lock("n").unwrap().ttl(LONG));
    let waiters: Vec<_> = (0..10)
        .map(|_| {
            let lock = Arc::clone(&lock);
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    sleep(Duration::from_millis(300)).await;
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    locks.close().await.unwrap();
    let mut sent = proxy.stats().to_server.received;
    let mut quiet_since = Moment::now();
    eventually(|| {
        let now = proxy.stats().to_server.received;
        if now != sent {
            (sent, quiet_since) = (now, Moment::now());
        }
        (quiet_since + Duration::from_millis(500)).has_passed()
    })
    .await;
}
