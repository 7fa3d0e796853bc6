//! Clients in processes of their own that are stopped, killed, or end in unusual ways.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use lock_conformance::helpers::eventually;
use lock_core::Locker;
use lock_core::clock::Moment;
use lock_redis::Redis;
use test_servers::peers::holders;
use test_servers::{Redis as Server, RedisOptions};

/// The delay that a loaded machine may add.
const SLACK: Duration = Duration::from_secs(3);

/// A lease that outlasts every test: no poll of a waiter is due.
const LONG: Duration = Duration::from_secs(300);

/// The time for which a sent lock waits for a request of its owner.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let start_one = || {
        let server = start();
        let url = server.url();
        (server, url)
    };
    let more = [
        Trial::test("waiters_that_were_killed_cost_nothing", || runtime().block_on(killed())),
        Trial::test("a_stopped_process_with_many_waiters_costs_one_claim_lease", || {
            runtime().block_on(stopped())
        }),
    ];
    holders::run(start_one, |url| async { Locker::new(Redis::connect(url).await.unwrap()) }, more)
}

async fn killed() -> Result<(), Failed> {
    let server = start();
    let locks = locker(&server).await;
    let lock = locks.lock("n")?.ttl(LONG);
    let guard = lock.acquire().await?;
    let mut killed = Vec::new();
    for number in 1..=3 {
        let mut process = holders::start(&server.url());
        process.tell(&format!("queue n {} 10", LONG.as_millis()));
        eventually(|| waiting_in(&server) == number * 10).await;
        killed.push(process);
    }
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually(|| waiting_in(&server) == 31).await;
    killed.into_iter().for_each(|mut process| process.kill());
    eventually(|| channels(&server) == 1).await;
    let owner = guard.owner().expose();
    guard.release().await?;
    // The release itself granted the lock to the process that is alive.
    let holder = said(&server, "GET n");
    assert!(!holder.starts_with(&*owner));
    let guard = within(SLACK, waiting).await???;
    assert!(holder.starts_with(&*guard.owner().expose()));
    guard.release().await?;
    eventually(|| said(&server, "KEYS *") == "{n}%token").await;
    Ok(())
}

async fn stopped() -> Result<(), Failed> {
    const WAITERS: usize = 100;

    let server = start();
    let locks = locker(&server).await;
    let lock = locks.lock("n")?.ttl(LONG);
    let guard = lock.acquire().await?;
    let mut process = holders::start(&server.url());
    process.tell(&format!("queue n {} {WAITERS}", LONG.as_millis()));
    eventually(|| waiting_in(&server) == WAITERS).await;
    let last = locker(&server).await.lock("n")?.ttl(LONG);
    let waiting = tokio::spawn(async move { last.acquire().await });
    eventually(|| waiting_in(&server) == WAITERS + 1).await;
    process.stop();
    guard.release().await?;
    let released = Moment::now();
    let guard = within(CLAIM_LEASE + SLACK, waiting).await???;
    let took = Moment::now().saturating_since(released);
    println!("a stopped process with {WAITERS} waiters cost {took:?}");
    // It continues, and all of its waiters are served after all.
    process.cont();
    eventually(|| waiting_in(&server) == WAITERS).await;
    guard.release().await?;
    eventually(|| said(&server, "KEYS *") == "{n}%token").await;
    Ok(())
}

fn start() -> Server {
    Server::start(RedisOptions::new())
}

async fn locker(server: &Server) -> Locker {
    Locker::new(Redis::connect(server.url()).await.expect("the server takes us"))
}

/// Returns the number of waiters that are queued for `n`.
fn waiting_in(server: &Server) -> usize {
    said(server, "ZCARD {n}%queue").parse().expect("a number")
}

/// Returns the number of processes that are subscribed.
fn channels(server: &Server) -> usize {
    said(server, "PUBSUB CHANNELS").lines().count()
}

/// Returns the server's answer to an operator: one line for each element.
fn said(server: &Server, command: &str) -> String {
    server.command(&command.split(' ').collect::<Vec<_>>()).text()
}

async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    let late = |_| Failed::from(format!("it did not happen within {bound:?}"));
    tokio::time::timeout(bound, work).await.map_err(late)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be made")
}
