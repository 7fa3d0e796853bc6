//! Chapter 14: locks that are handed over inside a process.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Injection, Verb};
use lock_core::{Error, ErrorKind, Lock, LockGuard, Locker, Order, OwnerId, Support};
use tokio::task::JoinHandle;

use super::cancellation::poll_and_drop;
use super::exclusion::never_overlap;
use super::loss::gives_up_in_time;
use crate::context::{Ctx, Verdict, Violation, ensure, violated};
use crate::helpers::name;

/// A process that hands its locks over, with counts of its requests.
struct Cohort {
    locks: Locker,
    attempts: Arc<AtomicU32>,
    releases: Arc<AtomicU32>,
    /// From now on no renewal is answered.
    is_silent: Arc<AtomicBool>,
    ttl: Duration,
}

type Waiter = JoinHandle<Result<LockGuard, Error>>;

impl Cohort {
    async fn new(ctx: &Ctx, at_most: u8) -> Self {
        let [attempts, releases] = [Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0))];
        let is_silent = Arc::new(AtomicBool::new(false));
        let (tried, let_go, silent) =
            (Arc::clone(&attempts), Arc::clone(&releases), Arc::clone(&is_silent));
        let locks = ctx.with_faults(move |call| {
            match call.verb {
                Verb::TryAcquire => _ = tried.fetch_add(1, Ordering::SeqCst),
                Verb::Release => _ = let_go.fetch_add(1, Ordering::SeqCst),
                Verb::Renew if silent.load(Ordering::SeqCst) => return Injection::Hang,
                Verb::Renew | Verb::Wait | Verb::WaitLost => {}
            }
            Injection::None
        });
        let locks = locks.await.local_handovers(at_most).build();
        // Renewals are rare: one that is under way is a reason to give a lock back.
        Self { locks, attempts, releases, is_silent, ttl: ctx.ttl() * 10 }
    }

    fn lock(&self) -> Result<Lock, Error> {
        Ok(self.locks.lock("n")?.ttl(self.ttl))
    }

    async fn acquire(&self) -> Result<LockGuard, Error> {
        self.lock()?.acquire().await
    }

    /// Starts a waiter, which is queued when this returns.
    async fn waiter(&self) -> Result<Waiter, Error> {
        waiter(self.lock()?).await
    }

    fn releases(&self) -> u32 {
        self.releases.load(Ordering::SeqCst)
    }
}

async fn waiter(lock: Lock) -> Result<Waiter, Error> {
    let waiter = tokio::spawn(async move { lock.acquire().await });
    // Its first poll is all that it takes: the line is in this process, and so is its runtime.
    tokio::task::yield_now().await;
    Ok(waiter)
}

/// Returns the guard of `waiter`, within a bound.
async fn served(ctx: &Ctx, waiter: Waiter) -> Result<LockGuard, Violation> {
    let Ok(guard) = tokio::time::timeout(ctx.slack(), waiter).await else {
        violated!("the next one was not served within {:?}", ctx.slack());
    };
    Ok(guard.expect("a waiter does not panic")?)
}

pub(super) async fn a_hand_over_needs_no_request(ctx: Arc<Ctx>) -> Verdict {
    let cohort = Cohort::new(&ctx, 3).await;
    let mut guard = cohort.acquire().await?;
    let mut owners = vec![*guard.owner()];
    let mut waiters = Vec::new();
    for _ in 0..3 {
        waiters.push(cohort.waiter().await?);
    }
    for (nth, waiter) in waiters.into_iter().enumerate() {
        if nth == 1 {
            drop(guard);
        } else {
            guard.release().await?;
        }
        guard = served(&ctx, waiter).await?;
        ensure!(!owners.contains(guard.owner()), "two holders have one owner id");
        owners.push(*guard.owner());
        ensure!(!ctx.is_free(&name("n")).await?, "a lock that was handed over is free for others");
    }
    let asked = [cohort.attempts.load(Ordering::SeqCst), cohort.releases()];
    ensure!(asked == [1, 0], "four holders in a row made {asked:?} attempts and releases");
    guard.verify().await?;
    guard.release().await?;
    ensure!(
        ctx.becomes_free(&name("n"), ctx.slack()).await?,
        "the last one of a process gave the lock back, and it is not free"
    );
    Ok(())
}

