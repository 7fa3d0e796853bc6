//! Chapter 3: loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lock_core::backend::ReleaseMode;
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::faults::{Injection, Verb};
use lock_core::{ErrorKind, LockGuard, Loss, RenewalPolicy};

use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;

pub(super) async fn a_removal_is_noticed(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let signal = guard.loss_signal();
    ensure!(ctx.take_away(&name("n"), guard.owner()).await?, "the lock could not be taken away");
    // By the next renewal, a third of the lease away at the latest.
    let told = tokio::time::timeout(ctx.ttl() / 3 + ctx.slack(), guard.lost()).await;
    ensure!(told.is_ok(), "the holder was not told by its next renewal");
    ensure!(
        !guard.is_held() && signal.loss().is_some(),
        "lost() resolved, and is_held() says true"
    );
    let end = guard.release().await;
    ensure!(
        end.as_ref().is_err_and(|e| e.kind() == ErrorKind::Lost),
        "releasing a lost lock ended as {end:?}"
    );

    let guard = locks.lock("m")?.ttl(ctx.ttl()).acquire().await?;
    ctx.take_away(&name("m"), guard.owner()).await?;
    let end = guard.release().await.map_err(|error| error.kind());
    ensure!(
        matches!(end, Err(ErrorKind::NotHeld | ErrorKind::Lost)),
        "releasing a lock that was taken away, before any renewal, ended as {end:?}"
    );
    Ok(())
}

/// Checks the notification between two renewals.
///
/// Renewals are far apart, so that one of a few holders is notified between two of them even on a
/// busy machine.
pub(super) async fn a_removal_is_pushed(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let mut late = Vec::new();
    for nth in 0..5 {
        let lock = name(&format!("n{nth}"));
        let guard = locks.lock(lock.clone())?.ttl(ctx.ttl() * 4).acquire().await?;
        // The next renewal is due after seven to eight eighths of this.
        let (won, interval) = (Moment::now(), guard.valid_for().unwrap_or(ctx.ttl() * 4) / 3);
        // Removed when its holder listens already, and before.
        sleep(interval / 4 * (nth % 2)).await;
        ensure!(ctx.take_away(&lock, guard.owner()).await?, "the lock could not be taken away");
        let loss = guard.lost().await;
        ensure!(loss == Loss::NotHeld, "the loss is {loss:?}");
        let told = Moment::now().saturating_since(won);
        if told < interval / 2 {
            return Ok(());
        }
        late.push((told, interval));
    }
    violated!("the holders were told by their renewals (after, interval): {late:?}");
}

/// Checks on a thread and a runtime of its own: a loss watch that blocks its thread must not block
/// the check.
pub(super) async fn a_release_beside_a_loss_watch_ends(ctx: Arc<Ctx>) -> Verdict {
    const BOUND: Duration = Duration::from_secs(20);

    let (done, ended) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    std::thread::spawn(move || {
        // The check may have given up.
        let _ = done.send(runtime.block_on(releases_beside_a_watch(&ctx)));
    });
    // A paused clock stands still meanwhile.
    let ended = tokio::task::spawn_blocking(move || ended.recv_timeout(BOUND)).await;
    match ended.expect("it does not panic") {
        Ok(verdict) => verdict,
        Err(RecvTimeoutError::Timeout) => {
            violated!("a release beside a loss watch has not ended within {BOUND:?}")
        }
        Err(RecvTimeoutError::Disconnected) => panic!("the check panicked on its thread"),
    }
}

/// Releases at different steps of the watch: before its first request, during it, and later.
async fn releases_beside_a_watch(ctx: &Ctx) -> Verdict {
    const STEPS: usize = 30;

    let client = ctx.client().await;
    for steps in 0..STEPS {
        let mut claim = ctx.claim(&name("n"), false);
        ctx.win(&*client, &mut claim).await?;
        let (watcher, watched) = (Arc::clone(&client), claim.clone());
        let watch = tokio::spawn(async move { watcher.wait_lost(&watched).await });
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        client.release(&claim, ReleaseMode::now()).await?;
        // Other tasks of the runtime go on.
        sleep(Duration::from_millis(5)).await;
        watch.abort();
    }
    Ok(())
}

