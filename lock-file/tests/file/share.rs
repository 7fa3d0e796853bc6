//! Locks that several users share through a group, and attacks of its members.
//!
//! These tests need other users, and so the rights of root.

use std::fs::{OpenOptions, Permissions};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::{
    Process, assert_served_in_order, files_in, hold_until_told, is_free, listen, path_text,
    run_if_child, say, scratch, token, until,
};
use lock_core::clock::wall;
use lock_core::{Error, ErrorKind, FencingToken, Locker, Reach, Requirements};
use lock_file::FileLocks;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tempfile::TempDir;

/// Numbers without names are enough for the kernel.
const GROUP: u32 = 61_010;
const ANN: u32 = 61_001;
const BOB: u32 = 61_002;

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "hold" => {
            let locks = match FileLocks::shared_with_group(args[0]) {
                Ok(locks) => Locker::new(locks),
                Err(error) => return say(format!("{:?}: {error}", error.kind())),
            };
            let lock = locks.lock("n").unwrap();
            match lock.try_acquire().await {
                Ok(Some(guard)) => {
                    say(guard.fencing_token().unwrap());
                    listen();
                    guard.release().await.unwrap();
                }
                Ok(None) => say("taken"),
                Err(error) => say(format!("{:?}: {error}", error.kind())),
            }
        }
        "wait" => {
            let locks = Locker::new(FileLocks::shared_with_group(args[0]).unwrap());
            hold_until_told(&locks, "n").await;
        }
        "break" => {
            let locks = Locker::new(FileLocks::shared_with_group(args[0]).unwrap());
            match locks.break_lock("n", &args[1].parse().unwrap()).await {
                Ok(ended) => say(ended),
                Err(error) => say(format!("{:?}: {error:?}", error.kind())),
            }
        }
        job => unreachable!("{job}"),
    });
}

/// A directory that `GROUP` shares, and a victim outside of it.
struct Stage {
    scratch: TempDir,
}

impl Stage {
    /// Creates the directories.
    fn set() -> Self {
        let scratch = scratch();
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
        let stage = Self { scratch };
        std::fs::create_dir(stage.dir()).unwrap();
        chown(stage.dir(), Some(0), Some(GROUP)).expect("this test needs root: run sudo ./test");
        std::fs::set_permissions(stage.dir(), Permissions::from_mode(0o3770)).unwrap();
        std::fs::write(stage.victim(), "precious").unwrap();
        stage
    }

    fn dir(&self) -> PathBuf {
        self.scratch.path().join("shared")
    }

    fn lock(&self) -> PathBuf {
        self.dir().join("n.lock")
    }

    fn victim(&self) -> PathBuf {
        self.scratch.path().join("victim")
    }

    /// Makes the victim an empty file of the group, as a lock file is one.
    fn lend_victim(&self) {
        std::fs::write(self.victim(), "").unwrap();
        chown(self.victim(), None, Some(GROUP)).unwrap();
        std::fs::set_permissions(self.victim(), Permissions::from_mode(0o660)).unwrap();
    }

    fn locker(&self) -> Locker {
        Locker::new(FileLocks::shared_with_group(self.dir()).unwrap())
    }

    /// Starts a process of another user.
    fn start(&self, user: u32, groups: &str, job: &str, more: &[&str]) -> Process {
        let dir = path_text(&self.dir());
        let ours = Process::command(module_path!(), job, &[&[&*dir], more].concat());
        let mut command = as_user(user, groups);
        // With a umask that would close its files to the others.
        command.args(["sh", "-c", "umask 077; exec \"$@\"", "sh"]);
        command.arg(ours.get_program()).args(ours.get_args());
        command.envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Process::spawn(command)
    }

    fn member(&self, user: u32) -> Process {
        self.start(user, &GROUP.to_string(), "hold", &[])
    }

    /// Attempts to lock a file that a member has planted. It must be refused, and the victim must
    /// stay as it is.
    async fn refuses(&self, planted: &Path, what: &str) -> Error {
        let attempt = self.locker().lock("n").unwrap().try_acquire().await;
        let error = attempt.expect_err(what);
        assert_eq!(std::fs::read_to_string(self.victim()).unwrap(), "precious", "{what}");
        let said = format!("{error:?}");
        assert!(said.contains(&path_text(planted)), "{what}: {said}");
        error
    }
}

