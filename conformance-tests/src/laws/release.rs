//! Chapter 4: releases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::backend::{Attempt, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::faults::{Injection, Verb};
use lock_core::{Backend, Error, ErrorKind, LockGuard, RenewalPolicy};
use tokio::task::JoinHandle;

use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;

/// How often a claim comes again while the lock may be on its way to it.
const COMES_AGAIN: usize = 10;

pub(super) async fn a_release_frees_the_lock(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut claim).await?;
    let answer = client.release(&claim, ReleaseMode::now()).await?;
    ensure!(answer == Release::Released, "the release of a held lock was answered {answer:?}");
    ensure!(ctx.is_free(&name("n")).await?, "the lock was released and is not free");

    let locks = ctx.locker().await;
    let guard = locks.lock("n")?.acquire().await?;
    guard.release().await?;
    ensure!(ctx.is_free(&name("n")).await?, "the guard was released and the lock is not free");
    drop(locks.lock("n")?.acquire().await?);
    ensure!(
        ctx.becomes_free(&name("n"), ctx.slack() / 2).await?,
        "the guard was dropped and the lock is not free"
    );
    Ok(())
}

pub(super) async fn a_release_affects_no_other_claim(ctx: Arc<Ctx>) -> Verdict {
    let (ours, theirs) = (ctx.client().await, ctx.client().await);
    let mut late = ctx.claim(&name("n"), false);
    ctx.win(&*ours, &mut late).await?;
    ours.release(&late, ReleaseMode::now()).await?;
    let mut holder = ctx.claim(&name("n"), false);
    ctx.win(&*theirs, &mut holder).await?;
    let stranger = ctx.claim(&name("n"), false);
    for claim in [&late, &stranger] {
        for how in [ReleaseMode::now(), ReleaseMode::after_unknown_outcome()] {
            for client in [&ours, &theirs] {
                let answer = client.release(claim, how).await?;
                ensure!(
                    answer == Release::NotHeld,
                    "a release by no holder was answered {answer:?}"
                );
                ensure!(!ctx.is_free(&name("n")).await?, "a release by no holder freed the lock");
            }
        }
    }
    let answer = theirs.release(&holder, ReleaseMode::now()).await?;
    ensure!(answer == Release::Released, "the holder's own release was answered {answer:?}");
    Ok(())
}

pub(super) async fn a_second_release_is_not_held(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut claim).await?;
    let first = client.release(&claim, ReleaseMode::now()).await?;
    let second = client.release(&claim, ReleaseMode::now()).await?;
    ensure!(
        (first, second) == (Release::Released, Release::NotHeld),
        "two releases in a row were answered {first:?} and {second:?}"
    );
    Ok(())
}

pub(super) async fn a_release_leaves_the_queue(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut holder = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut holder).await?;
    let waiting = ctx.claim(&name("n"), true);
    let answer = client.try_acquire(&waiting).await?;
    ensure!(matches!(answer, Attempt::Contended { .. }), "a held lock was granted");
    let answer = client.release(&waiting, ReleaseMode::now()).await?;
    ensure!(answer == Release::NotHeld, "the release of a waiting claim was answered {answer:?}");
    client.release(&holder, ReleaseMode::now()).await?;
    ensure!(ctx.is_free(&name("n")).await?, "the lock went to a claim that had left the line");
    Ok(())
}

pub(super) async fn a_late_attempt_is_refused(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    for queues in [false, true] {
        let late = ctx.claim(&name("n"), queues);
        client.release(&late, ReleaseMode::after_unknown_outcome()).await?;
        let answer = client.try_acquire(&late).await;
        ensure!(
            !matches!(answer, Ok(Attempt::Acquired(_))),
            "a claim that was let go took the lock when its attempt arrived"
        );
        ensure!(ctx.is_free(&name("n")).await?, "a claim that was let go shut the lock");
    }
    // The attempt that lands late may be the first of two: the second one won.
    let mut won = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut won).await?;
    client.release(&won, ReleaseMode::after_unknown_outcome()).await?;
    won.ticket = None;
    let answer = client.try_acquire(&won).await;
    ensure!(
        !matches!(answer, Ok(Attempt::Acquired(_))),
        "a claim that had won and was let go took the lock again when its first attempt arrived"
    );
    ensure!(ctx.is_free(&name("n")).await?, "a claim that had won and was let go shut the lock");
    Ok(())
}

pub(super) async fn a_released_claim_may_come_again(ctx: Arc<Ctx>) -> Verdict {
    let (ours, theirs) = (ctx.client().await, ctx.client().await);
    for _ in 0..COMES_AGAIN {
        let mut holder = ctx.claim(&name("n"), false);
        ctx.win(&*theirs, &mut holder).await?;
        let mut again = ctx.claim(&name("n"), true);
        let answer = ours.try_acquire(&again).await?;
        ensure!(matches!(answer, Attempt::Contended { .. }), "a held lock was granted");
        // The lock may be on its way to the claim when that is released.
        let now = ReleaseMode::now();
        let (freed, left) = tokio::join!(theirs.release(&holder, now), ours.release(&again, now));
        let (freed, _) = (freed?, left?);
        ensure!(freed == Release::Released, "the holder's release was answered {freed:?}");
        ctx.win(&*ours, &mut again).await?;
        for _ in 0..2 {
            let held = matches!(ours.renew(&[&again]).await.pop(), Some(Ok(Renewal::Held(_))));
            ensure!(held, "a claim that came again lost the lock");
            ensure!(!ctx.is_free(&name("n")).await?, "a claim that came again has no lock");
        }
        let answer = ours.release(&again, now).await?;
        ensure!(answer == Release::Released, "a claim that came again was answered {answer:?}");
    }
    Ok(())
}

