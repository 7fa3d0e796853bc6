//! Chapter 12: on a network that cuts, delays and swallows.
//!
//! The proxy is between the server and the holders and waiters under check. Other clients bypass
//! it, and show the state of the server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Effect, Holder, Release, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::{
    Error, ErrorKind, LockGuard, Locker, Loss, RenewalPolicy, Support, Takeover, Wakeup,
};
use tokio::runtime::{Builder, Runtime};

use super::release::{Waiting, is_held_within_the_bound, start_waiter};
use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;
use crate::network::Holds;
use crate::proxy::{Direction, Fault, Match};

/// A lease whose end explains nothing that happens in these checks.
const LONG: Duration = Duration::from_secs(300);

pub(super) async fn a_cut_attempt_leaves_nothing(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    // The server's permanent state for this name exists already.
    ensure!(ctx.is_free(&name("cut-try")).await?, "a lock that nobody has taken is not free");
    let hit = ctx.network().cut_after("cut-try");
    let ended = locks.lock("cut-try")?.ttl(LONG).try_acquire().await;
    soon(&ctx, hit).await?.map_err(|error| Violation(format!("there was no cut: {error}")))?;
    let Err(error) = &ended else { violated!("an attempt without answer ended as {ended:?}") };
    ensure!(error.is_retryable(), "an attempt whose answer was cut off ended as {error:?}");
    // An error with the effect `None` means that the client has undone the attempt.
    ensure!(
        error.effect() == Effect::Unknown || ctx.is_free(&name("cut-try")).await?,
        "an attempt whose answer was cut off keeps the lock shut, and ended as {error:?}"
    );
    is_free_soon(&ctx, "cut-try", "the attempt whose answer was cut off").await?;

    // The one that a waiter makes when it is woken.
    let holder = ctx.locker().await.lock("cut-wait")?.ttl(LONG).acquire().await?;
    let waiting = waiting(&ctx, &locks, "cut-wait").await?;
    // A waiter that is handed the lock sends no attempt.
    let asks = ctx.caps.wakeup != Wakeup::HandOff;
    let hit = asks.then(|| ctx.network().cut_after("cut-wait"));
    holder.release().await?;
    if let Some(hit) = hit {
        soon(&ctx, hit).await?.map_err(|error| Violation(format!("there was no cut: {error}")))?;
    }
    let guard = served(&ctx, waiting, "its attempt was cut off").await?;
    guard.verify().await?;
    guard.release().await?;
    ensure!(ctx.is_free(&name("cut-wait")).await?, "the lock is taken after its release");
    Ok(())
}

pub(super) async fn a_cut_release_ends_as_gone(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    let guard = locks.lock("cut-release")?.ttl(LONG).acquire().await?;
    let hit = ctx.network().cut_after("cut-release");
    let ended = guard.release().await;
    soon(&ctx, hit).await?.map_err(|error| Violation(format!("there was no cut: {error}")))?;
    ensure!(
        ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::Gone),
        "a release whose answer was cut off ended as {ended:?}"
    );
    ensure!(ctx.is_free(&name("cut-release")).await?, "the lock is taken after its release");
    Ok(())
}

pub(super) async fn a_black_hole_is_a_loss_in_time(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    let guard = locks.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    let deadline = Moment::now() + guard.valid_for().unwrap_or_default();
    ctx.network().set(Fault::BlackHole);
    let next = ctx.locker().await.lock("n")?.ttl(ctx.ttl());
    let taking = tokio::spawn(async move {
        let taken = next.acquire().await;
        (Moment::now(), taken)
    });
    let loss = within(deadline.remaining() + ctx.slack(), guard.lost()).await;
    let told = Moment::now();
    ensure!(loss == Some(Loss::Expired), "at the holder's deadline, its loss was {loss:?}");
    let (taken_at, taken) = taking.await.expect("the other side does not panic");
    let taken = taken?;
    ensure!(
        told <= taken_at,
        "the next one held the lock {:?} before the holder was told",
        told.saturating_since(taken_at)
    );
    // Everything that was swallowed arrives now.
    ctx.network().heal();
    drop(guard);
    sleep(ctx.ttl()).await;
    taken
        .verify()
        .await
        .map_err(|error| Violation(format!("what arrived late harmed the new holder: {error}")))?;
    Ok(())
}

