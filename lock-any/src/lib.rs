//! Locks on any backend, chosen by Cargo feature and URL.
//!
//! No lock can stop a paused holder's write that is past its last check. A resource that checks
//! [`FencingToken`]s can. Each backend's page states its other limits; [`Locker::require`] demands
//! grades.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let locks = lock_any::connect("memory:").await?;
//! let lock = locks.lock("orders/42")?;
//! let paid = lock.try_run(async |guard| pay_order(guard.require_token()?).await).await?;
//! if paid.is_none() {
//!     println!("another process pays this order");
//! }
//! # Ok(()) }
//! # async fn pay_order(_: lock_any::FencingToken) -> Result<(), lock_any::Error> { Ok(()) }
//! ```
//!
//! A program has one [`Locker`] for each URL, and clones it. [`Lock::run`] waits for the lock, and
//! [`Lock::try_run`] does not; [`Lock::acquire`] returns a [`LockGuard`]. [`connect`] fails if no
//! server answers; after that, the backend reconnects by itself.
//!
//! * **Errors.** Contention is `None`, never an error. Decide on [`Error::kind`]; [`Error::effect`]
//!   says whether a request may have been applied, and [`Error::is_retryable`] whether it may
//!   succeed later.
//! * **Losses.** [`LockGuard::run`] drops its work at a loss. [`LockGuard::loss_signal`] and
//!   [`LockGuard::is_held`] are for work that must stop by itself.
//! * **Shutdown.** Await [`Locker::close`], so that releases are sent before the process ends. A
//!   dropped future or guard leaves no lock behind while the process runs.
//! * **Tests.** Code that takes a [`Locker`] is tested with `Locker::new(Memory::new())`: a lock
//!   space of its own for each test, without a server.
//! * **Observability.** Spans and events of `tracing`; metrics with the feature `metrics`. Neither
//!   has owner ids or credentials. `docs/observability.md` in the repository lists them.
//!
//! # URLs
//!
//! | URL | backend | feature |
//! |---|---|---|
//! | `memory:` | the tasks of this process; one lock space per process | always there |
//! | `file:`, `file:///dir` | the processes of this user on this host | `file` (default) |
//! | `file:///dir?share=group` | the users in the group of `/dir` on this host | `file` (default) |
//! | `redis://[user:password@]host[:port][/database]` | a Redis server | `redis` |
//! | `redis+unix:///path` | the same, through a socket; `db`, `user`, `password` | `redis` |
//! | `redis+sentinel://[user:password@]host[:port],…/name[/database]` | the primary that Redis Sentinel names; `sentinel_user`, `sentinel_password` | `redis` |
//! | `redis+cluster://[user:password@]host[:port],…` | a Redis Cluster, by some of its members | `redis` |
//! | `rediss://…`, `rediss+sentinel://…`, `rediss+cluster://…` | encrypted; `ca`, `cert`, `key` | `redis`, `tls` |
//! | `zookeeper://[user:password@]host[:port],…[/chroot]` | a ZooKeeper ensemble | `zookeeper` |
//! | `zookeeper+tls://…` | encrypted; `ca` (needed), `cert`, `key` | `zookeeper`, `tls` |
//! | `memcache://[user:password@]host[:port],…` | memcached servers; advisory | `memcache` |
//! | `quorum:?member=<URL>&member=<URL>&…` | a majority of these; `redlock` makes one from URLs | `quorum` |
//!
//! # Options
//!
//! `?name=value&name=value`, with durations like `500ms`, `30s` or `2h`. Unknown options are
//! errors.
//!
//! | option | backends | meaning |
//! |---|---|---|
//! | `ttl`, `max_ttl` | all | the default lease, and the longest one |
//! | `timeout` | all | the time limit of one call |
//! | `outage_timeout` | all | the longest outage that a waiter survives |
//! | `label` | all | the text that `inspect` shows for a holder |
//! | `handovers` | all | [hand-overs inside this process](LockerBuilder::local_handovers) in a row, at most 255 |
//! | `private` | memory | `yes`: a lock space of its own for each connection, as in tests |
//! | `prefix` | Redis, memcached, ZooKeeper | the beginning of every key, ending in `:` or `/`; for ZooKeeper a path that ends in `/` |
//! | `order` | Redis | `fifo`, or `any` for a race |
//! | `names` | Redis | `exact` stores names byte for byte, as other libraries do, with any prefix |
//! | `polling_share` | Redis | how long a release leaves the lock free now and then, for clients that poll; then nothing is handed over inside a process |
//! | `min_replicas`, `min_replicas_timeout` | Redis | the replicas that must acknowledge a lock, and the time limit for that |
//! | `session_timeout`, `layout` | ZooKeeper | the session's timeout; the layout of the nodes |
//! | `member_timeout`, `restarts` | quorum | the time limit of one member; `remember` trusts members to keep locks over a restart |
//!
//! Members of a `quorum:` are an odd number of independent servers, in the same order for all
//! clients, and percent-encoded where they have options:
//! `quorum:?member=redis://a&member=redis://b&member=rediss://c%3Fca%3D/etc/app/ca.pem`. Options of
//! all backends stand in the quorum's URL. With `restarts=forget`, the default, no lease is longer
//! than `max_ttl` (one minute unless set), and a member counts once it has run for that long.
//!
//! `ca`, `cert` and `key` name PEM files, read for each connection. `rediss:` without `ca` uses the
//! authorities of the system:
//! `rediss://redis.example.com?ca=/etc/app/ca.pem&cert=/etc/app/client.pem&key=/etc/app/client.key`
//!
//! [`diagnose()`] checks the guarantees of the servers of a URL. `redis::Redis::from_client`
//! (feature `redis-1`) takes the settings of your Redis client. In the repository:
//! `docs/{backends,doctor,coming-from,recipes}.md`; `docs/protocol/` for other languages.

