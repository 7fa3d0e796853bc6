//! Processes that die, and disks that fail, at every system call of a lock: `strace` sees to that.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    Process, acquire, attempt, claim, locker, on_disk, path_text, run_if_child, say, scratch,
    token, until,
};
use lock_core::backend::{Backend, Renewal};
use lock_core::clock::wall;
use lock_core::{Executor, FencingToken, Locker, OwnerId};
use lock_file::FileLocks;
use rustix::fs::{FlockOperation, flock};

/// All system calls on a lock file, its queue and their directory, under every name.
const CALLS: &str = "?open ?openat ?statx ?fstat ?newfstatat ?lstat ?access ?faccessat ?faccessat2 flock pread64 pwrite64 fdatasync fsync ?mkdir ?mkdirat ?unlink ?unlinkat ?rename ?renameat ?renameat2 close";

#[test]
fn child() {
    run_if_child(async |job, args| match job {
        "two rounds" => two_rounds(args).await,
        "break" => break_it(args).await,
        "detach" => detach(args).await,
        other => panic!("no such job: {other}"),
    });
}

/// Acquires and releases twice, and reports the results.
async fn two_rounds(args: &[&str]) {
    // It may get no thread, and needs one for the disk alone.
    let executor = Executor::of(tokio::runtime::Handle::current());
    let backend = FileLocks::at(args[0]).unwrap();
    let locks = Locker::builder(backend).executor(executor).build();
    for _ in 0..2 {
        match locks.lock("n").unwrap().acquire().await {
            Ok(guard) => {
                say(guard.fencing_token().unwrap());
                let _ = guard.release().await;
            }
            Err(error) => say(format!("{:?}", error.kind())),
        }
    }
}

async fn break_it(args: &[&str]) {
    let [dir, owner] = args else { panic!("break <directory> <owner>") };
    let Ok(backend) = FileLocks::at(dir) else { return say("NotApplied") };
    let owner: OwnerId = owner.parse().unwrap();
    match backend.break_lock(&crate::common::name("n"), &owner).await {
        Ok(ended) => say(ended),
        Err(fault) => say(format!("{:?}", fault.effect())),
    }
}

async fn detach(args: &[&str]) {
    let locks = locker(Path::new(args[0]));
    let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(600)).detachable();
    match lock.try_acquire().await {
        Ok(Some(guard)) => {
            let _ = guard.detach().await.unwrap();
            say("held");
        }
        Ok(None) => say("taken"),
        Err(error) => {
            locks.close().await.unwrap();
            say(format!("{:?}", error.effect()));
        }
    }
}

/// Returns the command of `job` under strace, with the options `how` for the files of the lock `n`
/// in `dir`.
fn strace(dir: &Path, how: &[&str], job: &str, args: &[&str]) -> Command {
    let file = dir.join("n.lock");
    let side = dir.join("n.lock.d");
    let mut command = Command::new("strace");
    command.args(["-f", "-qq"]).args(how);
    for path in [dir, &file, &side, &side.join("breaking"), &side.join("draft")] {
        command.arg("-P").arg(path);
    }
    let job = Process::command(module_path!(), job, args);
    command.arg(job.get_program()).args(job.get_args());
    command.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.stderr(Stdio::null());
    command
}

/// Returns its lines until it ends.
fn under_strace(dir: &Path, how: &[&str], job: &str, args: &[&str]) -> Vec<String> {
    let output = strace(dir, how, job, args).output();
    let output = output.expect("strace is there: apt-get install strace");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| Some(line[line.find("@ ")? + 2..].to_owned())).collect()
}

/// Returns true if a thread of the job was killed at its `n`th such call.
fn kill_at(dir: &Path, call: &str, n: u32, job: &str, args: &[&str]) -> (Vec<String>, bool) {
    let log = dir.with_extension("log");
    let inject = format!("inject={call}:signal=KILL:when={n}");
    let how = ["-o", log.to_str().unwrap(), "-e", &inject];
    let said = under_strace(dir, &how, job, args);
    let killed = std::fs::read_to_string(&log).unwrap().contains("killed by SIGKILL");
    (said, killed)
}

/// Returns the lines of the job while the `n`th such call of a thread fails; `None` if there was
/// none.
fn fail_at(dir: &Path, call: &str, n: u32, job: &str, args: &[&str]) -> Option<Vec<String>> {
    let log = dir.with_extension("log");
    let inject = format!("inject={call}:error=EIO:when={n}");
    let said = under_strace(dir, &["-o", log.to_str().unwrap(), "-e", &inject], job, args);
    std::fs::read_to_string(&log).unwrap().contains("(INJECTED)").then_some(said)
}

