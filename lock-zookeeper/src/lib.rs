//! Locks on a ZooKeeper ensemble: fair queues, durable fencing tokens, leases that hold.
//!
//! # What is not promised
//!
//! * **Leases shorter than the session.** After a crash the server keeps the lock for the session
//!   timeout and one tick, whatever the ttl. The ttl only bounds how long a holder without a
//!   renewal treats the lock as held.
//! * **Detached locks.** No other client can take over a session: they are refused.
//! * **More than 2³¹ queue numbers.** They start again when the empty node of the lock is removed.
//!   Claims are refused from one million before the end on, until that node is deleted.
//! * **Exclusion with other recipes on the same path.** Curator's semaphores, read-write lock and
//!   `LeaderLatch` and kazoo's `Semaphore` do not exclude ours. Where their nodes come first, a
//!   claim of ours is an error.
//! * **Names of more than 200 bytes in `list`**: they end in a digest.
//!
//! Four assumptions: clocks run at one rate to a hundredth, a tick is at most half the session
//! timeout, no member grants less than a fifth of the first timeout, and a lost reconnect arrives
//! within 1.5 of it.
//!
//! # Guarantees
//!
//! * **First come, first served** among all clients, in the order of their nodes.
//! * **Tokens are [`Fencing::Durable`]**: the transaction that made the holder's node. A majority
//!   logged it before the grant.
//! * **The holder stops before another client is granted the lock**, also if its member is cut off
//!   from the leader and goes on answering, or if the leader stalls. Heartbeat writes show that the
//!   session lives.
//! * **A deleted node** notifies its waiter or holder at once. (A holder of a lock that was free:
//!   once it has been held for a tenth of a second.)
//! * **Residue is removed.** The client finds its nodes by random ids, and the server removes them
//!   at the end of the session.
//! * **A release wakes two waiters**, however many there are.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! use lock_core::Locker;
//! use lock_zookeeper::ZooKeeper;
//!
//! let locks = Locker::new(ZooKeeper::connect("zookeeper://zk1,zk2,zk3/app").await?);
//! let guard = locks.lock("orders/42")?.acquire().await?;
//! let token = guard.fencing_token(); // for a resource that checks it
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! # URL and options
//!
//! `zookeeper://[user:password@]host[:port],…[/chroot]`, or `zookeeper+tls://…` with the feature
//! `tls`. Options: `prefix`, `session_timeout`, `layout`, and `ca`, `cert` and `key` for TLS; see
//! [`Config`]. The least version is ZooKeeper 3.5. Without credentials in the URL every client can
//! delete the nodes.
//!
//! # Leases
//!
//! A lock belongs to the client's session. Choose a session timeout of four ticks or more: 8 s
//! where `tickTime` is 2000. Commits may take up to a tenth of it. At two ticks, a leader that
//! stalls and commits late can end a lock before its holder stops.
//!
//! # Errors
//!
//! A session that ends loses all its locks at once: the guards are notified, and the next attempt
//! has a new session. A waiter whose node an operator deleted, and a queue that contains other
//! nodes, is [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid). A refused TLS handshake looks
//! like an unreachable server; the debug log of the client crate has the reason.
//!
//! # More in the repository
//!
//! `docs/protocol/zookeeper.md` has the nodes, the requests, the rule of the heartbeat writes,
//! other libraries, TLS on the servers, and their settings.
//!
//! Sources: the lock [recipe] of ZooKeeper's documentation, with Curator's protected names;
//! `docs/design/zookeeper.md` has the reasons for the heartbeat writes.
//!
//! [recipe]: https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks
//! [`Fencing::Durable`]: lock_core::Fencing::Durable

mod backend;
mod config;
mod diagnose;
mod fault;
mod forget;
#[cfg(feature = "__fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod names;
mod session;
#[cfg(feature = "tls")]
mod tls;
mod value;
mod verbs;

pub use backend::ZooKeeper;
pub use config::Config;
pub use diagnose::diagnose;
pub use forget::forget;
pub use names::Layout;
