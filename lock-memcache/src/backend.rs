//! The verbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, HoldKind, Holder, Identity, Lease, Listed,
    LockState, Release, ReleaseMode, Renewal, Ticket, Wake,
};
use lock_core::clock::Moment;
use lock_core::{
    Capabilities, Durability, Error, Executor, Fencing, FencingToken, LockName, Order, OwnerId,
    Reach, Support, Takeover, Wakeup,
};
use tokio::task::JoinSet;
use tracing::instrument::WithSubscriber;

use crate::config::{Config, Credentials};
use crate::fault::{self, OUT_OF_MEMORY, unexpected_reply};
use crate::holds::{HoldState, HoldTicket, Holds};
use crate::keys::{Keys, server_of};
use crate::link::{Connection, Endpoint, Link, stat};
use crate::token_counter::{self, TokenCounter, drawn};
use crate::value::Value;
use crate::waiters::{KeyWaiters, LONGEST_PAUSE, Waiters};
use crate::wire::{Item, Reply, Request};

/// A round trip takes one or two.
const TTL_MIN: Duration = Duration::from_millis(10);

/// A server takes more seconds for a date, long gone: the lock would be everybody's at once.
const MAX_EXPTIME: u64 = 30 * 24 * 3600;

/// So that what is added to each lease fits as well.
const TTL_MAX: Duration = Duration::from_secs(MAX_EXPTIME - 3);

/// How late a server may be with the ticks of its clock before leases end early.
const STALL: Duration = Duration::from_millis(250);

/// What may be left of a lease on the server when it is over.
const MAX_EXCESS: Duration = Duration::from_millis(3250);

/// How often a verb looks again because somebody else has changed the key since its last look.
const MAX_ROUNDS: u32 = 16;

/// How often the counter is raised only if nobody else has drawn from it meanwhile.
const MAX_RAISES: u32 = 16;

/// Where an identity of the server stands, if somebody has asked for it: of no lock, since no escape
/// begins like this.
const IDENTITY_KEY: &str = "%server";

/// By how many seconds the uptime that a server tells may be more than the truth: its count begins at 2, and the
/// fractions of when it began and of now are cut off.
const UPTIME_EXCESS: u64 = 3;

/// Locks on memcached servers. Clones share one connection to each server.
///
/// See the [crate's documentation](crate) for what they promise, and what not: they are advisory.
#[derive(Clone, Debug)]
pub struct Memcached {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    keys: Keys,
    counter_key: String,
    names: Vec<String>,
    servers: Vec<Server>,
    holds: Arc<Holds>,
    waiters: Waiters,
    executor: Executor,
}

#[derive(Clone, Debug)]
struct Server {
    link: Arc<Link>,
    counter: Arc<TokenCounter>,
}

/// What stands under the key of a lock.
enum StoredItem {
    Nothing,
    /// A value of ours, of whatever owner.
    Ours(Value, Item),
    Foreign(Item),
}

impl Memcached {
    /// Connects to all servers: of a URL as in [`Config::new`], or of a [`Config`].
    ///
    /// Of several servers, those that are down do not keep the others from being used: that is warned about
    /// by `tracing`, their locks fail as unavailable, and they are connected to when they are needed and back.
    ///
    /// Where there is no counter of fencing tokens yet, one is begun; that takes a second or two. Also warns
    /// of servers that may evict locks, or have evicted something.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): no server can be reached, or none
    ///   answers;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or none;
    /// * [`ErrorKind::Unsupported`](lock_core::ErrorKind::Unsupported): a server is older than 1.6, or runs
    ///   without CAS numbers (`-C`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the attempt up.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let Config { servers: names, credentials, keys } =
            config.try_into().map_err(Error::from)?;
        let counter_key = keys.counter();
        let executor = Executor::current_or_new()?;
        let servers: Vec<Server> =
            names.iter().map(|address| Server::at(address, credentials.as_ref())).collect();
        let connecting = connect_all(&servers, &counter_key);
        executor.within(connecting).await.map_err(fault::error)?;
        let (holds, waiters) = (Arc::default(), Waiters::default());
        let inner = Inner { keys, counter_key, names, servers, holds, waiters, executor };
        Ok(Self { inner: Arc::new(inner) })
    }
}

