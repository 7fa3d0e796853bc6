//! A process that was forked from one that holds locks. On the real clock.

use std::io::Write;
use std::pin::pin;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use lock_core::clock::sleep;
use lock_core::faults::{FaultInjector, Injection};
use lock_core::{Executor, LockGuard, Locker, Loss, Memory};

use crate::support::{Altered, runtime, secs};

fn say(line: &str) {
    // Past the capture of the test harness.
    writeln!(std::io::stderr().lock(), "child: {line}").unwrap();
}

/// The result of a future at its first poll: in a fork, no task would wake it.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A locker that has a connection and has not been used yet, and whether its backend was dropped.
fn unused() -> (Locker, Arc<AtomicBool>) {
    let was_dropped = Arc::new(AtomicBool::new(false));
    let dropped = Dropped(Arc::clone(&was_dropped));
    let backend = Altered::new(Memory::new(), |_| ()).within(Executor::new().unwrap());
    let locks = Locker::new(backend.releases(move |_, _| {
        let _ = &dropped;
    }));
    (locks, was_dropped)
}

/// Not a test by itself: the child process of the next one runs it.
#[test]
fn child_that_forks_while_it_holds_locks() {
    if std::env::var_os("LOCK_CORE_CHILD").is_none() {
        return;
    }
    let runtime = runtime();
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), |_| Injection::None);
    let locks = Locker::new(faulty.clone());
    let win = |name: &str| locks.lock(name).unwrap().ttl(secs(1));
    let [kept, dropped, released, verified] = ["kept", "dropped", "released", "verified"]
        .map(|name| runtime.block_on(win(name).acquire()).unwrap());
    let signal = kept.loss_signal();
    let (connected, dropped_here) = unused();
    let is_fork = std::fs::remove_file("/fork").is_err();
    if is_fork {
        let calls = faulty.calls();
        say(&format!("fork {:?} {:?}", kept.loss(), at_once(signal.lost())));
        drop(dropped);
        let kind = |error: lock_core::Error| error.kind();
        say(&format!("fork release {:?}", at_once(released.release()).map(|it| it.map_err(kind))));
        say(&format!("fork verify {:?}", at_once(verified.verify()).map(|it| it.map_err(kind))));
        let acquired = at_once(win("new").acquire()).map(|it| it.map(drop).map_err(kind));
        say(&format!("fork acquire {acquired:?}"));
        drop((verified, locks, runtime.handle().clone()));
        say(&format!("fork sent {}", faulty.calls() - calls));
        drop(connected);
        say(&format!("fork dropped {}", dropped_here.load(Ordering::SeqCst)));
        // Nor is anything dropped that is the parent's.
        std::process::exit(i32::from(kept.is_held()));
    }
    let child = rustix::process::wait(rustix::process::WaitOptions::empty()).unwrap();
    say(&format!("parent: the fork ended {:?}", child.and_then(|(_, how)| how.exit_status())));
    runtime.block_on(sleep(secs(4)));
    let losses = [&kept, &dropped, &released, &verified].map(LockGuard::loss);
    say(&format!("parent {losses:?} {}", memory.len()));
}

fn forks() -> Output {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (directory.join("fork.c"), directory.join("fork.so"));
    std::fs::write(&source, include_str!("fork.c")).unwrap();
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiled.status().expect("cc is missing; install it: apt-get install gcc").success());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fork::child_that_forks_while_it_holds_locks", "--nocapture"])
        .env("LOCK_CORE_CHILD", "1")
        .env("LD_PRELOAD", library)
        .output()
        .unwrap()
}

#[test]
fn the_locks_of_the_parent_are_lost_in_a_fork_and_only_there() {
    let output = forks();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("child: ")).collect();
    let gone = Loss::RuntimeGone;
    let expected = [
        format!("fork {:?} {:?}", Some(gone), Some(gone)),
        "fork release Some(Err(Lost))".to_owned(),
        "fork verify Some(Err(Lost))".to_owned(),
        "fork acquire Some(Err(NoRuntime))".to_owned(),
        "fork sent 0".to_owned(),
        "fork dropped false".to_owned(),
        "parent: the fork ended Some(0)".to_owned(),
        "parent [None, None, None, None] 4".to_owned(),
    ];
    assert_eq!(lines, expected, "{said}");
}
