//! File systems that are full, read-only or those of others: real ones, mounted where nobody else sees
//! them, by unshare(1).

mod common;

use std::path::Path;
use std::process::Command;

use common::{Process, claim, locker, run_if_child, say, scratch};
use lock_core::backend::{Backend, Hold};
use lock_core::{ErrorKind, Fencing, FencingToken, Locker};
use lock_file::FileLocks;

#[test]
fn child() {
    run_if_child(async |job, args| match (job, args) {
        ("full", [dir]) => full(Path::new(dir)).await,
        ("read-only", [dir]) => read_only(Path::new(dir)).await,
        ("at", [dir]) => match FileLocks::at(dir) {
            Ok(locks) => say(format!("{:?}", locks.capabilities().fencing)),
            Err(error) => say(format!("{:?}: {error}", error.kind())),
        },
        other => panic!("no such job: {other:?}"),
    });
}

/// Runs `job` with `dir` in a mount namespace of its own, after `mount` has been run there.
fn behind(mount: &str, job: &str, dir: &Path) -> Process {
    let job = Process::command(job, &[dir.to_str().unwrap()]);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-e", "-c"]);
    let script = format!(
        "({mount}) >&2 || {{ echo '@ cannot mount: root or unprivileged user namespaces are needed'; exit 1; }}; exec \"$@\""
    );
    command.arg(script).arg("sh").arg(job.get_program()).args(job.get_args());
    command.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("DIR", dir);
    Process::spawn(command)
}

async fn tokens(locks: &Locker, count: usize) -> Vec<Result<FencingToken, ErrorKind>> {
    let mut tokens = Vec::new();
    for i in 0..count {
        let lock = locks.lock(format!("n{i}")).unwrap();
        tokens.push(match lock.try_acquire().await {
            Ok(guard) => {
                let guard = guard.expect("nobody else is here");
                let token = guard.fencing_token().unwrap();
                guard.release().await.unwrap();
                Ok(token)
            }
            Err(error) => Err(error.kind()),
        });
    }
    tokens
}

async fn full(dir: &Path) {
    let locks = locker(dir);
    let before = tokens(&locks, 1).await[0].unwrap();
    let filler = dir.join("filler");
    let filled = std::fs::write(&filler, vec![1; 1 << 20]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // What has its place goes on. What has none is refused, and nothing is left shut.
    let full = tokens(&locks, 4).await;
    assert!(full[0].unwrap() > before);
    assert_eq!(full[1..], [Err(ErrorKind::Unavailable); 3]);
    let holder = locks.lock("n0").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locker(dir).lock("n0").unwrap();
        async move { lock.acquire().await.map(|guard| guard.fencing_token()) }
    });
    tokio::task::yield_now().await;
    holder.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap() > full[0].ok());
    std::fs::remove_file(filler).unwrap();
    assert!(tokens(&locks, 4).await.iter().all(Result::is_ok));
    say("well");
}

async fn read_only(dir: &Path) {
    let backend = FileLocks::at(dir).unwrap();
    let mut detached = claim("n0");
    detached.hold = Hold::Detached;
    for claim in [claim("n0"), claim("n1"), detached] {
        let fault = backend.try_acquire(&claim).await.unwrap_err();
        let why = std::error::Error::source(&fault).unwrap().to_string();
        assert!(why.contains("read-only"), "{why}");
    }
    // Looking is allowed.
    assert!(backend.inspect(&common::name("n0")).await.unwrap().holders.is_empty());
    say("well");
}

#[tokio::test]
async fn a_full_file_system_is_an_error_until_there_is_room() {
    let scratch = scratch();
    let mount = "mount -t tmpfs -o size=32k,mode=0700 none \"$DIR\"";
    assert_eq!(behind(mount, "full", scratch.path()).hear(), "well");
}

#[tokio::test]
async fn a_read_only_file_system_is_an_error_that_says_so() {
    let scratch = scratch();
    locker(scratch.path()).lock("n0").unwrap().acquire().await.unwrap().release().await.unwrap();
    let mount = "mount --bind \"$DIR\" \"$DIR\"; mount -o remount,bind,ro \"$DIR\"";
    assert_eq!(behind(mount, "read-only", scratch.path()).hear(), "well");
}

#[test]
fn tokens_that_are_gone_with_the_machine_are_not_called_durable() {
    let scratch = scratch();
    let durable = FileLocks::at(scratch.path()).unwrap().capabilities().fencing;
    assert_eq!(durable, Fencing::Durable, "the temporary directory is on a disk");
    let mount = "mount -t tmpfs -o mode=0700 none \"$DIR\"";
    assert_eq!(behind(mount, "at", scratch.path()).hear(), "Seeded");
}
