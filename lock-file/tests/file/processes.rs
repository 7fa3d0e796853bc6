//! Locks between real processes: exclusion, kill -9, flock(1), inherited descriptors.

use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{
    Process, acquire, hold, is_free, locker, name, path_text, run_if_child, say, scratch, token,
    until,
};
use lock_core::Label;
use lock_core::backend::Holder;
use lock_file::descriptor;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "hold" => hold(args).await,
        "pass on" => pass_on(args).await,
        "spin" => spin(args).await,
        other => panic!("no such job: {other}"),
    });
}

/// Gives the descriptor of the lock to a child that lives until standard input ends.
async fn pass_on(args: &[&str]) {
    let guard = acquire(&locker(Path::new(args[0])), args[1]).await;
    let ticket = guard.ticket().await.unwrap();
    let inherited = descriptor(&ticket).unwrap().try_clone_to_owned().unwrap();
    let mut child = Command::new("cat").stdout(inherited).spawn().unwrap();
    say(child.id());
    let _ = child.wait();
    drop(guard);
}

/// Acquires and releases until it is killed.
async fn spin(args: &[&str]) {
    let locks = locker(Path::new(args[0]));
    loop {
        let guard = acquire(&locks, args[1]).await;
        say(guard.fencing_token().unwrap());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn tokens_grow_wherever_a_process_is_killed() {
    let dir = scratch();
    let locks = locker(dir.path());
    for round in 1..=30 {
        let mut other = Process::start(module_path!(), "spin", &[&path_text(dir.path()), "n"]);
        let heard = (0..round).map(|_| token(&other.hear())).last();
        // Somewhere in the middle of something.
        other.kill();
        let last = other.rest().last().map(|text| token(text)).or(heard);
        let lock = locks.lock("n").unwrap();
        let guard = lock.try_acquire().await.unwrap().expect("free at once");
        assert!(guard.fencing_token() > last);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn processes_exclude_each_other_and_tokens_grow_across_them() {
    let dir = scratch();
    let path = path_text(dir.path());
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let mut last = guard.fencing_token().unwrap();
    guard.release().await.unwrap();
    for _ in 0..3 {
        let mut other = Process::start(module_path!(), "hold", &[&path, "n"]);
        let theirs = token(&other.hear());
        assert!(theirs > last);
        assert!(!is_free(&locks, "n").await);
        let ours = tokio::spawn({
            let lock = locks.lock("n").unwrap();
            async move { lock.acquire().await.unwrap() }
        });
        other.finish();
        let guard = ours.await.unwrap();
        last = guard.fencing_token().unwrap();
        assert!(last > theirs);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn the_lock_of_a_killed_process_is_free_at_once() {
    let dir = scratch();
    let path = path_text(dir.path());
    let locks = locker(dir.path());
    for _ in 0..5 {
        let mut other = Process::start(module_path!(), "hold", &[&path, "n"]);
        let theirs = token(&other.hear());
        assert!(locks.lock("n").unwrap().try_acquire().await.unwrap().is_none());
        other.kill();
        // Not "soon": the process is gone, so is its lock.
        let guard = locks.lock("n").unwrap().try_acquire().await.unwrap();
        let guard = guard.expect("free as soon as the process is gone");
        assert!(guard.fencing_token().unwrap() > theirs);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_waiter_takes_over_from_a_killed_process() {
    let dir = scratch();
    let mut other = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    other.hear();
    let locks = locker(dir.path());
    let waiter = tokio::spawn({
        let lock = locks.lock("n").unwrap();
        async move { lock.acquire().await.unwrap().release().await }
    });
    until("the waiter has the file open", async || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .any(|file| file == dir.path().join("n.lock"))
    })
    .await;
    assert!(!waiter.is_finished());
    other.kill();
    waiter.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stopped_process_keeps_its_lock() {
    let dir = scratch();
    let mut other = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    other.hear();
    let id = rustix::process::Pid::from_raw(other.id().try_into().unwrap()).unwrap();
    let signal = |signal| rustix::process::kill_process(id, signal).unwrap();
    signal(rustix::process::Signal::STOP);
    assert!(!is_free(&locker(dir.path()), "n").await);
    signal(rustix::process::Signal::CONT);
    other.finish();
}

#[tokio::test]
async fn flock_excludes_us() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut flock = Process::flock(&dir.path().join("n.lock"));
    assert_eq!(flock.hear(), "locked");
    assert!(!is_free(&locks, "n").await);

    // It leaves no record: its pid is all there is.
    let mut holder = Holder::new(None);
    holder.label = Some(Label::new(&format!("pid {}", flock.id())));
    assert_eq!(locks.inspect(&name("n")).await.unwrap().holders, [holder]);

    let waiter = tokio::spawn({
        let lock = locks.lock("n").unwrap();
        async move { lock.acquire().await }
    });
    flock.finish();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn we_exclude_flock() {
    let dir = scratch();
    let locks = locker(dir.path());
    let try_flock = || {
        let mut command = Command::new("flock");
        command.arg("--nonblock").arg(dir.path().join("n.lock"));
        command.arg("true").status().unwrap().success()
    };
    let guard = acquire(&locks, "n").await;
    assert!(!try_flock());
    guard.release().await.unwrap();
    assert!(try_flock());
    assert!(is_free(&locks, "n").await, "and it has not spoilt the file");
}

#[tokio::test]
async fn inspect_believes_the_kernel_and_not_the_record_of_the_dead() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut other = Process::start(module_path!(), "hold", &[&path_text(dir.path()), "n"]);
    let theirs = token(&other.hear());
    let state = locks.inspect(&name("n")).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert!(state.holders[0].owner.is_some());
    assert_eq!(state.holders[0].token, Some(theirs));
    other.kill();
    assert_eq!(locks.inspect(&name("n")).await.unwrap().holders, []);
    // The record is still there, and is not taken for that of another holder.
    let mut flock = Process::flock(&dir.path().join("n.lock"));
    flock.hear();
    let state = locks.inspect(&name("n")).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!(state.holders[0].owner, None);
}

#[tokio::test]
async fn an_inherited_descriptor_keeps_the_lock_of_a_killed_process() {
    let dir = scratch();
    let locks = locker(dir.path());
    let mut other = Process::start(module_path!(), "pass on", &[&path_text(dir.path()), "n"]);
    other.hear();
    other.kill();
    assert!(!is_free(&locks, "n").await, "its child goes on");
    other.hang_up();
    until("free after the child", async || is_free(&locks, "n").await).await;
}

#[tokio::test]
async fn a_release_unlocks_what_others_have_inherited() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let ticket = guard.ticket().await.unwrap();
    let inherited = descriptor(&ticket).unwrap().try_clone_to_owned().unwrap();
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(inherited).spawn().unwrap();
    let watching = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watching, dir.path().join("n.lock"), WatchFlags::ATTRIB).unwrap();
    guard.release().await.unwrap();
    // The file is not closed, so waiters are notified otherwise.
    let mut buffer = [MaybeUninit::uninit(); 512];
    assert!(inotify::Reader::new(&watching, &mut buffer).next().is_ok());
    assert!(descriptor(&ticket).is_none(), "not given away after that");
    assert!(is_free(&locks, "n").await);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
