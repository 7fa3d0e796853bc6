//! Locks on a Redis server or in a cluster: leases, fencing tokens, waiters that are served in their order.
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
//! * **What a server keeps, and no more.** A lock is as durable as the server's memory. A replica that
//!   takes over may not know the locks that were given last, and a server that restarts without its
//!   data knows none: then a second holder gets in while the first still believes. The first is told
//!   by its next renewal, and its tokens are the lower ones: a resource that checks them is right all
//!   the same. No setting of the server changes that; [`min_replicas`](#replicas-that-have-to-know) and
//!   `appendfsync always` make it rarer.
//! * **The server's clock.** It ends the leases. Set forward, it ends them early; set back, late, and it
//!   brings back those that had ended from a file. Run it with a time service that slews. A holder gives
//!   up 1 % of its lease and 2 ms early: on a server whose clock runs faster than that, leases end before
//!   their holders give up, two may believe that they hold the lock, and tokens are what is left. Who meets a
//!   lock of ours that is taken for longer than [`Config::max_ttl`], or any without an end, warns of it
//!   by `tracing`, once, and names it.
//! * **Eviction.** A server that may throw keys away throws locks away: set `maxmemory-policy` to
//!   `noeviction`. Anything else is warned about when connecting. At the memory limit of such a server
//!   no free lock is given to who asks for it; those that are held can be renewed and released, and pass on along their lines.
//! * **Tokens are [`Fencing::Seeded`]**: each is above the one before, and at least the server's clock
//!   in microseconds. They go back only if the clock is set back *and* the counter is lost, with the
//!   server's data or because a lock was idle for ten minutes, or if the clock of a successor is behind by
//!   more than the gap between two grants.
//! * **Order is that of the line on the server**, and [lost](#the-line) where that is lost.
//! * **Removal by force.** A client that deletes a lock's key by hand lets others in. The holder is
//!   notified by its next renewal, and that renewal grants the lock to the next waiter.
//!   [`break_lock`] grants it at once.
//! * **Databases.** Signals do not tell databases apart: with `order=any`, a lock that is busy under the same
//!   name in another one makes waiters poll needlessly. `SWAPDB` takes all locks away, so two holders are
//!   possible: a holder is notified by its next renewal, and a waiter polls within 2.1 of its leases.
//!   A waiter that is granted the lock in the other database is notified within a third of the claim
//!   lease, which is a second.
//! * **Replicas** are refused when connecting, and do not say of a lock that it is taken. What becomes of locks when one
//!   takes over stands [below](#sentinel).
//! * **Members of a cluster** are refused as single servers. See [below](#clusters).
//!
//! # What is promised
//!
//! An attempt, a release, and usually a renewal of up to 64 locks are one round trip each, in one script each; a renewal is
//! two where some of the locks are not renewed as usual. Of a script that was run nothing is missing, and each of its locks
//! has an answer of its own. A verb that is repeated, late or unanswered harms nobody: attempts and
//! releases are those of one owner id, a renewal never re-creates, adopts or shortens, and an attempt
//! that arrives up to a minute after its release is refused. The bound for taking over after a crash
//! is the rest of the lease and 50 ms.
//!
//! A hand-off is one round trip: the release itself gives the lock to the next one and sends word of it. A
//! waiter costs two requests in all, and while it waits nothing but one look per lease for all
//! waiters of its process. The server must be Redis 6 or newer, or one that behaves like it; with
//! `order=any`, or without being asked for an order, 5 will do. It is tested with Redis 7.0.
//!
//! # The line
//!
//! A waiter takes its place in the attempt that finds the lock taken; a try never does. Whoever ends a hold (by a
//! release, a [break][`break_lock`], a renewal or an attempt that finds it lapsed) gives the lock, in
//! the same script, to the first one in line whose process listens, with a fencing token of its own,
//! under a claim lease of 3 s or the ttl, whichever is shorter. The first renewal makes it the whole
//! ttl. Who has closed its connection is passed over at once. A process that is sent the lock and says nothing
//! until the claim lease ends is passed over with all its waiters, until it is heard of; so a
//! process that was stopped or cut off costs the others one claim lease, however many wait in it.
//! Whoever subscribes to our channels by a pattern (`PSUBSCRIBE *`) makes the server say that those who are gone
//! have heard: each of their processes then costs a claim lease, and others may look only within their own
//! ttl. Leave that to short looks of an operator.
//!
//! **Stale entries** are those of waiters that were served or gave up. A failover, or a restart
//! with older data, brings them back. A grant names its lock. A process that is granted a lock for
//! which it does not wait gives the lock back at once, together with all its stale entries: one
//! round trip for a process. The script passes over processes that have not asked for the lock
//! since the server came up. A process that still waits asks after each reconnect and keeps its
//! positions. So the lock is granted again within a claim lease and 100 ms, however many entries
//! are stale. If the data name a holder, the time counts from its release or from the end of its
//! lease.
//!
//! The lease of a lock that was sent counts from when the server gave it, not from when word of it came: the server's
//! time in the message is compared with that in an earlier answer on the same connection. If
//! there is none younger than a lease, the waiter asks before it believes.
//!
//! A place lasts two leases and five seconds beyond the last look of its process. The waiter keeps the
//! number of its arrival, and gets its place again by that when its entry is gone. **Order is lost**
//!
//! * when the queue is lost together with the lock (`FLUSHALL`, a restart or a failover without the data): who
//!   asks first gets the free lock. Those who come back after that stand as before;
//! * when the places are lost alone (deleted, evicted): the next release passes everybody over, and they are back
//!   when each process looks again, within its ttl;
//! * for the waiters of a process that did not answer, or was cut off for longer than its places last: others
//!   go before them until the process is heard of. A holder that does not renew, and lets the lease of a lock that
//!   it was sent run out, has not answered either;
//! * for a waiter whose very first attempt was lost with the connection: it has no number yet. The same goes for those who come
//!   when the server has just come back from an outage: their process may find it again more than a second after others: it looks from time to time, and needs a connection first;
//! * if a client of another library takes the lock in the moment in which it is free, which is when a
//!   lease has ended and nobody has looked yet, or when a key was deleted by hand;
//! * if the server's clock is set back while the queue is lost: late comers may get lower numbers.
//!
//! When a holder dies, the first two processes in line look when the lease ends (the second one unless more than
//! 15 waiters of the first stand before it), as far as they were told of it by their own last look or by the hand-off before; when
//! the lock was just sent to somebody of the process that is next, so do others. If all who were told have died or stand still,
//! others look within their own ttl.
//!
//! With `order=any` there is no line, and all processes are woken by a release, by [client-side caching];
//! who asks first wins. Renewals wake nobody. A server that does not do that for us (older than 6, or
//! without the right) is looked at after pauses of 5 to 100 ms instead. Without being told, we stand in line
//! where the server speaks RESP3, and race where it does not; [`Capabilities::order`] and
//! [`Capabilities::wakeup`] say which, and `order=fifo` is an error there. Both kinds of clients, on one
//! lock, exclude each other. Those in line go first: who races gets the lock when nobody is in line, and may
//! starve while somebody always is; those in line never wait for those who race. Each hand-off in line wakes those who race, for a look.
//!
//! One connection serves all locks of a [`Redis`] and its clones. It is made anew when it breaks, when a
//! request has had no answer for 5 s, and when the server turns out to have become a replica: at the next
//! need, and after 10 to 200 ms if that fails. A server that is down is an error at once and not a wait;
//! those who wait already ask again about once a second.
//!
//! # Clusters
//!
//! `redis+cluster://host,host…` names some members of a Redis Cluster; one has to answer. Each lock is on the master of
//! its slot, with all its keys, and there everything above holds: the cluster keeps what a server with an asynchronous
//! replica keeps. There is one connection to each master. A renewal is one request for each lock, all
//! in one round trip.
//!
//! * **A master dies.** Until its replica has taken over, its locks cannot be had, renewed or let go
//!   ([`ErrorKind::Unavailable`]); those of other masters can. A lease that outlasts that (`cluster-node-timeout` and a second or
//!   two) is renewed by the replica, if the lock had reached it. If not, its holder is told by the next renewal; somebody else may have
//!   had the lock by then, with a higher token. A master that was cut off goes on giving locks for `cluster-node-timeout`, and they are lost.
//! * **A master is cut off from the majority**, and not from us: it refuses everything, and what others say of its slots
//!   counts. Whoever stands in line there and asks nothing learns of it within its ttl.
//! * **A master hangs.** After a second without an answer others are asked who has its slots.
//! * **A slot is moved.** Its locks go with their leases, tokens and lines. From the first key to the last one, held locks are
//!   renewed; attempts, and releases by the script, are refused as [`ErrorKind::Unavailable`], certainly not applied, and core
//!   repeats releases. Then waiters are told, and stand where they stood. If the lock is let go before they are back, others go
//!   before them. Requests that are under way on the connection to the old master when it ends are unknown.
//! * **Order** needs sharded channels: Redis 7. With Redis 6, `order=any`, or not being asked for one, still works.
//! * **No identity**: a cluster is no single process, and as a member of a quorum it is not known twice.
//! * Every node must be reachable at the address that it announces, and with `rediss+cluster://` have a certificate for it
//!   (`cluster-announce-hostname`, `cluster-preferred-endpoint-type hostname`): the name in the URL counts only for whom
//!   it leads to. Who announces no address is checked by the name of the member that sent us there.
//! * Rights are tried out on one master when connecting, out of those that are there. Users are not shared among nodes: create them on each.
//!
//! The channels are `<prefix>{<number>}%~to:<128 random bits>:<3 digits>`, one for each slot in
//! which somebody of the client has waited.
//!
//! # What is asked of the server
//!
//! | commands | how often |
//! |---|---|
//! | `HELLO` (twice), `SUBSCRIBE`, `CLIENT TRACKING`, `CLIENT CACHING`, `DELIFEQ` without arguments, `CLIENT SETINFO` of the client library (twice) | once for each connection |
//! | two `INFO`, `SCRIPT LOAD`, and the script that tries out the rights | once for each [`Redis::connect`] |
//! | `SCRIPT LOAD`, and the request that found out once more | for each script that the server does not know |
//! | the script of attempts | once for each claim; while it waits, when the lease ends of which its process heard last, once for all its waiters |
//! | the script of plain renewals | for up to 64 locks at once, at each third of their leases |
//! | the script of all other renewals | for up to 64 locks at once: the first one of each, one each ten minutes, those that the other one did not renew, and what takes no request more with them |
//! | the script of releases | once for each claim, but for those of the next line |
//! | the script that gives back | for a lock that was granted to an owner which does not wait for it |
//! | `DELIFEQ` | where the server knows it: instead of that script, for a lock that was taken while nobody waited and not renewed since; if somebody waits by now, before it |
//! | `CLIENT CACHING`, `EXISTS`, `GETRANGE`, `EXISTS`, sent together | with `order=any`, and where another library holds the lock: when a waiter goes to rest, and after each signal |
//! | a `SET` before a second time of these; another one with it where the server knows `DELIFEQ`, that marks the lock | in a quorum, whose waiters do not queue anywhere: when one goes to rest, and nobody else has left the bell and marked the lock |
//! | `PING` | when there was no answer for 5 s |
//! | the scripts that inspect and break | when they are called |
//!
//! Nothing else of one server: a test reads along with `MONITOR` and accounts for each command. Beyond one server, there are:
//!
//! | commands | where | how often |
//! |---|---|---|
//! | `SENTINEL GET-MASTER-ADDR-BY-NAME` and `MASTER` | each Sentinel | for each connection to a primary; when a client begins to listen, and after each `+switch-master` |
//! | `SUBSCRIBE` | each Sentinel | once for each connection to it |
//! | `ROLE` | the primary behind Sentinels | once for each connection |
//! | `CLUSTER SLOTS` | one member of a cluster | once for each [`Redis::connect`]; when a slot has moved, a member is down, or a master has not answered for a second: at most five times a second |
//! | `SSUBSCRIBE` | masters of a cluster, instead of `SUBSCRIBE` | once for each connection, one more in [`Redis::connect`], and once for each slot in which somebody waits |
//! | `ASKING` | masters of a cluster | once for each [`Redis::connect`]; before a script, while its slot is being moved |
//! | `INFO` | masters of a cluster | two for each master and [`Redis::connect`]; the rights are tried out on one |
//! | `WAIT` | with `min_replicas` | once for each [`Redis::connect`], grant and renewal; `HELLO` for each of its connections |
//! | the script of all other renewals | with `min_replicas`, and in a cluster | for each renewal; with `min_replicas` once more for each grant |
//!
//! # Settings of the server that matter
//!
//! | setting | for locks |
//! |---|---|
//! | `maxmemory-policy` | `noeviction`; everything else throws held locks away |
//! | `appendonly`, `appendfsync` | without a log, a restart frees all locks; with `everysec`, those of the last second, and those that were let go in it are back until their leases end |
//! | `min-replicas-to-write` | with too few replicas no lock is given, renewed or released: leases end |
//! | `timeout` | 0, or longer than waits are: idle connections that are closed cost their waiters a look |
//! | `tracking-table-max-keys` | more than there are locks waited for, or waiters look needlessly |
//! | `replica-read-only` | `yes`: a writable replica gives locks that nobody else knows |
//!
//! # Keys
//!
//! | key | value | expires |
//! |---|---|---|
//! | `<prefix><name>` | `<owner id> <number>[ <label>]`, with `-` before it during a minimum hold, and a space after it if somebody waits and the server knows `DELIFEQ` | with the lease |
//! | `{<prefix><name>}%token` | the number of the last token | ten to twenty minutes and a lease after the last grant or renewal, at least ten after the release, and not before the clock has passed the number |
//! | `{<prefix><name>}%queue` | who waits, by the number of its arrival | when nobody does; at the latest a minute after the places do |
//! | `{<prefix><name>}%procs` | until when the places of a process last, in µs; the last three digits are those of its connection | with the queue |
//! | `{<prefix><name>}%wake` | empty: somebody waits who does not stand in line | when a lock that they have seen is let go; at the latest after ten minutes |
//! | `{<prefix><name>}%gone:<owner id>` | empty: this owner was let go | after a minute |
//!
//! The channel of a process is `<prefix>%~to:<128 random bits>:<3 digits>`. The digits change with
//! each connection.
//!
//! The key of a name of ASCII letters, digits and punctuation (but `%`) is the name itself, and a key
//! with any string in it is held. Every other character is escaped, the one that ends the prefix too, and
//! a key of more than 200 bytes ends in a digest: see [`Encoding`]. A name with a hash tag of its own has
//! no braces put around it.
//!
//! # Sentinel
//!
//! `redis+sentinel://host,host,host/name` names the Sentinels, and what they call the primary:
//!
//! ```text
//! redis+sentinel://user:password@s1.example.com,s2.example.com,s3.example.com/locks?sentinel_password=secret
//! ```
//!
//! Name all of them. For each connection all are asked at once, for at most a second, until more than half have
//! answered; the newest configuration is believed, and a server that says of itself that it is no primary is not
//! used. A client also listens to each Sentinel, on a connection of its own, and asks it again every ten seconds: one that lost
//! its state or was told of a primary by hand is believed when more than half of them say so. When one of them tells of
//! another primary, what is under way on the old one is given up as unknown, and the next verb is the new one's. A verb
//! that meets a server without being its primary any more is [`ErrorKind::Unavailable`], never contention.
//! With fewer Sentinels than half, locks go on as long as the primary does.
//!
//! | what happens | who holds a lock | who wants it |
//! |---|---|---|
//! | failover, and the replica knew the lock | keeps it, for what was left of its lease there or longer | waits; the line is there |
//! | failover, and the replica did not know it | is told at once, not at the next renewal; two believe in it until then | gets it, with a higher token |
//! | the primary is cut off from the Sentinels, and a client with it | is **not told while that lasts**, as its renewals succeed there, unless [replicas have to know](#replicas-that-have-to-know): then at the end of its lease at the latest | gets it on the other side, with a higher token than those of before |
//! | the old primary comes back | | is not led to it: it is made a replica, and what it alone knew is gone |
//!
//! So with replicas **exclusion is not guaranteed across a failover**, as replication is asynchronous; tokens
//! order what was granted before and after it, as long as the clocks of the servers agree to within the time
//! that the failover takes. They do not order what is granted afterwards by the new primary and by an old one that does not know
//! that it was replaced: who is cut off with that one may even get the higher token.
//! `min-replicas-to-write` and `min-replicas-max-lag` on the servers bound for how long a primary that
//! is cut off from its replicas gives and prolongs locks, and `min_replicas` here does: set one of them.
//! Who needs more has `lock-quorum`, or ZooKeeper.
//!
//! Holders hear of a failover because [`Capabilities::loss_push`] are there: it needs the rights for signals. Each lock
//! that is held for longer than a tenth of a second costs one more request, and another one after each of its renewals; and
//! its holder is told at once of a removal by hand, too. Without signals, holders are told by their next renewal.
//!
//! Sentinels must be Redis 6 or newer to be listened to; older ones are asked when the connection breaks. What they announce
//! must be reachable from here, and with `rediss+sentinel://` must be what the certificates are for: names
//! (`sentinel announce-hostnames yes` and `resolve-hostnames yes`, `replica-announce-ip` on the servers), or addresses in the
//! certificates. Sentinels are checked by their names in the URL, and servers by what the Sentinels call them. The user of the servers needs the right `+role`
//! besides [those below](#rights); without it, a replica is found out by its refusal. A user of the Sentinels needs
//! `+sentinel|get-master-addr-by-name +sentinel|master +subscribe &*`; without the second, nobody knows how new an address
//! is, and that is an error. Services that only speak like Sentinels and have no epochs are believed if more than half
//! of them agree.
//!
//! # Replicas that have to know
//!
//! With `min_replicas=1` a lock counts only when so many replicas have acknowledged it, within `min_replicas_timeout`
//! (500 ms unless given), by `WAIT`. The acknowledgement is asked for by a write of the owner that follows the grant: the
//! replicas that have it have the grant too.
//!
//! * A grant that too few have acknowledged is released again, by its owner id, and the attempt is
//!   [`ErrorKind::Unavailable`]: certainly not held, unless the release failed as well. While it is waited for, others find
//!   the lock taken.
//! * The shortest lease is six times the timeout and 10 ms ([`Capabilities::ttl_min`]), 3.01 s with 500 ms: a renewal is
//!   given up after a sixth of the lease, and a replica that answers just in time has to count.
//! * [`LockerBuilder::timeout`], 5 s unless given, bounds an attempt with its wait, and a renewal too: a longer
//!   `min_replicas_timeout` is of no use unless that is raised as well.
//! * A renewal that too few have acknowledged prolongs nothing: its outcome is unknown, and the holder gives up at
//!   the deadline that stood before. So no holder relies on a lease of which those replicas do not know.
//! * A release waits for nobody. If it is lost with its primary, the lock comes back for the rest of its lease.
//! * Who is handed the lock makes sure of the replicas before it believes: [`Capabilities::wakeup`] is a signal then.
//!   If they do not answer, it lets the lock go, and stands at the end of the line.
//!
//! It costs two round trips more for each grant, and one more for each renewal, and the way to the replica and
//! back in one of them; and up to eight connections, as `WAIT` blocks its own. These are a ceiling: about eight grants or renewals (of up to
//! 64 locks; in a cluster, of one) in each round trip to the replicas, and others take their turn. The user needs the right `+wait`,
//! which is found out when connecting.
//!
//! **What it does not promise**: that the replica which takes over is one of those. Sentinel takes the one with the newest data
//! among those that it reaches. With as many replicas as are waited for, all of them know; but one that restarts without its
//! data may be chosen too. A primary that is restarted before the Sentinels miss it stays the primary, as one server does: what
//! its log has not is lost, and its replicas drop it too; have it log each write, or restart later than `down-after-milliseconds`. The
//! ends of leases are times of the primary's clock: on a successor whose clock is ahead, they come earlier by as
//! much. And it is about the moment of the acknowledgement: who takes over without replicas of its
//! own gives no lock and prolongs none until it has some.
//!
//! **In a cluster** the replicas are those of the lock's master, with up to eight connections to each master. While a slot is being moved,
//! nothing new is given in it, and a renewal is waited for on the side on which the lock is. A slot that has moved takes its locks
//! to a master whose replicas were not asked; the next renewal asks them. Until then, a failover there may lose them.
//!
//! # Which topology keeps what
//!
//! | | exclusion | who lost a lock is told | waiting | tokens |
//! |---|---|---|---|---|
//! | one server | while it keeps its data; a restart loses what its log has not | by the next renewal | in line, across connections | grow |
//! | Sentinel | not across a failover: what the replica did not know is lost | when the Sentinels tell, or by the next renewal; not while it reaches the old primary alone | the line is there if the replica knew it | grow across it, as far as the clocks agree; not beside an old primary that goes on |
//! | Sentinel or cluster, `min_replicas` | across a failover to one of those that acknowledged, as far as the clocks agree; in a cluster, not from the move of a slot to the next renewal after it | the same, and at the end of the lease at the latest | the same; nobody is given a lock while too few acknowledge | grow, as far as the clocks agree |
//! | cluster | as Sentinel, for each master by itself; moving a slot loses nothing | by the next renewal, or the end of the lease | in line; after a slot has moved, as soon as its waiters have looked | grow, also across moves |
//! | minority of Sentinels or of a cluster's masters | Sentinels: nothing changes. Masters: no lock is given, renewed or let go there once they have noticed | | those in line at a master that is cut off look within their ttl | |
//! | a managed service, by one address | as one server; where a replica may stand behind that address one day, as Sentinel | by the next renewal, or the end of the lease; nobody tells of a failover | what [is missing](#services-and-proxies) is warned about, or an error | as Sentinel |
//! | `lock-quorum` of single servers | while a majority runs; one that was restarted counts again after the longest lease | by the next renewal | a race | grow |
//!
//! The laws (`LAWS.md`) that each declares, and that are checked on real servers:
//!
//! | laws | one server | Sentinel | cluster | with `min_replicas` |
//! |---|---|---|---|---|
//! | 3.3, a removal by hand is told at once | not promised | yes | not promised | as without |
//! | 6.3, 6.7, 4.4, the line | yes; not with `order=any` | the same | the same | the same |
//! | 9.3, a list | refused | refused | refused | refused |
//! | all others of 1 to 11, and 14 | yes | yes | yes | yes |
//! | 12, the network between clients and servers | yes | yes: to the primary and to the Sentinels at once | yes: to all members at once | the same |
//! | 12.13, word of a grant that comes late | yes; not with `order=any` | the same | the same | not promised: nobody believes a grant by its word |
//! | 13, the server stops, and is killed and back | yes | of a primary that nobody replaces meanwhile | of all members at once | the same |
//!
//! With `min_replicas` a dozen of them are checked for each change behind Sentinel, and all, also in a cluster, in the long runs.
//! These also kill and stop primaries behind Sentinel that have just been cut off from their only replica: no two
//! holders, and no lost update behind a fence.
//!
//! If somebody else takes over, 13.2 and 13.3 are another matter: who holds a lock that he knows goes on, and need not give
//! up. That, and what is lost where he does not know it, is tested in `tests/redis/sentinel.rs`, `replicas.rs`,
//! `cluster.rs`, `cluster_faults.rs`, and `groups_tls.rs` with encryption.
//!
//! # Services and proxies
//!
//! | what is missing | what is left | how it shows |
//! |---|---|---|
//! | `CLIENT TRACKING` | the line, in full; with `order=any`, waiters look from time to time | a warning when connecting, and with `order=any` [`Capabilities::wakeup`]; behind Sentinel, no [`Capabilities::loss_push`] |
//! | `HELLO`, or RESP3 | no line: a race, and waiters look from time to time | a warning when connecting, [`Capabilities::order`]; an error with `order=fifo` |
//! | `INFO`, by rights | no warning about eviction, no [`identity`] | a warning when connecting |
//! | `ROLE` | a replica that Sentinels name is found out by its first refusal | a warning when connecting |
//! | `CONFIG`, `DEBUG`, `KEYS`, `MONITOR` | everything | |
//! | `EVALSHA`, `SCRIPT`, or what scripts call | nothing | an error when connecting |
//!
//! If a connection is closed because it was idle, the next verb connects again and waits for that, and waiters poll
//! once. If a proxy forgets a connection silently, keep-alive probes notice that within 20 s, or a request without
//! an answer does. Certificates are checked against the host in the URL, or as [Sentinels](#sentinel) and
//! [clusters](#clusters) announce it; that is also sent to servers that tell their names apart by it (SNI).
//!
//! # Other libraries
//!
//! A client that acquires with `SET <key> … NX`, and releases by compare-and-delete, excludes ours and is
//! excluded, on the same key of the same server and database. By default a name with other characters
//! than printable ASCII, with `%` or with more than 200 bytes is encoded in the key, and then the two
//! sides hold at once. With [`names=exact`](Config::names) the key is the prefix and the name, byte for
//! byte. [`inspect`] shows the key.
//!
//! | library | its key | as seen in |
//! |---|---|---|
//! | redis-py, `Lock` | the name | tests with 4.3 |
//! | Laravel, `Cache::lock` | the name after the prefixes of connection and cache | tests with 8.83 |
//! | redsync, node-redlock, rslock, with this server alone | the name | their source |
//! | Spring Integration, `RedisLockRegistry` | `<registry>:<name>` | its source |
//! | python-redis-lock | `lock:<name>` | its source |
//! | the [pattern in the documentation of `SET`][SET] | the name | |
//!
//! The first of our waiters is woken when a lock of theirs is released. A release or an
//! extension that comes too late, theirs or ours, leaves the new holder alone. Forcing (`forceRelease`,
//! `reset`) does not.
//!
//! A key of another type that expires is the lock of a foreign client, too: **Symfony**'s Lock keeps a
//! sorted set since 5.2 (tests with 5.4), **Redisson** a hash. Attempts of ours are contended, waiters
//! wait and are woken by its release, [`inspect`] names the type (with the right to `TYPE`), and
//! [`break_lock`] refuses. Without an expiry such a key is [`ErrorKind::Invalid`]: no lease of a
//! lock ends it. Where ours hold the lock, Symfony sees it as held.
//!
//! **Do not share a name with Redisson.** Where ours hold the lock, its `lock` and `tryLock` throw
//! `WRONGTYPE`. Worse, one script of its watchdog renews up to 100 locks and fails at the first key that
//! is no hash: if one lock of a Redisson client is lost and ours take it, other locks of that client
//! expire while they are held. One name, one layout: give ours a prefix.
//!
//! A quorum library that asks **several servers** does not exclude a client that locks on one of them.
//!
//! In a mixed fleet,
//!
//! * **only we have fencing tokens.** Ours grow, whoever holds the lock in between; a resource that checks
//!   them has no protection from a late write of a holder that has none.
//! * **a lock of theirs may have no end.** Without `timeout` in redis-py, and without seconds in Laravel,
//!   it stays when its holder dies, and all wait for ever. [`break_lock`] needs an owner id, which theirs
//!   have not: delete the key.
//! * **a lease of theirs ends while they work**, unless their program extends it, and then others are in.
//!   What is left of it is all that [`inspect`] shows.
//! * **they look from time to time, and we stand in line.** redis-py looks every 100 ms, Laravel every 250 ms,
//!   and node-redlock ten times within two seconds. While some of ours are in line, the lock passes from
//!   one to the next and is never free, so theirs may wait for as long as that goes on. With
//!   `order=any` the lock is free for a moment after each release, and theirs have a chance, as in any
//!   race: a loop that takes the lock again at once can keep others waiting, theirs for many seconds. Pause
//!   between two rounds, for longer than others do between two looks.
//! * **a waiter of theirs may wait for a message** that only their own library sends: python-redis-lock
//!   (then it looks when its own `expire` has passed, and without one never) and Spring's
//!   `PUB_SUB_LOCK`. Our release does not wake those.
//!
//! # Rights
//!
//! The least that a user needs, here with the prefix `app:` (the braces are the fence's and the
//! tombstone's):
//!
//! ```text
//! ACL SETUSER locks on >password resetkeys ~app:* ~{app:* resetchannels &app:* -@all
//!     +info +client|tracking +client|caching +script|load +evalsha
//!     +getrange +exists +pttl +time +set +pexpire +del
//!     +zadd +zrange +zscore +zcard +zrem +zremrangebyscore +publish +subscribe
//! ```
//!
//! In a cluster `+spublish +ssubscribe` take the place of `+publish +subscribe`, and `+cluster|slots +asking` are
//! needed. With a database other than 0, `+select` too. With `order=any`, the last line and the channel are not
//! needed, unless other clients queue for the same locks. Then a release by such a user grants the lock to no waiter:
//! the waiters find it free when its lease would have ended. An attempt on a free lock with a queue is
//! [`ErrorKind::Denied`].
//! [`inspect`] names the type of a foreign client's key with `+type`.
//! Where the server knows `DELIFEQ` (Valkey 9), grant `+delifeq`, too; without it a release costs the server more, and is
//! asked for twice once on each connection.
//! Without `+info` there is no warning about eviction and no [`identity`]; without the two of
//! `client`, waiters look from time to time with `order=any`, and where another library holds the lock.
//! Anything else that is missing is named when connecting.
//!
//! An owner id is the right to unlock, and whoever may read the keys or the channels can read it. Whoever has
//! read it and may write to the channels can also make a waiter believe for a claim lease that it was
//! sent the lock: give the right to `publish` there, and to read, to nobody who may not lock.
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
//! and the next attempt finds it. If the server or the client refuses the certificate of the other
//! later, that is [`ErrorKind::Denied`]. Claims in line wait instead: half of a file may be a whole
//! one. Replace a certificate and its key such that no one sees half of it
//! for long, by renaming.
//!
//! The cryptography is that of the process' default provider for `rustls`. If there is none when the
//! first encrypted connection is made, aws-lc-rs becomes it: a program that wants another one installs
//! it before.
//!
//! # Sources
//!
//! The lock pattern of [`SET`][SET], and the [distributed locks] of the Redis documentation for the
//! arguments; [client-side caching] for the signals of `order=any`, in its opt-in mode. The queue that is served
//! by the release is an old idea of operating systems, direct hand-off; the claim lease and the
//! counting of its age are this project's, see `DESIGN.md`.
//!
//! [SET]: https://redis.io/docs/latest/commands/set/
//! [distributed locks]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/
//! [client-side caching]: https://redis.io/docs/latest/develop/reference/client-side-caching/
//! [`break_lock`]: lock_core::Locker::break_lock
//! [`inspect`]: lock_core::Locker::inspect
//! [`ErrorKind::Denied`]: lock_core::ErrorKind::Denied
//! [`ErrorKind::Invalid`]: lock_core::ErrorKind::Invalid
//! [`ErrorKind::Unavailable`]: lock_core::ErrorKind::Unavailable
//! [`identity`]: lock_core::Locker::identity
//! [`Encoding`]: lock_core::Encoding
//! [`Fencing::Seeded`]: lock_core::Fencing::Seeded
//! [`Capabilities::order`]: lock_core::Capabilities::order
//! [`Capabilities::loss_push`]: lock_core::Capabilities::loss_push
//! [`ErrorKind::Unavailable`]: lock_core::ErrorKind::Unavailable
//! [`Capabilities::ttl_min`]: lock_core::Capabilities::ttl_min
//! [`Capabilities::wakeup`]: lock_core::Capabilities::wakeup
//! [`LockerBuilder::timeout`]: lock_core::LockerBuilder::timeout

mod backend;
mod clock;
mod config;
mod connection;
mod fault;
mod keys;
mod limits;
mod owners;
mod queue;
mod scripts;
mod signal_waiters;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
mod slots;
mod topology;
mod value;
mod verbs;

pub use backend::Redis;
pub use config::Config;
pub use keys::Names;
