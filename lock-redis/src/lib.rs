//! Locks on a Redis server or in a cluster: leases, fencing tokens, waiters in order of arrival.
//!
//! # What is not promised
//!
//! * **More than the server keeps.** A replica that takes over may not know the last grants, and a
//!   server that restarts without its data knows none. Then two holders are possible: the first is
//!   notified by its next renewal, and its tokens are the lower ones. `min_replicas` and
//!   `appendfsync always` make it rarer.
//! * **Exclusion if the server's clock steps**, or runs more than 1 % fast: it ends the leases. A
//!   lock that is held for longer than [`Config::max_ttl`] or without an end is warned about once.
//! * **Exclusion under eviction.** Set `maxmemory-policy` to `noeviction`. At the memory limit of
//!   such a server no free lock is granted; held ones are renewed, released and passed along the
//!   queue.
//! * **[`Fencing::Seeded`] tokens** go back only if the clock is set back *and* the counter is
//!   lost, or if the clock of a successor is behind by more than the gap between two grants.
//! * **Order**, when the queue is lost on the server. The protocol page lists the cases.
//! * **Exclusion after a removal by hand.** The holder is notified by its next renewal.
//! * **Databases.** `SWAPDB` removes all locks, and two holders are possible until the next
//!   renewal. With `order=any`, the same name in another database makes waiters poll needlessly.
//!
//! Replicas are refused when connecting, and so are members of a cluster under a `redis:` URL.
//!
//! # Guarantees
//!
//! An attempt, a release, and usually a renewal of up to 64 locks are one round trip and one script
//! each. Repeated, late and unanswered verbs harm no newer holder: each carries its owner id, a
//! renewal never creates, adopts or shortens, and an attempt up to a minute after its release is
//! refused. A crashed holder is replaced after the rest of its lease and 50 ms. The release grants
//! the lock to the next waiter itself, so a hand-off is one round trip.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! use lock_core::Locker;
//! use lock_redis::Redis;
//!
//! let locks = Locker::new(Redis::connect("redis://127.0.0.1").await?);
//! let guard = locks.lock("orders/42")?.acquire().await?;
//! let token = guard.fencing_token(); // for a resource that checks it
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! # URL and options
//!
//! `redis://`, `rediss://` (feature `tls`), `redis+unix://`, `redis+sentinel://` and
//! `redis+cluster://`. Options: `prefix`, `names`, `max_ttl`, `order`, `polling_share`,
//! `min_replicas`; [`Config::new`] has the rest. The server is Redis 6 or newer; 5 with `order=any`
//! or without an `order`.
//!
//! `Redis::from_client` (feature `redis-1`) takes the settings of your client of the crate `redis`.
//! [`Config::connector`] opens streams through a tunnel. The locks' connection is their own.
//!
//! # Errors and rights
//!
//! A server that is down, a replica and a slot that is moved are [`ErrorKind::Unavailable`]. A
//! missing right is [`ErrorKind::Denied`]. A key of another type without an expiry is
//! [`ErrorKind::Invalid`]. The least that a user needs, here with the prefix `app:`:
//!
//! ```text
//! ACL SETUSER locks on >password resetkeys ~app:* ~{app:* resetchannels &app:* -@all
//!     +info +client|tracking +client|caching +script|load +evalsha
//!     +getrange +exists +pttl +time +set +incrby +pexpire +del
//!     +zadd +zrange +zscore +zcard +zrem +zremrangebyscore +publish +subscribe
//! ```
//!
//! A list of locks also needs `+scan +dbsize`. It looks at each key of the server, at a million at
//! most, and needs Redis 6.
//!
//! # More in the repository
//!
//! * `docs/protocol/redis.md`: keys, values, messages, commands, other libraries, rights, server
//!   settings.
//! * `docs/protocol/redis-topologies.md`: Sentinel, clusters, replicas, services, encryption.
//! * `docs/doctor.md`: the checks of [`diagnose()`].
//!
//! Sources: the lock pattern of [`SET`](https://redis.io/docs/latest/commands/set/), the
//! [distributed locks] of the Redis documentation, and client-side caching for `order=any`.
//!
//! [distributed locks]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [`ErrorKind::Denied`]: lock_core::ErrorKind::Denied
//! [`ErrorKind::Invalid`]: lock_core::ErrorKind::Invalid
//! [`ErrorKind::Unavailable`]: lock_core::ErrorKind::Unavailable
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded

mod backend;
mod clock;
mod config;
mod connection;
mod connector;
mod diagnose;
mod fault;
mod forget;
#[cfg(feature = "__fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod limits;
mod owners;
mod queue;
mod recent;
#[cfg(feature = "redis-1")]
mod redis_client;
mod scripts;
mod signal_waiters;
mod slots;
mod topology;
mod value;
mod verbs;
mod warned;

pub use backend::Redis;
pub use config::Config;
pub use connector::{Connector, ServerAddress};
pub use diagnose::diagnose;
pub use forget::forget;
pub use keys::Names;
