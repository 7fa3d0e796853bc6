//! Holds that outlive their process, and holds that are ended by force.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{
    DEADLINE, Process, acquire, attempt, claim, hold, is_free, locker, name, on_disk, path_text,
    run_if_child, say, scratch, token, until,
};
use lock_core::backend::{Backend, HoldKind, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Detached, ErrorKind, FencingToken, LockGuard, Locker, Loss};
use lock_file::FileLocks;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "hold" => hold(args).await,
        "detach" => {
            let guard = detachable(&locker(Path::new(args[0])), LONG).await;
            let token = guard.fencing_token().unwrap();
            let detached = guard.detach().await.unwrap();
            say(format!("{} {token}", detached.owner.expose()));
        }
        "watch" => {
            let lock = locker(Path::new(args[0])).lock("n").unwrap().ttl(SHORT);
            let guard = lock.acquire().await.unwrap();
            say(guard.owner().expose());
            say(format!("{:?}", guard.lost().await));
        }
        other => panic!("no such job: {other}"),
    });
}

async fn detachable(locks: &Locker, ttl: Duration) -> LockGuard {
    locks.lock("n").unwrap().ttl(ttl).detachable().acquire().await.unwrap()
}

#[tokio::test]
async fn a_detached_hold_outlives_its_process_and_passes_on() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut child = Process::start(module_path!(), "detach", &[&path_text(dir.path())]);
    let said = child.hear();
    let (owner, theirs) = said.split_once(' ').unwrap();
    child.kill();
    assert!(!is_free(&locks, "n").await);

    let state = locks.inspect(&name("n")).await.unwrap();
    let [holder] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!(holder.owner.unwrap().expose(), owner);
    assert_eq!(holder.token, Some(token(theirs)));
    assert!(holder.expires_in.unwrap() > LONG / 2 && holder.expires_in.unwrap() <= LONG);

    let detached = Detached::new(name("n"), owner.parse().unwrap(), LONG);
    let adopted = locks.adopt(detached.clone()).await.unwrap();
    assert_eq!(adopted.fencing_token(), Some(token(theirs)));
    adopted.verify().await.unwrap();
    adopted.release().await.unwrap();
    assert_eq!(locks.adopt(detached).await.unwrap_err().kind(), ErrorKind::NotHeld);
    let guard = acquire(&locks, "n").await;
    assert!(guard.fencing_token() > Some(token(theirs)));
}