pub(super) async fn tokens_of_a_process_grow(ctx: Arc<Ctx>) -> Verdict {
    let cohort = Cohort::new(&ctx, 2).await;
    let mut guard = cohort.acquire().await?;
    let mut tokens = vec![guard.fencing_token()];
    for _ in 0..2 {
        let waiter = cohort.waiter().await?;
        guard.release().await?;
        guard = served(&ctx, waiter).await?;
        tokens.push(guard.fencing_token());
    }
    guard.release().await?;
    ensure!(cohort.releases() == 1, "three holders made {} releases", cohort.releases());
    let other = ctx.locker().await.lock("n")?.ttl(ctx.ttl()).acquire().await?;
    tokens.push(other.fencing_token());
    ensure!(
        tokens[0].is_some() && tokens.is_sorted_by(|one, next| one < next),
        "three holders of one process and one of another had the tokens {tokens:?}"
    );
    Ok(())
}

pub(super) async fn others_have_their_turn(ctx: Arc<Ctx>) -> Verdict {
    let cohort = Cohort::new(&ctx, 2).await;
    let served_in = Arc::new(Mutex::new(Vec::new()));
    let guard = cohort.acquire().await?;
    let mut waiters = Vec::new();
    let has_turns = ctx.caps.order == Order::Fifo;
    let other = ctx.locker().await.lock("n")?.ttl(ctx.ttl());
    let waiting = has_turns.then_some(("the other", other));
    let ours = (0..4).map(|_| Ok(("ours", cohort.lock()?))).collect::<Result<Vec<_>, Error>>()?;
    for (who, lock) in waiting.into_iter().chain(ours) {
        let served_in = Arc::clone(&served_in);
        waiters.push(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            served_in.lock().unwrap().push(who);
            guard.release().await
        }));
        // Long enough for its first attempt to be answered.
        sleep(ctx.slack() / 100).await;
    }
    guard.release().await?;
    for waiter in waiters {
        let Ok(done) = tokio::time::timeout(ctx.slack(), waiter).await else {
            violated!("after two hand-overs, nobody was served within {:?}", ctx.slack());
        };
        done.expect("a waiter does not panic")?;
    }
    ensure!(
        cohort.releases() >= 2,
        "five holders that hand over twice in a row gave the lock back {} times",
        cohort.releases()
    );
    let served_in = served_in.lock().unwrap();
    ensure!(
        !has_turns || *served_in == ["ours", "ours", "the other", "ours", "ours"],
        "behind a holder that hands over twice in a row, served were {served_in:?}"
    );
    Ok(())
}

pub(super) async fn a_successor_gives_up_in_time(ctx: Arc<Ctx>) -> Verdict {
    let mut cohort = Cohort::new(&ctx, 9).await;
    cohort.ttl = ctx.ttl();
    let guard = cohort.acquire().await?;
    // Read so that a pause in between makes this one later, and the other one earlier.
    let left = guard.valid_for().unwrap_or_default();
    let deadline = Moment::now() + left;
    let waiter = cohort.waiter().await?;
    cohort.is_silent.store(true, Ordering::SeqCst);
    sleep(ctx.ttl() / 8).await;
    guard.release().await?;
    let heir = served(&ctx, waiter).await?;
    ensure!(cohort.releases() == 0, "the lock was given back, and not handed over");
    let inherited = Moment::now() + heir.valid_for().unwrap_or_default();
    ensure!(
        inherited <= deadline,
        "an heir believes in its lock for {:?} longer than the holder before",
        inherited.saturating_since(deadline)
    );
    drop(gives_up_in_time(&ctx, &heir).await?);
    Ok(())
}

