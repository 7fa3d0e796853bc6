//! Advisory locks on memcached: leases, fencing tokens, owner-checked release.
//!
//! # What is not promised
//!
//! * **The locks are advisory** ([`Durability::Advisory`]). A server drops held locks at a restart,
//!   at a flush, and, without `-M`, when it needs room. Then two holders are possible: the first is
//!   notified by its next renewal, a third of a lease away at most, and its tokens are the lower
//!   ones. Use such locks to save work, or check the tokens.
//! * **Leases on a server that stands still** (stopped, swapping, a virtual machine that is moved)
//!   may end early when it goes on. Late ticks of up to a quarter of a second are allowed for.
//! * **The server's clock.** Leases go by its monotonic clock. If that steps forward, leases end
//!   early by as much; if back, late. A rate that is wrong by a hundredth is allowed for.
//! * **Tokens are [`Fencing::Seeded`]**: a counter on the server, which starts from the server's
//!   clock when it is lost. A server that restarts within four seconds after its counter was
//!   started may repeat numbers. So may one whose clock was set back. If the counter is lost twice
//!   during one request that starts it, numbers may repeat for up to three seconds.
//! * **Order among processes**: waiters poll and race. Inside one process, a locker serves first
//!   come, first served.
//! * **Refusal of late attempts.** One takes the lock if it is free, and it stays unavailable for a
//!   lease if its connection was lost. It never counts as the grant of another attempt.
//! * **A minimum hold on the server**: a process stays for it.
//! * **Encryption, SASL, replication, proxies** (mcrouter, twemproxy). A connection must lead to
//!   one server process. Credentials go in the clear, and every client that reaches the port can do
//!   everything.
//!
//! # Guarantees
//!
//! Acquire and release are one round trip each. Renewals and releases compare the CAS number or the
//! owner, and never touch another holder's value. Renewals never shorten a lease. A crashed
//! holder's lock is free at most 3.25 s after its lease. A waiter costs some 33 small requests a
//! second for each name and process, and finds a released lock 15 ms later on average.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! use lock_core::Locker;
//! use lock_memcache::Memcached;
//!
//! let locks = Locker::new(Memcached::connect("memcache://127.0.0.1").await?);
//! let guard = locks.lock("orders/42")?.acquire().await?;
//! let token = guard.fencing_token(); // for a resource that checks it
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! # URL and options
//!
//! `memcache://[user:password@]host[:port],…?prefix=app:`; see [`Config`]. Memcached 1.6 or newer,
//! tested with 1.6.18, started with `-M`. Several servers share the names; all clients must list
//! the same ones in the same spelling.
//!
//! # Errors
//!
//! A server that is down is [`ErrorKind::Unavailable`] for its share of the locks. A server that
//! was started with `-C` is [`ErrorKind::Unsupported`].
//!
//! # More in the repository
//!
//! `docs/protocol/memcache.md` has the keys, the commands, other libraries and the server settings.
//!
//! Sources: the [protocol] of memcached, basic and meta commands.
//!
//! [protocol]: https://github.com/memcached/memcached/blob/master/doc/protocol.txt
//! [`Durability::Advisory`]: lock_core::Durability::Advisory
//! [`ErrorKind::Unavailable`]: lock_core::ErrorKind::Unavailable
//! [`ErrorKind::Unsupported`]: lock_core::ErrorKind::Unsupported
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded

mod backend;
mod client;
mod config;
mod connection;
mod diagnose;
mod fault;
#[cfg(feature = "__fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod holds;
mod keys;
mod lease;
mod stored;
mod token_counter;
mod value;
mod verbs;
mod waiters;

pub use backend::Memcached;
pub use config::Config;
pub use diagnose::diagnose;