#[tokio::test]
async fn a_waiter_gets_a_detached_lock_when_it_is_released_or_expires() {
    let dir = scratch();
    let locks = locker(dir.path());
    for ttl in [LONG, SHORT] {
        let detached = detachable(&locks, ttl).await.detach().await.unwrap();
        let began = Moment::now();
        let waiter = tokio::spawn({
            let lock = locker(dir.path()).lock("n").unwrap();
            async move { lock.acquire().await }
        });
        until("it waits", async || {
            waiter.is_finished() || locks.inspect(&name("n")).await.unwrap().waiting == Some(1)
        })
        .await;
        if ttl == LONG {
            locks.adopt(detached).await.unwrap().release().await.unwrap();
        }
        let guard = waiter.await.unwrap().unwrap();
        let waited = Moment::now().saturating_since(began);
        assert!(ttl == LONG || waited > ttl / 2, "before it expired: {waited:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_verbs_of_a_detached_claim() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.hold = HoldKind::Detached;
    let first = attempt(&backend, &ours).await.unwrap();
    let again = attempt(&backend, &ours).await.unwrap();
    assert_eq!(first.token, again.token);
    ours.min_token = first.token;
    assert!(attempt(&backend, &ours).await.unwrap().token > first.token);
    // A shorter renewal leaves the end where it was.
    ours.ttl = SHORT;
    assert!(matches!(&backend.renew(&[&ours]).await[0], Ok(Renewal::Held(_))));
    let state = backend.inspect(&name("n")).await.unwrap();
    assert!(state.holders[0].expires_in.unwrap() > Duration::from_secs(60));

    let mut stranger = claim("n");
    stranger.hold = HoldKind::Detached;
    assert!(attempt(&backend, &stranger).await.is_none());
    assert!(matches!(&backend.renew(&[&stranger]).await[0], Ok(Renewal::NotHeld)));
    let release = async |claim| backend.release(claim, ReleaseMode::now()).await.unwrap();
    assert_eq!(release(&stranger).await, Release::NotHeld);
    assert_eq!(release(&ours).await, Release::Released);
    assert_eq!(release(&ours).await, Release::NotHeld);

    // Not even without another claim: a renewal never re-creates.
    let mut brief = claim("n");
    (brief.hold, brief.ttl) = (HoldKind::Detached, Duration::from_millis(1));
    attempt(&backend, &brief).await.unwrap();
    until("expired", async || backend.inspect(&name("n")).await.unwrap().holders.is_empty()).await;
    assert!(matches!(&backend.renew(&[&brief]).await[0], Ok(Renewal::NotHeld)));
}

/// A child has a copy of every descriptor until it executes its program, and with it the kernel's
/// lock on a file that its parent has only closed.
#[tokio::test]
async fn a_child_that_is_being_started_keeps_no_lock() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let counted = Arc::new(AtomicU32::new(0));
    let goes_on = Arc::downgrade(&counted);
    let starts = std::thread::spawn(move || {
        while let Some(started) = goes_on.upgrade() {
            Command::new("true").status().unwrap();
            started.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut round = 0;
    while round < 2_000 || counted.load(Ordering::Relaxed) < 10 {
        round += 1;
        // An attempt that fails lets go, too.
        let mut vain = claim("n");
        vain.min_token = FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER);
        backend.try_acquire(&vain).await.unwrap_err();
        let mut ours = claim("n");
        ours.hold = HoldKind::Detached;
        let first = attempt(&backend, &ours).await;
        let first = first.unwrap_or_else(|| panic!("free, but not in round {round}"));
        let again = attempt(&backend, &ours).await;
        assert_eq!(again.map(|it| it.token), Some(first.token), "ours, round {round}");
        assert!(matches!(&backend.renew(&[&ours]).await[0], Ok(Renewal::Held(_))));
        let mut stranger = claim("n");
        stranger.hold = HoldKind::Detached;
        assert_eq!(backend.release(&stranger, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
        assert_eq!(backend.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    drop(counted);
    starts.join().unwrap();
}

#[tokio::test]
async fn flock_does_not_know_of_detached_holds_and_its_holders_keep_them_out() {
    let dir = scratch();
    let locks = locker(dir.path());
    let file = dir.path().join("n.lock");
    let detached = detachable(&locks, LONG).await.detach().await.unwrap();
    // As documented: they bind users of this backend.
    let mut flock = Process::flock(&file);
    assert_eq!(flock.hear(), "locked");
    assert!(!is_free(&locks, "n").await);
    let error = locks.adopt(detached.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    flock.finish();
    locks.adopt(detached).await.unwrap().release().await.unwrap();

    let flock = Process::flock(&file);
    let lock = locks.lock("n").unwrap().detachable();
    until("locked", async || lock.try_acquire().await.unwrap().is_none()).await;
    flock.finish();
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_break_erases_a_detached_hold_and_wakes_the_waiter() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = detachable(&locks, SHORT).await;
    let owner = *guard.owner();
    let waiter = tokio::spawn({
        let lock = locker(dir.path()).lock("n").unwrap();
        async move { lock.acquire().await }
    });
    until("it waits", async || locks.inspect(&name("n")).await.unwrap().waiting == Some(1)).await;
    assert!(locks.break_lock(&name("n"), &owner).await.unwrap());
    let newer = waiter.await.unwrap().unwrap();
    assert_eq!(guard.lost().await, Loss::NotHeld);
    assert!(!locks.break_lock(&name("n"), &owner).await.unwrap());
    newer.verify().await.unwrap();
}

#[tokio::test]
async fn a_break_excludes_a_stopped_holder_and_notifies_it() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut child = Process::start(module_path!(), "watch", &[&path_text(dir.path())]);
    let owner = child.hear().parse().unwrap();
    let before = locks.inspect(&name("n")).await.unwrap().holders.remove(0);
    let id = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(id, Signal::STOP).unwrap();
    let waiter = tokio::spawn({
        let lock = locks.lock("n").unwrap();
        async move { lock.acquire().await }
    });
    assert!(locker(dir.path()).break_lock(&name("n"), &owner).await.unwrap());
    let guard = waiter.await.unwrap().unwrap();
    assert!(guard.fencing_token() > before.token, "a resource can tell the two apart");
    kill_process(id, Signal::CONT).unwrap();
    assert_eq!(child.hear(), format!("{:?}", Loss::NotHeld));
    guard.verify().await.unwrap();
    assert!(!locks.break_lock(&name("n"), &owner).await.unwrap(), "that one is gone");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_break_of_a_dead_or_unknown_owner_has_no_effect() {
    let dir = scratch();
    let locks = locker(dir.path());
    let never = *acquire(&locks, "other").await.owner();
    assert!(!locks.break_lock(&name("n"), &never).await.unwrap());
    let mut child = Process::start(module_path!(), "watch", &[&path_text(dir.path())]);
    let dead = child.hear().parse().unwrap();
    child.kill();
    assert!(!locks.break_lock(&name("n"), &dead).await.unwrap());
    // The record of the dead is still there, and the file is locked, by a process that writes none.
    let mut flock = Process::flock(&dir.path().join("n.lock"));
    flock.hear();
    assert!(!locks.break_lock(&name("n"), &dead).await.unwrap());
    assert!(!is_free(&locks, "n").await);
    flock.finish();
    assert!(is_free(&locks, "n").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_that_is_late_never_ends_a_newer_hold() {
    let dir = on_disk();
    let breaker = FileLocks::at(dir.path()).unwrap();
    let (send, mut owners) = tokio::sync::mpsc::unbounded_channel();
    let breaking = tokio::spawn(async move {
        let mut broken = 0;
        while let Some(owner) = owners.recv().await {
            broken += u32::from(breaker.break_lock(&name("n"), &owner).await.unwrap());
        }
        broken
    });
    let holders: Vec<_> = (0..2)
        .map(|_| {
            let (locks, send) = (locker(dir.path()), send.clone());
            tokio::spawn(async move {
                for round in 0..90 {
                    let lock = locks.lock("n").unwrap().ttl(Duration::from_millis(30));
                    let guard = lock.acquire().await.unwrap();
                    // No break was requested for this one.
                    for _ in 0..6 {
                        sleep(Duration::from_millis(1)).await;
                        guard.verify().await.unwrap();
                    }
                    send.send(*guard.owner()).unwrap();
                    // Before, in the middle of and after the break.
                    match round % 3 {
                        0 => {
                            let lost = timeout(DEADLINE, guard.lost()).await;
                            lost.expect("it is told that its lock was broken");
                        }
                        _ => sleep(Duration::from_micros(50) * round).await,
                    }
                    drop(guard.release().await);
                }
            })
        })
        .collect();
    drop(send);
    for holder in holders {
        holder.await.unwrap();
    }
    assert!(breaking.await.unwrap() >= 60, "those that were waited for");
}

#[tokio::test]
async fn a_child_that_was_started_meanwhile_inherits_nothing() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let waits = tokio::spawn({
        let lock = locker(dir.path()).lock("n").unwrap();
        async move { lock.acquire().await }
    });
    until("it waits", async || locks.inspect(&name("n")).await.unwrap().waiting == Some(1)).await;
    let output = Command::new("sh").args(["-c", "ls -l /proc/self/fd"]).output().unwrap();
    let files = String::from_utf8(output.stdout).unwrap();
    assert!(!files.contains(dir.path().to_str().unwrap()) && !files.contains("inotify"), "{files}");
    guard.release().await.unwrap();
    drop(waits.await.unwrap().unwrap());
}
