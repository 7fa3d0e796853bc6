//! Chapter 13: with a server that stops, dies and forgets.

use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::{Moment, sleep};
use lock_core::{Fencing, LockGuard, Loss};
use tokio::task::JoinSet;

use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::harness::KeepData;
use crate::helpers::name;

/// A lease whose end explains nothing that happens in these checks.
const LONG: Duration = Duration::from_secs(300);

pub(super) async fn a_stopped_server_strands_no_lock(ctx: Arc<Ctx>) -> Verdict {
    let lock = ctx.locker().await.lock("n")?.ttl(LONG);
    // So that there is a connection: in a cluster, to the very member that has this lock.
    lock.acquire().await?.release().await?;
    ctx.server().stop();
    let ended = lock.try_acquire().await;
    ctx.server().cont();
    let Err(error) = &ended else { violated!("a stopped server answered: {ended:?}") };
    ensure!(error.is_retryable(), "a server that did not answer in time ended as {error:?}");
    let bound = ctx.timeout() * 2 + ctx.slack();
    ensure!(
        ctx.becomes_free(&name("n"), bound).await?,
        "an attempt that the server ran after it was given up keeps the lock shut"
    );
    Ok(())
}

pub(super) async fn a_stopped_server_is_a_loss_in_time(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let deadline = Moment::now() + guard.valid_for().unwrap_or_default();
    ctx.server().stop();
    let told = tokio::time::timeout(deadline.remaining() + ctx.slack(), guard.lost()).await;
    ctx.server().cont();
    ensure!(told == Ok(Loss::Expired), "by its deadline, the holder was told {told:?}");
    sleep(ctx.ttl()).await;
    ensure!(!guard.is_held(), "the server went on, and a lost lock is held again");
    let next = ctx.locker().await.lock("n")?;
    let bound = ctx.takeover_bound() + ctx.slack();
    let taken = tokio::time::timeout(bound, next.acquire()).await;
    ensure!(matches!(taken, Ok(Ok(_))), "after the stop nobody gets the lock: {taken:?}");
    Ok(())
}

pub(super) async fn a_killed_server_is_waited_for(ctx: Arc<Ctx>) -> Verdict {
    const LOCKS: usize = 4;
    const WAITERS: usize = 3;

    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for lock in 0..LOCKS {
        let lock = format!("n{lock}");
        let locks = ctx.locker().await;
        let guard = locks.lock(&*lock)?.ttl(ctx.ttl()).acquire().await?;
        for _ in 0..WAITERS {
            let wanted = ctx.locker().await.lock(&*lock)?.ttl(ctx.ttl());
            let name = lock.clone();
            waiting.spawn(async move {
                let guard = wanted.acquire().await?;
                let token = guard.fencing_token();
                guard.release().await?;
                Ok::<_, lock_core::Error>((name, token))
            });
        }
        held.push(guard);
    }
    // So that all have been contended.
    sleep(Duration::from_millis(300)).await;
    ctx.server().kill();
    told_in_time(&ctx, &held).await?;
    // Durable tokens need a server that keeps its acknowledged writes.
    let is_durable = ctx.caps.fencing == Fencing::Durable;
    ctx.server().restart(if is_durable { KeepData::Yes } else { KeepData::No });

    // A second is the longest pause of a waiter during an outage. The server's queue entries of
    // other waiters expire by themselves.
    let kept = if is_durable { ctx.takeover_bound() } else { Duration::ZERO };
    let bound = Moment::now() + kept + Duration::from_secs(1) + ctx.timeout() + ctx.slack();
    let mut served = Vec::new();
    while let Ok(next) = tokio::time::timeout(bound.remaining(), waiting.join_next()).await {
        let Some(next) = next else { break };
        served.push(next.expect("a waiter does not panic")?);
    }
    ensure!(
        served.len() == LOCKS * WAITERS,
        "only {} of {} waiters were served after the server was back",
        served.len(),
        LOCKS * WAITERS
    );
    for (lock, token) in served {
        let before = held.iter().find(|guard| guard.name().as_str() == lock);
        let before = before.and_then(LockGuard::fencing_token);
        ensure!(token > before || token.is_none(), "{lock}: {token:?} after {before:?}");
    }
    Ok(())
}

pub(super) async fn older_data_cost_one_lease_in_all(ctx: Arc<Ctx>) -> Verdict {
    const WAITERS: usize = 12;

    let processes = [ctx.locker().await, ctx.locker().await];
    let holder = processes[0].lock("n")?.acquire().await?;
    let mut waiting = JoinSet::new();
    for waiter in 0..WAITERS {
        let lock = processes[waiter % processes.len()].lock("n")?;
        waiting.spawn(async move { lock.acquire().await?.release().await });
    }
    // So that all of them are in the queue.
    sleep(Duration::from_millis(300)).await;
    ctx.server().save();
    let saved = Moment::now();
    holder.release().await?;
    while let Some(served) = waiting.join_next().await {
        served.expect("a waiter does not panic")?;
    }

    // The saved data name the holder, too: its lease ends first.
    sleep((saved + ctx.takeover_bound()).remaining()).await;
    ctx.server().kill();
    ctx.server().restart(KeepData::Yes);
    let next = ctx.locker().await.lock("n")?;
    let bound = ctx.takeover_bound() + Duration::from_millis(100);
    let connected_by = Moment::now() + ctx.timeout() * 10;
    let granted = loop {
        let granted = tokio::time::timeout(bound + ctx.slack(), next.acquire()).await;
        // The time counts from the first write that the server accepts: it may need its replicas
        // for that.
        let is_refused = matches!(&granted, Ok(Err(error)) if error.is_retryable());
        if !is_refused || connected_by.has_passed() {
            break granted;
        }
        sleep(Duration::from_millis(20)).await;
    };
    ensure!(
        matches!(granted, Ok(Ok(_))),
        "{WAITERS} waiters of older data were served long ago, and nobody was granted the lock within {bound:?}: {granted:?}"
    );
    Ok(())
}

/// Checks that each holder is notified of its loss by its deadline.
async fn told_in_time(ctx: &Ctx, held: &[LockGuard]) -> Result<(), Violation> {
    for guard in held {
        let left = guard.valid_for().unwrap_or_default() + ctx.slack();
        let told = tokio::time::timeout(left, guard.lost()).await;
        ensure!(told.is_ok(), "the holder of {} was not told by its deadline", guard.name());
    }
    Ok(())
}
