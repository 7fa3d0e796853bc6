//! Real servers for tests: started on free loopback ports, ended with their handle.
//!
//! A server ends with its handle, and with the test process even if that is killed. A program that
//! is not installed is a failure that says how to install it, never a skipped test.
//!
//! Nothing here needs a runtime, and every call blocks its thread: for milliseconds, except for the
//! start of a server. A test that measures time on the same thread moves the call to another one.
//!
//! These handles stop, resume, kill and restart a server, with all, some or none of its data. They
//! also step its clock and change its data without the knowledge of its clients.

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
pub use process::{Server, has_stopped, spawn_bound};
pub use redis::{Persistence, Redis, RedisOptions, TlsFiles};
pub use redis_cluster::RedisCluster;
pub use resp::{Reply, Session};
pub use sentinel::{Sentinel, SentinelGroup};
pub use zookeeper::{ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};
