//! Floors: the same work, written by hand without any library of ours, and without what makes a lock a
//! good one. They wait for nobody, handle no errors and show what is reachable.
//!
//! Those that ask a server are put together from what is said (`redis.rs` and so on) and how it gets there:
//! one exchange after the other (`raw.rs`), or many at once on one socket (`mux.rs`).

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

/// What is said to a server. Replies come in the order of the requests.
pub(crate) trait Dialect: Sized + Send + Sync + 'static {
    /// What a release needs to know.
    type Held: Send + Sync + 'static;

    /// What its URLs begin with, before `//host:port`.
    const SCHEME: &str;

    /// The first request on a connection.
    fn greeting() -> Vec<u8>;

    /// What its reply says; `None` if the server refuses.
    fn greeted(reply: &[u8]) -> Option<Self>;

    /// How long the reply is that `bytes` begin with; `None` if it is not there as a whole.
    fn length(bytes: &[u8]) -> Option<usize>;

    /// The request, and what identifies its owner.
    fn acquire(&self, key: &str, ttl: Duration) -> (Vec<u8>, String);

    /// `None` if the lock was not free.
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

/// A floor that asks a server.
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

/// `host:port` of `redis://host:port`, and the like.
fn address<D: Dialect>(url: &str) -> Result<&str, String> {
    let address = url.strip_prefix(D::SCHEME).and_then(|rest| rest.strip_prefix("://"));
    let address = address.map(|rest| rest.split('?').next().unwrap_or_default());
    address.ok_or_else(|| format!("this floor speaks to {}://host:port", D::SCHEME))
}

fn refused(reply: &[u8]) -> String {
    format!("the server answers {:?}", String::from_utf8_lossy(reply))
}

/// 128 bits in hex, as much as an owner id that nobody guesses needs.
pub(crate) fn random_owner() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// The length of a first line, its end included.
fn line(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == b'\n').map(|at| at + 1)
}
