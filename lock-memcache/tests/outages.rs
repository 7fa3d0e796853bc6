//! Servers that forget, stall and come back.

use std::time::Duration;

use lock_conformance::helpers::{claim, contended, eventually, granted, renew, win};
use lock_core::backend::{Effect, FaultKind, HoldKind, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, ErrorKind, FencingToken, Locker, Loss};
use lock_memcache::Memcached;
use test_servers::MemcachedOptions;

mod support;

use support::{Server, client, start};

/// Time that a loaded machine may need.
const SLACK: Duration = Duration::from_secs(3);

/// However the server loses its data, its holders are told, and tokens grow.
#[tokio::test]
async fn a_flush_is_notified_and_tokens_grow_over_it() {
    const LEASE: Duration = Duration::from_secs(3);

    let server = start();
    let locks = Locker::new(client(&server).await);
    let others = Locker::new(client(&server).await);
    let mut last = None;
    for flush in ["flush_all", "flush_all 1", "restart", "flush_all", "flush_all"] {
        let guard = locks.lock("n").unwrap().ttl(LEASE).acquire().await.unwrap();
        assert!(guard.fencing_token() > last, "{flush}");
        last = guard.fencing_token();
        if flush == "restart" {
            // Sooner after its counter was begun, its successor's clock may be behind it.
            let begun = last.unwrap().backend_number() / 1_000_000;
            let time = || server.stat("time").parse::<u64>().unwrap();
            eventually(|| time() > begun + 5).await;
            server.restart();
        } else {
            assert_eq!(server.command(flush), "OK");
        }
        let told = tokio::time::timeout(LEASE + SLACK, guard.lost()).await;
        assert!(matches!(told, Ok(Loss::Expired | Loss::NotHeld)), "{flush}: {told:?}");
        // A newcomer is told of an outage at once; and one second brings a new counter.
        let next = loop {
            match others.lock("n").unwrap().ttl(LEASE).acquire().await {
                Ok(guard) => break guard,
                Err(error) => assert!(error.is_retryable(), "{flush}: {error:?}"),
            }
        };
        assert!(next.fencing_token() > last, "{flush}: {:?}", next.fencing_token());
        last = next.fencing_token();
        next.release().await.unwrap();
    }
}

/// Many clients miss the counter at once, again and again.
#[tokio::test]
async fn tokens_of_a_crowd_grow_over_flushes() {
    let server = start();
    let mut crowd = tokio::task::JoinSet::new();
    let until = Moment::now() + Duration::from_secs(6);
    for _ in 0..6 {
        let backend = client(&server).await;
        crowd.spawn(async move {
            let mut seen: Vec<(Moment, FencingToken, Moment)> = Vec::new();
            while !until.has_passed() {
                let mut ours = claim("n", 4000);
                let asked = Moment::now();
                if let Ok(lock_core::backend::Attempt::Acquired(grant)) =
                    backend.try_acquire(&ours).await
                {
                    seen.push((asked, grant.token.unwrap(), Moment::now()));
                    ours.ticket = grant.ticket;
                }
                let _ = backend.release(&ours, ReleaseMode::now()).await;
                sleep(Duration::from_millis(1)).await;
            }
            seen
        });
    }
    for _ in 0..3 {
        // Twice in one second, and not where it begins.
        let second = server.stat("time");
        eventually(|| server.stat("time") != second).await;
        for _ in 0..2 {
            sleep(Duration::from_millis(300)).await;
            assert_eq!(server.command("flush_all"), "OK");
        }
    }
    let mut seen: Vec<_> = crowd.join_all().await.into_iter().flatten().collect();
    assert!(seen.len() > 100, "only {} grants", seen.len());
    seen.sort_by_key(|(_, token, _)| *token);
    for pair in seen.windows(2) {
        assert!(pair[0].1 < pair[1].1, "{:?} twice", pair[0].1);
        assert!(pair[0].0 <= pair[1].2, "{:?} was given after {:?}", pair[0].1, pair[1].1);
    }
}

