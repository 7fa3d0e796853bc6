//! File systems that are full, read-only or foreign: real ones, in mount namespaces of their own
//! by unshare(1).

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use crate::common::{Process, claim, locker, on_disk, run_if_child, say, scratch, yields_until};
use lock_core::backend::{Backend, HoldKind, ReleaseMode};
use lock_core::{ErrorKind, Fencing, FencingToken, Locker};
use lock_file::FileLocks;

#[test]
fn child() {
    run_if_child(async |job, args| match (job, args) {
        ("full", [dir]) => full(Path::new(dir)).await,
        ("no queue", [dir]) => no_queue(Path::new(dir)).await,
        ("read-only", [dir]) => read_only(Path::new(dir)).await,
        ("at", [dir]) => match FileLocks::at(dir) {
            Ok(locks) => say(format!("{:?}", locks.capabilities().fencing)),
            Err(error) => say(format!("{:?}: {error}", error.kind())),
        },
        ("default", [_]) => match FileLocks::for_this_user() {
            Ok(locks) => say(locks.directory().display()),
            Err(error) => say(format!("{:?}: {error}", error.kind())),
        },
        ("serve", []) => serve(),
        other => panic!("no such job: {other:?}"),
    });
}

/// Returns the output of `job` for `dir` in a mount namespace of its own, after `mount` there.
fn behind(mount: &str, job: &str, dir: &Path) -> String {
    let job = Process::command(module_path!(), job, &[dir.to_str().unwrap()]);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-e", "-c"]);
    let script = format!(
        "{{ {mount}\n}} >&2 || {{ echo '@ cannot mount: root or unprivileged user namespaces are needed'; exit 1; }}; \"$@\"; umount --lazy \"$DIR\"; wait"
    );
    command.arg(script).arg("sh").arg(job.get_program()).args(job.get_args());
    command.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?)))).env("DIR", dir);
    let mut process = Process::spawn(command);
    let said = process.hear();
    // Until all are gone that it has started.
    process.rest();
    said
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
    // Files with blocks still work. New ones are refused, and no lock stays unavailable.
    let full = tokens(&locks, 4).await;
    assert!(full[0].unwrap() > before);
    assert_eq!(full[1..], [Err(ErrorKind::Unavailable); 3]);
    let holder = locks.lock("n0").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn({
        let lock = locker(dir).lock("n0").unwrap();
        async move {
            let guard = lock.acquire().await?;
            let token = guard.fencing_token();
            guard.release().await.map(|()| token)
        }
    });
    tokio::task::yield_now().await;
    holder.release().await.unwrap();
    assert!(waiter.await.unwrap().unwrap() > full[0].ok());
    std::fs::remove_file(filler).unwrap();
    assert!(tokens(&locks, 4).await.iter().all(Result::is_ok));
    say("well");
}

/// Checks that a waiter without a queue entry is woken by the release, although the holder keeps
/// the file open.
async fn no_queue(dir: &Path) {
    let (ours, theirs) = (FileLocks::at(dir).unwrap(), FileLocks::at(dir).unwrap());
    let held = claim("n0");
    let grant = theirs.try_acquire(&held).await.unwrap();
    // It never waits by the clock as long as this task does something.
    tokio::time::pause();
    let waiter = tokio::spawn(async move { ours.wait(&claim("n0")).await.map(drop) });
    let watches = || {
        let infos = crate::common::files_in("/proc/self/fdinfo".as_ref());
        let mut infos = infos.iter().filter_map(|info| std::fs::read_to_string(info).ok());
        infos.any(|info| info.contains("inotify wd:"))
    };
    yields_until("it watches the file", watches).await;
    assert!(!dir.join("n0.lock.d").exists(), "there is no room for a queue");
    theirs.release(&held, ReleaseMode::now()).await.unwrap();
    drop(grant);
    yields_until("it has come", || waiter.is_finished()).await;
    waiter.await.unwrap().unwrap();
    say("well");
}

async fn read_only(dir: &Path) {
    let backend = FileLocks::at(dir).unwrap();
    let mut detached = claim("n0");
    detached.hold = HoldKind::Detached;
    for claim in [claim("n0"), claim("n1"), detached] {
        let fault = backend.try_acquire(&claim).await.unwrap_err();
        let why = std::error::Error::source(&fault).unwrap().to_string();
        assert!(why.contains("read-only"), "{why}");
    }
    // Looking is allowed.
    assert!(backend.inspect(&crate::common::name("n0")).await.unwrap().holders.is_empty());
    say("well");
}

