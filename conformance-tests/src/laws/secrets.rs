//! Chapter 11: secrets.

use std::error::Error as _;
use std::sync::Arc;

use lock_core::faults::{Injection, Verb};

use crate::context::{Ctx, Verdict, ensure};
use crate::helpers::{Output, listen, name};

pub(super) async fn no_output_holds_an_owner_id(ctx: Arc<Ctx>) -> Verdict {
    use tracing_subscriber::fmt::format::FmtSpan;

    let output = Output::default();
    let mut seen = Vec::new();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_writer(output.clone())
        .finish();
    let _tracing = listen(subscriber);

    let client = ctx.client().await;
    let mut claim = ctx.claim(&name("raw"), false);
    let grant = ctx.win(&*client, &mut claim).await?;
    seen.push(format!("{client:?} {claim:?} {grant:?}"));
    if let Ok(state) = client.inspect(&claim.name).await {
        seen.push(format!("{state:?}"));
    }

    // A lock that is won, renewed, contended, lost and released, with errors on the way.
    let locks = ctx
        .with_faults(|call| match call.verb {
            Verb::Release => Injection::LoseReply,
            _ => Injection::None,
        })
        .await
        .build();
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let owner = *guard.owner();
    guard.verify().await?;
    seen.push(format!("{locks:?} {guard:?} {:?} {owner:?}", guard.loss_signal()));
    let second = locks.lock("n")?.ttl(ctx.ttl()).try_acquire().await?;
    ensure!(second.is_none(), "a held lock was granted");
    ctx.take_away(&name("n"), &owner).await?;
    if let Err(error) = guard.release().await {
        seen.push(format!("{error} {error:?} {:?}", error.source()));
    }
    seen.push(output.text());
    let shows = |secret: &str| seen.iter().any(|text| text.contains(secret));
    for (secret, whose) in [(owner.expose(), "a guard's"), (claim.owner.expose(), "a claim's")] {
        ensure!(!shows(&secret), "{whose} owner id was shown");
    }
    ensure!(shows(&owner.short()), "nothing was traced, so nothing was checked");
    Ok(())
}