/// All at once: those that are down take their time. One that answers, and refuses, is an error; so is a
/// fleet of which none answers.
async fn connect_all(servers: &[Server], counter_key: &str) -> Result<(), Fault> {
    let mut connecting = JoinSet::new();
    for server in servers {
        let (server, key) = (server.clone(), counter_key.to_owned());
        let connect = async move { (server.ensure_counter(&key).await, server) };
        connecting.spawn(connect.with_current_subscriber());
    }
    let (mut is_one_up, mut down) = (false, None);
    while let Some(ended) = connecting.join_next().await {
        match ended {
            Ok((Ok(()), _)) => is_one_up = true,
            Ok((Err(fault), server)) if fault.kind() == FaultKind::Unavailable => {
                let why = fault.into_source();
                tracing::warn!(memcache.server = server.link.address(), %why, "a server is down");
                down = Some(Fault::not_applied(FaultKind::Unavailable, why));
            }
            Ok((Err(fault), _)) => return Err(fault),
            Err(_) => {
                let why = "the runtime has ended";
                return Err(Fault::not_applied(FaultKind::Unavailable, why));
            }
        }
    }
    down.filter(|_| !is_one_up).map_or(Ok(()), Err)
}

#[async_trait]
impl Backend for Memcached {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            backend: "memcache",
            fencing: Fencing::Seeded,
            order: Order::PerProcess,
            wakeup: Wakeup::Poll,
            durability: Durability::Advisory,
            reach: Reach::Network,
            ttl_min: TTL_MIN,
            ttl_max: TTL_MAX,
            margin: Duration::from_millis(2),
            takeover: Takeover::LeasePlus(MAX_EXCESS + LONGEST_PAUSE * 2),
            detached: Support::Present,
            minimum_hold: Support::Absent,
            late_attempts_refused: Support::Absent,
            min_token_supported: Support::Present,
            loss_push: Support::Absent,
            inspecting: Support::Present,
            listing: Support::Absent,
            breaking: Support::Present,
        }
    }

    /// Of several servers none is *the* server. One that has been flushed has forgotten which one it
    /// was: older connections know an identity that no new one learns.
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let [server] = self.inner.servers.as_slice() else { return Ok(None) };
        let connection = server.link.connection().await?;
        let request =
            Request::new().add(IDENTITY_KEY, 0, &OwnerId::mint().expose()).get(IDENTITY_KEY);
        let (_, mut replies) = connection.ask(&request).await?;
        let Some(Reply::Value(Item { value: Some(id), .. })) = replies.pop() else {
            return Ok(None);
        };
        // PendingRequest afterwards: until now, no flush has deleted the key.
        let stats = connection.stats("").await?;
        if stat(&stats, "cmd_flush") != Some("0") {
            return Ok(None);
        }
        let up_for = stat(&stats, "uptime").and_then(|seconds| seconds.parse().ok());
        let up_for =
            up_for.map(|uptime: u64| Duration::from_secs(uptime.saturating_sub(UPTIME_EXCESS)));
        let identity = Identity::new(String::from_utf8_lossy(&id), up_for);
        Ok(Some(identity.during(server.link.epoch_of(&connection))))
    }

    /// Takes the lock, looks what stands there now, and draws a token, in one round trip: whether the
    /// token is of any worth is known when the answers are.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        claim.must_be_exclusive()?;
        let (key, server) = self.inner.server_of_lock(&claim.name);
        let answer = self.inner.attempt(server, &key, claim).await;
        match &answer {
            Ok(Attempt::Acquired(_)) => self.inner.waiters.leave(&claim.owner, &key),
            Ok(Attempt::Contended { .. }) if claim.queues() => {
                self.inner.waiters.join(claim.owner, &key);
            }
            _ => {}
        }
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let (key, server) = self.inner.server_of_lock(&claim.name);
        let waiters = match claim.queues() {
            true => self.inner.waiters.join(claim.owner, &key),
            false => Arc::new(KeyWaiters::default()),
        };
        let is_free = || async {
            let connection = server.link.connection().await?;
            match connection.ask_one(&Request::new().exists(&key)).await? {
                Reply::Missing => Ok(true),
                Reply::Done => Ok(false),
                other => Err(other.unexpected("look at a lock")),
            }
        };
        waiters.wait(is_free).await?;
        Ok(Wake::Retry)
    }

    /// All requests are on their way before the first answer is waited for.
    async fn wait_lost(&self, _: &Claim) -> Result<(), Fault> {
        Err(Fault::unsupported("notifications of a loss"))
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut under_way = Vec::with_capacity(claims.len());
        for claim in claims {
            let (key, server) = self.inner.server_of_lock(&claim.name);
            let begun = match server.link.connection().await {
                Ok(connection) => {
                    let (request, extension) = first_extension(claim, &key, &connection);
                    Ok((connection.ask(&request), extension, connection))
                }
                Err(fault) => Err(fault),
            };
            under_way.push((begun, key, server));
        }
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, (begun, key, server)) in claims.iter().zip(under_way) {
            answers.push(match begun {
                Ok((answer, extension, connection)) => match answer.await {
                    Ok(answer) => {
                        let held_key = HeldKey { claim, key: &key, server, connection };
                        self.inner.extend(&held_key, extension, answer).await.map(|held| match held
                        {
                            Some(grant) => Renewal::Held(grant),
                            None => Renewal::NotHeld,
                        })
                    }
                    Err(fault) => Err(fault),
                },
                Err(fault) => Err(fault),
            });
        }
        answers
    }

    async fn release(&self, claim: &Claim, _: ReleaseMode) -> Result<Release, Fault> {
        let (key, server) = self.inner.server_of_lock(&claim.name);
        self.inner.waiters.leave(&claim.owner, &key);
        let connection = server.link.connection().await?;
        let known = held(claim).map(HoldTicket::known);
        let here = known.filter(|known| known.connection == connection.id());
        let seen = here.map(|known| (known.cas, known.attempt));
        // What a late attempt has left goes as well, and is not what was granted.
        match delete(&connection, &key, &claim.owner, seen, "release a lock").await? {
            Some(attempt) if known.is_none_or(|known| known.attempt == attempt) => {
                Ok(Release::Released)
            }
            _ => Ok(Release::NotHeld),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let (key, server) = self.inner.server_of_lock(name);
        let connection = server.link.connection().await?;
        let reply = connection.ask_one(&Request::new().get(&key)).await?;
        // Whose value it is, if it is not ours, is nobody's business: it may be the right to unlock.
        let mut holder = Holder::new(None);
        let item = match seen(Some(reply), "inspect a lock")? {
            StoredItem::Nothing => return Ok(LockState::new(Vec::new(), None).with_key(key)),
            StoredItem::Foreign(item) => item,
            StoredItem::Ours(value, item) => {
                holder.owner = Some(value.owner);
                holder.token = value.token();
                holder.label = value.label;
                item
            }
        };
        holder.expires_in = item.expires_in.map(Duration::from_secs);
        Ok(LockState::new(vec![holder], None).with_key(key))
    }

    /// Servers have no index of keys, and list them all only to who may slow them down.
    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let (key, server) = self.inner.server_of_lock(name);
        let connection = server.link.connection().await?;
        Ok(delete(&connection, &key, expected, None, "break a lock").await?.is_some())
    }
}