/// Not another directory, such as one in `/tmp`, which a service may have for itself.
#[test]
fn where_the_default_directory_cannot_be_made_there_is_no_other_one() {
    let scratch = scratch();
    let mount = "mount -t tmpfs none \"$DIR\"; mount -t tmpfs none /run";
    let said = behind(mount, "default", scratch.path());
    assert!(said.starts_with("Unavailable: "), "{said}");
    assert!(said.contains("/run/lock/locks-0; give a directory"), "{said}");
}

#[tokio::test]
async fn a_full_file_system_is_an_error_until_there_is_room() {
    let scratch = scratch();
    let mount = "mount -t tmpfs -o size=32k,mode=0700 none \"$DIR\"";
    assert_eq!(behind(mount, "full", scratch.path()), "well");
}

#[tokio::test]
async fn a_waiter_is_woken_where_there_is_no_room_for_a_queue() {
    let scratch = scratch();
    let mount = "mount -t tmpfs -o nr_inodes=2,mode=0700 none \"$DIR\"";
    assert_eq!(behind(mount, "no queue", scratch.path()), "well");
}

#[tokio::test]
async fn a_read_only_file_system_is_an_error_that_says_so() {
    let scratch = scratch();
    locker(scratch.path()).lock("n0").unwrap().acquire().await.unwrap().release().await.unwrap();
    let mount = "mount --bind \"$DIR\" \"$DIR\"; mount -o remount,bind,ro \"$DIR\"";
    assert_eq!(behind(mount, "read-only", scratch.path()), "well");
}

#[test]
fn tokens_that_are_gone_with_the_machine_are_not_called_durable() {
    let scratch = on_disk();
    let durable = FileLocks::at(scratch.path()).unwrap().capabilities().fencing;
    assert_eq!(durable, Fencing::Durable, "{} is on a disk", scratch.path().display());
    let mount = "mount -t tmpfs -o mode=0700 none \"$DIR\"";
    assert_eq!(behind(mount, "at", scratch.path()), "Seeded");
}

#[test]
fn a_network_behind_fuse_is_refused_by_its_name() {
    let server = Process::command(module_path!(), "serve", &[]);
    let words: Vec<_> = std::iter::once(server.get_program())
        .chain(server.get_args())
        .map(|word| format!("'{}'", word.to_str().unwrap()))
        .collect();
    let job = server.get_envs().next().and_then(|(key, job)| Some((key.to_str()?, job?.to_str()?)));
    let (key, job) = job.unwrap();
    for (kind, refused) in [("fuse.sshfs", true), ("fuse.of-my-own", false)] {
        let scratch = scratch();
        let mount = format!(
            "exec 3<>/dev/fuse; mount -i -t {kind} -o fd=3,rootmode=40000,user_id=0,group_id=0 none \"$DIR\"; {key}='{job}' timeout 60 {} <&3 >/dev/null 3>&- & exec 3>&-",
            words.join(" ")
        );
        let said = behind(&mount, "at", scratch.path());
        assert_eq!(said.starts_with("Unsupported") && said.contains("sshfs"), refused, "{said}");
        assert_eq!(said == "Durable", !refused, "{said}");
    }
}

/// Serves an empty directory over FUSE: the few answers that looking at it takes, by
/// linux/fuse.h. The kernel's side of the mount is our standard input.
fn serve() {
    let mut kernel = File::from(rustix::io::dup(std::io::stdin()).unwrap());
    let mut request = vec![0; 1 << 17];
    while let Ok(40..) = kernel.read(&mut request) {
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let (opcode, unique) = (word(4), request[8..16].to_vec());
        let words =
            |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let mut answer: Vec<u8> = match opcode {
            // GETATTR: valid for 0 s; inode 1; a directory with mode 0700, of root.
            3 => words(&[0, 0, 0, 0, 1]).into_iter().chain(vec![0; 56]).collect(),
            17 => vec![0; 80], // STATFS
            26 => words(&[7, 31, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), // INIT
            27 => vec![0; 16], // OPENDIR
            29 => vec![],      // RELEASEDIR
            // FORGET, INTERRUPT and BATCH_FORGET are not answered.
            2 | 36 | 42 => continue,
            _ => vec![],
        };
        if opcode == 3 {
            answer.extend(words(&[0o40700, 2, 0, 0, 0, 4096, 0]));
        }
        const ENOSYS: i32 = 38;
        let error = if matches!(opcode, 3 | 17 | 26 | 27 | 29) { 0 } else { -ENOSYS };
        let size = u32::try_from(16 + answer.len()).unwrap();
        let head = [&size.to_le_bytes()[..], &error.to_le_bytes(), &unique].concat();
        kernel.write_all(&[head, answer].concat()).unwrap();
    }
}
