//! Real servers for tests: started on free loopback ports, ended with their handle.
//!
//! A server dies with its handle, and with the test process even if that is killed. A program that is
//! not installed is a failure that says how to install it, never a skipped test.
//!
//! Nothing here needs a runtime, and everything blocks its thread: for milliseconds, but for the
//! start of a server. A test that measures on the same thread gives the call to another one.
//!
//! These handles stop, continue, kill and restart a server, with all, some or none of its data, step its
//! clock, and change things behind a client's back.

mod clock;
mod error;
mod handle;
mod memcached;
mod monitor;
pub mod peers;
mod ports;
mod process;
mod redis;
mod redis_cluster;
mod resp;
mod sentinel;
mod zookeeper;

pub use clock::{Clock, Step};
pub use error::ServerError;
pub use handle::Handle;
pub use lock_conformance::KeepData;
pub use memcached::{Memcached, MemcachedOptions, TextSession};
pub use monitor::Monitor;
pub use process::{Server, spawn_bound};
pub use redis::{Persistence, Redis, RedisOptions, TlsFiles};
pub use redis_cluster::RedisCluster;
pub use resp::{Reply, Session};
pub use sentinel::{Sentinel, SentinelGroup};
pub use zookeeper::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
