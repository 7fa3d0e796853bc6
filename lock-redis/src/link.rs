//! The connection to a server: one for all verbs, made anew when it breaks.
//!
//! It reconnects when a verb needs it, one attempt at a time for all verbs, in a task of its own, with a
//! pause between failures that doubles. A verb that is dropped leaves it in step: the answer is read and thrown
//! away. If the answer does not come for long, the connection is given up, though it may seem alive: a
//! peer that has promised more bytes than it sends, or a middleman that lost its server, would be waited
//! for without end.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use lock_core::backend::FaultKind::{Unavailable, Unsupported};
use lock_core::backend::{Effect, Fault, Identity};
use lock_core::clock::{Moment, sleep};
use lock_core::dial::Dialer;
use lock_core::{Error, ErrorKind, Order, OwnerId};
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind as RedisKind, FromRedisValue, Pipeline, PushInfo,
    PushKind, RedisError, Value as Answer,
};
use tokio::sync::{SetOnce, watch};
use tokio::task::JoinSet;

use crate::address::SILENCE;
use crate::backend::TOKEN_RETENTION;
use crate::clock::ServerTime;
use crate::config::{Config, Endpoint};
use crate::fault;
use crate::keys::{Keys, LockKeys};
use crate::line::{Queues, Unclaimed};
use crate::replicas::{ConnectionEnd, ExclusiveConnection, Replicas, Replicated};
use crate::scripts::{self, Call, DELETE_IF_EQUAL, Scripts};
use crate::sentinel::{SentinelViews, ServerLocation};
use crate::slots::slot_of;
use crate::value::Value;
use crate::waiters::SignalWaiters;

/// Making a connection, all of it: enough for a handshake in four round trips over a slow line.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How many requests may wait to be written.
const AT_ONCE: usize = 4096;

/// How long a connection that is under suspicion has for an answer.
const STILL_THERE: Duration = Duration::from_millis(500);

/// How old a connection to what turns out to be a replica must be to be given up for that.
const AGE: Duration = Duration::from_secs(1);

/// How long a request may go without answer before others are asked whether its server is still the right one.
const DOUBT: Duration = Duration::from_secs(1);

const TRY_OUT: &str = "try out the rights of this user";

/// The way to a server.
pub(crate) struct Link {
    address: String,
    config: Arc<Config>,
    client: Arc<ClientState>,
    dialer: Dialer<Connection>,
    /// See [`refuses_certificate`](Self::refuses_certificate).
    refuses_certificate: AtomicBool,
    /// Where the locks are by the last word of each sentinel.
    views: watch::Sender<SentinelViews>,
    /// Those who listen to sentinels. They end with this.
    listening: Mutex<JoinSet<()>>,
    /// If replicas have to know of locks.
    replicas: Option<Replicas>,
}

/// What all connections of a client have in common.
pub(crate) struct ClientState {
    keys: Keys,
    pub(crate) waiters: SignalWaiters,
    pub(crate) queues: Queues,
    /// Who this client is in the names of its channels, where it hears of locks that were given to it; if it is
    /// to. Nobody can guess it.
    id: Option<String>,
    /// Its channel, but for a cluster, where there is one in each slot.
    channel: Option<Arc<str>>,
    /// In which order those are served who wait: what the first connection could do, every other one has
    /// to do.
    order: OnceLock<Order>,
    /// Locks are on several servers, each in its slot.
    in_cluster: bool,
    /// Some server can [delete without a script](DELETE_IF_EQUAL), so whoever waits marks the lock. For good: it may be
    /// there that the lock goes.
    marks: AtomicBool,
    /// How many were made so far.
    connections: AtomicU64,
}

/// A connection. Cloning is cheap; clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    #[cfg(feature = "simulation")]
    _driver: Option<Arc<crate::simulation::Driver>>,
    health: Arc<Health>,
    /// Whether the server tells of changes of the keys that we watch.
    pub(crate) has_signals: bool,
    /// Whether the server sends what is said on our channel.
    pub(crate) has_channel: bool,
}

/// Whether a connection is of any use, and where it leads.
struct Health {
    /// No other connection has it; never 0.
    id: u64,
    /// Ends the name of the channel on which this connection listens. The next 998 connections of
    /// the client have others.
    number: u64,
    server: ServerLocation,
    since: Moment,
    broken: AtomicBool,
    /// The locks have moved to another server: nobody waits for an answer of this one any more.
    superseded: SetOnce<()>,
    /// Its answers are those to other requests.
    desynchronized: AtomicBool,
    /// The server can delete a key that has some value without a script.
    deletes: AtomicBool,
    /// The same, and it has not refused us that.
    may_delete: AtomicBool,
    /// In a cluster: the slots on whose channels it listens.
    slots: Mutex<HashSet<u16>>,
    /// When the oldest request was sent whose caller has gone away without an answer.
    unanswered: Mutex<Option<Moment>>,
    /// What the server's clock said last.
    clock: Mutex<Option<ServerTime>>,
}

impl Link {
    /// To the server that `config` names. It is not asked yet.
    pub(crate) fn new(config: Config, client: Arc<ClientState>) -> Self {
        let views = match &config.endpoint {
            Endpoint::Sentinel(sentinels) => sentinels.views(),
            Endpoint::Fixed(_) => SentinelViews::default(),
        };
        Self {
            address: config.endpoint.to_string(),
            replicas: config.replicas.map(Replicas::new),
            config: Arc::new(config),
            client,
            dialer: Dialer::default(),
            refuses_certificate: AtomicBool::new(false),
            views: watch::Sender::new(views),
            listening: Mutex::default(),
        }
    }