#[tokio::test]
async fn a_detached_lock_matches_its_answer_wherever_a_call_fails() {
    let mut failures = 0;
    for call in CALLS.split(' ').filter(|&call| call != "close") {
        for n in 1.. {
            let scratch = on_disk();
            let dir = scratch.path().join("locks");
            let locks = locker(&dir);
            // A break that died left this, and a place that is taken makes it worth a look.
            let side = dir.join("n.lock.d");
            std::fs::create_dir(&side).unwrap();
            let taken = File::create(side.join("00000000000000000001-x")).unwrap();
            flock(&taken, FlockOperation::LockExclusive).unwrap();
            File::create(side.join("breaking")).unwrap();
            let Some(said) = fail_at(&dir, call, n, "detach", &[&path_text(&dir)]) else { break };
            let holders = locks.inspect(&crate::common::name("n")).await.unwrap().holders;
            let is_held = said == ["held"];
            assert_eq!(holders.len(), usize::from(is_held), "{call} {n}: {said:?}");
            failures += u32::from(!is_held);
        }
    }
    assert!(failures > 8, "{failures}");
}

#[tokio::test]
async fn a_break_matches_its_answer_wherever_a_call_fails() {
    let mut failures = 0;
    for call in CALLS.split(' ').filter(|&call| call != "close") {
        for n in 1.. {
            let scratch = on_disk();
            let dir = scratch.path().join("locks");
            let backend = FileLocks::at(&dir).unwrap();
            let mut ours = claim("n");
            ours.ticket = attempt(&backend, &ours).await.unwrap().ticket;
            let args = [path_text(&dir), ours.owner.expose().to_string()];
            let args = args.each_ref().map(String::as_str);
            let Some(said) = fail_at(&dir, call, n, "break", &args) else { break };
            let renewed = backend.renew(&[&ours]).await.remove(0).unwrap();
            let is_held = matches!(renewed, Renewal::Held(_));
            match &said.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["true"] => assert!(!is_held, "{call} {n}"),
                ["false" | "NotApplied"] => assert!(is_held, "{call} {n}: {said:?}"),
                said => assert_eq!(said, ["Unknown"], "{call} {n}"),
            }
            failures += u32::from(said != ["true"]);
        }
    }
    assert!(failures > 8, "{failures}");
}

