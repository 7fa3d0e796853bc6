//! Lost connections, sessions and servers.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use lock_conformance::proxy::{Direction, Fault, Proxy};
use lock_core::backend::{Attempt, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, Locker, Loss};
use lock_zookeeper::ZooKeeper;
use test_servers::{KeepData, ZooKeeper as Server};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::{
    BOUND, TIMEOUT, claim, client, is_contended, name, operator, queue_of, server, soon, until, win,
};

struct Far {
    server: Server,
    network: Proxy,
    client: ZooKeeper,
    operator: Client,
}

/// A client behind a proxy.
async fn far_away() -> Far {
    let server = server();
    let network = Proxy::start(server.addr()).unwrap();
    let (client, operator) = (client(network.addr()).await, operator(server.addr()).await);
    // The node of the lock is there, so that the first request which names it is the one that is
    // meant.
    let first = claim("n", true);
    win(&client, &first).await;
    client.release(&first, ReleaseMode::now()).await.unwrap();
    Far { server, network, client, operator }
}

#[tokio::test]
async fn a_node_whose_creation_went_unanswered_is_found_again() {
    let Far { server: _server, network, client, operator } = far_away().await;
    for _ in 0..5 {
        let claim = claim("n", true);
        let hit = network.cut_after("_c_");
        let attempt = soon(win(&client, &claim)).await;
        soon(hit.into_future()).await.unwrap();
        let node = queue_of(&operator, "n").await;
        assert_eq!(node.len(), 1, "it was created once");
        assert_eq!(win(&client, &claim).await.token, attempt.token);
        assert_eq!(queue_of(&operator, "n").await, node, "and is the one that was found");
        assert_eq!(client.release(&claim, ReleaseMode::now()).await.unwrap(), Release::Released);
        assert!(queue_of(&operator, "n").await.is_empty());
    }
}

#[tokio::test]
async fn an_acquisition_whose_answer_is_lost_finds_its_node_again() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let locks = Locker::new(client);
    for _ in 0..3 {
        let hit = network.cut_after("_c_");
        let guard = soon(locks.lock("n").unwrap().acquire()).await.unwrap();
        soon(hit.into_future()).await.unwrap();
        assert_eq!(queue_of(&operator, "n").await.len(), 1, "and makes no other one");
        guard.verify().await.unwrap();
        guard.release().await.unwrap();
        assert!(queue_of(&operator, "n").await.is_empty());
    }
}

/// The outcome is unknown then, and nothing of it outlasts the outage.
#[tokio::test]
async fn an_acquisition_that_is_given_up_in_an_outage_is_cleared_away_after_it() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let locks = Locker::builder(client).timeout(Duration::from_millis(500)).build();
    let hit = network.cut_after("_c_");
    network.set(Fault::Refuse);
    let error = soon(locks.lock("n").unwrap().acquire()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    soon(hit.into_future()).await.unwrap();
    assert_eq!(queue_of(&operator, "n").await.len(), 1, "it was created");
    network.heal();
    let healed = Moment::now();
    until("it is cleared away", async || queue_of(&operator, "n").await.is_empty()).await;
    let took = Moment::now().saturating_since(healed);
    println!("cleared away {took:?} after the outage");
    assert!(took < TIMEOUT / 2, "by the client, and not by the end of its session: {took:?}");
}

/// The server counts from the last sign of life, and the holder from a proof before that.
#[tokio::test]
async fn a_release_that_cannot_get_through_says_when_the_lock_is_free() {
    is_free_within_the_bound(async |_| {}).await;
}

/// Each request for another connection prolongs the session.
#[tokio::test]
async fn a_client_that_hears_no_answer_does_not_keep_its_released_lock() {
    is_free_within_the_bound(async |network| {
        // The release is lost, and what the client sends from now on arrives.
        network.reset_connections().await;
        network.set(Fault::Lose(Direction::ToClient));
    })
    .await;
}

