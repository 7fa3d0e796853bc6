//! Chapter 9: looking from outside, and by force.

use std::sync::Arc;

use lock_core::backend::{Attempt, Fault, FaultKind, HoldKind, Release, ReleaseMode, Renewal};
use lock_core::clock::sleep;
use lock_core::{Detached, Effect, ErrorKind, OwnerId};

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn inspect_shows_the_holder(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let other = ctx.client().await;
    ensure!(other.inspect(&name("n")).await?.holders.is_empty(), "a free lock has a holder");
    let mut claim = ctx.claim(&name("n"), false);
    let grant = ctx.win(&*client, &mut claim).await?;
    for renewed in [false, true] {
        if renewed {
            let Some(Ok(Renewal::Held(grant))) = client.renew(&[&claim]).await.pop() else {
                violated!("inspect disturbed the holder: its renewal failed");
            };
            claim.ticket = grant.ticket;
        }
        for inspecting in [&client, &other] {
            let state = inspecting.inspect(&name("n")).await?;
            let [holder] = state.holders.as_slice() else {
                violated!("a held lock has {} holders", state.holders.len());
            };
            ensure!(holder.owner == Some(claim.owner), "inspect shows another owner");
            // A server that draws the token after the grant may not know it yet.
            let is_known = renewed || holder.token.is_some();
            ensure!(
                !is_known || holder.token == grant.token,
                "inspect shows another token than the grant's"
            );
        }
    }
    ensure!(
        client.release(&claim, ReleaseMode::now()).await? == Release::Released,
        "inspect disturbed the holder"
    );
    ensure!(other.inspect(&name("n")).await?.holders.is_empty(), "a released lock has a holder");
    ensure!(ctx.is_free(&name("n")).await?, "inspecting took the lock");
    Ok(())
}

pub(super) async fn inspect_is_refused(ctx: Arc<Ctx>) -> Verdict {
    let answer = ctx.locker().await.inspect(&name("n")).await.map_err(|error| error.kind());
    ensure!(
        answer == Err(ErrorKind::Unsupported),
        "inspect is not declared, and ended as {answer:?}"
    );
    unsupported("inspect", &ctx.client().await.inspect(&name("n")).await)
}

pub(super) async fn a_break_ends_the_expected_holder_only(ctx: Arc<Ctx>) -> Verdict {
    let (client, operator) = (ctx.client().await, ctx.client().await);
    let mut old = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut old).await?;
    ensure!(
        !operator.break_lock(&name("n"), &OwnerId::mint()).await?,
        "a stranger's hold was ended"
    );
    ensure!(!ctx.is_free(&name("n")).await?, "breaking a stranger's hold freed the lock");
    ensure!(operator.break_lock(&name("n"), &old.owner).await?, "the holder's hold was not ended");
    let mut new = ctx.claim(&name("n"), false);
    ctx.win(&*client, &mut new).await?;
    let mut again = operator.break_lock(&name("n"), &old.owner).await;
    // One of several servers may learn of the old hold after the break. A break that ends it there
    // does not know that it was over.
    for _ in 0..5 {
        if !again.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown) {
            break;
        }
        again = operator.break_lock(&name("n"), &old.owner).await;
    }
    ensure!(!again?, "a hold was ended twice");
    let answer = client.renew(&[&new]).await.pop();
    ensure!(
        matches!(answer, Some(Ok(Renewal::Held(_)))),
        "a break that was late ended the newer holder's hold: {answer:?}"
    );
    Ok(())
}

pub(super) async fn break_is_refused(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let guard = locks.lock("n")?.acquire().await?;
    let answer = locks.break_lock(guard.name(), guard.owner()).await.map_err(|error| error.kind());
    ensure!(
        answer == Err(ErrorKind::Unsupported),
        "break is not declared, and ended as {answer:?}"
    );
    ensure!(guard.verify().await.is_ok(), "a refused break harmed the holder");
    unsupported("break", &ctx.client().await.break_lock(guard.name(), guard.owner()).await)?;
    ensure!(guard.verify().await.is_ok(), "a refused break harmed the holder");
    Ok(())
}

