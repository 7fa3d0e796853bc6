//! The queue: the next waiter, waiters that are passed over, and residue.

use std::collections::HashSet;
use std::time::Duration;

use lock_conformance::proxy::{Direction, Fault, Proxy};
use lock_core::backend::{
    Attempt, Claim, Effect, FaultKind, Grant, Lease, OnContention, QUEUE_ENTRY_GRACE, Release,
    ReleaseMode, Renewal, Wake,
};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, FencingToken, Locker, Order, OwnerId, Wakeup};
use lock_redis::{Config, Redis};
use test_servers::RedisOptions;
use tokio::task::JoinHandle;

use crate::support::{Server, claim, contended, eventually, granted, name, release, renew, win};

/// So long that no waiter polls by itself while a test runs.
const LONG: u64 = 300_000;

/// The time that a loaded machine may need.
const SOON: Duration = Duration::from_secs(10);

/// How long a lock that was sent waits for a word of its owner.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

fn waiter(ttl: u64) -> Claim {
    let mut claim = claim("n", ttl);
    claim.on_contention = OnContention::Queue;
    claim
}

/// Creates a claim that queues.
async fn queued_claim(locks: &Redis, ttl: u64) -> Claim {
    let waiter = waiter(ttl);
    contended(locks.try_acquire(&waiter).await);
    waiter
}

async fn held(locks: &Redis) -> Claim {
    let mut held = claim("n", LONG);
    win(locks, &mut held).await;
    held
}

/// Waits for the grant that a waiter is sent.
async fn sent(locks: &Redis, waiter: &Claim) -> Grant {
    match tokio::time::timeout(SOON, locks.wait(waiter)).await.expect("it is called").unwrap() {
        Wake::Granted(grant) => grant,
        other => panic!("not sent: {other:?}"),
    }
}

fn lease(grant: &Grant) -> Duration {
    match grant.lease {
        Lease::For(lease) => lease,
        other => panic!("no lease: {other:?}"),
    }
}

/// Returns the holder of the lock on the server.
fn holder(server: &Server) -> Option<String> {
    server.get("n").map(|value| value.split(' ').next().unwrap().to_owned())
}

#[track_caller]
fn assert_held_by(server: &Server, claim: &Claim) {
    assert_eq!(holder(server), Some(claim.owner.expose()));
}

/// Asserts that only the token key is left without a holder and waiters.
#[track_caller]
fn assert_no_residue(server: &Server) {
    assert_eq!(server.keys(), ["{n}%token"]);
}

/// Sends scripts until the server knows them: one that it does not know is sent twice. Without its
/// ticket a lock is released by a script, on any server.
async fn scripts_are_known(locks: &Redis) {
    let mut first = held(locks).await;
    first.ticket = None;
    release(locks, &first).await;
}

#[tokio::test]
async fn a_dead_process_behind_the_next_one_leaves_the_queue() {
    let server = Server::start();
    let (locks, next, dead, last) = (
        server.client().await,
        server.client().await,
        server.client().await,
        server.client().await,
    );
    let mut held = claim("n", LONG);
    win(&locks, &mut held).await;
    for client in [&next, &dead, &last] {
        queued_claim(client, LONG).await;
    }
    let channels = || server.run::<Vec<String>>("PUBSUB CHANNELS").len();
    assert_eq!(channels(), 4);
    drop(dead);
    eventually(|| channels() == 3).await;
    // The grant notifies the last one: the first two processes of the queue check.
    release(&locks, &held).await;
    assert_eq!(server.waiting("n"), 1);
}

#[tokio::test]
async fn a_release_hands_the_lock_to_the_next_waiter() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    assert_eq!(locks.capabilities().order, Order::Fifo);
    assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff);
    scripts_are_known(&locks).await;
    let first = held(&elsewhere).await;
    let mut waiter = queued_claim(&locks, LONG).await;
    assert_eq!(locks.inspect(&name("n")).await.unwrap().waiting, Some(1));
    let asked = server.calls("evalsha");
    release(&elsewhere, &first).await;
    assert_held_by(&server, &waiter);
    let grant = sent(&locks, &waiter).await;
    assert_eq!(lease(&grant), CLAIM_LEASE);
    assert_eq!(server.calls("evalsha"), asked + 1, "the release is all that was asked");
    // Confirmed by the first renewal, and only then held for as long as it was asked for.
    assert!(server.pttl("n") <= 3000);
    waiter.ticket.clone_from(&grant.ticket);
    let Ok(Renewal::Held(renewed)) = renew(&locks, &waiter).await else { panic!("it is held") };
    assert_eq!(renewed.token, grant.token);
    assert!(server.pttl("n") > 290_000);
    release(&locks, &waiter).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn every_end_of_a_hold_serves_the_next_waiter() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    for how in ["release", "uncertain", "break", "renewal", "try", "attempt"] {
        let first = held(&elsewhere).await;
        let (second, third) = (queued_claim(&locks, LONG).await, queued_claim(&locks, LONG).await);
        match how {
            "break" => assert!(elsewhere.break_lock(&first.name, &first.owner).await.unwrap()),
            "release" => release(&elsewhere, &first).await,
            "uncertain" => {
                elsewhere.release(&first, ReleaseMode::after_unknown_outcome()).await.unwrap();
            }
            _ => {
                let _: u64 = server.run("DEL n");
                match how {
                    "renewal" => {
                        let renewed = renew(&elsewhere, &first).await;
                        assert!(matches!(renewed, Ok(Renewal::NotHeld)));
                    }
                    // A client that finds the lock free while others wait does not acquire it.
                    "try" => drop(contended(elsewhere.try_acquire(&claim("n", LONG)).await)),
                    _ => {
                        let late = queued_claim(&elsewhere, LONG).await;
                        elsewhere.release(&late, ReleaseMode::now()).await.unwrap();
                    }
                }
            }
        }
        assert_held_by(&server, &second);
        sent(&locks, &second).await;
        release(&locks, &second).await;
        assert_held_by(&server, &third);
        sent(&locks, &third).await;
        release(&locks, &third).await;
        let left: Vec<_> =
            server.keys().into_iter().filter(|key| !key.contains("%gone:")).collect();
        assert_eq!(left, ["{n}%token"], "{how}");
    }
}

