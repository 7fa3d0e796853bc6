//! Holders in processes of their own, which are stopped, killed, or end in odd ways.

use std::process::ExitCode;

use lock_core::Locker;
use lock_memcache::Memcached;
use test_servers::peers::holders;
use test_servers::{Memcached as Server, MemcachedOptions};

fn main() -> ExitCode {
    let start = || {
        let server = Server::start(MemcachedOptions::new());
        let url = server.url();
        (server, url)
    };
    holders::run(start, |url| async { Locker::new(Memcached::connect(url).await.unwrap()) }, [])
}