pub(super) async fn a_short_outage_loses_nothing(ctx: Arc<Ctx>) -> Verdict {
    let ttl = ctx.ttl() * 2;
    let locks = ctx.proxied_locker().await?;
    let guard = locks.lock("n")?.ttl(ttl).acquire().await?;
    let began = Moment::now();
    let mut tried = ctx.network().count("");
    ctx.network().set(Fault::BlackHole);
    let tried = within(ttl, tried.begin()).await;
    ensure!(matches!(tried, Some(Ok(()))), "nothing was sent for the lock in a whole lease");
    // It may have been for the connection; by now a renewal is on its way.
    sleep((began + ttl / 3 + Duration::from_millis(100)).remaining()).await;
    ctx.network().reset_connections().await;
    ctx.network().heal();
    let lost = within((began + ttl + ctx.slack()).remaining(), guard.lost()).await;
    ensure!(
        lost.is_none(),
        "the network was back after a third of the lease, and the lock is lost: {lost:?}"
    );
    guard.verify().await?;
    guard.release().await?;
    Ok(())
}

pub(super) async fn late_requests_do_no_harm(ctx: Arc<Ctx>) -> Verdict {
    // A server may have to be sent its scripts first, and a late request is not repeated.
    ctx.locker().await.lock("late-try")?.acquire().await?.release().await?;
    let locks = ctx.proxied_locker().await?;
    let mut late = ctx.network().hold("late-try");
    let ended = locks.lock("late-try")?.ttl(LONG).try_acquire().await;
    ensure!(ended.is_err(), "an attempt that never reached the server ended as {ended:?}");
    soon(&ctx, late.caught()).await?.expect("the proxy is there");
    deliver(&ctx, &mut late).await?;
    is_free_soon(&ctx, "late-try", "the attempt that landed late").await?;

    let locks = ctx.proxied_locker().await?;
    let guard = locks.lock("late-renewal")?.ttl(ctx.ttl()).acquire().await?;
    let mut late = ctx.network().hold("late-renewal");
    soon(&ctx, late.caught()).await?.expect("the proxy is there");
    // Others may go by other connections.
    ctx.network().set(Fault::Lose(Direction::ToServer));
    let lost = within(ctx.ttl() + ctx.slack(), guard.lost()).await;
    ensure!(lost == Some(Loss::Expired), "without renewals, the loss was {lost:?}");
    let next = ctx.locker().await.lock("late-renewal")?.ttl(ctx.ttl());
    let Some(next) = within(ctx.takeover_bound() + ctx.slack(), next.acquire()).await else {
        violated!("the lock did not pass on after the lease");
    };
    let next = next?;
    ctx.network().heal();
    deliver(&ctx, &mut late).await?;
    sleep(ctx.ttl()).await;
    ensure!(!guard.is_held(), "a renewal that landed late revived a lost lock");
    next.verify()
        .await
        .map_err(|error| Violation(format!("a renewal that landed late harmed the next: {error}")))
}