#[tokio::test]
async fn the_head_of_the_queue_may_take_a_free_lock() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    held(&elsewhere).await;
    let first = queued_claim(&locks, 1000).await;
    let second = queued_claim(&elsewhere, LONG).await;
    let _: u64 = server.run("DEL n");
    // By then it does not know its place any more.
    sleep(Duration::from_millis(1001)).await;
    let grant = granted(locks.try_acquire(&first).await);
    assert_eq!(lease(&grant), Duration::from_secs(1), "nobody has to confirm it");
    assert_held_by(&server, &first);
    release(&locks, &first).await;
    sent(&elsewhere, &second).await;
    release(&elsewhere, &second).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_waiter_that_leaves_the_queue_leaves_no_state() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let waiters = [queued_claim(&locks, LONG).await, queued_claim(&locks, LONG).await];
    for waiter in &waiters {
        assert_eq!(locks.release(waiter, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    }
    assert_eq!(server.keys(), ["n", "{n}%token"]);
    // Sent the lock, and not there to take it any more.
    let (gone, next) = (queued_claim(&locks, LONG).await, queued_claim(&locks, LONG).await);
    release(&elsewhere, &first).await;
    assert_held_by(&server, &gone);
    release(&locks, &gone).await;
    sent(&locks, &next).await;
    release(&locks, &next).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_late_attempt_is_not_queued() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let late = waiter(LONG);
    locks.release(&late, ReleaseMode::after_unknown_outcome()).await.unwrap();
    assert!(locks.try_acquire(&late).await.is_err());
    assert_eq!(server.waiting("n"), 0);
    release(&elsewhere, &first).await;
}

#[tokio::test]
async fn a_vanished_waiter_is_skipped_in_the_same_request() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    scripts_are_known(&locks).await;
    let first = held(&elsewhere).await;
    for _ in 0..3 {
        let gone = server.client().await;
        queued_claim(&gone, LONG).await;
        queued_claim(&gone, LONG).await;
    }
    // The server has noticed that they closed their connections.
    eventually(|| server.run::<Vec<String>>("PUBSUB CHANNELS").len() == 2).await;
    let alive = queued_claim(&locks, LONG).await;
    assert_eq!(server.waiting("n"), 7);
    let asked = server.calls("evalsha");
    release(&elsewhere, &first).await;
    assert_held_by(&server, &alive);
    sent(&locks, &alive).await;
    assert_eq!(server.calls("evalsha"), asked + 1);
    release(&locks, &alive).await;
    assert_no_residue(&server);
    // No client waits at all.
    let first = held(&elsewhere).await;
    queued_claim(&server.client().await, LONG).await;
    eventually(|| server.run::<Vec<String>>("PUBSUB CHANNELS").len() == 2).await;
    release(&elsewhere, &first).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_vanished_crowd_is_removed_in_several_steps() {
    const GONE: u64 = 3000;

    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    // One process with live entries, whose channel has no listener any more.
    let mut crowd = redis::cmd("ZADD");
    crowd.arg("{n}%queue");
    for i in 1..=GONE {
        crowd.arg(i).arg(format!("{i:032x} %~to:gone 60000 - "));
    }
    crowd.exec(&mut server.operator()).unwrap();
    let _: u64 = server.run("ZADD {n}%procs 9000000000000000 %~to:gone");
    let alive = queued_claim(&locks, LONG).await;
    release(&elsewhere, &first).await;
    // The release has used up its budget, and makes a client poll for the rest.
    let mut left = server.waiting("n");
    assert!((GONE / 2..GONE).contains(&left), "{left}");
    let grant = loop {
        let wake = tokio::time::timeout(SOON, locks.wait(&alive)).await.expect("it is called");
        assert!(matches!(wake.unwrap(), Wake::Retry));
        if let Attempt::Acquired(grant) = locks.try_acquire(&alive).await.unwrap() {
            break grant;
        }
        let before = std::mem::replace(&mut left, server.waiting("n"));
        assert!(left < before && before - left < GONE / 2, "{before} and then {left}");
    };
    assert_eq!(lease(&grant), Duration::from_millis(LONG));
    release(&locks, &alive).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn an_entry_that_is_not_renewed_expires() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    queued_claim(&locks, 100).await;
    sleep(QUEUE_ENTRY_GRACE + Duration::from_millis(300)).await;
    release(&elsewhere, &first).await;
    assert_no_residue(&server);
}

/// Waiters of several processes, in the order in which they came, all through one network.
struct Fleet {
    server: Server,
    network: Proxy,
    holder: Redis,
    held: Claim,
    lockers: Vec<Locker>,
    waiting: Vec<JoinHandle<usize>>,
    served: tokio::sync::mpsc::UnboundedReceiver<usize>,
}

impl Fleet {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 12;

    async fn new(ttl: Duration) -> Self {
        let server = Server::start();
        let (network, url) = server.proxied();
        let holder = server.client().await;
        let held = held(&holder).await;
        let mut lockers = Vec::new();
        for _ in 0..Self::PROCESSES {
            lockers.push(Locker::new(Redis::connect(url.as_str()).await.unwrap()));
        }
        let (serves, served) = tokio::sync::mpsc::unbounded_channel();
        let mut waiting = Vec::new();
        for number in 0..Self::WAITERS {
            let lock = lockers[number % Self::PROCESSES].lock("n").unwrap().ttl(ttl);
            let serves = serves.clone();
            waiting.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("it is served");
                serves.send(number).unwrap();
                guard.release().await.expect("it was held");
                number
            }));
            eventually(|| server.waiting("n") == number as u64 + 1).await;
        }
        Self { server, network, holder, held, lockers, waiting, served }
    }

    /// Resets the connections of all waiters, and waits until the server has seen the end of each
    /// one that listened: until then, old subscriptions count as well as new ones.
    async fn reset_connections(&self) {
        let listeners = || {
            let clients: String = self.server.run("CLIENT LIST TYPE pubsub");
            let ids = clients.lines().filter_map(|client| client.split(' ').next());
            ids.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = listeners();
        assert_eq!(before.len(), Self::PROCESSES + 1);
        self.network.reset_connections().await;
        // The holder has another way to the server.
        let left = || listeners().iter().filter(|id| before.contains(id)).count();
        eventually(|| left() == 1).await;
    }

    /// Waits until all have their queue entries, and each process has asked again on the connection
    /// on which it listens: a process that has not is passed over.
    async fn is_back(&self) {
        let reachable = || {
            let channels: HashSet<String> = self.server.run("PUBSUB CHANNELS");
            let processes: Vec<(String, String)> =
                self.server.run("ZRANGE {n}%procs 0 -1 WITHSCORES");
            let listens = |(process, lasts): &&(String, String)| {
                channels.contains(&format!("{process}:{}", &lasts[lasts.len() - 3..]))
            };
            processes.iter().filter(listens).count()
        };
        eventually(|| reachable() == Self::PROCESSES).await;
        eventually(|| self.server.waiting("n") == Self::WAITERS as u64).await;
    }

    async fn serves_in_order(mut self) {
        release(&self.holder, &self.held).await;
        for waiting in self.waiting {
            tokio::time::timeout(SOON, waiting).await.expect("served").unwrap();
        }
        let mut order = Vec::new();
        while let Ok(number) = self.served.try_recv() {
            order.push(number);
        }
        assert_eq!(order, (0..Self::WAITERS).collect::<Vec<_>>());
        for locks in self.lockers {
            locks.close().await.unwrap();
        }
        assert_no_residue(&self.server);
    }
}

