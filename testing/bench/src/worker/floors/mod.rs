//! Floors: the same work, written by hand without our libraries, and without the features of a good
//! lock. They do not wait, handle no errors, and show the least possible cost.
//!
//! Those with a server have two parts. A dialect builds the requests (`redis.rs` and so on). A
//! transport sends them: one exchange after the other (`raw.rs`), or many at once on one socket
//! (`mux.rs`).

mod file_lock;
mod flock;
mod memcached;
mod mux;
mod raw;
mod redis;
mod tokio_mutex;
mod zookeeper;

use std::time::Duration;

use lock_bench_worker::Lib;

pub(crate) use file_lock::FileLock;
pub(crate) use flock::Flock;
pub(crate) use memcached::Memcached;
pub(crate) use mux::Mux;
pub(crate) use raw::Raw;
pub(crate) use redis::Redis;
pub(crate) use tokio_mutex::TokioMutex;
pub(crate) use zookeeper::ZooKeeper;

/// The requests to a server. Replies come in the order of the requests.
pub(crate) trait Dialect: Sized + Send + Sync + 'static {
    /// The data that a release needs.
    type Held: Send + Sync + 'static;

    /// The scheme of its URLs, before `//host:port`.
    const SCHEME: &str;

    /// Returns the first request on a connection.
    fn greeting() -> Vec<u8>;

    /// Reads the reply to the greeting; `None` if the server refuses.
    fn greeted(reply: &[u8]) -> Option<Self>;

    /// Returns the length of the reply that `bytes` begin with, or `None` if it is incomplete.
    fn length(bytes: &[u8]) -> Option<usize>;

    /// Returns the request, and the identity of its owner.
    fn acquire(&self, key: &str, ttl: Duration) -> (Vec<u8>, String);

    /// Reads the reply to an acquisition; `None` if the lock was not free.
    fn acquired(&self, key: &str, owner: String, reply: &[u8]) -> Option<Self::Held>;

    fn release(&self, held: &Self::Held) -> Vec<u8>;

    fn released(&self, reply: &[u8]) -> bool;
}

/// A connection to a server, which answers requests in their order.
pub(crate) trait Transport: Sized + Send + Sync + 'static {
    /// Connects to `host:port`. `length` is [`Dialect::length`].
    async fn connect(address: &str, length: Length) -> Result<Self, String>;

    fn ask(&self, request: &[u8]) -> impl Future<Output = Result<Vec<u8>, String>> + Send;
}

type Length = fn(&[u8]) -> Option<usize>;

/// A floor with a server.
pub(crate) struct Floor<T, D> {
    transport: T,
    dialect: D,
}

impl<T: Transport, D: Dialect> Floor<T, D> {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let transport = T::connect(address::<D>(url)?, D::length).await?;
        let reply = transport.ask(&D::greeting()).await?;
        let dialect = D::greeted(&reply).ok_or_else(|| refused(&reply))?;
        Ok(Self { transport, dialect })
    }
}

impl<T: Transport, D: Dialect> Lib for Floor<T, D> {
    type Lock = String;
    type Held = D::Held;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<D::Held, String> {
        let (request, owner) = self.dialect.acquire(key, ttl);
        let reply = self.transport.ask(&request).await?;
        self.dialect.acquired(key, owner, &reply).ok_or_else(|| refused(&reply))
    }

    async fn release(&self, held: D::Held) -> Result<(), String> {
        let reply = self.transport.ask(&self.dialect.release(&held)).await?;
        self.dialect.released(&reply).then_some(()).ok_or_else(|| refused(&reply))
    }
}

/// Returns `host:port` of `redis://host:port`, and the like.
fn address<D: Dialect>(url: &str) -> Result<&str, String> {
    let address = url.strip_prefix(D::SCHEME).and_then(|rest| rest.strip_prefix("://"));
    let address = address.map(|rest| rest.split('?').next().unwrap_or_default());
    address.ok_or_else(|| format!("this floor speaks to {}://host:port", D::SCHEME))
}

fn refused(reply: &[u8]) -> String {
    format!("the server answers {:?}", String::from_utf8_lossy(reply))
}

/// Returns 128 bits in hex, as much as an unguessable owner id needs.
pub(crate) fn random_owner() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// Returns the length of a first line, with its end.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n').map(|at| at + 1)
}