pub(super) async fn answers_are_not_mixed_up(ctx: Arc<Ctx>) -> Verdict {
    const ROUNDS: u32 = 40;

    let client = ctx.proxied_client().await;
    ctx.network().set(Fault::delay(Duration::from_millis(2)));
    for round in 0..ROUNDS {
        let mut claim = ctx.claim(&name(&format!("n{round}")), false);
        claim.ttl = LONG;
        let early = Duration::from_micros(u64::from(round) * 250);
        // Given up on before, while or after it is on its way.
        let _ = within(early, client.try_acquire(&claim)).await;
        let token = ctx.win(&*client, &mut claim).await?.token;
        if ctx.caps.inspecting == Support::Present {
            let seen = client.inspect(&claim.name).await?;
            let is_ours = |holder: &Holder| {
                holder.owner == Some(claim.owner)
                    && (holder.token.is_none() || holder.token == token)
            };
            ensure!(
                matches!(seen.holders.as_slice(), [holder] if is_ours(holder)),
                "a look at a lock of ours shows what is not there, after {round} rounds: {seen:?}"
            );
        }
        // In every other round only: a dropped request may have been sent.
        if round % 2 == 0
            && let Some(answer) = within(early, client.release(&claim, ReleaseMode::now())).await
        {
            let answer = answer?;
            ensure!(answer == Release::Released, "a lock of ours that we let go was {answer:?}");
        }
        client.release(&claim, ReleaseMode::now()).await?;
        let again = client.release(&claim, ReleaseMode::now()).await?;
        ensure!(again == Release::NotHeld, "a lock that was let go was {again:?} again");
    }
    Ok(())
}

pub(super) async fn a_broken_connection_is_replaced(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    ctx.network().reset_connections().await;
    works_soon(&ctx, &locks, "after a reset").await?;
    let (mut held, lock) = (ctx.network().hold("mid-call"), locks.lock("mid-call")?);
    let call = tokio::spawn(async move { lock.try_acquire().await });
    soon(&ctx, held.caught()).await?.expect("the proxy is there");
    ctx.network().reset_connections().await;
    let ended = soon(&ctx, call).await?.expect("an attempt does not panic");
    ensure!(ended.is_err(), "an attempt that never reached the server ended as {ended:?}");
    works_soon(&ctx, &locks, "after a reset in the middle of a call").await?;
    for direction in [Direction::ToClient, Direction::ToServer] {
        ctx.network().half_close(direction);
        works_soon(&ctx, &locks, &format!("after {direction:?} was closed")).await?;
    }
    ctx.network().set(Fault::Slice);
    works_soon(&ctx, &locks, "byte by byte").await?;
    ctx.network().reset_connections().await;
    works_soon(&ctx, &locks, "after a reset, byte by byte").await
}

pub(super) async fn garbage_is_an_error_and_passes(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    for (number, garbage) in GARBAGE.iter().enumerate() {
        let lock = format!("garbage-{number}");
        let hit = ctx.network().forge(&*lock, garbage);
        let ended = locks.lock(&*lock)?.ttl(LONG).try_acquire().await;
        soon(&ctx, hit).await?.map_err(|error| Violation(format!("nothing came: {error}")))?;
        let shown = garbage.escape_ascii();
        ensure!(ended.is_err(), "an attempt that was answered {shown} ended as {ended:?}");
        works_within(GARBAGE_PASSES, &locks, &format!("after {shown}")).await?;
        let free = ctx.becomes_free(&name(&lock), GARBAGE_PASSES).await?;
        ensure!(free, "an attempt that was answered {shown} keeps the lock shut");
    }
    Ok(())
}

/// Answers that no server gives to an attempt.
///
/// Some announce more bytes than ever arrive. Then only silence shows the broken connection.
const GARBAGE: [&[u8]; 9] = [
    b"\0",
    b"\r\n\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"$9999999999\r\n",
    b"*-2\r\n",
    b"*2147483647\r\n",
    b"VALUE n 0 99999999999\r\n",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
];

/// How long a connection may be silent before it is given up, and the calls before and after that.
const GARBAGE_PASSES: Duration = Duration::from_secs(12);

pub(super) async fn a_waiter_outlives_its_connection(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    for how in ["reset", "no-more-answers", "nobody-listens", "swallowed"] {
        let holder = ctx.locker().await.lock(how)?.ttl(LONG).acquire().await?;
        let waiting = waiting(&ctx, &locks, how).await?;
        match how {
            "reset" => ctx.network().reset_connections().await,
            "no-more-answers" => ctx.network().half_close(Direction::ToClient),
            "nobody-listens" => ctx.network().half_close(Direction::ToServer),
            _ => ctx.network().set(Fault::BlackHole),
        }
        holder.release().await?;
        if how == "swallowed" {
            ctx.network().reset_connections().await;
            ctx.network().heal();
        }
        served(&ctx, waiting, how).await?.release().await?;
    }
    Ok(())
}