/// A server that stalls takes its old clock for the new one when it goes on, and the items that it
/// stores then expire early: an assumption of this backend is broken. Fenced writes are right all
/// the same.
#[tokio::test]
async fn a_stall_may_end_a_lease_early_and_tokens_grow_over_it() {
    let server = start();
    let (locks, others) = (client(&server).await, client(&server).await);
    let mut last = None;
    for _ in 0..3 {
        let mut ours = claim("n", 1900);
        server.stop();
        let attempt = locks.try_acquire(&ours);
        let going_on = async {
            sleep(Duration::from_millis(2500)).await;
            server.cont();
        };
        let (answer, ()) = tokio::join!(attempt, going_on);
        let grant = granted(answer);
        assert!(grant.token > last);
        ours.ticket.clone_from(&grant.ticket);
        last = grant.token;
        // At any time of the next grant.
        let next = loop {
            let mut next = claim("n", 1900);
            if let Ok(lock_core::backend::Attempt::Acquired(grant)) =
                others.try_acquire(&next).await
            {
                next.ticket.clone_from(&grant.ticket);
                others.release(&next, ReleaseMode::now()).await.unwrap();
                break grant.token;
            }
            sleep(Duration::from_millis(5)).await;
        };
        assert!(next > last, "{next:?} after {last:?}");
        last = next;
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
    }
}

#[tokio::test]
async fn an_evicted_lock_is_a_loss() {
    let server = Server::start(MemcachedOptions::new().evicting().arg("-m").arg("2"));
    let locks = Locker::new(client(&server).await);
    let guard = locks.lock("held/0000001").unwrap().ttl(Duration::from_secs(60)).acquire().await;
    let guard = guard.unwrap();
    // As long as the lock, so that they are kept with it; and no client reads it, which would keep
    // it.
    let (mut operator, value) = (server.connect().unwrap(), "x".repeat(36));
    for number in 0..100_000 {
        operator.command(&format!("set filler/{number:07} 0 0 36\r\n{value}")).unwrap();
    }
    assert_eq!(server.value("held/0000001"), None);
    assert!(guard.is_held(), "nobody has told it yet");
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.lost().await, Loss::NotHeld);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A renewal of a short lease that arrives after one of a longer lease was acknowledged.
#[tokio::test]
async fn a_late_renewal_shortens_nothing() {
    let server = start();
    let (proxy, url) = server.proxied();
    let far = Memcached::connect(url).await.unwrap();
    let near = client(&server).await;
    let mut ours = claim("n", 3000);
    ours.hold = HoldKind::Detached;
    win(&far, &mut ours).await;
    let mut late = proxy.hold("cas n ");
    let slow = tokio::spawn({
        let (far, ours) = (far.clone(), ours.clone());
        async move { renew(&far, &ours).await }
    });
    late.caught().await.unwrap();
    let mut longer = ours.clone();
    longer.ttl = Duration::from_secs(600);
    longer.ticket = None;
    assert!(matches!(renew(&near, &longer).await, Ok(Renewal::Held(_))));
    late.deliver().await.unwrap();
    assert!(matches!(slow.await.unwrap(), Ok(Renewal::Held(_))));
    let left = near.inspect(&ours.name).await.unwrap().holders[0].expires_in.unwrap();
    assert!(left > Duration::from_secs(580), "{left:?} is left of an extension to 600 s");
}

