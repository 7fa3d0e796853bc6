//! Where the locks are: nowhere, in a directory, or on a server that counts what it is asked.

mod memcached;
mod redis;
mod zookeeper;

use std::net::SocketAddr;

use tempfile::TempDir;

use super::Stop;

pub(crate) use memcached::memcached;
pub(crate) use redis::redis;
pub(crate) use zookeeper::zookeeper;

/// Where the locks of one run are.
pub(crate) struct Place {
    /// What workers are told.
    pub(crate) url: String,
    pub(crate) server: Option<Box<dyn Server>>,
    /// Deleted with this.
    _directory: Option<TempDir>,
}

/// A server that is asked over TCP.
pub(crate) trait Server {
    /// Where it listens.
    fn addr(&self) -> SocketAddr;

    /// The URL of the same server, behind a relay.
    fn url_at(&self, addr: SocketAddr) -> String;

    /// Its process, if it is one of ours: then its CPU can be read.
    fn pid(&self) -> Option<u32>;

    fn version(&self) -> Result<String, Stop>;

    /// Counts requests from now on.
    fn count(&self) -> Result<Box<dyn Count>, Stop>;

    /// How long the cheapest request takes at `addr`, so many times, in nanoseconds.
    fn round_trips(&self, addr: SocketAddr, times: usize) -> Result<Vec<u64>, Stop>;

    /// Puts keys there that expire one day, and are nobody's locks.
    fn fill(&self, keys: usize) -> Result<(), Stop>;
}

/// A count of requests that is under way.
pub(crate) trait Count {
    /// How many requests clients have sent until now, our own questions left out.
    fn finish(self: Box<Self>) -> Result<u64, Stop>;
}

pub(crate) fn memory(url: &str) -> Result<Place, Stop> {
    Ok(Place { url: url.to_owned(), server: None, _directory: None })
}

/// A directory of its own, unless the URL names one.
pub(crate) fn file(url: &str) -> Result<Place, Stop> {
    if url != "file:" {
        return Ok(Place { url: url.to_owned(), server: None, _directory: None });
    }
    let directory = tempfile::Builder::new()
        .prefix("lock-bench-")
        .tempdir()
        .map_err(|e| Stop::Failed(format!("no temporary directory: {e}")))?;
    let url = format!("file://{}", directory.path().display());
    Ok(Place { url, server: None, _directory: Some(directory) })
}
