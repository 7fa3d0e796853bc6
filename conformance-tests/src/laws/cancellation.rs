//! Chapter 7: futures that are dropped half-way.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::backend::ReleaseMode;
use lock_core::clock::sleep;
use lock_core::faults::{Call, Injection};
use lock_core::{LockGuard, LockName, Wakeup};

use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;

/// More polls than any operation in these checks needs.
const MOST_POLLS: usize = 40;

/// Delays every answer by a moment, so that there is an await to drop at.
fn slow(_: &Call<'_>) -> Injection {
    Injection::DelayReply(Duration::from_millis(1))
}

/// Polls `future` `polls` times and drops it. True if it had ended by then.
pub(super) async fn poll_and_drop<F: Future>(future: F, polls: usize) -> bool {
    poll_at_most(future, polls).await.is_some()
}

/// Polls `future` `polls` times and drops it. Returns its output if it had ended by then.
async fn poll_at_most<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    std::future::poll_fn(|cx| {
        if polled == polls {
            return Poll::Ready(None);
        }
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The last poll is followed by the drop at once.
            Poll::Pending if polled == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

pub(super) async fn a_dropped_acquisition_leaves_nothing(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.with_faults(slow).await.build();
    // A grant to the dropped waiter passes on at once where there are signals. Without signals, the
    // neighbour's next poll finds it.
    let bound = match ctx.caps.wakeup {
        Wakeup::Poll => ctx.ttl().mul_f64(1.1) + ctx.slack(),
        Wakeup::Signal | Wakeup::HandOff => ctx.slack(),
    };
    for polls in 0..MOST_POLLS {
        // Free: the grant may be on its way when the future is dropped.
        let lock = locks.lock("free")?.ttl(ctx.ttl());
        poll_and_drop(lock.acquire(), polls).await;
        ensure!(
            ctx.becomes_free(&name("free"), ctx.slack() / 2).await?,
            "an acquisition dropped after {polls} polls left the lock shut"
        );

        // Held: the claim waits, or is being handed the lock, when the future is dropped.
        let client = ctx.client().await;
        let mut holder = ctx.claim(&name("held"), false);
        ctx.win(&*client, &mut holder).await?;
        let lock = locks.lock("held")?.ttl(ctx.ttl());
        let dropping = tokio::spawn(async move { poll_and_drop(lock.acquire(), polls).await });
        let neighbour = tokio::spawn({
            let lock = locks.lock("held")?.ttl(ctx.ttl());
            async move { lock.acquire().await }
        });
        sleep(Duration::from_millis(polls as u64 % 5)).await;
        client.release(&holder, ReleaseMode::now()).await?;
        let Ok(served) = tokio::time::timeout(bound, neighbour).await else {
            violated!(
                "the neighbour of an acquisition dropped after {polls} polls was not served within {bound:?}"
            );
        };
        served.expect("the neighbour does not panic")?.release().await?;
        dropping.abort();
        ensure!(
            ctx.becomes_free(&name("held"), ctx.slack() / 2).await?,
            "a waiting acquisition dropped after {polls} polls left the lock shut"
        );
    }
    Ok(())
}

pub(super) async fn a_dropped_release_is_finished(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.with_faults(slow).await.build();
    for polls in 0..MOST_POLLS / 4 {
        let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
        poll_and_drop(guard.release(), polls).await;
        ensure!(
            ctx.becomes_free(&name("n"), ctx.slack() / 2).await?,
            "a release dropped after {polls} polls left the lock shut"
        );
        let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
        poll_and_drop(guard.verify(), polls).await;
        ensure!(guard.is_held(), "a verification dropped after {polls} polls lost the lock");
        drop(guard);
        ensure!(
            ctx.becomes_free(&name("n"), ctx.slack() / 2).await?,
            "a dropped guard kept its lock"
        );
    }
    Ok(())
}

pub(super) async fn a_dropped_acquisition_keeps_no_minimum_hold(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.with_faults(slow).await.build();
    let mut delivered = None;
    for polls in 1..MOST_POLLS {
        // A delivered guard keeps its minimum hold, so each trial has a lock of its own.
        let free = name(&format!("free {polls}"));
        let lock = locks.lock(&free)?.ttl(ctx.ttl()).min_hold(ctx.ttl() * 3);
        if let Some(guard) = poll_at_most(lock.acquire(), polls).await {
            delivered = Some((polls, guard?));
            break;
        }
        kept_by_none(&ctx, &free, polls).await?;
    }
    let Some((polls, guard)) = delivered else {
        violated!("an acquisition of a free lock did not end within {MOST_POLLS} polls");
    };
    ensure!(polls > 1, "the answer to an attempt is delayed, and the first poll had it");
    ensure!(guard.is_held(), "a guard was delivered after {polls} polls and does not hold");
    a_dropped_waiter_keeps_no_minimum_hold(&ctx).await
}

/// Drops a waiter while the lock passes to it.
async fn a_dropped_waiter_keeps_no_minimum_hold(ctx: &Ctx) -> Verdict {
    let locks = ctx.with_faults(slow).await.build();
    for moment in 0..5 {
        let held = name(&format!("held {moment}"));
        let client = ctx.client().await;
        let mut holder = ctx.claim(&held, false);
        ctx.win(&*client, &mut holder).await?;
        let lock = locks.lock(&held)?.ttl(ctx.ttl()).min_hold(ctx.ttl() * 3);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        sleep(Duration::from_millis(5)).await;
        client.release(&holder, ReleaseMode::now()).await?;
        sleep(Duration::from_millis(moment)).await;
        waiting.abort();
        let won: Option<LockGuard> = waiting.await.ok().transpose()?;
        if won.is_none() {
            kept_by_none(ctx, &held, 0).await?;
        }
    }
    Ok(())
}

/// Less than the minimum hold, and than a lease.
async fn kept_by_none(ctx: &Ctx, name: &LockName, polls: usize) -> Result<(), Violation> {
    ensure!(
        ctx.becomes_free(name, ctx.ttl() / 3).await?,
        "{name}: an acquisition dropped after {polls} polls (0: while it waited) keeps others out"
    );
    Ok(())
}
