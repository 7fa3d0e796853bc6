//! The connection: one for all verbs, made anew when it breaks.
//!
//! It reconnects when a verb needs it, one attempt at a time for all verbs, in a task of its own, with a
//! pause between failures that doubles. A verb that is dropped leaves it in step: the answer is read and thrown
//! away. If the answer does not come for long, the connection is given up, though it may seem alive: a
//! peer that has promised more bytes than it sends, or a middleman that lost its server, would be waited
//! for without end.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::{Unavailable, Unsupported};
use lock_core::clock::{Moment, sleep};
use lock_core::dial::Dialer;
use lock_core::{Error, ErrorKind, Order, OwnerId};
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, ErrorKind as RedisKind, FromRedisValue, PushInfo, PushKind, RedisError,
    ScriptInvocation, Value as Answer,
};
use tokio::sync::{SetOnce, watch};
use tokio::task::JoinSet;

use crate::address::SILENCE;
use crate::clock::Said;
use crate::config::{Config, Place};
use crate::fault;
use crate::keys::LockKeys;
use crate::line::Lines;
use crate::scripts;
use crate::sentinel::Found;
use crate::value::Value;
use crate::waiters::Waiters;

/// Making a connection, all of it: enough for a handshake in four round trips over a slow line.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a connection that is under suspicion has for an answer.
const STILL_THERE: Duration = Duration::from_millis(500);

/// How old a connection to what turns out to be a replica must be to be given up for that.
const AGE: Duration = Duration::from_secs(1);

/// The way to the server.
pub(crate) struct Link {
    address: String,
    config: Arc<Config>,
    trial: LockKeys,
    waiters: Arc<Waiters>,
    lines: Arc<Lines>,
    /// Where this process hears of locks that were given to it, if it is to. Nobody can guess it.
    channel: Option<String>,
    /// In which order those are served who wait: what the first connection could do, every other one has
    /// to do.
    order: OnceLock<Order>,
    dialer: Dialer<Connection>,
    /// How many connections were made.
    made: AtomicU64,
    /// Where the locks are by the word of a sentinel that said so of its own accord.
    named: watch::Sender<Option<Found>>,
    /// Those who listen to sentinels. They end with this.
    listening: Mutex<JoinSet<()>>,
}

/// A connection. Cloning is cheap; clones share it.
#[derive(Clone)]
pub(crate) struct Connection {
    redis: MultiplexedConnection,
    health: Arc<Health>,
    /// Another one for each connection, and never 0.
    pub(crate) id: u64,
    server: Found,
    /// Whether the server tells of changes of the keys that we watch.
    pub(crate) has_signals: bool,
    /// Whether the server sends what is said on our channel.
    pub(crate) has_channel: bool,
}

/// Whether a connection is of any use.
struct Health {
    since: Moment,
    broken: AtomicBool,
    /// The locks have moved to another server: nobody waits for an answer of this one any more.
    left: SetOnce<()>,
    /// When the oldest request was sent whose caller has gone away without an answer.
    unanswered: Mutex<Option<Moment>>,
    /// What the server's clock said last.
    clock: Mutex<Option<Said>>,
}

impl Link {
    /// # Errors
    ///
    /// What is wrong with the configuration, or with files that it names: the server is not asked.
    pub(crate) async fn new(config: Config) -> Result<Self, Error> {
        config.check_files().await?;
        let stands_in_line = config.order != Some(Order::PerProcess);
        let channel = || config.keys.channel(&OwnerId::mint().expose());
        Ok(Self {
            address: config.place.to_string(),
            trial: config.keys.for_trial(),
            channel: stands_in_line.then(channel),
            order: OnceLock::new(),
            config: Arc::new(config),
            waiters: Arc::default(),
            lines: Arc::default(),
            dialer: Dialer::default(),
            made: AtomicU64::new(0),
            named: watch::Sender::default(),
            listening: Mutex::default(),
        })
    }

    /// Those who stand in line.
    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// The channel of this process, if those who wait in it stand in line.
    pub(crate) fn channel(&self) -> Option<&str> {
        self.channel.as_deref().filter(|_| self.order.get() == Some(&Order::Fifo))
    }