#[tokio::test]
async fn order_outlasts_connections() {
    let fleet = Fleet::new(Duration::from_secs(30)).await;
    fleet.reset_connections().await;
    fleet.is_back().await;
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn order_outlasts_the_queue() {
    let fleet = Fleet::new(Duration::from_secs(30)).await;
    let _: u64 = fleet.server.run("DEL {n}%queue {n}%procs");
    fleet.reset_connections().await;
    fleet.is_back().await;
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn order_outlasts_an_operator_who_ends_listeners() {
    let fleet = Fleet::new(Duration::from_secs(30)).await;
    let ended: usize = fleet.server.run("CLIENT KILL TYPE pubsub");
    assert_eq!(ended, Fleet::PROCESSES + 1);
    // The holder comes back when it needs its connection, the others by themselves.
    eventually(|| fleet.server.run::<Vec<String>>("PUBSUB CHANNELS").len() >= Fleet::PROCESSES)
        .await;
    fleet.holder.inspect(&name("another")).await.unwrap();
    fleet.is_back().await;
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn a_lost_queue_is_noticed_at_the_next_poll() {
    // One of each process looks, is told that it is new, and the others look as well.
    let fleet = Fleet::new(Duration::from_secs(1)).await;
    let _: u64 = fleet.server.run("DEL {n}%queue {n}%procs");
    fleet.is_back().await;
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn a_queue_lost_without_its_processes_is_noticed_too() {
    // As when a server throws away keys: the processes are still known, and their waiters are not.
    let fleet = Fleet::new(Duration::from_secs(1)).await;
    let _: u64 = fleet.server.run("DEL {n}%queue");
    fleet.is_back().await;
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn a_queue_lost_with_the_lock_is_still_served() {
    let fleet = Fleet::new(Duration::from_secs(1)).await;
    let _: String = fleet.server.run("FLUSHALL");
    // The first client that polls finds a free lock: here, order is lost.
    for waiting in fleet.waiting {
        tokio::time::timeout(SOON, waiting).await.expect("served").unwrap();
    }
}

#[tokio::test]
async fn waiting_costs_one_request_of_each_process_in_a_lease() {
    let ttl = Duration::from_secs(2);
    let fleet = Fleet::new(ttl).await;
    sleep(ttl).await;
    let (before, began) = (fleet.server.calls("evalsha"), Moment::now());
    sleep(ttl * 3).await;
    let asked = fleet.server.calls("evalsha") - before;
    let leases = Moment::now().saturating_since(began).as_millis() / ttl.as_millis() + 1;
    let bound = u64::try_from(leases).unwrap() * Fleet::PROCESSES as u64;
    assert!((1..=bound).contains(&asked), "{asked} requests in {leases} leases");
    fleet.serves_in_order().await;
}

#[tokio::test]
async fn a_grant_message_that_was_lost_is_found() {
    let server = Server::start();
    let (network, url) = server.proxied();
    let (locks, elsewhere) = (Redis::connect(url).await.unwrap(), server.client().await);
    let first = held(&elsewhere).await;
    let waiter = queued_claim(&locks, LONG).await;
    let waiting = tokio::spawn({
        let (locks, waiter) = (locks.clone(), waiter.clone());
        async move { locks.wait(&waiter).await.unwrap() }
    });
    network.set(Fault::BlackHole);
    release(&elsewhere, &first).await;
    assert_held_by(&server, &waiter);
    network.reset_connections().await;
    network.heal();
    let woken = tokio::time::timeout(SOON, waiting).await.expect("it is woken").unwrap();
    assert!(matches!(woken, Wake::Retry), "{woken:?}");
    let token = server.get("{n}%token");
    let grant = granted(locks.try_acquire(&waiter).await);
    assert_eq!(grant.token.map(|token| token.backend_number().to_string()), token);
    assert_eq!(lease(&grant), Duration::from_millis(LONG));
    release(&locks, &waiter).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_grant_is_as_old_as_it_is() {
    let server = Server::start();
    let (network, url) = server.proxied();
    let (locks, elsewhere) = (Redis::connect(url).await.unwrap(), server.client().await);
    for (late, is_in_time) in [(0, true), (1500, true), (3200, false)] {
        let first = held(&elsewhere).await;
        let waiter = queued_claim(&locks, LONG).await;
        network.set(Fault::Lose(Direction::ToClient));
        release(&elsewhere, &first).await;
        let given = Moment::now();
        sleep(Duration::from_millis(late)).await;
        network.heal();
        if is_in_time {
            let grant = sent(&locks, &waiter).await;
            assert!(grant.since <= given, "{:?} too late", grant.since.saturating_since(given));
            let ours = (grant.since + lease(&grant)).remaining();
            let on_the_server = Duration::from_millis(server.pttl("n").unsigned_abs());
            assert!(
                ours <= on_the_server + Duration::from_millis(50),
                "{ours:?} {on_the_server:?}"
            );
            let age = Moment::now().saturating_since(grant.since);
            assert!(age < Duration::from_millis(late) + Duration::from_secs(1), "{age:?}");
        } else {
            // The grant has lapsed; the waiter asks, and the lock is free.
            let woken =
                tokio::time::timeout(SOON, locks.wait(&waiter)).await.expect("it is called");
            assert!(matches!(woken.unwrap(), Wake::Retry));
            granted(locks.try_acquire(&waiter).await);
        }
        release(&locks, &waiter).await;
    }
}

/// As when it comes back to a snapshot that is a moment old.
#[tokio::test]
async fn a_claim_served_before_a_snapshot_delays_no_waiter() {
    let server = Server::start();
    let (locks, other, elsewhere) =
        (server.client().await, server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let mut ours = queued_claim(&locks, LONG).await;
    let next = queued_claim(&other, LONG).await;
    let [entry, arrival]: [String; 2] =
        server.command(&["ZRANGE", "{n}%queue", "0", "0", "WITHSCORES"]);
    release(&elsewhere, &first).await;
    ours.ticket = sent(&locks, &ours).await.ticket;
    let _: u64 = server.command(&["DEL", "n"]);
    let _: u64 = server.command(&["ZADD", "{n}%queue", &arrival, &entry]);
    assert!(matches!(renew(&locks, &ours).await.unwrap(), Renewal::NotHeld));
    sent(&other, &next).await;
    release(&other, &next).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_grant_of_unknown_age_is_confirmed() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    // Its last word from the server's clock is older than a lease when the lock is sent.
    let waiter = queued_claim(&locks, 50).await;
    sleep(Duration::from_millis(200)).await;
    release(&elsewhere, &first).await;
    let woken = tokio::time::timeout(SOON, locks.wait(&waiter)).await.expect("it is called");
    assert!(matches!(woken.unwrap(), Wake::Retry));
    granted(locks.try_acquire(&waiter).await);
}

/// As when an operator renames a queue, or restores it under another name.
#[tokio::test]
async fn a_grant_of_another_lock_is_given_back() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let mut other = claim("m", LONG);
    win(&elsewhere, &mut other).await;
    // A script releases it: a lock without a waiter's mark is otherwise deleted by a command.
    other.ticket = None;
    let first = held(&elsewhere).await;
    let waiter = queued_claim(&locks, LONG).await;
    for part in ["queue", "procs"] {
        let (from, to) = (format!("{{n}}%{part}"), format!("{{m}}%{part}"));
        let _: String = server.command(&["RENAME", &from, &to]);
    }
    let released = Moment::now();
    release(&elsewhere, &other).await;
    let woken = tokio::time::timeout(SOON, locks.wait(&waiter)).await.expect("it is called");
    assert!(matches!(woken.unwrap(), Wake::Retry), "it waits for n, and was sent m");
    eventually(|| server.get("m").is_none()).await;
    let took = Moment::now().saturating_since(released);
    assert!(took < CLAIM_LEASE, "{took:?}: nobody has given it back");
    // It stands where it stood.
    contended(locks.try_acquire(&waiter).await);
    assert_held_by(&server, &first);
    release(&elsewhere, &first).await;
    sent(&locks, &waiter).await;
}

/// A claim of a quorum is attempted again after its release, under the same owner id.
#[tokio::test]
async fn a_late_grant_takes_no_later_one_of_its_owner() {
    let server = Server::start();
    let locks = server.client().await;
    let mut waiter = given_up(&server, &locks).await;
    win(&locks, &mut waiter).await;
    send_grants(&server, &[(&waiter, 1)]).await;
    assert_held_by(&server, &waiter);
    release(&locks, &waiter).await;
}

#[tokio::test]
async fn a_grant_that_is_given_back_answers_no_attempt() {
    let server = Server::start();
    let locks = server.client().await;
    let waiter = given_up(&server, &locks).await;
    send_grants(&server, &[(&waiter, 7)]).await;
    // As if the attempt had overtaken that request.
    let value = format!("{} 7", waiter.owner.expose());
    let _: String = server.command(&["SET", "n", &value, "PX", "60000"]);
    let fault = locks.try_acquire(&waiter).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown, "{fault}");
    // It does not prolong it, either.
    assert!(server.get("n").is_none());
    granted(locks.try_acquire(&waiter).await);
}

/// The message may come after the reply to an attempt, by an abandoned connection.
#[tokio::test]
async fn a_grant_that_a_first_attempt_has_found_is_not_given_back() {
    let server = Server::start();
    let locks = server.client().await;
    let stranger = given_up(&server, &locks).await;
    let found = waiter(LONG);
    let value = format!("{} 7", found.owner.expose());
    let _: String = server.command(&["SET", "n", &value, "PX", "60000"]);
    granted(locks.try_acquire(&found).await);
    // Grants are given back in order.
    send_grants(&server, &[(&found, 7), (&stranger, 1)]).await;
    assert_held_by(&server, &found);
}

/// Returns a claim that has queued and was released.
async fn given_up(server: &Server, locks: &Redis) -> Claim {
    let mut holder = claim("n", LONG);
    win(locks, &mut holder).await;
    let waiter = queued_claim(locks, LONG).await;
    locks.release(&waiter, ReleaseMode::now()).await.unwrap();
    release(locks, &holder).await;
    assert_no_residue(server);
    waiter
}

/// Sends the only client messages that the lock was granted to these claims with these tokens, and
/// waits until it has given one back: this removes its old queue entries.
async fn send_grants(server: &Server, grants: &[(&Claim, u64)]) {
    let channels = server.run::<Vec<String>>("PUBSUB CHANNELS");
    let [channel] = &channels[..] else { panic!("one client has one channel: {channels:?}") };
    let (process, _) = channel.rsplit_once(':').expect("digits of the connection come last");
    let entry = format!("{} {process} 3000 - ", OwnerId::mint().expose());
    let _: u64 = server.command(&["ZADD", "{n}%queue", "1", &entry]);
    for (claim, token) in grants {
        let message = format!("grant {} {token} 3000 1 1 n", claim.owner.expose());
        let _: u64 = server.command(&["PUBLISH", channel, &message]);
    }
    eventually(|| !server.run::<bool>("EXISTS {n}%queue")).await;
}

#[tokio::test]
async fn foreign_messages_on_the_channel_are_no_grant() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let waiter = queued_claim(&locks, LONG).await;
    let owner = waiter.owner.expose();
    let stranger = claim("n", LONG).owner.expose();
    for channel in server.run::<Vec<String>>("PUBSUB CHANNELS") {
        for said in [
            "",
            "grant",
            &format!("grant {stranger} 1 3000 1 1 n"),
            &format!("grant {owner} x 3000 1 1 n"),
            // An owner id, from a client that may read the keys, and a time that is long over.
            &format!("grant {owner} 1 3000 1 1 n"),
            "next x 1 1 n",
            "next 1 1 1 m",
            // As large as numbers get.
            &format!("grant {owner} {0} {0} {0} {0} n", u64::MAX),
            &format!("next {} {} 1 n", i64::MAX, u64::MAX),
        ] {
            let _: u64 = server.command(&["PUBLISH", &channel, said]);
        }
    }
    let woken = tokio::time::timeout(SOON, locks.wait(&waiter)).await.expect("it is called");
    assert!(matches!(woken.unwrap(), Wake::Retry));
    contended(locks.try_acquire(&waiter).await);
    release(&elsewhere, &first).await;
    // A foreign message that comes late may wake it once more before the grant arrives.
    let sent = async { while let Wake::Retry = locks.wait(&waiter).await.unwrap() {} };
    tokio::time::timeout(SOON, sent).await.expect("it is sent");
    assert_held_by(&server, &waiter);
}

#[tokio::test]
async fn the_second_process_is_notified_when_to_poll() {
    let server = Server::start();
    let holder = server.client().await;
    let (second, third) = (server.client().await, server.client().await);
    let first = held(&holder).await;
    let mute = queued_claim(&second, LONG).await;
    let next = queued_claim(&third, LONG).await;
    // The first in line is given the lock, and dies without a word: for the one behind it, the lock
    // is held for minutes, as far as it was told.
    let asked = Moment::now();
    let waiting = tokio::spawn({
        let (third, next) = (third.clone(), next.clone());
        async move { third.wait(&next).await.unwrap() }
    });
    release(&holder, &first).await;
    assert_held_by(&server, &mute);
    let woken = tokio::time::timeout(SOON, waiting).await.expect("it looks").unwrap();
    assert!(matches!(woken, Wake::Retry));
    let took = Moment::now().saturating_since(asked);
    assert!(took >= CLAIM_LEASE, "{took:?}");
    granted(third.try_acquire(&next).await);
    release(&third, &next).await;
}

#[tokio::test]
async fn a_silent_process_is_skipped_with_all_its_entries() {
    let server = Server::start();
    let (network, url) = server.proxied();
    let (mute, locks, holder) =
        (Redis::connect(url).await.unwrap(), server.client().await, server.client().await);
    let first = held(&holder).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(queued_claim(&mute, LONG).await);
    }
    let lock = Locker::new(locks).lock("n").unwrap().ttl(Duration::from_millis(LONG));
    let alive = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.waiting("n") == 21).await;
    network.set(Fault::BlackHole);
    let released = Moment::now();
    release(&holder, &first).await;
    let guard = tokio::time::timeout(CLAIM_LEASE + SOON, alive).await.expect("served").unwrap();
    let guard = guard.unwrap();
    let took = Moment::now().saturating_since(released);
    assert!(took >= CLAIM_LEASE, "{took:?}: the lock was somebody else's");
    assert!(took < CLAIM_LEASE * 2, "{took:?}: one of them cost a claim lease, the others nothing");
    // They are still there: when they are heard of, they have their old places again, in their
    // order.
    network.heal();
    mute.inspect(&name("another")).await.unwrap();
    let last = queued_claim(&holder, LONG).await;
    for waiter in &silent {
        // The message that came too late is the first one's, and makes it look; the others are told
        // by that.
        let woken = tokio::time::timeout(SOON, mute.wait(waiter)).await.expect("it is called");
        assert!(matches!(woken.unwrap(), Wake::Retry));
        contended(mute.try_acquire(waiter).await);
    }
    guard.release().await.unwrap();
    for waiter in &silent {
        sent(&mute, waiter).await;
        release(&mute, waiter).await;
    }
    sent(&holder, &last).await;
    release(&holder, &last).await;
    assert_no_residue(&server);
}

/// As when a server was stopped for longer than a claim lease, and another library was the first to
/// ask it.
#[tokio::test]
async fn a_process_that_asks_again_is_not_skipped() {
    let mut passed_over_after = Vec::new();
    for word in ["attempt", "renewal", "release", "departure"] {
        let server = Server::start();
        let (locks, other, elsewhere) =
            (server.client().await, server.client().await, server.client().await);
        let first = held(&elsewhere).await;
        let mut late = queued_claim(&locks, LONG).await;
        let (next, leaver) = (queued_claim(&locks, LONG).await, queued_claim(&locks, LONG).await);
        queued_claim(&other, LONG).await;
        release(&elsewhere, &first).await;
        late.ticket = sent(&locks, &late).await.ticket;
        let _: u64 = server.command(&["DEL", "n"]);
        let _: String = server.command(&["SET", "n", "theirs"]);
        match word {
            "attempt" => drop(queued_claim(&locks, LONG).await),
            "renewal" => {
                let renewed = renew(&locks, &late).await;
                assert!(matches!(renewed, Ok(Renewal::NotHeld)));
            }
            _ => {
                let gone = if word == "release" { &late } else { &leaver };
                let released = locks.release(gone, ReleaseMode::now()).await.unwrap();
                assert_eq!(released, Release::NotHeld);
            }
        }
        let _: u64 = server.command(&["DEL", "n"]);
        contended(elsewhere.try_acquire(&claim("n", LONG)).await);
        if holder(&server) != Some(next.owner.expose()) {
            passed_over_after.push(word);
        }
    }
    assert!(passed_over_after.is_empty(), "{passed_over_after:?}");
}

#[tokio::test]
async fn at_the_memory_limit_the_queue_moves_on() {
    let server = Server::with_options(RedisOptions::new());
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let waiter = queued_claim(&locks, 1000).await;
    let _: String = server.run("CONFIG SET maxmemory 1");
    // Its place is kept as well, when it looks again.
    sleep(Duration::from_millis(1100)).await;
    contended(locks.try_acquire(&waiter).await);
    release(&elsewhere, &first).await;
    let grant = sent(&locks, &waiter).await;
    assert!(grant.token.is_some());
    release(&locks, &waiter).await;
    let newcomer = elsewhere.try_acquire(&claim("n", LONG)).await.unwrap_err();
    assert_eq!(newcomer.kind(), FaultKind::Unavailable);
    let _: String = server.run("CONFIG SET maxmemory 0");
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_refused_attempt_is_not_queued() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    held(&elsewhere).await;
    queued_claim(&locks, LONG).await;
    let _: String = server.command(&["SET", "{n}%token", "damaged"]);
    let _: u64 = server.command(&["DEL", "n"]);
    let fault = elsewhere.try_acquire(&waiter(LONG)).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Invalid));
    assert_eq!(server.waiting("n"), 1, "it was told that nothing was done, and does not come back");
}