pub(super) async fn a_minimum_hold_is_kept_and_not_longer(ctx: Arc<Ctx>) -> Verdict {
    let min_hold = ctx.ttl() / 2;
    let client = ctx.client().await;
    let mut first = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut first).await?;
    // A lease longer than the minimum hold: the hold must end with the latter.
    let lock = ctx.locker().await.lock("n")?.ttl(ctx.ttl() * 4).min_hold(min_hold);
    let second = tokio::spawn(async move { lock.acquire().await });
    // The longer the wait, the older a grant may look that is pushed at its end.
    sleep(ctx.ttl() * 2 / 3).await;
    let before = Moment::now();
    client.release(&first, ReleaseMode::now()).await?;
    let guard = second.await.expect("the waiter does not panic")?;
    let after = Moment::now();
    drop(guard);
    sleep_until(before + min_hold.mul_f64(0.9)).await;
    let latest = after + min_hold + min_hold / 100 + ctx.caps.margin + ctx.slack() / 2;
    let free = becomes_free_at(&ctx, &*client).await?;
    ensure!(
        free >= before + min_hold,
        "free {:?} after the holder before had begun to release, and not for the minimum hold of {min_hold:?}",
        free.saturating_since(before)
    );
    ensure!(free <= latest, "still held after the minimum hold of {min_hold:?}");
    Ok(())
}

/// Polls without a pause that would hide a moment. Returns when the lock was found free, at the
/// latest.
async fn becomes_free_at(ctx: &Ctx, client: &dyn Backend) -> Result<Moment, Violation> {
    let end = Moment::now() + ctx.ttl() * 4;
    loop {
        let mut claim = ctx.claim(&name("n"), false);
        let answer = client.try_acquire(&claim).await?;
        let answered = Moment::now();
        if let Attempt::Acquired(grant) = answer {
            claim.ticket = grant.ticket;
            client.release(&claim, ReleaseMode::now()).await?;
            return Ok(answered);
        }
        ensure!(!end.has_passed(), "still held after four leases");
        sleep(Duration::from_millis(1)).await;
    }
}

pub(super) async fn a_retried_release_reports_gone(ctx: Arc<Ctx>) -> Verdict {
    let releases = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&releases);
    let locks = ctx
        .with_faults(move |call| match call.verb {
            Verb::Release if counted.fetch_add(1, Ordering::SeqCst) == 0 => Injection::LoseReply,
            _ => Injection::None,
        })
        .await
        .build();
    let lock = locks.lock("n")?.renewal(RenewalPolicy::off());
    let guard = lock.acquire().await?;
    // The next one gets in between the release that was applied and its repetition.
    let next = tokio::spawn({
        let locks = ctx.locker().await;
        async move { locks.lock("n")?.acquire().await }
    });
    sleep(Duration::from_millis(1)).await;
    let end = guard.release().await.map_err(|error| error.kind());
    ensure!(releases.load(Ordering::SeqCst) >= 2, "the release was not repeated");
    let next = next.await.expect("the other side does not panic")?;
    ensure!(next.verify().await.is_ok(), "the repeated release harmed the next holder");
    ensure!(
        end == Err(ErrorKind::Gone),
        "the first answer was lost, the lock was gone at the second try, and the release ended as {end:?}"
    );
    Ok(())
}

pub(super) async fn a_failed_release_bounds_the_rest(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.with_faults(|call| match call.verb {
        Verb::Release => Injection::Hang,
        _ => Injection::None,
    });
    let guard = locks.await.build().lock("n")?.acquire().await?;
    let next = start_waiter(&ctx, "n").await?;
    // A renewal is due after a third of the lease.
    sleep(ctx.ttl() / 2).await;
    let ended = guard.release().await;
    is_held_within_the_bound(&ctx, ended, next).await
}

/// The task of a waiter.
pub(super) type Waiting = JoinHandle<Result<LockGuard, Error>>;

/// Starts a task that waits for the lock through another client.
pub(super) async fn start_waiter(ctx: &Ctx, lock: &str) -> Result<Waiting, Violation> {
    let lock = ctx.locker().await.lock(lock)?;
    Ok(tokio::spawn(async move { lock.acquire().await }))
}

/// Checks that `next` holds the lock within the bound in the error of a release.
pub(super) async fn is_held_within_the_bound(
    ctx: &Ctx,
    ended: Result<(), Error>,
    next: Waiting,
) -> Verdict {
    let failed = Moment::now();
    let Err(error) = &ended else { violated!("an unanswered release ended as {ended:?}") };
    let Some(bound) = error.free_within() else {
        violated!("an unanswered release does not say when the lock is free: {error:?}")
    };
    // For the tasks of a loaded machine.
    let allowed = bound + Duration::from_millis(100);
    let Ok(next) = tokio::time::timeout(allowed + ctx.slack() * 4, next).await else {
        violated!("the lock was to be free {bound:?} after its release, and was not much later");
    };
    let next = next.expect("the waiter does not panic")?;
    let took = Moment::now().saturating_since(failed);
    ensure!(took <= allowed, "the lock was to be free within {bound:?}, and was after {took:?}");
    next.release().await?;
    Ok(())
}
