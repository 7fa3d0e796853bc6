//! Servers that forget, or remember released locks: restarts, power losses, snapshots, failovers.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use lock_core::backend::{Effect, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, FenceGate, LockGuard, Locker, Loss};
use lock_redis::Redis;
use test_servers::Step;

use crate::support::{LONG, SOON, Server, claim, contended, eventually, name, release, renew, win};

/// Renewed so often that several renewals have time to fail.
const SHORT: Duration = Duration::from_secs(5);

async fn hold(locks: &Redis, ttl: Duration) -> LockGuard {
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(ttl);
    tokio::time::timeout(SOON, lock.acquire()).await.expect("it is free").unwrap()
}

/// Reconnects, since the first request after a restart may find a dead connection.
async fn back_in_touch(locks: &Redis) {
    let _ = locks.inspect(&name("n")).await;
    locks.inspect(&name("n")).await.expect("the line was made anew");
}

/// Waits until the holder's own renewal notifies it of the loss.
async fn wait_until_lost(guard: &LockGuard) {
    let deadline = guard.valid_for();
    let began = Moment::now();
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::NotHeld);
    let took = Moment::now().saturating_since(began);
    assert!(deadline.is_none_or(|deadline| took < deadline), "at its deadline, after {took:?}");
    assert!(!guard.is_held());
}

#[tokio::test]
async fn a_restart_without_data_is_notified_and_tokens_still_grow() {
    let server = Server::start();
    let (locks, other) = (server.client().await, server.client().await);
    for disaster in ["restart", "flush"] {
        let guard = hold(&locks, SHORT).await;
        let gate = FenceGate::new(());
        gate.admit(guard.fencing_token().unwrap(), |()| ()).unwrap();
        if disaster == "restart" {
            server.kill();
            server.start_again();
            back_in_touch(&other).await;
        } else {
            let _: String = server.run("FLUSHALL");
        }
        let next = hold(&other, LONG).await;
        assert!(next.fencing_token() > guard.fencing_token());
        gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
        wait_until_lost(&guard).await;
        assert!(gate.admit(guard.fencing_token().unwrap(), |()| ()).is_err());
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        next.verify().await.expect("the first one's end harms nobody");
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_restart_with_its_log_keeps_the_lock_and_its_lease() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let guard = hold(&locks, LONG).await;
    server.step_clock(Step::Forward(LONG / 2));
    server.kill();
    server.start_with_data();
    assert!((100_000..=150_000).contains(&server.pttl("n")), "it did not begin anew");
    back_in_touch(&other).await;
    let expires_in = contended(other.try_acquire(&claim("n", 1000)).await).unwrap();
    assert!(expires_in <= LONG / 2, "{expires_in:?}");
    back_in_touch(&locks).await;
    guard.verify().await.unwrap();
    assert!(server.pttl("n") > 250_000);
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    assert!(hold(&other, LONG).await.fencing_token() > token);
}

#[tokio::test]
async fn a_released_lock_that_comes_back_expires() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let mut held = claim("n", 3000);
    let first = win(&locks, &mut held).await;
    let written = server.written();
    release(&locks, &held).await;
    server.lose_power(written);
    assert!((1..=3000).contains(&server.pttl("n")), "it is back, and not for ever");
    back_in_touch(&other).await;
    let waiting = Locker::new(other).lock("n").unwrap().ttl(LONG);
    let next = tokio::time::timeout(SOON, waiting.acquire()).await.expect("it lapses").unwrap();
    assert!(next.fencing_token() > first.token);
    // The former holder neither gets it back nor takes it from the holder of now.
    back_in_touch(&locks).await;
    assert!(matches!(renew(&locks, &held).await, Ok(Renewal::NotHeld)));
    assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    next.verify().await.unwrap();
}