#[tokio::test]
async fn a_right_that_is_taken_away_leaves_a_free_lock() {
    for right in ["-publish", "-set", "-zrem", "-zrange", "-zadd", "-time"] {
        let server = Server::start();
        let rule =
            format!("ACL SETUSER locks reset on >secret {}", crate::least_rights::LEAST_RIGHTS[0]);
        let rule = rule.split_whitespace().collect::<Vec<_>>().join(" ");
        let _: String = server.run(&rule);
        let url = format!("redis://locks:secret@127.0.0.1:{}?prefix=app:", server.port());
        let (holder, locks) =
            (Redis::connect(url.as_str()).await.unwrap(), Redis::connect(url).await.unwrap());
        let first = held(&holder).await;
        let waiter = queued_claim(&locks, 2000).await;
        let _: String = server.run(&format!("ACL SETUSER locks {right}"));
        assert_eq!(
            holder.release(&first, ReleaseMode::now()).await.unwrap(),
            Release::Released,
            "{right}"
        );
        let _: String = server.run(&rule);
        let served = async {
            loop {
                match locks.try_acquire(&waiter).await {
                    Ok(Attempt::Acquired(_)) => return,
                    _ => drop(tokio::time::timeout(SOON / 100, locks.wait(&waiter)).await),
                }
            }
        };
        tokio::time::timeout(SOON, served).await.unwrap_or_else(|_| panic!("not served: {right}"));
        release(&locks, &waiter).await;
        // A claim that could not be taken out of the queue is granted the lock once more, for a
        // claim lease.
        eventually(|| server.keys() == ["{app:n}%token"]).await;
    }
}

