//! Mixed fleets: real lock libraries of other languages in the same line, in both directions.
//!
//! `ZOOKEEPER_CLIENTS=DIR` runs pinned versions in place of Debian's; go-zookeeper runs only so.
//! `INTEROP_SECONDS=30` is the time of a load run.

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{FaultKind, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, FencingToken, LockGuard, Locker};
use lock_zookeeper::{Config, Layout, ZooKeeper};
use test_servers::peers::Library::{self, Curator, GoZookeeper, Kazoo};
use test_servers::peers::Peer;
use test_servers::{ZooKeeper as Server, ZooKeeperOptions};
use tokio::task::JoinHandle;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::{claim, name, operator, queue_of, server, soon, until, win};

/// Makes a test of each function for each library.
macro_rules! with_each_library {
    ($($test:ident)*) => {
        mod curator {
            $(#[tokio::test] async fn $test() { super::$test(super::Curator).await; })*
        }
        mod kazoo {
            $(#[tokio::test] async fn $test() { super::$test(super::Kazoo).await; })*
        }
        mod go_zookeeper {
            $(#[tokio::test] async fn $test() { super::$test(super::GoZookeeper).await; })*
        }
    };
}

with_each_library! {
    what_they_hold_is_contended_and_their_release_lets_us_in
    what_we_hold_is_contended_and_our_release_lets_them_in
    all_are_served_in_the_order_in_which_they_came
    their_death_lets_us_in
    our_silence_lets_them_in_after_we_are_notified
    no_update_of_a_counter_under_the_lock_is_lost
}

struct Fleet {
    library: Library,
    server: Server,
    operator: Client,
    locks: Locker,
    client: ZooKeeper,
}

async fn fleet(library: Library) -> Fleet {
    fleet_on(server(), library).await
}

async fn fleet_on(server: Server, library: Library) -> Fleet {
    let client = connect(server.addr(), library).await;
    let operator = operator(server.addr()).await;
    Fleet { library, locks: Locker::new(client.clone()), server, operator, client }
}

async fn connect(addr: SocketAddr, library: Library) -> ZooKeeper {
    let layout = if library == Kazoo { Layout::Kazoo } else { Layout::Curator };
    let config = Config::new(&crate::support::url(addr)).unwrap().layout(layout);
    ZooKeeper::connect(config).await.unwrap()
}

impl Fleet {
    /// Starts a client of the library, for the same lock.
    fn theirs(&self) -> Peer {
        self.theirs_of("")
    }

    /// Starts a client of the library, of another kind of lock.
    fn theirs_of(&self, kind: &str) -> Peer {
        let mut peer = self.library.start(&[]);
        peer.tell(&format!("{} /n {kind}", self.server.addr()));
        peer
    }

    /// Starts a waiter of this project, and returns once it is queued.
    async fn waiter(&self) -> JoinHandle<LockGuard> {
        let before = self.in_line().await;
        let lock = self.locks.lock("n").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        self.until_in_line(before + 1).await;
        waiter
    }

    async fn in_line(&self) -> usize {
        queue_of(&self.operator, "n").await.len()
    }

    async fn until_in_line(&self, count: usize) {
        until("the next one stands in line", async || self.in_line().await == count).await;
    }
}

async fn what_they_hold_is_contended_and_their_release_lets_us_in(library: Library) {
    let fleet = fleet(library).await;
    let mut theirs = fleet.theirs();
    assert_eq!(theirs.ask("acquire 30000").await, "held");
    assert!(fleet.locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    let seen = fleet.client.inspect(&name("n")).await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert_eq!(seen.holders[0].owner, None, "theirs have no owner id");
    let waiter = fleet.waiter().await;
    assert!(!waiter.is_finished());
    assert_eq!(theirs.ask("release").await, "done");
    let guard = soon(waiter).await.unwrap();
    assert!(guard.fencing_token() > FencingToken::from_backend(1));
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(fleet.in_line().await, 0);
}

async fn what_we_hold_is_contended_and_our_release_lets_them_in(library: Library) {
    let fleet = fleet(library).await;
    let guard = fleet.locks.lock("n").unwrap().acquire().await.unwrap();
    let mut theirs = fleet.theirs();
    // go-zookeeper waits without a limit.
    if library != GoZookeeper {
        assert_eq!(theirs.ask("acquire 500").await, "contended");
        fleet.until_in_line(1).await;
    }
    theirs.tell("acquire 30000");
    fleet.until_in_line(2).await;
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(theirs.answer().await, "held");
    assert!(fleet.locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(theirs.ask("release").await, "done");
}

async fn all_are_served_in_the_order_in_which_they_came(library: Library) {
    let fleet = fleet(library).await;
    let guard = fleet.locks.lock("n").unwrap().acquire().await.unwrap();
    let mut first = fleet.theirs();
    let mut third = fleet.theirs();
    first.tell("acquire 60000");
    fleet.until_in_line(2).await;
    let second = fleet.waiter().await;
    third.tell("acquire 60000");
    fleet.until_in_line(4).await;
    let fourth = fleet.waiter().await;

    guard.release().await.unwrap();
    assert_eq!(first.answer().await, "held");
    assert!(!second.is_finished() && !fourth.is_finished());
    assert_eq!(first.ask("release").await, "done");
    let guard = soon(second).await.unwrap();
    assert!(!fourth.is_finished());
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    assert_eq!(third.answer().await, "held");
    assert!(!fourth.is_finished());
    assert_eq!(third.ask("release").await, "done");
    let guard = soon(fourth).await.unwrap();
    assert!(guard.fencing_token() > token);
    guard.release().await.unwrap();
}

async fn their_death_lets_us_in(library: Library) {
    let fleet = fleet(library).await;
    let mut theirs = fleet.theirs();
    assert_eq!(theirs.ask("acquire 30000").await, "held");
    let waiter = fleet.waiter().await;
    drop(theirs);
    soon(waiter).await.unwrap().release().await.unwrap();
}

async fn our_silence_lets_them_in_after_we_are_notified(library: Library) {
    let fleet = fleet(library).await;
    let link = Proxy::start(fleet.server.addr()).unwrap();
    let locks = Locker::new(connect(link.addr(), library).await);
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let mut theirs = fleet.theirs();
    theirs.tell("acquire 60000");
    fleet.until_in_line(2).await;
    link.set(Fault::BlackHole);
    assert_eq!(theirs.answer().await, "held");
    assert!(!guard.is_held(), "both hold");
    assert_eq!(theirs.ask("release").await, "done");
}

/// Two clients of each side read a counter, wait, and write it, under the lock.
async fn no_update_of_a_counter_under_the_lock_is_lost(library: Library) {
    let fleet = fleet(library).await;
    let mut peers = [fleet.theirs(), fleet.theirs()];
    for peer in &mut peers {
        // The start of its process is not part of the run.
        assert_eq!(peer.ask("acquire 30000").await, "held");
        assert_eq!(peer.ask("release").await, "done");
    }
    let seconds = std::env::var("INTEROP_SECONDS").map_or(3, |text| text.parse().unwrap());
    let end = Moment::now() + Duration::from_secs(seconds);
    let counter = Cell::new(0);
    let increment = async || {
        let read = counter.get();
        sleep(Duration::from_millis(1)).await;
        counter.set(read + 1);
    };
    let ours = async || {
        let locks = Locker::new(connect(fleet.server.addr(), library).await);
        let (lock, mut count) = (locks.lock("n").unwrap(), 0);
        while !end.has_passed() {
            let guard = lock.acquire().await.unwrap();
            increment().await;
            guard.release().await.unwrap();
            count += 1;
        }
        count
    };
    let theirs = async |mut peer: Peer| {
        let mut count = 0;
        while !end.has_passed() {
            assert_eq!(peer.ask("acquire 30000").await, "held");
            increment().await;
            assert_eq!(peer.ask("release").await, "done");
            count += 1;
        }
        count
    };
    let [one, two] = peers;
    let counts: [u64; 4] = tokio::join!(ours(), ours(), theirs(one), theirs(two)).into();
    println!("{library:?}: {counts:?} increments, two of ours first, in {seconds} s");
    assert_eq!(counter.get(), counts.iter().sum::<u64>(), "updates were lost");
    assert!(!counts.contains(&0), "one was never served");
}

#[tokio::test]
async fn readers_of_kazoo_keep_us_out_and_we_keep_out_its_readers() {
    let fleet = fleet(Kazoo).await;
    let mut readers = [fleet.theirs_of("ReadLock"), fleet.theirs_of("ReadLock")];
    for reader in &mut readers {
        assert_eq!(reader.ask("acquire 30000").await, "held");
    }
    assert!(fleet.locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    let seen = fleet.client.inspect(&name("n")).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting), (2, Some(0)));
    let waiter = fleet.waiter().await;
    let mut behind = fleet.theirs_of("ReadLock");
    behind.tell("acquire 60000");
    fleet.until_in_line(4).await;
    for reader in &mut readers {
        assert!(!waiter.is_finished());
        assert_eq!(reader.ask("release").await, "done");
    }
    let guard = soon(waiter).await.unwrap();
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(behind.answer().await, "held");
    assert_eq!(behind.ask("release").await, "done");
}

/// go-zookeeper and Curator count every child, and kazoo counts its own alone. The first one is
/// undefined.
#[tokio::test]
async fn a_line_with_places_of_other_libraries_is_refused_in_kazoos_layout() {
    let fleet = fleet(Kazoo).await;
    let open = Acls::anyone_all();
    let persistent = CreateMode::Persistent.with_acls(open);
    fleet.operator.create("/n", b"", &persistent).await.unwrap();
    let theirs = format!("/n/_c_{:032x}-lock-", 7);
    let place = CreateMode::EphemeralSequential.with_acls(open);
    fleet.operator.create(&theirs, b"", &place).await.unwrap();
    for queue in [false, true] {
        let fault = fleet.client.try_acquire(&claim("n", queue)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Invalid);
        assert!(fault.into_source().to_string().contains("-lock-"));
        assert_eq!(fleet.in_line().await, 1, "nothing of ours stays in it");
    }
    // The locks beside it are listed all the same.
    let held = claim("m", true);
    win(&fleet.client, &held).await;
    let listed = fleet.client.list("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|listed| &listed.name).collect::<Vec<_>>(), [&held.name]);
}

/// A `Lock` of kazoo makes its path once: it fails for good when that is removed under it.
#[tokio::test]
async fn in_kazoos_layout_the_nodes_of_locks_stay() {
    let options = ZooKeeperOptions::new().property("znode.container.checkIntervalMs", "200");
    let fleet = fleet_on(Server::start(&options), Kazoo).await;
    let held = claim("n", true);
    win(&fleet.client, &held).await;
    let mut theirs = fleet.theirs();
    theirs.tell("acquire 60000");
    fleet.until_in_line(2).await;
    fleet.client.release(&held, ReleaseMode::now()).await.unwrap();
    assert_eq!(theirs.answer().await, "held");
    assert_eq!(theirs.ask("release").await, "done");
    // Containers that come to stand empty now are removed by the look after that of this one.
    for container in ["/first", "/second"] {
        let open = Acls::anyone_all();
        let make = CreateMode::Container.with_acls(open);
        fleet.operator.create(container, b"", &make).await.unwrap();
        let child = format!("{container}/child");
        let make = CreateMode::Persistent.with_acls(open);
        fleet.operator.create(&child, b"", &make).await.unwrap();
        fleet.operator.delete(&child, None).await.unwrap();
        let is_gone = async || fleet.operator.check_stat(container).await.unwrap().is_none();
        until("the server has looked for empty containers", is_gone).await;
    }
    assert_eq!(theirs.ask("acquire 30000").await, "held");
    assert_eq!(theirs.ask("release").await, "done");
}

/// kazoo's `Semaphore` keeps its maximum in the node that would be ours.
#[tokio::test]
async fn in_kazoos_layout_the_data_of_a_node_are_left_alone() {
    let fleet = fleet(Kazoo).await;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    fleet.operator.create("/n", b"3", &persistent).await.unwrap();
    for queue in [false, true] {
        let fault = fleet.client.try_acquire(&claim("n", queue)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Invalid);
        assert!(fault.into_source().to_string().contains("holds data"));
    }
    assert_eq!(fleet.operator.get_data("/n").await.unwrap().0, b"3");
    assert_eq!(fleet.in_line().await, 0);
}
