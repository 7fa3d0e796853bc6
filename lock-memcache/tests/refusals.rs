//! Refusals of servers, and servers that are unsuitable for locks.

use std::time::Duration;

use lock_conformance::helpers::{Output, claim, contended, eventually, renew, win};
use lock_core::backend::{Effect, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::clock::sleep;
use lock_core::{Backend, ErrorKind, Locker};
use lock_memcache::Memcached;
use test_servers::MemcachedOptions;

mod support;

use support::{Server, client, start};

/// Stores values as long as those of our locks, until no more fit: then neither does another lock.
/// Renewed ones are longer, and may have memory of their own.
fn fill(server: &Server) {
    for length in [36, 51] {
        let stored = fill_with(server, length);
        assert_eq!(stored, "SERVER_ERROR out of memory storing object");
    }
}

fn fill_with(server: &Server, length: usize) -> String {
    let mut operator = server.connect().unwrap();
    let value = "x".repeat(length);
    for number in 0.. {
        let set = format!("set filler/{length}/{number:04} 0 0 {length}\r\n{value}");
        let stored = operator.command(&set).unwrap();
        if stored != "STORED" {
            return stored;
        }
    }
    unreachable!()
}

#[tokio::test]
async fn at_the_memory_limit_no_lock_is_given_and_none_is_lost() {
    let server = Server::start(MemcachedOptions::new().arg("-m").arg("2"));
    let (locks, others) = (client(&server).await, client(&server).await);
    let mut ours = claim("held/0000001", 1000);
    let grant = win(&locks, &mut ours).await;
    fill(&server);

    let refused = others.try_acquire(&claim("free/0000001", 1000)).await.unwrap_err();
    assert_eq!((refused.effect(), refused.kind()), (Effect::NotApplied, FaultKind::Unavailable));
    let said = refused.into_source().to_string();
    assert!(said.contains("memory limit") && said.contains("-m"), "{said}");
    // A server that refuses the newer `ms` for want of memory deletes the item.
    for _ in 0..10 {
        contended(others.try_acquire(&claim("held/0000001", 1000)).await);
    }
    // Until long after the first lease has ended on the server, too.
    for _ in 0..12 {
        sleep(Duration::from_millis(500)).await;
        let Ok(Renewal::Held(renewed)) = renew(&locks, &ours).await else {
            panic!("a lock is lost at the memory limit");
        };
        assert_eq!(renewed.token, grant.token);
        contended(others.try_acquire(&claim("held/0000001", 1000)).await);
    }
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);
    win(&others, &mut claim("held/0000001", 1000)).await;
}

#[tokio::test]
async fn a_server_without_cas_is_refused() {
    let server = Server::start(MemcachedOptions::new().arg("-C"));
    let error = Memcached::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = chain(&error);
    assert!(text.contains("-C") && text.contains("CAS"), "{text}");
}

#[tokio::test]
async fn credentials_are_given_and_missed() {
    let server = Server::start(MemcachedOptions::new().credentials("locks", "secret"));
    let locks = Locker::new(client(&server).await);
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    for (user, hint) in [("", "add user:password@"), ("locks:hunter2@", "check user and password")]
    {
        let url = format!("memcache://{user}{}", server.addr());
        let error = Memcached::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{user}: {error:?}");
        let text = chain(&error);
        assert!(text.contains(hint) && !text.contains("hunter2"), "{text}");
    }
}

/// It would store them as an item that each client can read.
#[tokio::test]
async fn credentials_are_not_sent_to_a_server_that_demands_none() {
    let server = start();
    let url = format!("memcache://locks:secret@{}", server.addr());
    let locks = Locker::new(Memcached::connect(url).await.unwrap());
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.command("mg auth v"), "EN");
}

#[tokio::test]
async fn nobody_there_is_unavailable_at_once() {
    let server = start();
    server.kill();
    let error = Memcached::connect(server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(chain(&error).contains(&server.addr().to_string()), "{error:?}");
}

#[tokio::test]
async fn servers_that_throw_things_away_are_warned_of() {
    let traces = async |server: &Server| {
        let output = Output::default();
        let _listening = output.listen();
        Memcached::connect(server.url()).await.unwrap();
        output.text()
    };
    let quiet = start();
    let text = traces(&quiet).await;
    assert!(text.is_empty(), "nothing is wrong with it: {text}");

    let server = Server::start(MemcachedOptions::new().evicting().arg("-m").arg("2"));
    let text = traces(&server).await;
    assert!(text.contains("start it with -M") && !text.contains("evictions="), "{text}");
    let mut operator = server.connect().unwrap();
    let value = "x".repeat(500_000);
    let mut number = 0;
    while server.stat("evictions") == "0" {
        number += 1;
        let _ = operator.command(&format!("set big/{number} 0 0 500000\r\n{value}")).unwrap();
        assert!(number < 100, "it evicts nothing");
    }
    let text = traces(&server).await;
    assert!(text.contains("memcache.evictions") && text.contains("too small"), "{text}");
}

#[tokio::test]
async fn foreign_items_are_contention_and_shown_without_an_owner() {
    let server = start();
    let locks = client(&server).await;
    for (value, seconds) in
        [("", 0), ("x", 100), (&*"y".repeat(300), 100), (&*"z".repeat(900_000), 0)]
    {
        assert_eq!(
            server.command(&format!("set n 0 {seconds} {}\r\n{value}", value.len())),
            "STORED"
        );
        let expires_in = contended(locks.try_acquire(&claim("n", 1000)).await);
        let expected = (seconds > 0).then(|| Duration::from_secs(seconds));
        assert!(
            expires_in <= expected && expires_in.is_some() == expected.is_some(),
            "{expires_in:?}"
        );
        let state = locks.inspect(&claim("n", 1).name).await.unwrap();
        assert_eq!((state.holders.len(), state.holders[0].owner), (1, None));
        let ours = claim("n", 1000);
        assert!(!locks.break_lock(&ours.name, &ours.owner).await.unwrap());
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
        assert_eq!(
            locks.release(&ours, ReleaseMode::after_unknown_outcome()).await.unwrap(),
            Release::NotHeld
        );
    }
}

#[tokio::test]
async fn a_counter_that_is_none_is_an_error_and_leaves_no_lock() {
    let server = start();
    let locks = Locker::new(client(&server).await);
    assert_eq!(server.command("set %fence 0 0 3\r\nabc"), "STORED");
    let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(chain(&error).contains("delete it"), "{error:?}");
    eventually(|| server.value("n").is_none()).await;
}

#[tokio::test]
async fn a_counter_that_was_rewritten_is_refused_and_leaves_no_lock() {
    let server = start();
    let mut min_token = None;
    for rewritten in ["5", "18446744073709551615", "9223372036854775808"] {
        // Of a process that has seen no token yet.
        let locks = Locker::new(client(&server).await);
        let set = format!("set %fence 0 0 {}\r\n{rewritten}", rewritten.len());
        assert_eq!(server.command(&set), "STORED");
        let granted = locks.lock("n").unwrap().acquire().await.map(|guard| guard.fencing_token());
        let error = granted.expect_err(rewritten);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{rewritten}");
        let text = chain(&error);
        for part in ["lock \"n\"", "%fence", "delete it"] {
            assert!(text.contains(part), "{text}");
        }
        eventually(|| server.value("n").is_none()).await;
        // Nor is a new client connected.
        let error = Memcached::connect(server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{rewritten}");

        assert_eq!(server.command("delete %fence"), "DELETED");
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        assert!(guard.fencing_token() > min_token, "a counter that is begun anew goes back");
        min_token = guard.fencing_token();
        guard.release().await.unwrap();
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