    /// Runs a script, and says from when its effects count at the earliest.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        connection: &Connection,
        action: &'static str,
        call: &Call,
    ) -> Result<(Moment, T), Fault> {
        let (since, answer) = self.send(connection, call, None).await;
        answer.map(|answer| (since, answer)).map_err(|e| self.failed(connection, action, &e))
    }

    /// The same, with what a cluster may want `first`; and leaves it to the caller what an error means, but for
    /// what [`failed`](Self::failed) has to know.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        connection: &Connection,
        call: &Call,
        prelude: Option<ClusterPrelude<'_>>,
    ) -> (Moment, Result<T, RedisError>) {
        let mut redis = connection.redis.clone();
        match prelude {
            // Pinned here: a future that is given on and on is kept by each one on its way.
            None => connection.health.watch(pin!(call.run(&mut redis))).await,
            // Seldom, so it takes no room in each future.
            Some(prelude) => {
                Box::pin(connection.health.watch(prelude.before(call, &mut redis))).await
            }
        }
    }

    /// The same, and waits for replicas if some are to know of it. If there is no connection on which they can be
    /// waited for, nothing was sent.
    pub(crate) async fn send_replicated<T: FromRedisValue>(
        &self,
        connection: &Connection,
        call: &Call,
        prelude: Option<ClusterPrelude<'_>>,
    ) -> Result<Replicated<T>, Fault> {
        if let Some(replicas) = &self.replicas {
            return replicas.run(self, connection, call, prelude).await;
        }
        let (since, answer) = self.send(connection, call, prelude).await;
        Ok(Replicated { since, answer, missing: None })
    }

    /// Which process the server is, and since when; `None` if this user may not ask.
    pub(crate) async fn identity(self: &Arc<Self>) -> Result<Option<Identity>, Fault> {
        let connection = self.connection().await?;
        let Some(info) = self.info(&connection, "server").await? else { return Ok(None) };
        let up_for = info.get("uptime_in_seconds").and_then(|secs| secs.parse().ok());
        // The difference of two whole seconds, which may be one more than what has passed.
        let up_for = up_for.map(|uptime: u64| Duration::from_secs(uptime.saturating_sub(1)));
        let epoch = self.dialer.epoch_of(|current| current.id() == connection.id());
        Ok(info.get("run_id").map(|id| Identity::new(id, up_for).during(epoch)))
    }

    /// A section of what the server tells of itself; `None` if this user may not ask.
    async fn info(
        &self,
        connection: &Connection,
        section: &'static str,
    ) -> Result<Option<Info>, Fault> {
        match connection.ask(redis::cmd("INFO").arg(section)).await {
            Ok(text) => Ok(Some(Info(text))),
            Err(error) if fault::is_refused(&error) => Ok(None),
            Err(error) => Err(self.failed(connection, "ask for INFO", &error)),
        }
    }

    /// Where the cluster has its slots, as far as this member knows.
    pub(crate) async fn slots(self: &Arc<Self>) -> Result<Answer, Fault> {
        let connection = self.connection().await?;
        let asked = connection.ask(redis::cmd("CLUSTER").arg("SLOTS")).await;
        asked.map_err(|error| self.failed(&connection, "ask where the slots are", &error))
    }

    /// Subscribes to the channel of `slot`.
    pub(crate) async fn listen(&self, connection: &Connection, slot: u16) -> Result<(), Fault> {
        let Some(channel) = self.client.channel_in(slot) else { return Ok(()) };
        let (mut redis, mut command) = (connection.redis.clone(), redis::cmd("SSUBSCRIBE"));
        let asking = command.arg(connection.channel(&channel)).query_async::<Answer>(&mut redis);
        let (_, answer) = connection.health.watch(asking).await;
        answer.map_err(|error| self.failed(connection, "listen to a channel", &error))?;
        connection.listens_in(slot);
        Ok(())
    }

    /// Asks the server for an invalidation at the next change of the key `watched`, and then reads the
    /// key `lock`. Returns whether `watched` exists, and the value of `lock`, if that key is a string.
    /// `None`: there is no such lock, or it could not be read.
    pub(crate) async fn watch(
        &self,
        connection: &Connection,
        watched: &str,
        lock: &str,
    ) -> Result<Option<Watched>, Fault> {
        let mut redis = connection.redis.clone();
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        pipe.cmd("EXISTS").arg(watched);
        // What holds a lock is short; who knows what else is there.
        pipe.cmd("GETRANGE").arg(lock).arg(0).arg(Value::MAX_LEN);
        pipe.cmd("EXISTS").arg(lock);
        let asking = pipe.ignore_errors().query_async::<Vec<Answer>>(&mut redis);
        match connection.health.watch(asking).await.1 {
            Ok(answers) => Ok(parse_watch(answers)),
            Err(error) if fault::is_broken(&error) => Err(self.failed(connection, "watch", &error)),
            Err(_) => Ok(None),
        }
    }

    /// Hangs up a bell, to be rung by whoever lets go, and marks the lock for that if it still has the value that is
    /// `unmarked`. If the server does not let us, nobody rings it.
    pub(crate) async fn arm_release_key(
        &self,
        connection: &Connection,
        keys: &LockKeys,
        unmarked: Option<&[u8]>,
    ) -> Result<(), Fault> {
        let (mut redis, mut pipe) = (connection.redis.clone(), redis::pipe());
        let lasts = TOKEN_RETENTION.as_millis() as u64;
        pipe.cmd("SET").arg(keys.release_key()).arg("").arg("NX").arg("PX").arg(lasts).ignore();
        if let Some(value) = unmarked {
            let marked = [value, b" "].concat();
            let set = pipe.cmd("SET").arg(keys.lock()).arg(marked);
            set.arg("IFEQ").arg(value).arg("KEEPTTL").ignore();
        }
        let asking = pipe.query_async::<()>(&mut redis);
        match connection.health.watch(asking).await.1 {
            Err(error) if fault::is_broken(&error) => {
                Err(self.failed(connection, "hang up a bell", &error))
            }
            _ => Ok(()),
        }
    }

    /// Deletes the key if it has this value. False if it has not, or the server does not do that for us.
    pub(crate) async fn delete_if_equal(
        &self,
        connection: &Connection,
        key: &str,
        value: &str,
    ) -> Result<bool, Fault> {
        let call = Call::delete_if_equal(key, value);
        let error = match self.send::<bool>(connection, &call, None).await.1 {
            Ok(deleted) => return Ok(deleted),
            Err(error) => error,
        };
        // In a cluster it may just be elsewhere.
        if fault::is_refused(&error) && error.redirect_node().is_none() {
            connection.health.may_delete.store(false, Ordering::Relaxed);
        }
        let fault = self.failed(connection, "release", &error);
        // Another way may be open, or says better what is wrong.
        if fault.effect() == Effect::NotApplied { Ok(false) } else { Err(fault) }
    }

    /// Gives back a lock whose new owner does not wait for it here, and removes the stale entries
    /// of this client. If that fails, the claim lease ends by itself.
    async fn give_back(self: Arc<Self>, unclaimed: Unclaimed) {
        let Unclaimed { lock, owner, arrived_by, waiting } = unclaimed;
        let Some(keys) = Keys::parse(&lock) else { return };
        let Some(channel) = self.client.channel(&keys) else { return };
        let mut call = Call::new(&self.client.scripts().refuse, &keys.all());
        call.arg(owner.expose()).arg(&*channel).arg(arrived_by).arg(waiting);
        if let Ok(connection) = self.connection().await {
            let _ = self.run::<Answer>(&connection, "give back", &call).await;
        }
    }

    /// Finds out whether replicas can be waited for.
    pub(crate) async fn check_wait(self: &Arc<Self>) -> Result<(), Error> {
        // For none, so at once.
        self.check_right("WAIT", redis::cmd("WAIT").arg(0).arg(1)).await
    }

    /// Finds out whether this user may send a command that changes nothing.
    async fn check_right(self: &Arc<Self>, name: &str, command: &Cmd) -> Result<(), Error> {
        let connection = self.connection().await.map_err(fault::error)?;
        let mut redis = connection.redis.clone();
        match within(CONNECT_TIMEOUT, command.query_async::<Answer>(&mut redis)).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) if error.code() == Some("NOPERM") => {
                Err(fault::missing_rights(&[name.to_owned()]))
            }
            Some(Err(error)) => Err(fault::error(fault::fault(TRY_OUT, &error))),
            None => Err(fault::error(fault::unanswered(&self.address))),
        }
    }

    /// Names the rights that this user lacks, found out with keys for a trial that this server has.
    pub(crate) async fn check_rights(self: &Arc<Self>, keys: &LockKeys) -> Result<(), Error> {
        if self.client.in_cluster {
            // Else it would be missed when a slot is moved, and not before.
            self.check_right("ASKING", &redis::cmd("ASKING")).await?;
        }
        let connection = self.connection().await.map_err(fault::error)?;
        let channel = self.client.channel(keys).filter(|_| self.client.is_fifo());
        let ([lock, token_key, queue, processes, _], tombstone) =
            (keys.all(), keys.tombstone(&OwnerId::mint()));
        let keys_of_it = [lock, token_key, queue, processes, &tombstone];
        let mut trial = Call::new(&self.client.scripts().rights, &keys_of_it);
        trial.arg(channel.as_deref().unwrap_or_default());
        let mut redis = connection.redis.clone();
        let work = async {
            trial.load(&mut redis).await?;
            trial.run::<Vec<String>>(&mut redis).await
        };
        let silent = || fault::error(fault::unanswered(&self.address));
        let missing = within(CONNECT_TIMEOUT, work)
            .await
            .ok_or_else(silent)?
            .map_err(|e| fault::error(fault::fault(TRY_OUT, &e)))?;
        if !missing.is_empty() {
            return Err(fault::missing_rights(&missing));
        }
        if self.client.in_cluster && channel.is_some() {
            let listening = self.listen(&connection, keys.slot());
            within(CONNECT_TIMEOUT, listening).await.ok_or_else(silent)?.map_err(fault::error)?;
        }
        Ok(())
    }

    /// Refuses a member of a cluster that is taken for a server of its own, and warns of a server that may throw
    /// locks away.
    pub(crate) async fn check_server(self: &Arc<Self>) -> Result<(), Error> {
        let asking = async {
            let connection = self.connection().await?;
            Ok((self.info(&connection, "server").await?, self.info(&connection, "memory").await?))
        };
        let (server, memory) = within(CONNECT_TIMEOUT, asking)
            .await
            .unwrap_or_else(|| Err(fault::unanswered(&self.address)))
            .map_err(fault::error)?;
        // Valkey has a name of its own for it.
        let mode =
            |info: &Info| info.get("redis_mode").or(info.get("server_mode")).map(str::to_owned);
        let why = match server.as_ref().and_then(mode).as_deref() {
            Some("cluster") if !self.client.in_cluster => {
                "the server is a member of a cluster: write redis+cluster://"
            }
            Some("sentinel") => "this is a sentinel: write redis+sentinel://host,host,host/name",
            _ => "",
        };
        if !why.is_empty() {
            return Err(Error::new(ErrorKind::Unsupported, why));
        }
        if server.is_none() || memory.is_none() {
            tracing::warn!(
                redis.address = %self.address,
                "the server does not answer INFO to this user: whether the server throws keys away at its memory limit, and \
                 locks with them, is not known; grant +info, or make sure that maxmemory-policy is noeviction"
            );
        }
        let policy = memory.as_ref().and_then(|info| info.get("maxmemory_policy"));
        if let Some(policy) = policy.filter(|policy| *policy != "noeviction") {
            tracing::warn!(
                redis.address = %self.address,
                redis.maxmemory_policy = policy,
                "at its memory limit this server throws keys away, and locks with them; \
                 set maxmemory-policy to noeviction"
            );
        }
        Ok(())
    }

    /// The first connection, which decides in what order waiters are served. Nobody else waits for it yet, so
    /// its fault stays whole.
    pub(crate) async fn first_connection(self: &Arc<Self>) -> Result<Connection, Fault> {
        let connection = self.connect_in_time().await?;
        let order = if connection.has_channel { Order::Fifo } else { Order::PerProcess };
        match self.config.order {
            Some(Order::Fifo) if order < Order::Fifo => {
                let why = "this server does not send messages of its own accord, so it cannot serve \
                           waiters in order; it must be Redis 6 or newer, or connect with order=any";
                return Err(Fault::not_applied(Unsupported, why));
            }
            None if order < Order::Fifo => tracing::warn!(
                redis.address = %self.address,
                "this server does not send messages of its own accord (RESP3): waiters of several \
                 processes are not served in order, and look from time to time"
            ),
            _ if connection.has_signals => {}
            _ if order < Order::Fifo => tracing::warn!(
                redis.address = %self.address,
                "this server tells nothing of changed keys (CLIENT TRACKING): waiters look from time to time"
            ),
            _ => tracing::warn!(
                redis.address = %self.address,
                "this server tells nothing of changed keys (CLIENT TRACKING): waiters of locks that other \
                 libraries hold look from time to time, and holders are told of losses by renewals alone"
            ),
        }
        self.client.order.get_or_init(|| order);
        self.dialer.put(connection.clone());
        Ok(connection)
    }

    /// The connection, if need be a new one: then this waits for one attempt, which all verbs share.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, Fault> {
        let is_good = |connection: &Connection| {
            connection.health.is_good() && !self.is_superseded(connection)
        };
        self.dialer.get(is_good, || Arc::clone(self).make_connection()).await
    }

    /// One to the same server that nobody shares.
    pub(crate) async fn exclusive_connection(
        &self,
        shared: &Connection,
    ) -> Result<ExclusiveConnection, Fault> {
        let connecting = async {
            let (config, address) = (&self.config, &shared.health.server.address);
            let clients = config.clients(address, &config.login, config.database).await;
            let [speaking, without] = clients.map_err(|e| Fault::not_applied(Unavailable, e))?;
            let gone = ConnectionEnd::default();
            let settings = AsyncConnectionConfig::new().set_response_timeout(None);
            let settings = settings.set_connection_timeout(None);
            let heeding = settings.clone().set_push_sender(gone.witness());
            let redis = match speaking.get_multiplexed_async_connection_with_config(&heeding).await
            {
                Err(error) if is_too_old(&error) => {
                    // Nobody tells of its end: the first one who uses it does.
                    let gone = ConnectionEnd::default();
                    let redis = without.get_multiplexed_async_connection_with_config(&settings);
                    redis.await.map(|redis| (redis, gone))
                }
                redis => redis.map(|redis| (redis, gone)),
            };
            let (redis, gone) = redis.map_err(|error| fault::no_connection(address, &error))?;
            self.check_same_server(shared, &redis).await?;
            Ok(ExclusiveConnection { redis, shared: shared.id(), gone })
        };
        let silent = || Err(fault::no_handshake(&self.config.endpoint));
        within(CONNECT_TIMEOUT, connecting).await.unwrap_or_else(silent)
    }

    /// Refuses a new connection that leads to another server than the one `shared` it: the address
    /// has moved. What has been written is let go on the old one. A user who may not ask cannot
    /// tell.
    async fn check_same_server(
        &self,
        shared: &Connection,
        redis: &MultiplexedConnection,
    ) -> Result<(), Fault> {
        let (mut redis, mut info) = (redis.clone(), redis::cmd("INFO"));
        let info = &*info.arg("server");
        let (here, there) =
            tokio::join!(shared.ask::<String>(info), info.query_async::<String>(&mut redis));
        let (Ok(here), Ok(there)) = (here, there) else { return Ok(()) };
        if Info(here).get("run_id") == Info(there).get("run_id") {
            return Ok(());
        }
        let why = "the address leads to another server than a moment ago";
        Err(Fault::not_applied(Unavailable, why))
    }

    /// True if the locks may be on another server one day.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self.config.endpoint, Endpoint::Sentinel(_))
    }

    /// True if another server may have what this one had: there is no connection to it, or nothing has come from
    /// it for a while.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let is_sound = |c: Connection| c.health.is_good() && !c.health.is_silent_for(DOUBT);
        !self.dialer.current().is_some_and(is_sound)
    }

    /// True if there is a connection that is subscribed to our channel in `slot`.
    pub(crate) fn is_listening_in(&self, slot: u16) -> bool {
        self.dialer.current().is_some_and(|c| c.health.is_good() && c.is_listening_in(slot))
    }

    async fn make_connection(self: Arc<Self>) -> Result<Connection, Fault> {
        // There may be nothing against the old one but that it does not answer.
        match self.dialer.current().filter(|c| !c.is_broken() && !self.is_superseded(c)) {
            Some(old) if self.answers(&old).await => Ok(old),
            _ => {
                let made = self.connect_in_time().await;
                self.refuses_certificate.store(
                    made.as_ref().is_err_and(fault::is_certificate_refusal),
                    Ordering::Relaxed,
                );
                made
            }
        }
    }

    /// Returns true if the last attempt to connect failed because one side refused the certificate
    /// of the other.
    pub(crate) fn refuses_certificate(&self) -> bool {
        self.refuses_certificate.load(Ordering::Relaxed)
    }

    /// True if a connection that seems to be silent is not: callers may have gone away before their
    /// answers came.
    async fn answers(&self, connection: &Connection) -> bool {
        let (mut redis, ping) = (connection.redis.clone(), redis::cmd("PING"));
        let asking = connection.health.watch(ping.query_async::<Answer>(&mut redis));
        match within(STILL_THERE, asking).await {
            Some((_, Ok(_))) => true,
            Some((_, Err(error))) => !fault::is_broken(&error),
            None => false,
        }
    }

    /// A sentinel says where the locks are, or is not heard any more.
    pub(crate) fn update_views(&self, what: impl FnOnce(&mut SentinelViews)) {
        self.views.send_modify(what);
        if let Some(old) = self.dialer.current().filter(|connection| self.is_superseded(connection))
        {
            tracing::info!(redis.address = %old.health.server.address, "this server is the primary no more");
            let _ = old.health.superseded.set(());
            self.client.mark_broken(&old.health);
        }
    }

    /// True if the locks have moved to another server.
    fn is_superseded(&self, connection: &Connection) -> bool {
        let server = &connection.health.server;
        server.epoch.is_some() && self.views.borrow().have_moved_from(server)
    }

    async fn connect_in_time(self: &Arc<Self>) -> Result<Connection, Fault> {
        within(CONNECT_TIMEOUT, self.connect())
            .await
            .unwrap_or_else(|| Err(fault::no_handshake(&self.config.endpoint)))
    }

    async fn connect(self: &Arc<Self>) -> Result<Connection, Fault> {
        let server = self.find().await?;
        let mut views = self.views.subscribe();
        tokio::select! {
            biased;
            // First: what was told while the last answer came counts.
            _ = views.wait_for(|views| views.have_moved_from(&server)), if server.epoch.is_some() => {
                let why = "the primary was replaced while it was connected to";
                Err(Fault::not_applied(Unavailable, why))
            }
            made = self.connect_to(&server) => made,
        }
    }

    /// Where the server is now. Those who answer may be behind those who have told of a failover by themselves.
    async fn find(self: &Arc<Self>) -> Result<ServerLocation, Fault> {
        let sentinels = match &self.config.endpoint {
            Endpoint::Fixed(address) => {
                return Ok(ServerLocation { address: address.clone(), epoch: None });
            }
            Endpoint::Sentinel(sentinels) => sentinels,
        };
        let asked_at = self.views.borrow().reports();
        let answers = sentinels.find(&self.config).await?;
        self.start_listeners();
        self.update_views(|views| views.answered(&answers, &asked_at));
        let best = self.views.borrow().best().cloned();
        best.ok_or_else(|| Fault::not_applied(Unavailable, "no sentinel names the primary"))
    }

    /// Nobody listens to this sentinel any more, as a runtime has ended: whoever connects next listens anew.
    pub(crate) fn listener_ended(&self, sentinel: usize) {
        self.update_views(|views| views.disconnect(sentinel));
        if let Some(connection) = self.dialer.current() {
            self.client.mark_broken(&connection.health);
        }
    }

    /// Has somebody listen to the sentinels, if there are some. Who did so may have ended with a runtime.
    fn start_listeners(self: &Arc<Self>) {
        if let Endpoint::Sentinel(sentinels) = &self.config.endpoint {
            let mut tasks = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            if tasks.is_empty() {
                sentinels.listen(&self.config, &Arc::downgrade(self), &mut tasks);
            }
        }
    }

    async fn connect_to(self: &Arc<Self>, server: &ServerLocation) -> Result<Connection, Fault> {
        let (config, address) = (&self.config, &server.address);
        // Files that are just being replaced are no reason to give up.
        let clients = config.clients(address, &config.login, config.database).await;
        let [with_signals, without] = clients.map_err(|e| Fault::not_applied(Unavailable, e))?;
        let health = Arc::new(Health::of(server, &self.client));
        let (client, link) = (Arc::clone(&self.client), Arc::downgrade(self));
        let pushes = Pushes { client, health: Arc::clone(&health), link };
        // Core bounds each call, and this link the making of a connection.
        let settings =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        // Whoever finds no room is woken twice: once to ask, and once with the answer.
        let settings = settings.set_pipeline_buffer_size(AT_ONCE);
        let speaking = settings.clone().set_push_sender(pushes);
        let failed = |error: RedisError| fault::no_connection(address, &error);
        let connection = |redis, health| Connection {
            redis,
            #[cfg(feature = "simulation")]
            _driver: None,
            health,
            has_signals: false,
            has_channel: false,
        };
        #[cfg(feature = "simulation")]
        let mut _driver = None;
        let opening = async {
            #[cfg(feature = "simulation")]
            if let Some(network) = &config.network {
                let (redis, driver) = network.open(&with_signals, &speaking).await?;
                _driver = Some(driver);
                return Ok(redis);
            }
            with_signals.get_multiplexed_async_connection_with_config(&speaking).await
        };
        match opening.await {
            Ok(mut redis) => {
                let mut other = redis.clone();
                // Before anybody stands in line by this connection.
                let subscribing =
                    async { self.subscribe_channels(&mut other, &health).await.map_err(failed) };
                // All in one round trip: a renewal may be waiting for this.
                let checking = self.require_primary(redis.clone(), server);
                let finding = self.probe_delete(redis.clone(), &health);
                let finding = async { finding.await.map_err(failed) };
                let asking = async { self.enable_tracking(&mut redis).await.map_err(failed) };
                let ((), has_channel, has_signals, ()) =
                    tokio::try_join!(checking, subscribing, asking, finding)?;
                Ok(Connection {
                    #[cfg(feature = "simulation")]
                    _driver,
                    has_signals,
                    has_channel,
                    ..connection(redis, health)
                })
            }
            Err(error) if is_too_old(&error) && self.client.order.get() == Some(&Order::Fifo) => {
                let why = "the server at this address used to send messages of its own accord, and \
                           does not any more";
                Err(Fault::not_applied(Unavailable, why))
            }
            Err(error) if is_too_old(&error) => {
                // The pushes are gone with the connection, and have marked it as broken.
                let health = Arc::new(Health::of(server, &self.client));
                let redis = without.get_multiplexed_async_connection_with_config(&settings).await;
                let redis = redis.map_err(failed)?;
                self.require_primary(redis.clone(), server).await?;
                Ok(connection(redis, health))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Demands that a server that sentinels name is a primary: one that was replaced may not know it yet, and who is to
    /// replace it neither. Users who may not ask find out by the first write.
    async fn require_primary(
        &self,
        mut redis: MultiplexedConnection,
        server: &ServerLocation,
    ) -> Result<(), Fault> {
        if server.epoch.is_none() {
            return Ok(());
        }
        match redis::cmd("ROLE").query_async::<Vec<Answer>>(&mut redis).await {
            Ok(role) if role.first() == Some(&Answer::BulkString(b"master".to_vec())) => Ok(()),
            Ok(_) => {
                let why = format!(
                    "{} is a replica, though sentinels name it as the primary",
                    server.address
                );
                Err(Fault::not_applied(Unavailable, why))
            }
            Err(error) if fault::is_broken(&error) => {
                Err(fault::no_connection(&server.address, &error))
            }
            Err(error) => {
                // Nobody else is told but who connects.
                if self.client.order.get().is_none() {
                    tracing::warn!(
                        redis.address = %server.address,
                        %error,
                        "the server does not answer ROLE to this user: a replica that sentinels name is found out by its first \
                         refusal; grant +role"
                    );
                }
                Ok(())
            }
        }
    }

    /// From here on the server sends what is said on our channel. False if it does not do that for us.
    async fn subscribe_channels(
        &self,
        redis: &mut MultiplexedConnection,
        health: &Health,
    ) -> Result<bool, RedisError> {
        if self.client.id.is_none() {
            return Ok(false);
        }
        if let Some(channel) = &self.client.channel {
            redis.subscribe(health.channel(channel)).await?;
            return Ok(true);
        }
        // Without a channel it is wrong; what matters is how: Redis 7 is the first that knows it. There is a channel
        // in each slot. Those on which somebody waits are needed from the start; others are where they are.
        let (mut pipe, channels) = (redis::pipe(), self.client.queues.channels());
        pipe.cmd("SSUBSCRIBE");
        for channel in &channels {
            pipe.cmd("SSUBSCRIBE").arg(health.channel(channel));
        }
        let answers = redis.req_packed_commands(&pipe, 0, pipe.len()).await?;
        let mut answers = answers.into_iter().map(Answer::extract_error);
        match answers.next() {
            Some(Err(error)) if fault::is_transient(&error) => return Err(error),
            Some(Err(error)) if error.to_string().contains("unknown command") => return Ok(false),
            _ => {}
        }
        let heard = channels.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
        health.slots().extend(heard.map(|(channel, _)| slot_of(channel)));
        Ok(true)
    }

    /// From here on the server remembers the keys of those reads that ask for it, and tells once when
    /// such a key changes. False if it does not do that for us.
    async fn enable_tracking(&self, redis: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").ignore();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        // What was asked for with the line before counts for this one, which reads nothing.
        pipe.cmd("HELLO").ignore();
        match pipe.query_async::<()>(redis).await {
            Ok(()) => Ok(true),
            // It says nothing about signals that the server is busy.
            Err(error) if fault::is_broken(&error) || fault::is_transient(&error) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "no signals from this server: waiters look from time to time");
                Ok(false)
            }
        }
    }

    /// Finds out whether the server can delete a key that has some value, without a script.
    async fn probe_delete(
        &self,
        mut redis: MultiplexedConnection,
        health: &Health,
    ) -> Result<(), RedisError> {
        // It is refused for lack of arguments before anybody asks whose right it is, or where a key would be.
        match redis::cmd(DELETE_IF_EQUAL).query_async::<Answer>(&mut redis).await {
            Err(error) if fault::is_broken(&error) || fault::is_transient(&error) => Err(error),
            Err(error) if error.to_string().contains("wrong number of arguments") => {
                health.deletes.store(true, Ordering::Relaxed);
                health.may_delete.store(true, Ordering::Relaxed);
                self.client.marks.store(true, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The connection is of no use any more, though it may be alive: who waits on it is told to look elsewhere.
    pub(crate) fn leave(&self, connection: &Connection) {
        self.client.mark_broken(&connection.health);
    }

    pub(crate) fn failed(
        &self,
        connection: &Connection,
        action: &'static str,
        error: &RedisError,
    ) -> Fault {
        // Whoever was demoted answers for nobody: the address may lead to the new primary by now.
        let was_demoted = fault::is_replica_refusal(error) && connection.health.is_old();
        if fault::is_broken(error) || was_demoted {
            self.client.mark_broken(&connection.health);
        }
        fault::fault(action, error)
    }
}

impl ClientState {
    /// With keys and wishes of `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let is_fifo = config.order != Some(Order::PerProcess);
        let (keys, in_cluster) = (config.keys.clone(), !config.members.is_empty());
        let id = is_fifo.then(|| OwnerId::mint().expose());
        let channel = id.as_deref().filter(|_| !in_cluster).map(|id| keys.channel(id).into());
        Self {
            keys,
            waiters: SignalWaiters::default(),
            queues: Queues::default(),
            id,
            channel,
            order: OnceLock::new(),
            in_cluster,
            marks: AtomicBool::new(false),
            connections: AtomicU64::new(0),
        }
    }

    /// In which order those are served who wait.
    pub(crate) fn order(&self) -> Order {
        self.order.get().copied().unwrap_or(Order::PerProcess)
    }

    /// True if those who wait are served in the order in which they came.
    pub(crate) fn is_fifo(&self) -> bool {
        self.order() == Order::Fifo
    }

    /// True if others may let go of a lock without a look at who waits, unless it is marked.
    pub(crate) fn marks(&self) -> bool {
        self.marks.load(Ordering::Relaxed)
    }

    /// Where we hear of the lock with these keys.
    pub(crate) fn channel(&self, keys: &LockKeys) -> Option<Arc<str>> {
        match self.in_cluster {
            true => self.channel_in(keys.slot()).map(Arc::from),
            false => self.channel.clone(),
        }
    }

    fn channel_in(&self, slot: u16) -> Option<String> {
        Some(self.keys.channel_in(slot, self.id.as_deref()?))
    }

    pub(crate) fn scripts(&self) -> &'static Scripts {
        if self.in_cluster { &scripts::SHARDED } else { &scripts::PLAIN }
    }

    /// The connection is of no use any more.
    fn mark_broken(&self, connection: &Health) {
        connection.broken.store(true, Ordering::Release);
        self.waiters.signal_all();
        self.queues.connection_lost(connection.id);
    }
}

/// What a cluster may want to hear in the same write before a script.
#[derive(Clone, Copy)]
pub(crate) struct ClusterPrelude<'a> {
    /// That we know that the keys are on their way to this member.
    pub(crate) asking: bool,
    /// A channel on which we want to be told.
    pub(crate) channel: Option<&'a str>,
}

impl ClusterPrelude<'_> {
    pub(crate) async fn before<T: FromRedisValue>(
        self,
        call: &Call,
        redis: &mut MultiplexedConnection,
    ) -> Result<T, RedisError> {
        match self.once_before(call, redis).await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                call.load(redis).await?;
                self.once_before(call, redis).await
            }
            done => done,
        }
    }

    async fn once_before<T: FromRedisValue>(
        self,
        call: &Call,
        redis: &mut MultiplexedConnection,
    ) -> Result<T, RedisError> {
        let mut pipe = redis::pipe();
        if let Some(channel) = self.channel {
            self.ask(&mut pipe);
            pipe.cmd("SSUBSCRIBE").arg(channel);
        }
        self.ask(&mut pipe);
        pipe.add_command(call.command().clone());
        let mut answers = redis.req_packed_commands(&pipe, 0, pipe.len()).await?;
        // If the script was refused, so much is known; it is not if anything else was.
        let answer = answers.pop().unwrap_or(Answer::Nil).extract_error()?;
        let refused = answers.into_iter().find_map(|before| before.extract_error().err());
        if let Some(refused) = refused {
            let why = "a script ran, and what came before it did not";
            return Err(RedisError::from((RedisKind::Io, why, refused.to_string())));
        }
        Ok(redis::from_redis_value(answer)?)
    }

    fn ask(self, pipe: &mut Pipeline) {
        if self.asking {
            pipe.cmd("ASKING");
        }
    }
}

