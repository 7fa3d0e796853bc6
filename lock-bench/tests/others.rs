//! The locks of other projects that `peers/setup` installs, which `./test --all` does.

mod support;

use support::{demand, others_are_measured, run};

#[test]
fn other_projects_locks_on_redis_are_measured_beside_ours() {
    let who_wait = [
        "locks",
        "rslock",
        "redis-py",
        "python-redis-lock",
        "Sherlock",
        "redis-semaphore",
        "node-redlock",
        "node-redlock, 10 ms",
    ];
    others_are_measured("redis:", "killed", &who_wait);
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

#[test]
fn a_library_that_cannot_do_something_is_left_out_of_it() {
    let output = run(&["redis:", "idle", "--exact", "--others"]);
    demand(
        &output,
        0,
        "left out: idle w=64 p=8, distributed-lock: its acquire fails where somebody has the lock",
    );
}
