//! Lock files that stay open for a moment after a release, and changes to them meanwhile.

use std::future::poll_fn;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use crate::common::{
    Process, acquire, attempt, claim, files_in, is_free, listen, locker, name, path_text,
    run_if_child, say, scratch, until, yields_until,
};
use lock_core::backend::{Backend, OnContention, Release, ReleaseMode, Wake};
use lock_file::{FileLocks, descriptor};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many files are kept open.
const MAX: usize = 64;

#[test]
fn child() {
    run_if_child(async |job, args| match (job, args) {
        ("pairs", [dir]) => pairs(Path::new(dir)).await,
        ("few descriptors", [dir]) => few_descriptors(Path::new(dir)).await,
        other => panic!("no such job: {other:?}"),
    });
}

async fn pair(backend: &impl Backend, name: &str) {
    let claim = claim(name);
    attempt(backend, &claim).await.expect("it is free");
    assert_eq!(backend.release(&claim, ReleaseMode::now()).await.unwrap(), Release::Released);
}

/// Makes one pair for each line of standard input.
async fn pairs(dir: &Path) {
    let backend = FileLocks::at(dir).unwrap();
    while !listen().is_empty() {
        pair(&backend, "n").await;
        say("done");
    }
}

async fn few_descriptors(dir: &Path) {
    let backend = FileLocks::at(dir).unwrap();
    for i in 0..MAX {
        pair(&backend, &format!("n{i}")).await;
    }
    let open = open_files(dir);
    let used = files_in("/proc/self/fd".as_ref()).len() as u64;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(used), ..limit }).unwrap();
    let held: Vec<_> = (0..10).map(|i| claim(&format!("held{i}"))).collect();
    for claim in &held {
        attempt(&backend, claim).await.expect("it is free");
    }
    say(open);
}

/// Returns the number of files in `dir` that this process has open.
fn open_files(dir: &Path) -> usize {
    let open = files_in("/proc/self/fd".as_ref());
    open.iter().filter(|fd| std::fs::read_link(fd).is_ok_and(|it| it.starts_with(dir))).count()
}

fn replace(dir: &Path) {
    std::fs::write(dir.join("new"), "").unwrap();
    std::fs::rename(dir.join("new"), dir.join("n.lock")).unwrap();
}

/// docs/design/file.md lists the calls of a pair.
#[cfg(feature = "__tools")]
#[test]
fn a_pair_on_a_known_name_is_nine_system_calls() {
    let dir = scratch();
    let log = dir.path().with_extension("log");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(&log);
    strace.args(["-e", "trace=%desc,%file,flock"]);
    let job = Process::command(module_path!(), "pairs", &[&path_text(dir.path())]);
    strace.arg(job.get_program()).args(job.get_args());
    strace.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut child = Process::spawn(strace);
    for _ in 0..50 {
        child.tell("a pair");
        child.hear();
    }
    child.hang_up();
    child.rest();
    let log_text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_file(&log).unwrap();
    // The last word of each pair but the first ones, which make the file and reserve tokens.
    let pairs: Vec<_> = log_text.split("\"@ done").skip(2).collect();
    let calls = |pair: &str| {
        let lines = pair.lines().filter_map(|line| line.split_once(' ')?.1.trim().split_once('('));
        let calls = lines.map(|(call, _)| call.to_owned());
        // The test calls these: it is told to go on, and sleeps between.
        let of_the_test = ["read", "write", "epoll_wait", "poll", "lseek"];
        calls.filter(|call| !of_the_test.contains(&call.as_str())).collect::<Vec<_>>().join(" ")
    };
    let mut all: Vec<_> = pairs[..pairs.len() - 1].iter().map(|pair| calls(pair)).collect();
    all.sort();
    let needed = "flock pread64 pwrite64 access statx statx pwrite64 flock access";
    // Once in a second the file is opened anew.
    let usual = all.iter().filter(|calls| *calls == needed).count();
    assert!(usual * 10 >= all.len() * 8, "{all:#?}");
}

