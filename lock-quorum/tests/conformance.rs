//! Every law on quorums: of memory and, with the feature `__servers`, of real servers and of both.
//! A fault hits all members at the same time. With `QUORUM_LAWS=all` it also hits a bare majority
//! of them, and the others stay up. Members that forget have to be older than the longest lease. On
//! a paused clock that takes no time. With `QUORUM_LAWS=all` the suite waits until real servers are
//! that old.

use std::process::ExitCode;

use lock_conformance::Suite;

mod harness;

use harness::{InMemory, Mixed, OnServers};

fn main() -> ExitCode {
    let mut suites = vec![
        Suite::new("three_in_memory", || Box::new(InMemory::of(3))),
        Suite::new("five_in_memory", || Box::new(InMemory::of(5))),
        Suite::new("three_in_memory_that_forget", || Box::new(InMemory::that_forget(3))),
    ];
    if !cfg!(feature = "__servers") {
        return lock_conformance::run(&suites);
    }
    suites.extend([
        Suite::new("three_redis", || Box::new(OnServers::redis(3))),
        Suite::new("five_redis", || Box::new(OnServers::redis(5))),
        Suite::new("redis_memcached_and_files", || Box::new(Mixed::new())),
    ]);
    if std::env::var("QUORUM_LAWS").as_deref() == Ok("all") {
        suites.extend([
            // Hand-overs inside a process, chapter 14, do not involve members, and need longer
            // leases.
            Suite::new("three_redis_that_forget", || Box::new(OnServers::redis(3).that_forget()))
                .only(|law| law.chapter() != "14"),
            Suite::new("three_redis_two_fail", || {
                Box::new(OnServers::redis(3).of_which_most_fail())
            }),
            Suite::new(
                "redis_and_two_memcached",
                || Box::new(OnServers::redis_and_two_memcached()),
            ),
            Suite::new("five_redis_three_fail", || {
                Box::new(OnServers::redis(5).of_which_most_fail())
            }),
        ]);
    }
    lock_conformance::run(&suites)
}
