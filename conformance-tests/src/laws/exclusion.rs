//! Chapter 1: one holder at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::backend::{Attempt, Lease, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Injection, Verb};
use lock_core::{FencingToken, Locker, RenewalPolicy, Wakeup};

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn a_held_lock_is_contended(ctx: Arc<Ctx>) -> Verdict {
    let (ours, theirs) = (ctx.client().await, ctx.client().await);
    let mut claim = ctx.claim(&name("n"), false);
    ctx.win(&*ours, &mut claim).await?;
    for (client, whose) in [(&ours, "the same client"), (&theirs, "another client")] {
        let answer = client.try_acquire(&ctx.claim(&name("n"), false)).await?;
        ensure!(
            matches!(answer, Attempt::Contended { .. }),
            "while the lock was held, {whose} was granted it to another claim"
        );
    }
    let other = ctx.claim(&name("another name"), false);
    let free = theirs.try_acquire(&other).await?;
    ensure!(matches!(free, Attempt::Acquired(_)), "a lock of another name was contended");
    Ok(())
}

pub(super) async fn the_same_claim_is_the_same_acquisition(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    let first = ctx.win(&*client, &mut claim).await?;
    // Without the ticket, as of a client that never saw the first answer.
    let mut again = claim.clone();
    again.ticket = None;
    for asked in [&claim, &again] {
        let Attempt::Acquired(second) = client.try_acquire(asked).await? else {
            violated!("the claim that holds the lock was contended by itself");
        };
        ensure!(
            second.token >= first.token,
            "the same acquisition has token {:?} first and {:?} then",
            first.token,
            second.token
        );
        ensure!(second.ends() >= first.ends(), "the lease became shorter");
    }
    client.release(&claim, ReleaseMode::now()).await?;
    ensure!(ctx.is_free(&name("n")).await?, "two attempts of one claim needed two releases");

    if ctx.has_leases() {
        // Asked again for less, and then found as it was by others.
        let mut claim = ctx.claim(&name("m"), false);
        claim.ttl = ctx.ttl() * 4;
        ctx.win(&*client, &mut claim).await?;
        claim.ttl = ctx.ttl();
        ctx.win(&*client, &mut claim).await?;
        sleep(ctx.ttl() * 2).await;
        ensure!(
            !ctx.is_free(&name("m")).await?,
            "asking again made the lease shorter on the server"
        );
        client.release(&claim, ReleaseMode::now()).await?;
    }
    Ok(())
}

pub(super) async fn the_lease_counts_from_before_the_request(ctx: Arc<Ctx>) -> Verdict {
    let delay = ctx.ttl() / 2;
    for slow in [Verb::TryAcquire, Verb::Renew] {
        let locks = ctx
            .with_faults(move |call| {
                if call.verb == slow { Injection::DelayReply(delay) } else { Injection::None }
            })
            .await;
        let locks = locks.timeout(ctx.ttl() * 2).build();
        let lock = locks.lock("n")?.ttl(ctx.ttl()).renewal(RenewalPolicy::off());
        let mut asked = Moment::now();
        let guard = lock.acquire().await?;
        if slow == Verb::Renew {
            asked = Moment::now();
            guard.verify().await?;
        }
        let latest = asked + ctx.ttl();
        let deadline = Moment::now() + guard.valid_for().unwrap_or_default();
        ensure!(
            deadline <= latest,
            "{slow:?} was answered after {delay:?}, and the deadline is {:?} later than the request and the ttl",
            deadline.saturating_since(latest)
        );
        guard.release().await?;
    }
    a_push_counts_from_before_it_was_sent(&ctx).await
}

