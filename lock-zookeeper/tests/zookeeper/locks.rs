//! The backend on a server without faults.

use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Attempt, FaultKind, Release, ReleaseMode, Renewal, Wake};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, FencingToken, Label, Locker, Loss};
use lock_zookeeper::ZooKeeper;
use test_servers::{ZooKeeper as Server, ZooKeeperOptions};
use zookeeper_client::{Acls, CreateMode};

use crate::support::{
    TIMEOUT, claim, client, is_contended, name, operator, queue_of, server, soon, until, win,
};

#[tokio::test]
async fn a_place_in_line_is_called_as_curator_calls_it_and_tells_whose_it_is() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let mut claim = claim("orders", true);
    claim.label = Some(Label::new("web-1:42"));
    let grant = win(&client, &claim).await;
    let [node] = &queue_of(&operator, "orders").await[..] else { panic!("one node") };
    let (uuid, number) = node.strip_prefix("_c_").unwrap().split_once("-lock-").unwrap();
    assert_eq!((uuid.len(), number), (36, "0000000000"));
    let owner = claim.owner.expose();
    assert!(!node.contains(&owner), "the right to unlock is not in the name");
    let (data, stat) = operator.get_data(&format!("/orders/{node}")).await.unwrap();
    assert_eq!(String::from_utf8(data).unwrap(), format!("{owner} web-1:42"));
    let token = FencingToken::from_backend(stat.czxid.try_into().unwrap());
    assert_eq!(grant.token, token);
    let seen = client.inspect(&claim.name).await.unwrap();
    assert_eq!(seen.holders[0].label, claim.label);
    assert_eq!(seen.waiting, Some(0));
}

#[tokio::test]
async fn the_negotiated_timeout_counts_and_not_the_one_asked_for() {
    // Sessions of this server last a second at least, and two at most.
    let options = ZooKeeperOptions::new()
        .tick(Duration::from_millis(500))
        .setting("maxSessionTimeout", "2000");
    let server = Server::start(&options);
    for (asked, granted) in [("900ms", 1), ("1h", 2)] {
        let url = format!("zookeeper://{}?session_timeout={asked}", server.addr());
        let client = ZooKeeper::connect(url).await.unwrap();
        let claim = claim(&format!("n{granted}"), false);
        let before = Moment::now();
        let grant = win(&client, &claim).await;
        let limit = before + Duration::from_secs(granted);
        let ends = grant.ends().expect("it has a lease");
        assert!(ends <= limit + Duration::from_millis(1), "asked for {asked}");
    }
}

#[tokio::test]
async fn the_least_session_that_servers_grant_is_warned_about() {
    let output = Output::default();
    let _tracing = output.listen();
    let server = Server::start(&ZooKeeperOptions::new().tick(Duration::from_millis(500)));
    let session = |asked| format!("zookeeper://{}?session_timeout={asked}", server.addr());
    ZooKeeper::connect(session("2s")).await.unwrap();
    assert!(!output.text().contains("WARN"), "{}", output.text());
    ZooKeeper::connect(session("900ms")).await.unwrap();
    let text = output.text();
    assert!(text.contains("WARN") && text.contains("asked=900ms granted=1s"), "{text}");
}

