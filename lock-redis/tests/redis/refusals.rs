//! Servers that refuse work: the kind of the fault, its residue, and its end.

use std::error::Error as _;
use std::thread;
use std::time::Duration;

use lock_conformance::proxy::Proxy;
use lock_core::backend::{Claim, Effect, Fault, FaultKind, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::{Backend, Error, ErrorKind, LockGuard, Locker, Loss};
use lock_redis::Redis;
use tokio::task::JoinHandle;

use crate::support::{
    LONG, SOON, Server, claim, contended, eventually, granted, release, renew, win,
};

/// Commands that a server still runs while it refuses others.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Still {
    Reads,
    /// It shows its data, which may be stale, and so reports no lock as held.
    Shows,
    Nothing,
}

/// A server that is about to refuse, and clients with requests under way.
struct Scene {
    server: Server,
    /// The way of `locks`.
    proxy: Proxy,
    locks: Redis,
    held: Claim,
    guard: LockGuard,
    dropped: LockGuard,
    waiter: JoinHandle<Result<LockGuard, Error>>,
}

impl Scene {
    async fn new(server: Server) -> Self {
        let (proxy, url) = server.proxied();
        let locks = Redis::connect(url).await.unwrap();
        let mut held = claim("claimed", 300_000);
        win(&locks, &mut held).await;
        let locker = Locker::new(locks.clone());
        let take = async |name: &str| {
            let lock = locker.lock(name).unwrap().ttl(LONG);
            lock.acquire().await.unwrap()
        };
        let (guard, dropped) = (take("held").await, take("dropped").await);
        // It looks every second.
        let lock = Locker::new(locks.clone()).lock("held").unwrap().ttl(Duration::from_secs(1));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        eventually(|| server.waiting("held") == 1).await;
        Self { server, proxy, locks, held, guard, dropped, waiter }
    }

    /// Checks that every verb reports the refusal with this `advice`.
    async fn check_verbs(&self, still: Still, advice: &str) {
        let refused = |fault: Fault| {
            let what = (fault.effect(), fault.kind());
            let why = fault.into_source().to_string();
            assert_eq!(what, (Effect::NotApplied, FaultKind::Unavailable), "{why}");
            assert!(why.contains(advice), "{why}");
        };
        let Self { locks, held, .. } = self;
        let stranger = claim("claimed", 1000);
        refused(locks.try_acquire(&claim("free", 1000)).await.unwrap_err());
        refused(locks.release(held, ReleaseMode::now()).await.unwrap_err());
        refused(locks.release(held, ReleaseMode::after_unknown_outcome()).await.unwrap_err());
        refused(
            locks.release(held, ReleaseMode::keep_for(Duration::from_secs(1))).await.unwrap_err(),
        );
        refused(locks.release(&stranger, ReleaseMode::now()).await.unwrap_err());
        refused(locks.break_lock(&held.name, &held.owner).await.unwrap_err());
        let mut longer = held.clone();
        longer.ttl = 2 * LONG;
        refused(renew(locks, &longer).await.unwrap_err());
        match still {
            Still::Reads => {
                contended(locks.try_acquire(&stranger).await);
                assert_eq!(locks.inspect(&held.name).await.unwrap().holders.len(), 1);
            }
            Still::Shows => {
                refused(locks.try_acquire(&stranger).await.unwrap_err());
                assert_eq!(locks.inspect(&held.name).await.unwrap().holders.len(), 1);
            }
            Still::Nothing => {
                refused(locks.try_acquire(&stranger).await.unwrap_err());
                refused(locks.inspect(&held.name).await.unwrap_err());
            }
        }
    }

    /// Checks that guards are notified while the server refuses, and lose nothing.
    async fn check_guards(&self, advice: &str) {
        let refused = |error: &Error| {
            let shown = format!("{error}: {:?}", error.source().map(ToString::to_string));
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
            assert_eq!(error.effect(), Effect::NotApplied, "{shown}");
            assert!(shown.contains(advice), "{shown}");
        };
        let lock = Locker::new(self.locks.clone()).lock("free").unwrap();
        refused(&lock.try_acquire().await.expect_err("this is no contention"));
        refused(&lock.try_acquire_for(Duration::from_millis(100)).await.expect_err("nor is this"));
        refused(&lock.acquire().await.expect_err("a newcomer is told at once"));
        refused(&self.guard.verify().await.unwrap_err());
        assert!(self.guard.is_held(), "a renewal that failed is no loss");
        assert!(!self.waiter.is_finished());
    }

