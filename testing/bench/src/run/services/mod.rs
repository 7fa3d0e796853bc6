//! Where the locks are: nowhere, in a directory, or on a server that counts what it is asked.

mod memcached;
mod quorum;
mod redis;
mod zookeeper;

use std::net::{SocketAddr, ToSocketAddrs};

use lock_bench_worker::clock::{now, wait};
use tempfile::TempDir;

use crate::run::error::{Result, RunError};

pub(crate) use memcached::memcached;
pub(crate) use quorum::quorum;
pub(crate) use redis::redis;
pub(crate) use zookeeper::{SHORT_SESSION, zookeeper};

/// Where the locks of one run are.
pub(crate) struct Target {
    /// What workers are told.
    pub(crate) url: String,
    pub(crate) server: Option<Box<dyn Server>>,
    /// Deleted with this.
    _directory: Option<TempDir>,
}

impl Target {
    /// Where a server is.
    fn of(server: impl Server + 'static) -> Self {
        let url = server.url_at(&server.addrs());
        Self { url, server: Some(Box::new(server)), _directory: None }
    }
}

/// A server that is asked over TCP, or several that have the locks together.
pub(crate) trait Server {
    /// Where it listens; where each of several does.
    fn addrs(&self) -> Vec<SocketAddr>;

    /// The URL of the same server, behind a relay; of several, each behind one of its own.
    fn url_at(&self, addrs: &[SocketAddr]) -> String;

    /// The URL for holders that are killed: where locks last as long as a session, of one whose end can be waited for.
    fn short_session_url(&self) -> String {
        self.url_at(&self.addrs())
    }

    /// The processes of ours among them: their CPU can be read.
    fn pids(&self) -> Vec<u32>;

    /// Has the nth of several stand still until it goes on again; false if there is only one.
    fn set_paused(&self, _nth: usize, _stands: bool) -> bool {
        false
    }

    fn version(&self) -> Result<String>;

    /// Counts requests from now on.
    fn count(&self) -> Result<Box<dyn Count>>;

    /// How long the cheapest request takes at `addr`, which is one of theirs or a relay to it, so many times. Each
    /// is sent after such a pause, all in nanoseconds: a processor that has rested is slower at first.
    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>>;

    /// Puts keys there that expire one day, and are nobody's locks.
    fn fill(&self, keys: usize) -> Result<()>;
}

/// Returns the address in `scheme://host` or `scheme://host:port`, and `None` for a bare `scheme:`.
fn resolve(url: &str, scheme: &str, port: u16) -> Result<Option<SocketAddr>> {
    let host = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    let Some(host) = host.filter(|host| !host.contains(['@', '/', '?', ','])) else {
        let usage = format!("write {scheme}: for a server of its own, or {scheme}://host:port");
        let is_bare = url.strip_prefix(scheme) == Some(":");
        return is_bare.then_some(None).ok_or(RunError::Failed(usage));
    };
    let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
    let found = with_port.to_socket_addrs();
    let mut found = found.map_err(RunError::context(host))?;
    let found = found.next().ok_or_else(|| RunError::Failed(format!("{host} has no address")));
    found.map(Some)
}

/// How long each of so many requests takes, each after such a pause.
fn timed<E>(
    times: usize,
    pause: u64,
    mut ask: impl FnMut() -> Result<(), E>,
) -> Result<Vec<u64>, E> {
    let each = |_| {
        wait(pause);
        let asked = now();
        ask().map(|()| now() - asked)
    };
    (0..times).map(each).collect()
}

/// A count of requests that is under way.
pub(crate) trait Count {
    /// How many requests clients have sent until now, our own questions left out.
    fn finish(self: Box<Self>) -> Result<u64>;
}

pub(crate) fn memory(url: &str) -> Result<Target> {
    Ok(Target { url: url.to_owned(), server: None, _directory: None })
}

/// A directory of its own, unless the URL names one.
pub(crate) fn file(url: &str) -> Result<Target> {
    if url != "file:" {
        return Ok(Target { url: url.to_owned(), server: None, _directory: None });
    }
    let directory = tempfile::Builder::new()
        .prefix("lock-bench-")
        .tempdir()
        .map_err(RunError::context("no temporary directory"))?;
    let url = format!("file://{}", directory.path().display());
    Ok(Target { url, server: None, _directory: Some(directory) })
}