#[tokio::test]
async fn waiters_are_handed_the_lock_and_told_of_by_inspect() {
    let server = server();
    let (ours, theirs) = (client(server.addr()).await, client(server.addr()).await);
    let holder = claim("n", true);
    win(&theirs, &holder).await;
    let waiters = [claim("n", true), claim("n", true), claim("n", true)];
    for waiter in &waiters {
        assert!(is_contended(&ours, waiter).await);
    }
    assert_eq!(theirs.inspect(&name("n")).await.unwrap().waiting, Some(3));
    // The second one leaves from the middle.
    assert_eq!(ours.release(&waiters[1], ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    let last = tokio::spawn({
        let (ours, last) = (ours.clone(), waiters[2].clone());
        async move { ours.wait(&last).await }
    });
    assert_eq!(theirs.release(&holder, ReleaseMode::now()).await.unwrap(), Release::Released);
    // Handed over before or while it waits.
    soon(ours.wait(&waiters[0])).await.unwrap();
    win(&ours, &waiters[0]).await;
    assert!(!last.is_finished());
    assert_eq!(ours.release(&waiters[0], ReleaseMode::now()).await.unwrap(), Release::Released);
    let granted = soon(last).await.unwrap().unwrap();
    assert!(matches!(granted, Wake::Granted(_)), "{granted:?}");
}

#[tokio::test]
async fn a_waiter_that_leaves_from_the_middle_wakes_none() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let line_up: Vec<_> = (0..5).map(|_| claim("n", true)).collect();
    win(&client, &line_up[0]).await;
    for waiter in &line_up[1..] {
        assert!(is_contended(&client, waiter).await);
    }
    let last = tokio::spawn({
        let (client, last) = (client.clone(), line_up[4].clone());
        async move { client.wait(&last).await }
    });
    // So that all have their watches.
    sleep(Duration::from_millis(300)).await;
    for leaving in [2, 3] {
        client.release(&line_up[leaving], ReleaseMode::now()).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        assert!(!last.is_finished(), "two are still before it");
    }
    assert_eq!(queue_of(&operator, "n").await.len(), 3);
    client.release(&line_up[0], ReleaseMode::now()).await.unwrap();
    // The end of the first node may be seen before the wait.
    if matches!(soon(client.wait(&line_up[1])).await.unwrap(), Wake::Retry) {
        win(&client, &line_up[1]).await;
    }
    assert!(!last.is_finished());
    client.release(&line_up[1], ReleaseMode::now()).await.unwrap();
    assert!(matches!(soon(last).await.unwrap(), Ok(Wake::Granted(_))));
}

#[tokio::test]
async fn tries_on_a_lock_that_is_known_to_be_held_do_not_write() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    win(&client, &claim("n", false)).await;
    assert!(is_contended(&client, &claim("n", false)).await);
    let made = async || operator.check_stat("/n").await.unwrap().unwrap().cversion;
    let before = made().await;
    for _ in 0..5 {
        assert!(is_contended(&client, &claim("n", false)).await);
    }
    assert_eq!(made().await, before);
}

#[tokio::test]
async fn a_node_that_an_operator_deletes_is_lost_and_not_created_again() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let locks = Locker::new(client.clone());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    guard.verify().await.unwrap();
    let node = queue_of(&operator, "n").await.remove(0);
    operator.delete(&format!("/n/{node}"), None).await.unwrap();
    assert_eq!(soon(guard.lost()).await, Loss::NotHeld);
    assert!(queue_of(&operator, "n").await.is_empty());

    // Waiting, it notices too, and does not come back.
    let holder = claim("m", false);
    win(&client, &holder).await;
    let waiter = tokio::spawn(async move { locks.lock("m").unwrap().acquire().await });
    until("it waits", async || queue_of(&operator, "m").await.len() == 2).await;
    let node = queue_of(&operator, "m").await.remove(1);
    operator.delete(&format!("/m/{node}"), None).await.unwrap();
    let error = soon(waiter).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), lock_core::ErrorKind::Invalid, "{error}");
    assert!(format!("{error:?}").contains("an operator removed"), "{error:?}");
    assert_eq!(queue_of(&operator, "m").await.len(), 1, "the holder stays");
    client.release(&holder, ReleaseMode::now()).await.unwrap();
}