    /// Checks that a release during the refusal needs no second call.
    async fn check_release(self, off: impl FnOnce(&Server)) {
        let Self { server, proxy, locks, held, guard, dropped, waiter } = self;
        let tries = [&guard, &dropped].map(|guard| proxy.count(&*guard.owner().expose()));
        let connections = proxy.stats().connections;
        drop(dropped);
        let releasing = tokio::spawn(guard.release());
        // Where no client gets in, only attempts to connect can be seen.
        let refused_twice = || {
            let knocked = proxy.stats().connections - connections;
            knocked >= 4 || tries.iter().all(|tries| tries.seen() >= 2)
        };
        eventually(refused_twice).await;
        off(&server);
        releasing.await.unwrap().expect("repeated until it was done");
        let next = tokio::time::timeout(SOON, waiter).await.expect("served").unwrap();
        let next = next.expect("it sat it out");
        next.release().await.unwrap();
        release(&locks, &held).await;
        let fences = ["{claimed}%token", "{dropped}%token", "{held}%token"];
        // No trace of the refused attempt.
        eventually(|| server.keys() == fences).await;
        granted(locks.try_acquire(&claim("free", 1000)).await);
    }
}

async fn check(
    server: Server,
    still: Still,
    advice: &str,
    on: impl FnOnce(&Server),
    off: impl FnOnce(&Server),
) {
    let scene = Scene::new(server).await;
    on(&scene.server);
    scene.check_verbs(still, advice).await;
    scene.check_guards(advice).await;
    scene.check_release(off).await;
}

fn set(server: &Server, setting: &str) {
    assert_eq!(server.run::<String>(&format!("CONFIG SET {setting}")), "OK");
}

/// Waits until the server refuses everything, or nothing any more.
fn wait_for_answer(server: &Server, begins_with: &str) {
    let end = Moment::now() + SOON;
    // While a server starts, it answers no command.
    let answer = || Some(server.try_shell().ok()?.command(&["PING"]).ok()?.text());
    while !answer().is_some_and(|text| text.starts_with(begins_with)) {
        assert!(!end.has_passed(), "no {begins_with}");
        thread::yield_now();
    }
}

#[tokio::test]
async fn too_few_replicas() {
    let on = |server: &Server| set(server, "min-replicas-to-write 1");
    let off = |server: &Server| set(server, "min-replicas-to-write 0");
    check(Server::start(), Still::Reads, "min-replicas-to-write", on, off).await;
}

#[tokio::test]
async fn a_replica() {
    let on = |server: &Server| assert_eq!(server.run::<String>("REPLICAOF 127.0.0.1 1"), "OK");
    let off = |server: &Server| assert_eq!(server.run::<String>("REPLICAOF NO ONE"), "OK");
    check(Server::start(), Still::Shows, "connect to the primary", on, off).await;
}

