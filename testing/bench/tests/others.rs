//! The locks of other projects that `testing/fleet/setup` installs, as `./test --all` does.

mod support;

use support::others_are_measured;

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
fn other_projects_locks_on_files_are_measured_beside_ours() {
    others_are_measured("file:", "crowd", &["locks"]);
}
