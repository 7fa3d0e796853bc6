//! A mixed fleet: `lockctl` and a Python program lock the same key.

use nix::sys::signal::Signal;
use test_servers::peers::Library;
use test_servers::{Redis, RedisOptions};

use crate::support::{Running, Scratch, WRITE_PID, outcome, until};

#[tokio::test]
async fn lockctl_and_redis_py_exclude_each_other() {
    let server = Redis::start(RedisOptions::new());
    let url = server.url();
    let scratch = Scratch::new();
    let mut theirs = Library::RedisPy.start(&[&server.addr().port().to_string(), "nightly"]);

    assert_eq!(theirs.ask("try 300").await, "held");
    let at_once = ["--no-wait", "nightly", "--", "touch", "ran"];
    assert_eq!(outcome(&mut scratch.run(&url, &at_once)).0, 75);
    let script = format!("{WRITE_PID} exec sleep 60");
    let command = ["nightly", "--", "sh", "-c", &script];
    let ours = Running::start(&mut scratch.run(&url, &command));
    // Both lockctls have connected, and one has asked for notifications.
    until("lockctl waits", || {
        let stats = server.command(&["INFO", "commandstats"]).text();
        stats.contains("cmdstat_client|caching:calls=3")
    });
    assert!(!scratch.exists("ran") && !scratch.exists("pid"), "a command runs beside the holder");

    assert_eq!(theirs.ask("release").await, "done");
    let command = scratch.read_pid();
    assert_eq!(theirs.ask("try 300").await, "contended");
    assert_eq!(theirs.ask("acquire 300 1").await, "contended");
    command.signal(Signal::SIGTERM);
    assert_eq!(theirs.ask("acquire 300 30").await, "held", "the command has ended");
    assert_eq!(ours.code(), 143);
}
