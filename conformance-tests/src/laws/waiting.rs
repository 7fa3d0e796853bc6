//! Chapter 6: waiting.

use std::sync::{Arc, Mutex};

use lock_core::backend::{Attempt, QUEUE_ENTRY_GRACE, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Injection, Verb};
use lock_core::{Locker, RenewalPolicy};

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn a_waiter_is_served_without_any_signal(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx
        .with_faults(|call| match call.verb {
            Verb::Wait | Verb::WaitLost => Injection::Hang,
            _ => Injection::None,
        })
        .await
        .build();
    let holder = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let waiter = tokio::spawn({
        let lock = locks.lock("n")?.ttl(ctx.ttl());
        async move { lock.acquire().await }
    });
    sleep(ctx.ttl() / 2).await;
    holder.release().await?;
    let released = Moment::now();
    let served = tokio::time::timeout(ctx.ttl() * 20, waiter).await;
    let Ok(served) = served else {
        violated!("the lock is free, and the waiter was not served within twenty leases");
    };
    let guard = served.expect("the waiter does not panic")?;
    let waited = Moment::now().saturating_since(released);
    let bound = ctx.ttl().mul_f64(1.1) + ctx.slack();
    ensure!(waited <= bound, "served {waited:?} after the release, the bound is {bound:?}");
    drop(guard);
    Ok(())
}

pub(super) async fn a_signal_wakes(ctx: Arc<Ctx>) -> Verdict {
    // A lease so long that the waiter's own next look is far away.
    let ttl = (ctx.ttl() * 20).min(ctx.caps.ttl_max);
    let holder = ctx.locker().await.lock("n")?.ttl(ttl).acquire().await?;
    let lock = ctx.locker().await.lock("n")?.ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(ctx.ttl() / 2).await;
    holder.release().await?;
    let served = tokio::time::timeout(ctx.slack(), waiter).await;
    ensure!(served.is_ok(), "not served within {:?} of the release", ctx.slack());
    Ok(())
}

pub(super) async fn waiters_are_served_in_order(ctx: Arc<Ctx>) -> Verdict {
    let mut lockers = Vec::new();
    for _ in 0..10 {
        lockers.push(ctx.locker().await);
    }
    served_in_order(&ctx, &lockers).await
}

pub(super) async fn one_process_is_served_in_order(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    served_in_order(&ctx, &vec![locks; 10]).await
}

async fn served_in_order(ctx: &Ctx, lockers: &[Locker]) -> Verdict {
    let holder = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for (i, locks) in lockers.iter().enumerate() {
        let (lock, served) = (locks.lock("n")?.ttl(ctx.ttl()), Arc::clone(&served));
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            served.lock().unwrap().push(i);
            guard.release().await
        }));
        // Long enough for its first attempt to be answered.
        sleep(ctx.slack() / 100).await;
    }
    sleep(ctx.ttl() / 4).await;
    holder.release().await?;
    for waiter in waiters {
        waiter.await.expect("a waiter does not panic")?;
    }
    let served = served.lock().unwrap();
    ensure!(
        served.is_sorted(),
        "ten waiters that came one after another were served as {served:?}"
    );
    Ok(())
}

pub(super) async fn a_try_leaves_no_queue_entry(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut holder = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut holder).await?;
    for _ in 0..5 {
        let tried = client.try_acquire(&ctx.claim(&name("n"), false)).await?;
        ensure!(matches!(tried, Attempt::Contended { .. }), "a held lock was granted");
    }
    let locks = ctx.locker().await;
    ensure!(locks.lock("n")?.try_acquire().await?.is_none(), "a held lock was granted to a try");
    client.release(&holder, ReleaseMode::now()).await?;
    ensure!(ctx.is_free(&name("n")).await?, "the lock was handed to a try that had failed");
    Ok(())
}

pub(super) async fn a_queue_entry_expires(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut holder = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut holder).await?;
    let vanished = ctx.claim(&name("n"), true);
    let contended = ctx.client().await.try_acquire(&vanished).await?;
    ensure!(matches!(contended, Attempt::Contended { .. }), "a held lock was granted");
    let lapsed = Moment::now() + vanished.ttl * 2 + QUEUE_ENTRY_GRACE + ctx.slack();
    while !lapsed.has_passed() {
        sleep(ctx.ttl() / 3).await;
        client.renew(&[&holder]).await.remove(0)?;
    }
    client.release(&holder, ReleaseMode::now()).await?;
    ensure!(ctx.is_free(&name("n")).await?, "the lock was handed to somebody who had vanished");
    Ok(())
}

pub(super) async fn a_crashed_holder_is_replaced(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let crashable = ctx.crashable_client().await;
    let mut claim = ctx.claim(&name("n"), false);
    let before = Moment::now();
    ctx.win(crashable.client(), &mut claim).await?;
    let after = Moment::now();
    let lock = locks.lock("n")?.ttl(ctx.ttl()).renewal(RenewalPolicy::off());
    let waiter = tokio::spawn(async move {
        let guard = lock.acquire().await;
        (Moment::now(), guard)
    });
    sleep(ctx.ttl() / 10).await;
    drop(claim);
    crashable.crash();
    let bound = ctx.takeover_bound() + ctx.slack();
    let Ok(served) = tokio::time::timeout(bound + ctx.ttl(), waiter).await else {
        violated!("nobody replaced the crashed holder within {:?}", bound + ctx.ttl());
    };
    let (taken_at, guard) = served.expect("the waiter does not panic");
    drop(guard?);
    let waited = taken_at.saturating_since(after);
    ensure!(waited <= bound, "replaced after {waited:?}, the bound is {bound:?}");
    if ctx.has_leases() {
        let margin = ctx.ttl() / 100 + ctx.caps.margin;
        let early = (before + ctx.ttl().saturating_sub(margin)).saturating_since(taken_at);
        ensure!(early.is_zero(), "replaced {early:?} before the holder's own deadline");
    }
    Ok(())
}
