//! Chapter 8: faults and unknown outcomes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use lock_core::backend::FaultKind;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Injection, Verb};
use lock_core::{Effect, ErrorKind};

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn a_lost_reply_locks_no_client_out(ctx: Arc<Ctx>) -> Verdict {
    for _ in 0..3 {
        // The first attempt is applied, its reply lost: an error, and nothing is left of it. A
        // new locker each time, since the same one would wait for the release under way.
        let locks = ctx
            .with_faults(|call| match call.verb {
                Verb::TryAcquire => Injection::LoseReply,
                _ => Injection::None,
            })
            .await
            .build();
        let Err(error) = locks.lock("n")?.ttl(ctx.ttl()).acquire().await else {
            violated!("an acquisition without any answer succeeded");
        };
        ensure!(
            error.effect() == Effect::Unknown,
            "a lost reply was reported as {:?}",
            error.effect()
        );
        ensure!(
            ctx.becomes_free(&name("n"), ctx.slack() / 2).await?,
            "the lock that was won without knowing it stayed shut"
        );
    }

    // A waiter whose winning attempt loses its reply asks again and finds the lock its own. No
    // signal is there to hand it the lock first.
    let (attempts, lost_at) = (AtomicU32::new(0), Arc::new(OnceLock::new()));
    let noted = Arc::clone(&lost_at);
    let locks = ctx
        .with_faults(move |call| match call.verb {
            Verb::Wait | Verb::WaitLost => Injection::Hang,
            Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 1 => {
                let _ = noted.set(Moment::now());
                Injection::LoseReply
            }
            _ => Injection::None,
        })
        .await
        .build();
    let holder = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let waiter = tokio::spawn({
        let lock = locks.lock("n")?.ttl(ctx.ttl());
        async move { lock.acquire().await }
    });
    sleep(ctx.ttl() / 10).await;
    holder.release().await?;
    let guard = waiter.await.expect("the waiter does not panic")?;
    let lost_at = *lost_at.get().expect("a second attempt was made");
    let served_after = Moment::now().saturating_since(lost_at);
    let bound = ctx.ttl() / 4 + ctx.slack();
    ensure!(
        served_after <= bound,
        "a waiter was locked out by its own attempt: {served_after:?} from the lost reply to the guard"
    );
    drop(guard);
    Ok(())
}

pub(super) async fn a_fault_is_never_contention(ctx: Arc<Ctx>) -> Verdict {
    for injection in [
        Injection::Hang,
        Injection::HangAfter,
        Injection::LoseReply,
        Injection::Refuse(FaultKind::Unavailable),
        Injection::Refuse(FaultKind::Denied),
    ] {
        let locks = ctx
            .with_faults(move |call| match call.verb {
                Verb::TryAcquire => injection,
                _ => Injection::None,
            })
            .await
            .build();
        let lock = locks.lock("n")?.ttl(ctx.ttl());
        for wait in [None, Some(ctx.timeout() / 10), Some(ctx.timeout() * 2)] {
            let started = Moment::now();
            let answer = match wait {
                None => lock.try_acquire().await,
                Some(wait) => lock.try_acquire_for(wait).await,
            };
            let bound = wait.unwrap_or_default().max(ctx.timeout()) + ctx.slack();
            let took = Moment::now().saturating_since(started);
            ensure!(took <= bound, "with {injection:?}, a call bounded by {bound:?} took {took:?}");
            let kind = match answer {
                Err(error) => error.kind(),
                Ok(answer) => {
                    let what = if answer.is_some() { "a grant" } else { "contention" };
                    violated!("with {injection:?}, an attempt without answer ended as {what}");
                }
            };
            let expected = match injection {
                Injection::Refuse(FaultKind::Denied) => kind == ErrorKind::Denied,
                _ => matches!(kind, ErrorKind::Timeout | ErrorKind::Unavailable),
            };
            ensure!(expected, "with {injection:?}, the error is {kind:?}");
        }
        ensure!(
            ctx.becomes_free(&name("n"), ctx.slack()).await?,
            "{injection:?} left the lock shut"
        );
    }

    let holder = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let lock = ctx.locker().await.lock("n")?.ttl(ctx.ttl());
    ensure!(lock.try_acquire().await?.is_none(), "a held lock was granted");
    ensure!(lock.try_acquire_for(ctx.ttl() / 20).await?.is_none(), "a held lock was granted");
    drop(holder);
    Ok(())
}
