//! Advisory locks on memcached: leases, fencing tokens, owner-checked release.
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
//! # What is not promised
//!
//! * **The locks are advisory** ([`Durability::Advisory`]). A cache may forget: a server drops held locks
//!   when it is restarted, when somebody flushes it, and, without `-M`, when it needs room. Then a second
//!   holder gets in while the first still believes. The first is told by its next renewal, a third of a lease
//!   away at most, and its tokens are the lower ones. Use such locks to save work, or check the tokens.
//! * **The server's ticks.** A server counts seconds, in ticks that its load makes late, and forgets the
//!   lease early by what they are late. A quarter of a second is allowed for. A server that stands still for
//!   longer (stopped, swapping, a virtual machine that is moved) may end leases early when it goes on,
//!   those that it has just acknowledged too; nothing in its answer shows it.
//! * **The server's clock.** Leases go by its monotonic clock: steps of its wall clock while it runs move
//!   neither leases nor tokens. If the monotonic clock is stepped forward, as it may be where a virtual machine is
//!   resumed, leases end early by as much; if it is stepped back, the server counts no seconds until it has caught
//!   up, so that leases end late. A rate that is wrong by a hundredth is allowed for.
//! * **Tokens are [`Fencing::Seeded`]**: drawn from a counter on the server, which is begun anew from the
//!   server's clock when it was lost, in its next second. A server that is restarted within four seconds
//!   after its counter was begun may draw numbers again: its clock is not that exact. So may one whose clock
//!   was set back, or whose counter is lost twice while one request to begin it is under way, for up to
//!   three seconds. Numbers that the server gives to what it stores (CAS) are no tokens: they begin anew
//!   with each process.
//! * **No order among processes**, and no signals: waiters look. Inside one process, a locker serves
//!   first come, first served.
//! * **An attempt that arrives late** takes the lock if it is free. While the connection lives, its release
//!   arrives after it; if it was lost, and the request was not, the lock stays shut for a lease, or until its
//!   owner renews or releases. It is never taken for the grant of another attempt.
//! * **No minimum hold on the server**: a process that holds a lock for a minimum time stays for it.
//! * **No encryption, no SASL.** A server that was started with `-Y` is told user and password as
//!   `memcache://user:password@host`, in the clear. Whoever reaches the port can do everything: keep it inside.
//! * **No replication, no proxies** (mcrouter, twemproxy): a connection must lead to one server process.
//!
//! # What is promised
//!
//! A pair of acquire and release is two round trips: `add`, a look and a draw in one write; then a delete
//! by compare-and-swap. Renewals and releases never touch what is not their owner's, not even for a moment:
//! they compare the CAS number, and, where that is not known on this connection, the owner first. A foreign
//! `touch`, or a `set` of the same value, is no loss. Renewals never shorten a lease.
//!
//! A grant is of one attempt, which stands in the value. An attempt of the same owner that was under way for long
//! may take the lock after it was flushed, broken or lapsed: then the holder's next renewal finds out, ends it
//! and tells of the loss, instead of taking it for its own. Who knows nothing but the owner id of a detached lock
//! goes by the number of the token, which a late attempt does not have: so a detachable lock is taken in three
//! round trips, the last of which writes the number.
//!
//! The holder gives up before the server does, at whatever moment of the server's second the lock was
//! taken: a lease of `L` is asked for as the next whole second after `L` + 250 ms, and two more, of which
//! the server may take two off. So a lock whose holder has crashed is free at most 3.25 s after its lease,
//! and a waiter has it a look later.
//!
//! One connection to each server serves all locks of a [`Memcached`] and its clones. It is made anew when it
//! breaks, says what no memcached says, or leaves a request without answer for 5 s: at the next need, and
//! after 10 to 200 ms if that fails.
//!
//! Whoever waits looks after 1 ms, then 2, and so on up to 25 to 35 ms: one waiter of each name for all
//! lockers on clones of one [`Memcached`], so some 33 requests of a few bytes in a second, name and process.
//! A lock that is released is found 15 ms later on average.
//!
//! # The server
//!
//! Memcached 1.6 or newer, for its meta commands; tested with 1.6.18. Give it nothing to do but locks.
//!
//! | setting | for locks |
//! |---|---|
//! | `-M` | at the memory limit no new lock is given, and those that are held can be renewed and released. Without it, whatever was not used for longest is thrown away, and locks with it; that is warned about when connecting, and again if it has happened before |
//! | `-m` | a lock takes about 100 bytes plus its name, until it lapses. Memory belongs to sizes (slabs): a server that is full of things of another size has no room for locks |
//! | `-C` | refused: without CAS numbers no lock can be let go safely |
//! | `-F` | flushing is off: one way less to lose all locks |
//! | `-c` | connections: one for each client process |
//!
//! **At the memory limit** a server that refuses the newer `ms` deletes what stands under the key, whatever
//! its mode (seen with 1.6.18): a client that locks with `ms … ME` frees the lock of somebody else by
//! failing. So this backend uses `add` and `cas`; others that share the keys should, too.
//!
//! **Several servers** share the names, each by the digest of server and key. No lock is on two servers, so
//! a server that is down takes its share of the locks with it, and nothing replaces it; the locks of the
//! others can be had, also by a client that connects meanwhile. All clients must
//! write the same servers in the same way (`localhost` is not `127.0.0.1`), in any order. Adding, removing or
//! renaming one moves locks: stop all clients before.
//!
//! # Keys
//!
//! | key | value | expires |
//! |---|---|---|
//! | `<prefix><name>` | `<owner id> <attempt> <number>[ <label>]`; the number of the token is `-` until the first renewal, but for detached locks | with the lease, see above |
//! | `<prefix>%fence` | the number of the last token | thirty days after the last draw |
//! | `%server` | what [`identity`] tells; nothing once the server has been flushed | never |
//!
//! `stats reset` hides a flush from [`identity`]: where a memcached is a member of a quorum, restart it
//! in place of a flush.
//!
//! The key of a name of printable ASCII but `%` is the name itself. Every other character is escaped, the
//! one that ends the prefix too, and a key of more than 200 bytes ends in a digest: see [`Encoding`]. So
//! nothing that a name holds ends a key or a command. An owner id is the right to unlock, and whoever may
//! read the keys can read it.
//!
//! # Other libraries
//!
//! Who takes a lock by `add` on the same key of the same server excludes us and is excluded: tested with
//! pymemcache. Sherlock, Laravel and tooz do the same under keys of their own making (their source). Most of
//! them release by `get`, compare and `delete`: a holder of theirs that is late can free a lock of ours in
//! between. Only we have fencing tokens, and a lock of theirs may have no end. Libraries that spread keys over
//! several servers do it in other ways: mix fleets on one server only.
//!
//! # Sources
//!
//! The [protocol] of memcached, basic and meta commands; the arguments for tokens as in [`lock_core`].
//!
//! [protocol]: https://github.com/memcached/memcached/blob/master/doc/protocol.txt
//! [`Durability::Advisory`]: lock_core::Durability::Advisory
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded
//! [`identity`]: lock_core::Locker::identity
//! [`Encoding`]: lock_core::Encoding

mod backend;
mod config;
mod fault;
mod fence;
mod holds;
mod keys;
mod link;
mod value;
mod waiters;
mod wire;

pub use backend::Memcached;
pub use config::Config;