/// The server removes the nodes of a session that has ended. No operator removed the waiter.
#[tokio::test]
async fn a_waiter_whose_session_ends_waits_again() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let holder = claim("m", false);
    win(&client, &holder).await;
    let far = Proxy::start(server.addr()).unwrap();
    let url = format!("zookeeper://{}?session_timeout=2s", far.addr());
    let far_client = ZooKeeper::connect(&*url).await.unwrap();
    let locks = Locker::builder(far_client).outage_timeout(Duration::from_secs(60)).build();
    let mut waiter = tokio::spawn(async move { locks.lock("m").unwrap().acquire().await });
    let watches = || server.word("wchp").map_or(0, |watches| watches.matches("/m/").count());
    until("it waits, and both nodes are watched", async || watches() == 2).await;
    let before = queue_of(&operator, "m").await.remove(1);
    far.set(Fault::Refuse);
    far.reset_connections().await;
    until("its session has ended", async || queue_of(&operator, "m").await.len() == 1).await;
    far.heal();
    tokio::select! {
        () = until("it waits again", async || queue_of(&operator, "m").await.len() == 2) => {}
        ended = &mut waiter => panic!("{ended:?}"),
    }
    assert_ne!(queue_of(&operator, "m").await.remove(1), before);
    client.release(&holder, ReleaseMode::now()).await.unwrap();
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// A node that was deleted before a renewal is not renewed. That also holds for a process that was
/// stopped and reads both answers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_deleted_node_is_not_renewed_by_a_process_that_was_stopped() {
    let server = server();
    let network = Proxy::start(server.addr()).unwrap();
    let (client, operator) = (client(network.addr()).await, operator(server.addr()).await);
    for round in 0..6 {
        let mut held = claim(&format!("n{round}"), true);
        held.ticket = win(&client, &held).await.ticket;
        let renewed = client.renew(&[&held]).await.remove(0);
        assert!(matches!(renewed, Ok(Renewal::Held(_))), "{renewed:?}");
        let path = format!("/n{round}/{}", queue_of(&operator, &format!("n{round}")).await[0]);
        // The deletion is notified, and the renewal answered, while the process is stopped.
        let [to_server, to_client] = [300, 200].map(Duration::from_millis);
        network.set(Fault::Delay { to_server, to_client });
        let renewal = tokio::spawn({
            let client = client.clone();
            async move { client.renew(&[&held]).await.remove(0) }
        });
        sleep(Duration::from_millis(100)).await;
        operator.delete(&path, None).await.unwrap();
        // Nothing runs on the only worker meanwhile, and arriving data are read at once.
        tokio::spawn(async { std::thread::park_timeout(Duration::from_millis(800)) })
            .await
            .unwrap();
        let renewed = renewal.await.unwrap();
        assert!(matches!(renewed, Ok(Renewal::NotHeld)), "{renewed:?} in round {round}");
        network.heal();
    }
}

#[tokio::test]
async fn a_waiter_that_cannot_watch_the_queue_leaves_it() {
    let server = server();
    let (near, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let before = [claim("n", true), claim("n", true), claim("n", true)];
    win(&near, &before[0]).await;
    for waiter in &before[1..] {
        assert!(is_contended(&near, waiter).await);
    }
    // The session goes on: nothing is gone because that has ended.
    let far = client(server.addr()).await;
    let locks = Locker::new(far.clone());
    let last = tokio::spawn(async move { locks.lock("n").unwrap().acquire().await });
    until("it waits, and watches", async || {
        let words = server.word("wchs").unwrap();
        // Itself and two before it, and those in the other session three nodes together.
        queue_of(&operator, "n").await.len() == 4 && words.contains("Total watches:6")
    })
    .await;
    // The line is read again when the second one before it leaves, and makes no sense by then.
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/n/leases", b"", &open).await.unwrap();
    near.release(&before[1], ReleaseMode::now()).await.unwrap();
    let error = soon(last).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), lock_core::ErrorKind::Invalid, "{error}");
    until("it has left the line", async || {
        let nodes = operator.list_children("/n").await.unwrap();
        nodes.iter().filter(|node| node.starts_with("_c_")).count() == 2
    })
    .await;
    drop(far);
}