impl Inner {
    fn server_of_lock(&self, name: &LockName) -> (String, &Server) {
        let key = self.keys.of(name);
        let server = &self.servers[server_of(&self.names, &key)];
        (key, server)
    }

    async fn attempt(&self, server: &Server, key: &str, claim: &Claim) -> Result<Attempt, Fault> {
        const DOING: &str = "take a lock";

        for _ in 0..MAX_ROUNDS {
            let connection = server.link.connection().await?;
            let attempt = next_attempt();
            let value = Value::format(claim, attempt, None);
            let request = Request::new().add(key, exptime(claim.ttl), &value).get(key).increment(
                &self.counter_key,
                1,
                token_counter::COUNTER_TTL,
            );
            let (since, replies) = connection.ask(&request).await?;
            let mut replies = replies.into_iter();
            let (added, looked, draw) = (replies.next(), replies.next(), replies.next());
            match (added, looked) {
                (Some(Reply::Stored), Some(Reply::Value(item))) if item.is(&value) => {
                    let taken = Stored { attempt, cas: item.cas, since };
                    let held_key = HeldKey { claim, key, server, connection };
                    let grant = self.finish(&held_key, taken, draw).await;
                    if let Some(grant) = grant.map_err(fault::with_unknown_effect)? {
                        return Ok(Attempt::Acquired(grant));
                    }
                }
                (Some(Reply::Stored), looked @ Some(_)) => {
                    match seen(looked, DOING).map_err(fault::with_unknown_effect)? {
                        // Flushed, evicted or broken at once; somebody else may have it by now.
                        StoredItem::Nothing => {}
                        // Renewed at once by another client: the next attempt finds the lock taken by us.
                        StoredItem::Ours(value, _) if value.owner == claim.owner => {}
                        StoredItem::Ours(_, item) | StoredItem::Foreign(item) => {
                            return Ok(contended(&item));
                        }
                    }
                }
                (Some(refusal), None) => return Err(refusal.unexpected(DOING)),
                (Some(added), looked @ Some(_)) => match seen(looked, DOING)? {
                    StoredItem::Ours(value, item) if value.owner == claim.owner => {
                        let held_key = HeldKey { claim, key, server, connection };
                        // Boxed, as all that is rare: the future of each attempt is small without it.
                        let repeated = Box::pin(self.repeat(&held_key, value, item)).await?;
                        if let Some(grant) = repeated {
                            return Ok(Attempt::Acquired(grant));
                        }
                    }
                    StoredItem::Ours(_, item) | StoredItem::Foreign(item) => {
                        return Ok(contended(&item));
                    }
                    StoredItem::Nothing if added == Reply::NotStored => {
                        return Ok(Attempt::Contended { expires_in: Some(Duration::ZERO) });
                    }
                    StoredItem::Nothing => return Err(added.unexpected(DOING)),
                },
                (None, _) => return Err(unexpected_reply(DOING, "nothing")),
            }
        }
        Err(contested_key(key))
    }