/// Checks that a pushed grant is as old as the release that it came from.
async fn a_push_counts_from_before_it_was_sent(ctx: &Ctx) -> Verdict {
    // Less than any claim lease, so that the whole ttl is handed over.
    let ttl = ctx.ttl().min(Duration::from_secs(2)).max(ctx.caps.ttl_min);
    let delay = ttl / 2;
    let locks = ctx
        .with_faults(move |call| match call.verb {
            Verb::Wait | Verb::WaitLost => Injection::DelayReply(delay),
            _ => Injection::None,
        })
        .await
        .build();
    let holder = ctx.locker().await.lock("pushed")?.ttl(ctx.ttl()).acquire().await?;
    let lock = locks.lock("pushed")?.ttl(ttl).renewal(RenewalPolicy::off());
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(ttl / 4).await;
    holder.release().await?;
    let released = Moment::now();
    let guard = waiter.await.expect("the waiter does not panic")?;
    let Some(left) = guard.valid_for() else { return Ok(()) };
    // A waiter that was told to look, and asked then, counts from that: not before the signal came.
    let asked_again = !matches!(ctx.caps.wakeup, Wakeup::HandOff);
    // A lease may count from the signal, if its end is the client's own.
    let on_its_way = ctx.slack().min(delay) / 4;
    let latest = released + ttl + if asked_again { ctx.ttl() * 2 } else { on_its_way };
    let deadline = Moment::now() + left;
    ensure!(
        deadline <= latest,
        "a grant was pushed {delay:?} late, and its deadline is {:?} later than its release and the ttl",
        deadline.saturating_since(latest)
    );
    Ok(())
}

/// Checks the absence of leases: kernel locks last as long as their process.
pub(super) async fn there_are_no_leases(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    let grant = ctx.win(&*client, &mut claim).await?;
    let is_endless = grant.lease == Lease::WhileProcessLives;
    ensure!(is_endless, "no leases are declared, and the grant has one: {:?}", grant.lease);
    sleep(ctx.ttl() + Duration::from_millis(100)).await;
    ensure!(!ctx.is_free(&name("n")).await?, "no leases are declared, and the lock lapsed");
    client.release(&claim, ReleaseMode::now()).await?;
    let guard = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    ensure!(guard.valid_for().is_none(), "no leases are declared, and the guard has a deadline");
    ensure!(!ctx.is_free(&name("n")).await?, "the lock was free although its holder lives");
    guard.release().await?;
    Ok(())
}

/// One claim as the application saw it.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: Moment,
    to: Moment,
    token: Option<FencingToken>,
}

pub(super) async fn claims_never_overlap(ctx: Arc<Ctx>) -> Verdict {
    let mut lockers = Vec::new();
    for _ in 0..WORKERS {
        lockers.push(ctx.locker().await);
    }
    never_overlap(&ctx, &lockers).await
}

const WORKERS: u32 = 8;

/// Workers that share these lockers take turns.
pub(super) async fn never_overlap(ctx: &Arc<Ctx>, lockers: &[Locker]) -> Verdict {
    const ROUNDS: u32 = 12;
    let lease = (ctx.ttl() / 4).max(ctx.caps.ttl_min);
    let spans = Arc::new(Mutex::new(Vec::new()));
    let mut workers = Vec::new();
    for (worker, locks) in (0..WORKERS).zip(lockers.iter().cycle()) {
        let (ctx, spans, locks) = (Arc::clone(ctx), Arc::clone(&spans), locks.clone());
        workers.push(tokio::spawn(async move {
            for round in 0..ROUNDS {
                let lock = locks.lock("n")?.ttl(lease).renewal(RenewalPolicy::off());
                let Some(guard) = lock.try_acquire_for(ctx.ttl()).await? else {
                    continue;
                };
                let from = Moment::now();
                let limit = guard.valid_for().map(|left| from + left);
                // Some leave early, some stay past their lease, as a paused process does.
                let stay = match (worker + round) % 4 {
                    0 => Duration::ZERO,
                    1 | 2 => lease / 10,
                    _ if ctx.has_leases() => lease * 2,
                    _ => ctx.ttl() / 20,
                };
                sleep(stay).await;
                let now = Moment::now();
                let to = limit.map_or(now, |limit| limit.min(now));
                spans.lock().unwrap().push(Span { from, to, token: guard.fencing_token() });
                drop(guard);
            }
            Ok::<_, lock_core::Error>(())
        }));
    }
    for worker in workers {
        worker.await.expect("a worker does not panic")?;
    }
    let mut spans = std::mem::take(&mut *spans.lock().unwrap());
    spans.sort_by_key(|span| span.from);
    ensure!(spans.len() > 20, "only {} claims in {} tries", spans.len(), WORKERS * ROUNDS);
    for pair in spans.windows(2) {
        ensure!(
            pair[0].to <= pair[1].from,
            "two holders at once for {:?} (tokens {:?} and {:?})",
            pair[0].to.saturating_since(pair[1].from),
            pair[0].token,
            pair[1].token
        );
    }
    Ok(())
}