#[tokio::test]
async fn a_node_of_the_lock_that_vanishes_is_made_again() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    for _ in 0..3 {
        let claim = claim("n", true);
        let mut last = win(&client, &claim).await.token;
        client.release(&claim, ReleaseMode::now()).await.unwrap();
        // As the server does with containers that stand empty.
        operator.delete("/n", None).await.unwrap();
        // Its numbers begin again, and tokens do not.
        let next = crate::support::claim("n", true);
        let token = win(&client, &next).await.token;
        assert!(token > std::mem::replace(&mut last, token));
        client.release(&next, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn a_line_whose_numbers_have_wrapped_is_refused_loudly() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/n", b"", &open).await.unwrap();
    for node in ["_c_x-lock-2147483647", "_c_y-lock--2147483648"] {
        operator.create(&format!("/n/{node}"), b"", &open).await.unwrap();
    }
    for queue in [false, true] {
        let fault = client.try_acquire(&claim("n", queue)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Invalid);
        assert!(fault.into_source().to_string().contains("32 bits"));
        assert_eq!(queue_of(&operator, "n").await.len(), 2, "nothing of ours stays in it");
    }
    operator.create("/m", b"", &open).await.unwrap();
    operator.create("/m/leases", b"", &open).await.unwrap();
    let fault = client.try_acquire(&claim("m", true)).await.unwrap_err();
    assert!(fault.into_source().to_string().contains("leases"));
    // The locks beside the two are listed all the same.
    let output = Output::default();
    let _tracing = output.listen();
    win(&client, &claim("o", true)).await;
    let listed = client.list("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>(), ["o"]);
    assert!(output.text().contains("skipped=2"), "{}", output.text());
}

/// ZooKeeper 3.8 does not wrap: from 2 147 483 647 on every node gets that number, and the random
/// part of its name would decide.
#[tokio::test]
async fn near_the_end_of_the_numbers_claims_are_refused() {
    let server = server();
    let first = claim("n", true);
    {
        let client = client(server.addr()).await;
        win(&client, &first).await;
        client.release(&first, ReleaseMode::now()).await.unwrap();
    }
    for next in [i32::MAX - 999_999, i32::MAX - 1, i32::MAX] {
        server.restart_with_sequence("/n", next);
        let operator = operator(server.addr()).await;
        let clients = [client(server.addr()).await, client(server.addr()).await];
        for (client, queue) in [(&clients[0], false), (&clients[1], true), (&clients[0], true)] {
            let fault = client.try_acquire(&claim("n", queue)).await.unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Invalid, "{next}");
            let text = fault.into_source().to_string();
            assert!(text.contains("numbers") && text.contains("delete the node"), "{text}");
            assert!(queue_of(&operator, "n").await.is_empty(), "the refused node is removed");
            assert_eq!(client.inspect(&name("n")).await.unwrap().waiting, Some(0));
        }
        // The remedy.
        operator.delete("/n", None).await.unwrap();
        let again = claim("n", true);
        win(&clients[0], &again).await;
        clients[0].release(&again, ReleaseMode::now()).await.unwrap();
    }
}

#[tokio::test]
async fn up_to_the_margin_the_numbers_are_used() {
    let server = server();
    let first = claim("n", true);
    {
        let client = client(server.addr()).await;
        win(&client, &first).await;
        client.release(&first, ReleaseMode::now()).await.unwrap();
    }
    server.restart_with_sequence("/n", i32::MAX - 1_000_002);
    let client = client(server.addr()).await;
    let [holder, waiter] = [claim("n", true), claim("n", true)];
    win(&client, &holder).await;
    assert!(is_contended(&client, &waiter).await);
    client.try_acquire(&claim("n", true)).await.unwrap_err();
    // Claims that were queued before are served.
    client.release(&holder, ReleaseMode::now()).await.unwrap();
    soon(client.wait(&waiter)).await.unwrap();
    win(&client, &waiter).await;
}

/// Of several nodes with the largest number each may be a holder's.
#[tokio::test]
async fn behind_nodes_that_have_the_largest_number_nobody_is_first() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/n", b"", &open).await.unwrap();
    for node in ["_c_x-lock-2147483647", "_c_y-lock-2147483647"] {
        operator.create(&format!("/n/{node}"), b"", &open).await.unwrap();
    }
    for queue in [false, true] {
        let fault = client.try_acquire(&claim("n", queue)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Invalid);
        assert_eq!(queue_of(&operator, "n").await.len(), 2, "nothing of ours stays in it");
    }
    let seen = client.inspect(&name("n")).await.unwrap();
    assert_eq!((seen.holders.len(), seen.waiting), (2, Some(0)), "nobody can tell which");
}