pub(super) async fn a_late_notification_prolongs_no_lease(ctx: Arc<Ctx>) -> Verdict {
    const LATE: Duration = Duration::from_millis(600);

    let locks = ctx.proxied_locker().await?;
    let stranger = ctx.client().await;
    let holder = ctx.locker().await.lock("late-grant")?.ttl(LONG).acquire().await?;
    let waiting = waiting(&ctx, &locks, "late-grant").await?;
    ctx.network().set(Fault::Lose(Direction::ToClient));
    holder.release().await?;
    sleep(LATE).await;
    ctx.network().heal();
    let guard = served(&ctx, waiting, "what the server said was late").await?;
    let looked = Moment::now();
    let believed = guard.valid_for().unwrap_or_default();
    let seen = stranger.inspect(&name("late-grant")).await?;
    let left = seen.holders.first().and_then(|holder| holder.expires_in);
    // The server counts milliseconds, and has counted on since.
    let rounding = Duration::from_millis(2) + Moment::now().saturating_since(looked);
    ensure!(
        left.is_some_and(|left| believed <= left + rounding),
        "a waiter that heard of its grant {LATE:?} late holds the lock for {believed:?}, and the server \
         for {left:?}"
    );
    guard.release().await?;
    Ok(())
}

pub(super) async fn a_refused_connection_is_not_contention(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    ctx.network().set(Fault::Refuse);
    ctx.network().reset_connections().await;
    let lock = locks.lock("n")?;
    for _ in 0..3 {
        let tried = within(ctx.timeout() + ctx.slack(), lock.try_acquire()).await;
        ensure!(
            matches!(&tried, Some(Err(error)) if error.is_retryable()),
            "with nobody to ask, a try ended as {tried:?}"
        );
    }
    let wait = ctx.timeout() / 4;
    let waited = within(ctx.timeout() + ctx.slack(), lock.try_acquire_for(wait)).await;
    ensure!(
        matches!(&waited, Some(Err(error)) if error.is_retryable()),
        "with nobody to ask, a bounded wait ended as {waited:?}"
    );
    ctx.network().heal();
    works_soon(&ctx, &locks, "after the door was opened").await
}

pub(super) async fn every_call_has_its_bound(ctx: Arc<Ctx>) -> Verdict {
    let second = Duration::from_secs(1);
    for fault in [
        Fault::BlackHole,
        Fault::Lose(Direction::ToServer),
        Fault::Lose(Direction::ToClient),
        Fault::Trickle { bytes: 1, every: second },
    ] {
        let locks = ctx.proxied_locker().await?;
        let verified = locks.lock("verified")?.ttl(LONG).acquire().await?;
        let extended = locks.lock("extended")?.ttl(LONG).acquire().await?;
        let released = locks.lock("released")?.ttl(LONG).acquire().await?;
        ctx.network().set(fault);
        let (lock, n) = (locks.lock("n")?, name("n"));
        tokio::try_join!(
            bounded(&ctx, fault, "try_acquire", lock.try_acquire()),
            bounded(&ctx, fault, "try_acquire_for", lock.try_acquire_for(Duration::ZERO)),
            bounded(&ctx, fault, "verify", verified.verify()),
            bounded(&ctx, fault, "extend", extended.extend(LONG * 2)),
            bounded(&ctx, fault, "inspect", locks.inspect(&n)),
            bounded(&ctx, fault, "break_lock", locks.break_lock(&n, verified.owner())),
            bounded(&ctx, fault, "identity", locks.identity()),
            bounded(&ctx, fault, "release", released.release()),
        )?;
        drop(verified);
        bounded(&ctx, fault, "close", locks.close()).await?;
        ctx.network().heal();
    }
    Ok(())
}

