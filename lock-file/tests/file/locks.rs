//! Locks inside one process: exclusion, loss, tokens, names, contents.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{acquire, attempt, claim, files_in, is_free, locker, name, scratch, until};
use lock_core::backend::{Backend, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::clock::wall;
use lock_core::{ErrorKind, FencingToken, Label, Locker, Loss};
use lock_file::FileLocks;

const SHORT: Duration = Duration::from_millis(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lockers_of_one_process_exclude_each_other() {
    let dir = scratch();
    let shared = Locker::new(FileLocks::at(dir.path()).unwrap());
    let inside = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let locks = if i % 2 == 0 { shared.clone() } else { locker(dir.path()) };
            let inside = Arc::clone(&inside);
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = acquire(&locks, "n").await;
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    tokio::task::yield_now().await;
                    assert!(inside.swap(false, Ordering::SeqCst));
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_file_that_was_deleted_or_replaced_is_lost() {
    let dir = scratch();
    let locks = locker(dir.path());
    let file = dir.path().join("n.lock");
    for replace in [false, true] {
        let lock = locks.lock("n").unwrap().ttl(SHORT);
        let guard = lock.acquire().await.unwrap();
        if replace {
            std::fs::write(dir.path().join("other"), "").unwrap();
            std::fs::rename(dir.path().join("other"), &file).unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        // The next claim gets in, and is not affected by the end of the previous one.
        let newer = acquire(&locker(dir.path()), "n").await;
        assert_eq!(guard.lost().await, Loss::NotHeld);
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
        newer.verify().await.unwrap();
        assert!(!is_free(&locker(dir.path()), "n").await);
        newer.release().await.unwrap();
    }
}

/// Not by the next renewal, which is due in minutes.
#[tokio::test]
async fn a_holder_is_notified_at_once_of_a_removal_or_break() {
    let dir = scratch();
    let locks = locker(dir.path());
    for is_detachable in [false, true] {
        for is_broken in [false, true] {
            // A removed file does not know how far its tokens were.
            let of = format!("n-{is_detachable}-{is_broken}");
            let lock = locks.lock(of.as_str()).unwrap().ttl(Duration::from_secs(1800));
            let lock = if is_detachable { lock.detachable() } else { lock };
            let guard = lock.acquire().await.unwrap();
            let file = dir.path().join(format!("{of}.lock"));
            until("its holder listens", async || is_watched(&file)).await;
            if is_broken {
                assert!(locks.break_lock(&name(&of), guard.owner()).await.unwrap());
            } else {
                std::fs::remove_file(&file).unwrap();
            }
            let told = tokio::time::timeout(Duration::from_secs(10), guard.lost()).await;
            assert!(told.is_ok(), "detachable: {is_detachable}, broken: {is_broken}");
        }
    }
}

/// Returns whether this process has an inotify watch on a file.
fn is_watched(file: &Path) -> bool {
    let watch = format!(" ino:{:x} ", std::fs::metadata(file).unwrap().ino());
    files_in(Path::new("/proc/self/fdinfo")).iter().any(|info| {
        let info = std::fs::read_to_string(info).unwrap_or_default();
        info.lines().any(|line| line.starts_with("inotify ") && line.contains(&watch))
    })
}

#[tokio::test]
async fn the_release_of_a_replaced_file_says_so() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    std::fs::remove_file(dir.path().join("n.lock")).unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

#[tokio::test]
async fn a_directory_that_vanished_is_made_again() {
    let scratch = scratch();
    let dir = scratch.path().join("locks");
    let locks = locker(&dir);
    let guard = acquire(&locks, "n").await;
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    acquire(&locks, "n").await.release().await.unwrap();
    assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn tokens_grow_past_torn_and_empty_files() {
    let dir = scratch();
    let locks = locker(dir.path());
    let file = dir.path().join("n.lock");
    let mut last = FencingToken::from_u64(0);
    let whole = {
        acquire(&locks, "n").await.release().await.unwrap();
        std::fs::read(&file).unwrap()
    };
    let mut flipped = whole.clone();
    flipped[20] ^= 1;
    let torn: [&[u8]; 7] = [
        &whole,
        &[],
        &[0; 512],
        &whole[..100],
        &whole[..5],
        b"lock-file 1\nnumber 99999999999999999999999999\n\xff\xfe",
        // Last: the reserved block is skipped, so the numbers are ahead of the clock.
        &flipped,
    ];
    for content in torn {
        std::fs::write(&file, content).unwrap();
        for _ in 0..2 {
            let guard = acquire(&locks, "n").await;
            let token = guard.fencing_token().unwrap();
            assert!(token > last, "after {content:?}");
            last = token;
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn tokens_grow_even_if_the_clock_was_set_back() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    // The residue of a clock that is a day ahead.
    let ahead = u64::try_from((wall() + Duration::from_secs(86_400)).as_micros()).unwrap();
    let ahead = FencingToken::from_backend(ahead).unwrap();
    let mut raised = claim("n");
    raised.min_token = Some(ahead);
    let high = attempt(&backend, &raised).await.unwrap().token.unwrap();
    assert!(high > ahead);
    backend.release(&raised, ReleaseMode::now()).await.unwrap();
    let next = attempt(&backend, &claim("n")).await.unwrap();
    assert_eq!(next.token.unwrap().backend_number(), high.backend_number() + 1);
}

#[tokio::test]
async fn data_of_others_are_refused_and_left_alone() {
    let dir = scratch();
    let locks = locker(dir.path());
    let file = dir.path().join("n.lock");
    for content in ["precious", "lock-file 2\nfrom the future\n", "1234\n"] {
        std::fs::write(&file, content).unwrap();
        let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let why = std::error::Error::source(&error).unwrap().to_string();
        assert!(why.contains("n.lock") && why.contains("move it"), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
    }
}

#[tokio::test]
async fn irregular_files_are_refused_by_every_verb() {
    let dir = scratch();
    let (locks, name) = (locker(dir.path()), name("n"));
    let file = dir.path().join("n.lock");
    let file = file.to_str().unwrap();
    for made in [&["ln", "-s", "/etc/passwd", file][..], &["mkfifo", file], &["mkdir", file]] {
        let status = Command::new(made[0]).args(&made[1..]).status();
        assert!(status.unwrap().success());
        let claim = claim("n");
        let refusals = [
            locks.lock("n").unwrap().acquire().await.map(drop),
            locks.lock("n").unwrap().try_acquire().await.map(drop),
            locks.inspect(&name).await.map(drop),
            locks.break_lock(&name, &claim.owner).await.map(drop),
        ];
        for (verb, refusal) in refusals.into_iter().enumerate() {
            let refusal = refusal.expect_err(made[0]);
            assert_eq!(refusal.kind(), ErrorKind::Invalid, "{} {verb}: {refusal:?}", made[0]);
        }
        let status = Command::new("rm").args(["-r", file]).status();
        assert!(status.unwrap().success());
    }
}

#[tokio::test]
async fn awkward_names_are_files_of_their_own_inside_the_directory() {
    let scratch = scratch();
    let dir = scratch.path().join("locks");
    let locks = locker(&dir);
    let long = "x".repeat(1000);
    let names = [
        "plain-Name_1.2",
        ".",
        "..",
        "../escape",
        "/etc/passwd",
        "a/b",
        "a%2Fb",
        "a b",
        ".hidden",
        "-rf",
        "new\nline",
        "nul\0",
        "é",
        "e\u{301}",
        "🔒",
        "a",
        "a.lock",
        &long,
        &format!("{long}y"),
        &"é".repeat(100),
    ];
    let mut guards = Vec::new();
    for name in names {
        guards.push(acquire(&locks, name).await);
    }
    let files = files_in(&dir);
    assert_eq!(files.len(), names.len());
    assert!(dir.join("plain-Name_1.2.lock").exists());
    assert!(dir.join("-rf.lock").exists());
    for file in files {
        let file_name = file.file_name().unwrap().to_str().unwrap();
        assert!(file_name.len() <= 200 && file_name.is_ascii());
        assert!(!file_name.starts_with('.') && file_name.ends_with(".lock"));
    }
    assert_eq!(files_in(scratch.path()), [dir], "nothing beside it");
    let tokens: HashSet<_> = guards.iter().map(|guard| guard.owner().expose()).collect();
    assert_eq!(tokens.len(), names.len());
}

#[tokio::test]
async fn inspect_shows_the_holder_and_leaves_nothing() {
    let dir = scratch();
    let locks = Locker::builder(FileLocks::at(dir.path()).unwrap()).label(Label::new("me")).build();
    let name = name("n");
    assert_eq!(locks.inspect(&name).await.unwrap().holders, []);
    assert!(files_in(dir.path()).is_empty(), "looking creates no file");

    let guard = acquire(&locks, "n").await;
    let state = locks.inspect(&name).await.unwrap();
    let [holder] = &state.holders[..] else { panic!("{state:?}") };
    assert_eq!(holder.owner, Some(*guard.owner()));
    assert_eq!(holder.label, Some(Label::new("me")));
    assert_eq!(holder.token, guard.fencing_token());
    assert!(holder.held_for.unwrap() < crate::common::DEADLINE);
    assert_eq!((holder.expires_in, state.waiting), (None, Some(0)));
    let mode = std::fs::metadata(dir.path().join("n.lock")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600, "the owner id is a right");

    guard.release().await.unwrap();
    assert_eq!(locks.inspect(&name).await.unwrap().holders, []);
    let left = std::fs::read_to_string(dir.path().join("n.lock")).unwrap();
    assert!(!left.contains("owner"), "{left}");
}

#[tokio::test]
async fn the_same_claim_again_is_the_same_acquisition() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    let first = attempt(&backend, &ours).await.unwrap();
    let again = attempt(&backend, &ours).await.unwrap();
    assert_eq!(first.token, again.token);
    drop(first);
    assert!(attempt(&backend, &claim("n")).await.is_none());

    ours.min_token = again.token;
    let higher = attempt(&backend, &ours).await.unwrap();
    assert!(higher.token > again.token);
    let once_more = attempt(&backend, &ours).await.unwrap();
    assert_eq!(higher.token, once_more.token);

    ours.ticket = once_more.ticket;
    let renewed = backend.renew(&[&ours, &claim("n")]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Held(grant)) if grant.token == higher.token));
    assert!(matches!(&renewed[1], Ok(Renewal::NotHeld)));

    let release = async || backend.release(&ours, ReleaseMode::now()).await.unwrap();
    assert_eq!(release().await, Release::Released);
    assert_eq!(release().await, Release::NotHeld);
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::NotHeld)));
}

#[tokio::test]
async fn an_attempt_after_its_claim_was_released_is_refused() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let ours = claim("n");
    let release = backend.release(&ours, ReleaseMode::after_unknown_outcome()).await.unwrap();
    assert_eq!(release, Release::NotHeld);
    let fault = backend.try_acquire(&ours).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Invalid);
    assert!(backend.wait(&ours).await.is_err());
    assert!(attempt(&backend, &claim("n")).await.is_some());
}

#[tokio::test]
async fn used_up_tokens_are_an_error_and_leave_the_lock_free() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.min_token = FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER);
    let fault = backend.try_acquire(&ours).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Invalid);
    assert!(attempt(&backend, &claim("n")).await.is_some());
}
