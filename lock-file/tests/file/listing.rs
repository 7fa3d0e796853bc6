//! The list of held locks.

use std::os::unix::fs::symlink;

use lock_core::backend::Listed;
use lock_core::{Label, Locker};

use crate::common::{Process, acquire, hold, locker, path_text, run_if_child, scratch, until};

#[test]
fn child() {
    run_if_child(async |_, args| hold(args).await);
}

async fn list(locks: &Locker, prefix: &str) -> Vec<Listed> {
    locks.list(prefix, None, 1000).await.unwrap()
}

async fn names(locks: &Locker, prefix: &str) -> Vec<String> {
    list(locks, prefix).await.iter().map(|listed| listed.name.as_str().to_owned()).collect()
}

#[tokio::test]
async fn a_list_shows_what_inspect_shows() {
    let scratch = scratch();
    let locks = locker(scratch.path());
    let guard = acquire(&locks, "jobs/a b").await;
    let detachable = locks.lock("detached").unwrap().detachable().acquire().await.unwrap();
    let detached = detachable.detach().await.unwrap();
    acquire(&locks, "free").await.release().await.unwrap();
    let listed = list(&locks, "").await;
    assert_eq!(names(&locks, "").await, ["detached", "jobs/a b"]);
    let states: Vec<_> = listed.iter().map(|listed| &listed.state.holders[0]).collect();
    assert_eq!((states[0].owner, states[1].owner), (Some(detached.owner), Some(*guard.owner())));
    assert!(states[0].expires_in.is_some() && states[1].expires_in.is_none());
    assert_eq!(names(&locks, "jobs/").await, ["jobs/a b"]);
    assert!(guard.is_held() && guard.verify().await.is_ok(), "a list takes no lock");
}

#[tokio::test]
async fn waiters_are_counted_and_crashed_holders_are_gone() {
    let scratch = scratch();
    let locks = locker(scratch.path());
    let guard = acquire(&locks, "n").await;
    let other = locker(scratch.path());
    let waiter = tokio::spawn(async move { acquire(&other, "n").await });
    until("it waits", async || list(&locks, "").await[0].state.waiting == Some(1)).await;
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
    assert!(list(&locks, "").await.is_empty());
    let args = [&*path_text(scratch.path()), "n"];
    let mut holder = Process::start(module_path!(), "hold", &args);
    holder.hear();
    assert_eq!(names(&locks, "").await, ["n"]);
    holder.kill();
    assert!(list(&locks, "").await.is_empty(), "its record is still there");
}

#[tokio::test]
async fn flock_is_listed_by_its_process_and_strange_files_are_left_out() {
    let scratch = scratch();
    let locks = locker(scratch.path());
    let path = |name: &str| scratch.path().join(name);
    std::fs::write(path("notes.txt"), "").unwrap();
    std::fs::write(path("strange.lock"), "something else").unwrap();
    std::fs::write(path("a b.lock"), "").unwrap();
    std::fs::create_dir(path("directory.lock")).unwrap();
    symlink(path("notes.txt"), path("link.lock")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, path("pipe.lock"), rustix::fs::Mode::RWXU).unwrap();
    let _too_long = acquire(&locks, &"x".repeat(300)).await;
    let mut theirs = Process::flock(&path("theirs.lock"));
    assert_eq!(theirs.hear(), "locked");
    let listed = list(&locks, "").await;
    let [theirs_listed] = listed.as_slice() else { panic!("{listed:?}") };
    let holder = &theirs_listed.state.holders[0];
    let label = Label::new(&format!("pid {}", theirs.id()));
    assert_eq!((theirs_listed.name.as_str(), holder.owner), ("theirs", None));
    assert_eq!(holder.label, Some(label));
    theirs.kill();
    assert!(list(&locks, "").await.is_empty());
}

#[tokio::test]
async fn a_directory_that_is_gone_has_no_locks() {
    let scratch = scratch();
    let locks = locker(&scratch.path().join("locks"));
    std::fs::remove_dir_all(scratch.path().join("locks")).unwrap();
    assert!(list(&locks, "").await.is_empty());
}
