//! Lists of held locks: the keys that a scan shows, and those that it omits.

use std::collections::HashSet;

use lock_core::backend::{FaultKind, ReleaseMode};
use lock_core::{Backend, Label, LockName};
use lock_redis::Redis;
use test_servers::RedisCluster;

use crate::cluster::{connect, name_at, options};
use crate::support::{LONG, Server, claim, contended, name, win};

async fn listed(locks: &Redis, prefix: &str) -> Vec<String> {
    let page = locks.list(prefix, None, 1000).await.unwrap();
    page.iter().map(|listed| listed.name.as_str().to_owned()).collect()
}

/// Acquires a lock for a long time.
async fn hold(locks: &Redis, text: &str) -> lock_core::backend::Claim {
    let mut held = claim(text, LONG.as_millis() as u64);
    win(locks, &mut held).await;
    held
}

#[tokio::test]
async fn without_a_prefix_only_locks_of_ours_are_listed() {
    let server = Server::start();
    let locks = server.client().await;
    let _: String = server.run("SET session:1 text");
    let _: String = server.run("SET n1 00112233445566778899aabbccddeeff");
    let _: u64 = server.run("RPUSH n2 00112233445566778899aabbccddeeff");
    let _: String = server.command(&["SET", "jobs/foreign", "theirs", "PX", "300000"]);
    hold(&locks, "jobs/ours").await;
    assert_eq!(listed(&locks, "").await, ["jobs/ours"]);
    assert_eq!(listed(&locks, "jobs/").await, ["jobs/foreign", "jobs/ours"]);
    assert_eq!(listed(&locks, "n").await, ["n1"], "a list of the application is no lock");
    let page = locks.list("jobs/", None, 1).await.unwrap();
    let mut inspected = locks.inspect(&name("jobs/foreign")).await.unwrap();
    assert!(inspected.holders[0].expires_in <= page[0].state.holders[0].expires_in);
    inspected.holders[0].expires_in = page[0].state.holders[0].expires_in;
    assert_eq!(page[0].state, inspected);
}

#[tokio::test]
async fn a_prefix_of_the_keys_makes_each_string_below_it_a_lock() {
    let server = Server::start();
    let locks = Redis::connect(format!("{}?prefix=app:", server.url())).await.unwrap();
    let _: String = server.run("SET app:theirs text");
    let _: String = server.run("SET other text");
    hold(&locks, "ours").await;
    assert_eq!(listed(&locks, "").await, ["ours", "theirs"]);
}

#[tokio::test]
async fn companion_keys_are_no_locks_and_waiters_are_counted() {
    for prefix in ["", "app:", "{app}:"] {
        for exact in ["", "&names=exact"] {
            let server = Server::start();
            let url = format!("{}?prefix={prefix}{exact}", server.url());
            let locks = Redis::connect(url).await.unwrap();
            hold(&locks, "n").await;
            let mut waiter = claim("n", 60_000);
            waiter.on_contention = lock_core::backend::OnContention::Queue;
            contended(locks.try_acquire(&waiter).await);
            let late = claim("gone", 60_000);
            locks.release(&late, ReleaseMode::after_unknown_outcome()).await.unwrap();
            assert!(server.keys().len() >= 5, "{:?}", server.keys());
            let page = locks.list("", None, 10).await.unwrap();
            let [listed] = page.as_slice() else { panic!("{page:?}") };
            assert_eq!(listed.name, name("n"));
            assert_eq!(listed.state.waiting, Some(1));
        }
    }
}

#[tokio::test]
async fn names_are_listed_as_they_were_given() {
    let server = Server::start();
    let locks = Redis::connect(format!("{}?prefix=app:", server.url())).await.unwrap();
    let mut names =
        vec!["é 1", "a:b", "a*b", "a?", "[a]", "a\\", "a{b", "a}b", "{t}x", "\u{1b}[31m", ".."];
    for name in &names {
        hold(&locks, name).await;
    }
    names.sort_unstable();
    assert_eq!(listed(&locks, "").await, names);
    for name in &names {
        let begins = names.iter().filter(|other| other.starts_with(name));
        assert_eq!(listed(&locks, name).await, begins.copied().collect::<Vec<_>>(), "{name:?}");
    }
}

#[tokio::test]
async fn a_name_that_is_too_long_to_be_decoded_is_counted_in_a_warning() {
    let server = Server::start();
    let locks = server.client().await;
    hold(&locks, &"x".repeat(300)).await;
    hold(&locks, "short").await;
    let warnings = crate::support::Output::default();
    let listening = warnings.listen();
    assert_eq!(listed(&locks, "").await, ["short"]);
    drop(listening);
    assert!(warnings.text().contains("hidden=1"), "{}", warnings.text());
}

#[tokio::test]
async fn pages_cover_more_locks_than_one_step_of_a_scan() {
    let server = Server::start();
    let locks = server.client().await;
    let mut pipe = redis::pipe();
    for i in 0..4321 {
        let value = "00112233445566778899aabbccddeeff 17 web";
        pipe.cmd("SET").arg(format!("n{i:05}")).arg(value).arg("PX").arg(300_000).ignore();
    }
    pipe.query::<()>(&mut server.operator()).unwrap();
    let (mut seen, mut last): (Vec<LockName>, Option<LockName>) = (Vec::new(), None);
    loop {
        let page = locks.list("", last.as_ref(), 2000).await.unwrap();
        assert!(page.iter().all(|it| it.state.holders[0].label == Some(Label::new("web"))));
        seen.extend(page.iter().map(|listed| listed.name.clone()));
        last = seen.last().cloned();
        if page.len() < 2000 {
            break;
        }
    }
    assert!(seen.iter().map(LockName::as_str).eq((0..4321).map(|i| format!("n{i:05}"))));
}

#[tokio::test]
async fn a_list_of_a_cluster_has_the_locks_of_all_masters_once() {
    let cluster = RedisCluster::start(&options(), 3, 0);
    let locks = connect(&cluster).await;
    let mut names: Vec<String> = (0..3).map(|member| name_at(&cluster, member)).collect();
    for name in &names {
        hold(&locks, name).await;
    }
    names.sort_unstable();
    assert_eq!(listed(&locks, "").await, names);
    assert_eq!(listed(&locks, "n").await, names);

    // A slot in the middle of its move: its keys are on both members.
    let moving = name_at(&cluster, 0);
    let slot = cluster.slot(&moving);
    cluster.open_slot(slot, 0, 1);
    assert_eq!(listed(&locks, "").await, names);
    let keys = [&moving, &format!("{{{moving}}}%token")];
    keys.iter().for_each(|key| cluster.move_key(key, 0, 1));
    assert_eq!(listed(&locks, "").await, names, "the lock is on the new member");
    cluster.finish_slot(slot, 0, 1);
    assert_eq!(listed(&locks, "").await, names);
    let unique: HashSet<_> = names.iter().collect();
    assert_eq!(unique.len(), 3);
}

#[tokio::test]
async fn a_list_without_some_masters_is_an_error() {
    let cluster = RedisCluster::start(&options(), 3, 0);
    let locks = connect(&cluster).await;
    hold(&locks, &name_at(&cluster, 0)).await;
    cluster.member(2).kill();
    let fault = locks.list("", None, 10).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault:?}");
}