pub(super) async fn an_undelivered_release_is_finished_later(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    let released = locks.lock("released")?.ttl(LONG).acquire().await?;
    let dropped = locks.lock("dropped")?.ttl(LONG).acquire().await?;
    ctx.network().set(Fault::BlackHole);
    drop(dropped);
    let ended = released.release().await;
    let Err(error) = &ended else { violated!("an unanswered release ended as {ended:?}") };
    ensure!(
        error.is_retryable(),
        "an unanswered release ended as {error:?}, as if it had been answered"
    );
    // Not even late: only new requests can free the locks.
    ctx.network().reset_connections().await;
    ctx.network().heal();
    is_free_soon(&ctx, "released", "the release that could not get through").await?;
    is_free_soon(&ctx, "dropped", "the guard that was dropped meanwhile").await
}

pub(super) async fn an_undelivered_release_bounds_the_rest(ctx: Arc<Ctx>) -> Verdict {
    let locks = ctx.proxied_locker().await?;
    // The locks' permanent state exists already.
    for lock in ["n", "probe"] {
        ensure!(ctx.is_free(&name(lock)).await?, "a lock that nobody has taken is not free");
    }
    let to_server = longest_delay_within_a_call(&ctx, &locks, "probe").await?;
    ctx.network().set(Fault::Delay { to_server, to_client: Duration::ZERO });
    // A renewal without an answer would prolong the bound.
    let lock = locks.lock("n")?.ttl(ctx.ttl()).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await?;
    let next = start_waiter(&ctx, "n").await?;
    ctx.network().set(Fault::BlackHole);
    let ended = guard.release().await;
    is_held_within_the_bound(&ctx, ended, next).await
}

/// Returns a delay of each request with which an acquisition by `locks` is under way for most of
/// the bound of a call, however many round trips it makes: 250 ms at most.
async fn longest_delay_within_a_call(
    ctx: &Ctx,
    locks: &Locker,
    lock: &str,
) -> Result<Duration, Violation> {
    const LONGEST: Duration = Duration::from_millis(250);
    const PROBE: Duration = Duration::from_millis(50);

    let lock = locks.lock(lock)?.ttl(ctx.ttl());
    ctx.network().set(Fault::Delay { to_server: PROBE, to_client: Duration::ZERO });
    let began = Moment::now();
    let guard = lock.acquire().await?;
    let took = Moment::now().saturating_since(began);
    guard.release().await?;
    ctx.network().heal();
    // A stall of a loaded machine looks like a round trip, and shortens the delay.
    let round_trips = u32::try_from(took.as_millis() / PROBE.as_millis()).unwrap_or(u32::MAX);
    // The rest is left to a loaded machine.
    let under_way = ctx.timeout() * 3 / 4;
    Ok((under_way / round_trips.max(1)).min(LONGEST))
}

/// Starts a task of `locks` that waits for a held lock, and has requested it.
async fn waiting(ctx: &Ctx, locks: &Locker, lock: &str) -> Result<Waiting, Violation> {
    let asked = ctx.network().count(Match::on(lock));
    let (mut asked, wanted) = (asked, locks.lock(lock)?.ttl(LONG));
    let waiting = tokio::spawn(async move { wanted.acquire().await });
    soon(ctx, asked.begin()).await?.expect("the proxy is there");
    // For its other requests. That the waiter is idle cannot be observed.
    sleep(Duration::from_millis(200)).await;
    ensure!(!waiting.is_finished(), "a waiter for a held lock does not wait");
    Ok(waiting)
}

/// Returns the guard of a waiter whose lock is free now.
async fn served(ctx: &Ctx, waiting: Waiting, how: &str) -> Result<LockGuard, Violation> {
    let bound = ctx.timeout() * 2 + ctx.slack();
    match within(bound, waiting).await {
        Some(guard) => Ok(guard.expect("a waiter does not panic")?),
        None => violated!("a waiter was not served within {bound:?} of the release ({how})"),
    }
}

async fn is_free_soon(ctx: &Ctx, lock: &str, what: &str) -> Verdict {
    let bound = ctx.timeout() * 2 + ctx.slack();
    ensure!(ctx.becomes_free(&name(lock), bound).await?, "{what} keeps the lock shut");
    Ok(())
}