mod backends;
mod diagnose;
#[cfg(feature = "__fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod options;
#[cfg(feature = "quorum")]
mod quorum_url;
mod round_trip;
mod servers;

/// Compiles the programs on the page.
#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from.md")]
struct ComingFrom;

use std::time::Duration;

pub use diagnose::{diagnose, diagnose_while};
pub use lock_core::*;
#[cfg(feature = "file")]
pub use lock_file as file;
#[cfg(feature = "memcache")]
pub use lock_memcache as memcache;
#[cfg(feature = "quorum")]
pub use lock_quorum as quorum;
#[cfg(feature = "redis")]
pub use lock_redis as redis;
#[cfg(feature = "zookeeper")]
pub use lock_zookeeper as zookeeper;
#[cfg(feature = "quorum")]
pub use quorum_url::redlock;

use backends::{KNOWN, unknown_backend};
use lock_core::url::Url;
use options::CommonOptions;

/// Connects to the backend that `url` names.
///
/// # Errors
///
/// * [`ErrorKind::Invalid`] if the URL or one of its options cannot be understood, before any I/O.
/// * [`ErrorKind::Unsupported`] if its scheme needs a Cargo feature that is off, before any I/O.
/// * Any other kind is the backend's. No error repeats the URL, which may hold a password.
///
/// # Cancel safety
///
/// Dropping the future gives the attempt up.
pub async fn connect(url: &str) -> Result<Locker, Error> {
    connect_with(url, |builder| builder).await
}

/// Connects like [`connect`], with defaults of the program. The options of the URL override the
/// settings that `defaults` makes.
///
/// # Errors
///
/// As [`connect`].
///
/// # Cancel safety
///
/// As [`connect`].
pub async fn connect_with(
    url: &str,
    defaults: impl FnOnce(LockerBuilder) -> LockerBuilder,
) -> Result<Locker, Error> {
    let (url, common) = parse(url)?;
    let builder = open(url, common.max_ttl()).await.map_err(|error| with_causes(&error))?;
    Ok(common.apply(defaults(builder)).build())
}

/// Puts the causes into the text: often it is all that is logged.
fn with_causes(error: &Error) -> Error {
    Error::new(error.kind(), format!("{error:#}"))
}

async fn open(url: Url, max_ttl: Option<Duration>) -> Result<LockerBuilder, Error> {
    match url.scheme() {
        #[cfg(feature = "quorum")]
        "quorum" => quorum_url::builder(url, max_ttl).await,
        #[cfg(not(feature = "quorum"))]
        "quorum" => Err(backends::feature_is_off("quorum", "quorum")),
        _ => backends::connect(url, max_ttl).await,
    }
}

/// Returns the default lease of locks of `url`, if its options `ttl` or `max_ttl` set one. No I/O.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if the URL or one of the options that every backend knows cannot be
/// understood.
pub fn ttl_of(url: &str) -> Result<Option<Duration>, Error> {
    Ok(parse(url)?.1.ttl())
}

/// Returns the beginning of every key of `url`, if its option `prefix` sets one that is not empty.
/// `None` also if the URL cannot be understood. No I/O.
#[must_use]
pub fn prefix_of(url: &str) -> Option<String> {
    let (mut url, _) = parse(url).ok()?;
    url.take("prefix").ok()?.filter(|prefix| !prefix.is_empty())
}

fn parse(url: &str) -> Result<(Url, CommonOptions), Error> {
    let mut url = Url::parse(url)?;
    if !KNOWN.iter().any(|known| known.strip_suffix(':') == Some(url.scheme())) {
        return Err(unknown_backend(url.scheme()));
    }
    let common = CommonOptions::take_from(&mut url)?;
    Ok((url, common))
}

/// Returns the directory in which the locks of a `file:` URL are, without touching it; `None` for
/// other backends, and if the URL cannot be understood.
#[cfg(feature = "file")]
#[must_use]
pub fn directory_of(url: &str) -> Option<std::path::PathBuf> {
    let (url, _) = parse(url).ok()?;
    if url.scheme() != "file" {
        return None;
    }
    let given = url.path().ok()?.map(std::path::PathBuf::from);
    Some(given.unwrap_or_else(lock_file::FileLocks::directory_of_this_user))
}
