//! The locks of other projects that `testing/fleet/setup` installs, as `./test --all` does.

mod support;

use support::{demand, run};

#[test]
fn other_projects_locks_on_redis_are_measured_beside_ours() {
    let waiting = [
        "locks",
        "rslock",
        "redis-py",
        "python-redis-lock",
        "Sherlock",
        "redis-semaphore",
        "node-redlock",
        "node-redlock, 10 ms",
        "redsync",
        "redsync, 10 ms",
        "redislock",
        "redislock, 10 ms",
        "Redisson",
    ];
    let text = others_are_measured("redis:", "killed", &waiting);
    let cannot = "left out: killed, distributed-lock: its acquire fails if the lock is held";
    assert!(text.contains(cannot), "a library that cannot take part is reported: {text}");
    // Its waiters learn of the end of a lease when the server removes the key. Among as many keys
    // as there are here that takes minutes.
    let late =
        "left out: killed, rueidislock, which failed: the worker rueidislock: has not answered";
    assert!(text.contains(late), "a waiter that is not served in time is reported: {text}");
    let kept = ["locks", "distributed-lock", "redis-semaphore", "rueidislock"];
    others_are_measured("redis:", "held", &kept);
    let pairs = ["locks", "redis-py", "redsync", "redislock", "rueidislock", "Redisson"];
    others_are_measured("redis:", "pairs", &pairs);
}

#[test]
fn other_projects_locks_on_quorums_are_measured_beside_ours() {
    others_are_measured("quorum:3", "pairs", &["locks", "rslock", "node-redlock", "redsync"]);
}

#[test]
fn other_projects_locks_on_memcached_are_measured_beside_ours() {
    others_are_measured("memcache:", "pairs", &["locks", "memcache-crate", "Sherlock"]);
}

#[test]
fn other_projects_locks_on_zookeeper_are_measured_beside_ours() {
    others_are_measured("zookeeper:", "handoff", &["locks", "zookeeper-crate", "kazoo", "curator"]);
}

#[test]
fn other_projects_locks_on_files_are_measured_beside_ours() {
    others_are_measured("file:", "crowd", &["locks"]);
}

/// Runs the libraries of other projects: each speaks the protocol, and none of their claims
/// overlap.
fn others_are_measured(url: &str, workload: &str, names: &[&str]) -> String {
    let output = run(&[url, workload, "--exact", "--others"]);
    demand(&output, 0, workload);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("not installed"), "./test installs all of them: {text}");
    for name in names {
        // Without the names of figures, a line of the table with names in it is a head.
        let is_head =
            |line: &str| line.starts_with("      ") && line.contains(&format!("   {name}"));
        assert!(text.lines().any(is_head), "{name} has no column in\n{text}");
    }
    text.into_owned()
}
