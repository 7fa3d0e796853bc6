//! Checks of one client, each of which shows a broken promise.

use std::path::Path;
use std::time::Duration;

use lock_any::clock::{Moment, sleep};
use lock_fleet::{CLIENTS, Promise, Side};
use test_servers::{Clock, RedisOptions, Step};
use tokio::time::timeout;

use crate::scene::{Answer, Checked, SOON, Scene, Worker};

/// A lease that outlasts a check on a busy machine.
const LONG: u64 = 20_000;

/// Returns the observation that shows that the promise is broken. It is an error if it is kept.
pub(crate) fn broken(promise: &'static Promise, target: &Path) -> Checked {
    let client = CLIENTS.iter().find(|client| client.name == promise.client);
    let client = client.ok_or_else(|| format!("no client {}", promise.client))?;
    let scene = Scene::start_with(client, target, client.prefix, &RedisOptions::new().clock());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        match promise.check {
            "endless" => endless(&scene, promise.options).await,
            "semaphore" => semaphore(&scene, promise.options).await,
            "clock_ahead" => clock_ahead(&scene, promise.options).await,
            "lost_reply_by_default" => lost_reply_by_default(&scene, promise.options).await,
            "server_ahead" => server_ahead(&scene, promise.options).await,
            "slow_request" => slow_request(&scene, promise.options).await,
            "string_beside" => string_beside(&scene, promise.options).await,
            other => Err(format!("no check {other}")),
        }
    })
}

/// Locks without an end.
async fn endless(scene: &Scene, options: &[&str]) -> Checked {
    let mut workers = two(scene, options).await?;
    for worker in &mut workers {
        worker.ttl(LONG).await?;
    }
    holders(workers, Duration::ZERO).await
}

/// Leases of different lengths.
async fn semaphore(scene: &Scene, options: &[&str]) -> Checked {
    let [mut first, mut second] = two(scene, options).await?;
    first.ttl(LONG).await?;
    second.ttl(1_000).await?;
    // For the semaphore the second lease counts, also for the age of the first one.
    holders([first, second], Duration::from_millis(1_300)).await
}

/// Clients whose clocks differ by less than a lease. The second one asks before the first one has
/// renewed at four fifths of its lease.
async fn clock_ahead(scene: &Scene, options: &[&str]) -> Checked {
    let clock = Clock::new().map_err(|error| error.to_string())?;
    clock.step(Step::Forward(Duration::from_secs(15)));
    let mut first = scene.worker_with(Side::Theirs, options).await?;
    let mut second = scene.worker_by(&clock, options).await?;
    first.ttl(LONG).await?;
    second.ttl(LONG).await?;
    holders([first, second], Duration::from_millis(5_500)).await
}

/// A server whose clock is ahead of the clients' by more than a lease. The first holder is asked
/// before it renews at half of its lease.
async fn server_ahead(scene: &Scene, options: &[&str]) -> Checked {
    const PAUSE: Duration = Duration::from_secs(2);
    let [mut first, mut second] = two(scene, options).await?;
    first.ttl(LONG).await?;
    second.ttl(LONG).await?;
    scene.servers[0].step_clock(Step::Forward(Duration::from_millis(LONG + 1_000)));
    let acquired = first.tries("n").await?;
    sleep(PAUSE).await;
    let (held, copies) = (first.is_held("n").await?, scene.copies("n"));
    if (&acquired, &held, copies) != (&Answer::Yes, &Answer::Yes, 0) {
        return Err(format!("the promise is kept: {acquired:?}, {held:?}, {copies} keys"));
    }
    let next = second.tries("n").await?;
    let until = Moment::now() + PAUSE;
    while first.is_held("n").await? == Answer::Yes {
        if Moment::now() > until {
            return Ok("2 hold".into());
        }
        sleep(Duration::from_millis(20)).await;
    }
    match next {
        Answer::Yes => {
            Ok("the first one says for 2 s that it holds the lock, and the server has no \
                           key; its context ends after the second one is granted the lock"
                .into())
        }
        next => Err(format!("the second one is not granted the lock: {next:?}")),
    }
}

/// A waiter whose first request takes longer than the client waits for the reply, which says that
/// the script is not known yet.
async fn slow_request(scene: &Scene, options: &[&str]) -> Checked {
    const DELAY: Duration = Duration::from_millis(30);
    const PAUSE: Duration = Duration::from_secs(5);
    let mut worker = scene.worker_with(Side::Theirs, options).await?;
    worker.ttl(LONG).await?;
    let mut request = scene.proxy(Side::Theirs).hold(scene.client.key("n").as_str());
    worker.peer.tell("hold n");
    let caught = timeout(SOON, request.caught()).await.map_err(|_| "it sends no request")?;
    caught.map_err(|error| error.to_string())?;
    sleep(DELAY).await;
    request.deliver().await.map_err(|error| error.to_string())?;
    match timeout(PAUSE, worker.acquired()).await {
        Err(_) if scene.copies("n") == 0 => {
            Ok("it still waits after 5 s, and the server has no key".into())
        }
        other => Err(format!("the promise is kept: {other:?}")),
    }
}

