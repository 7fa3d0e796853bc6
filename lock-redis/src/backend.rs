//! The verbs.

use std::collections::HashSet;
use std::iter::zip;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Effect, Fault, FaultKind, Grant, Holder, Identity, Lease, Listed,
    LockState, Release, ReleaseMode, Renewal, Ticket, Wake,
};
use lock_core::clock::{Moment, sleep_between};
use lock_core::{
    Capabilities, Durability, Error, Executor, Fencing, FencingToken, Label, LockName, Order,
    OwnerId, Reach, Support, Takeover, Wakeup,
};
use redis::{FromRedisValue, ParsingError, from_redis_value};

use crate::config::{Config, MAX_TTL};
use crate::fault::{self, unexpected_answer};
use crate::keys::{Keys, LockKeys};
use crate::line::{QueueEntry, QueuePosition, QueueReply, Queues, WaitEvent};
use crate::link::{ClientState, Connection};
use crate::scripts::Call;
use crate::servers::{Request, Response, Servers, all};
use crate::value::{Value, shown};

/// How long a fence outlives its lock, at least. After that, the server's clock alone keeps the tokens growing.
pub(crate) const TOKEN_RETENTION: Duration = Duration::from_secs(600);

/// Locks that are remembered as stuck.
const MAX_STUCK: usize = 1000;

/// Why a grant is none, if it was gone when replicas were asked for it.
const ENDED_EARLY: &str =
    "the lease ended before replicas knew of the lock; ask for a longer one, or look at the server";

/// Claims in one renewal script: the server does nothing else meanwhile.
const MAX_BATCH: usize = 64;

/// Locks on a Redis server. Clones share one connection.
///
/// See the [crate's documentation](crate) for what they promise.
#[derive(Clone, Debug)]
pub struct Redis {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    keys: Keys,
    servers: Servers,
    wakeup: Wakeup,
    loss_push: Support,
    /// A lock counts only when replicas know of it.
    waits_for_replicas: bool,
    min_ttl: Duration,
    max_ttl: Duration,
    warned: WarnedLocks,
    executor: Executor,
}

/// The keys of locks that were warned of: once each, until we get the lock. Beyond a limit nothing more
/// is said.
#[derive(Debug, Default)]
struct WarnedLocks(Mutex<HashSet<String>>);

/// What an attempt is told of its place in line.
const PROCESS_IS_NEW: u8 = 1;
const IS_NEXT: u8 = 2;
const WAS_REQUEUED: u8 = 4;

/// What a holder knows of its lock besides its lease.
#[derive(Debug)]
struct HeldLock {
    token: u64,
    /// The fence is there at least until then.
    token_key_until: Moment,
    /// By which connection this was said; 0 if it was sent.
    connection: u64,
    /// Nobody waited when the lock was taken, which was just now: nothing was renewed yet, nor let go.
    is_new: AtomicBool,
}

impl Redis {
    /// Connects to a server: to a URL as in [`Config::new`], or with a [`Config`].
    ///
    /// Tries out whether this user has the rights that locks need, and warns by `tracing` if the
    /// server is set to evict keys.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): the server cannot be reached,
    ///   does not answer, or refuses work for now;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or rights are
    ///   missing: the error names them;
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): the server is too old, or a
    ///   member of a cluster and the URL does not say so, or the other way round.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let config = config.try_into().map_err(Error::from)?;
        let (keys, max_ttl) = (config.keys.clone(), config.max_ttl);
        let waits_for_replicas = config.replicas.is_some();
        let min_ttl = config.min_ttl();
        // Large, and done once.
        let executor = Executor::current_or_new()?;
        let (servers, connection) = executor.within(Box::pin(Servers::connect(config))).await?;
        let wakeup = match servers.client.order() {
            // Who is handed the lock asks whether replicas know of it.
            Order::Fifo if waits_for_replicas => Wakeup::Signal,
            Order::Fifo => Wakeup::HandOff,
            Order::PerProcess if connection.has_signals => Wakeup::Signal,
            Order::PerProcess => Wakeup::Poll,
        };
        // Where locks can move to another server, those who have long leases are to hear of it.
        let loss_push = match servers.may_move() && connection.has_signals {
            true => Support::Present,
            false => Support::Absent,
        };
        let warned = WarnedLocks::default();
        Ok(Self {
            inner: Arc::new(Inner {
                keys,
                servers,
                wakeup,
                loss_push,
                waits_for_replicas,
                min_ttl,
                max_ttl,
                warned,
                executor,
            }),
        })
    }
}

