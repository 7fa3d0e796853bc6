//! Managed servers: hidden commands, an old protocol, connections that are closed when idle.

use lock_conformance::helpers::Output;
use lock_core::{Backend, ErrorKind, Locker, Order, Wakeup};
use lock_redis::Redis;
use test_servers::RedisOptions;

use crate::support::{LONG, SOON, Server, eventually};

fn without(commands: &[&str]) -> Server {
    let hide = |options: RedisOptions, name: &&str| options.setting("rename-command", name).and("");
    Server::with_options(commands.iter().fold(RedisOptions::new(), hide))
}

/// Connects, and returns the warnings.
async fn connect(url: &str) -> (Redis, String) {
    let output = Output::default();
    let _default = output.listen();
    let locks = Redis::connect(url).await.unwrap();
    (locks, output.text())
}

/// Passes locks from one client to the other.
async fn locks_change_hands(locks: &Redis, other: &Redis) {
    let guard = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    guard.verify().await.unwrap();
    let next = Locker::new(other.clone()).lock("n").unwrap().ttl(LONG);
    assert!(next.try_acquire().await.unwrap().is_none());
    let waiter = tokio::spawn(async move { next.acquire().await });
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.expect("its turn comes").unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn hidden_commands_that_locks_do_not_need_are_not_missed() {
    let server = without(&["CONFIG", "CLIENT", "DEBUG", "MONITOR", "KEYS", "ROLE"]);
    let (locks, said) = connect(&server.url()).await;
    assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff);
    assert!(said.contains("nothing of changed keys"), "{said}");
    locks_change_hands(&locks, &Redis::connect(server.url()).await.unwrap()).await;
}

#[tokio::test]
async fn missing_optional_commands_cause_a_warning() {
    let server = Server::start();
    let all = "ACL SETUSER u on >pw +@all ~* &*";
    for (right, order, hint) in [
        ("+info", "fifo", None),
        ("-info", "fifo", Some("does not answer INFO")),
        ("+client|tracking", "any", None),
        ("-client|tracking", "any", Some("nothing of changed keys")),
    ] {
        let _: String = server.run(&format!("{all} {right}"));
        let url = format!("redis://u:pw@{}?order={order}", server.addr());
        let (_, said) = connect(&url).await;
        assert_eq!(said.matches("WARN").count(), usize::from(hint.is_some()), "{right}: {said}");
        assert!(said.contains(hint.unwrap_or_default()), "{right}: {said}");
    }
}

#[tokio::test]
async fn an_old_protocol_costs_the_order_and_causes_a_warning() {
    let server = without(&["HELLO"]);
    let (locks, said) = connect(&server.url()).await;
    let caps = locks.capabilities();
    assert_eq!((caps.order, caps.wakeup), (Order::PerProcess, Wakeup::Poll));
    assert!(said.contains("not served in order"), "{said}");
    locks_change_hands(&locks, &Redis::connect(server.url()).await.unwrap()).await;
    let strict = Redis::connect(format!("{}?order=fifo", server.url())).await.unwrap_err();
    assert_eq!(strict.kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn missing_required_commands_are_errors() {
    for command in ["EVALSHA", "SCRIPT", "SUBSCRIBE"] {
        let server = without(&[command]);
        let error = Redis::connect(format!("{}?order=fifo", server.url())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{command}: {error}");
    }
    // Inside scripts, too.
    let server = without(&["PEXPIRE"]);
    let error = Redis::connect(server.url()).await.unwrap_err();
    assert!(error.to_string().contains("+pexpire"), "{error}");
}

#[tokio::test]
async fn connections_that_are_closed_when_idle_are_made_again() {
    let server = Server::with(&[("timeout", "1")]);
    for order in ["fifo", "any"] {
        let connect = || Redis::connect(format!("{}?order={order}", server.url()));
        let (locks, other) = (connect().await.unwrap(), connect().await.unwrap());
        let lock = Locker::new(locks).lock("n").unwrap().ttl(LONG);
        let guard = lock.acquire().await.unwrap();
        let next = Locker::new(other).lock("n").unwrap().ttl(LONG);
        let waiter = tokio::spawn(async move { next.acquire().await });
        let made = || {
            let stats: String = server.run("INFO clients");
            let line = stats.lines().find_map(|line| line.strip_prefix("connected_clients:"));
            line.map_or(0, |count| count.parse::<u64>().expect("a number"))
        };
        if order == "any" {
            // Only clients with requests are connected: the holder's connection has been closed.
            eventually(|| made() <= 2).await;
        }
        guard.release().await.unwrap();
        let guard = tokio::time::timeout(SOON, waiter).await.expect("it is woken").unwrap();
        guard.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_relay_that_drops_idle_connections_is_noticed() {
    let server = Server::start();
    let (proxy, url) = server.proxied();
    let (locks, other) =
        (Redis::connect(&*url).await.unwrap(), Redis::connect(&*url).await.unwrap());
    let guard = Locker::new(locks).lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    let next = Locker::new(other).lock("n").unwrap().ttl(LONG);
    let waiter = tokio::spawn(async move { next.acquire().await });
    for _ in 0..3 {
        eventually(|| server.waiting("n") == 1).await;
        proxy.reset_connections().await;
    }
    // A request before the end of the connection is noticed fails, and is repeated.
    let verified = async { while guard.verify().await.is_err() {} };
    tokio::time::timeout(SOON, verified).await.expect("it is connected again");
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(SOON, waiter).await.expect("it is served").unwrap().unwrap();
    guard.release().await.unwrap();
}