    /// The lock is taken; the grant, if there is a token for it. Without a counter to draw from, the lock is
    /// given back while one is begun.
    async fn finish(
        &self,
        taking: &HeldKey<'_>,
        taken: Stored,
        draw: Option<Reply>,
    ) -> Result<Option<Grant>, Fault> {
        let (claim, Stored { attempt, cas, since }) = (taking.claim, taken);
        let (until, connection) = (since + claim.ttl, taking.connection.id());
        let known = |number| HoldState { attempt, number, cas, connection, until };
        match drawn(draw)? {
            Some(number)
                if shortfall(claim, number).is_none() && claim.hold == HoldKind::Guarded =>
            {
                token_counter::check(&taking.connection, &self.counter_key, number).await?;
                self.grant(claim.owner, known(number), since).map(Some)
            }
            Some(number) => Box::pin(self.record_token(taking, known(number))).await,
            None => Box::pin(self.give_back(taking, (cas, attempt))).await,
        }
    }

    /// Raises the number of a lock that was just taken if need be, and writes it. Whoever renews a detached
    /// lock knows nothing but the owner, and has to see that it was granted.
    async fn record_token(
        &self,
        taking: &HeldKey<'_>,
        known: HoldState,
    ) -> Result<Option<Grant>, Fault> {
        let (request, extension) = extend_known(taking.claim, taking.key, known);
        self.extend(taking, extension, taking.connection.ask(&request).await?).await
    }

    async fn give_back(
        &self,
        HeldKey { claim, key, server, connection }: &HeldKey<'_>,
        seen: (u64, u64),
    ) -> Result<Option<Grant>, Fault> {
        delete(connection, key, &claim.owner, Some(seen), "give a lock back").await?;
        server.counter.begin(&server.link, &self.counter_key).await?;
        Ok(None)
    }

    async fn draw(&self, connection: &Connection, by: u64) -> Result<Option<u64>, Fault> {
        let request = Request::new().increment(&self.counter_key, by, token_counter::COUNTER_TTL);
        drawn(Some(connection.ask_one(&request).await?))
    }