#[async_trait]
impl Backend for Redis {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            backend: "redis",
            fencing: Fencing::Seeded,
            order: self.inner.servers.client.order(),
            wakeup: self.inner.wakeup,
            durability: Durability::UntilRestart,
            reach: Reach::Network,
            ttl_min: self.inner.min_ttl,
            ttl_max: self.inner.max_ttl,
            margin: Duration::from_millis(2),
            takeover: Takeover::LeasePlus(Duration::from_millis(50)),
            detached: Support::Present,
            minimum_hold: Support::Present,
            late_attempts_refused: Support::Present,
            min_token_supported: Support::Present,
            loss_push: self.inner.loss_push,
            inspecting: Support::Present,
            listing: Support::Absent,
            breaking: Support::Present,
        }
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.servers.identity().await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        claim.must_be_exclusive()?;
        let attempt = match claim.queues() && self.inner.servers.client.is_fifo() {
            true => self.enqueue(claim).await?,
            false => self.attempt(claim, &self.inner.keys.of(&claim.name)?, None).await?.attempt,
        };
        match attempt {
            Attempt::Acquired(grant) if self.inner.waits_for_replicas => {
                // Larger than the rest of an attempt.
                Box::pin(self.confirm(claim, grant)).await
            }
            attempt => Ok(attempt),
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let ClientState { queues, .. } = &*self.inner.servers.client;
        if !claim.queues() || !self.inner.servers.client.is_fifo() {
            return self.wait_for_signal(claim).await;
        }
        let watches = queues.must_watch(&claim.owner);
        let signal = async {
            match watches {
                true => self.wait_for_signal(claim).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            call = queues.wait_event(&claim.owner, watches) => match call {
                WaitEvent::Retry => Ok(Wake::Retry),
                // The attempt that follows finds the lock, and makes sure of its replicas.
                WaitEvent::Granted(_) if self.inner.waits_for_replicas => Ok(Wake::Retry),
                WaitEvent::Granted(sent) => {
                    let token_key_until = sent.since + sent.lease + TOKEN_RETENTION;
                    let held = HeldLock { token: sent.token, token_key_until, connection: 0, is_new: false.into() };
                    held.grant(sent.lease, sent.since).map(Wake::Granted)
                }
            },
            wake = signal => {
                queues.invalidate(&claim.owner);
                wake
            }
        }
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.wait_for_loss(claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if self.inner.servers.are_many() {
            let mut answers = Vec::with_capacity(claims.len());
            for batch in claims.chunks(MAX_BATCH) {
                answers.extend(all(batch.iter().map(|claim| self.renew_alone(claim))).await);
            }
            return answers;
        }
        let mut answers: Vec<_> = claims.iter().map(|_| None).collect();
        let (plain, mut others) = self.sorted(claims);
        for batch in plain.chunks(MAX_BATCH) {
            match self.renew_plain(claims, batch).await {
                Ok(renewals) => {
                    zip(batch, renewals).for_each(|(&(at, _), renewal)| match renewal {
                        Some(renewal) => answers[at] = Some(renewal),
                        None => others.push(at),
                    });
                }
                Err(fault) => {
                    batch.iter().for_each(|&(at, _)| answers[at] = Some(Err(fault.repeated())));
                }
            }
        }
        for batch in others.chunks(MAX_BATCH) {
            let asked: Vec<_> = batch.iter().map(|&at| claims[at]).collect();
            match self.renew_batch(&asked).await {
                Ok(renewals) => {
                    zip(batch, renewals).for_each(|(&at, renewal)| answers[at] = Some(renewal));
                }
                Err(fault) => {
                    batch.iter().for_each(|&at| answers[at] = Some(Err(fault.repeated())));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let ClientState { waiters, queues, .. } = &*servers.client;
        waiters.leave(&claim.owner);
        queues.leave(&claim.owner);
        let keys = keys.of(&claim.name)?;
        let script = &servers.client.scripts().release;
        // Whoever was granted the lock does not stand in line any more.
        let may_wait = claim.queues() && claim.ticket.is_none();
        let channel = servers.client.channel(&keys).filter(|_| may_wait);
        let channel = channel.filter(|_| servers.client.is_fifo());
        // Who has raced in vain rings no bell: that is done with the shorter form, by who does not hold the lock, too.
        let may_hold = claim.ticket.is_some() || !claim.queues();
        let is_plain = channel.is_none() && may_hold && how == ReleaseMode::now();
        // Some server can do it.
        if is_plain && servers.client.marks() && self.delete(claim, &keys).await? {
            return Ok(Release::Released);
        }
        let call = if is_plain {
            let mut call = Call::new(script, &keys.all());
            call.arg(claim.owner.expose());
            call
        } else {
            let (tombstone, [lock, token_key, queue, processes, release_key]) =
                (keys.tombstone(&claim.owner), keys.all());
            let mut call =
                Call::new(script, &[lock, token_key, queue, processes, release_key, &tombstone]);
            let entry = channel.map(|channel| QueueEntry::of(claim, channel).to_string());
            call.arg(claim.owner.expose()).arg(how.keep.map_or(0, millis));
            call.arg(i32::from(how.expects_late_attempt())).arg(entry.unwrap_or_default());
            call
        };
        match servers.run(&Request::new("release", &keys, &call)).await?.answer {
            1 => Ok(Release::Released),
            0 => Ok(Release::NotHeld),
            other => Err(unexpected_answer("release", other)),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        type AttemptOutcome = (Option<u64>, Option<Vec<u8>>, i64, u64, String);

        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(name)?;
        let script = &servers.client.scripts().inspect;
        let alone = Call::new(script, &[keys.lock()]);
        let request = Request::new("inspect", &keys, &alone);
        let with_queue;
        let request = match servers.client.is_fifo() {
            true => {
                with_queue = Call::new(script, &[keys.lock(), keys.queue()]);
                Request::new("inspect", &keys, &with_queue).with_fallback(&alone)
            }
            // Others wait without a place, and are not known.
            false => request,
        };
        let (waiting, value, remaining, now, kind) =
            servers.run::<AttemptOutcome>(&request).await?.answer;
        let Some(value) = value else {
            return Ok(LockState::new(Vec::new(), waiting).with_key(keys.lock()));
        };
        // Whose value it is, if it is not ours, is nobody's business: it may be the right to unlock.
        let mut holder = Holder::new(None);
        if let Some(value) = Value::parse(&value) {
            holder.owner = Some(value.owner);
            holder.token = value.token();
            holder.held_for = now.checked_sub(value.token).map(Duration::from_micros);
            holder.label = value.label;
        } else if !matches!(&*kind, "" | "string") {
            holder.label = Some(Label::new(&format!("a Redis {kind}")));
        }
        holder.expires_in = duration(remaining);
        Ok(LockState::new(vec![holder], waiting).with_key(keys.lock()))
    }

    /// Servers have no index of keys, and a scan over all of them is no way to find the locks.
    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(name)?;
        let mut call = Call::new(&servers.client.scripts().break_lock, &keys.all());
        call.arg(expected.expose());
        match servers.run(&Request::new("break", &keys, &call)).await?.answer {
            1 => Ok(true),
            0 => Ok(false),
            other => Err(unexpected_answer("break", other)),
        }
    }
}

impl Redis {
    /// Has the claim stand in the line of its lock, and sees how it stands. Where that is known, the server
    /// is not asked: one of this process asks for all.
    async fn enqueue(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let Inner { servers, keys, .. } = &*self.inner;
        let (queues, keys) = (&servers.client.queues, keys.of(&claim.name)?);
        let channel = servers.client.channel(&keys).unwrap_or_default();
        let is_first_attempt = queues.enter(claim, keys.lock(), channel);
        let turn = if is_first_attempt { None } else { queues.turn(&claim.owner) };
        let _turn = match turn {
            Some(turn) => Some(turn.lock_owned().await),
            None => None,
        };
        if !is_first_attempt && let Some(expires_in) = queues.known_reply(&claim.owner) {
            return Ok(Attempt::Contended { expires_in });
        }
        let asking = PendingAttempt { queues, owner: &claim.owner, answered: false };
        let answer = self.attempt_queued(claim, &keys).await;
        asking.answered(&answer);
        if is_first_attempt
            && answer.as_ref().is_err_and(|fault| fault.effect() == Effect::NotApplied)
        {
            // Nothing is left of it anywhere: if it gives up now, nobody lets go of it.
            queues.leave(&claim.owner);
        }
        let outcome = answer.map_err(|fault| {
            match !is_first_attempt && servers.refuses_certificate(&keys) {
                // Certificates are replaced while programs run: a claim in line waits for that, too.
                true => fault::as_outage(fault),
                false => fault,
            }
        })?;
        match outcome.reply {
            None if is_first_attempt => queues.leave(&claim.owner),
            None => queues.hold(&claim.owner),
            Some(reply) => {
                queues.on_reply(&claim.owner, &reply, || !outcome.connection.is_broken());
            }
        }
        Ok(outcome.attempt)
    }

    /// Asks for a place in line. A lock that is free needs no subscription, which a cluster wants for each slot: so
    /// whoever is the first of this process asks without a place before.
    async fn attempt_queued(
        &self,
        claim: &Claim,
        keys: &LockKeys,
    ) -> Result<AttemptOutcome, Fault> {
        let Servers { client, .. } = &self.inner.servers;
        if !self.inner.servers.is_listening(keys) && client.queues.is_alone(&claim.owner) {
            // In a cluster only, so it takes no room in each future.
            let outcome = Box::pin(self.attempt(claim, keys, None)).await?;
            if matches!(outcome.attempt, Attempt::Acquired(_)) {
                return Ok(outcome);
            }
        }
        self.attempt(claim, keys, client.queues.position(&claim.owner)).await
    }

    /// Asks the server; with a place, and what is told of it, for those who stand in line.
    async fn attempt(
        &self,
        claim: &Claim,
        keys: &LockKeys,
        position: Option<QueuePosition>,
    ) -> Result<AttemptOutcome, Fault> {
        let servers = &self.inner.servers;
        let ClientState { waiters, .. } = &*servers.client;
        let arms_release_key =
            claim.queues() && position.is_none() && self.inner.wakeup == Wakeup::Signal;
        let Response { asked, connection, answer, .. } =
            self.send_attempt(claim, keys, position.as_ref(), arms_release_key).await?;
        let AcquireReply(answer, token, ms, now, flags) = answer;
        if now > 0 {
            // By this the age of the next lock that is sent is known.
            connection.record_server_time(asked, now);
        }
        match answer {
            1 => {
                waiters.leave(&claim.owner);
                self.inner.warned.forget(keys.lock());
                let lease = duration(ms).unwrap_or(claim.ttl);
                let token = token.parse().map_err(|e| unexpected_answer("acquire", e))?;
                let token_key_until = asked + lease + TOKEN_RETENTION;
                // What has taken the short way tells no time.
                let (connection_id, is_new) = (connection.id(), (now == 0).into());
                let held = HeldLock { token, token_key_until, connection: connection_id, is_new };
                let attempt = Attempt::Acquired(held.grant(lease, asked)?);
                Ok(AttemptOutcome { attempt, reply: None, connection })
            }
            0 | 2 => {
                let (holder_is_ours, expires_in) = (answer == 0, duration(ms));
                self.warn_if_stuck(&claim.name, keys.lock(), holder_is_ours, ms);
                let reply = match position {
                    None => None,
                    Some(_) => Some(QueueReply {
                        asked,
                        connection: connection.id(),
                        now,
                        arrival: token.parse().map_err(|e| unexpected_answer("acquire", e))?,
                        expires_in,
                        holder_is_ours,
                        is_next: flags & IS_NEXT != 0,
                        is_new: flags & PROCESS_IS_NEW != 0,
                        is_back: flags & WAS_REQUEUED != 0,
                    }),
                };
                let watches = match &reply {
                    Some(reply) => reply.is_next && !holder_is_ours,
                    None => claim.queues() && !servers.client.is_fifo(),
                };
                if watches {
                    waiters.enter(claim.owner, keys.watched_key(holder_is_ours));
                }
                Ok(AttemptOutcome { attempt: Attempt::Contended { expires_in }, reply, connection })
            }
            3 => Err(Fault::not_applied(FaultKind::Invalid, "this claim was let go before")),
            other => Err(unexpected_answer("acquire", other)),
        }
    }

    /// Asks in words that fit the server, which may turn out to be another one than was thought.
    async fn send_attempt(
        &self,
        claim: &Claim,
        keys: &LockKeys,
        position: Option<&QueuePosition>,
        arms_release_key: bool,
    ) -> Result<Response<AcquireReply>, Fault> {
        let (servers, waits) = (&self.inner.servers, arms_release_key || position.is_some());
        let mut before: Option<AcquireReply> = None;
        loop {
            let marks = waits && servers.client.marks();
            let call = acquire(&servers.client, claim, keys, position, arms_release_key, marks);
            let mut request = Request::new("acquire", keys, &call);
            request.channel = position.map(|position| position.entry.channel());
            let mut done = match servers.run::<AcquireReply>(&request).await {
                // It may have a place in line.
                Err(fault) if before.is_some() => {
                    return Err(Fault::unknown(fault.kind(), fault.into_source()));
                }
                answer => answer?,
            };
            if let Some(before) = &before {
                done.answer.4 |= before.4 & (PROCESS_IS_NEW | WAS_REQUEUED);
            }
            // It may have been on its way when the first server was found on which whoever waits has to mark the lock.
            if done.answer.0 == 1 || marks == (waits && servers.client.marks()) {
                return Ok(done);
            }
            before = Some(done.answer);
        }
    }

    /// Lets go of a lock by a command that does nothing but delete what has this value, if the server can do that, and if
    /// this connection has taken the lock while nobody waited: since then whoever waits has to mark it, and then it has
    /// another value. False: that remains to be done, by the script.
    async fn delete(&self, claim: &Claim, keys: &LockKeys) -> Result<bool, Fault> {
        let is_new = |held: &&HeldLock| held.is_new.load(Ordering::Relaxed);
        let Some(held) = held(claim).filter(is_new) else { return Ok(false) };
        let (link, connection) = self.inner.servers.reach(keys).await?;
        if !connection.may_delete_if_equal() || connection.id() != held.connection {
            return Ok(false);
        }
        // Whoever has to ask again asks the script, which knows an answer for everything.
        held.is_new.store(false, Ordering::Relaxed);
        let value = Value::text(&claim.owner, held.token, claim.label.as_ref());
        link.delete_if_equal(&connection, keys.lock(), &value).await
    }

    /// Keeps a grant if enough replicas know of it, and else undoes it.
    async fn confirm(&self, claim: &Claim, grant: Grant) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.ticket = grant.ticket;
        let answer =
            self.renew_batch(&[&claim]).await.and_then(|mut answers| match answers.pop() {
                Some(Ok(Renewal::Held(grant))) => Ok(grant),
                Some(Err(fault)) => Err(fault),
                _ => Err(Fault::unknown(FaultKind::Unavailable, ENDED_EARLY)),
            });
        let fault = match answer {
            Ok(mut known) => {
                // From before the attempt, though the server has counted anew since.
                known.since = grant.since;
                return Ok(Attempt::Acquired(known));
            }
            Err(fault) => fault,
        };
        let (kind, undone) = (fault.kind(), self.release(&claim, ReleaseMode::now()).await);
        Err(match undone {
            Ok(_) => Fault::not_applied(kind, fault.into_source()),
            Err(_) => Fault::unknown(kind, fault.into_source()),
        })
    }

    /// Asks the server to tell of a change, looks once, and then costs nothing until it tells.
    async fn wait_for_signal(&self, claim: &Claim) -> Result<Wake, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let (keys, ClientState { waiters, .. }) = (keys.of(&claim.name)?, &*servers.client);
        // Most have one since their attempt was contended.
        let _seat = waiters.watch_until_dropped(claim.owner, keys.release_key());
        // An attempt that does not queue leaves no trace, and so no bell.
        let mut is_armed = claim.queues();
        let mut is_string = true;
        loop {
            if let Some((watched, signals)) = waiters.not_armed(&claim.owner) {
                let (link, connection) = servers.reach(&keys).await?;
                if !connection.has_signals {
                    return Ok(self.pause(&claim.owner).await);
                }
                let outcome = link.watch(&connection, &watched, keys.lock()).await?;
                let Some((is_there, value)) = outcome else {
                    return Ok(Wake::Retry);
                };
                is_string = value.is_some();
                let value = value.unwrap_or_default();
                let holder = Value::parse(&value);
                if holder.as_ref().is_some_and(|holder| holder.owner == claim.owner) {
                    return Ok(Wake::Retry);
                }
                let watched_key = keys.watched_key(holder.is_some());
                // Who has not seen a mark may let go and ring no bell.
                let is_marked = !connection.deletes_if_equal()
                    || holder.as_ref().is_none_or(|holder| holder.is_marked);
                if watched_key != watched {
                    waiters.enter(claim.owner, watched_key);
                    continue;
                } else if is_there && is_marked {
                    waiters.arm(&claim.owner, signals);
                } else if !is_armed && holder.is_some() {
                    is_armed = true;
                    let unmarked = (!is_marked).then_some(&*value);
                    link.arm_release_key(&connection, &keys, unmarked).await?;
                    continue;
                } else {
                    // Nobody rings a bell that is not there, or knows nothing of it: it has been rung, or the server did not
                    // let us hang it up.
                    return Ok(self.pause(&claim.owner).await);
                }
            }
            waiters.woken(&claim.owner).await;
            if is_string {
                // At once: a foreign client may leave the lock free for a moment only.
                return Ok(Wake::Retry);
            }
            // Redisson renews often, and each renewal changes its hash.
        }
    }

    /// For those who are told nothing.
    async fn pause(&self, owner: &OwnerId) -> Wake {
        let pause = self.inner.servers.client.waiters.next_pause(owner);
        sleep_between(pause / 2, pause).await;
        Wake::Retry
    }

    /// Waits until the lock may have been taken away: its key has changed, or the connection by which it was
    /// proven is gone, and with it perhaps the server that had it.
    async fn wait_for_loss(&self, claim: &Claim) -> Result<(), Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let (keys, ClientState { waiters, .. }) = (keys.of(&claim.name)?, &*servers.client);
        let proven_by = held(claim).map(|held| held.connection);
        let _seat = waiters.watch_until_dropped(claim.owner, keys.lock());
        loop {
            let (link, connection) = servers.reach_again(&keys).await;
            if proven_by != Some(connection.id()) {
                return Ok(());
            }
            if connection.has_signals
                && let Some((watched, signals)) = waiters.not_armed(&claim.owner)
            {
                let Ok(outcome) = link.watch(&connection, &watched, keys.lock()).await else {
                    continue;
                };
                // Our own renewals change the key as well.
                let value = outcome.and_then(|(_, value)| Value::parse(&value?));
                if value.is_none_or(|value| value.owner != claim.owner) {
                    return Ok(());
                }
                waiters.arm(&claim.owner, signals);
            }
            waiters.woken(&claim.owner).await;
        }
    }

    /// Warns of a lock that nobody with our settings can have taken like this: its key came back when
    /// the server's clock was set back, or was changed by hand. Of other libraries we know no longest
    /// lease, only that a lock without an end outlives its holder.
    fn warn_if_stuck(&self, name: &LockName, key: &str, is_ours: bool, remaining_ms: i64) {
        let Inner { max_ttl, warned, .. } = &*self.inner;
        let remaining = duration(remaining_ms);
        if remaining_ms == -1 && warned.is_new(key) {
            tracing::warn!(
                lock.name = %name,
                redis.key = key,
                "the key of this lock has no expiry: if its holder is gone, nothing ends it; \
                 inspect it, and if nobody holds it, break the lock or delete the key"
            );
        } else if is_ours && remaining > Some(*max_ttl) && warned.is_new(key) {
            tracing::warn!(
                lock.name = %name,
                redis.key = key,
                lock.remaining = ?remaining.unwrap_or_default(),
                redis.max_ttl = ?max_ttl,
                "this lock is taken for longer than any client with this max_ttl asks for; \
                 inspect it, and if nobody holds it, break it"
            );
        }
    }

    /// Those of which all that a renewal is to change is the end of the lease, and by the same ttl, with what is known of
    /// them; and the others.
    fn sorted<'a>(&self, claims: &[&'a Claim]) -> (Vec<(usize, &'a HeldLock)>, Vec<usize>) {
        let now = Moment::now();
        let (mut plain, mut others) = (Vec::with_capacity(claims.len()), Vec::new());
        let mut ttl = None;
        for (at, claim) in claims.iter().enumerate() {
            match held(claim) {
                Some(held)
                    if !self.prolongs_token_key(held, claim.ttl, now)
                        && self.inner.servers.client.queues.position(&claim.owner).is_none()
                        && *ttl.get_or_insert(claim.ttl) == claim.ttl =>
                {
                    plain.push((at, held));
                }
                _ => others.push(at),
            }
        }
        // It is not worth a request of its own where it costs none.
        let (few, room) = (plain.len() % MAX_BATCH, others.len() % MAX_BATCH);
        if room > 0 && few + room <= MAX_BATCH {
            others.extend(plain.drain(plain.len() - few..).map(|(at, _)| at));
        }
        (plain, others)
    }

    /// Renews a batch of the plain ones. Where the server finds anything unusual it leaves them as
    /// they are: `None`.
    async fn renew_plain(
        &self,
        claims: &[&Claim],
        batch: &[(usize, &HeldLock)],
    ) -> Result<Vec<Option<Result<Renewal, Fault>>>, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let locks = batch.iter().map(|&(at, _)| keys.of(&claims[at].name));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        let (Some(some), Some(&(first, _))) = (locks.first(), batch.first()) else {
            return Ok(Vec::new());
        };
        let ttl = claims[first].ttl;
        let locks: Vec<_> = locks.iter().map(LockKeys::lock).collect();
        let mut call = Call::new(&servers.client.scripts().quick_renew, &locks);
        call.arg(millis(ttl));
        for &(at, held) in batch {
            call.arg(format!("{} {}", claims[at].owner.expose(), held.token));
        }
        let done = servers.run::<Vec<usize>>(&Request::new("renew", some, &call)).await?;
        let Response { asked, connection, answer: others, .. } = done;
        let renewed = |(token, &(_, held)): (usize, &(usize, &HeldLock))| {
            let held = HeldLock { connection: connection.id(), is_new: false.into(), ..*held };
            (!others.contains(&token)).then(|| held.grant(ttl, asked).map(Renewal::Held))
        };
        Ok((1..).zip(batch).map(renewed).collect())
    }

    /// All locks of a batch are on one server.
    async fn renew_batch(&self, claims: &[&Claim]) -> Result<Vec<Result<Renewal, Fault>>, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let ClientState { queues, .. } = &*servers.client;
        let keys = claims.iter().map(|claim| keys.of(&claim.name));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let Some(some) = keys.first() else { return Ok(Vec::new()) };
        let all: Vec<_> = keys.iter().flat_map(LockKeys::all).collect();
        let mut call = Call::new(&servers.client.scripts().renew, &all);
        let prolonged: Vec<_> = claims.iter().map(|claim| self.add(&mut call, claim)).collect();
        let request = Request::new("renew", some, &call).replicated(self.inner.waits_for_replicas);
        let done = servers.run::<Vec<(String, i64)>>(&request).await?;
        let Response { asked, connection, answer: answers, missing, .. } = done;
        if answers.len() != claims.len() {
            return Err(unexpected_answer("renew", format!("{} answers", answers.len())));
        }
        claims.iter().for_each(|claim| queues.hold(&claim.owner));
        let renewals = claims.iter().zip(prolonged).zip(answers);
        let renewals = renewals.map(|((claim, prolonged), answer)| match &missing {
            Some(missing) if !answer.0.is_empty() => Err(missing.repeated()),
            _ => renewed(claim, asked, connection.id(), prolonged, answer),
        });
        Ok(renewals.collect())
    }

    /// A lock that shares its server with others by chance. While the keys of its slot are being moved to another
    /// member, one after the other, its own key is renewed alone: it is always somewhere.
    async fn renew_alone(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(&claim.name)?;
        let script = &servers.client.scripts().renew;
        let mut call = Call::new(script, &keys.all());
        let prolonged = self.add(&mut call, claim);
        let mut alone = Call::new(script, &[keys.lock(); 5]);
        alone.arg(claim.owner.expose()).arg(millis(claim.ttl)).arg(0).arg("");
        let request = Request::new("renew", &keys, &call).with_fallback(&alone);
        let request = request.replicated(self.inner.waits_for_replicas);
        let mut done = servers.run::<Vec<(String, i64)>>(&request).await?;
        let (Some(answer), 0) = (done.answer.pop(), done.answer.len()) else {
            return Err(unexpected_answer("renew", "another number of answers"));
        };
        if !done.fallback {
            servers.client.queues.hold(&claim.owner);
        }
        if let Some(missing) = done.missing.filter(|_| !answer.0.is_empty()) {
            return Err(missing);
        }
        let prolonged = prolonged && !done.fallback;
        renewed(claim, done.asked, done.connection.id(), prolonged, answer)
    }

    /// Adds the renewal of a claim, whose keys it has; true if its fence is to be prolonged.
    fn add(&self, call: &mut Call, claim: &Claim) -> bool {
        let now = Moment::now();
        let prolong = held(claim).is_none_or(|held| self.prolongs_token_key(held, claim.ttl, now));
        call.arg(claim.owner.expose()).arg(millis(claim.ttl)).arg(i32::from(prolong));
        // Who was sent the lock and has not said so yet is still known as a waiter.
        let position = self.inner.servers.client.queues.position(&claim.owner);
        call.arg(position.map(|position| position.entry.to_string()).unwrap_or_default());
        prolong
    }

    /// True if the fence is to be prolonged. Whoever waits for replicas has a write of its own to be acknowledged.
    fn prolongs_token_key(&self, held: &HeldLock, ttl: Duration, now: Moment) -> bool {
        self.inner.waits_for_replicas || held.token_key_expires_soon(now, ttl)
    }
}