#[tokio::test]
async fn a_held_lock_stays_held_and_each_lease_is_long_enough() {
    let server = server();
    let locks = Locker::new(client(server.addr()).await);
    let guards = [locks.lock("n").unwrap(), locks.lock("m").unwrap()];
    let [n, m] = guards.map(|lock| lock.ttl(Duration::from_secs(3600)));
    let (n, m) = (n.acquire().await.unwrap(), m.acquire().await.unwrap());
    let end = Moment::now() + TIMEOUT * 5 / 2;
    let mut shortest = TIMEOUT;
    while !end.has_passed() {
        assert!(n.is_held() && m.is_held());
        shortest = shortest.min(n.valid_for().unwrap());
        sleep(Duration::from_millis(5)).await;
    }
    assert!(shortest > Duration::ZERO);
    println!("the shortest lease was {shortest:?}, of a session of {TIMEOUT:?}");
    n.release().await.unwrap();
    m.release().await.unwrap();
}

/// The start of a check in a transaction, and of a ping. The server does not distinguish them from
/// other requests.
const CHECK: [u8; 9] = [0, 0, 0, 13, 0, 255, 255, 255, 255];
const PING: [u8; 8] = [255, 255, 255, 254, 0, 0, 0, 11];
const PROOF_BYTES: u64 = 39;
const PING_BYTES: u64 = 12;

#[tokio::test]
async fn holders_and_waiters_cost_heartbeat_writes_only() {
    let server = server();
    let proxy = Proxy::start(server.addr()).unwrap();
    let (near, far) = (client(server.addr()).await, client(proxy.addr()).await);
    let mut sent = Vec::new();
    for count in [1, 100] {
        for i in 0..count {
            win(&near, &claim(&format!("n{count}-{i}"), true)).await;
            assert!(is_contended(&far, &claim(&format!("n{count}-{i}"), true)).await);
        }
        sleep(Duration::from_millis(500)).await;
        let before = proxy.stats().to_server.received;
        let (proofs, pings) = (proxy.count(CHECK), proxy.count(PING));
        sleep(TIMEOUT).await;
        sent.push(proxy.stats().to_server.received - before);
        // One each eighth of the timeout, and hardly a ping before one of them.
        let (proofs, pings) = (proofs.seen(), pings.seen());
        assert!((4..=9).contains(&proofs) && pings <= 7, "{proofs} proofs and {pings} pings");
        let bytes = proofs * PROOF_BYTES + pings * PING_BYTES;
        // One may have come between two looks.
        let others = sent[sent.len() - 1].abs_diff(bytes);
        assert!(others <= PROOF_BYTES + PING_BYTES, "{others} bytes are neither proofs nor pings");
    }
    assert!(sent[1] <= sent[0] * 3 / 2, "bytes with one waiter, and with 100: {sent:?}");
    assert!(sent[0] > 0, "there are proofs");
}

#[tokio::test]
async fn when_its_last_user_is_gone_the_session_is_closed() {
    let server = server();
    let operator = operator(server.addr()).await;
    let clones = client(server.addr()).await;
    let holder = claim("n", true);
    win(&clones.clone(), &holder).await;
    assert!(is_contended(&clones, &claim("n", true)).await);
    assert!(matches!(clones.renew(&[&holder]).await.remove(0), Ok(Renewal::Held(_))));
    drop(clones);
    let gone = Moment::now();
    until("all is gone", async || queue_of(&operator, "n").await.is_empty()).await;
    assert!(Moment::now().saturating_since(gone) < TIMEOUT, "closed, not timed out");
}