#[tokio::test]
async fn a_kept_file_that_was_deleted_or_replaced_is_not_used() {
    let dir = scratch();
    let (ours, theirs) = (FileLocks::at(dir.path()).unwrap(), FileLocks::at(dir.path()).unwrap());
    for replace in [
        |dir: &Path| std::fs::remove_file(dir.join("n.lock")).unwrap(),
        replace,
        // Its bytes are foreign now.
        |dir: &Path| {
            std::fs::rename(dir.join("n.lock"), dir.join("notes")).unwrap();
            std::fs::write(dir.join("notes"), "precious").unwrap();
        },
    ] {
        pair(&ours, "n").await;
        assert_eq!(open_files(dir.path()), 1);
        replace(dir.path());
        let claim = claim("n");
        let _held = attempt(&ours, &claim).await.expect("the new one is free");
        assert!(attempt(&theirs, &self::claim("n")).await.is_none(), "it excludes the others");
        assert_eq!(ours.release(&claim, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    assert_eq!(std::fs::read(dir.path().join("notes")).unwrap(), b"precious");
}

#[tokio::test]
async fn a_lock_that_was_broken_is_free_despite_its_old_file() {
    let dir = scratch();
    let (ours, theirs) = (FileLocks::at(dir.path()).unwrap(), FileLocks::at(dir.path()).unwrap());
    pair(&ours, "n").await;
    let held = claim("n");
    let _grant = attempt(&theirs, &held).await.unwrap();
    assert!(theirs.break_lock(&name("n"), &held.owner).await.unwrap());
    assert!(attempt(&ours, &claim("n")).await.is_some(), "the old file is locked, the lock is not");
}

/// A waiter that joined after the release comes first, as if the file had been opened anew.
#[tokio::test]
async fn a_kept_file_gives_no_precedence_over_a_waiter() {
    let dir = scratch();
    let [ours, holds, waits] = [(); 3].map(|()| FileLocks::at(dir.path()).unwrap());
    let polite = || {
        let mut claim = claim("n");
        claim.on_contention = OnContention::Queue;
        claim
    };
    pair(&ours, "n").await;
    let held = claim("n");
    let grant = attempt(&holds, &held).await.unwrap();
    let waiting = polite();
    // Joins, and sleeps like a stopped process from then on.
    let mut wait = pin!(waits.wait(&waiting));
    poll_fn(|context| Poll::Ready(wait.as_mut().poll(context).is_pending().then_some(())))
        .await
        .expect("it waits");
    holds.release(&held, ReleaseMode::now()).await.unwrap();
    assert!(attempt(&ours, &polite()).await.is_none(), "the waiter comes first");
    drop(grant);
    let Ok(Wake::Granted(_)) = wait.await else { panic!("it is its turn") };
}

/// A holder that sees no queue leaves the file open.
#[tokio::test]
async fn a_waiter_is_woken_although_its_queue_was_deleted() {
    let dir = scratch();
    let (ours, theirs) = (FileLocks::at(dir.path()).unwrap(), FileLocks::at(dir.path()).unwrap());
    let held = claim("n");
    let grant = attempt(&theirs, &held).await.unwrap();
    // It never waits by the clock as long as this task does something.
    tokio::time::pause();
    let waiter = tokio::spawn(async move { ours.wait(&claim("n")).await.map(drop) });
    let inode = std::fs::metadata(dir.path().join("n.lock")).unwrap().ino();
    yields_until("it watches the file", || {
        let infos = files_in("/proc/self/fdinfo".as_ref());
        let mut infos = infos.iter().filter_map(|info| std::fs::read_to_string(info).ok());
        infos.any(|info| info.contains(&format!("ino:{inode:x} ")))
    })
    .await;
    std::fs::remove_dir_all(dir.path().join("n.lock.d")).unwrap();
    theirs.release(&held, ReleaseMode::now()).await.unwrap();
    drop(grant);
    yields_until("it has come", || waiter.is_finished()).await;
    waiter.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_file_that_others_have_is_not_used_again() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let ticket = guard.ticket().await.unwrap();
    let lent: OwnedFd = descriptor(&ticket).unwrap().try_clone_to_owned().unwrap();
    guard.release().await.unwrap();
    let guard = acquire(&locks, "n").await;
    let again = flock(lent.as_fd(), FlockOperation::NonBlockingLockExclusive);
    assert_eq!(again, Err(Errno::WOULDBLOCK), "a child would keep the lock that came later");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn files_are_closed_a_moment_after_their_release() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    for i in 0..2 * MAX {
        pair(&backend, &format!("n{i}")).await;
    }
    assert!((1..=MAX).contains(&open_files(dir.path())));
    until("they are closed", async || open_files(dir.path()) == 0).await;
    assert!(is_free(&locker(dir.path()), "n0").await);
}

#[test]
fn kept_files_take_no_descriptor_from_a_lock() {
    let dir = scratch();
    let mut child = Process::start(module_path!(), "few descriptors", &[&path_text(dir.path())]);
    assert_ne!(child.hear(), "0", "files were kept");
}
