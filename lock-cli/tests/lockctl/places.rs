//! The backends that locks outlive lockctl on, and what each of them declares: the one place to add
//! another one, or what one has learned.

#[cfg(feature = "memcache")]
use conformance_tests::servers::{Memcached, MemcachedOptions};
#[cfg(feature = "redis")]
use conformance_tests::servers::{Redis, RedisOptions};

use crate::support::{Scratch, outcome};

/// A lock space of its own.
pub(crate) struct Place {
    pub(crate) scheme: &'static str,
    pub(crate) url: String,
    pub(crate) detached: bool,
    pub(crate) inspecting: bool,
    /// `inspect` tells the token, and since when the lock is held, from the grant on.
    pub(crate) detailed: bool,
    pub(crate) listing: bool,
    pub(crate) breaking: bool,
    #[cfg(feature = "redis")]
    pub(crate) server: Option<Redis>,
    #[cfg(feature = "memcache")]
    _memcached: Option<Memcached>,
}

impl Place {
    #[cfg(feature = "file")]
    pub(crate) fn file(scratch: &Scratch) -> Self {
        Self {
            scheme: "file:",
            url: scratch.url(),
            detached: true,
            inspecting: true,
            detailed: true,
            listing: false,
            breaking: true,
            #[cfg(feature = "redis")]
            server: None,
            #[cfg(feature = "memcache")]
            _memcached: None,
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
            detailed: true,
            listing: false,
            breaking: true,
            server: Some(server),
            #[cfg(feature = "memcache")]
            _memcached: None,
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
            detailed: false,
            listing: false,
            breaking: true,
            #[cfg(feature = "redis")]
            server: None,
            _memcached: Some(server),
        }
    }

    pub(crate) fn all(scratch: &Scratch) -> Vec<Self> {
        let _ = scratch;
        vec![
            #[cfg(feature = "file")]
            Self::file(scratch),
            #[cfg(feature = "redis")]
            Self::redis(),
            #[cfg(feature = "memcache")]
            Self::memcache(),
        ]
    }

    /// Those with detached leases.
    pub(crate) fn all_detached(scratch: &Scratch) -> Vec<Self> {
        let mut places = Self::all(scratch);
        places.retain(|place| place.detached);
        places
    }

    /// `lockctl --backend <url> <arguments>`, to its end.
    pub(crate) fn lockctl(&self, scratch: &Scratch, arguments: &[&str]) -> (i32, String, String) {
        outcome(&mut self.command(scratch, arguments))
    }

    pub(crate) fn command(&self, scratch: &Scratch, arguments: &[&str]) -> std::process::Command {
        let mut command = scratch.lockctl(&["--backend", &self.url]);
        command.args(arguments);
        command
    }
}