/// What the server answers to a renewal that was asked for then, on that connection.
fn renewed(
    claim: &Claim,
    asked: Moment,
    connection: u64,
    prolonged: bool,
    (token, ms): (String, i64),
) -> Result<Renewal, Fault> {
    if token.is_empty() {
        return Ok(Renewal::NotHeld);
    }
    let lease = duration(ms).unwrap_or(claim.ttl);
    let token = token.parse().map_err(|e| unexpected_answer("renew", e))?;
    let token_key_until = match held(claim) {
        Some(held) if !prolonged => held.token_key_until,
        _ => asked + lease + TOKEN_RETENTION * 2,
    };
    HeldLock { token, token_key_until, connection, is_new: false.into() }
        .grant(lease, asked)
        .map(Renewal::Held)
}

/// What came of an attempt.
struct AttemptOutcome {
    attempt: Attempt,
    /// To somebody in line.
    reply: Option<QueueReply>,
    connection: Connection,
}

/// What `quick_acquire.lua` answers.
struct AcquireReply(i64, String, i64, u64, u8);

impl FromRedisValue for AcquireReply {
    fn from_redis_value(answer: redis::Value) -> Result<Self, ParsingError> {
        if let redis::Value::BulkString(_) = answer {
            return Ok(Self(1, from_redis_value(answer)?, -1, 0, 0));
        }
        let (answer, token, ms, now, flags) = from_redis_value(answer)?;
        Ok(Self(answer, token, ms, now, flags))
    }
}

