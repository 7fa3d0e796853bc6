//! A process that forks while it holds locks on a server. Core tests the guards in the fork. This
//! tests the connection, which both processes share.

use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::clock::sleep;
use lock_core::{LockGuard, Locker};
use lock_redis::Redis;
use test_servers::Monitor;

use crate::support::Server;

/// A lease that needs no renewal during the test.
const LONG: Duration = Duration::from_secs(60);

const SHORT: Duration = Duration::from_secs(1);

fn say(line: &str) {
    // Past the output capture of the test harness.
    writeln!(std::io::stderr().lock(), "child: {line}").unwrap();
}

/// Polls once: nothing in a fork wakes a future.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

/// Forks while it holds locks. It is no test by itself: the test below runs it in a child process.
#[test]
fn child_that_forks_while_it_holds_locks() {
    let Ok(addr) = std::env::var("FORKS_WITH_LOCKS_ON") else { return };
    let addr: SocketAddr = addr.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let redis = runtime.block_on(Redis::connect(format!("redis://{addr}"))).unwrap();
    let locks = Locker::new(redis.clone());
    let win =
        |name: &str, ttl| runtime.block_on(locks.lock(name).unwrap().ttl(ttl).acquire()).unwrap();
    let [renewed, kept, dropped, released, verified] = [
        ("renewed", SHORT),
        ("kept", LONG),
        ("dropped", LONG),
        ("released", LONG),
        ("verified", LONG),
    ]
    .map(|(name, ttl)| win(name, ttl));
    let monitor = Monitor::start(addr).unwrap();
    let is_fork = std::fs::remove_file("/fork").is_err();
    if is_fork {
        let kind = |error: lock_core::Error| error.kind();
        say(&format!("fork {:?} {:?}", renewed.loss(), kept.loss()));
        drop((renewed, dropped));
        say(&format!("fork release {:?}", at_once(released.release()).map(|it| it.map_err(kind))));
        say(&format!("fork verify {:?}", at_once(verified.verify()).map(|it| it.map_err(kind))));
        let acquired = at_once(locks.lock("new").unwrap().acquire());
        say(&format!("fork acquire {:?}", acquired.map(|it| it.map(drop).map_err(kind))));
        let asked = at_once(locks.identity()).map(|it| it.map(drop).map_err(kind));
        say(&format!("fork identity {asked:?}"));
        drop((kept, verified, locks, redis));
        std::process::exit(0);
    }
    let fork = rustix::process::wait(rustix::process::WaitOptions::empty()).unwrap();
    say(&format!("parent: the fork ended {:?}", fork.and_then(|(_, how)| how.exit_status())));
    let sent = monitor.finish().unwrap();
    let others: Vec<_> = sent.iter().filter(|sent| !sent.contains("\"renewed\"")).collect();
    say(&format!("parent: sent meanwhile {others:?}"));
    let guards = [&renewed, &kept, &dropped, &released, &verified];
    runtime.block_on(sleep(SHORT * 3));
    say(&format!("parent: lost {:?}", guards.map(LockGuard::loss)));
    let answers = guards.map(|guard| runtime.block_on(guard.verify()).is_ok());
    say(&format!("parent: verified {answers:?}"));
    let released = runtime.block_on(released.release()).map_err(|error| error.kind());
    say(&format!("parent: released {released:?}"));
}

#[test]
fn a_fork_leaves_the_locks_and_the_connection_of_its_parent_alone() {
    let server = Server::start();
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    // The directory is that of the whole workspace.
    let (source, library) = (directory.join("redis-fork.c"), directory.join("redis-fork.so"));
    std::fs::write(&source, include_str!("../../../lock-core/tests/core/fork.c")).unwrap();
    let mut compiler = Command::new("cc");
    let compiled = compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiled.status().expect("cc is missing; install it: apt-get install gcc").success());
    let connections = connections(&server);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "fork::child_that_forks_while_it_holds_locks", "--nocapture"])
        .env("FORKS_WITH_LOCKS_ON", server.addr().to_string())
        .env("LD_PRELOAD", library)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("child: ")).collect();
    let expected = [
        "fork Some(RuntimeGone) Some(RuntimeGone)",
        "fork release Some(Err(Lost))",
        "fork verify Some(Err(Lost))",
        "fork acquire Some(Err(NoRuntime))",
        "fork identity Some(Err(NoRuntime))",
        "parent: the fork ended Some(0)",
        "parent: sent meanwhile []",
        "parent: lost [None, None, None, None, None]",
        "parent: verified [true, true, true, true, true]",
        "parent: released Ok(())",
    ];
    assert_eq!(lines, expected, "{said}");
    // The locks, the monitor and its mark, and the question after it.
    assert_eq!(self::connections(&server) - connections, 4, "the parent connected anew");
}

fn connections(server: &Server) -> u64 {
    let stats: String = server.run("INFO stats");
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.expect("the server counts them").parse().expect("a number")
}
