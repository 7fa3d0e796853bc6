//! Users, passwords, and secrets that must not be shown.

use std::error::Error as _;
use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_core::backend::{Effect, FaultKind, OnContention, Release, ReleaseMode};
use lock_core::{Backend, Error, ErrorKind, Locker, Wakeup};
use lock_redis::Redis;
use test_servers::RedisOptions;

use crate::least_rights::{LEAST_RIGHTS, RIGHTS_TO_LIST, rights_to_delete};
use crate::support::{Server, claim, contended, granted, name, release, win};

const LEAST: &str = LEAST_RIGHTS[0];
const LEAST_IN_ANY_ORDER: &str = LEAST_RIGHTS[1];

const PASSWORD: &str = "hunter2secret";

fn with_user(rights: &str) -> (Server, String) {
    let server = Server::start();
    set_user(&server, rights);
    let url = format!("redis://locks:{PASSWORD}@127.0.0.1:{}?prefix=app:", server.port());
    (server, url)
}

fn set_user(server: &Server, rights: &str) {
    let rule = format!("ACL SETUSER locks reset on >{PASSWORD} {rights}");
    let _: String = server.run(rule.split_whitespace().collect::<Vec<_>>().join(" ").as_str());
}

async fn refused(url: &str) -> Error {
    let error = Redis::connect(url).await.expect_err("it is refused");
    let shown = format!("{error} {error:?} {:?}", error.source().map(ToString::to_string));
    assert!(!shown.contains(PASSWORD), "{shown}");
    error
}

#[tokio::test]
async fn the_documented_rights_suffice() {
    let documentation = include_str!("../../src/lib.rs").replace("//!", "");
    let words: Vec<_> = documentation.split_whitespace().collect();
    let documented = words.join(" ");
    assert!(documented.contains(&LEAST.split_whitespace().collect::<Vec<_>>().join(" ")));

    let (server, url) = with_user(&format!("{LEAST} {}", rights_to_delete()));
    let backend = Redis::connect(url.as_str()).await.unwrap();
    assert_eq!(backend.capabilities().wakeup, Wakeup::HandOff);
    assert!(backend.identity().await.unwrap().is_some());
    let ttl = Duration::from_secs(60);
    let locks = Locker::new(backend.clone());
    for text in ["n", "a b", "{tag}", "}"] {
        let lock = locks.lock(name(text)).unwrap().ttl(ttl);
        let guard = lock.acquire().await.unwrap();
        guard.verify().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert_eq!(locks.inspect(guard.name()).await.unwrap().holders.len(), 1);
        let elsewhere = Locker::new(backend.clone()).lock(name(text)).unwrap().ttl(ttl);
        let waiter = tokio::spawn(async move { elsewhere.acquire().await });
        let mut waiting = 0;
        while waiting == 0 {
            waiting = locks.inspect(guard.name()).await.unwrap().waiting.expect("it is known");
        }
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        assert!(locks.break_lock(guard.name(), guard.owner()).await.unwrap());
        let late = claim(text, 1000);
        backend.release(&late, ReleaseMode::after_unknown_outcome()).await.unwrap();
        assert!(backend.try_acquire(&late).await.is_err());
    }
    let log: Vec<redis::Value> = server.run("ACL LOG");
    assert_eq!(log, [], "nothing was refused");
}

#[tokio::test]
async fn no_lock_is_granted_whose_token_cannot_be_stored() {
    let (server, url) = with_user(LEAST);
    let backend = Redis::connect(url).await.unwrap();
    let _: String = server.run("ACL SETUSER locks -set (+set ~app:*)");
    backend.try_acquire(&claim("n", 60_000)).await.expect_err("its fence cannot be written");
    assert_eq!(server.run::<u64>("EXISTS app:n"), 0, "a lock without a number");
    set_user(&server, LEAST);
    granted(backend.try_acquire(&claim("n", 60_000)).await);
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let (server, url) = with_user("reset");
    let all: Vec<_> = LEAST.split_whitespace().filter(|word| word.starts_with('+')).collect();
    for &right in &all {
        set_user(&server, &without(right));
        match right {
            // Without these it is less, and works.
            "+info" => {
                let locks = Redis::connect(url.as_str()).await.unwrap();
                assert!(locks.identity().await.unwrap().is_none());
            }
            "+incrby" => {
                let locks = Locker::new(Redis::connect(url.as_str()).await.unwrap());
                for _ in 0..3 {
                    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
                    guard.release().await.unwrap();
                }
            }
            "+client|tracking" | "+client|caching" => {
                let locks = Redis::connect(url.as_str()).await.unwrap();
                assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff);
                let any = Redis::connect(format!("{url}&order=any")).await.unwrap();
                assert_eq!(any.capabilities().wakeup, Wakeup::Poll);
            }
            _ => {
                let error = refused(&url).await;
                assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
                let source = error.source().map(ToString::to_string).unwrap_or_default();
                let shown = format!("{error} {source}");
                assert!(shown.contains(&right[1..]), "{right}: {shown}");
            }
        }
    }
    set_user(&server, &without("&app:*"));
    let error = refused(&url).await;
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::NotApplied));
    let shown = format!("{error} {}", error.source().map(ToString::to_string).unwrap_or_default());
    assert!(shown.contains("&<prefix>*") && shown.contains("order=any"), "{shown}");
    for keys in ["~app:*", "~{app:*", "~other:*"] {
        let rights = LEAST.replace("~app:* ~{app:*", keys);
        set_user(&server, &rights);
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{keys}");
    }
}

