//! The connection to a server: one for all verbs, made anew when it breaks.
//!
//! It reconnects when a verb needs it, one attempt at a time for all verbs, in a task of its own,
//! with a pause between failures that doubles. A dropped verb leaves it in step: its answer is read
//! and discarded. Without an answer for long, the connection is abandoned, even if it seems alive.
//! Such a peer may have promised more bytes than it sends, or be a proxy that lost its server.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::Order;
use lock_core::backend::Fault;
use lock_core::backend::FaultKind::{Unavailable, Unsupported};
use lock_core::clock::Moment;
use lock_core::dial::Dialer;
use redis::{FromRedisValue, RedisError, Value as Answer};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::within;
use crate::config::Config;
use crate::connection::address::{Endpoint, ServerLocation};
use crate::connection::client_state::ClientState;
use crate::connection::handle::{Connection, ConnectionParts};
use crate::connection::prelude::ClusterPrelude;
use crate::fault;
use crate::limits::CONNECT_TIMEOUT;
use crate::scripts::Call;
use crate::topology::replicas::{Replicas, Replicated};
use crate::topology::views::{SentinelViews, ViewObserver};

/// How long a connection that is under suspicion has for an answer.
const STILL_THERE: Duration = Duration::from_millis(500);

/// How long a request may go without answer before others are asked whether its server is still the
/// right one.
const DOUBT: Duration = Duration::from_secs(1);

/// The way to a server.
pub(crate) struct Link {
    pub(crate) address: String,
    pub(crate) config: Arc<Config>,
    pub(crate) client: Arc<ClientState>,
    pub(crate) dialer: Dialer<Connection>,
    /// See [`refuses_certificate`](Self::refuses_certificate).
    pub(crate) refuses_certificate: AtomicBool,
    /// Where the locks are by the last word of each sentinel.
    pub(crate) views: watch::Sender<SentinelViews>,
    /// The tasks that listen to sentinels. They end with the link.
    pub(crate) listening: Mutex<JoinSet<()>>,
    /// If replicas have to know of locks.
    pub(crate) replicas: Option<Replicas>,
}

impl Link {
    /// Creates a link to the server that `config` names, without connecting.
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