pub(super) async fn a_list_is_sorted_and_paged(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let mut claims = Vec::new();
    for text in ["b/3", "a/1", "b/1", "b/2", "c/1"] {
        let mut claim = ctx.claim(&name(text), false);
        ctx.win(&*client, &mut claim).await?;
        claims.push(claim);
    }
    client.release(&claims[4], ReleaseMode::now()).await?;
    for (prefix, after, limit, expected) in [
        ("", None, 100, vec!["a/1", "b/1", "b/2", "b/3"]),
        ("b/", None, 100, vec!["b/1", "b/2", "b/3"]),
        ("b/", None, 2, vec!["b/1", "b/2"]),
        ("b/", Some("b/2"), 2, vec!["b/3"]),
        ("c/", None, 100, vec![]),
    ] {
        let listed = client.list(prefix, after.map(name).as_ref(), limit).await?;
        let names: Vec<_> = listed.iter().map(|line| line.name.as_str()).collect();
        ensure!(
            names == expected,
            "listing {limit} after {after:?} with prefix {prefix:?} gave {names:?}, not {expected:?}"
        );
    }
    Ok(())
}

pub(super) async fn list_is_refused(ctx: Arc<Ctx>) -> Verdict {
    let answer = ctx.locker().await.list("", None, 10).await.map_err(|error| error.kind());
    ensure!(answer == Err(ErrorKind::Unsupported), "list is not declared, and ended as {answer:?}");
    unsupported("list", &ctx.client().await.list("", None, 10).await)
}

pub(super) async fn a_detached_lock_passes_on(ctx: Arc<Ctx>) -> Verdict {
    let guard = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).detachable().acquire().await?;
    let detached = guard.detach().await?;
    sleep(ctx.ttl() / 2).await;
    ensure!(!ctx.is_free(&name("n")).await?, "a detached lock was free before its lease ended");

    let elsewhere = ctx.locker().await;
    let stranger = Detached::new(name("n"), OwnerId::mint(), ctx.ttl());
    let refused = elsewhere.adopt(stranger).await.map(drop).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::NotHeld), "a stranger's adoption ended as {refused:?}");
    let adopted = elsewhere.adopt(detached.clone()).await?;
    sleep(ctx.ttl() * 2).await;
    ensure!(adopted.is_held() && !ctx.is_free(&name("n")).await?, "an adopted lock is not renewed");
    adopted.release().await?;

    // From one short-lived process to the next, which has the owner id alone.
    let guard = elsewhere.lock("n")?.ttl(ctx.ttl()).detachable().acquire().await?;
    let detached = guard.detach().await?;
    let stranger = Detached::new(name("n"), OwnerId::mint(), ctx.ttl());
    let refused =
        ctx.locker().await.release_detached(&stranger).await.map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::NotHeld), "a stranger's release ended as {refused:?}");
    let released = ctx.locker().await.release_detached(&detached).await.map_err(|e| e.kind());
    ensure!(released == Ok(()), "the release by the owner id alone ended as {released:?}");
    ensure!(ctx.is_free(&name("n")).await?, "a detached lock that was released is not free");
    let refused = ctx.locker().await.renew_detached(&detached).await.map(drop);
    let refused = refused.map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::NotHeld), "a renewal after the release ended as {refused:?}");

    let guard = elsewhere.lock("n")?.ttl(ctx.ttl()).detachable().acquire().await?;
    let detached = guard.detach().await?;
    for _ in 0..3 {
        sleep(ctx.ttl() / 2).await;
        ctx.locker().await.renew_detached(&detached).await?;
    }
    ensure!(
        ctx.becomes_free(&name("n"), ctx.takeover_bound() + ctx.slack()).await?,
        "a detached lock that nobody renews stays for ever"
    );
    Ok(())
}

pub(super) async fn detach_is_refused(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.locker().await;
    let refused = locks.lock("n")?.detachable().acquire().await.map(drop).map_err(|e| e.kind());
    ensure!(
        refused == Err(ErrorKind::Unsupported),
        "no detached holds are declared, and {refused:?}"
    );
    let attempt = ctx.client().await.try_acquire(&ctx.claim(&name("n"), false)).await?;
    ensure!(matches!(attempt, Attempt::Acquired(_)), "a refused acquisition left the lock shut");
    let mut claim = ctx.claim(&name("m"), false);
    claim.hold = HoldKind::Detached;
    unsupported("a detached hold", &ctx.client().await.try_acquire(&claim).await)
}

/// Checks that the backend itself refuses an undeclared verb, not only core.
fn unsupported<T: std::fmt::Debug>(what: &str, answer: &Result<T, Fault>) -> Verdict {
    let refused = answer.as_ref().is_err_and(|fault| fault.kind() == FaultKind::Unsupported);
    ensure!(refused, "{what} is not declared, and the backend answered {answer:?}");
    Ok(())
}