impl Connection {
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        let mut redis = self.redis.clone();
        self.health.watch(command.query_async(&mut redis)).await.1
    }

    /// The server's clock said so in the answer to what was asked then.
    pub(crate) fn record_server_time(&self, asked: Moment, said: u64) {
        let mut clock = self.health.clock();
        if clock.is_none_or(|before| before.asked <= asked) {
            *clock = Some(ServerTime { asked, time: said });
        }
    }

    /// Returns the part of `channel` on which this connection listens.
    pub(crate) fn channel(&self, channel: &str) -> String {
        self.health.channel(channel)
    }

    /// No other connection has it.
    pub(crate) fn id(&self) -> u64 {
        self.health.id
    }

    /// Does some work with the server, for as long as it has the locks.
    pub(crate) async fn while_current<T>(
        &self,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        self.health.while_current(work).await
    }

    /// The server is about to be asked by another connection. If that does not answer, this one may not either.
    pub(crate) fn track_exclusive(&self) -> PendingRequest<'_> {
        PendingRequest { beside: true, ..PendingRequest::on(&self.health) }
    }

    /// True if the server can [delete without a script](DELETE_IF_EQUAL), whoever has the right to it.
    pub(crate) fn deletes_if_equal(&self) -> bool {
        self.health.deletes.load(Ordering::Relaxed)
    }

    /// The same, and it has not refused us that.
    pub(crate) fn may_delete_if_equal(&self) -> bool {
        self.health.may_delete.load(Ordering::Relaxed)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Acquire)
    }

    /// We are subscribed to the channel of `slot`.
    pub(crate) fn listens_in(&self, slot: u16) {
        self.health.slots().insert(slot);
    }

    pub(crate) fn is_listening_in(&self, slot: u16) -> bool {
        self.health.slots().contains(&slot)
    }
}

