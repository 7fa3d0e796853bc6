//! An attempt that is late: it reaches the server when its claim was granted by another attempt,
//! has lost the lock, and another claim has had it since.

use lock_core::backend::{Claim, HoldKind, Release, ReleaseMode, Renewal};
use lock_core::{Backend, Detached, ErrorKind, FencingToken, Locker};
use lock_memcache::Memcached;

mod support;

use lock_conformance::helpers::{claim, eventually, renew, win};
use lock_conformance::proxy::{Direction, Held, Proxy};
use support::{Server, client, start};

/// Longer than a test takes.
const LONG: u64 = 300_000;

struct Late {
    server: Server,
    proxy: Proxy,
    locks: Memcached,
    ours: Claim,
    token: Option<FencingToken>,
    attempt: Held,
}

impl Late {
    /// Makes a claim that holds the lock by its second attempt; its first one is on its way.
    async fn new(hold: HoldKind) -> Self {
        let server = start();
        let (proxy, url) = server.proxied();
        let locks = Memcached::connect(url).await.unwrap();
        let mut ours = claim("n", LONG);
        ours.hold = hold;
        let mut attempt = proxy.hold("add n ");
        let (first, ()) = tokio::join!(locks.try_acquire(&ours), async {
            attempt.caught().await.unwrap();
            proxy.half_close(Direction::ToClient);
        });
        first.expect_err("its connection is broken");
        let token = win(&locks, &mut ours).await.token;
        Self { server, proxy, locks, ours, token, attempt }
    }

    /// Loses the lock, lets another claim have it, and lets the late attempt take it.
    async fn lands(&mut self, loss: &str) {
        match loss {
            "break" => {
                let operator = client(&self.server).await;
                assert!(operator.break_lock(&self.ours.name, &self.ours.owner).await.unwrap());
            }
            _ => assert_eq!(self.server.command(loss), "OK"),
        }
        let other = client(&self.server).await;
        let mut next = claim("n", LONG);
        let theirs = win(&other, &mut next).await.token;
        assert!(theirs > self.token);
        assert_eq!(other.release(&next, ReleaseMode::now()).await.unwrap(), Release::Released);
        self.attempt.deliver().await.unwrap();
        eventually(|| self.server.value("n").is_some()).await;
        assert!(self.server.value("n").unwrap().starts_with(&self.ours.owner.expose()));
    }
}

/// However often the lock was renewed before, and on whichever connection.
#[tokio::test]
async fn it_is_not_renewed_for_the_one_that_was_granted() {
    for (loss, renewed, reconnected) in [
        ("break", false, false),
        ("break", false, true),
        ("break", true, false),
        ("flush_all", true, true),
        ("flush_all", false, false),
    ] {
        let mut late = Late::new(HoldKind::Guarded).await;
        if renewed {
            assert!(matches!(renew(&late.locks, &late.ours).await, Ok(Renewal::Held(_))));
        }
        late.lands(loss).await;
        if reconnected {
            late.proxy.reset_connections().await;
            eventually(|| late.proxy.stats().live == 0).await;
        }
        let what = format!("{loss}, renewed: {renewed}, reconnected: {reconnected}");
        let answer = loop {
            // The broken connection may be found by asking.
            match renew(&late.locks, &late.ours).await {
                Err(fault) => assert!(reconnected && fault.is_transient(), "{what}: {fault:?}"),
                Ok(answer) => break answer,
            }
        };
        assert!(matches!(answer, Renewal::NotHeld), "{what}: {answer:?}");
        assert_eq!(late.server.value("n"), None, "{what}: it keeps the lock shut");
    }
}

#[tokio::test]
async fn its_end_is_not_the_release_of_the_one_that_was_granted() {
    let mut late = Late::new(HoldKind::Guarded).await;
    late.lands("break").await;
    assert_eq!(late.locks.release(&late.ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_eq!(late.server.value("n"), None, "it keeps the lock shut");
}

/// Another process knows the owner id, and nothing of attempts.
#[tokio::test]
async fn it_is_not_adopted_by_another_process_with_the_owner_id() {
    for renewed in [false, true] {
        let mut late = Late::new(HoldKind::Detached).await;
        let detached = Detached::new(late.ours.name.clone(), late.ours.owner, late.ours.ttl);
        if renewed {
            let elsewhere = Locker::new(client(&late.server).await);
            elsewhere.renew_detached(&detached).await.unwrap();
        }
        late.lands("break").await;
        let elsewhere = Locker::new(client(&late.server).await);
        let answer = elsewhere.renew_detached(&detached).await.map_err(|error| error.kind());
        assert_eq!(answer.unwrap_err(), ErrorKind::NotHeld, "renewed before: {renewed}");
        assert_eq!(late.server.value("n"), None, "it keeps the lock shut");
    }
}

/// It is a hold all the same, until a break ends it: no other claim gets in.
#[tokio::test]
async fn it_is_seen_and_can_be_broken() {
    let mut late = Late::new(HoldKind::Guarded).await;
    late.lands("flush_all").await;
    let operator = client(&late.server).await;
    let holders = operator.inspect(&late.ours.name).await.unwrap().holders;
    assert_eq!((holders[0].owner, holders[0].token), (Some(late.ours.owner), None));
    assert!(operator.break_lock(&late.ours.name, &late.ours.owner).await.unwrap());
    assert!(matches!(renew(&late.locks, &late.ours).await, Ok(Renewal::NotHeld)));
}

/// A repeated attempt takes the lock of an earlier one, as a new grant.
#[tokio::test]
async fn it_is_found_by_a_further_attempt() {
    let mut late = Late::new(HoldKind::Guarded).await;
    late.lands("break").await;
    let token = win(&late.locks, &mut late.ours).await.token;
    assert!(token > late.token, "{token:?} after {:?}", late.token);
    assert!(matches!(renew(&late.locks, &late.ours).await, Ok(Renewal::Held(_))));
    assert_eq!(
        late.locks.release(&late.ours, ReleaseMode::now()).await.unwrap(),
        Release::Released
    );
}