#[tokio::test]
async fn a_released_lock_that_comes_back_is_released_by_its_next_attempt() {
    let server = Server::with_log_and_clock();
    let locks = server.client().await;
    let mut held = claim("n", 300_000);
    win(&locks, &mut held).await;
    let written = server.written();
    release(&locks, &held).await;
    server.lose_power(written);
    assert!(server.pttl("n") > 200_000);
    back_in_touch(&locks).await;
    release(&locks, &held).await;
    assert_eq!(locks.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_eq!(server.get("n"), None);
}

#[tokio::test]
async fn a_waiter_for_a_lock_that_came_back_polls_once_per_ttl() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let guard = hold(&locks, LONG).await;
    let owner = *guard.owner();
    let written = server.written();
    guard.release().await.unwrap();
    server.lose_power(written);
    back_in_touch(&other).await;
    let ttl = Duration::from_millis(500);
    let waiting = Locker::new(other.clone()).lock("n").unwrap().ttl(ttl);
    let looks = server.calls("evalsha");
    let began = Moment::now();
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(|| server.calls("evalsha") >= looks + 4).await;
    let took = Moment::now().saturating_since(began);
    assert!(took > ttl * 2, "four looks within {took:?} are no rest");
    assert!(!waiter.is_finished(), "the lease that came back is another's");
    // Such a poll detects changes by an operator.
    let holders = other.inspect(&name("n")).await.unwrap().holders;
    assert_eq!(holders[0].owner, Some(owner), "and it can be seen whose it was");
    let _: u64 = server.run("DEL n");
    let next = tokio::time::timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_comes_back_with_the_clock_set_back_can_be_broken() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let mut held = claim("n", 1000);
    let first = win(&locks, &mut held).await;
    let gate = FenceGate::new(());
    // It lapses while the server is down, so the log does not say so.
    server.kill();
    server.step_clock(Step::Back(HOUR));
    server.start_with_data();
    back_in_touch(&other).await;
    let left = server.pttl("n");
    assert!(left > 3_000_000, "it was revived for an hour: {left}");
    let waiting = Locker::new(other.clone()).lock("n").unwrap().ttl(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    eventually(|| server.waiting("n") == 1).await;
    let seen = other.inspect(&held.name).await.unwrap();
    assert!(seen.holders[0].expires_in.is_some_and(|left| left > HOUR / 2), "{seen:?}");
    assert!(other.break_lock(&held.name, &held.owner).await.unwrap());
    let next = tokio::time::timeout(SOON, waiter).await.expect("it is woken").unwrap().unwrap();
    // The server's clock is behind, its counter is not.
    assert!(next.fencing_token() > first.token);
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    assert!(gate.admit(first.token.unwrap(), |()| ()).is_err());
}

#[tokio::test]
async fn a_lost_grant_is_notified_and_tokens_still_grow() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let earlier = hold(&locks, LONG).await;
    let written = {
        let token = earlier.fencing_token();
        earlier.release().await.unwrap();
        assert!(token.is_some());
        server.written()
    };
    let guard = hold(&locks, SHORT).await;
    server.lose_power(written);
    assert_eq!(server.get("n"), None);
    back_in_touch(&other).await;
    let next = hold(&other, LONG).await;
    assert!(next.fencing_token() > guard.fencing_token(), "though the counter is stale");
    wait_until_lost(&guard).await;
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_repeats_no_tokens() {
    let server = Server::start();
    let locks = server.client().await;
    let grant = async || {
        let mut held = claim("n", 300_000);
        let token = win(&locks, &mut held).await.token;
        release(&locks, &held).await;
        token
    };
    let saved = grant().await;
    assert_eq!(server.run::<String>("SAVE"), "OK");
    let last = [grant().await, grant().await, grant().await][2];
    server.kill();
    server.start_with_data();
    let stale = server.get("{n}%token").map(|number| number.parse().unwrap());
    assert_eq!(stale, saved.map(lock_core::FencingToken::backend_number), "the counter is stale");
    back_in_touch(&locks).await;
    assert!(grant().await > last);
}

#[tokio::test]
async fn a_token_that_goes_back_is_no_grant() {
    let server = Server::with_log_and_clock();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n").unwrap().ttl(LONG);
    lock.acquire().await.unwrap().release().await.unwrap();
    // All that the grade of these tokens rests on: the data are lost, and the clock is set back.
    server.step_clock(Step::Back(Duration::from_secs(3600)));
    let _: String = server.run("FLUSHALL");
    for _ in 0..2 {
        assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::FenceRegressed);
    }
    // And it is given back.
    eventually(|| server.get("n").is_none()).await;
    server.step_clock(Step::Forward(Duration::from_secs(3600)));
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// A primary and its replica, and a way to whichever of them is in charge.
struct Pair {
    primary: Server,
    replica: Server,
    directory: tempfile::TempDir,
}

impl Pair {
    async fn start() -> Self {
        // It would wait for more replicas.
        let primary = Server::with(&[("repl-diskless-sync-delay", "0")]);
        let replica = Server::start();
        let directory = tempfile::tempdir().unwrap();
        let pair = Self { primary, replica, directory };
        pair.lead_to(&pair.primary);
        let port = pair.primary.port();
        let _: String = pair.replica.run(&format!("REPLICAOF 127.0.0.1 {port}"));
        let replication = || pair.replica.run::<String>("INFO replication");
        eventually(|| replication().contains("master_link_status:up")).await;
        pair
    }

    fn way(&self) -> std::path::PathBuf {
        self.directory.path().join("redis.sock")
    }

    fn lead_to(&self, server: &Server) {
        let new = self.directory.path().join("new");
        symlink(server.unix_socket(), &new).unwrap();
        std::fs::rename(new, self.way()).unwrap();
    }

    async fn client(&self) -> Redis {
        connect(&self.way()).await
    }

    /// Waits until the replica knows everything that the primary has acknowledged.
    fn replicate(&self) {
        let mut shell = self.primary.shell();
        shell.command(&["SET", "mark", "x"]).unwrap();
        assert_eq!(shell.command(&["WAIT", "1", "4000"]).unwrap().text(), "1");
    }

    /// Cuts the replica off from the primary.
    fn cut(&self) {
        let _: String = self.replica.run("REPLICAOF NO ONE");
    }

    /// Kills the primary, so that its replica takes over.
    fn fail_over(&self) {
        self.primary.kill();
        let _: String = self.replica.run("REPLICAOF NO ONE");
        self.lead_to(&self.replica);
    }
}

async fn connect(way: &Path) -> Redis {
    Redis::connect(format!("redis+unix://{}", way.display())).await.unwrap()
}

#[tokio::test]
async fn a_failover_that_knows_the_lock_keeps_it() {
    let pair = Pair::start().await;
    let (locks, other) = (pair.client().await, pair.client().await);
    let guard = hold(&locks, LONG).await;
    pair.replicate();
    pair.fail_over();
    back_in_touch(&other).await;
    contended(other.try_acquire(&claim("n", 1000)).await);
    back_in_touch(&locks).await;
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(pair.replica.get("n"), None);
}

#[tokio::test]
async fn a_failover_that_loses_the_lock_is_notified() {
    let pair = Pair::start().await;
    let (locks, other) = (pair.client().await, pair.client().await);
    hold(&locks, LONG).await.release().await.unwrap();
    pair.replicate();
    let gate = FenceGate::new(());
    pair.cut();
    let guard = hold(&locks, SHORT).await;
    gate.admit(guard.fencing_token().unwrap(), |()| ()).unwrap();
    pair.fail_over();
    back_in_touch(&other).await;
    // A replica promises nothing, and the documentation says so.
    let next = hold(&other, LONG).await;
    assert!(next.fencing_token() > guard.fencing_token(), "though its counter is behind");
    gate.admit(next.fencing_token().unwrap(), |()| ()).unwrap();
    wait_until_lost(&guard).await;
    assert!(gate.admit(guard.fencing_token().unwrap(), |()| ()).is_err());
    next.verify().await.unwrap();
}

#[tokio::test]
async fn a_failover_to_a_clock_behind_gives_no_lower_token() {
    let pair = Pair::start().await;
    let locks = pair.client().await;
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG);
    lock.acquire().await.unwrap().release().await.unwrap();
    pair.replicate();
    pair.cut();
    // As if the clock of the primary had been an hour ahead.
    let ahead = hold(&locks, LONG).await.fencing_token().unwrap().backend_number();
    let _: String = pair.primary.run(&format!("SET {{n}}%token {}", ahead + 3_600_000_000));
    lock.acquire().await.unwrap().release().await.unwrap();
    pair.fail_over();
    back_in_touch(&locks).await;
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::FenceRegressed);
    eventually(|| pair.replica.get("n").is_none()).await;
}

