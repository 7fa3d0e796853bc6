//! Chapter 10: names and leases at their limits.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Attempt, FaultKind, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::{ErrorKind, LockName, Locker, RenewalPolicy};

use crate::context::{Ctx, Verdict, ensure, violated};
use crate::helpers::name;

pub(super) async fn awkward_names_are_different_locks(ctx: Arc<Ctx>) -> Verdict {
    let client = ctx.client().await;
    let names = awkward_names();
    let mut held = Vec::new();
    for name in &names {
        let mut claim = ctx.claim(name, false);
        // Looking at all of them takes a while.
        claim.ttl = ctx.caps.ttl_max.min(Duration::from_secs(300));
        let Attempt::Acquired(grant) = client.try_acquire(&claim).await? else {
            violated!("{name} was contended by a lock of another name");
        };
        claim.ticket = grant.ticket;
        held.push(claim);
    }
    for claim in &held {
        ensure!(!ctx.is_free(&claim.name).await?, "{} is free while it is held", claim.name);
        client.release(claim, ReleaseMode::now()).await?;
        ensure!(ctx.is_free(&claim.name).await?, "{} is not free after its release", claim.name);
    }
    Ok(())
}

/// Names that differ by little, that mean something to a server, or that are long.
pub(crate) fn awkward_names() -> Vec<LockName> {
    let mut texts: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "a\n",
        "a\r\nquit\r\n",
        "a\0b",
        ".",
        "..",
        "/",
        "//",
        "a/b",
        "a//b",
        "a/./b",
        "a%2Fb",
        "a%2fb",
        "%",
        "%%",
        "a:b",
        "a:",
        "{a}b",
        "{a}",
        "{b}a",
        "a*",
        "a?",
        "[a]",
        "é",
        "e\u{301}",
        "名前",
        "\u{1f512}",
        "\u{feff}a",
        "\u{7f}",
        "zookeeper",
        "con",
        "a.lock",
        "-rf",
        "~",
        "$(id)",
    ]
    .map(str::to_owned)
    .into();
    let long = "x".repeat(LockName::MAX_LEN);
    for length in [100, 199, 200, 201, 250, 251, 255, 256, 1000, LockName::MAX_LEN] {
        texts.push(long[..length].to_owned());
    }
    // Alike for longer than any key is.
    texts.push(format!("{}y", &long[1..]));
    texts.push("é".repeat(LockName::MAX_LEN / 2));
    texts.iter().map(|text| name(text)).collect()
}

pub(super) async fn the_declared_leases_work(ctx: Arc<Ctx>) -> Verdict {
    let (min, max) = (ctx.caps.ttl_min, ctx.caps.ttl_max);
    let client = ctx.client().await;
    let locks = Locker::builder_from(Arc::clone(&client)).max_ttl(Duration::MAX).build();
    let below = min.saturating_sub(Duration::from_nanos(1));
    for ttl in [Duration::ZERO, below, max + Duration::from_nanos(1), Duration::MAX] {
        let refused = locks.lock("n")?.ttl(ttl).acquire().await.map(drop).map_err(|e| e.kind());
        ensure!(refused == Err(ErrorKind::Invalid), "a ttl of {ttl:?} ended as {refused:?}");
    }
    // The longest: still there after a while. The shortest: gone after a while, where there are
    // leases.
    let lock = locks.lock("long")?.ttl(max).renewal(RenewalPolicy::off());
    let long = lock.acquire().await?;
    sleep(ctx.ttl() * 2).await;
    ensure!(long.is_held(), "a lease of {max:?} was lost after {:?}", ctx.ttl() * 2);
    ensure!(
        !ctx.is_free(&name("long")).await?,
        "a lease of {max:?} was over after {:?}",
        ctx.ttl() * 2
    );
    long.release().await?;

    // On a busy machine, an answer may take longer than such a lease, and its attempt be granted.
    let deadline = Moment::now() + ctx.slack();
    let mut was_late = false;
    loop {
        let mut short = ctx.claim(&name("short"), false);
        short.ttl = min;
        match client.try_acquire(&short).await {
            Ok(Attempt::Acquired(_)) => break,
            Ok(Attempt::Contended { .. }) if was_late && !deadline.has_passed() => {}
            Ok(Attempt::Contended { .. }) => violated!("no lease of {min:?} was granted"),
            Err(fault) if fault.kind() == FaultKind::TimedOut && !deadline.has_passed() => {
                was_late = true;
            }
            Err(fault) => return Err(fault.into()),
        }
        sleep(min).await;
    }
    if ctx.has_leases() {
        ensure!(
            ctx.becomes_free(&name("short"), min + ctx.takeover_bound() + ctx.slack()).await?,
            "a lease of {min:?} did not end"
        );
    }
    Ok(())
}