#[tokio::test]
async fn a_node_of_another_session_is_none_of_ours_whatever_it_is_called() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let holder = claim("n", false);
    win(&client, &holder).await;
    let path = format!("/n/{}", queue_of(&operator, "n").await[0]);
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    operator.delete(&path, None).await.unwrap();
    operator.create(&path, b"", &options).await.unwrap();
    soon(client.wait_lost(&holder)).await.unwrap();
    let renewal = client.renew(&[&holder]).await.remove(0);
    assert!(matches!(renewal, Ok(Renewal::NotHeld)), "{renewal:?}");
    let next = claim("m", false);
    until("there is another session", async || client.try_acquire(&next).await.is_ok()).await;
    assert_eq!(queue_of(&operator, "n").await.len(), 1, "it is not ours to delete");
}

#[tokio::test]
async fn below_a_chroot_and_a_prefix() {
    let server = server();
    let operator = operator(server.addr()).await;
    let url = format!("zookeeper://{}/app?prefix=a/b/", server.addr());
    let error = ZooKeeper::connect(url.clone()).await.unwrap_err();
    assert_eq!(error.kind(), lock_core::ErrorKind::Invalid);
    assert!(error.to_string().contains("/app"), "{error}");
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/app", b"", &open).await.unwrap();
    let client = ZooKeeper::connect(url).await.unwrap();
    let held = claim("orders/42", true);
    win(&client, &held).await;
    assert_eq!(queue_of(&operator, "app/a/b/orders%2F42").await.len(), 1);
    let listed = client.list("orders/", None, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name, held.name);
    let attempt = crate::support::client(server.addr()).await.try_acquire(&held).await;
    assert!(matches!(attempt, Ok(Attempt::Acquired(_))), "elsewhere it is another lock");
}

/// A line that takes more than a message of ZooKeeper's may have (1 MB, unless set): few places
/// with long names do as well as many.
#[tokio::test]
async fn a_line_of_any_length_is_read() {
    const PLACES: u64 = 24;

    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let open = Acls::anyone_all();
    operator.create("/n", b"", &CreateMode::Persistent.with_acls(open)).await.unwrap();
    let long = "x".repeat(50_000);
    let place = CreateMode::EphemeralSequential.with_acls(open);
    for _ in 0..PLACES {
        operator.create(&format!("/n/{long}-lock-"), b"", &place).await.unwrap();
    }
    assert!(operator.list_children("/n").await.unwrap().concat().len() > 1 << 20);
    let waiter = claim("n", true);
    assert!(is_contended(&client, &waiter).await);
    assert_eq!(client.inspect(&waiter.name).await.unwrap().waiting, Some(PLACES));
    for node in queue_of(&operator, "n").await.iter().filter(|node| node.starts_with(&long)) {
        operator.delete(&format!("/n/{node}"), None).await.unwrap();
    }
    soon(client.wait(&waiter)).await.unwrap();
    win(&client, &waiter).await;
}

/// As Curator's `Revoker` does to ask for a release.
#[tokio::test]
async fn data_that_another_client_replaces_are_restored() {
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let locks = Locker::new(client.clone());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let waiter = claim("n", true);
    assert!(is_contended(&client, &waiter).await);
    for at in [1, 0] {
        let node = format!("/n/{}", queue_of(&operator, "n").await[at]);
        let (data, _) = operator.get_data(&node).await.unwrap();
        operator.set_data(&node, b"__REVOKE__", None).await.unwrap();
        until("it is restored", async || operator.get_data(&node).await.unwrap().0 == data).await;
    }
    let seen = client.inspect(&name("n")).await.unwrap();
    assert_eq!(seen.holders[0].owner, Some(*guard.owner()));
    assert!(client.break_lock(&name("n"), guard.owner()).await.unwrap());
}