    /// The attempt of a claim that holds the lock already, as it does after a lost answer: it takes what an
    /// earlier attempt took, as that one's grant, or as a new one if another one had been granted.
    async fn repeat(
        &self,
        held_key: &HeldKey<'_>,
        value: Value,
        item: Item,
    ) -> Result<Option<Grant>, Fault> {
        let known = self.holds.get(&held_key.claim.owner).map(|held| held.known());
        let known = known.filter(|known| known.attempt == value.attempt);
        let extension = Extension {
            attempt: Some(value.attempt),
            number: known.map(|known| known.number).or(value.number),
            until: known.map(|known| known.until),
            ..Extension::default()
        };
        let (request, extension) = self.extend_seen(held_key, extension, value.attempt, &item);
        let answer = held_key.connection.ask(&request).await?;
        self.extend(held_key, extension, answer).await
    }

    /// The request that prolongs what was seen to be ours.
    fn extend_seen(
        &self,
        held_key: &HeldKey<'_>,
        extension: Extension,
        attempt: u64,
        item: &Item,
    ) -> (Request, Extension) {
        let claim = held_key.claim;
        let left = extension.until.map(Moment::remaining).unwrap_or_default();
        // Never shorter than what is left of it on the server.
        let left_there = item.expires_in.unwrap_or(0).min(MAX_EXPTIME);
        let exptime = exptime(claim.ttl.max(left)).max(left_there);
        let value = Value::format(claim, attempt, extension.number);
        let mut request = Request::new();
        let draws = extension.number.is_none_or(|number| shortfall(claim, number).is_some());
        request = match extension.out_of_memory {
            true => request.touch_if(held_key.key, exptime, item.cas),
            false => request.cas(held_key.key, exptime, &value, item.cas),
        };
        request = request.get(held_key.key);
        if draws {
            request = request.increment(&self.counter_key, 1, token_counter::COUNTER_TTL);
        }
        (request, Extension { attempt: Some(attempt), writes: true, draws: draws, ..extension })
    }

    /// Goes on until it is clear whether the lease was prolonged; `None` if the lock is not the claim's.
    async fn extend(
        &self,
        held_key: &HeldKey<'_>,
        mut extension: Extension,
        mut answer: (Moment, Vec<Reply>),
    ) -> Result<Option<Grant>, Fault> {
        const DOING: &str = "extend a lock";

        let HeldKey { claim, key, server, connection } = held_key;
        for _ in 0..MAX_ROUNDS {
            let (since, replies) = answer;
            let mut replies = replies.into_iter();
            let written = if extension.writes { replies.next() } else { None };
            let looked = seen(replies.next(), DOING)?;
            let (value, item) = match looked {
                StoredItem::Ours(value, item) if value.owner == claim.owner => (value, item),
                _ => return Ok(None),
            };
            if !extension.is_of(&value) {
                // It keeps the lock shut for nobody.
                let seen = Some((item.cas, value.attempt));
                delete(connection, key, &claim.owner, seen, "end a late attempt").await?;
                return Ok(None);
            }
            match written {
                Some(Reply::Stored | Reply::Done) => {
                    let until = extension.until.unwrap_or(since).max(since + claim.ttl);
                    extension.until = Some(until);
                    let number =
                        if extension.draws { drawn(replies.next())? } else { extension.number };
                    match self.raise_counter(held_key, number).await? {
                        Some(number) if shows_token(claim, &value, number) => {
                            token_counter::check(connection, &self.counter_key, number).await?;
                            let (attempt, connection) = (value.attempt, connection.id());
                            let known =
                                HoldState { attempt, number, cas: item.cas, connection, until };
                            return self.grant(claim.owner, known, since).map(Some);
                        }
                        Some(_) if extension.out_of_memory => {
                            return Err(fault::refused(DOING, OUT_OF_MEMORY));
                        }
                        Some(number) => extension.number = Some(number),
                        None => server.counter.begin(&server.link, &self.counter_key).await?,
                    }
                }
                // A foreign hand has touched it, or it is known from before a new connection.
                Some(Reply::Exists | Reply::Missing) | None => {}
                Some(Reply::Refused(text)) if text.starts_with(OUT_OF_MEMORY) => {
                    if extension.out_of_memory {
                        return Err(fault::refused(DOING, &text));
                    }
                    extension.out_of_memory = true;
                }
                Some(other) => return Err(other.unexpected(DOING)),
            }
            extension.number = extension.number.or(value.number);
            let (request, next) = self.extend_seen(held_key, extension, value.attempt, &item);
            extension = next;
            answer = connection.ask(&request).await?;
        }
        Err(contested_key(key))
    }