#[tokio::test]
async fn waiters_in_any_order_are_woken_after_the_queue() {
    let server = Server::start();
    let (locks, racing) = (server.client().await, server.client_in_any_order().await);
    assert_eq!(racing.capabilities().order, Order::PerProcess);
    let first = held(&racing).await;
    let racer = waiter(LONG);
    contended(racing.try_acquire(&racer).await);
    let waits = || {
        let (racing, racer) = (racing.clone(), racer.clone());
        tokio::spawn(async move { racing.wait(&racer).await.unwrap() })
    };
    let asked = server.calls("client|caching");
    let waiting = waits();
    eventually(|| server.calls("client|caching") > asked).await;
    let second = queued_claim(&locks, LONG).await;
    release(&racing, &first).await;
    sent(&locks, &second).await;
    tokio::time::timeout(SOON, waiting).await.expect("it is woken").unwrap();
    contended(racing.try_acquire(&racer).await);
    let waiting = waits();
    eventually(|| server.calls("client|caching") > asked + 1).await;
    release(&locks, &second).await;
    tokio::time::timeout(SOON, waiting).await.expect("it is woken").unwrap();
    granted(racing.try_acquire(&racer).await);
    release(&racing, &racer).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn racing_claims_neither_barge_nor_block_the_queue() {
    const HAND_OFFS: usize = 20;

    let server = Server::start();
    let (locks, racing) = (server.client().await, server.client_in_any_order().await);
    let mut racer = held(&racing).await;
    let mut next = queued_claim(&locks, LONG).await;
    for _ in 0..HAND_OFFS {
        // A racing client that releases does not get it again: the queue is served in the same
        // step.
        release(&racing, &racer).await;
        racer = waiter(LONG);
        contended(racing.try_acquire(&racer).await);
        sent(&locks, &next).await;
        // Nor while those in line pass it on to each other.
        let after = queued_claim(&locks, LONG).await;
        release(&locks, &next).await;
        contended(racing.try_acquire(&racer).await);
        sent(&locks, &after).await;
        // It is served as soon as the queue is empty.
        release(&locks, &after).await;
        granted(racing.try_acquire(&racer).await);
        next = queued_claim(&locks, LONG).await;
    }
    release(&racing, &racer).await;
    sent(&locks, &next).await;
    release(&locks, &next).await;
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_minimum_hold_is_waited_for() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let lock = Locker::new(locks).lock("n").unwrap().ttl(Duration::from_millis(LONG));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.waiting("n") == 1).await;
    let keep = Duration::from_millis(700);
    assert_eq!(
        elsewhere.release(&first, ReleaseMode::keep_for(keep)).await.unwrap(),
        Release::Released
    );
    let released = Moment::now();
    let guard = tokio::time::timeout(SOON, waiting).await.expect("served").unwrap().unwrap();
    let took = Moment::now().saturating_since(released);
    assert!(took >= keep - Duration::from_millis(100), "{took:?}");
    guard.release().await.unwrap();
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_minimum_hold_confirms_a_sent_grant() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let (mut short, next) = (queued_claim(&locks, LONG).await, queued_claim(&locks, LONG).await);
    queued_claim(&elsewhere, LONG).await;
    release(&elsewhere, &first).await;
    short.ticket.clone_from(&sent(&locks, &short).await.ticket);
    // Before its first renewal.
    let keep = Duration::from_millis(300);
    assert_eq!(
        locks.release(&short, ReleaseMode::keep_for(keep)).await.unwrap(),
        Release::Released
    );
    sleep(keep + Duration::from_millis(50)).await;
    contended(elsewhere.try_acquire(&claim("n", LONG)).await);
    assert_held_by(&server, &next);
}

