//! Locks on a majority of independent backends: Redlock, with fencing tokens.
//!
//! An odd number of backends of any kind is itself a backend, such as three or five Redis servers
//! without replication.
//!
//! # What is not promised
//!
//! * **More than the members.** A quorum declares the weakest of them in each respect: with a
//!   memcached it is advisory, with a file it excludes the processes of one host. One member
//!   without `Capabilities::min_token_supported` (ZooKeeper) makes the tokens `None`.
//! * **Exclusion if a member forgets acknowledged data**, by a restart, an eviction, a flush or a
//!   failover: a lock may be on a bare majority. A restarted member is not counted before the
//!   [longest lease] is over. An eviction is not seen: set `noeviction` (`-M`), and no replicas
//!   behind the members.
//! * **Exclusion if a member's clock steps**, or runs more than one per cent too fast.
//! * **Order.** Waiters queue at one member, but a majority decides: a failure, or a claim that
//!   does not wait, may change the order. Inside one process, a locker serves first come, first
//!   served.
//! * **Independence.** Servers on one machine fail together.
//! * **Exclusion while an address leads to a server that is no member.** A promoted replica is
//!   another server, too. A proxy must lead each connection to one server.
//!
//! All clients list the same members in the same order, with the same longest lease. Members are
//! added or replaced while no lock is held.
//!
//! # Guarantees
//!
//! * A majority of the configured members votes for each grant, and a vote belongs to a server, not
//!   to its address.
//! * The lease is the common part of the majority's leases, counted from before the first request.
//! * A missed majority is given back at all members. A renewal needs a majority that held all the
//!   time.
//! * Tokens grow across majorities: two majorities share a member, which remembers the higher
//!   number.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! use lock_core::{Locker, Memory};
//! use lock_quorum::Quorum;
//!
//! // They stand for servers: Redis::connect("redis://a").await?, …
//! let (a, b, c) = (Memory::new(), Memory::new(), Memory::new());
//! let quorum = Quorum::builder().member(a).member(b).member(c);
//! let locks = Locker::new(quorum.members_remember().build().await?);
//! let guard = locks.lock("orders/42")?.acquire().await?;
//! let token = guard.fencing_token(); // for a resource that checks it
//! guard.release().await?;
//! # let _ = token; Ok(()) }
//! ```
//!
//! # Options
//!
//! [`member_timeout`] bounds one call of one member. [`members_remember`] trusts members to find
//! their locks again after a restart. By URL: `quorum:?member=…&member=…` of `lock-any`.
//!
//! # Errors
//!
//! Too few answers are a fault with the reasons of the members. A release that no majority
//! confirms, and a break beside a silent member, have an unknown outcome: inspect the lock.
//!
//! # More in the repository
//!
//! `docs/protocol/quorum.md` has the rules of votes, renewals and releases, and the proof that
//! tokens grow. `docs/redlock.md` discusses the critique of [Redlock].
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [`member_timeout`]: QuorumBuilder::member_timeout
//! [`members_remember`]: QuorumBuilder::members_remember
//! [longest lease]: QuorumBuilder::longest_lease

mod backend;
mod ballot;
mod calls;
mod capabilities;
mod claim;
mod config;
mod connection;
mod deferred;
mod deferred_task;
mod diagnose;
mod fault;
mod member;
mod quorum;
mod recent_names;
mod round;
mod server;
mod verbs;

pub use config::QuorumBuilder;
pub use quorum::Quorum;