fn as_user(user: u32, groups: &str) -> Command {
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--groups", groups]);
    command
}

fn output(user: u32, command: &[&str]) -> Output {
    as_user(user, &GROUP.to_string()).args(command).output().unwrap()
}

#[tokio::test]
async fn users_of_a_group_exclude_each_other_with_any_umask() {
    let stage = Stage::set();
    let mut ann = stage.member(ANN);
    let first = token(&ann.hear());
    let found = std::fs::metadata(stage.lock()).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o660, ANN, GROUP));
    assert_eq!(stage.member(BOB).hear(), "taken");
    assert!(!is_free(&stage.locker(), "n").await, "root is no exception");
    ann.finish();
    let mut bob = stage.member(BOB);
    let second = token(&bob.hear());
    assert!(second > first, "the counter goes on");
    bob.finish();
    let guard = stage.locker().lock("n").unwrap().acquire().await.unwrap();
    assert!(guard.fencing_token().unwrap() > second);
    guard.release().await.unwrap();
    assert_eq!(files_in(&stage.dir()), [stage.lock()], "nothing else is left");
}

#[tokio::test]
async fn a_waiter_of_another_user_is_woken() {
    let stage = Stage::set();
    let mut ann = stage.member(ANN);
    ann.hear();
    let locks = stage.locker();
    let lock = locks.lock("n").unwrap();
    let waits = lock.acquire();
    tokio::pin!(waits);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut waits).await.is_err());
    ann.finish();
    let guard = tokio::time::timeout(Duration::from_secs(30), waits).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

