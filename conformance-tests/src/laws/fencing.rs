//! Chapter 5: fencing tokens.

use std::sync::Arc;

use lock_core::backend::{Attempt, ReleaseMode, Renewal};
use lock_core::clock::sleep;
use lock_core::{FencingToken, Support};

use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;

pub(super) async fn tokens_grow(ctx: Arc<Ctx>) -> Verdict {
    let clients = [ctx.client().await, ctx.client().await];
    let mut last = None;
    for round in 0..40 {
        let client = &clients[round % 2];
        let mut claim = ctx.claim(&name("n"), false);
        let grant = ctx.win(&**client, &mut claim).await?;
        last = Some(grows(last, grant.token)?);
        if let Some(Ok(Renewal::Held(renewed))) = client.renew(&[&claim]).await.pop() {
            ensure!(renewed.token == grant.token, "a renewal has another token than its grant");
        }
        if round == 20 {
            // Taken away, not given back; where that cannot be done, given back.
            ctx.take_away(&name("n"), &claim.owner).await?;
        }
        client.release(&claim, ReleaseMode::now()).await?;
    }
    if ctx.has_leases() {
        // Twice a lease that ends by its expiry only.
        for client in &clients {
            let locks = lock_core::Locker::builder_from(Arc::clone(client)).build();
            let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
            last = Some(grows(last, guard.fencing_token())?);
            drop(guard);
            let mut lapsing = ctx.claim(&name("n"), false);
            ensure!(
                ctx.becomes_free(&name("n"), ctx.slack()).await?,
                "a dropped guard kept its lock"
            );
            last = Some(grows(last, ctx.win(&**client, &mut lapsing).await?.token)?);
            ensure!(
                ctx.becomes_free(&name("n"), ctx.takeover_bound() + ctx.slack()).await?,
                "no lapse"
            );
        }
    }
    tokens_of_waiters_grow(&ctx).await
}

/// Checks both ways to serve a waiter: its next attempt, and a pushed grant.
async fn tokens_of_waiters_grow(ctx: &Ctx) -> Verdict {
    let locks = [ctx.locker().await, ctx.locker().await];
    let mut guard = locks[0].lock("waited for")?.ttl(ctx.ttl()).acquire().await?;
    for round in 1..6 {
        let lock = locks[round % 2].lock("waited for")?.ttl(ctx.ttl());
        let waiter = tokio::spawn(async move { lock.acquire().await });
        sleep(ctx.ttl() / 20).await;
        let last = guard.fencing_token();
        guard.release().await?;
        guard = waiter.await.expect("the waiter does not panic")?;
        let token = grows(last, guard.fencing_token())?;
        ensure!(token.as_u64() & 0xff == 0, "a waiter has token {token}, whose low byte is used");
    }
    guard.release().await?;
    Ok(())
}

fn grows(
    last: Option<FencingToken>,
    token: Option<FencingToken>,
) -> Result<FencingToken, Violation> {
    let Some(token) = token else {
        return Err(Violation("a grade of fencing is declared, and a grant has no token".into()));
    };
    match last {
        Some(last) if token <= last => {
            Err(Violation(format!("token {token} was granted after token {last}")))
        }
        _ => Ok(token),
    }
}

pub(super) async fn there_are_no_tokens(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    let grant = ctx.win(&*client, &mut claim).await?;
    ensure!(
        grant.token.is_none(),
        "no fencing is declared, and a grant has the token {:?}",
        grant.token
    );
    Ok(())
}

pub(super) async fn a_minimum_token_is_exceeded(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("n"), false);
    let first = ctx.win(&*client, &mut claim).await?;
    let mut last = grows(None, first.token)?;
    // Raised while it is held, and for the grants that follow.
    for step in [1, 1000, 1_000_000] {
        let min_token = FencingToken::from_backend(last.backend_number() + step);
        claim.min_token = min_token;
        let Attempt::Acquired(grant) = client.try_acquire(&claim).await? else {
            violated!("the claim that holds the lock was contended by itself");
        };
        claim.ticket.clone_from(&grant.ticket);
        ensure!(
            grant.token > min_token,
            "asked for more than {min_token:?}, and got {:?}",
            grant.token
        );
        last = grows(Some(last), grant.token)?;
        if ctx.caps.inspecting == Support::Present {
            let seen = client.inspect(&claim.name).await?;
            let shown = seen.holders.first().and_then(|holder| holder.token);
            ensure!(shown.is_none_or(|shown| shown == last), "granted {last}, and shown {shown:?}");
        }
    }
    client.release(&claim, ReleaseMode::now()).await?;
    let mut next = ctx.claim(&name("n"), false);
    grows(Some(last), ctx.win(&*client, &mut next).await?.token)?;
    Ok(())
}

pub(super) async fn the_low_bits_are_left_to_core(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    for round in 0..20 {
        let mut claim = ctx.claim(&name("n"), false);
        let token = grows(None, ctx.win(&*client, &mut claim).await?.token)?;
        ensure!(
            token.as_u64() & 0xff == 0,
            "grant {round} has token {token}, whose low byte is used"
        );
        ensure!(token.as_u64() < 1 << 63, "grant {round} has token {token}, above 2^63");
        client.release(&claim, ReleaseMode::now()).await?;
    }
    Ok(())
}
