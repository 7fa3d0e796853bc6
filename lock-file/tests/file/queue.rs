//! The queue of waiting processes: each release wakes one of them, however others leave.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::task::Poll;

use crate::common::{
    Process, acquire, assert_served_in_order, attempt, claim, files_in, hold, listen, locker, name,
    path_text, release, run_if_child, say, scratch, until,
};
use crate::waiting::{signal, stop};
use lock_core::Locker;
use lock_core::backend::{Backend, ReleaseMode};
use lock_core::clock::wall;
use lock_file::{FileLocks, descriptor, queue_descriptor};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::dup;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "hold" => hold(args).await,
        "hold twice" => hold_twice(args).await,
        "lend" => lend(args).await,
        "wait with few descriptors" => wait_with_few_descriptors(args).await,
        other => panic!("no such job: {other}"),
    });
}

/// Runs two lockers in one process, each with a queue entry of its own.
async fn hold_twice(args: &[&str]) {
    let dir = Path::new(args[0]);
    let again = tokio::spawn({
        let (locks, name) = (locker(dir), args[1].to_owned());
        async move { release(acquire(&locks, &name).await, wall()).await }
    });
    release(acquire(&locker(dir), args[1]).await, wall()).await;
    again.await.unwrap();
}

/// Waits, and gives the lock and the queue entry to a child that lives until standard input ends.
async fn lend(args: &[&str]) {
    say("comes");
    let guard = acquire(&locker(Path::new(args[0])), args[1]).await;
    let ticket = guard.ticket().await.unwrap();
    let lock = descriptor(&ticket).unwrap().try_clone_to_owned().unwrap();
    let place = queue_descriptor(&ticket).expect("it was waited for");
    let mut child = Command::new("cat").stdout(lock).stderr(place).spawn().unwrap();
    say(child.id());
    listen();
    let _ = child.wait();
}

/// Waits with the given number of descriptors, until the parent's signal.
async fn wait_with_few_descriptors(args: &[&str]) {
    let limit = getrlimit(Resource::Nofile);
    let backend = FileLocks::at(args[0]).unwrap();
    // So that those that are open have the lowest numbers.
    let _gaps: Vec<_> = (0..20).map(|_| dup(std::io::stdin()).unwrap()).collect();
    loop {
        let Ok(more) = listen().parse::<u64>() else { return };
        let claim = claim(args[1]);
        let used = dup(std::io::stdin()).unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(used + more), ..limit }).unwrap();
        let mut wait = backend.wait(&claim);
        let begun = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
        setrlimit(Resource::Nofile, limit).unwrap();
        say(if begun.is_pending() { "waits" } else { "refused" });
        listen();
        drop(wait);
        backend.release(&claim, ReleaseMode::now()).await.unwrap();
        say("left");
    }
}

async fn waiting(locks: &Locker) -> u64 {
    locks.inspect(&name("n")).await.unwrap().waiting.unwrap()
}

async fn until_waiting(locks: &Locker, count: u64) {
    until("they wait", async || waiting(locks).await == count).await;
}

/// Starts children that wait, one after another.
async fn queue(locks: &Locker, dir: &Path, jobs: &[(&str, u64)]) -> Vec<Process> {
    let mut children = Vec::new();
    let mut count = 0;
    for (job, places) in jobs {
        children.push(Process::start(module_path!(), job, &[&path_text(dir), "n"]));
        count += places;
        until_waiting(locks, count).await;
    }
    children
}

/// Returns how often the process was put to sleep.
fn wake_ups(process: &Process) -> u64 {
    let tasks = files_in(format!("/proc/{}/task", process.id()).as_ref());
    let switches = tasks.iter().map(|task| {
        let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |number| number.trim().parse::<u64>().unwrap())
    });
    switches.sum()
}

/// Returns the number of pipes of the queue that a process has open.
fn pipes(process: &Process, dir: &Path) -> usize {
    let open = files_in(format!("/proc/{}/fd", process.id()).as_ref());
    let open = open.iter().filter_map(|file| std::fs::read_link(file).ok());
    open.filter(|file| file.starts_with(dir.join("n.lock.d"))).count()
}

fn opens(process: &Process, file: &Path) -> bool {
    let open = files_in(format!("/proc/{}/fd", process.id()).as_ref());
    open.iter().any(|it| std::fs::read_link(it).is_ok_and(|it| it == file))
}

fn watches_files(process: &Process) -> bool {
    let open = files_in(format!("/proc/{}/fd", process.id()).as_ref());
    let mut open = open.iter().filter_map(|file| std::fs::read_link(file).ok());
    open.any(|file| file.ends_with("anon_inode:inotify"))
}

