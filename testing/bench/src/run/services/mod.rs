//! The targets of runs: memory, a directory, or a server that counts requests.

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

/// The location of the locks of one run.
pub(crate) struct Target {
    /// The URL for workers.
    pub(crate) url: String,
    pub(crate) server: Option<Box<dyn Server>>,
    /// Deleted with this.
    _directory: Option<TempDir>,
}

impl Target {
    /// Creates the target of a server.
    fn of(server: impl Server + 'static) -> Self {
        let url = server.url_at(&server.addrs());
        Self { url, server: Some(Box::new(server)), _directory: None }
    }
}

/// A server with a TCP port, or several that hold the locks together.
pub(crate) trait Server {
    /// Returns the address of each server.
    fn addrs(&self) -> Vec<SocketAddr>;

    /// Returns the URL of the same server behind a relay. Each of several has a relay of its own.
    fn url_at(&self, addrs: &[SocketAddr]) -> String;

    /// Returns the URL for holders that are killed. If locks last as long as a session, it has a
    /// short one.
    fn short_session_url(&self) -> String {
        self.url_at(&self.addrs())
    }

    /// Returns the processes that this run has started: their CPU time can be read.
    fn pids(&self) -> Vec<u32>;

    /// Pauses or resumes the nth of several servers; returns false if there is only one.
    fn set_paused(&self, _nth: usize, _stands: bool) -> bool {
        false
    }

    fn version(&self) -> Result<String>;

    /// Counts requests from now on.
    fn count(&self) -> Result<Box<dyn Count>>;

    /// Returns the times of the cheapest request at `addr`, which is a server or a relay to it.
    ///
    /// Each is sent after such a pause. All times are in nanoseconds. The pause matters, as an idle
    /// processor is slower at first.
    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>>;

    /// Adds keys with an expiry that are not locks.
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

/// Measures so many requests, each after such a pause, in nanoseconds.
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

/// A running count of requests.
pub(crate) trait Count {
    /// Returns the number of requests of clients until now, without those of the count itself.
    fn finish(self: Box<Self>) -> Result<u64>;
}

pub(crate) fn memory(url: &str) -> Result<Target> {
    Ok(Target { url: url.to_owned(), server: None, _directory: None })
}

/// Creates a directory, unless the URL names one.
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
