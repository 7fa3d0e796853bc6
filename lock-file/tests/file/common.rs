//! Real processes for the tests: this test binary, run once more.
//!
//! A module that starts a [`Process`] has a test named `child` that calls [`run_if_child`].

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lock_core::backend::{Attempt, Backend, Claim, Grant};
use lock_core::clock::{Moment, sleep, wall};
use lock_core::{FencingToken, LockGuard, LockName, Locker, OwnerId};
use lock_file::FileLocks;
use tempfile::TempDir;

/// Longer than anything here takes, on any machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const JOB: &str = "LOCK_FILE_TEST_JOB";
const MARK: &str = "@ ";

pub(crate) fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Creates a directory that is not on tmpfs, where nothing is synced.
pub(crate) fn on_disk() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(crate) fn locker(dir: &Path) -> Locker {
    Locker::new(FileLocks::at(dir).unwrap())
}

pub(crate) async fn acquire(locks: &Locker, name: &str) -> LockGuard {
    locks.lock(name).unwrap().acquire().await.unwrap()
}

pub(crate) async fn is_free(locks: &Locker, name: &str) -> bool {
    let lock = locks.lock(name).unwrap();
    match lock.try_acquire().await.unwrap() {
        Some(guard) => guard.release().await.is_ok(),
        None => false,
    }
}

/// Waits until a condition is true.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Moment::now() + DEADLINE;
    while !condition().await {
        assert!(!end.has_passed(), "in vain: {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Waits the same, without ever sleeping: a paused clock stands still.
pub(crate) async fn yields_until(what: &str, condition: impl Fn() -> bool) {
    let (_goes_on, ends) = std::sync::mpsc::channel::<()>();
    let end = std::thread::spawn(move || ends.recv_timeout(DEADLINE));
    while !condition() {
        assert!(!end.is_finished(), "in vain: {what}");
        tokio::task::yield_now().await;
    }
}

/// Another process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Runs a job of `module` (as `module_path!()` has it) in another process.
    pub(crate) fn start(module: &str, job: &str, args: &[&str]) -> Self {
        Self::spawn(Self::command(module, job, args))
    }

    pub(crate) fn command(module: &str, job: &str, args: &[&str]) -> Command {
        let (_, module) = module.split_once("::").expect("a module of this program");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("{module}::child")]);
        command.args(["--nocapture", "--test-threads=1"]);
        command.env(JOB, format!("{job}\n{}", args.join("\n")));
        command
    }

    /// Starts `flock(1)`, which ends on request.
    pub(crate) fn flock(file: &Path) -> Self {
        let mut command = Command::new("flock");
        command.arg("--no-fork").arg(file);
        command.args(["sh", "-c", "echo '@ locked'; read line"]);
        Self::spawn(command)
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// Returns its next line.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "it ended");
            // The test harness talks as well, and does not end its lines.
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Returns the lines of an ended process since then.
    pub(crate) fn rest(&mut self) -> Vec<String> {
        let lines = self.stdout.by_ref().lines().map(Result::unwrap);
        lines.filter_map(|line| Some(line[line.find(MARK)? + MARK.len()..].to_owned())).collect()
    }

    pub(crate) fn tell(&mut self, text: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{text}").unwrap();
    }

    /// Closes its input, also for its children.
    pub(crate) fn hang_up(&mut self) {
        self.stdin = None;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits until it has ended well.
    pub(crate) fn finish(mut self) {
        self.tell("go on");
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a line to the parent, in the other process.
pub(crate) fn say(text: impl std::fmt::Display) {
    println!("{MARK}{text}");
}

/// Waits for a line of the parent, in the other process.
pub(crate) fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Runs the job of this process, if it is a child.
pub(crate) fn run_if_child(job: impl AsyncFnOnce(&str, &[&str])) {
    let Ok(whole) = std::env::var(JOB) else {
        return;
    };
    let mut words = whole.lines();
    let name = words.next().unwrap();
    let args: Vec<&str> = words.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(job(name, &args));
}

/// Runs the job of most children: `hold <directory> <name>`, until the parent's signal.
pub(crate) async fn hold(args: &[&str]) {
    let [dir, name] = args else { panic!("hold <directory> <name>") };
    hold_until_told(&locker(Path::new(dir)), name).await;
}

pub(crate) async fn hold_until_told(locks: &Locker, name: &str) {
    let guard = acquire(locks, name).await;
    let granted = wall();
    say(guard.fencing_token().unwrap());
    listen();
    release(guard, granted).await;
}

/// Releases, and reports the hold for [`assert_served_in_order`].
pub(crate) async fn release(guard: LockGuard, granted: Duration) {
    let (token, released) = (guard.fencing_token().unwrap(), wall());
    guard.release().await.unwrap();
    say(format!("{token} {} {}", granted.as_micros(), released.as_micros()));
}

/// Tells waiting processes to go on, and asserts that they got the lock, which is free since
/// `free_since` by the wall clock, in this order. One that leaves it free for a tenth of a second,
/// on a busy machine, may be overtaken. So none of them waits to be told while it holds the lock.
pub(crate) fn assert_served_in_order(mut children: Vec<Process>, free_since: Duration) {
    const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

    children.iter_mut().for_each(|child| child.tell("go on"));
    let mut holds = Vec::new();
    for (place, mut child) in children.into_iter().enumerate() {
        for line in child.rest() {
            let words: Vec<_> = line.split(' ').collect();
            let [of, granted, released] = words[..] else { continue };
            let time = |text: &str| Duration::from_micros(text.parse().unwrap());
            holds.push((token(of), place, time(granted), time(released)));
        }
        assert!(child.child.wait().unwrap().success());
    }
    let mut waiting: Vec<_> = holds.iter().map(|(_, place, ..)| *place).collect();
    holds.sort_unstable();
    let mut free_since = free_since;
    for (token, place, granted, released) in &holds {
        let position = waiting.iter().position(|it| it == place).unwrap();
        let was_free = granted.saturating_sub(free_since);
        let is_in_order = position == 0 || was_free >= SHORTEST_PAUSE;
        assert!(is_in_order, "{token} of {holds:?} overtakes after {was_free:?}");
        waiting.remove(position);
        free_since = *released;
    }
    assert!(!holds.is_empty() && waiting.is_empty());
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// Returns a claim with a ttl of ten minutes, as core would make it.
pub(crate) fn claim(lock: &str) -> Claim {
    Claim::new(name(lock), OwnerId::mint(), Duration::from_secs(600))
}

/// Makes one attempt, by hand. The caller keeps the grant, or loses it.
pub(crate) async fn attempt(backend: &impl Backend, claim: &Claim) -> Option<Grant> {
    match backend.try_acquire(claim).await.unwrap() {
        Attempt::Acquired(grant) => Some(grant),
        Attempt::Contended { .. } => None,
    }
}

pub(crate) fn token(text: &str) -> FencingToken {
    text.parse().unwrap()
}

pub(crate) fn path_text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn files_in(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}