impl Health {
    fn of(server: &ServerLocation, client: &ClientState) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            number: client.connections.fetch_add(1, Ordering::Relaxed) % 999 + 1,
            server: server.clone(),
            since: Moment::now(),
            broken: AtomicBool::new(false),
            superseded: SetOnce::new(),
            desynchronized: AtomicBool::new(false),
            deletes: AtomicBool::new(false),
            may_delete: AtomicBool::new(false),
            slots: Mutex::default(),
            unanswered: Mutex::default(),
            clock: Mutex::default(),
        }
    }

    /// Returns the part of `channel` on which this connection listens.
    fn channel(&self, channel: &str) -> String {
        format!("{channel}:{:03}", self.number)
    }

    /// True if the address may lead elsewhere by now. Asked all the time, a replica would be connected
    /// to for each refusal.
    fn is_old(&self) -> bool {
        (self.since + AGE).has_passed()
    }

    /// Says when `request` was sent, and its answer; and remembers it if it is dropped without one.
    async fn watch<T>(
        &self,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> (Moment, Result<T, RedisError>) {
        let asked = PendingRequest::on(self);
        let since = asked.since;
        (since, self.while_current(asked.until(request)).await)
    }

    async fn while_current<T>(
        &self,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        tokio::select! {
            biased;
            answer = work => match self.desynchronized.load(Ordering::Acquire) {
                false => answer,
                true => {
                    let why = "the answers on this connection are not told apart any more";
                    Err(RedisError::from((RedisKind::Io, why)))
                }
            },
            // No other servers are ever left.
            _ = self.superseded.wait(), if self.server.epoch.is_some() => {
                Err(io::Error::from(io::ErrorKind::ConnectionAborted).into())
            }
        }
    }

    fn is_good(&self) -> bool {
        !self.broken.load(Ordering::Acquire) && !self.is_silent_for(SILENCE)
    }

    fn is_silent_for(&self, time: Duration) -> bool {
        self.unanswered().is_some_and(|since| (since + time).has_passed())
    }

    fn slots(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> MutexGuard<'_, Option<ServerTime>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
pub(crate) struct PendingRequest<'a> {
    health: &'a Health,
    since: Moment,
    answered: bool,
    /// By another connection to the same server.
    beside: bool,
}

impl<'a> PendingRequest<'a> {
    fn on(health: &'a Health) -> Self {
        Self { health, since: Moment::now(), answered: false, beside: false }
    }

    async fn until<T>(self, request: impl Future<Output = T>) -> T {
        let answer = request.await;
        self.answered();
        answer
    }

    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut oldest = self.health.unanswered();
        if !self.answered {
            *oldest = Some(oldest.map_or(self.since, |oldest| oldest.min(self.since)));
        } else if !self.beside && oldest.is_some_and(|oldest| oldest <= self.since) {
            // Answers come in order: this one came after all that were due before.
            *oldest = None;
        }
    }
}