pub(super) async fn a_break_ends_the_whole_cohort(ctx: Arc<Ctx>) -> Verdict {
    let mut cohort = Cohort::new(&ctx, 9).await;
    cohort.ttl = ctx.ttl();
    let guard = cohort.acquire().await?;
    let first = *guard.owner();
    let [waiter, next] = [cohort.waiter().await?, cohort.waiter().await?];
    guard.release().await?;
    let heir = served(&ctx, waiter).await?;
    shown(&ctx, first).await?;
    ensure!(ctx.take_away(&name("n"), &first).await?, "the lock could not be taken away");
    let told = tokio::time::timeout(ctx.ttl() / 3 + ctx.slack(), heir.lost()).await;
    ensure!(
        told.is_ok(),
        "the heir of a lock that was taken away was not told by its next renewal"
    );
    let end = heir.release().await;
    ensure!(
        end.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost),
        "releasing a lock that an heir has lost ended as {end:?}"
    );
    let next = served(&ctx, next).await?;
    ensure!(next.verify().await.is_ok(), "what was lost was handed over");
    shown(&ctx, *next.owner()).await
}

/// Checks that inspecting shows the owner that the backend knows.
async fn shown(ctx: &Ctx, owner: OwnerId) -> Verdict {
    if ctx.caps.inspecting == Support::Absent {
        return Ok(());
    }
    let state = ctx.client().await.inspect(&name("n")).await?;
    let holder = state.holders.first().and_then(|holder| holder.owner);
    ensure!(holder == Some(owner), "inspect does not show the one who was given the lock");
    Ok(())
}

pub(super) async fn a_dropped_successor_leaves_nothing(ctx: Arc<Ctx>) -> Verdict {
    for (polls, has_neighbour) in [(0, false), (0, true), (1, false), (1, true)] {
        let cohort = Cohort::new(&ctx, 9).await;
        let guard = cohort.acquire().await?;
        let lock = cohort.lock()?;
        let neighbour = {
            let mut heir = pin!(lock.acquire());
            poll_and_drop(heir.as_mut(), 1).await;
            let neighbour = match has_neighbour {
                true => Some(cohort.waiter().await?),
                false => None,
            };
            guard.release().await?;
            poll_and_drop(heir.as_mut(), polls).await;
            neighbour
        };
        if let Some(neighbour) = neighbour {
            served(&ctx, neighbour).await?.release().await?;
        }
        ensure!(
            ctx.becomes_free(&name("n"), ctx.slack()).await?,
            "an heir that was dropped after {polls} polls left the lock shut"
        );
    }
    Ok(())
}

pub(super) async fn a_mismatched_lock_is_released(ctx: Arc<Ctx>) -> Verdict {
    let cohort = Cohort::new(&ctx, 9).await;
    let guard = cohort.acquire().await?;
    let waiter = waiter(cohort.lock()?.ttl(cohort.ttl * 2)).await?;
    guard.release().await?;
    drop(served(&ctx, waiter).await?);
    ensure!(cohort.releases() > 0, "a lock was handed over to who asks for another lease");
    ensure!(ctx.becomes_free(&name("n"), ctx.slack()).await?, "a dropped guard kept its lock");

    let (before, min_hold) = (Moment::now(), ctx.ttl() / 4);
    let guard = cohort.lock()?.min_hold(min_hold).acquire().await?;
    let waiter = cohort.waiter().await?;
    drop(guard);
    let next = tokio::time::timeout(min_hold + ctx.ttl() + ctx.slack(), waiter).await;
    let held = Moment::now().saturating_since(before);
    ensure!(
        held >= min_hold,
        "after a minimum hold of {min_hold:?}, the next one of its process came {held:?} after it was won"
    );
    let Ok(next) = next else { violated!("nobody came after a minimum hold") };
    drop(next.expect("a waiter does not panic")?);
    Ok(())
}

pub(super) async fn claims_of_processes_never_overlap(ctx: Arc<Ctx>) -> Verdict {
    let mut lockers = Vec::new();
    for at_most in [1, 3, u8::MAX] {
        lockers.push(Cohort::new(&ctx, at_most).await.locks);
    }
    never_overlap(&ctx, &lockers).await
}