#[tokio::test]
async fn tokens_grow_and_the_lock_is_free_wherever_a_process_is_killed() {
    let mut deaths = 0;
    for call in CALLS.split(' ') {
        for n in 1.. {
            let scratch = on_disk();
            let dir = scratch.path().join("locks");
            std::fs::create_dir(&dir).unwrap();
            let (said, killed) = kill_at(&dir, call, n, "two rounds", &[&path_text(&dir)]);
            let last = said.last().map(|text| token(text));
            assert!(killed || said.len() == 2, "{call} {n}: {said:?}");
            let locks = locker(&dir);
            let guard = locks.lock("n").unwrap().try_acquire().await.unwrap();
            let guard = guard.unwrap_or_else(|| panic!("{call} {n}: free at once"));
            assert!(guard.fencing_token() > last, "{call} {n}");
            guard.release().await.unwrap();
            if !killed {
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 20, "only {deaths} places to die at were found");
}

#[tokio::test]
async fn tokens_are_granted_only_after_a_sync() {
    let scratch = on_disk();
    let dir = scratch.path().join("locks");
    std::fs::create_dir(&dir).unwrap();
    let (said, killed) = kill_at(&dir, "fdatasync", 1, "two rounds", &[&path_text(&dir)]);
    assert!(killed && said.is_empty(), "{said:?}");
    // The next one finds the number in the file, and cannot know whether the disk has it.
    let log = scratch.path().join("log");
    let how = ["-o", log.to_str().unwrap(), "-e", "trace=pwrite64,fdatasync,fsync"];
    let said = under_strace(&dir, &how, "two rounds", &[&path_text(&dir)]);
    assert_eq!(said.len(), 2);
    let log = std::fs::read_to_string(log).unwrap();
    let at = |what: &str| {
        log.lines().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {log}"))
    };
    let granted = log.lines().position(|line| line.contains("owner")).unwrap_or(usize::MAX);
    let slot = at("lock-file-counter");
    assert!(slot < at("fdatasync") && at("fdatasync") < granted, "{log}");
    assert_eq!(log.matches("fdatasync(").count(), 1, "once for both rounds: {log}");
}

#[tokio::test]
async fn a_new_file_is_synced_with_its_name() {
    let scratch = on_disk();
    let dir = scratch.path().join("locks");
    let log = scratch.path().join("log");
    let how = ["-y", "-o", log.to_str().unwrap(), "-e", "trace=fsync"];
    std::fs::create_dir(&dir).unwrap();
    under_strace(&dir, &how, "two rounds", &[&path_text(&dir)]);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(&format!("<{}>)", dir.display())), "{log}");
}

#[tokio::test]
async fn a_disk_that_fails_is_an_error_and_tokens_grow_after_it() {
    for (call, errors) in [
        ("pwrite64", &["ENOSPC", "EDQUOT", "EIO"][..]),
        ("fdatasync", &["EIO", "ENOSPC"]),
        ("fsync", &["EIO"]),
        ("?open,?openat", &["ENOSPC", "EROFS"]),
    ] {
        let mut failed = 0;
        for (error, n) in errors.iter().flat_map(|error| (1..=4).map(move |n| (error, n))) {
            let scratch = on_disk();
            let dir = scratch.path().join("locks");
            std::fs::create_dir(&dir).unwrap();
            let inject = format!("inject={call}:error={error}:when={n}");
            let how = ["-o", "/dev/null", "-e", &inject];
            let said = under_strace(&dir, &how, "two rounds", &[&path_text(&dir)]);
            assert_eq!(said.len(), 2, "{call} {error} {n}: {said:?}");
            let mut last = None;
            for said in said {
                match said.parse() {
                    Ok(token) => {
                        assert!(Some(token) > last, "{call} {error} {n}");
                        last = Some(token);
                    }
                    Err(_) => {
                        assert_eq!(said, "Unavailable", "{call} {error} {n}");
                        failed += 1;
                    }
                }
            }
            let guard = acquire(&locker(&dir), "n").await;
            assert!(guard.fencing_token() > last, "{call} {error} {n}");
        }
        assert!(failed >= errors.len(), "{call} failed {failed} times only");
    }
}

#[tokio::test]
async fn a_file_that_is_replaced_before_it_is_locked_is_not_the_lock() {
    let dir = scratch();
    let file = dir.path().join("n.lock");
    let how = ["-o", "/dev/null", "-e", "inject=flock:delay_enter=500000:when=1"];
    let mut late =
        Process::spawn(strace(dir.path(), &how, "two rounds", &[&path_text(dir.path())]));
    until("it has opened the file", async || file.exists()).await;
    std::fs::remove_file(&file).unwrap();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    until("it waits for the new file", async || {
        locks.inspect(&crate::common::name("n")).await.unwrap().waiting == Some(1)
    })
    .await;
    // No number is less than the clock's.
    let before = u64::try_from(wall().as_micros()).unwrap();
    guard.release().await.unwrap();
    assert!(token(&late.hear()).backend_number() >= before, "it held the lock while we did");
    late.rest();
}

#[tokio::test]
async fn a_break_that_dies_half_way_leaves_a_lock_that_works() {
    let mut deaths = 0;
    for call in CALLS.split(' ') {
        for n in 1.. {
            let scratch = on_disk();
            let dir = scratch.path().join("locks");
            let backend = FileLocks::at(&dir).unwrap();
            let mut ours = claim("n");
            // Far ahead of the clock, which would hide a number that was lost.
            ours.min_token = FencingToken::from_backend(1 << 53);
            let grant = attempt(&backend, &ours).await.unwrap();
            ours.ticket = grant.ticket;
            let args = [path_text(&dir), ours.owner.expose()];
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let (said, killed) = kill_at(&dir, call, n, "break", &args);
            // Held by us alone, or broken and free.
            let next = attempt(&backend, &claim("n")).await;
            let renewed = backend.renew(&[&ours]).await.remove(0).unwrap();
            let held = matches!(renewed, Renewal::Held(_));
            assert_eq!(held, next.is_none(), "{call} {n}: {said:?}");
            assert!(next.is_none_or(|next| next.token > grant.token), "{call} {n}");
            if !killed {
                assert_eq!(said, ["true"], "{call} {n}");
                break;
            }
            deaths += 1;
        }
    }
    assert!(deaths > 10, "only {deaths} places to die at were found");
}

#[tokio::test]
async fn a_process_without_threads_gets_an_error_and_the_lock_stays_free() {
    let dir = on_disk();
    let mut command = Command::new("timeout");
    command.args(["60", "strace", "-f", "-qq", "-e", "inject=?clone,?clone3:error=EAGAIN"]);
    command.stderr(Stdio::null());
    let job = Process::command(module_path!(), "two rounds", &[&path_text(dir.path())]);
    command.arg(job.get_program()).args(job.get_args());
    command.envs(job.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let mut process = Process::spawn(command);
    assert_eq!(process.rest(), ["Unavailable", "Unavailable"]);
    assert!(crate::common::is_free(&locker(dir.path()), "n").await);
}