/// Checks the bound in the error of a release that is lost, after which `then` happens.
async fn is_free_within_the_bound(then: impl AsyncFnOnce(&Proxy)) {
    const SESSION: Duration = Duration::from_secs(4);
    let server = server();
    let network = Proxy::start(server.addr()).unwrap();
    let url = format!("zookeeper://{}?session_timeout=4s", network.addr());
    let far = ZooKeeper::connect(&*url).await.unwrap();
    let locks = Locker::builder(far).timeout(Duration::from_secs(1)).build();
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let next = Locker::new(client(server.addr()).await);
    let waiter = tokio::spawn(async move { next.lock("n").unwrap().acquire().await });
    until("it is renewed", async || guard.valid_for().unwrap() < SESSION / 2).await;
    network.set(Fault::BlackHole);
    let error = soon(guard.release()).await.unwrap_err();
    let (failed, bound) = (Moment::now(), error.free_within().expect("it lapses"));
    then(&network).await;
    drop(soon(waiter).await.unwrap().unwrap());
    let took = Moment::now().saturating_since(failed);
    println!("free {took:?} after the error, which said {bound:?}");
    assert!(took <= bound, "{took:?} and not within {bound:?}");
}

#[tokio::test]
async fn a_creation_that_lands_late_is_cleared_away() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let claim = claim("n", true);
    let mut held = network.hold("_c_");
    let attempt = tokio::time::timeout(Duration::from_millis(300), client.try_acquire(&claim));
    assert!(attempt.await.is_err());
    soon(held.caught()).await.unwrap();
    // Its connection is given up, and another one takes over; then it arrives.
    let release = soon(client.release(&claim, ReleaseMode::after_unknown_outcome())).await;
    assert!(!matches!(release, Ok(Release::Released)));
    soon(held.deliver()).await.ok();
    until("it is cleared away", async || queue_of(&operator, "n").await.is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    assert!(queue_of(&operator, "n").await.is_empty());
    assert!(!is_contended(&client, &crate::support::claim("n", false)).await);
}

/// The watches on those before it tell: it does not read the queue again, which may be long.
#[tokio::test]
async fn a_waiter_asks_nothing_while_nothing_changes() {
    let Far { server, network, client, operator } = far_away().await;
    let (holder, waiter) = (claim("n", true), claim("n", true));
    win(&client, &holder).await;
    assert!(is_contended(&client, &waiter).await);
    let watches = || server.word("wchp").map_or(0, |watches| watches.matches("/n/").count());
    until("both nodes are watched", async || watches() == 2).await;
    let listed = network.count(b"\0\0\0\x08\0\0\0\x02/n");
    let named = network.count("/n/");
    for _ in 0..5 {
        assert!(is_contended(&client, &waiter).await);
    }
    assert_eq!((listed.seen(), named.seen()), (0, 0), "requests about the queue");
    assert_eq!(client.release(&holder, ReleaseMode::now()).await.unwrap(), Release::Released);
    soon(client.wait(&waiter)).await.unwrap();
    win(&client, &waiter).await;
    assert_eq!(client.release(&waiter, ReleaseMode::now()).await.unwrap(), Release::Released);
    assert!(queue_of(&operator, "n").await.is_empty());
}

/// Its node is there, and known: it is the answer to the question after it that is lost.
#[tokio::test]
async fn a_claim_makes_one_node_when_its_first_sight_of_the_queue_is_lost() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let (holder, waiter) = (claim("n", true), claim("n", true));
    win(&client, &holder).await;
    let hit = network.cut_after(b"\0\0\0\x08\0\0\0\x02/n");
    let attempt = soon(client.try_acquire(&waiter)).await;
    soon(hit.into_future()).await.unwrap();
    assert!(matches!(attempt, Ok(Attempt::Contended { .. })), "{attempt:?}");
    assert_eq!(queue_of(&operator, "n").await.len(), 2, "one node for each claim");
    assert_eq!(client.release(&holder, ReleaseMode::now()).await.unwrap(), Release::Released);
    soon(client.wait(&waiter)).await.unwrap();
    win(&client, &waiter).await;
    assert_eq!(client.release(&waiter, ReleaseMode::now()).await.unwrap(), Release::Released);
    until("nothing is left", async || queue_of(&operator, "n").await.is_empty()).await;
}