#[tokio::test]
async fn a_list_needs_two_more_rights() {
    let documentation = include_str!("../../src/lib.rs");
    assert!(documentation.contains(&format!("`{RIGHTS_TO_LIST}`")));
    let (server, url) = with_user(&format!("{LEAST} {RIGHTS_TO_LIST}"));
    let locks = Locker::new(Redis::connect(url.as_str()).await.unwrap());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    assert_eq!(&locks.list("", None, 10).await.unwrap()[0].name, guard.name());
    for right in RIGHTS_TO_LIST.split_whitespace() {
        set_user(&server, &format!("{LEAST} {RIGHTS_TO_LIST}").replace(right, ""));
        let error = locks.list("", None, 10).await.unwrap_err();
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(source.contains(&right[1..]), "{right}: {source}");
    }
}

#[tokio::test]
async fn keys_that_a_user_may_not_read_are_not_listed() {
    let (server, url) = with_user(&format!("{LEAST} {RIGHTS_TO_LIST} ~n* ~%~* ~{{%~*"));
    let url = url.replace("?prefix=app:", "?prefix=&order=any");
    let _: String = server.command(&["SET", "m1", "00112233445566778899aabbccddeeff 17"]);
    let _: String = server.command(&["SET", "n1", "00112233445566778899aabbccddeeff 17"]);
    let locks = Locker::new(Redis::connect(url).await.unwrap());
    for prefix in ["", "m", "n"] {
        let page = locks.list(prefix, None, 10).await.unwrap();
        let names: Vec<_> = page.iter().map(|listed| listed.name.as_str()).collect();
        assert_eq!(names, if prefix == "m" { &[][..] } else { &["n1"] });
    }
}

