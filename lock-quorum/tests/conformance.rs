//! Every law on quorums: of memory, of real servers, and of both.

use std::process::ExitCode;

use conformance_tests::Suite;

mod harness;

use harness::{InMemory, Mixed, OnRedis};

fn main() -> ExitCode {
    conformance_tests::run(&[
        Suite::new("three_in_memory", || Box::new(InMemory::of(3))),
        Suite::new("five_in_memory", || Box::new(InMemory::of(5))),
        Suite::new("three_redis", || Box::new(OnRedis::nodes(3))),
        Suite::new("five_redis", || Box::new(OnRedis::nodes(5))),
        Suite::new("redis_memcached_and_files", || Box::new(Mixed::new())),
    ])
}