#[test]
fn a_shared_directory_reaches_the_host_and_others_a_user() {
    let stage = Stage::set();
    let host = Requirements { reach: Reach::Host, ..Default::default() };
    assert!(stage.locker().require(&host).is_ok());
    let ours = Locker::new(FileLocks::at(stage.scratch.path().join("ours")).unwrap());
    assert_eq!(ours.capabilities().reach, Reach::User);
    assert_eq!(ours.require(&host).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn users_outside_of_the_group_are_refused() {
    let stage = Stage::set();
    let said = stage.start(ANN, "61011", "hold", &[]).hear();
    assert!(said.starts_with("Denied: ") && said.contains(&path_text(&stage.dir())), "{said}");
    assert_eq!(files_in(&stage.dir()), [] as [PathBuf; 0]);
}

#[test]
fn a_directory_that_is_not_safe_to_share_is_refused_with_the_command_that_makes_one() {
    let stage = Stage::set();
    let dir = stage.dir();
    let refusal = |what: &str| {
        let error = FileLocks::shared_with_group(&dir).expect_err(what);
        let text = error.to_string();
        let advice = format!("install -d -o root -g GROUP -m 3770 {}", dir.display());
        assert!(error.kind() == ErrorKind::Denied && text.contains(&advice), "{what}: {text}");
    };
    for mode in [0o1777, 0o3777, 0o2770, 0o777, 0o755, 0o700] {
        std::fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
        refusal(&format!("{mode:o}"));
    }
    std::fs::set_permissions(&dir, Permissions::from_mode(0o3770)).unwrap();
    // The owner of a sticky directory may delete what is in it.
    chown(&dir, Some(ANN), None).unwrap();
    std::fs::set_permissions(&dir, Permissions::from_mode(0o3770)).unwrap();
    refusal("it belongs to a member");
    std::fs::remove_dir(&dir).unwrap();
    refusal("it is missing");
    assert!(!dir.exists(), "it is not made");
    symlink(stage.scratch.path(), &dir).unwrap();
    refusal("it is a link");
}

#[tokio::test]
async fn a_link_in_the_place_of_a_lock_leads_nowhere() {
    let stage = Stage::set();
    let missing = stage.scratch.path().join("missing");
    for target in [stage.victim(), missing.clone()] {
        symlink(&target, stage.lock()).unwrap();
        stage.refuses(&stage.lock(), "a symbolic link").await;
        std::fs::remove_file(stage.lock()).unwrap();
    }
    assert!(!missing.exists(), "nothing was created through the link");

    // Nor to a file that the group may use elsewhere.
    stage.lend_victim();
    symlink(stage.victim(), stage.lock()).unwrap();
    let attempt = stage.locker().lock("n").unwrap().try_acquire().await;
    attempt.expect_err("it is a symbolic link");
    assert_eq!(std::fs::read_to_string(stage.victim()).unwrap(), "", "it was written to");
}

#[tokio::test]
async fn a_second_name_of_a_file_elsewhere_is_not_locked() {
    let stage = Stage::set();
    stage.lend_victim();
    std::fs::hard_link(stage.victim(), stage.lock()).unwrap();
    let attempt = stage.locker().lock("n").unwrap().try_acquire().await;
    let error = format!("{:?}", attempt.expect_err("it has a second name"));
    assert!(error.contains("second name"), "{error}");
    assert_eq!(std::fs::read_to_string(stage.victim()).unwrap(), "", "it was written to");
}

#[tokio::test]
async fn a_foreign_lock_file_is_refused() {
    let stage = Stage::set();
    let lock = path_text(&stage.lock());
    assert!(output(ANN, &["mkfifo", "-m", "660", &lock]).status.success());
    // Or this would block for ever.
    stage.refuses(&stage.lock(), "a pipe").await;
    std::fs::remove_file(&lock).unwrap();
    for (group, mode) in [(GROUP, 0o666), (GROUP, 0o600), (GROUP, 0o4660), (ANN, 0o660)] {
        std::fs::write(&lock, "").unwrap();
        chown(&lock, Some(ANN), Some(group)).unwrap();
        std::fs::set_permissions(&lock, Permissions::from_mode(mode)).unwrap();
        stage.refuses(&stage.lock(), &format!("{group} {mode:o}")).await;
        std::fs::remove_file(&lock).unwrap();
    }
    std::fs::create_dir(&lock).unwrap();
    stage.refuses(&stage.lock(), "a directory").await;
}

/// Neither the mark of a break nor what would be a queue leads out of the directory.
#[tokio::test]
async fn links_beside_a_lock_lead_nowhere() {
    let stage = Stage::set();
    let outside = stage.scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    symlink(&outside, stage.dir().join("n.lock.d")).unwrap();
    let mut ann = stage.member(ANN);
    ann.hear();
    let locks = stage.locker();
    let lock = locks.lock("n").unwrap();
    assert!(lock.try_acquire_for(Duration::from_millis(100)).await.unwrap().is_none());
    ann.finish();
    assert!(is_free(&locks, "n").await);

    let guard = lock.acquire().await.unwrap();
    for target in [stage.victim(), outside.join("created")] {
        let mark = stage.dir().join("n.lock.breaking");
        symlink(&target, &mark).unwrap();
        assert!(locks.break_lock(guard.name(), guard.owner()).await.is_err());
        std::fs::remove_file(&mark).unwrap();
    }
    assert_eq!(std::fs::read_to_string(stage.victim()).unwrap(), "precious");
    assert_eq!(files_in(&outside), [] as [PathBuf; 0]);
    guard.release().await.unwrap();
}

/// Waits for a lock that another user holds, until that one releases it.
async fn waits_and_gets_it(stage: &Stage, what: &str) {
    let mut ann = stage.member(ANN);
    ann.hear();
    let lock = stage.locker().lock("n").unwrap();
    let wait = lock.try_acquire_for(Duration::from_millis(150)).await.unwrap();
    assert!(wait.is_none(), "{what}");
    let waits = tokio::spawn(async move { lock.acquire().await.unwrap().release().await });
    ann.finish();
    let got = tokio::time::timeout(Duration::from_secs(30), waits).await;
    got.expect(what).unwrap().unwrap();
}

#[tokio::test]
async fn users_of_a_group_queue_and_count_each_other() {
    let stage = Stage::set();
    let locks = stage.locker();
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let waiting = async || locks.inspect("n").await.unwrap().waiting.unwrap();
    let mut children = Vec::new();
    for (user, before) in [(ANN, 0), (BOB, 1), (ANN, 2)] {
        children.push(stage.start(user, &GROUP.to_string(), "wait", &[]));
        until("it waits", async || waiting().await == before + 1).await;
    }
    // Killed between two users.
    children.remove(1).kill();
    until("two are left", async || waiting().await == 2).await;
    let released = wall();
    guard.release().await.unwrap();
    assert_served_in_order(children, released);
    assert_eq!(waiting().await, 0);
}

#[tokio::test]
async fn a_link_in_the_place_of_a_queue_leads_nowhere() {
    let stage = Stage::set();
    // It could be a queue.
    let outside = stage.scratch.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    chown(&outside, None, Some(GROUP)).unwrap();
    std::fs::set_permissions(&outside, Permissions::from_mode(0o2770)).unwrap();
    let watching = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watching, &outside, WatchFlags::CREATE | WatchFlags::DELETE).unwrap();
    symlink(&outside, stage.dir().join("n.lock.d")).unwrap();
    waits_and_gets_it(&stage, "a link").await;
    let mut buffer = [MaybeUninit::uninit(); 512];
    let mut touched = inotify::Reader::new(&watching, &mut buffer);
    assert!(touched.next().is_err(), "nothing was created or deleted outside");
}

#[tokio::test]
async fn a_queue_that_not_all_members_may_change_is_not_used() {
    let stage = Stage::set();
    let queue = stage.dir().join("n.lock.d");
    for (group, mode) in [(GROUP, 0o700), (GROUP, 0o3770), (GROUP, 0o777), (ANN, 0o2770)] {
        std::fs::create_dir(&queue).unwrap();
        chown(&queue, Some(ANN), Some(group)).unwrap();
        std::fs::set_permissions(&queue, Permissions::from_mode(mode)).unwrap();
        waits_and_gets_it(&stage, &format!("{mode:o}")).await;
        assert_eq!(files_in(&queue), [] as [PathBuf; 0], "{mode:o}");
        std::fs::remove_dir(&queue).unwrap();
    }
}

#[tokio::test]
async fn planted_files_in_a_queue_are_harmless() {
    let stage = Stage::set();
    let queue = stage.dir().join("n.lock.d");
    let pipe = stage.scratch.path().join("pipe");
    let make = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        chown(path, Some(ANN), Some(GROUP)).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o660)).unwrap();
    };
    make(&pipe);
    let mut outside = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    outside.write_all(b"precious").unwrap();
    let tail = queue.join("tail");
    type Plants<'a> = &'a dyn Fn();
    let plants: [(&str, Plants<'_>); 4] = [
        ("a link", &|| symlink(stage.victim(), &tail).unwrap()),
        ("a file", &|| std::fs::write(&tail, "").unwrap()),
        ("a pipe that is elsewhere as well", &|| std::fs::hard_link(&pipe, &tail).unwrap()),
        ("a ring", &|| {
            for entry in [&tail, &queue.join("a"), &queue.join("b")] {
                make(entry);
            }
            let id = |entry: &Path| std::fs::metadata(entry).unwrap().ino().to_string();
            let (a, b) = (id(&queue.join("a")), id(&queue.join("b")));
            // Behind the last one is a, behind a is b, and behind b is a.
            std::fs::rename(queue.join("a"), queue.join(id(&tail))).unwrap();
            std::fs::rename(queue.join("b"), queue.join(&a)).unwrap();
            std::fs::hard_link(queue.join(id(&tail)), queue.join(b)).unwrap();
        }),
    ];
    for (what, plant) in plants {
        std::fs::create_dir(&queue).unwrap();
        chown(&queue, Some(ANN), Some(GROUP)).unwrap();
        std::fs::set_permissions(&queue, Permissions::from_mode(0o2770)).unwrap();
        plant();
        waits_and_gets_it(&stage, what).await;
        assert_eq!(std::fs::read_to_string(stage.victim()).unwrap(), "precious", "{what}");
        std::fs::remove_dir_all(&queue).unwrap_or_default();
    }
    let mut left = [0; 8];
    outside.read_exact(&mut left).unwrap();
    assert_eq!(&left, b"precious", "it was not read");
}