pub(super) async fn a_silent_backend_is_a_loss_in_time(ctx: Arc<Ctx>) -> Verdict {
    let silent = Arc::new(AtomicBool::new(false));
    let (asked, ttl) = (Arc::clone(&silent), ctx.ttl());
    let locks = ctx
        .with_faults(move |call| match call.verb {
            // Not applied until long after the lease, and acknowledged then.
            Verb::Renew if asked.load(Ordering::SeqCst) => Injection::DelayRequest(ttl * 2),
            _ => Injection::None,
        })
        .await;
    let locks = locks.timeout(ctx.ttl() * 4).build();
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    silent.store(true, Ordering::SeqCst);
    let taken = gives_up_in_time(&ctx, &guard).await?;
    // The renewals that were under way are answered meanwhile.
    sleep(ctx.ttl() * 3).await;
    ensure!(!guard.is_held(), "a late answer revived a lost lock");
    ensure!(taken.is_held(), "what the lost holder left behind harmed the new one");
    drop(guard);
    sleep(Duration::from_millis(100)).await;
    ensure!(taken.verify().await.is_ok(), "dropping the lost guard harmed the new holder");
    Ok(())
}

/// Checks that the holder of "n" is notified by its deadline and before the next grant.
///
/// No renewal is answered any more. Returns the guard of the next holder.
pub(super) async fn gives_up_in_time(ctx: &Ctx, guard: &LockGuard) -> Result<LockGuard, Violation> {
    let deadline = Moment::now() + guard.valid_for().unwrap_or_default();
    let other = ctx.locker().await.lock("n")?.ttl(ctx.ttl());
    let taking = tokio::spawn(async move {
        let taken = other.acquire().await;
        (Moment::now(), taken)
    });
    let late = deadline + ctx.slack();
    let loss = tokio::select! {
        loss = guard.lost() => loss,
        () = sleep_until(late + ctx.ttl()) => {
            violated!("no renewal was answered, and the holder still believes in its lock");
        }
    };
    let told = Moment::now();
    ensure!(told <= late, "told {:?} after the deadline", told.saturating_since(deadline));
    ensure!(loss == Loss::Expired, "the loss is {loss:?}");
    let (taken_at, taken) = taking.await.expect("the other side does not panic");
    let taken = taken?;
    ensure!(
        told <= taken_at,
        "the next one held the lock {:?} before the holder was told",
        told.saturating_since(taken_at)
    );
    Ok(taken)
}

pub(super) async fn a_holder_learns_of_its_loss_within_the_margin(ctx: Arc<Ctx>) -> Verdict {
    let (ends, limited) = tokio::join!(
        learns_first(&ctx, "n", RenewalPolicy::off(), Loss::Expired),
        learns_first(&ctx, "m", RenewalPolicy::default().max_hold(ctx.ttl() / 2), Loss::HoldLimit),
    );
    ends.and(limited)
}

/// Checks the order of loss and notification. A busy machine may poll later than within the margin.
/// Such a trial does not show the order, and is repeated.
async fn learns_first(ctx: &Ctx, lock: &str, renewal: RenewalPolicy, why: Loss) -> Verdict {
    const TRIALS: usize = 10;

    // The most by which the clocks' rates differ. The server's own end may use the rest up.
    let margin = ctx.ttl() / 100;
    let mut late = Vec::new();
    for _ in 0..TRIALS {
        let holder = ctx.locker().await.lock(lock)?.ttl(ctx.ttl()).renewal(renewal.clone());
        let guard = holder.acquire().await?;
        let deadline = Moment::now() + guard.valid_for().unwrap_or_default();
        let next = ctx.locker().await.lock(lock)?.ttl(ctx.ttl());
        let taking = tokio::spawn(async move {
            let taken = next.acquire().await;
            (Moment::now(), taken)
        });
        let loss = guard.lost().await;
        let told = Moment::now();
        let (taken_at, taken) = taking.await.expect("the other side does not panic");
        taken?.release().await?;
        ensure!(loss == why, "the loss is {loss:?}, and not {why:?}");
        ensure!(
            taken_at >= deadline + margin,
            "the next one held the lock {:?} after the deadline ({why:?}), within the margin of {margin:?}",
            taken_at.saturating_since(deadline)
        );
        if told <= taken_at {
            return Ok(());
        }
        late.push((told.saturating_since(deadline), taken_at.saturating_since(deadline)));
    }
    violated!(
        "after the deadline ({why:?}) the holder was told later than the next one held the lock: {late:?}"
    );
}