/// A client that repeats a request to acquire whose reply was lost.
async fn lost_reply_by_default(scene: &Scene, options: &[&str]) -> Checked {
    let [mut first, mut second] = two(scene, options).await?;
    // The connection exists then.
    first.tries("warm").await?;
    let hit = scene.proxy(Side::Theirs).cut_after("lost-one");
    let said = first.tries("lost-one").await?;
    let cut = timeout(SOON, hit).await.map_err(|_| "its request did not come by")?;
    cut.map_err(|error| format!("its reply was not cut: {error}"))?;
    let next = second.tries("lost-one").await?;
    match (said, next, scene.rest("lost-one")) {
        (Answer::No, Answer::No, -1) => Ok("`False`; its lock stays, and does not expire".into()),
        other => Err(format!("the promise is kept, or another one is broken: {other:?}")),
    }
}

/// Has two workers acquire one lock, with a pause between them, and returns how many hold it then.
async fn holders([mut first, mut second]: [Worker; 2], pause: Duration) -> Checked {
    let acquired = first.tries("n").await?;
    // Time passes in the course of events that is checked.
    sleep(pause).await;
    let acquired = [acquired, second.tries("n").await?];
    let held = [first.is_held("n").await?, second.is_held("n").await?];
    // A client that does not tell treats an acquired lock as held.
    let hold = |(acquired, held): (&Answer, &Answer)| {
        *acquired == Answer::Yes && matches!(held, Answer::Yes | Answer::Unknown)
    };
    match acquired.iter().zip(&held).filter(|&pair| hold(pair)).count() {
        2 => Ok("2 hold".into()),
        _ => Err(format!("the promise is kept: they acquire {acquired:?} and hold {held:?}")),
    }
}

/// The lease of locks that Redisson's watchdog renews, at each third of it.
const WATCHED: Duration = Duration::from_secs(6);

/// The number of locks that one client renews.
const WATCHED_LOCKS: usize = 6;

/// The lock of them that comes first in the script that renews all, by the hash of its name.
const FIRST: usize = 1;

/// A client that renews several locks, and loses one of them. Before the next renewal its key is
/// deleted, and another client acquires the lock: in the first run ours, which stores a string. In
/// the second run it is another Redisson, which stores a hash.
async fn string_beside(scene: &Scene, options: &[&str]) -> Checked {
    let mut string = scene.worker(Side::Ours).await?;
    let mut hash = scene.worker_with(Side::Theirs, options).await?;
    let beside_string = expired_beside(scene, options, &mut string, "s").await?;
    let beside_hash = expired_beside(scene, options, &mut hash, "h").await?;
    let others = WATCHED_LOCKS - 1;
    if beside_string == 0 {
        return Err("the promise is kept: no lock expires".into());
    }
    Ok(format!(
        "{beside_string} of {others} expire while they are held; with a hash of another Redisson, \
         {beside_hash} of {others}"
    ))
}

/// Returns how many of the client's other locks expire within a lease after the renewal.
async fn expired_beside(
    scene: &Scene,
    options: &[&str],
    other: &mut Worker,
    names: &str,
) -> Result<usize, String> {
    let mut holder = scene.worker_with(Side::Theirs, options).await?;
    other.ttl(3 * LONG).await?;
    // The held renewal must not wait for a start.
    other.tries("warm").await?;
    holder.must(&format!("keep {names} {WATCHED_LOCKS}")).await?;
    let taken = format!("{names}-{FIRST}");
    let mut renewal = scene.proxy(Side::Theirs).hold(taken.as_str());
    let caught = timeout(SOON, renewal.caught()).await.map_err(|_| "it does not renew")?;
    caught.map_err(|error| error.to_string())?;
    scene.servers[0].command(&["DEL", &taken]);
    if other.tries(&taken).await? != Answer::Yes {
        return Err("the lock of a deleted key is not free".into());
    }
    let others = || (0..WATCHED_LOCKS).filter(|&i| i != FIRST);
    let held = || others().filter(|i| scene.copies(&format!("{names}-{i}")) > 0).count();
    renewal.deliver().await.map_err(|error| error.to_string())?;
    if held() < WATCHED_LOCKS - 1 {
        return Err("the machine is too slow: leases ended before the renewal was delivered".into());
    }
    let until = Moment::now() + WATCHED + Duration::from_secs(1);
    while held() > 0 && Moment::now() < until {
        sleep(Duration::from_millis(50)).await;
    }
    Ok(WATCHED_LOCKS - 1 - held())
}

async fn two(scene: &Scene, options: &[&str]) -> Result<[Worker; 2], String> {
    let first = scene.worker_with(Side::Theirs, options).await?;
    Ok([first, scene.worker_with(Side::Theirs, options).await?])
}
