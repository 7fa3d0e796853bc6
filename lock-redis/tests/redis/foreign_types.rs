//! Locks that a foreign client keeps in a key of another type, as Redisson in a hash.

use std::time::Duration;

use lock_core::backend::{Release, ReleaseMode, Renewal};
use lock_core::{Backend, Error, ErrorKind, Label, Locker, OwnerId};
use lock_redis::Redis;

use crate::fleets::{resting, served};
use crate::support::{LONG, Server, claim, eventually, name, renew, win};

/// Takes the lock as Redisson does.
fn take(server: &Server) {
    let _: u64 = server.run("HSET n 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1");
    let _: u64 = server.run("PEXPIRE n 300000");
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("no lock of any client");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    assert!(text.contains("something other than a string"), "{text}");
}

#[tokio::test]
async fn a_hash_that_expires_is_the_lock_of_a_foreign_client() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap();
    take(&server);
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(lock.try_acquire_for(Duration::from_millis(50)).await.unwrap().is_none());
    let state = locks.inspect(&name("n")).await.unwrap();
    let [holder] = state.holders.as_slice() else { panic!("{state:?}") };
    assert_eq!((holder.owner, holder.token), (None, None));
    assert_eq!(holder.label.as_ref().map(Label::as_str), Some("a Redis hash"));
    assert!(holder.expires_in.is_some_and(|left| left <= LONG), "{holder:?}");
    let broken = locks.break_lock(&name("n"), &OwnerId::mint()).await.unwrap_err();
    let text = format!("{}", std::error::Error::source(&broken).unwrap());
    assert!(text.contains("a client of another kind holds the lock"), "{text}");
    assert_eq!(server.run::<u64>("HLEN n"), 1, "the key is unchanged");
}

#[tokio::test]
async fn a_hash_without_an_expiry_is_an_error() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap();
    take(&server);
    let waiter = resting(&server, &locks, &lock.clone().ttl(Duration::from_secs(1))).await;
    let _: u64 = server.run("PERSIST n");
    refused(lock.try_acquire().await);
    refused(lock.acquire().await);
    refused(locks.inspect(&name("n")).await);
    // It notices by its own poll, once per lease.
    refused(waiter.await.expect("no panic"));
    assert_eq!(server.run::<u64>("HLEN n"), 1, "the key is unchanged");
}

#[tokio::test]
async fn the_release_of_a_foreign_client_wakes_a_waiter_and_its_renewals_do_not() {
    let server = Server::start();
    for order in ["fifo", "any"] {
        let locks = Redis::connect(format!("{}?order={order}", server.url())).await.unwrap();
        let locks = Locker::new(locks);
        let lock = locks.lock("n").unwrap().ttl(LONG);
        take(&server);
        let waiter = resting(&server, &locks, &lock).await;
        for _ in 0..3 {
            let (watched, attempts) = (server.calls("client|caching"), server.calls("evalsha"));
            let _: u64 = server.run("PEXPIRE n 300000");
            eventually(|| server.calls("client|caching") > watched).await;
            assert_eq!(server.calls("evalsha"), attempts, "a renewal woke an attempt");
        }
        assert!(!waiter.is_finished());
        let _: u64 = server.run("DEL n");
        served(waiter).await.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_outlives_a_hash_that_replaces_a_lock() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(1));
    let _: String = server.run("SET n theirs PX 300000");
    let waiter = resting(&server, &locks, &lock).await;
    let watched = server.calls("client|caching");
    let _: u64 = server.run("HSET hash field 1");
    let _: u64 = server.run("PEXPIRE hash 300000");
    let _: String = server.run("RENAME hash n");
    eventually(|| server.calls("client|caching") > watched).await;
    let polled = server.calls("evalsha");
    eventually(|| server.calls("evalsha") > polled).await;
    assert!(!waiter.is_finished(), "the waiter ended at a hash");
    let _: u64 = server.run("DEL n");
    served(waiter).await.release().await.unwrap();
}

#[tokio::test]
async fn a_hold_that_a_hash_has_replaced_is_not_held() {
    let server = Server::start();
    let locks = server.client().await;
    let mut held = claim("n", LONG.as_millis() as u64);
    win(&locks, &mut held).await;
    let _: u64 = server.run("DEL n");
    take(&server);
    assert!(matches!(renew(&locks, &held).await, Ok(Renewal::NotHeld)));
    assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_eq!(server.run::<u64>("HLEN n"), 1, "the key is unchanged");
}
