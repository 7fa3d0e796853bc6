//! Chapter 2: renewals.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{ReleaseMode, Renewal};
use lock_core::clock::sleep;

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn a_renewal_moves_the_lease(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut claim).await?;
    // Past the end of the first lease, in thirds.
    for third in 1..=6 {
        sleep(ctx.ttl() / 3).await;
        match client.renew(&[&claim]).await.pop() {
            Some(Ok(Renewal::Held(grant))) => claim.ticket = grant.ticket,
            other => violated!("after {third} thirds of the lease, a renewal ended as {other:?}"),
        }
    }
    sleep(ctx.ttl() / 2).await;
    ensure!(
        !ctx.is_free(&name("n")).await?,
        "the lock lapsed although each renewal was acknowledged"
    );
    client.release(&claim, ReleaseMode::now()).await?;
    Ok(())
}

pub(super) async fn a_renewal_never_recreates(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut released = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut released).await?;
    client.release(&released, ReleaseMode::now()).await?;
    let never_won = ctx.claim(&name("n"), false);
    for (claim, what) in [(&released, "was released"), (&never_won, "never won")] {
        let answer = client.renew(&[claim]).await.pop();
        ensure!(
            matches!(answer, Some(Ok(Renewal::NotHeld))),
            "renewing a claim that {what} ended as {answer:?}"
        );
        ensure!(ctx.is_free(&name("n")).await?, "renewing a claim that {what} took the lock");
    }
    Ok(())
}

pub(super) async fn a_renewal_never_adopts(ctx: Arc<Ctx>) -> Verdict {
    let (ours, theirs) = (ctx.client().await, ctx.client().await);
    let mut holder = ctx.claim(&name("n"), false);
    ctx.win(&*theirs, &mut holder).await?;
    for (client, whose) in [(&ours, "through another client"), (&theirs, "through the same client")]
    {
        let answer = client.renew(&[&ctx.claim(&name("n"), false)]).await.pop();
        ensure!(
            matches!(answer, Some(Ok(Renewal::NotHeld))),
            "renewing another owner's lock {whose} ended as {answer:?}"
        );
    }
    let answer = theirs.renew(&[&holder]).await.pop();
    ensure!(matches!(answer, Some(Ok(Renewal::Held(_)))), "the holder lost its lock: {answer:?}");
    Ok(())
}

pub(super) async fn a_renewal_never_shortens(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    claim.ttl = ctx.ttl() * 4;
    ctx.win(&*client, &mut claim).await?;
    claim.ttl = ctx.ttl();
    match client.renew(&[&claim]).await.pop() {
        Some(Ok(Renewal::Held(grant))) => claim.ticket = grant.ticket,
        other => violated!("a renewal ended as {other:?}"),
    }
    sleep(ctx.ttl() * 3).await;
    ensure!(
        !ctx.is_free(&name("n")).await?,
        "a lease of {:?}, renewed for {:?}, was over after {:?}",
        ctx.ttl() * 4,
        ctx.ttl(),
        ctx.ttl() * 3
    );
    client.release(&claim, ReleaseMode::now()).await?;
    Ok(())
}

pub(super) async fn a_batch_is_answered_claim_by_claim(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claims = Vec::new();
    for i in 0..20 {
        let mut claim = ctx.claim(&name(&format!("n{i}")), false);
        // Every third one is not held.
        if i % 3 != 0 {
            ctx.win(&*client, &mut claim).await?;
        }
        claims.push(claim);
    }
    let answers = client.renew(&claims.iter().collect::<Vec<_>>()).await;
    ensure!(answers.len() == claims.len(), "{} claims got {} answers", claims.len(), answers.len());
    for (i, answer) in answers.into_iter().enumerate() {
        let held = matches!(answer?, Renewal::Held(_));
        ensure!(held == (i % 3 != 0), "claim {i} of the batch got another claim's answer");
    }
    ensure!(client.renew(&[]).await.is_empty(), "an empty batch got an answer");
    Ok(())
}

pub(super) async fn an_answer_leaves_time_to_work(ctx: Arc<Ctx>) -> Verdict {
    let least = (ctx.ttl() / 10).min(Duration::from_millis(100));
    let lock = ctx.locker().await.lock("n")?;
    let guard = match lock.acquire().await {
        Ok(guard) => guard,
        Err(error) => violated!("acquire failed: {error}"),
    };
    let mut answer = Ok(());
    for what in ["acquire", "verify", "extend"] {
        match what {
            "verify" => answer = guard.verify().await,
            "extend" => answer = guard.extend(ctx.ttl()).await,
            _ => {}
        }
        let left = guard.valid_for();
        ensure!(answer.is_ok(), "{what} ended as {answer:?}");
        ensure!(left.is_none_or(|left| left >= least), "{left:?} was left after {what}");
    }
    guard.release().await?;
    Ok(())
}