#[tokio::test]
async fn a_replica_is_refused_when_connecting() {
    let server = Server::start();
    assert_eq!(server.run::<String>("REPLICAOF 127.0.0.1 1"), "OK");
    let error = Redis::connect(server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    let why = error.source().unwrap().to_string();
    assert!(why.contains("connect to the primary"), "{why}");
}

#[tokio::test]
async fn a_replica_that_has_lost_its_primary() {
    let on = |server: &Server| {
        set(server, "replica-serve-stale-data no");
        assert_eq!(server.run::<String>("REPLICAOF 127.0.0.1 1"), "OK");
    };
    let off = |server: &Server| assert_eq!(server.run::<String>("REPLICAOF NO ONE"), "OK");
    check(Server::start(), Still::Nothing, "replica without primary", on, off).await;
}

#[tokio::test]
async fn a_server_that_cannot_save_its_data() {
    let in_the_way = |server: &Server| server.directory().join("dump.rdb");
    let on = |server: &Server| {
        // A directory cannot be replaced by a file.
        std::fs::create_dir(in_the_way(server)).unwrap();
        assert_eq!(server.command::<String>(&["CONFIG", "SET", "save", "3600 1"]), "OK");
        let mut shell = server.shell();
        let end = Moment::now() + SOON;
        let mut info = String::new();
        shell.command(&["BGSAVE"]).unwrap();
        while !info.contains("rdb_last_bgsave_status:err") {
            assert!(!end.has_passed(), "it can save: {info}");
            info = shell.command(&["INFO", "persistence"]).unwrap().text();
        }
    };
    let off = |server: &Server| {
        std::fs::remove_dir(in_the_way(server)).unwrap();
        assert_eq!(server.run::<String>("SAVE"), "OK");
    };
    check(Server::start(), Still::Reads, "look at its log", on, off).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_does_not_end() {
    let on = |server: &Server| {
        set(server, "busy-reply-threshold 1");
        let mut shell = server.shell();
        thread::spawn(move || shell.command(&["EVAL", "while true do end", "0"]));
        wait_for_answer(server, "BUSY");
    };
    let off = |server: &Server| {
        assert_eq!(server.shell().command(&["SCRIPT", "KILL"]).unwrap().text(), "OK");
        wait_for_answer(server, "PONG");
    };
    check(Server::start(), Still::Nothing, "SCRIPT KILL", on, off).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_loads_its_data() {
    // For a minute, unless told to be quick. It looks up from its work after each key.
    let server = Server::with(&[
        ("key-load-delay", "20000"),
        ("rdbcompression", "no"),
        ("loading-process-events-interval-bytes", "1024"),
    ]);
    let on = |server: &Server| {
        let _: String = server.run("DEBUG POPULATE 3000 filler 1000");
        assert_eq!(server.run::<String>("SAVE"), "OK");
        server.start_with_data_meanwhile();
        wait_for_answer(server, "LOADING");
    };
    let off = |server: &Server| {
        let mut shell = server.shell();
        let quick = ["CONFIG", "SET", "key-load-delay", "0"];
        assert_eq!(shell.command(&quick).unwrap().text(), "OK");
        wait_for_answer(server, "PONG");
        // The data that filled it.
        let script =
            "for _, k in ipairs(redis.call('KEYS', 'filler:*')) do redis.call('DEL', k) end";
        server.command::<()>(&["EVAL", script, "0"]);
    };
    check(server, Still::Nothing, "loading its data: wait", on, off).await;
}

#[tokio::test]
async fn too_many_clients() {
    let scene = Scene::new(Server::start()).await;
    let mut shell = scene.server.shell();
    let mut allow = |many| {
        let reply = shell.command(&["CONFIG", "SET", "maxclients", many]).unwrap();
        assert_eq!(reply.text(), "OK");
    };
    allow("1");
    // Connected clients stay connected.
    scene.proxy.reset_connections().await;
    eventually(|| format!("{:?}", scene.locks).contains("connected: false")).await;
    scene.check_verbs(Still::Nothing, "raise maxclients").await;
    scene.check_guards("raise maxclients").await;
    scene.check_release(|_| allow("1000")).await;
}

#[tokio::test]
async fn a_password_that_was_changed() {
    let Scene { server, proxy, locks, guard, dropped, waiter, .. } =
        Scene::new(Server::start()).await;
    let mut shell = server.shell();
    let mut set_password = |password| {
        let reply = shell.command(&["CONFIG", "SET", "requirepass", password]).unwrap();
        assert_eq!(reply.text(), "OK");
    };
    set_password("sesame");
    // Connected clients stay connected.
    proxy.reset_connections().await;
    eventually(|| format!("{locks:?}").contains("connected: false")).await;
    let fault = locks.try_acquire(&claim("free", 1000)).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Denied));
    let why = fault.into_source().to_string();
    assert!(why.contains("password"), "{why}");
    // Waiting does not help, so no client waits.
    let waiting = tokio::time::timeout(SOON, waiter).await.expect("it is told").unwrap();
    assert_eq!(waiting.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(dropped.verify().await.unwrap_err().kind(), ErrorKind::Denied);
    assert!(dropped.is_held());
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    // The lease, one per cent for the server's clock, and the takeover.
    assert!(error.free_within().is_some_and(|bound| bound <= LONG * 51 / 50), "{error:?}");
    set_password("");
    dropped.verify().await.expect("it never ceased to be held");
    dropped.release().await.unwrap();
    // That release went on in the background.
    eventually(|| server.get("held").is_none()).await;
}

#[tokio::test]
async fn a_server_that_is_full() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let other = Locker::new(server.client().await);
    let guard = locks.lock("held").unwrap().ttl(LONG).acquire().await.unwrap();
    set(&server, "maxmemory 1");
    let error = other.lock("free").unwrap().try_acquire().await.expect_err("this is no contention");
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(other.lock("held").unwrap().try_acquire().await.unwrap().is_none(), "and this is");
    guard.extend(2 * LONG).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.keys(), ["{held}%token"]);
    let full = async { other.lock("free").unwrap().acquire().await.unwrap_err().kind() };
    assert_eq!(full.await, ErrorKind::Unavailable, "a newcomer is told at once");
    set(&server, "maxmemory 0");
    other.lock("free").unwrap().acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_that_is_refused_for_long_goes_on_in_the_background() {
    let server = Server::start();
    let locks = Locker::builder(server.client().await).timeout(Duration::from_millis(200)).build();
    let guard = locks.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    set(&server, "min-replicas-to-write 1");
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::Unknown));
    let bound = error.free_within().expect("there is a lease");
    // One per cent for the server's clock, and the takeover.
    assert!(bound <= LONG * 51 / 50 && bound > LONG / 2, "{bound:?}");
    assert!(server.get("n").is_some());
    set(&server, "min-replicas-to-write 0");
    eventually(|| server.get("n").is_none()).await;
    locks.close().await.unwrap();
}