/// The least rights but for one.
fn without(right: &str) -> String {
    LEAST.split_whitespace().filter(|word| *word != right).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn racing_clients_need_fewer_rights() {
    let (_server, url) = with_user(LEAST_IN_ANY_ORDER);
    let locks = Locker::new(Redis::connect(format!("{url}&order=any")).await.unwrap());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    assert_eq!(locks.inspect(guard.name()).await.unwrap().waiting, None);
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_racing_client_falls_back_to_the_script_without_further_rights() {
    let (server, url) = with_user(LEAST_IN_ANY_ORDER);
    let url = format!("{url}&order=any");
    let (one, other) = (Redis::connect(&*url).await.unwrap(), Redis::connect(&*url).await.unwrap());
    for by in [&one, &other, &one] {
        let mut held = claim("n", 9000);
        // The third attempt sets a value without a token, and finds that the other had the lock.
        win(by, &mut held).await;
        assert_eq!(by.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    assert_eq!(server.get("app:n"), None);
}

#[tokio::test]
async fn racing_clients_may_release_beside_a_queue() {
    let (server, url) = with_user(LEAST_IN_ANY_ORDER);
    let racer = Redis::connect(format!("{url}&order=any")).await.unwrap();
    let others = Redis::connect(format!("redis://127.0.0.1:{}?prefix=app:", server.port())).await;
    let others = others.unwrap();
    let held = claim("n", 60_000);
    granted(others.try_acquire(&held).await);
    let mut waiter = claim("n", 60_000);
    waiter.on_contention = OnContention::Queue;
    contended(others.try_acquire(&waiter).await);
    let mut late = claim("n", 60_000);
    late.on_contention = OnContention::Queue;
    for how in [ReleaseMode::now(), ReleaseMode::after_unknown_outcome()] {
        assert_eq!(racer.release(&late, how).await.unwrap(), Release::NotHeld);
    }
    release(&others, &held).await;
}

#[tokio::test]
async fn wrong_credentials_are_denied_and_not_shown() {
    let (server, url) = with_user(LEAST);
    let port = server.port();
    for wrong in [
        format!("redis://locks:{PASSWORD}x@127.0.0.1:{port}"),
        format!("redis://nobody:{PASSWORD}@127.0.0.1:{port}"),
    ] {
        assert_eq!(refused(&wrong).await.kind(), ErrorKind::Denied, "{wrong}");
    }
    let _: String = server.run("CONFIG SET requirepass other");
    for wrong in [format!("redis://127.0.0.1:{port}"), format!("redis://:x@127.0.0.1:{port}")] {
        assert_eq!(refused(&wrong).await.kind(), ErrorKind::Denied, "{wrong}");
    }
    let locks = Redis::connect(url.as_str()).await.unwrap();
    assert!(!format!("{locks:?}").contains(PASSWORD));
}

#[tokio::test]
async fn a_server_without_hello_gets_no_password_to_repeat() {
    let options = RedisOptions::new().setting("rename-command", "HELLO").and("hidden");
    let server = Server::with_options(options);
    let _: String = server.run("ACL SETUSER bob on >hunter2secret ~* &* +@all");
    let url = |password: &str| format!("redis://bob:{password}@{}", server.addr());
    let locks = Redis::connect(url("hunter2secret")).await.unwrap();
    assert_eq!(locks.capabilities().wakeup, Wakeup::Poll, "no signals without the newer protocol");
    let refused = Redis::connect(url("hunter2wrong")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert!(!format!("{refused:?} {refused:#?} {refused}").contains("hunter2"), "{refused:?}");
}

#[tokio::test]
async fn a_right_that_is_taken_away_later_is_denied() {
    let (server, url) = with_user(LEAST);
    let locks = Redis::connect(url.as_str()).await.unwrap();
    let ours = claim("n", 60_000);
    granted(locks.try_acquire(&ours).await);
    let _: String = server.run("ACL SETUSER locks -del");
    let fault = locks.release(&ours, ReleaseMode::now()).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Denied));
    let _: String = server.run("ACL SETUSER locks +del -set");
    let fault = locks.try_acquire(&claim("m", 60_000)).await.unwrap_err();
    assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, FaultKind::Denied));
    assert_eq!(server.command::<Option<String>>(&["GET", "app:m"]), None);
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_about() {
    let output = Output::default();
    let _tracing = output.listen();
    let server = Server::start();
    server.client().await;
    assert!(!output.text().contains("noeviction"), "{}", output.text());
    let _: String = server.run("CONFIG SET maxmemory-policy volatile-lru");
    server.client().await;
    assert!(
        output.text().contains("WARN") && output.text().contains("volatile-lru"),
        "{}",
        output.text()
    );
}

#[tokio::test]
async fn a_lock_that_does_not_end_in_time_is_warned_about_once() {
    let output = Output::default();
    let _tracing = output.listen();
    let warnings = || output.text().matches("WARN").count();
    let server = Server::start();
    let url = format!("{}?prefix=app:&max_ttl=1h", server.url());
    let locks = Redis::connect(url).await.unwrap();
    assert_eq!(locks.capabilities().ttl_max, Duration::from_secs(3600));
    let try_twice = async |text: &str| {
        for queue in [false, true] {
            let mut waiting = claim(text, 60_000);
            waiting.on_contention = if queue { OnContention::Queue } else { OnContention::Return };
            contended(locks.try_acquire(&waiting).await);
            locks.release(&waiting, ReleaseMode::now()).await.unwrap();
        }
    };

    let long = claim("long", 3_600_000);
    granted(locks.try_acquire(&long).await);
    try_twice("long").await;
    let _: String = server.command(&["SET", "app:foreign", "hunter2", "PX", "864000000"]);
    try_twice("foreign").await;
    assert_eq!(warnings(), 0, "as it should be: {}", output.text());

    let _: u64 = server.run("PEXPIRE app:long 7200000");
    try_twice("long").await;
    assert_eq!(warnings(), 1, "{}", output.text());
    for hint in ["\"long\"", "app:long", "3600s", "break it"] {
        assert!(output.text().contains(hint), "{hint}: {}", output.text());
    }
    // Within a minute of having been set.
    assert!(
        output.text().contains("remaining=7200s") || output.text().contains("remaining=71"),
        "{}",
        output.text()
    );

    let _: u64 = server.run("PERSIST app:foreign");
    try_twice("foreign").await;
    assert_eq!(warnings(), 2, "{}", output.text());
    assert!(
        output.text().contains("\"foreign\"") && output.text().contains("no expiry"),
        "{}",
        output.text()
    );

    // Once it was ours in between, it is another story.
    let _: u64 = server.run("PERSIST app:long");
    try_twice("long").await;
    assert_eq!(warnings(), 2, "{}", output.text());
    let _: u64 = server.run("DEL app:long");
    let again = claim("long", 60_000);
    granted(locks.try_acquire(&again).await);
    let _: u64 = server.run("PERSIST app:long");
    try_twice("long").await;
    assert_eq!(warnings(), 3, "{}", output.text());

    for secret in ["hunter2", &*long.owner.expose(), &*again.owner.expose()] {
        assert!(!output.text().contains(secret), "{}", output.text());
    }
}