    /// Sends a script, after the `prelude` that a cluster may need. The caller interprets errors,
    /// except those that [`failed`](Self::failed) has to record.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        connection: &Connection,
        call: &Call,
        prelude: Option<ClusterPrelude<'_>>,
    ) -> (Moment, Result<T, RedisError>) {
        let ConnectionParts { redis, batcher, health, .. } = &**connection;
        match prelude {
            // Pinned here: a future that is given on and on is kept by each one on its way.
            None => health.watch(pin!(call.run(batcher))).await,
            // Seldom, so it takes no room in each future.
            Some(prelude) => Box::pin(health.watch(prelude.before(call, redis))).await,
        }
    }

    /// Sends a script and waits for replicas if the configuration demands it. If no connection for
    /// that wait can be made, the script was not sent.
    pub(crate) async fn send_replicated<T: FromRedisValue>(
        &self,
        connection: &Connection,
        call: &Call,
        prelude: Option<ClusterPrelude<'_>>,
    ) -> Result<Replicated<T>, Fault> {
        if let Some(replicas) = &self.replicas {
            return replicas
                .run(|| self.exclusive_connection(connection), connection, call, prelude)
                .await;
        }
        let (since, answer) = self.send(connection, call, prelude).await;
        Ok(Replicated { since, answer, missing: None })
    }

    /// Opens the first connection, which decides the order in which waiters are served. No other
    /// caller waits for it yet, so its fault stays whole.
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

    /// Returns the connection. If a new one is needed, waits for one attempt that all verbs share.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, Fault> {
        let is_good = |connection: &Connection| {
            connection.health.is_good() && !self.is_superseded(connection)
        };
        self.dialer.get(is_good, || Arc::clone(self).make_connection()).await
    }

    /// Returns true if the locks may move to another server.
    pub(crate) fn may_move(&self) -> bool {
        matches!(self.config.endpoint, Endpoint::Sentinel(_))
    }

    /// Returns true if another server may have taken over: there is no connection, or the server
    /// has not answered for a while.
    pub(crate) fn is_in_doubt(&self) -> bool {
        let is_sound = |c: Connection| c.health.is_good() && !c.health.is_silent_for(DOUBT);
        !self.dialer.current().is_some_and(is_sound)
    }

    /// Returns true if a connection is subscribed to the channel of this client in `slot`.
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

    /// Returns true if a connection that seems to be silent answers: callers may have gone away
    /// before their answers came.
    pub(crate) async fn answers(&self, connection: &Connection) -> bool {
        let (mut redis, ping) = (connection.redis.clone(), redis::cmd("PING"));
        let asking = connection.health.watch(ping.query_async::<Answer>(&mut redis));
        match within(STILL_THERE, asking).await {
            Some((_, Ok(_))) => true,
            Some((_, Err(error))) => !fault::is_broken(&error),
            None => false,
        }
    }

    /// Applies a report of a sentinel, or the loss of its connection.
    fn update_views(&self, what: impl FnOnce(&mut SentinelViews)) {
        self.views.send_modify(what);
        if let Some(old) = self.dialer.current().filter(|connection| self.is_superseded(connection))
        {
            tracing::info!(redis.address = %old.health.server.address, "this server is the primary no more");
            let _ = old.health.superseded.set(());
            self.client.mark_broken(&old.health);
        }
    }

    /// Returns true if the locks have moved to another server.
    fn is_superseded(&self, connection: &Connection) -> bool {
        let server = &connection.health.server;
        server.epoch.is_some() && self.views.borrow().have_moved_from(server)
    }

    /// Opens a connection to the current server, as far as it answers.
    pub(crate) async fn connect_in_time(self: &Arc<Self>) -> Result<Connection, Fault> {
        within(CONNECT_TIMEOUT, self.connect())
            .await
            .unwrap_or_else(|| Err(fault::no_handshake(&self.config.endpoint)))
    }

    pub(crate) async fn connect(self: &Arc<Self>) -> Result<Connection, Fault> {
        let server = self.find().await?;
        let mut views = self.views.subscribe();
        tokio::select! {
            biased;
            // First: an announcement during the last answer counts.
            _ = views.wait_for(|views| views.have_moved_from(&server)), if server.epoch.is_some() => {
                let why = "the primary was replaced while it was connected to";
                Err(Fault::not_applied(Unavailable, why))
            }
            made = self.connect_to(&server) => made,
        }
    }

    /// Finds the current server. Sentinels that answer may lag behind those that have announced a
    /// failover.
    pub(crate) async fn find(self: &Arc<Self>) -> Result<ServerLocation, Fault> {
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

    /// Starts the listeners to the sentinels, if there are some. Earlier ones may have ended with
    /// their runtime.
    fn start_listeners(self: &Arc<Self>) {
        if let Endpoint::Sentinel(sentinels) = &self.config.endpoint {
            let mut tasks = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            if tasks.is_empty() {
                sentinels.listen(&self.config, &Arc::downgrade(self), &mut tasks);
            }
        }
    }

    /// Leaves a connection that may be alive but is of no use; its waiters look for another server.
    pub(crate) fn leave(&self, connection: &Connection) {
        self.client.mark_broken(&connection.health);
    }

    pub(crate) fn failed(
        &self,
        connection: &Connection,
        action: &'static str,
        error: &RedisError,
    ) -> Fault {
        // A demoted server speaks for no other one: the address may lead to the new primary by now.
        let was_demoted = fault::is_replica_refusal(error) && connection.health.is_old();
        if fault::is_broken(error) || was_demoted {
            self.client.mark_broken(&connection.health);
        }
        fault::fault(action, error)
    }
}

impl ViewObserver for Link {
    fn reported(&self, sentinel: usize, location: ServerLocation) {
        self.update_views(|views| views.report(sentinel, location));
    }

    fn disconnected(&self, sentinel: usize) {
        self.update_views(|views| views.disconnect(sentinel));
    }

    /// Handles the end of a listener, whose runtime has ended. The next caller that connects starts
    /// a new one.
    fn listener_ended(&self, sentinel: usize) {
        self.update_views(|views| views.disconnect(sentinel));
        if let Some(connection) = self.dialer.current() {
            self.client.mark_broken(&connection.health);
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