/// The call of `quick_acquire.lua`. Empty arguments at the end are left out. For a claim in line,
/// [`Request::channel`] adds the last one.
fn acquire(
    client: &ClientState,
    claim: &Claim,
    keys: &LockKeys,
    position: Option<&QueuePosition>,
    arms_release_key: bool,
    marks: bool,
) -> Call {
    let ([lock, token_key, queue, processes, release_key], tombstone) =
        (keys.all(), keys.tombstone(&claim.owner));
    let keys = [lock, token_key, queue, processes, &tombstone, release_key];
    let keys = keys.get(..if arms_release_key { 6 } else { 5 }).unwrap_or_default();
    let mut call = Call::new(&client.scripts().acquire, keys);
    call.arg(claim.owner.expose()).arg(millis(claim.ttl)).arg(millis(claim.ttl + TOKEN_RETENTION));
    let label = shown(claim.label.as_ref());
    let token = |token: Option<u64>| token.map(|token| token.to_string()).unwrap_or_default();
    let arrival = token(position.and_then(|position| position.arrival));
    let min_token = token(claim.min_token.map(FencingToken::backend_number));
    let marks = if marks { "1" } else { "" };
    let optional = [label, &arrival, marks, &min_token];
    let last = optional.iter().rposition(|text| !text.is_empty());
    // The channel follows all of them.
    let given = if position.is_some() { optional.len() } else { last.map_or(0, |last| last + 1) };
    for text in optional.iter().take(given) {
        call.arg(*text);
    }
    call
}

