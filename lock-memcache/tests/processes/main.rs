//! Holders in processes of their own, which are stopped and killed. The waiter is this process, and the
//! server is a real one.
//!
//! The same program is both: with a URL in its environment it is a holder.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use lock_core::clock::{Moment, sleep};
use lock_core::{FenceGate, Locker, Takeover};
use tokio::runtime::Runtime;

mod holder;
#[path = "../support/mod.rs"]
mod support;

use holder::Holder;

/// What a loaded machine may need.
const SLACK: Duration = Duration::from_secs(3);

fn main() -> ExitCode {
    if let Ok(url) = std::env::var(holder::URL) {
        holder::live(&url);
        return ExitCode::SUCCESS;
    }
    let trial = |name: &str, run: fn() -> Result<(), Failed>| Trial::test(name, run);
    let trials = vec![
        trial("a_stopped_holder_finds_the_loss_at_its_first_look", stopped),
        trial("killed_holders_are_replaced_within_their_bound", killed),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn stopped() -> Result<(), Failed> {
    const LEASE: Duration = Duration::from_secs(1);

    let server = support::start();
    let mut holder = Holder::start(&server.url());
    let (old, _) = holder.acquire("n", LEASE)?;
    runtime().block_on(async {
        let locks = Locker::new(support::client(&server).await);
        let waiting = locks.lock("n")?.ttl(Duration::from_secs(60));
        let waiting = tokio::spawn(async move { waiting.acquire().await });
        holder.stop();
        let guard = within(LEASE * 5 + SLACK, waiting).await???;
        holder.cont();
        assert_eq!(holder.ask("look")?, "lost", "before anything else ran in it");
        let gate = FenceGate::new(());
        let new = guard.fencing_token().expect("this backend has tokens");
        assert!(gate.admit(new, |()| ()).is_ok());
        assert!(gate.admit(old, |()| ()).is_err(), "the write of the old holder passed");
        assert_eq!(holder.ask("release")?, "Lost");
        guard.verify().await?;
        guard.release().await?;
        Ok(())
    })
}

/// Each is killed somewhere in what it does, and the next one holds within the declared bound.
fn killed() -> Result<(), Failed> {
    const HOLDERS: u64 = 24;
    const LEASE: Duration = Duration::from_millis(1500);

    let server = support::start();
    runtime().block_on(async {
        let locks = Locker::new(support::client(&server).await);
        let mut all = tokio::task::JoinSet::new();
        for number in 0..HOLDERS {
            let name = format!("n{number}");
            let mut holder = Holder::start(&server.url());
            // It acquires, renews and releases on and on, and is killed somewhere in between.
            holder.tell(&format!("churn {name} {}", LEASE.as_millis()))?;
            let lock = locks.lock(&*name)?.ttl(LEASE);
            all.spawn(async move {
                holder.heard("churning").await;
                sleep(Duration::from_millis(150 + number * 53)).await;
                holder.kill();
                let killed = Moment::now();
                let guard = lock.acquire().await?;
                let took = Moment::now().saturating_since(killed);
                guard.release().await?;
                Ok::<_, lock_core::Error>(took)
            });
        }
        let Takeover::LeasePlus(lingers) = locks.capabilities().takeover else { panic!("a lease") };
        let bound = LEASE + lingers + SLACK;
        let mut takeovers = Vec::new();
        while let Some(took) = all.join_next().await {
            takeovers.push(took??);
        }
        takeovers.sort_unstable();
        let (shortest, longest) = (takeovers[0], takeovers[takeovers.len() - 1]);
        let median = takeovers[takeovers.len() / 2];
        println!("takeover after a kill: {shortest:?}, median {median:?}, {longest:?} at most");
        assert!(longest <= bound, "{longest:?} after the kill, and the bound is {bound:?}");
        Ok(())
    })
}

async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    let late = |_| Failed::from(format!("it did not happen within {bound:?}"));
    tokio::time::timeout(bound, work).await.map_err(late)
}
