//! Mixed fleets: a client in another language that locks the same key with `add`, in both
//! directions.

use std::time::Duration;

use lock_conformance::helpers::{claim, contended, name, renew, win};
use lock_core::backend::{Release, ReleaseMode, Renewal};
use lock_core::clock::sleep;
use lock_core::{Backend, Locker};
use test_servers::peers::{Library, Peer};

mod support;

use support::{Server, client, start};

#[tokio::test]
async fn foreign_locks_are_contention_and_never_touched() {
    let server = start();
    let locks = client(&server).await;
    let mut theirs = theirs(&server);
    for release in ["release", "careless-release"] {
        assert_eq!(theirs.ask("try 300").await, "held");
        let held = server.value("n");
        let ours = claim("n", 1000);
        let left = contended(locks.try_acquire(&ours).await).expect("it has an end");
        assert!(left > Duration::from_secs(200), "{left:?}");
        let state = locks.inspect(&name("n")).await.unwrap();
        assert_eq!((state.holders[0].owner, state.holders[0].token), (None, None));
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
        assert_eq!(
            locks.release(&ours, ReleaseMode::after_unknown_outcome()).await.unwrap(),
            Release::NotHeld
        );
        assert!(!locks.break_lock(&name("n"), &ours.owner).await.unwrap());
        assert_eq!(server.value("n"), held);
        assert_eq!(theirs.ask(release).await, "done");
        let mut ours = claim("n", 1000);
        win(&locks, &mut ours).await;
        assert_eq!(theirs.ask("try 300").await, "contended");
        assert_eq!(theirs.ask(release).await, "not owned");
        assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn our_waiter_comes_after_them() {
    let server = start();
    let locks = Locker::new(client(&server).await);
    let mut theirs = theirs(&server);
    for (lease, ends) in [("300", "by release"), ("2", "by itself")] {
        assert_eq!(theirs.ask(&format!("try {lease}")).await, "held");
        let lock = locks.lock("n").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished());
        if ends == "by release" {
            assert_eq!(theirs.ask("release").await, "done");
        }
        let served = tokio::time::timeout(Duration::from_secs(10), waiter).await;
        let guard = served.expect("it is served").unwrap().unwrap();
        assert_eq!(theirs.ask("try 300").await, "contended");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn their_touch_of_our_lock_harms_nobody() {
    let server = start();
    let locks = client(&server).await;
    let mut theirs = theirs(&server);
    let mut ours = claim("n", 3000);
    win(&locks, &mut ours).await;
    assert_eq!(theirs.ask("touch 100").await, "done");
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))));
    assert_eq!(theirs.ask("touch 100").await, "done");
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);
    assert_eq!(theirs.ask("try 300").await, "held");
}

/// Starts a foreign client that locks `n`.
fn theirs(server: &Server) -> Peer {
    Library::Pymemcache.start(&[&server.addr().port().to_string(), "n"])
}