impl fmt::Debug for ClientState {
    /// Shows nothing: some of it are rights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ours").finish_non_exhaustive()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.address)
            .field("connected", &self.dialer.current().is_some_and(|c| c.health.is_good()))
            .finish_non_exhaustive()
    }
}

/// What the server tells by itself. Runs inside the connection's task: it must not wait.
struct Pushes {
    client: Arc<ClientState>,
    health: Arc<Health>,
    link: Weak<Link>,
}

impl AsyncPushSender for Pushes {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.invalidate(push.data.first()),
            PushKind::Message | PushKind::SMessage => self.on_message(&push.data),
            // A slot was moved away, and the channel with it. The library takes this for the answer to what was
            // asked first, and will give every answer to the wrong one; so none counts from here on.
            PushKind::SUnsubscribe => {
                self.health.desynchronized.store(true, Ordering::Release);
                self.client.mark_broken(&self.health);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Pushes {
    fn invalidate(&self, keys: Option<&Answer>) {
        match keys {
            Some(Answer::Array(keys)) => {
                for key in keys {
                    match key {
                        Answer::BulkString(key) => {
                            // Ours are all UTF-8.
                            if let Ok(key) = std::str::from_utf8(key) {
                                self.client.waiters.signal(key);
                            }
                        }
                        _ => self.client.waiters.signal_all(),
                    }
                }
            }
            // All keys are gone.
            _ => self.client.waiters.signal_all(),
        }
    }

    fn on_message(&self, message: &[Answer]) {
        if let [Answer::BulkString(channel), Answer::BulkString(text)] = message
            && let Some((channel, [b':', _, _, _])) = channel.split_last_chunk()
            && self.client.id.as_ref().is_some_and(|id| channel.ends_with(id.as_bytes()))
            && let Ok(text) = std::str::from_utf8(text)
        {
            let unclaimed = self.client.queues.on_message(text, *self.health.clock());
            if let Some((unclaimed, link)) = unclaimed.zip(self.link.upgrade()) {
                tokio::spawn(link.give_back(unclaimed));
            }
        }
    }
}

impl Drop for Pushes {
    /// The connection's task is gone: it has failed, or its runtime has ended.
    fn drop(&mut self) {
        self.client.mark_broken(&self.health);
    }
}

/// What a server tells of itself: lines of `name:value`.
struct Info(String);

impl Info {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// True if the server does not speak the protocol that has signals.
/// Whether the watched key exists, and the value of the lock; `None` for a key of another type.
type Watched = (bool, Option<Vec<u8>>);

/// Reads the answers of [`Link::watch`].
fn parse_watch(answers: Vec<Answer>) -> Option<Watched> {
    let [Answer::Int(is_there), value, Answer::Int(1)] = <[Answer; 3]>::try_from(answers).ok()?
    else {
        return None;
    };
    match value {
        Answer::BulkString(value) => Some((is_there == 1, Some(value))),
        Answer::ServerError(error) if error.code() == "WRONGTYPE" => Some((is_there == 1, None)),
        _ => None,
    }
}

fn is_too_old(error: &RedisError) -> bool {
    let hides_hello = || {
        let said = error.to_string().to_lowercase();
        said.contains("unknown command") && said.contains("hello")
    };
    error.kind() == RedisKind::RESP3NotSupported || error.code() == Some("NOPROTO") || hides_hello()
}

pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep(limit) => None,
    }
}