#[tokio::test]
async fn only_the_first_waiter_watches_the_lock_and_the_others_a_pipe() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let children = queue(&locks, dir.path(), &[("hold", 1); 3]).await;
    until("the first one watches", async || watches_files(&children[0])).await;
    for child in &children[1..] {
        until("it has looked by itself", async || opens(child, &dir.path().join("n.lock"))).await;
        assert_eq!(pipes(child, dir.path()), 2, "its own one, and that of the process ahead");
        assert!(!watches_files(child), "inotify instances are few");
    }
    let released = wall();
    guard.release().await.unwrap();
    let is_held = async || !locks.inspect(&name("n")).await.unwrap().holders.is_empty();
    until("the lock is passed on", is_held).await;
    assert_served_in_order(children, released);
    assert_eq!(files_in(dir.path()), [dir.path().join("n.lock")], "nothing is left of the queue");
}

#[tokio::test]
async fn a_dead_or_cancelled_waiter_does_not_delay_others() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut children = queue(&locks, dir.path(), &[("hold", 1); 2]).await;
    // Cancelled: in a place of its own, between processes.
    let cancelled = tokio::spawn({
        let lock = locker(dir.path()).lock("n").unwrap();
        async move { lock.acquire().await }
    });
    until_waiting(&locks, 3).await;
    children.push(Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]));
    until_waiting(&locks, 4).await;
    cancelled.abort();
    children.remove(1).kill();
    until_waiting(&locks, 2).await;
    let released = wall();
    guard.release().await.unwrap();
    assert_served_in_order(children, released);
    until("it is removed", async || !dir.path().join("n.lock.d").exists()).await;
}

#[tokio::test]
async fn waiters_of_one_process_have_a_place_each() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let children = queue(&locks, dir.path(), &[("hold", 1), ("hold twice", 2), ("hold", 1)]).await;
    let released = wall();
    guard.release().await.unwrap();
    assert_served_in_order(children, released);
}

#[tokio::test]
async fn a_thousand_waits_are_cancelled() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let front = queue(&locks, dir.path(), &[("hold", 1)]).await.remove(0);
    let waits: Vec<_> = (0..1000)
        .map(|_| {
            let lock = locker(dir.path()).lock("n").unwrap();
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    until_waiting(&locks, 1001).await;
    let last = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    until_waiting(&locks, 1002).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiting(&locks, 2).await;
    let entries = || files_in(&dir.path().join("n.lock.d")).len();
    until("two entries and the tail", async || entries() == 3).await;
    let released = wall();
    guard.release().await.unwrap();
    assert_served_in_order(vec![front, last], released);
    assert_eq!(files_in(dir.path()), [dir.path().join("n.lock")]);
}

#[tokio::test]
async fn a_child_that_inherits_the_lock_of_a_killed_holder_keeps_the_next_one_asleep() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut holder = Process::start(module_path!(), "lend", &[&path_text(dir.path()), "n"]);
    assert_eq!(holder.hear(), "comes");
    until_waiting(&locks, 1).await;
    let mut next = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    until_waiting(&locks, 2).await;
    guard.release().await.unwrap();
    holder.hear();
    let before = wake_ups(&next);
    holder.kill();
    until("it has looked by itself", async || wake_ups(&next) >= before + 2).await;
    // At the front it would watch the lock.
    assert!(!watches_files(&next), "its pipe did not hang up");
    assert_eq!(waiting(&locks).await, 1);
    holder.hang_up();
    next.hear();
    assert_eq!(pipes(&next, dir.path()), 1, "in its turn");
    next.finish();
}

#[tokio::test]
async fn a_release_wakes_the_next_one_although_a_child_has_the_pipe() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let waits = tokio::spawn({
        let lock = locker(dir.path()).lock("n").unwrap();
        async move { lock.acquire().await.unwrap() }
    });
    until_waiting(&locks, 1).await;
    guard.release().await.unwrap();
    let held = waits.await.unwrap();
    let mut next = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    until_waiting(&locks, 1).await;
    let ticket = held.ticket().await.unwrap();
    let inherited = queue_descriptor(&ticket).expect("it was waited for");
    held.release().await.unwrap();
    next.hear();
    assert_eq!(pipes(&next, dir.path()), 1, "it was woken, and has overtaken nobody");
    drop(inherited);
    next.finish();
}

#[tokio::test]
async fn stopped_waiters_are_overtaken_and_served_later() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut children = queue(&locks, dir.path(), &[("hold", 1); 3]).await;
    let mut last = children.pop().unwrap();
    for child in &children {
        stop(child).await;
    }
    guard.release().await.unwrap();
    last.hear();
    last.finish();
    // The first one may have lost its place, so the two come in any order.
    children.iter_mut().for_each(|child| child.tell("go on"));
    children.iter().for_each(|child| signal(child, Signal::CONT));
    for mut child in children {
        child.hear();
        assert_eq!(child.rest().len(), 1, "it ends");
    }
    assert_eq!(files_in(dir.path()), [dir.path().join("n.lock")]);
}

