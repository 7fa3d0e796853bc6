//! Locks on a majority of independent backends: Redlock, with fencing tokens.
//!
//! An odd number of backends of any kind is itself a backend. Three or five Redis servers that know nothing of each
//! other give what is known as Redlock; memcached servers, or a mix, work the same way.
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
//! # What is promised
//!
//! * **A majority of the configured members** votes for each grant, whoever can be reached. As many as make a majority
//!   are asked together, and others as well when one of them refuses, fails, or takes several times as long as usual.
//!   As soon as a majority agrees the grant is there. What others answer later is kept, or let go. If the lock is
//!   still held after 5 ms, those that were not needed are asked for their votes too: then it outlives a minority.
//!   Who is behind just then is asked with the next renewal.
//! * **A vote belongs to a server**, and not to the address that leads to it. Members tell which
//!   server they are on each new connection, also on one that is made anew while nothing is asked.
//!   A server that answers by two addresses is counted once, by attempts, renewals, releases and
//!   from outside. If a connection is replaced while a member is asked, either server may have
//!   answered: the answer counts only if neither has been counted. Two members of a kind of which
//!   one cannot tell are refused: Redis clusters, fleets of memcached servers, a memcached that
//!   was flushed, ZooKeeper, a Redis user without `INFO`. If that turns out later, such a member
//!   counts only where no other member of its kind does, and it is asked again after a second.
//! * **The lease** is what the majority's leases have in common, counted from before the first request was sent. Core
//!   takes off one per cent, and the largest margin of any member.
//! * **A missed majority gives everything back**, also at members that did not answer, whose answer is waited for
//!   and undone in the background. A [`Contended`](lock_core::backend::Attempt::Contended) is true: a majority has
//!   answered, and one of them has let in somebody else, or not heard yet that they have gone. Alone such a member keeps
//!   nobody out, but it does while another one is away. If too few answer it is a fault.
//! * **Tokens grow across majorities**: see [below](#fencing-tokens).
//! * **A renewal** is that of a majority that has held all the time. A member that has lost the lock is asked to
//!   take it again, and gives it if it is free; but its vote counts only after the next renewal that begins then, when
//!   the others have shown that they still held it when it was won back. So one member that forgets and another one that lets
//!   us in do not add up to a majority that nobody has had. Which votes are old is known to the process that keeps
//!   the lock, and to no other: who only [renews] a detached lock, as `lockctl renew` does, counts all votes, and wins none
//!   back: members that have lost such a lock stay lost to it. And where a lock is detached between a failure and the
//!   second renewal after it, a vote that was won back counts at once.
//! * **A release** goes at once to all members that were asked, returns when a majority has answered, and is repeated
//!   in the background where it fails, until the lease is over; of more than 1024 at one member, the rest is left to the leases.
//!   It is `Released` if a majority held the lock until then, `NotHeld` if so many did not that no majority can
//!   have, and unknown otherwise. A member that forgets the lock while it is released counts as one
//!   that had lost it before. Who ends the process right after it leaves the rest to the lease.
//! * **A break** asks all members to end one owner's hold. It has if a majority says so, and has not if so many did not know
//!   the hold, and no other has ended it or keeps silent. Otherwise its outcome is unknown, as when the owner lets go at that moment:
//!   look who holds the lock then.
//! * **Split votes** are broken by one member, another one for each lock: who has its vote asks again, all others
//!   step back. So of several that try a free lock at once, one gets it. Who was refused asks that
//!   member first the next time, and the others only when it agrees. Where that member is down, pauses at random decide.
//! * **Waiting** costs nothing while a lock is held for long: members tell when it is let go. Whoever comes too late then,
//!   or meets a lock that was taken just now, stays away for a pause at random, which doubles each time, up to half a second:
//!   so that of many only some ask, and one who waits alone has it at once.
//!
//! # What is not promised
//!
//! * **More than the members do.** Declared is the weakest of them in each respect: a quorum with a memcached is
//!   advisory, one with a file excludes the processes of one host. One member that cannot raise its tokens
//!   ([`Capabilities::min_token_supported`]: ZooKeeper) makes them `None`.
//! * **Exclusion if a member forgets what it has acknowledged**, by a restart without its data, an eviction, a flush or
//!   a failover to a replica: a lock may be on a bare majority. A restart is seen where members tell how long they have
//!   been running: one that was started less than the [longest lease] ago votes, and is not counted. No lease can
//!   be longer than that, and a minimum hold that may be is kept by its process and not by the members. Redis and memcached
//!   tell, once for each connection; a file does not, and does not forget. An eviction is not seen.
//!   So `noeviction` (`-M`) on every member, and no replicas behind them.
//! * **Exclusion if the clock of a member that the lock is on steps**, or runs more than one per cent too fast. A lock may be
//!   on a bare majority, and then one such clock is enough: that member lets in somebody else.
//! * **Order.** Inside one process, a locker serves first come, first served; among processes nobody does. Members are never asked
//!   to queue: three waiters could each be the first in a line of their own.
//! * **Independence.** Servers on one machine fail together.
//! * **Exclusion while an address leads to a server that is no member.** Clients that still reach
//!   the member and those that reach the other server have different majorities. A replica that was
//!   promoted is another server, too. A proxy or load balancer in front of members has to lead each
//!   connection to one server.
//!
//! All clients list the same members in the same order, with the same longest lease. Members are added or replaced
//! while nobody holds a lock.
//!
//! # Fencing tokens
//!
//! Each member asks for a number above all numbers of that lock before, and above a min_token that the claim brings
//! along. Every member is asked with the same min_token, one second ahead of our own clock: so members whose clocks and
//! counters are no further ahead all answer with the number after it, and one round is enough. If those that vote
//! disagree, the highest number is the token, and those below are asked again to store at least
//! that. Meanwhile a vote may fall away, and another member, or the same one, votes with a higher
//! number: then that is to be stored. The grant returns when the votes of a majority have the same
//! number. They give the token and the lease.
//!
//! Why they grow: let one grant have the token `s`, and let a claim that begins after it returned be granted `t`. A
//! majority had stored at least `s` then. A majority voted for the second claim. They have a member in common, whose
//! number for the second is above what it had stored, at least `s`; and `t` is the highest of the numbers of its
//! majority, so `t > s`. Nothing in this needs a clock. (Two claims that are under way together are another matter: where a
//! clock steps, one of them may be granted after the other and with the lower token, and a resource that has
//! seen the other refuses it. While leases last as long as they should, that cannot happen: the grant is counted from before
//! its first request, and comes too late.) It needs that the member remembers: one that restarts without its data begins again with its clock, in microseconds, or with the min_token, which is ours. Its
//! vote does not count before the longest lease is over, and by then our clock is past `s`, if the clocks of two
//! clients differ by no more than that lease, and the member's was no further ahead of ours than that lease and a second. This is what the grade
//! [`Fencing::Seeded`] says of one server, too. A member that forgets and cannot tell (it is flushed, it evicts, or
//! [`members_remember`] is not true) leaves only the time between the two grants for this: a client whose clock is
//! ahead of the next one's by more has left a higher number.
//!
//! Reading the highest from a majority and writing it back before it is used is how Attiya, Bar-Noy and Dolev make a
//! register of servers that fail ("Sharing memory robustly in message-passing systems", 1995); numbers of one's own
//! that a majority promises to stay above are the ballots of Lamport's Paxos ("The part-time parliament", 1998). The
//! rest is [Redlock].
//!
//! [Redlock]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [`members_remember`]: QuorumBuilder::members_remember
//! [renews]: lock_core::Locker::renew_detached
//! [longest lease]: QuorumBuilder::longest_lease
//! [`Capabilities::min_token_supported`]: lock_core::Capabilities::min_token_supported
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded

mod backend;
mod calls;
mod candidacy;
mod capabilities;
mod later;
mod letting_go;
mod look;
mod member;
mod origin;
mod quorum;
mod renewal;
mod round;
mod waiting;

pub use quorum::{Quorum, QuorumBuilder};
