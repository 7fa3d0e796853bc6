//! The backends whose locks outlive lockctl, and the capabilities of each.
//!
//! The only file to change for another backend, or for a new capability.

use std::any::Any;

#[cfg(feature = "memcache")]
use test_servers::{Memcached, MemcachedOptions};
#[cfg(feature = "redis")]
use test_servers::{Redis, RedisOptions};
#[cfg(feature = "zookeeper")]
use test_servers::{ZooKeeper, ZooKeeperOptions};

use crate::support::{Scratch, outcome};

/// A backend with a lock space of its own.
pub(crate) struct TestBackend {
    pub(crate) scheme: &'static str,
    pub(crate) url: String,
    pub(crate) detached: bool,
    pub(crate) inspecting: bool,
    /// `inspect` shows since when the lock is held.
    pub(crate) dated: bool,
    pub(crate) listing: bool,
    pub(crate) breaking: bool,
    #[cfg(feature = "redis")]
    pub(crate) server: Option<Redis>,
    /// Another server, which is stopped with this backend.
    _other_server: Option<Box<dyn Any>>,
}

impl TestBackend {
    pub(crate) fn file(scratch: &Scratch) -> Self {
        Self {
            scheme: "file:",
            url: scratch.url(),
            detached: true,
            inspecting: true,
            dated: true,
            listing: true,
            breaking: true,
            #[cfg(feature = "redis")]
            server: None,
            _other_server: None,
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn redis() -> Self {
        let server = Redis::start(RedisOptions::new());
        Self {
            scheme: "redis:",
            url: server.url(),
            detached: true,
            inspecting: true,
            dated: true,
            listing: true,
            breaking: true,
            server: Some(server),
            _other_server: None,
        }
    }

    #[cfg(feature = "memcache")]
    pub(crate) fn memcache() -> Self {
        let server = Memcached::start(MemcachedOptions::new());
        Self {
            scheme: "memcache:",
            url: server.url(),
            detached: true,
            inspecting: true,
            dated: false,
            listing: false,
            breaking: true,
            #[cfg(feature = "redis")]
            server: None,
            _other_server: Some(Box::new(server)),
        }
    }

    #[cfg(feature = "zookeeper")]
    pub(crate) fn zookeeper() -> Self {
        let server = ZooKeeper::start(&ZooKeeperOptions::new());
        Self {
            scheme: "zookeeper:",
            url: format!("{}?session_timeout=10s", server.url()),
            detached: false,
            inspecting: true,
            dated: false,
            listing: true,
            breaking: true,
            #[cfg(feature = "redis")]
            server: None,
            _other_server: Some(Box::new(server)),
        }
    }

    pub(crate) fn all(scratch: &Scratch) -> Vec<Self> {
        Self::all_detached(scratch).into_iter().chain(Self::all_attached()).collect()
    }

    /// Returns the backends with detached leases.
    pub(crate) fn all_detached(scratch: &Scratch) -> Vec<Self> {
        let _ = scratch;
        vec![
            Self::file(scratch),
            #[cfg(feature = "redis")]
            Self::redis(),
            #[cfg(feature = "memcache")]
            Self::memcache(),
        ]
    }

    /// Returns the backends without detached leases.
    fn all_attached() -> Vec<Self> {
        vec![
            #[cfg(feature = "zookeeper")]
            Self::zookeeper(),
        ]
    }

    /// Runs `lockctl --backend <url> <arguments>` to its end.
    pub(crate) fn lockctl(&self, scratch: &Scratch, arguments: &[&str]) -> (i32, String, String) {
        outcome(&mut self.command(scratch, arguments))
    }

    pub(crate) fn command(&self, scratch: &Scratch, arguments: &[&str]) -> std::process::Command {
        let mut command = scratch.lockctl(&["--backend", &self.url]);
        command.args(arguments);
        command
    }
}