#[tokio::test]
async fn a_refusal_that_outlasts_the_lease_ends_the_hold() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let ttl = Duration::from_millis(1500);
    let guard = locks.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    let other = Locker::new(server.client().await);
    let waiter = tokio::spawn(async move { other.lock("n").unwrap().acquire().await });
    eventually(|| server.waiting("n") == 1).await;
    set(&server, "min-replicas-to-write 1");
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
    set(&server, "min-replicas-to-write 0");
    let next = tokio::time::timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.verify().await.expect("the late release of the first harms nobody");
}

#[tokio::test]
async fn a_server_that_pauses_runs_the_attempt_later() {
    let server = Server::start();
    let locks = Locker::builder(server.client().await).timeout(Duration::from_millis(200)).build();
    // Loads the scripts: one that the server does not know is sent twice.
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    for mode in ["ALL", "WRITE"] {
        let lock = locks.lock(mode).unwrap().ttl(LONG);
        let _: String = server.run(&format!("CLIENT PAUSE 1000 {mode}"));
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown), "{mode}");
        // The attempt is made all the same, and let go.
        let fence = format!("{{{mode}}}%token");
        eventually(|| server.get(&fence).is_some() && server.get(mode).is_none()).await;
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    locks.close().await.unwrap();
}

#[tokio::test]
async fn a_key_of_another_type() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let _: u64 = server.run("RPUSH list a b");
    let lock = locks.lock("list").unwrap();
    for error in [lock.try_acquire().await.unwrap_err(), lock.acquire().await.unwrap_err()] {
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Invalid, Effect::NotApplied));
        let why = error.source().unwrap().to_string();
        assert!(why.contains("choose another name or prefix"), "{why}");
    }
    // Put in the place of a lock that is held.
    let guard = locks.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let late = locks.lock("m").unwrap().ttl(LONG).acquire().await.unwrap();
    for key in ["n", "m"] {
        let _: u64 = server.command(&["DEL", key]);
        let _: u64 = server.command(&["RPUSH", key, "theirs"]);
    }
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.loss(), Some(Loss::NotHeld));
    assert_eq!(late.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    locks.close().await.unwrap();
    for key in ["list", "n", "m"] {
        assert!(server.command::<u64>(&["LLEN", key]) > 0, "{key} is not ours to delete");
    }
}
