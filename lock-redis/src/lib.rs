//! Locks on a Redis server: leases, fencing tokens, waiters that are woken.
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
//! # What is not promised
//!
//! * **One server, and what it keeps.** A lock is as durable as the server's memory. A replica that
//!   takes over may not know the locks that were given last, and a server that restarts without its
//!   data knows none: then a second holder gets in while the first still believes. The first is told
//!   by its next renewal, and its tokens are the lower ones: a resource that checks them is right all
//!   the same. No setting of the server changes that; `WAIT` and `appendfsync always` make it rarer.
//! * **The server's clock.** It ends the leases. Set forward, it ends them early; set back, late, and it
//!   brings back those that had ended from a file. Run it with a time service that slews. Who meets a
//!   lock of ours that is taken for longer than [`Config::max_ttl`], or any without an end, warns of it
//!   by `tracing`, once, and names it.
//! * **Eviction.** A server that may throw keys away throws locks away: set `maxmemory-policy` to
//!   `noeviction`. Anything else is warned about when connecting. At the memory limit of such a server
//!   no new lock is given, and those that are held can be renewed and released.
//! * **Tokens are [`Fencing::Seeded`]**: each is above the one before, and at least the server's clock
//!   in microseconds. They go back only if the server loses its data *and* its clock is set back, or
//!   if the clock of a successor is behind by more than the gap between two grants.
//! * **No order among processes.** All are woken by a release, and who asks first wins. Inside one
//!   process, a locker serves first come, first served.
//! * **By force.** Whoever deletes the key of a lock of ours by hand lets others in; the holder is told
//!   by its next renewal, and that renewal wakes the waiters. [`break_lock`] wakes them at once.
//! * **Clusters** are refused. All keys of one lock are in one slot already.
//!
//! # What is promised
//!
//! An attempt, a renewal of up to 64 locks, and a release are one round trip each, in one script each,
//! that does all or nothing. A verb that is repeated, late or unanswered harms nobody: attempts and
//! releases are those of one owner id, a renewal never re-creates, adopts or shortens, and an attempt
//! that arrives up to a minute after its release is refused. The bound for taking over after a crash
//! is the rest of the lease and 50 ms.
//!
//! Waiting costs nothing but a look per lease: the server tells of the release by [client-side
//! caching]. Renewals wake nobody. A server that does not do that for us (older than 6, or without the
//! right) is looked at after pauses of 5 to 100 ms instead; [`Capabilities::wakeup`] says which. The
//! server must be Redis 5 or newer, or one that behaves like it. It is tested with Redis 7.0.
//!
//! One connection serves all locks of a [`Redis`] and its clones. It is made anew when it breaks, at
//! the next need, after 10 to 200 ms if that fails; a server that is down is an error at once and not
//! a wait.
//!
//! # Keys
//!
//! | key | value | expires |
//! |---|---|---|
//! | `<prefix><name>` | `<owner id> <number>[ <label>]`, with `-` before it during a minimum hold | with the lease |
//! | `{<prefix><name>}%fence` | the number of the last token | ten minutes after the lock |
//! | `{<prefix><name>}%gone:<owner id>` | empty: this owner was let go | after a minute |
//!
//! The key of a name of ASCII letters, digits and punctuation (but `%`) is the name itself, and a key
//! with any string in it is held. So everyone who locks by `SET <key> … NX PX …` and unlocks by
//! compare-and-delete excludes us and is excluded: redis-py, redsync, rslock, node-redlock, Laravel,
//! Spring, and the [pattern in the documentation of `SET`][SET]. Of a foreign holder nothing is shown
//! but the end of its lease. Every other character is escaped, see [`Encoding`]; a name with a
//! hash tag of its own has no braces put around it.
//!
//! # Rights
//!
//! The least that a user needs, here with the prefix `app:` (the braces are the fence's and the
//! tombstone's):
//!
//! ```text
//! ACL SETUSER locks on >password resetkeys ~app:* ~{app:* resetchannels -@all
//!     +info +client|tracking +client|caching +script|load +evalsha
//!     +get +exists +pttl +time +set +pexpire +del
//! ```
//!
//! With a database other than 0, `+select` too. Without `+info` there is no warning about eviction and
//! no [`identity`], without the two of `client` there are no signals; anything else that is missing is
//! named when connecting. An owner id is the right to unlock, and whoever may read the keys can read it.
//!
//! # Encryption
//!
//! With the Cargo feature `tls`, `rediss://` encrypts, and there is no way around it: the certificate
//! of the server and the name or address in it are always checked, and nothing is ever sent in the
//! clear instead. Authorities are those of the system, or those that the option `ca` names; with `cert`
//! and `key` we show a server who we are that asks its clients (`tls-auth-clients yes`, its default):
//!
//! ```text
//! rediss://redis.example.com?ca=/etc/app/ca.pem&cert=/etc/app/client.pem&key=/etc/app/client.key
//! ```
//!
//! The files are read whenever a connection is made, so certificates can be replaced while programs
//! run; connections that exist go on with the old ones. What is wrong with a file fails
//! [`Redis::connect`] before the server is asked. Later it is an outage like others: put the file right,
//! and the next attempt finds it. Replace a certificate and its key such that no one sees half of it
//! for long, by renaming.
//!
//! The cryptography is that of the process' default provider for `rustls`. If there is none when the
//! first encrypted connection is made, aws-lc-rs becomes it: a program that wants another one installs
//! it before.
//!
//! # Sources
//!
//! The lock pattern of [`SET`][SET], and the [distributed locks] of the Redis documentation for the
//! arguments; [client-side caching] for the signals, in its opt-in mode.
//!
//! [SET]: https://redis.io/docs/latest/commands/set/
//! [distributed locks]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [client-side caching]: https://redis.io/docs/latest/develop/reference/client-side-caching/
//! [`break_lock`]: lock_core::Locker::break_lock
//! [`identity`]: lock_core::Locker::identity
//! [`Encoding`]: lock_core::Encoding
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded
//! [`Capabilities::wakeup`]: lock_core::Capabilities::wakeup

mod backend;
mod config;
mod fault;
mod keys;
mod link;
mod scripts;
#[cfg(feature = "tls")]
mod tls;
mod value;
mod waiters;

pub use backend::Redis;
pub use config::Config;