/// An attempt of somebody in line, who may have been told of lost places and not have heard it.
struct PendingAttempt<'a> {
    queues: &'a Queues,
    owner: &'a OwnerId,
    answered: bool,
}

impl PendingAttempt<'_> {
    fn answered<T>(mut self, answer: &Result<T, Fault>) {
        self.answered =
            answer.as_ref().err().is_none_or(|fault| fault.effect() == Effect::NotApplied);
        if answer.is_err() {
            self.queues.invalidate(self.owner);
        }
    }
}

impl Drop for PendingAttempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.queues.invalidate_all(self.owner);
        }
    }
}

impl WarnedLocks {
    fn is_new(&self, key: &str) -> bool {
        let mut keys = self.keys();
        keys.len() < MAX_STUCK && keys.insert(key.to_owned())
    }

    fn forget(&self, key: &str) {
        let mut keys = self.keys();
        // Nearly always.
        if !keys.is_empty() {
            keys.remove(key);
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldLock {
    fn grant(self, lease: Duration, since: Moment) -> Result<Grant, Fault> {
        let token = FencingToken::from_backend(self.token)
            .ok_or_else(|| unexpected_answer("read the fencing token", self.token))?;
        Ok(Grant::new(Lease::For(lease), since).with_token(token).with_ticket(Ticket::new(self)))
    }

    /// True if the fence might not outlive a lease that starts now by what it should.
    fn token_key_expires_soon(&self, now: Moment, ttl: Duration) -> bool {
        now + ttl + TOKEN_RETENTION > self.token_key_until
    }
}

fn held(claim: &Claim) -> Option<&HeldLock> {
    claim.ticket.as_ref()?.get()
}

/// In whole milliseconds, rounded up: no lease is shorter than what was asked for. Core has checked
/// the limits; a number that the server cannot carry is cut all the same.
pub(crate) fn millis(duration: Duration) -> u64 {
    let whole = duration.min(MAX_TTL).as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// What the server says in milliseconds; `None` if it has no end.
fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use conformance_tests::servers::{Redis as Server, RedisOptions};
    use lock_core::LockName;

    use super::*;

    /// Core does not release a claim whose only attempt certainly did nothing.
    #[tokio::test]
    async fn who_was_refused_at_once_is_not_known_any_more() {
        let server = Server::start(RedisOptions::new());
        let redis = Redis::connect(server.url()).await.unwrap();
        let limit = ["CONFIG", "SET", "maxmemory", "1"];
        server.connect().unwrap().command(&limit).unwrap();
        let name = LockName::new("n").unwrap();
        let mut claim = Claim::new(name, OwnerId::mint(), Duration::from_secs(30));
        claim.on_contention = lock_core::backend::OnContention::Queue;
        let fault = redis.try_acquire(&claim).await.unwrap_err();
        assert_eq!(fault.effect(), Effect::NotApplied);
        assert!(redis.inner.servers.client.queues.is_empty());
    }
}