#[tokio::test]
async fn a_leaving_head_serves_a_free_lock_to_the_next() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    held(&elsewhere).await;
    let (first, second) = (queued_claim(&locks, LONG).await, queued_claim(&elsewhere, LONG).await);
    // No client has polled yet.
    let _: u64 = server.run("DEL n");
    assert_eq!(locks.release(&first, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_held_by(&server, &second);
    sent(&elsewhere, &second).await;
}

#[tokio::test]
async fn a_new_head_is_notified_of_a_foreign_release() {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let _: String = server.run("SET n somebody PX 300000");
    let waits = || {
        let lock = locks.lock("n").unwrap().ttl(Duration::from_millis(LONG));
        tokio::spawn(async move { lock.acquire().await })
    };
    let first = waits();
    eventually(|| server.waiting("n") == 1).await;
    let second = waits();
    eventually(|| server.waiting("n") == 2).await;
    let watched = server.calls("client|caching");
    first.abort();
    eventually(|| server.waiting("n") == 1).await;
    eventually(|| server.calls("client|caching") > watched).await;
    let _: u64 = server.run("DEL n");
    let guard = tokio::time::timeout(SOON, second).await.expect("it is woken").unwrap().unwrap();
    guard.release().await.unwrap();
    assert_no_residue(&server);
}

#[tokio::test]
async fn a_holder_that_dies_with_the_head_is_replaced_in_time() {
    let server = Server::start();
    let (network, url) = server.proxied();
    let (dying, locks) = (Redis::connect(url).await.unwrap(), server.client().await);
    let lease = Duration::from_secs(2);
    let dying = Locker::new(dying);
    let guard = dying.lock("n").unwrap().ttl(lease).acquire().await.unwrap();
    let patient = Duration::from_millis(LONG);
    let waits = |locks: Locker| {
        let lock = locks.lock("n").unwrap().ttl(patient);
        tokio::spawn(async move { lock.acquire().await })
    };
    let _first = waits(dying.clone());
    eventually(|| server.waiting("n") == 1).await;
    let second = waits(Locker::new(locks));
    eventually(|| server.waiting("n") == 2).await;
    // The lease that it was told of has ended, and was renewed.
    sleep(lease * 2).await;
    assert!(guard.is_held());
    network.set(Fault::BlackHole);
    network.reset_connections().await;
    // Well within a lease of its own.
    let guard = tokio::time::timeout(lease + SOON, second).await.expect("it looks").unwrap();
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_claim_with_too_high_a_minimum_token_blocks_no_other() {
    let server = Server::start();
    let (locks, elsewhere) = (server.client().await, server.client().await);
    let first = held(&elsewhere).await;
    let mut greedy = waiter(LONG);
    greedy.min_token = FencingToken::from_backend((1 << 53) - 1);
    let refused = locks.try_acquire(&greedy).await.expect_err("there is no such number");
    assert_eq!(refused.kind(), FaultKind::Invalid);
    let next = queued_claim(&locks, LONG).await;
    release(&elsewhere, &first).await;
    assert_held_by(&server, &next);
}

#[tokio::test]
async fn two_prefixes_may_lead_to_one_lock() {
    let server = Server::start();
    let config = Config::new(&server.url()).unwrap();
    let short = Redis::connect(config.clone()).await.unwrap();
    let long = Redis::connect(config.prefix("app:").unwrap()).await.unwrap();
    let mut first = claim("app:n", LONG);
    win(&short, &mut first).await;
    let waiter = queued_claim(&long, LONG).await;
    release(&short, &first).await;
    sent(&long, &waiter).await;
}

#[tokio::test]
async fn a_server_without_messages_serves_in_any_order_and_says_so() {
    let options = RedisOptions::new().setting("rename-command", "HELLO").and("hidden");
    let server = Server::with_options(options);
    let capabilities = server.client().await.capabilities();
    assert_eq!((capabilities.order, capabilities.wakeup), (Order::PerProcess, Wakeup::Poll));
    let error = Redis::connect(format!("{}?order=fifo", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