/// A waiter that polls from further back reads a record that is unchanged, because the lock is
/// held, and it is released before the waiter locks the file.
#[cfg(feature = "__tools")]
#[tokio::test]
async fn a_release_during_a_poll_leaves_the_lock_to_the_first_waiter() {
    use std::time::Duration;

    const DELAY: Duration = Duration::from_millis(400);
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let first = queue(&locks, dir.path(), &[("hold", 1)]).await.remove(0);
    stop(&first).await;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-P"]).arg(dir.path().join("n.lock"));
    strace.args(["-e", &format!("inject=flock:delay_enter={}", DELAY.as_micros())]);
    let job = Process::command(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    strace.arg(job.get_program()).args(job.get_args());
    strace.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut second = Process::spawn(strace);
    until_waiting(&locks, 2).await;
    let polls = async || {
        let children = format!("/proc/{0}/task/{0}/children", second.id());
        let children = std::fs::read_to_string(children).unwrap();
        let tasks = files_in(format!("/proc/{}/task", children.trim()).as_ref());
        tasks.iter().any(|task| {
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            status.contains("State:\tt")
        })
    };
    // Traced threads also stop for a moment at other calls.
    let mut stopped = 0;
    until("it is about to lock the file", async || {
        stopped = if polls().await { stopped + 1 } else { 0 };
        stopped > 10
    })
    .await;
    let released = wall();
    guard.release().await.unwrap();
    second.tell("go on");
    let said = second.rest();
    let [_, ended] = &said[..] else { panic!("{said:?}") };
    let granted = ended.split(' ').nth(1).unwrap();
    let was_free = Duration::from_micros(granted.parse().unwrap()).saturating_sub(released);
    assert!(was_free > DELAY, "the first one has had {was_free:?}");
    drop(first);
}

/// The runtime of a holder may do something else before it closes the file.
#[tokio::test]
async fn a_release_wakes_the_first_waiter_although_the_file_stays_open() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let ticket = guard.ticket().await.unwrap();
    let mut first = queue(&locks, dir.path(), &[("hold", 1)]).await.remove(0);
    let watching = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watching, dir.path().join("n.lock"), WatchFlags::ATTRIB).unwrap();
    guard.release().await.unwrap();
    let mut buffer = [MaybeUninit::uninit(); 512];
    assert!(inotify::Reader::new(&watching, &mut buffer).next().is_ok(), "rung");
    first.hear();
    first.finish();
    drop(ticket);
}

/// The holder came to a free lock, so it is not the one at the front.
#[tokio::test]
async fn a_break_takes_no_waiter_its_turn() {
    let dir = scratch();
    let locks = locker(dir.path());
    let backend = FileLocks::at(dir.path()).unwrap();
    let held = claim("n");
    let _grant = attempt(&backend, &held).await.unwrap();
    let children = queue(&locks, dir.path(), &[("hold", 1); 2]).await;
    for child in &children {
        // So that the break is over before they look.
        stop(child).await;
    }
    let broken = wall();
    assert!(backend.break_lock(&name("n"), &held.owner).await.unwrap());
    children.iter().for_each(|child| signal(child, Signal::CONT));
    assert_served_in_order(children, broken);
}

#[tokio::test]
async fn a_break_does_not_wait_for_the_holder_that_waited() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut children = queue(&locks, dir.path(), &[("hold", 1); 2]).await;
    // On a busy machine it could overtake the first one.
    stop(&children[1]).await;
    guard.release().await.unwrap();
    children[0].hear();
    stop(&children[0]).await;
    signal(&children[1], Signal::CONT);
    let owner = locks.inspect(&name("n")).await.unwrap().holders[0].owner.unwrap();
    let backend = FileLocks::at(dir.path()).unwrap();
    assert!(backend.break_lock(&name("n"), &owner).await.unwrap());
    let mut second = children.pop().unwrap();
    second.hear();
    assert_eq!(pipes(&second, dir.path()), 1, "in its turn");
    second.finish();
}

/// Without a queue entry it would overtake waiters that have one.
#[tokio::test]
async fn a_process_without_descriptors_waits_in_its_place_or_is_refused() {
    let dir = scratch();
    let locks = locker(dir.path());
    let _guard = acquire(&locks, "n").await;
    let _first = queue(&locks, dir.path(), &[("hold", 1)]).await;
    let args = [&*path_text(dir.path()), "n"];
    let mut child = Process::start(module_path!(), "wait with few descriptors", &args);
    let mut all = Vec::new();
    for more in 0..8 {
        child.tell(&more.to_string());
        let said = child.hear();
        // Refused, it may have a place, and comes again.
        let has_place = waiting(&locks).await == 2;
        assert!(has_place || said == "refused", "it waits with {more} descriptors");
        all.push(said);
        child.tell("leave");
        assert_eq!(child.hear(), "left");
    }
    assert_eq!((&*all[0], &*all[7]), ("refused", "waits"));
}