#[test]
fn a_member_cannot_delete_or_replace_the_files_of_others() {
    let stage = Stage::set();
    let mut ann = stage.member(ANN);
    ann.hear();
    let (lock, dir) = (path_text(&stage.lock()), path_text(&stage.dir()));
    for attack in [
        format!("rm -f {lock}"),
        format!("mv {lock} {dir}/other"),
        format!("touch {dir}/mine; mv -f {dir}/mine {lock}"),
        format!("chmod 600 {lock}"),
        format!("rm -rf {dir}"),
    ] {
        assert!(!output(BOB, &["sh", "-c", &attack]).status.success(), "{attack}");
    }
    assert_eq!(std::fs::metadata(&lock).unwrap().uid(), ANN);
    assert_eq!(stage.member(BOB).hear(), "taken");
    ann.finish();
}

/// A break replaces the file, which the kernel permits to its owner and root only.
#[tokio::test]
async fn a_lock_is_broken_by_the_owner_of_its_file_or_by_root() {
    let stage = Stage::set();
    for (breaker, ends) in [(BOB, false), (ANN, true)] {
        let mut ann = stage.member(ANN);
        let first = token(&ann.hear());
        let state = stage.locker().inspect("n").await.unwrap();
        assert_eq!(state.waiting, Some(0));
        let owner = state.holders[0].owner.unwrap().expose();
        let said = stage.start(breaker, &GROUP.to_string(), "break", &[&owner]).hear();
        if ends {
            assert_eq!(said, "true");
            let mut bob = stage.member(BOB);
            assert!(token(&bob.hear()) > first);
            bob.finish();
        } else {
            assert!(said.starts_with("Denied") && said.contains("another user"), "{said}");
            ann.finish();
        }
    }
    let mut files = files_in(&stage.dir());
    files.sort();
    files.retain(|file| *file != stage.dir().join("n.lock.breaking"));
    assert_eq!(files, [stage.lock()], "no draft is left");
}

