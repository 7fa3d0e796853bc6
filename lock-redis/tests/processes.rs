//! Holders in processes of their own, which are stopped, killed, or end in odd ways.

use std::process::ExitCode;

use conformance_tests::peers::holders;
use conformance_tests::servers::{Redis as Server, RedisOptions};
use lock_core::Locker;
use lock_redis::Redis;

fn main() -> ExitCode {
    let start = || {
        let server = Server::start(RedisOptions::new());
        let url = server.url();
        (server, url)
    };
    holders::run(start, |url| async { Locker::new(Redis::connect(url).await.unwrap()) })
}