#[tokio::test]
async fn dropped_at_any_await_nothing_is_left() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    for holder in [None, Some(claim("n", false))] {
        if let Some(holder) = &holder {
            // The residue of the round before expires first.
            until("it is won", async || !is_contended(&client, holder).await).await;
        }
        let expected = usize::from(holder.is_some());
        for queue in [false, true] {
            for polls in 0..12 {
                let claim = claim("n", queue);
                poll_and_drop(client.try_acquire(&claim), polls).await;
                poll_and_drop(client.wait(&claim), polls % 3).await;
                poll_and_drop(client.renew(&[&claim]), polls % 4).await;
                poll_and_drop(
                    client.release(&claim, ReleaseMode::after_unknown_outcome()),
                    polls % 5,
                )
                .await;
                soon(client.release(&claim, ReleaseMode::after_unknown_outcome())).await.unwrap();
                until("nothing is left", async || queue_of(&operator, "n").await.len() == expected)
                    .await;
            }
        }
        // Without a release, the entry expires.
        let mut claim = claim("n", false);
        claim.ttl = Duration::from_millis(100);
        poll_and_drop(client.try_acquire(&claim), 2).await;
        until("nothing is left", async || queue_of(&operator, "n").await.len() == expected).await;
    }
}

/// Polls `work` up to `polls` times, as it is woken, and drops it.
async fn poll_and_drop<T>(work: impl Future<Output = T>, polls: usize) {
    let mut work = pin!(work);
    let mut left = polls;
    let polling = poll_fn(|cx| {
        if left == 0 || work.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    });
    let _ = tokio::time::timeout(Duration::from_millis(200), polling).await;
}