    /// Those who wait for a signal.
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Runs a script, and says from when its effects count at the earliest.
    pub(crate) async fn run<T: FromRedisValue>(
        self: &Arc<Self>,
        doing: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<(Moment, T), Fault> {
        let connection = self.connection().await?;
        self.run_on(&connection, doing, script).await
    }

    /// The same, on this connection.
    pub(crate) async fn run_on<T: FromRedisValue>(
        &self,
        connection: &Connection,
        doing: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<(Moment, T), Fault> {
        let mut redis = connection.redis.clone();
        match connection.health.watch(script.invoke_async(&mut redis)).await {
            (since, Ok(answer)) => Ok((since, answer)),
            (_, Err(error)) => Err(self.failed(connection, doing, &error)),
        }
    }

    /// A section of what the server tells of itself; `None` if this user may not ask.
    pub(crate) async fn info(
        self: &Arc<Self>,
        section: &'static str,
    ) -> Result<Option<Info>, Fault> {
        let connection = self.connection().await?;
        let (mut redis, mut command) = (connection.redis.clone(), redis::cmd("INFO"));
        let asking = command.arg(section).query_async::<String>(&mut redis);
        match connection.health.watch(asking).await.1 {
            Ok(text) => Ok(Some(Info(text))),
            Err(error) if error.code() == Some("NOPERM") => Ok(None),
            Err(error) => Err(self.failed(&connection, "ask for INFO", &error)),
        }
    }

    /// Has the server tell of the next change of the key `watched`, and then looks what stands under
    /// `lock`: whether `watched` is there, and that. `None`: there is nothing, or something that is no string.
    pub(crate) async fn watch(
        &self,
        connection: &Connection,
        watched: &str,
        lock: &str,
    ) -> Result<Option<(bool, Vec<u8>)>, Fault> {
        let mut redis = connection.redis.clone();
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        pipe.cmd("EXISTS").arg(watched);
        // What holds a lock is short; who knows what else is there.
        pipe.cmd("GETRANGE").arg(lock).arg(0).arg(Value::MAX_LEN);
        pipe.cmd("EXISTS").arg(lock);
        let asking = pipe.query_async::<(bool, Vec<u8>, bool)>(&mut redis);
        match connection.health.watch(asking).await.1 {
            Ok((is_there, value, is_held)) => Ok(is_held.then_some((is_there, value))),
            Err(error) if fault::is_broken(&error) => Err(self.failed(connection, "watch", &error)),
            Err(_) => Ok(None),
        }
    }

    /// Names the rights that this user lacks.
    pub(crate) async fn check_rights(self: &Arc<Self>) -> Result<(), Error> {
        let mut connection = self.connection().await.map_err(fault::error)?;
        let keys = &self.trial;
        let mut trial = scripts::RIGHTS.prepare_invoke();
        trial.key(&keys.lock).key(&keys.fence).key(&keys.queue).key(&keys.places);
        trial.key(keys.tombstone(&OwnerId::mint())).arg(self.channel().unwrap_or_default());
        let work = async {
            trial.load_async(&mut connection.redis).await?;
            trial.invoke_async::<Vec<String>>(&mut connection.redis).await
        };
        let missing = within(CONNECT_TIMEOUT, work)
            .await
            .ok_or_else(|| fault::error(fault::silent(&self.address)))?
            .map_err(|e| fault::error(fault::fault("try out the rights of this user", &e)))?;
        if missing.is_empty() { Ok(()) } else { Err(fault::missing_rights(&missing)) }
    }

    /// Refuses a member of a cluster, and warns of a server that may throw locks away.
    pub(crate) async fn check_server(self: &Arc<Self>) -> Result<(), Error> {
        let asking = async { Ok((self.info("server").await?, self.info("memory").await?)) };
        let (server, memory) = within(CONNECT_TIMEOUT, asking)
            .await
            .unwrap_or_else(|| Err(fault::silent(&self.address)))
            .map_err(fault::error)?;
        let why = match server.as_ref().and_then(|info| info.get("redis_mode")) {
            Some("cluster") => "the server is a member of a cluster, which this backend cannot use",
            Some("sentinel") => "this is a sentinel: write redis+sentinel://host,host,host/name",
            _ => "",
        };
        if !why.is_empty() {
            return Err(Error::new(ErrorKind::Unsupported, why));
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
    pub(crate) async fn first_connection(self: &Arc<Self>) -> Result<(Connection, Order), Fault> {
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
                 processes are not served in order"
            ),
            _ => {}
        }
        let order = *self.order.get_or_init(|| order);
        self.dialer.put(connection.clone());
        Ok((connection, order))
    }

    /// The connection, if need be a new one: then this waits for one attempt, which all verbs share.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, Fault> {
        let is_good =
            |connection: &Connection| connection.health.is_good() && !self.is_left(connection);
        self.dialer.get(is_good, || Arc::clone(self).make_connection()).await
    }

    /// The connection, whenever there is one again: for who has nothing to do meanwhile.
    pub(crate) async fn next_connection(self: &Arc<Self>) -> Connection {
        loop {
            // It pauses between attempts.
            if let Ok(connection) = self.connection().await {
                return connection;
            }
        }
    }

    /// True if the locks may be on another server one day.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self.config.place, Place::Named(_))
    }