    /// The number, or a higher one if the claim asks for that; `None` without a counter.
    ///
    /// What is missing is added to what it is missing from, unless others draw all the time: of several who raise
    /// the counter at once each would add to what the others have added. Then it were far ahead of the clock,
    /// and a restart would go back behind it.
    async fn raise_counter(
        &self,
        HeldKey { claim, connection, .. }: &HeldKey<'_>,
        number: Option<u64>,
    ) -> Result<Option<u64>, Fault> {
        let Some(number) = number else { return Ok(None) };
        let Some(mut by) = shortfall(claim, number) else { return Ok(Some(number)) };
        for _ in 0..MAX_RAISES {
            // To look changes nothing, so those who raise are in each other's way only where one has done it.
            let looked = connection.ask_one(&Request::new().get(&self.counter_key)).await?;
            let cas = if let Reply::Value(item) = &looked { item.cas } else { 0 };
            let Some(now) = drawn(Some(looked))? else { return Ok(None) };
            let Some(missing) = shortfall(claim, now) else {
                return self.draw(connection, 1).await;
            };
            by = missing;
            let request =
                Request::new().increment_if(&self.counter_key, by, token_counter::COUNTER_TTL, cas);
            match connection.ask_one(&request).await? {
                Reply::Exists => {}
                raised => return drawn(Some(raised)),
            }
        }
        self.draw(connection, by).await
    }

    fn grant(&self, owner: OwnerId, known: HoldState, since: Moment) -> Result<Grant, Fault> {
        let token = FencingToken::from_backend(known.number)
            .ok_or_else(|| unexpected_reply("read the fencing token", known.number))?;
        let lease = Lease::For(known.until.saturating_since(since));
        let held = self.holds.note(owner, known);
        Ok(Grant::new(lease, since).with_token(token).with_ticket(Ticket::new(held)))
    }
}

impl Server {
    fn at(address: &str, credentials: Option<&Credentials>) -> Self {
        let endpoint = Endpoint::new(address, credentials);
        Self { link: Arc::new(Link::to(endpoint)), counter: Arc::default() }
    }

    async fn ensure_counter(&self, key: &str) -> Result<(), Fault> {
        let connection = self.link.connection().await?;
        let reply = connection
            .ask_one(&Request::new().increment(key, 1, token_counter::COUNTER_TTL))
            .await?;
        match drawn(Some(reply))? {
            Some(number) => token_counter::check(&connection, key, number).await,
            None => self.counter.begin(&self.link, key).await,
        }
    }
}

/// A lock that was just taken.
struct Stored {
    attempt: u64,
    cas: u64,
    since: Moment,
}

/// A lock that is held, and where.
struct HeldKey<'a> {
    claim: &'a Claim,
    key: &'a str,
    server: &'a Server,
    connection: Connection,
}

/// What was asked last, and with what in mind.
#[derive(Clone, Copy, Debug, Default)]
struct Extension {
    /// The request wrote before it looked.
    writes: bool,
    /// And drew a token after that.
    draws: bool,
    /// Which attempt was granted. Whoever does not know takes one whose number stands there: it was.
    attempt: Option<u64>,
    number: Option<u64>,
    until: Option<Moment>,
    /// What needs memory was refused.
    out_of_memory: bool,
}

impl Extension {
    fn knowing(known: HoldState) -> Self {
        let HoldState { attempt, number, until, .. } = known;
        let (attempt, number, until) = (Some(attempt), Some(number), Some(until));
        Self { attempt, number, until, ..Self::default() }
    }

    fn is_of(&self, value: &Value) -> bool {
        self.attempt.map_or(value.number.is_some(), |attempt| attempt == value.attempt)
    }
}

/// One of a claim's attempts: unlike all others of this process, so of this owner.
fn next_attempt() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);

    COUNT.fetch_add(1, Ordering::Relaxed)
}

/// The first request of a renewal: with what is known, or to find out.
fn first_extension(claim: &Claim, key: &str, connection: &Connection) -> (Request, Extension) {
    match held(claim).map(HoldTicket::known) {
        Some(known) if known.connection == connection.id() => extend_known(claim, key, known),
        known => (Request::new().get(key), known.map(Extension::knowing).unwrap_or_default()),
    }
}