#[tokio::test]
async fn a_release_while_disconnected_is_made_up_for() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let locks = Locker::builder(client.clone()).timeout(Duration::from_millis(500)).build();
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    network.set(Fault::BlackHole);
    let error = soon(guard.release()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    network.reset_connections().await;
    network.heal();
    until("it is gone", async || queue_of(&operator, "n").await.is_empty()).await;
    soon(locks.lock("n").unwrap().acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_broken_connection_costs_no_lock() {
    let Far { server: _server, network, client, .. } = far_away().await;
    let locks = Locker::new(client);
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    // Time after time, for more than a session lasts.
    let end = Moment::now() + TIMEOUT * 3 / 2;
    while !end.has_passed() {
        network.reset_connections().await;
        sleep(TIMEOUT / 10).await;
        assert!(guard.is_held());
    }
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn cut_off_the_holder_gives_up_before_others_get_in_and_its_next_session_is_another() {
    let Far { server, network, client, operator } = far_away().await;
    let locks = Locker::new(client.clone());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let owner = *guard.owner();
    let others = Locker::new(crate::support::client(server.addr()).await);
    // A young session has a longer lease.
    sleep(TIMEOUT).await;
    assert!(guard.is_held());
    network.set(Fault::BlackHole);
    let cut = Moment::now();
    let next = tokio::spawn(async move {
        let guard = others.lock("n").unwrap().acquire().await.unwrap();
        (Moment::now(), guard)
    });
    assert_eq!(soon(guard.lost()).await, Loss::Expired);
    let lost = Moment::now();
    let (granted, next) = soon(next).await.unwrap();
    assert!(lost < granted, "the next one was in before the holder knew");
    let (gave_up, gap) = (lost.saturating_since(cut), granted.saturating_since(lost));
    println!("gave up {gave_up:?} after the cut; the next one got in {gap:?} later");
    assert!(gap >= TIMEOUT / 3, "there is room between the two: {gap:?}");
    network.heal();
    // The locks of the old session are lost.
    let mut old = claim("n", false);
    old.owner = owner;
    soon(async {
        while !is_contended(&client, &claim("n", false)).await {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let answer = client.renew(&[&old]).await.remove(0);
    assert!(matches!(answer, Ok(Renewal::NotHeld)), "{answer:?}");
    next.verify().await.unwrap();
    next.release().await.unwrap();
    soon(locks.lock("n").unwrap().acquire()).await.unwrap().release().await.unwrap();
    assert!(queue_of(&operator, "n").await.is_empty());
}

/// An answer that promises more bytes than ever come: every later one is a part of it.
async fn get_out_of_step(client: &ZooKeeper, network: &Proxy) {
    let hit = network.forge("garbled", [0, 15, 0, 0]);
    let probe = claim("garbled", false);
    let attempt = tokio::time::timeout(Duration::from_millis(300), client.try_acquire(&probe));
    assert!(!matches!(attempt.await, Ok(Ok(_))));
    soon(hit.into_future()).await.unwrap();
}

#[tokio::test]
async fn a_session_that_is_given_up_is_closed_while_there_is_no_other_one() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let holder = claim("n", false);
    win(&client, &holder).await;
    // Young sessions have their deadline later.
    sleep(TIMEOUT).await;
    client.renew(&[&holder]).await.remove(0).unwrap();
    network.set(Fault::Refuse);
    get_out_of_step(&client, &network).await;
    assert_eq!(queue_of(&operator, "n").await.len(), 1);
    soon(client.wait_lost(&holder)).await.unwrap();
    let given_up = Moment::now();
    until("it is closed", async || queue_of(&operator, "n").await.is_empty()).await;
    // By itself the server would have waited for a session from the last proof on, which was sent
    // half a session before.
    assert!(Moment::now().saturating_since(given_up) < TIMEOUT * 2 / 5, "closed, not timed out");
}

#[tokio::test]
async fn a_session_that_is_given_up_keeps_its_locks_until_its_holders_have_given_up() {
    let Far { server: _server, network, client, operator } = far_away().await;
    let holder = claim("n", false);
    let lease = win(&client, &holder).await;
    get_out_of_step(&client, &network).await;
    soon(client.wait_lost(&holder)).await.unwrap();
    let lasts = lease.ends().expect("it has a lease").saturating_since(lease.since);
    assert!(!(lease.since + lasts * 9 / 10).has_passed(), "it is given up long before");
    until("there is another one", async || client.try_acquire(&claim("m", false)).await.is_ok())
        .await;
    until("it is closed", async || queue_of(&operator, "n").await.is_empty()).await;
    let ended = Moment::now();
    assert!(ended.saturating_since(lease.since) >= lasts * 99 / 100, "a holder may rely on it");
}

#[tokio::test]
async fn waiters_outlive_a_restart_of_the_server() {
    let Far { server, network: _network, client, operator } = far_away().await;
    let holder = claim("n", false);
    win(&client, &holder).await;
    let locks = Locker::new(client.clone());
    let waiting = locks.lock("n").unwrap();
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    // The waiter is queued, and no new attempt, which would fail in the outage.
    until_watched(&server, 2).await;
    let before = queue_of(&operator, "n").await;
    server.restart(KeepData::Yes);
    until("it works again", async || client.inspect(&name("n")).await.is_ok()).await;
    let after = crate::support::operator(server.addr()).await;
    assert_eq!(queue_of(&after, "n").await, before, "the sessions live, and all keep their places");
    assert_eq!(soon(client.release(&holder, ReleaseMode::now())).await.unwrap(), Release::Released);
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_crowd_is_served_one_by_one_and_a_release_wakes_no_herd() {
    const WAITERS: usize = 30;
    let Far { server, network, client: near, .. } = far_away().await;
    let holder = claim("n", false);
    win(&near, &holder).await;
    let mut crowd = Vec::new();
    for _ in 0..WAITERS {
        let (waiter, claim) = (client(network.addr()).await, claim("n", true));
        assert!(is_contended(&waiter, &claim).await);
        crowd.push((waiter, claim));
    }
    // Its own node, the one before, and the one before that.
    let all = format!("Total watches:{}", 3 * WAITERS - 1);
    until("each has its watches", async || server.word("wchs").unwrap().contains(&all)).await;
    near.release(&holder, ReleaseMode::now()).await.unwrap();
    for (i, (waiter, claim)) in crowd.iter().enumerate() {
        soon(waiter.wait(claim)).await.unwrap();
        win(waiter, claim).await;
        // The two behind have been told of the one before: one is handed the lock, and one has
        // looked again.
        let left = WAITERS - i;
        let watches = format!("Total watches:{}", (3 * left).saturating_sub(3).max(1));
        until("two have been told, and nobody else", async || {
            server.word("wchs").unwrap().contains(&watches)
        })
        .await;
        assert_eq!(waiter.release(claim, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
}

/// Returns a counter of the server since its start.
fn counted(server: &Server, what: &str) -> u64 {
    let counters = server.word("mntr").unwrap();
    let counter = counters.lines().find_map(|line| line.strip_prefix(what));
    counter.expect("the server counts it").trim().parse().unwrap()
}

async fn until_watched(server: &Server, watches: u64) {
    let all = format!("Total watches:{watches}");
    let what = format!("there are {watches} watches");
    until(&what, async || server.word("wchs").unwrap().lines().any(|line| line == all)).await;
}

/// A new waiter reads the queue, and only that request grows with it.
#[tokio::test]
async fn a_new_waiter_reads_59_bytes_for_each_entry_before_it() {
    const PLACE: u64 = 59;

    let Far { server: _server, network, client, operator } = far_away().await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let mut places = 0;
    for depth in [10, 1_000, 10_000] {
        for place in places..depth {
            let stem = format!("/n/_c_{place:08}-0000-4000-8000-000000000000-lock-");
            operator.create(&stem, b"", &options).await.unwrap();
        }
        places = depth;
        let before = network.stats();
        let claim = claim("n", true);
        assert!(is_contended(&client, &claim).await);
        let after = network.stats();
        let sent = after.to_server.received - before.to_server.received;
        let read = after.to_client.received - before.to_client.received;
        println!("behind {depth}: {sent} bytes sent, {read} received");
        assert!((PLACE * depth..PLACE * depth + 2000).contains(&read), "{read} behind {depth}");
        assert!(sent < 2000, "{sent} behind {depth}");
        client.release(&claim, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn a_thousand_waiters_of_one_session_are_told_once_for_each_release() {
    const WAITERS: u64 = 1000;
    const RELEASES: u64 = 20;
    let server = server();
    let client = client(server.addr()).await;
    let mut line = vec![claim("n", true)];
    win(&client, &line[0]).await;
    let (events, requests) = ("zk_sum_node_deleted_watch_count", "zk_packets_received");
    let before = counted(&server, requests);
    for _ in 0..WAITERS {
        let claim = claim("n", true);
        assert!(is_contended(&client, &claim).await);
        line.push(claim);
    }
    until_watched(&server, WAITERS + 1).await;
    // Each enters, looks, and watches itself; those behind it need no more. And there are proofs,
    // and our words.
    let asked = counted(&server, requests) - before;
    assert!(asked <= 3 * WAITERS + 100, "{asked} requests for {WAITERS} waiters");
    let before = (counted(&server, events), counted(&server, requests));
    for pair in line.windows(2).take(RELEASES as usize) {
        assert_eq!(client.release(&pair[0], ReleaseMode::now()).await.unwrap(), Release::Released);
        soon(client.wait(&pair[1])).await.unwrap();
        win(&client, &pair[1]).await;
    }
    assert_eq!(counted(&server, events) - before.0, RELEASES, "one event for each release");
    // No waiter reads the queue again: the released node is one of this session, and known to be
    // first.
    let asked = counted(&server, requests) - before.1;
    assert!(asked <= RELEASES + 15, "{asked} requests for {RELEASES} releases");
}

#[tokio::test]
async fn a_shared_watch_outlives_each_user_but_the_last() {
    let Far { server, network, client: ours, .. } = far_away().await;
    let others = client(server.addr()).await;
    let holder = claim("n", false);
    win(&others, &holder).await;
    let [first, second, third] = [(); 3].map(|()| claim("n", true));
    for claim in [&first, &second, &third] {
        assert!(is_contended(&ours, claim).await);
    }
    // The holder, for the first two; the first, for itself and those behind it; and so on.
    until_watched(&server, 4).await;
    ours.release(&second, ReleaseMode::now()).await.unwrap();
    until_watched(&server, 3).await;
    // A watch that was shared outlives its connection, too.
    network.reset_connections().await;
    assert_eq!(others.release(&holder, ReleaseMode::now()).await.unwrap(), Release::Released);
    soon(ours.wait(&first)).await.unwrap();
    win(&ours, &first).await;
    ours.release(&first, ReleaseMode::now()).await.unwrap();
    soon(ours.wait(&third)).await.unwrap();
    win(&ours, &third).await;
    // Waiters that leave before any event leave no watch on the nodes that stay.
    let [fourth, fifth] = [(); 2].map(|()| claim("n", true));
    for claim in [&fourth, &fifth] {
        assert!(is_contended(&others, claim).await);
    }
    // The third by both sessions, the fourth and the fifth by theirs.
    until_watched(&server, 4).await;
    for claim in [&fourth, &fifth] {
        others.release(claim, ReleaseMode::now()).await.unwrap();
    }
    until_watched(&server, 1).await;
}

#[tokio::test]
async fn no_waiter_misses_its_turn_while_others_come_and_go() {
    const WAITERS: u64 = 12;
    const TURNS: u64 = 25;
    let server = server();
    let operator = operator(server.addr()).await;
    let is_held = Arc::new(AtomicBool::new(false));
    let mut waiters = tokio::task::JoinSet::new();
    for session in 0..2 {
        let client = client(server.addr()).await;
        for waiter in 0..WAITERS {
            let (client, is_held) = (client.clone(), Arc::clone(&is_held));
            let mut random = fastrand::Rng::with_seed(session * WAITERS + waiter);
            waiters.spawn(async move {
                for _ in 0..TURNS {
                    come_and_go(&client, &is_held, &mut random).await;
                }
            });
        }
    }
    soon(async {
        while let Some(ended) = waiters.join_next().await {
            ended.unwrap();
        }
    })
    .await;
    assert!(queue_of(&operator, "n").await.is_empty());
    until_watched(&server, 0).await;
}

/// Acquires the lock, or leaves the queue after a time.
async fn come_and_go(client: &ZooKeeper, is_held: &AtomicBool, random: &mut fastrand::Rng) {
    let claim = claim("n", true);
    let patience = match random.bool() {
        true => BOUND,
        false => Duration::from_millis(random.u64(0..20)),
    };
    let turn = async {
        while let Attempt::Contended { .. } = client.try_acquire(&claim).await.unwrap() {
            client.wait(&claim).await.unwrap();
        }
    };
    if tokio::time::timeout(patience, turn).await.is_ok() {
        assert!(!is_held.swap(true, Ordering::SeqCst), "there are two holders");
        tokio::task::yield_now().await;
        is_held.store(false, Ordering::SeqCst);
    }
    client.release(&claim, ReleaseMode::after_unknown_outcome()).await.unwrap();
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_within_the_bound() {
    let Far { server, network: _network, client, .. } = far_away().await;
    let locks = Locker::builder(client).timeout(Duration::from_millis(300)).build();
    server.kill();
    let error = soon(locks.lock("n").unwrap().try_acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{error:?}");
    assert!(error.is_retryable());
    server.restart(KeepData::Yes);
    let end = Moment::now() + BOUND;
    while locks.lock("n").unwrap().try_acquire().await.is_err() {
        assert!(!end.has_passed(), "it never works again");
    }
}