/// The kernel then refuses `O_CREAT` on the file of another user in a sticky directory, to root as
/// well.
#[tokio::test]
async fn locks_are_shared_where_the_kernel_protects_regular_files() {
    let stage = Stage::set();
    let setting = Path::new("/proc/sys/fs/protected_regular");
    let before = std::fs::read_to_string(setting).unwrap_or_default();
    if before.trim() != "2" {
        std::fs::write(setting, "2").expect("fs.protected_regular can be set to 2");
    }
    let _restored = Restored(setting, before);
    let mut ann = stage.member(ANN);
    ann.hear();
    ann.finish();
    // As the kernel sees it: this is what the setting is about.
    let create = OpenOptions::new().write(true).create(true).truncate(false).open(stage.lock());
    let is_free = is_free(&stage.locker(), "n").await;
    let said = stage.member(BOB).hear();
    assert_eq!(create.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert!(is_free && said.parse::<FencingToken>().is_ok(), "root: {is_free}, a member: {said}");
}

/// Puts a setting of the kernel back.
struct Restored(&'static Path, String);

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, self.1.trim());
    }
}

#[tokio::test]
async fn spoiled_contents_are_noticed() {
    let stage = Stage::set();
    let locks = stage.locker();
    let take = async || {
        let guard = locks.lock("n").unwrap().acquire().await?;
        let token = guard.fencing_token().unwrap();
        guard.release().await?;
        Ok::<_, Error>(token)
    };
    let first = take().await.unwrap();
    let old = std::fs::read(stage.lock()).unwrap();
    // A record whose checksum is wrong is none.
    std::fs::write(stage.lock(), "lock-file 1\nnumber 1\n\nsum 0").unwrap();
    assert!(take().await.unwrap() > first);
    // A member counts far ahead, and then puts an earlier record back.
    let mut ahead = lock_core::backend::Claim::new(
        "n".try_into().unwrap(),
        lock_core::OwnerId::mint(),
        Duration::from_secs(60),
    );
    ahead.min_token = FencingToken::from_backend(first.backend_number() + (1 << 45));
    let backend = FileLocks::shared_with_group(stage.dir()).unwrap();
    crate::common::attempt(&backend, &ahead).await.unwrap();
    lock_core::Backend::release(&backend, &ahead, lock_core::backend::ReleaseMode::now())
        .await
        .unwrap();
    take().await.unwrap();
    std::fs::write(stage.lock(), old).unwrap();
    assert_eq!(take().await.unwrap_err().kind(), ErrorKind::FenceRegressed);
}