/// The request that prolongs what nobody else has touched.
fn extend_known(claim: &Claim, key: &str, known: HoldState) -> (Request, Extension) {
    let value = Value::format(claim, known.attempt, Some(known.number));
    let exptime = exptime(claim.ttl.max(known.until.remaining()));
    let request = Request::new().cas(key, exptime, &value, known.cas).get(key);
    (request, Extension { writes: true, ..Extension::knowing(known) })
}

/// Deletes what stands there if it is `owner`'s, and tells which attempt it was of. In one round trip if its
/// CAS number was `seen`, with its attempt: on this connection, so by this life of the server.
async fn delete(
    connection: &Connection,
    key: &str,
    owner: &OwnerId,
    mut seen: Option<(u64, u64)>,
    doing: &'static str,
) -> Result<Option<u64>, Fault> {
    for _ in 0..MAX_ROUNDS {
        if let Some((cas, attempt)) = seen {
            match connection.ask_one(&Request::new().delete(key, cas)).await? {
                Reply::Done => return Ok(Some(attempt)),
                Reply::Missing => return Ok(None),
                Reply::Exists => {}
                other => return Err(other.unexpected(doing)),
            }
        }
        let reply = connection.ask_one(&Request::new().get(key)).await?;
        match self::seen(Some(reply), doing)? {
            StoredItem::Ours(value, item) if value.owner == *owner => {
                seen = Some((item.cas, value.attempt));
            }
            _ => return Ok(None),
        }
    }
    Err(contested_key(key))
}

/// Whether the value says all that has to be seen of a grant, and nothing else: who renews a detached lock knows
/// nothing but the owner, and late attempts have no number.
fn shows_token(claim: &Claim, value: &Value, number: u64) -> bool {
    match value.number {
        // It may have been raised since.
        Some(shown) => shown == number,
        None => claim.hold != HoldKind::Detached,
    }
}

fn seen(reply: Option<Reply>, doing: &'static str) -> Result<StoredItem, Fault> {
    match reply {
        Some(Reply::Missing) => Ok(StoredItem::Nothing),
        Some(Reply::Value(item)) => Ok(match item.value.as_deref().and_then(Value::parse) {
            Some(value) => StoredItem::Ours(value, item),
            None => StoredItem::Foreign(item),
        }),
        Some(other) => Err(other.unexpected(doing)),
        None => Err(unexpected_reply(doing, "nothing")),
    }
}

fn contended(item: &Item) -> Attempt {
    Attempt::Contended { expires_in: item.expires_in.map(Duration::from_secs) }
}

/// By how much a number is too low for what the claim asks for, if it is.
fn shortfall(claim: &Claim, number: u64) -> Option<u64> {
    let min_token = claim.min_token?.backend_number();
    (number <= min_token).then(|| min_token - number + 1)
}

/// In whole seconds, of which the server may take two off. Its clock is a number that is set once a
/// second, to the seconds that have passed: so it is behind by less than one for the fraction, and by
/// less than one, and what a tick is late, for the time since the last tick. So the holder has always given
/// up first.
fn exptime(lease: Duration) -> u64 {
    let lease = lease.min(TTL_MAX) + STALL;
    lease.as_secs() + u64::from(lease.subsec_nanos() > 0) + 2
}

fn held(claim: &Claim) -> Option<&HoldTicket> {
    claim.ticket.as_ref()?.get::<Arc<HoldTicket>>().map(|held| &**held)
}

fn contested_key(key: &str) -> Fault {
    let why = format!("somebody else changes the key {key:?} all the time");
    Fault::unknown(FaultKind::Unavailable, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_and_stay_relative() {
        let of = |millis| exptime(Duration::from_millis(millis));
        assert_eq!([1, 500, 750, 751, 1000, 1900, 2000].map(of), [3, 3, 3, 4, 4, 5, 5]);
        for millis in 1..5000 {
            let (asked, lease) = (Duration::from_secs(of(millis)), Duration::from_millis(millis));
            assert!(asked >= lease + STALL + Duration::from_secs(2), "{millis} ms");
            assert!(asked <= lease + MAX_EXCESS, "{millis} ms");
        }
        assert_eq!((exptime(TTL_MAX), exptime(Duration::MAX)), (MAX_EXPTIME, MAX_EXPTIME));
    }
}