#[tokio::test]
async fn a_demoted_primary_reports_no_locks() {
    let pair = Pair::start().await;
    let locks = pair.client().await;
    let guard = hold(&locks, SHORT).await;
    let mut held = claim("held", 300_000);
    win(&locks, &mut held).await;
    pair.replicate();
    pair.cut();
    let port = pair.replica.port();
    let _: String = pair.primary.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    let mut longer = held.clone();
    longer.ttl = 2 * LONG;
    for fault in [
        locks.try_acquire(&claim("free", 1000)).await.unwrap_err(),
        locks.release(&held, ReleaseMode::now()).await.unwrap_err(),
        // It cannot know.
        locks.release(&claim("free", 1000), ReleaseMode::now()).await.unwrap_err(),
        renew(&locks, &longer).await.unwrap_err(),
    ] {
        assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Unavailable));
        let why = fault.into_source().to_string();
        assert!(why.contains("connect to the primary"), "{why}");
    }
    assert!(guard.is_held(), "nothing says that it is lost");
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
    // A client that connects after that finds the primary of now, which does not know of the loss.
    pair.lead_to(&pair.replica);
    let next = hold(&pair.client().await, LONG).await;
    assert!(next.fencing_token() > guard.fencing_token());
    // And a client that was connected before detects it.
    let end = Moment::now() + SOON;
    while locks.try_acquire(&claim("free", 1000)).await.is_err() {
        assert!(!end.has_passed(), "it stays with the replica");
        sleep(Duration::from_millis(100)).await;
    }
}