    async fn make_connection(self: Arc<Self>) -> Result<Connection, Fault> {
        // There may be nothing against the old one but that it does not answer.
        match self.dialer.current().filter(|c| !c.is_broken() && !self.is_left(c)) {
            Some(old) if self.answers(&old).await => Ok(old),
            _ => self.connect_in_time().await,
        }
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

    /// A sentinel says that the locks are there. Perhaps they have been there for long.
    pub(crate) fn has_moved_to(&self, found: Found) {
        self.named.send_replace(Some(found));
        if let Some(old) = self.dialer.current().filter(|connection| self.is_left(connection)) {
            tracing::info!(redis.address = %old.server.address, "this server is the primary no more");
            let _ = old.health.left.set(());
            self.gives_up(&old);
        }
    }

    /// True if the locks have moved to another server.
    fn is_left(&self, connection: &Connection) -> bool {
        let replaces = |found: &Found| found.replaces(&connection.server);
        connection.server.epoch.is_some() && self.named.borrow().as_ref().is_some_and(replaces)
    }

    async fn connect_in_time(self: &Arc<Self>) -> Result<Connection, Fault> {
        within(CONNECT_TIMEOUT, self.connect())
            .await
            .unwrap_or_else(|| Err(fault::silent_from_the_start(&self.config.place)))
    }

    async fn connect(self: &Arc<Self>) -> Result<Connection, Fault> {
        let server = self.config.resolve().await?;
        self.listen();
        let mut named = self.named.subscribe();
        let replaces = |found: &Option<Found>| found.as_ref().is_some_and(|f| f.replaces(&server));
        tokio::select! {
            biased;
            made = self.connect_to(&server) => made,
            _ = named.wait_for(replaces), if server.epoch.is_some() => {
                let why = "the primary was replaced while it was connected to";
                Err(Fault::not_applied(Unavailable, why))
            }
        }
    }

    /// Has somebody listen to the sentinels, if there are some. Who did so may have ended with a runtime.
    fn listen(self: &Arc<Self>) {
        if let Place::Named(sentinels) = &self.config.place {
            let mut tasks = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            if tasks.is_empty() {
                sentinels.listen(&self.config, &Arc::downgrade(self), &mut tasks);
            }
        }
    }

    async fn connect_to(&self, server: &Found) -> Result<Connection, Fault> {
        let (config, address) = (&self.config, &server.address);
        // Files that are just being replaced are no reason to give up.
        let clients = config.clients(address, &config.login, config.database).await;
        let [with_signals, without] = clients.map_err(|e| Fault::not_applied(Unavailable, e))?;
        let health = Arc::new(Health::new());
        let pushes = Pushes {
            waiters: Arc::clone(&self.waiters),
            lines: Arc::clone(&self.lines),
            channel: self.channel.clone(),
            health: Arc::clone(&health),
        };
        // Core bounds each call, and this link the making of a connection.
        let settings =
            AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let speaking = settings.clone().set_push_sender(pushes);
        let failed = |error: RedisError| fault::no_connection(address, &error);
        let connection = |redis, health| Connection {
            redis,
            health,
            id: self.made.fetch_add(1, Ordering::Relaxed) + 1,
            server: server.clone(),
            has_signals: false,
            has_channel: false,
        };
        match with_signals.get_multiplexed_async_connection_with_config(&speaking).await {
            Ok(mut redis) => {
                let mut other = redis.clone();
                // Before anybody stands in line by this connection.
                let subscribing = async {
                    match &self.channel {
                        Some(channel) => other.subscribe(channel).await.map_err(failed),
                        None => Ok(()),
                    }
                };
                // All in one round trip: a renewal may be waiting for this.
                let checking = must_be_primary(redis.clone(), server);
                let asking = async { self.switch_signals_on(&mut redis).await.map_err(failed) };
                let ((), (), has_signals) = tokio::try_join!(checking, subscribing, asking)?;
                let has_channel = self.channel.is_some();
                Ok(Connection { has_signals, has_channel, ..connection(redis, health) })
            }
            Err(error) if is_too_old(&error) && self.order.get() == Some(&Order::Fifo) => {
                let why = "the server at this address used to send messages of its own accord, and \
                           does not any more";
                Err(Fault::not_applied(Unavailable, why))
            }
            Err(error) if is_too_old(&error) => {
                // The pushes are gone with the connection, and have marked it as broken.
                let health = Arc::new(Health::new());
                let redis = without.get_multiplexed_async_connection_with_config(&settings).await;
                let redis = redis.map_err(failed)?;
                must_be_primary(redis.clone(), server).await?;
                Ok(connection(redis, health))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// From here on the server remembers the keys of those reads that ask for it, and tells once when
    /// such a key changes. False if it does not do that for us.
    async fn switch_signals_on(
        &self,
        redis: &mut MultiplexedConnection,
    ) -> Result<bool, RedisError> {
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("TRACKING").arg("ON").arg("OPTIN").ignore();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        // What was asked for with the line before counts for this one, which reads nothing.
        pipe.cmd("HELLO").ignore();
        match pipe.query_async::<()>(redis).await {
            Ok(()) => Ok(true),
            // It says nothing about signals that the server is busy.
            Err(error) if fault::is_broken(&error) || fault::is_passing(&error) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "no signals from this server: waiters look from time to time");
                Ok(false)
            }
        }
    }

    fn failed(&self, connection: &Connection, doing: &'static str, error: &RedisError) -> Fault {
        // Whoever was demoted answers for nobody: the address may lead to the new primary by now.
        let was_demoted = fault::is_elsewhere(error) && connection.health.is_old();
        if fault::is_broken(error) || was_demoted {
            self.gives_up(connection);
        }
        fault::fault(doing, error)
    }

    fn gives_up(&self, connection: &Connection) {
        connection.health.breaks();
        self.waiters.signal_all();
        self.lines.lose_places();
    }
}

impl Connection {
    /// The server's clock said so in the answer to what was asked then.
    pub(crate) fn clock_said(&self, asked: Moment, said: u64) {
        let mut clock = self.health.clock();
        if clock.is_none_or(|before| before.asked <= asked) {
            *clock = Some(Said { asked, said });
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.health.broken.load(Ordering::Acquire)
    }
}

impl Health {
    fn new() -> Self {
        Self {
            since: Moment::now(),
            broken: AtomicBool::new(false),
            left: SetOnce::new(),
            unanswered: Mutex::default(),
            clock: Mutex::default(),
        }
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
        let asked = Asked { health: self, since: Moment::now(), answered: false };
        let since = asked.since;
        tokio::select! {
            biased;
            answer = asked.until(request) => (since, answer),
            _ = self.left.wait() => {
                (since, Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()))
            }
        }
    }

    fn is_good(&self) -> bool {
        let is_silent = || self.unanswered().is_some_and(|since| (since + SILENCE).has_passed());
        !self.broken.load(Ordering::Acquire) && !is_silent()
    }

    fn breaks(&self) {
        self.broken.store(true, Ordering::Release);
    }

    fn clock(&self) -> MutexGuard<'_, Option<Said>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
struct Asked<'a> {
    health: &'a Health,
    since: Moment,
    answered: bool,
}

impl Asked<'_> {
    async fn until<T>(mut self, request: impl Future<Output = T>) -> T {
        let answer = request.await;
        self.answered = true;
        answer
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let mut oldest = self.health.unanswered();
        if !self.answered {
            *oldest = Some(oldest.map_or(self.since, |oldest| oldest.min(self.since)));
        } else if oldest.is_some_and(|oldest| oldest <= self.since) {
            // Answers come in order: this one came after all that were due before.
            *oldest = None;
        }
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
    waiters: Arc<Waiters>,
    lines: Arc<Lines>,
    channel: Option<String>,
    health: Arc<Health>,
}

impl AsyncPushSender for Pushes {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.invalidate(push.data.first()),
            PushKind::Message => self.hear(&push.data),
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
                                self.waiters.signal(key);
                            }
                        }
                        _ => self.waiters.signal_all(),
                    }
                }
            }
            // All keys are gone.
            _ => self.waiters.signal_all(),
        }
    }

    fn hear(&self, message: &[Answer]) {
        if let [Answer::BulkString(channel), Answer::BulkString(text)] = message
            && self.channel.as_ref().is_some_and(|ours| ours.as_bytes() == channel)
            && let Ok(text) = std::str::from_utf8(text)
        {
            self.lines.hear(text, *self.health.clock());
        }
    }
}

impl Drop for Pushes {
    /// The connection's task is gone: it has failed, or its runtime has ended.
    fn drop(&mut self) {
        self.health.breaks();
        self.waiters.signal_all();
        self.lines.lose_places();
    }
}

/// What a server tells of itself: lines of `name:value`.
pub(crate) struct Info(String);

impl Info {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }
}

/// Demands that a server that sentinels name is a primary: one that was replaced may not know it yet, and who is to
/// replace it neither. Users who may not ask find out by the first write.
async fn must_be_primary(mut redis: MultiplexedConnection, server: &Found) -> Result<(), Fault> {
    if server.epoch.is_none() {
        return Ok(());
    }
    match redis::cmd("ROLE").query_async::<Vec<Answer>>(&mut redis).await {
        Ok(role) if role.first() == Some(&Answer::BulkString(b"master".to_vec())) => Ok(()),
        Ok(_) => {
            let why =
                format!("{} is a replica, though sentinels name it as the primary", server.address);
            Err(Fault::not_applied(Unavailable, why))
        }
        Err(error) if fault::is_broken(&error) => {
            Err(fault::no_connection(&server.address, &error))
        }
        Err(_) => Ok(()),
    }
}

/// True if the server does not speak the protocol that has signals.
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
