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
    ];
    let text = others_are_measured("redis:", "killed", &waiting);
    let cannot = "left out: killed, distributed-lock: its acquire fails if the lock is held";
    assert!(text.contains(cannot), "a library that cannot take part is reported: {text}");
    others_are_measured("redis:", "held", &["locks", "distributed-lock", "redis-semaphore"]);
}

#[test]
fn other_projects_locks_on_memcached_are_measured_beside_ours() {
    others_are_measured("memcache:", "pairs", &["locks", "memcache-crate", "Sherlock"]);
}

#[test]
fn other_projects_locks_on_files_are_measured_beside_ours() {
    others_are_measured("file:", "crowd", &["locks"]);
}