/// One server of several is down: its locks cannot be had, those of the others can.
#[tokio::test]
async fn the_other_servers_go_on() {
    let servers = [start(), start()];
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let locks = Memcached::connect(format!("memcache://{hosts}")).await.unwrap();
    servers[0].kill();
    let (mut up, mut down) = (0, 0);
    for i in 0..40 {
        let mut ours = claim(&format!("n{i}"), 60_000);
        match locks.try_acquire(&ours).await {
            Ok(lock_core::backend::Attempt::Acquired(grant)) => {
                ours.ticket = grant.ticket;
                up += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(fault) => {
                assert!(fault.is_transient(), "{fault:?}");
                down += 1;
            }
        }
    }
    assert!(up > 5 && down > 5, "{up} up, {down} down");
    contended(client(&servers[1]).await.try_acquire(&claim(&held_name(&servers[1]), 1000)).await);
    servers[0].restart();
    let locker = Locker::new(locks);
    for i in 0..40 {
        let lock = locker.lock(format!("m{i}")).unwrap();
        let end = Moment::now() + Duration::from_secs(10);
        while let Err(error) = lock.try_acquire().await {
            assert!(error.is_retryable() && !end.has_passed(), "{error:?}");
        }
    }
}

fn held_name(server: &Server) -> String {
    let held = (0..40).map(|i| format!("n{i}")).find(|name| server.value(name).is_some());
    held.expect("it has a share of the locks")
}

/// One server of several falls silent: the locks that it has are lost, and none of those of the
/// others, though all are renewed together.
#[tokio::test]
async fn the_other_servers_locks_are_kept() {
    let servers = [start(), start()];
    let (silent, _) = servers[0].proxied();
    let hosts = [silent.addr(), servers[1].addr()].map(|addr| addr.to_string()).join(",");
    let locks = Locker::new(Memcached::connect(format!("memcache://{hosts}")).await.unwrap());
    let ttl = Duration::from_secs(3);
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for i in 0..20 {
        let name = format!("n{i}");
        let guard = locks.lock(name.as_str()).unwrap().ttl(ttl).acquire().await.unwrap();
        match servers[0].value(&name) {
            Some(_) => lost.push(guard),
            None => kept.push(guard),
        }
    }
    assert!(lost.len() > 3 && kept.len() > 3, "{} and {}", lost.len(), kept.len());
    silent.set(lock_conformance::proxy::Fault::BlackHole);
    for guard in &lost {
        guard.lost().await;
    }
    sleep(ttl * 2).await;
    assert!(kept.iter().all(lock_core::LockGuard::is_held), "those of the other server");
}

/// A connection without replies is replaced, without help.
#[tokio::test]
async fn a_silent_connection_is_given_up() {
    let server = start();
    let (proxy, url) = server.proxied();
    let locks = Locker::builder(Memcached::connect(url).await.unwrap())
        .timeout(Duration::from_millis(500))
        .build();
    proxy.set_for(0, lock_conformance::proxy::Fault::BlackHole);
    let lock = locks.lock("n").unwrap();
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Timeout);
    let until = Moment::now() + Duration::from_secs(12);
    loop {
        match lock.try_acquire().await {
            Ok(Some(guard)) => break guard.release().await.unwrap(),
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        assert!(!until.has_passed(), "it is never given up");
    }
    eventually(|| proxy.stats().connections == 2).await;
}

/// A missing server does not affect the others, from the beginning.
#[tokio::test]
async fn a_fleet_is_connected_to_while_one_of_its_servers_is_down() {
    let servers = [start(), start()];
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let url = format!("memcache://{hosts}");
    servers[0].kill();
    let locks = Memcached::connect(url.as_str()).await.expect("one server is up");
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for i in 0..40 {
        let mut ours = claim(&format!("n{i}"), 60_000);
        match locks.try_acquire(&ours).await {
            Ok(lock_core::backend::Attempt::Acquired(grant)) => {
                assert!(servers[1].value(ours.name.as_str()).is_some());
                ours.ticket = grant.ticket;
                up.push(ours);
            }
            Ok(other) => panic!("{other:?}"),
            Err(fault) => {
                assert_eq!(
                    (fault.effect(), fault.kind()),
                    (Effect::NotApplied, FaultKind::Unavailable)
                );
                down.push(ours);
            }
        }
    }
    assert!(up.len() > 5 && down.len() > 5, "{} up, {} down", up.len(), down.len());

    // Back with nothing, not even a counter: all of it is made up for.
    servers[0].restart();
    let end = Moment::now() + Duration::from_secs(10);
    for ours in &down {
        let grant = loop {
            match locks.try_acquire(ours).await {
                Ok(answer) => break granted(Ok(answer)),
                Err(fault) => assert!(fault.is_transient() && !end.has_passed(), "{fault:?}"),
            }
        };
        assert!(grant.token.is_some());
    }
    for ours in &up {
        assert!(matches!(renew(&locks, ours).await, Ok(Renewal::Held(_))));
    }

    servers.iter().for_each(|server| server.kill());
    let error = Memcached::connect(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// One that is there and cannot keep locks apart is no outage.
#[tokio::test]
async fn a_fleet_with_a_server_that_refuses_is_refused() {
    let servers = [start(), Server::start(MemcachedOptions::new().arg("-C"))];
    let hosts = servers.each_ref().map(|server| server.addr().to_string()).join(",");
    let error = Memcached::connect(format!("memcache://{hosts}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// A peer that vanishes while nothing is said is found out before the next request.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_idle_connection_is_asked_for_signs_of_life() {
    const KEEPALIVE: &str = "02";

    let server = start();
    let _locks = client(&server).await;
    let peer = format!("0100007F:{:04X}", server.addr().port());
    let timers = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours = lines.filter(|line| line[2] == peer && line[3] == "01");
        ours.map(|line| line[5].split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Until all is acknowledged, another timer runs.
    eventually(|| timers() == [KEEPALIVE]).await;
}
