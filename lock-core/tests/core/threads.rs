//! Guards and lockers in odd places: outside of a runtime, in a stopped process, while unwinding,
//! during shutdown, on several runtimes. On the real clock.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_core::clock::{Moment, sleep};
use lock_core::{Locker, Memory, RenewalPolicy};
use tokio::runtime::{Builder, Runtime};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Waits for a condition, with a deadline.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Moment::now() + Duration::from_secs(10);
    while !condition() {
        assert!(!end.has_passed(), "{what}: did not happen within ten seconds");
        sleep(millis(2)).await;
    }
}

#[test]
fn a_guard_dropped_outside_of_its_runtime_is_released_there() {
    let (runtime, memory) = (runtime(), Memory::new());
    let locks = Locker::new(memory.clone());
    let guard = runtime.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    drop(guard);
    runtime.block_on(until("the release", || memory.is_empty()));

    let guard = runtime.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    runtime.block_on(until("the release", || memory.is_empty()));
}

#[test]
fn guards_and_acquisitions_inside_a_runtime_that_shuts_down_do_not_panic() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let runtime = runtime();
    let _outside = runtime.block_on(locks.lock("held").unwrap().acquire()).unwrap();
    for name in ["held", "a", "b"] {
        let lock = locks.lock(name).unwrap();
        runtime.spawn(async move {
            let guard = lock.acquire().await;
            std::future::pending::<()>().await;
            drop(guard);
        });
    }
    runtime.block_on(until("two guards and a waiter", || memory.len() == 3));
    runtime.shutdown_timeout(Duration::from_secs(5));
}

#[test]
fn a_guard_dropped_while_unwinding_is_released() {
    let (runtime, memory) = (runtime(), Memory::new());
    let locks = Locker::new(memory.clone());
    let panicked = runtime.block_on(async {
        tokio::spawn(async move {
            let _guard = locks.lock("n").unwrap().acquire().await.unwrap();
            panic!("in the critical section");
        })
        .await
    });
    assert!(panicked.unwrap_err().is_panic());
    runtime.block_on(until("the release", || memory.is_empty()));

    let locks = Locker::new(memory.clone());
    let guard = runtime.block_on(locks.lock("n").unwrap().acquire()).unwrap();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _guard = guard;
        panic!("outside of a runtime");
    }));
    assert!(unwound.is_err());
    runtime.block_on(until("the release", || memory.is_empty()));
}

#[test]
fn a_starved_executor_finds_the_loss_at_its_first_look() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locker::new(Memory::new());
        let lock = |name: &str| locks.lock(name).unwrap().ttl(millis(200));
        let kept = lock("kept").acquire().await.unwrap();
        let guard = lock("n").renewal(RenewalPolicy::off()).acquire().await.unwrap();
        let end = Moment::now() + millis(400);
        while !end.has_passed() {
            std::hint::spin_loop(); // the critical section blocks the only thread
        }
        assert!(kept.is_held(), "renewed meanwhile");
        assert!(!guard.is_held());
        let ran = guard.run(async { panic!("must not run") }).await;
        assert!(ran.is_err());
    });
}

#[tokio::test]
async fn a_guard_moves_between_threads() {
    let locks = Locker::new(Memory::new());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let guard = tokio::task::spawn_blocking(move || {
        assert!(guard.is_held());
        guard
    });
    guard.await.unwrap().release().await.unwrap();
}

/// Not a test by itself: the child process of the next one runs it.
#[test]
fn child_that_holds_and_looks() {
    if std::env::var_os("LOCK_CORE_CHILD").is_none() {
        return;
    }
    // Renewals run on a thread of their own: only a stop of the process can keep them from it.
    let runtime = runtime();
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap().ttl(millis(500)).renewal(RenewalPolicy::default());
    let guard = runtime.block_on(lock.acquire()).unwrap();
    runtime.block_on(sleep(millis(1200)));
    say(&format!("held {}", guard.is_held()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    say(&format!("held {}", guard.is_held()));
    let ran = runtime.block_on(guard.run(async { "ran" }));
    say(&format!("run {}", ran.is_ok()));
}

fn say(line: &str) {
    // Past the capture of the test harness.
    let mut out = std::io::stderr().lock();
    writeln!(out, "child: {line}").unwrap();
}

#[test]
fn a_stopped_process_finds_the_loss_at_its_first_look() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "threads::child_that_holds_and_looks", "--nocapture"])
        .env("LOCK_CORE_CHILD", "1")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut says = move || lines.find_map(|line| Some(line.strip_prefix("child: ")?.to_owned()));
    assert_eq!(says().as_deref(), Some("held true"));

    signal(&child, "STOP");
    let stopped = Moment::now();
    while Moment::now().saturating_since(stopped) < millis(1000) {
        std::thread::yield_now(); // twice its lease
    }
    signal(&child, "CONT");
    child.stdin.take().unwrap().write_all(b"look\n").unwrap();
    assert_eq!(says().as_deref(), Some("held false"));
    assert_eq!(says().as_deref(), Some("run false"));
    assert!(child.wait().unwrap().success());
}

/// Not a test by itself: the child process of the next one runs it.
#[test]
fn child_that_tells_the_time() {
    if std::env::var_os("LOCK_CORE_CHILD").is_none() {
        return;
    }
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let uptime = uptime.split(' ').next().unwrap();
    say(&format!("{} {uptime}", lock_core::clock::since_boot().as_secs_f64()));
}

/// A machine that was suspended for a day: in a time namespace, as for a container that was moved,
/// the clock that counts since the boot is ahead of the one that stands still meanwhile.
#[cfg(feature = "__tools")]
#[test]
fn the_time_since_the_boot_counts_suspensions() {
    let child = Command::new("unshare")
        .args(["--user", "--map-root-user", "--time", "--boottime", "86400"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "threads::child_that_tells_the_time", "--nocapture"])
        .env("LOCK_CORE_CHILD", "1")
        .output()
        .expect("unshare is missing; install it: apt-get install util-linux");
    let said = String::from_utf8_lossy(&child.stderr).into_owned();
    let times = said.lines().find_map(|line| line.strip_prefix("child: "));
    let times = times.unwrap_or_else(|| panic!("no time namespace, or no child: {said}"));
    let (since_boot, uptime) = times.split_once(' ').unwrap();
    let [since_boot, uptime] = [since_boot, uptime].map(|time| time.parse::<f64>().unwrap());
    assert!(uptime > 86400.0, "set-up: the namespace has an offset");
    assert!((since_boot - uptime).abs() < 60.0, "{since_boot} s since a boot {uptime} s ago");
}

fn signal(child: &Child, name: &str) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = match name {
        "STOP" => rustix::process::Signal::STOP,
        _ => rustix::process::Signal::CONT,
    };
    rustix::process::kill_process(pid, signal).unwrap();
}
