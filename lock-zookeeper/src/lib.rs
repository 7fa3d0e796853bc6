//! Locks on a ZooKeeper ensemble: fair queues, durable fencing tokens, leases that hold.
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
//! # What is promised
//!
//! * **First come, first served** among all clients, in the order in which the ensemble made their nodes.
//! * **A release wakes two waiters**, however many there are: the next one holds the lock when it hears of the
//!   release, and asks nobody; the one behind it looks who is before it now, unless that is a claim of the same
//!   client.
//! * **Tokens are [`Fencing::Durable`]**: the number of the transaction that made the holder's node. It was
//!   logged by a quorum before the lock was granted, and survives leaders, restarts, and the end of the
//!   lock's own node. One transaction makes one place in line.
//! * **The holder stops treating the lock as held before another client is granted it.** This also
//!   holds if the holder's member is cut off from its leader and goes on answering, and if the leader
//!   stalls. See below.
//! * **A waiter or a holder whose node is deleted by hand** is notified at once, by a watch (a lock
//!   that was free: once it is held for a tenth of a second). A waiter fails with
//!   [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid) and does not enter the queue again, so that
//!   an operator can remove it. After the end of its session a waiter does enter again, at the end.
//! * **Nothing is left behind.** A dropped future, a lost reply or a broken connection may leave a
//!   node in the queue. The client finds that node by the random id in its name and removes it while
//!   the session lives. At the end of the session the server removes it. A session whose connection
//!   is out of step is abandoned: it is closed as soon as no holder may rely on it any more, even if
//!   there is no new session yet. A client that is dropped without a connection leaves the end of its
//!   session to the server.
//!
//! # Leases
//!
//! A lock belongs to a session. With `T` the session timeout as the servers have granted it:
//!
//! | | |
//! |---|---|
//! | a crashed holder is replaced | after at most `T` and one tick |
//! | a holder that is cut off gives up | `T/3` to `T/2` after the cut, by how long ago the session was proven (slow commits: `T/6`; a young session: at most `0.98 T`) |
//! | and from then to the next grant it takes | `T/3` or longer (a young session: `T/50`) |
//!
//! The `ttl` of a lock bounds its lease from above: a holder that does not renew for that long stops
//! treating the lock as held. This is enforced by the client. After a crash the server keeps the lock
//! for the session timeout, whatever the ttl. Guards therefore often have less time left than their
//! ttl. Their deadline moves with each proof of the session, without a renewal. A renewal notices a
//! node that was deleted by hand. It is due after a third of the ttl, and costs one round trip for
//! all locks of a client.
//!
//! A lease is proven by a chain of committed no-ops, one every `T/8`. Pings prove nothing, and a
//! single commit does not either. A lease counts from the sending of the last proof that was
//! answered `T/3` before the sending of the last but one; a pause between two commits, in which the
//! leader may have stood still, is no part of that. Proofs cost the same whatever the number of
//! locks and waiters: `8/T` requests a second for each client, 0.8 with `T` = 10 s. The client
//! crate sends pings only when it has sent nothing for `0.15 T`. A new connection counts once a
//! proof has committed on it. It is assumed that a tick is at most `T/2`, which is the servers' own
//! default limit, and that clocks run at one rate to a hundredth.
//!
//! **A commit may take up to `T/10`**, with the way to the server and back. Then no lock is lost, and
//! a grant leaves more than a commit takes; up to `T/50` it leaves `T/4`. Where a commit takes
//! longer than `T/16`, each answer is followed by the next proof at once. [`ZooKeeper::connect`]
//! warns of commits that take more than `T/20`.
//!
//! **An idle client sends pings and nothing else**: when there was no claim for the time of `T`, it
//! sends no proofs, unless its commits take more than `T/40`. The next acquisition makes another
//! connection for the session, which costs three round trips more, and five with TLS.
//!
//! Members may have different limits for timeouts, as while they are restarted one by one with a
//! lower `maxSessionTimeout` or `tickTime`. The session then lives as long as the last connection
//! was granted. From the moment a reconnect may have reached a server, no lease counts beyond that
//! moment plus what was granted. `T` is from then on the least that was granted in this session: a
//! timeout that grows again counts in the next session. Less than was asked for is warned about.
//!
//! Where the answer to a reconnect is lost, a fifth of the session's first timeout counts from the
//! request on, until a proof commits on another connection. The lost request may still arrive, so
//! for `1.5 T` more that fifth counts from each proof. **It is assumed that no member grants less
//! than that fifth**, and that such a request arrives within `1.5 T` or not at all.
//!
//! A lock survives a connection that breaks if another one is made in time. A server that refuses
//! the connection costs nothing. One that takes it and does not answer leaves `T/5` from then on,
//! and each is tried for `T/10` at first, then for longer. So a deadline can move back: the guard
//! sees it at once, also in a process that was stopped meanwhile, and it moves forward again when
//! the session turns out to live on.
//!
//! Let `T` be four ticks or more: 8 s where `tickTime` is 2000, and 12 s where it is not set and so
//! is 3000. A model of the ensemble, in which everything may be late or stall, finds no overlap from
//! two ticks on. But at two ticks the leader's loop of pings may be late by no more than `T/12`
//! while the leader goes on committing, and at four ticks by `T/5`. A client is not told the tick.
//! But where the servers grant more than was asked for, that is their least, two ticks unless
//! `minSessionTimeout` is set, and a warning is traced.
//!
//! When a session expires, all its locks are lost at once, and the next attempt has a new one.
//!
//! # What is not promised
//!
//! * **Detached locks.** Nobody else can take a session over: they are refused.
//! * **The end of the numbers.** The queue of a lock has 2³¹ of them. They begin anew when the
//!   empty node of the lock is removed: the server does that by itself, with containers, after a
//!   minute or so. A node that never stands empty for so long comes to the end, where ZooKeeper
//!   gives every node the same number, 2 147 483 647. Claims are refused from one million numbers
//!   before the end on, also on a free lock, until the lock's node is deleted. Claims are also
//!   refused behind any node that has the last number. `inspect` then shows each node that may be
//!   the holder's.
//! * **Long queues.** A waiter reads the queue when it enters, 59 bytes for each node, and again when
//!   the second waiter before it leaves: 0.6 kB behind ten others, 59 kB behind a thousand, 0.6 MB
//!   behind ten thousand. This client reads lists of any length, and servers send them. Java clients
//!   in the same queue break their connection at their `jute.maxbuffer` (1 MB, some 17 700 nodes).
//! * **A session that the server replaces without saying so.** A server other than ZooKeeper may
//!   answer a reconnecting client with another session. If the server names the owner of a node that
//!   was created in a transaction (3.7.2, 3.8.2 and later), the next attempt notices the change.
//!   Otherwise it is noticed when a node of this client is watched: by a waiter at once, by a holder
//!   at its first renewal or after a tenth of a second.
//! * **Names of more than 200 bytes** end in a digest, and `list` does not show them.
//!
//! # Nodes
//!
//! `/<chroot>/<prefix>/<name>/_c_<uuid>-lock-<number>`, ephemeral and sequential, with `<owner id>[
//! <label>]` as data; the nodes above are containers. With `layout=kazoo` they are persistent,
//! because an object of kazoo fails when its path is removed: such a node stays until it is
//! deleted. A node that holds data is refused there. Names of ASCII letters, digits and punctuation
//! stay as they are, but for `%`, `/` and a leading dot, which are escaped. With credentials in the
//! URL every node belongs to that user alone. Without credentials, nodes belong to the world: every
//! client of the server can read owner ids and delete nodes. On a lock's node that another user
//! created, this client's user needs the rights to read, write, create and delete, because a claim
//! empties that node's data. Without the right to read the chroot (or `/`, if there is none) no
//! session is begun, because the client reads that node to prove that the session lives.
//!
//! A free lock is acquired by one request and released by another. A waiter sends four: it creates
//! its node, reads the queue, watches its own node, and deletes it. It sends up to three more if the
//! nodes before it belong to other processes: a watch on each of the two before, and a second read of
//! the queue.
//!
//! # Other libraries
//!
//! | layout | excludes, in one line first come first served | as seen in |
//! |---|---|---|
//! | `curator` (default) | Apache Curator, `InterProcessMutex`, `LeaderSelector`, and libraries that build on them (Spring Integration: `<root>/<key>`) | tests with 5.4 |
//! | | go-zookeeper | its source |
//! | `kazoo` | kazoo, `Lock`, `ReadLock` and `WriteLock` | tests with 2.8 |
//!
//! **Other recipes do not exclude ours on the same path: both hold.** These are Curator's
//! `InterProcessSemaphoreMutex`, `InterProcessReadWriteLock`, `InterProcessSemaphoreV2` and
//! `LeaderLatch`, and kazoo's `Semaphore`. kazoo's `Lock` ignores Curator and go-zookeeper, and
//! they count its nodes by other rules. Where such nodes are there first, a claim of ours is
//! refused, in both layouts: children of a lock's node that are no places in its queue are an
//! error, and none of ours puts any there. Where ours comes first, nothing tells the other.
//!
//! Their holders have no proofs. One that is cut off takes the lock for held for longer than the
//! ensemble does, and only a resource that checks our tokens has protection from it, if theirs are
//! checked as well. `list` leaves out nodes with foreign children, and traces a warning with their
//! number.
//!
//! # Encryption
//!
//! With the Cargo feature `tls`, `zookeeper+tls://…?ca=…` encrypts connections, and checks servers against
//! the authorities in the file `ca` and by the names in the URL; `cert` and `key` say who we are, which servers
//! demand unless told otherwise (`ssl.clientAuth`). On the servers it takes a `secureClientPort` and
//! `serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory`. Debian's server needs
//! `netty-codec.jar` and `netty-resolver.jar` on its class path besides. Why a handshake failed is not told by
//! the client crate: it says that no server took the connection, and its debug log has the reason.
//!
//! # Settings of the servers that matter
//!
//! | setting | for locks |
//! |---|---|
//! | `tickTime` | sessions are expired once a tick; from 2 to 20 of them are granted as timeouts; 4 or more are to be preferred |
//! | `minSessionTimeout`, `maxSessionTimeout` | other limits, not less than 2 ticks; lower them to no less than a fifth of the sessions there are |
//! | `maxClientCnxns` | one connection for each client (each `ZooKeeper` and its clones) |
//! | `forceSync` | `yes`: a lock is as durable as the log |
//! | `localSessionsEnabled` | only with `localSessionsUpgradingEnabled`, else connecting is refused |
//! | `readonlymode.enabled` | members without a quorum are refused whatever it says |
//!
//! The least version is ZooKeeper 3.5, which has containers. Tested with 3.8.
//!
//! # Sources
//!
//! The lock [recipe] of ZooKeeper's documentation, with Curator's protected names; the design notes of this
//! project (`DESIGN.md`) have the reasons for the chain of proofs.
//!
//! [recipe]: https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks
//! [`Fencing::Durable`]: lock_core::Fencing::Durable

mod backend;
mod chain;
mod config;
mod fault;
mod link;
mod names;
mod place;
mod session;
#[cfg(feature = "tls")]
mod tls;

pub use backend::ZooKeeper;
pub use config::Config;
pub use names::Layout;