async fn works_soon(ctx: &Ctx, locks: &Locker, when: &str) -> Verdict {
    works_within(ctx.timeout() * 2 + ctx.slack(), locks, when).await
}

/// Acquires and releases until it works.
async fn works_within(bound: Duration, locks: &Locker, when: &str) -> Verdict {
    let lock = locks.lock("works")?.ttl(LONG);
    let end = Moment::now() + bound;
    loop {
        let pair = async { lock.acquire().await?.release().await };
        match within(end.remaining(), pair).await {
            Some(Ok(())) => return Ok(()),
            // Of the connection that was lost.
            Some(Err(error)) if error.kind() == ErrorKind::Gone || error.is_retryable() => {}
            None => violated!("nothing works any more {when}"),
            Some(Err(error)) => violated!("nothing works any more {when}: {error:?}"),
        }
        ensure!(!end.has_passed(), "nothing works any more {when}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn deliver(ctx: &Ctx, late: &mut Holds) -> Verdict {
    // A client may have closed the connection for its silence; then the request is lost for good.
    if soon(ctx, late.deliver()).await?.is_ok() {
        let _ = soon(ctx, late.answered()).await?;
    }
    Ok(())
}

async fn bounded<T>(
    ctx: &Ctx,
    fault: Fault,
    what: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> Verdict {
    // An acquisition releases an unknown outcome, and a release is sent twice.
    let bound = ctx.timeout() * 2 + ctx.slack();
    let began = Moment::now();
    let ended = within(bound, call).await.is_some();
    let took = Moment::now().saturating_since(began);
    ensure!(
        ended && took <= bound,
        "{what} took {took:?} on {fault:?}, and its bound is {bound:?}"
    );
    Ok(())
}

async fn soon<T>(ctx: &Ctx, work: impl IntoFuture<Output = T>) -> Result<T, Violation> {
    let bound = ctx.timeout() * 2 + ctx.slack();
    let missed = || Violation(format!("what the check waits for did not happen within {bound:?}"));
    within(bound, work.into_future()).await.ok_or_else(missed)
}

async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(bound, work).await.ok()
}

pub(super) async fn a_lock_outlives_the_runtimes_of_its_callers(ctx: Arc<Ctx>) -> Verdict {
    let ttl = Duration::from_secs(1).max(ctx.caps.ttl_min);
    let won_elsewhere = {
        let ctx = Arc::clone(&ctx);
        move || {
            let (connects, wins) = (runtime(), runtime());
            let client = connects.block_on(ctx.proxied_client());
            let locks = Locker::builder_from(Arc::clone(&client)).timeout(ctx.timeout()).build();
            let guard = wins.block_on(locks.lock("runtimes")?.ttl(ttl).acquire())?;
            let server = wins.block_on(locks.identity())?;
            Ok::<_, Violation>((guard, server))
        }
    };
    let won = tokio::task::spawn_blocking(won_elsewhere).await;
    let (guard, server) = won.map_err(|error| Violation(format!("to win it {error}")))??;
    let leases = match ctx.caps.takeover {
        // Of the session that the lock hangs on, if that is longer.
        Takeover::LeasePlus(slack) => ttl.max(slack) * 10,
        Takeover::AtOnce => ttl * 10,
    };
    let lost = tokio::time::timeout(leases.min(ctx.ttl() * 8), guard.lost()).await;
    ensure!(lost.is_err(), "the lock was lost when the runtimes had ended: {lost:?}");
    ensure!(
        server.is_none_or(|server| server.epoch.is_current()),
        "the connection ended with the runtime that made it"
    );
    ensure!(!ctx.is_free(&name("runtimes")).await?, "a lock that is held is free on the server");
    guard.release().await?;
    ensure!(ctx.is_free(&name("runtimes")).await?, "the lock is taken after its release");
    Ok(())
}

/// Returns a runtime of a caller.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime can be made")
}
