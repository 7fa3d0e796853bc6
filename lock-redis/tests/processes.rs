//! Clients in processes of their own, which are stopped, killed, or end in odd ways.

use std::process::ExitCode;
use std::time::Duration;

use conformance_tests::peers::holders;
use libtest_mimic::{Failed, Trial};
use lock_core::Locker;
use lock_core::clock::Moment;
use lock_redis::Redis;

mod support;

use support::{Server, eventually};

/// What a loaded machine may need.
const SLACK: Duration = Duration::from_secs(3);

/// So long that nobody's own next look comes while a trial runs.
const LONG: Duration = Duration::from_secs(300);

/// How long a lock that was sent waits for a word of its owner.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    let start = || {
        let server = Server::start();
        let url = server.url();
        (server, url)
    };
    let more = [
        Trial::test("waiters_that_were_killed_cost_nothing", || runtime().block_on(killed())),
        Trial::test("a_stopped_process_with_many_waiters_costs_one_claim_lease", || {
            runtime().block_on(stopped())
        }),
    ];
    holders::run(start, |url| async { Locker::new(Redis::connect(url).await.unwrap()) }, more)
}

async fn killed() -> Result<(), Failed> {
    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n")?.ttl(LONG);
    let guard = lock.acquire().await?;
    let mut killed = Vec::new();
    for number in 1..=3 {
        let mut process = holders::start(&server.url());
        process.tell(&format!("queue n {} 10", LONG.as_millis()));
        eventually(|| server.waiting("n") == number * 10).await;
        killed.push(process);
    }
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.waiting("n") == 31).await;
    killed.into_iter().for_each(|mut process| process.kill());
    eventually(|| channels(&server) == 1).await;
    let owner = guard.owner().expose();
    guard.release().await?;
    // Given to the one who lives by the release itself.
    let holder = server.get("n").expect("it was handed over");
    assert!(!holder.starts_with(&*owner));
    let guard = within(SLACK, waiting).await???;
    assert!(holder.starts_with(&*guard.owner().expose()));
    guard.release().await?;
    eventually(|| server.keys() == ["{n}%fence"]).await;
    Ok(())
}

async fn stopped() -> Result<(), Failed> {
    const WAITERS: u64 = 100;

    let server = Server::start();
    let locks = Locker::new(server.client().await);
    let lock = locks.lock("n")?.ttl(LONG);
    let guard = lock.acquire().await?;
    let mut process = holders::start(&server.url());
    process.tell(&format!("queue n {} {WAITERS}", LONG.as_millis()));
    eventually(|| server.waiting("n") == WAITERS).await;
    let last = Locker::new(server.client().await).lock("n")?.ttl(LONG);
    let waiting = tokio::spawn(async move { last.acquire().await });
    eventually(|| server.waiting("n") == WAITERS + 1).await;
    process.stop();
    guard.release().await?;
    let released = Moment::now();
    let guard = within(CLAIM_LEASE + SLACK, waiting).await???;
    let took = Moment::now().saturating_since(released);
    println!("a stopped process with {WAITERS} waiters cost {took:?}");
    // It goes on, and all of its waiters are served after all.
    process.cont();
    eventually(|| server.waiting("n") == WAITERS).await;
    guard.release().await?;
    eventually(|| server.keys() == ["{n}%fence"]).await;
    Ok(())
}

/// How many processes listen.
fn channels(server: &Server) -> usize {
    server.run::<Vec<String>>("PUBSUB CHANNELS").len()
}

async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    let late = |_| Failed::from(format!("it did not happen within {bound:?}"));
    tokio::time::timeout(bound, work).await.map_err(late)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be made")
}
