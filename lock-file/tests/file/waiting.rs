//! The order of waiters: service, skipped waiters, and `inspect`.

use std::path::Path;
use std::time::Duration;

use crate::common::{
    Process, acquire, assert_served_in_order, hold, is_free, locker, name, path_text, run_if_child,
    say, scratch, until,
};
use lock_core::clock::{sleep, wall};
use lock_core::{Locker, Wakeup};
use rustix::process::{Pid, Signal, kill_process};

const HOLD: Duration = Duration::from_millis(20);
const ROUNDS: usize = 50;

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "hold" => hold(args).await,
        "hog" => hog(args).await,
        other => panic!("no such job: {other}"),
    });
}

/// Holds the lock nearly all the time: takes it again as soon as it has released it, until it is
/// killed.
///
/// It releases only once another process waits. Otherwise, on a busy machine, it would release
/// before that process has joined the queue, and take a lock for which no process waits.
async fn hog(args: &[&str]) {
    let locks = locker(Path::new(args[0]));
    say("ready");
    loop {
        let guard = acquire(&locks, args[1]).await;
        say(guard.fencing_token().unwrap());
        sleep(HOLD).await;
        until("another process waits", async || waiting(&locks).await > 0).await;
        guard.release().await.unwrap();
    }
}

async fn waiting(locks: &Locker) -> u64 {
    locks.inspect(&name("n")).await.unwrap().waiting.unwrap()
}

/// Starts children that wait, one after another.
async fn queue(locks: &Locker, dir: &Path, count: u64) -> Vec<Process> {
    let mut children = Vec::new();
    for i in 1..=count {
        children.push(Process::start(module_path!(), "hold", &[&path_text(dir), "n"]));
        until("it waits", async || waiting(locks).await == i).await;
    }
    children
}

pub(crate) fn signal(process: &Process, signal: Signal) {
    let id = Pid::from_raw(process.id().try_into().unwrap()).unwrap();
    kill_process(id, signal).unwrap();
}

/// Stops a process, and waits until none of its threads runs.
pub(crate) async fn stop(process: &Process) {
    signal(process, Signal::STOP);
    until("it has stopped", async || {
        crate::common::files_in(format!("/proc/{}/task", process.id()).as_ref()).iter().all(
            |thread| std::fs::read_to_string(thread.join("status")).unwrap().contains("State:\tT"),
        )
    })
    .await;
}

#[tokio::test]
async fn processes_are_served_in_the_order_in_which_they_came() {
    let dir = scratch();
    let locks = locker(dir.path());
    assert_eq!(locks.capabilities().wakeup, Wakeup::Signal);
    let guard = acquire(&locks, "n").await;
    let mut children = queue(&locks, dir.path(), 4).await;
    // The dead are not waited for.
    children.remove(0).kill();
    children.remove(1).kill();
    until("two are left", async || waiting(&locks).await == 2).await;
    let released = wall();
    guard.release().await.unwrap();
    assert_served_in_order(children, released);
    assert_eq!(waiting(&locks).await, 0);
    assert_eq!(
        crate::common::files_in(dir.path()),
        [dir.path().join("n.lock")],
        "nothing is left of them"
    );
}

#[tokio::test]
async fn a_newcomer_leaves_a_free_lock_to_waiters() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut hog = Process::start(module_path!(), "hog", &[&path_text(dir.path()), "n"]);
    assert_eq!(hog.hear(), "ready");
    for _ in 0..ROUNDS {
        until("theirs", async || !locks.inspect(&name("n")).await.unwrap().holders.is_empty())
            .await;
        acquire(&locks, "n").await.release().await.unwrap();
    }
    hog.kill();
    let theirs = hog.rest().len();
    assert!(theirs <= ROUNDS + 2, "{theirs} for {ROUNDS} of ours");
}

#[tokio::test]
async fn a_stopped_waiter_is_skipped() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut children = queue(&locks, dir.path(), 2).await;
    let mut stopped = children.remove(0);
    stop(&stopped).await;
    guard.release().await.unwrap();
    children[0].hear();
    children.remove(0).finish();
    assert!(is_free(&locks, "n").await);
    assert_eq!(waiting(&locks).await, 0, "it has lost its place");
    signal(&stopped, Signal::CONT);
    stopped.hear();
    stopped.finish();
}

#[tokio::test]
async fn a_try_takes_a_free_lock_and_is_not_queued() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let children = queue(&locks, dir.path(), 1).await;
    assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
    assert_eq!(waiting(&locks).await, 1);
    stop(&children[0]).await;
    guard.release().await.unwrap();
    assert!(is_free(&locker(dir.path()), "n").await, "whoever waits for it does not take it");
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locker(dir.path()), "n").await;
    let waiter = tokio::spawn({
        // Looks again several times meanwhile, and keeps its place.
        let lock = locks.lock("n").unwrap().ttl(Duration::from_millis(20));
        async move { lock.acquire().await }
    });
    until("it waits", async || waiting(&locks).await == 1).await;
    let place = crate::common::files_in(&dir.path().join("n.lock.d"));
    for _ in 0..100 {
        sleep(Duration::from_millis(2)).await;
        assert_eq!(crate::common::files_in(&dir.path().join("n.lock.d")), place, "the same place");
    }
    waiter.abort();
    until("it left", async || waiting(&locks).await == 0).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn waiters_without_a_queue_are_served_as_well() {
    let dir = scratch();
    let locks = locker(dir.path());
    // No process can create a directory there.
    std::fs::write(dir.path().join("n.lock.d"), "").unwrap();
    let guard = acquire(&locks, "n").await;
    let waiter = tokio::spawn({
        let lock = locker(dir.path()).lock("n").unwrap();
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("it has the file open", async || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = |file: &Path| file == dir.path().join("n.lock");
        files
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|it| open(it))
            .count()
            == 2
    })
    .await;
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap();
}

/// Otherwise hundreds of waiters would each read a queue of hundreds at each poll.
#[cfg(feature = "__tools")]
#[tokio::test]
async fn a_waiter_does_not_read_the_queue_again_while_the_one_ahead_stays() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut first = queue(&locks, dir.path(), 1).await.remove(0);
    let log = dir.path().with_extension("log");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&log).args(["-e", "trace=flock,getdents64"]);
    for traced in ["n.lock", "n.lock.d"] {
        strace.arg("-P").arg(dir.path().join(traced));
    }
    let job = Process::command(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    strace.arg(job.get_program()).args(job.get_args());
    strace.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut second = Process::spawn(strace);
    let calls = |name: &str| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.lines().filter(|line| line.contains(name)).count()
    };
    until("it has looked some times", async || calls("flock(") >= 6).await;
    // When it comes and when it joins, in two calls each.
    assert!(calls("getdents64(") <= 4, "{}", std::fs::read_to_string(&log).unwrap());
    guard.release().await.unwrap();
    first.hear();
    first.finish();
    second.hear();
    second.finish();
    std::fs::remove_file(&log).unwrap();
}
