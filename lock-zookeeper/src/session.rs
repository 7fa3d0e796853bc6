//! One session with the ensemble: its lease, and the queue entries of its claims.

mod connection;
mod follow;
mod janitor;
mod line;
mod watched;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Fault, FaultKind, Grant, Lease};
use lock_core::clock::{Moment, sleep, sleep_between, sleep_until};
use tokio::net::TcpStream;
use tokio::sync::{Notify, SetOnce, watch};
use zookeeper_client::{Acls, Client, Error as ZkError};

pub(crate) use self::connection::Connection;
pub(crate) use self::watched::Watched;
use self::watched::Watches;
use crate::chain::{Chain, Proof};
use crate::config::Config;
use crate::fault::fault;
use crate::names::{Layout, token};
use crate::place::Place;

/// The number of locks that are remembered as contended.
const MAX_CONTENDED: usize = 1000;

/// The pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// A session and its state. It is over when the server has expired it, or when the client ends it.
pub(crate) struct Session {
    /// The connection in use, or the last one.
    connection: watch::Sender<Arc<Connection>>,
    config: Config,
    id: i64,
    layout: Layout,
    acls: Acls<'static>,
    chain: Mutex<Chain>,
    /// The lease has changed.
    proven: Notify,
    /// The moment of the last acquisition, or of the last claim.
    used_at: Mutex<Moment>,
    /// An acquisition has begun.
    used: Notify,
    places: Mutex<HashMap<OwnerId, Arc<Place>>>,
    /// There is something to clean up, sooner than planned.
    sweep: Notify,
    /// The moment of the next cleanup; `None` until there is a queue entry.
    sweeps_at: Mutex<Option<Moment>>,
    over: SetOnce<()>,
    barrier: Barrier,
    /// Locks that were contended at the last request. A hint.
    contended: Mutex<HashSet<String>>,
    /// Nodes of locks that hold no data, in kazoo's layout.
    without_data: Mutex<HashSet<String>>,
    watches: Watches,
}

/// One round trip for all barriers that begin at the same time.
#[derive(Debug, Default)]
struct Barrier {
    turn: tokio::sync::Mutex<()>,
    asked: AtomicU64,
    done: AtomicU64,
}

impl Session {
    /// Creates the state of a session that was opened on `connection`, was requested at `asked`,
    /// and has `proofs`.
    pub(crate) fn new(
        connection: Connection,
        asked: Moment,
        proofs: &[Proof],
        config: Config,
        acls: Acls<'static>,
    ) -> Arc<Self> {
        let client = &connection.client;
        let mut chain = Chain::new(client.session_timeout(), asked);
        proofs.iter().for_each(|proof| chain.proven(*proof));
        Arc::new(Self {
            id: client.session_id().0,
            chain: Mutex::new(chain),
            connection: watch::Sender::new(Arc::new(connection)),
            layout: config.names.layout,
            config,
            acls,
            proven: Notify::new(),
            used_at: Mutex::new(Moment::now()),
            used: Notify::new(),
            places: Mutex::default(),
            sweep: Notify::new(),
            sweeps_at: Mutex::default(),
            over: SetOnce::new(),
            barrier: Barrier::default(),
            contended: Mutex::default(),
            without_data: Mutex::default(),
            watches: Watches::default(),
        })
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection.borrow())
    }

    /// Returns the client of the connection in use, or of the last one. Requests in order take the
    /// same one.
    pub(crate) fn client(&self) -> impl Deref<Target = Client> + use<> {
        InUse(self.connection())
    }

    /// Returns the shortest timeout that the servers have granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.chain().timeout()
    }

    /// Returns true if the session has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some() || self.connection.borrow().client.state().is_terminated()
    }

    fn is_connected(&self) -> bool {
        self.connection.borrow().is_up()
    }

    /// Waits for a connection to a server. Returns false if there will be none.
    pub(crate) async fn connected(&self) -> bool {
        let mut connections = self.connection.subscribe();
        loop {
            if self.is_over() {
                return false;
            }
            if connections.borrow_and_update().is_up() {
                return true;
            }
            tokio::select! {
                _ = connections.changed() => {}
                () = self.over() => return false,
            }
        }
    }

    /// Waits for a connection for a twentieth of the timeout: an outage is an error, not a wait.
    /// Returns true if the session goes on.
    pub(crate) async fn ready(&self) -> Result<bool, Fault> {
        self.ready_within(self.timeout() / 20).await
    }

    async fn ready_within(&self, patience: Duration) -> Result<bool, Fault> {
        let connected = tokio::time::timeout(patience, self.connected()).await;
        connected.map_err(|_| {
            let why = "there is no connection to a server that has a quorum";
            Fault::not_applied(FaultKind::Unavailable, why)
        })
    }

    /// Waits until the session is over.
    pub(crate) async fn over(&self) {
        self.over.wait().await;
    }

    /// Returns the result of `work`, or an error if the session ends first.
    pub(crate) async fn meanwhile<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.over() => Err(expired()),
        }
    }

    /// Keeps the session alive and removes residue, until the session is over.
    pub(crate) async fn run(&self) {
        tokio::select! {
            () = self.prove() => {}
            () = self.sweep() => {}
            () = self.over() => {}
        }
        self.end();
    }

    /// Closes the session at the server, if that can be reached, for the sake of the waiters. Waits
    /// for the deadline of the lease first: until then its holders rely on the session.
    pub(crate) async fn close(self: Arc<Self>) {
        let until = self.chain().deadline();
        sleep_until(until).await;
        let has_expired = self.connection().client.state().is_terminated();
        if !has_expired && !self.is_connected() {
            // Dropping the connection closes the session.
            self.reconnect().await;
        }
    }

    /// Ends the session: all its locks are lost, and none of its nodes is used again.
    pub(crate) fn end(&self) {
        let _ = self.over.set(());
        let places = std::mem::take(&mut *self.places());
        places.values().for_each(|place| place.is_gone());
        self.proven.notify_waiters();
    }

    fn places(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<Place>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sweeps_at(&self) -> MutexGuard<'_, Option<Moment>> {
        self.sweeps_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn used_at(&self) -> MutexGuard<'_, Moment> {
        self.used_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Heartbeat writes.
impl Session {
    /// Sends heartbeat writes until the session is over.
    async fn prove(&self) {
        let mut next = self.chain().next_proof();
        loop {
            let connection = self.connection();
            let is_proven = tokio::select! {
                biased;
                () = connection.lost() => {
                    if self.is_over() || !self.reconnect().await {
                        return;
                    }
                    true
                }
                () = self.next_proof(next) => self.prove_once(&connection).await,
            };
            let chain = self.chain();
            next = if is_proven { chain.next_proof() } else { chain.next_try() };
        }
    }

    /// Waits until the next heartbeat write is due at `next`, or for an acquisition in an idle
    /// session.
    async fn next_proof(&self, next: Moment) {
        sleep_until(next).await;
        loop {
            let mut used = pin!(self.used.notified());
            used.as_mut().enable();
            if !self.pauses() {
                return;
            }
            used.await;
        }
    }

    /// Returns true if heartbeat writes pause: there was no claim in this session for the time of
    /// its timeout. A majority logs each of them.
    fn pauses(&self) -> bool {
        let places = self.places();
        if !places.is_empty() {
            *self.used_at() = Moment::now();
            return false;
        }
        let mut chain = self.chain();
        (*self.used_at() + chain.timeout()).has_passed() && chain.pause()
    }

    /// Ends a pause before an acquisition, by another connection: the leader touches the session
    /// when that is opened. A chain of writes on the old connection would take a good part of a
    /// timeout. Returns false if the session is over.
    pub(crate) async fn awake(&self) -> Result<bool, Fault> {
        *self.used_at() = Moment::now();
        // The connection is taken first, because another acquisition may end the pause meanwhile by
        // a connection that stays.
        let connection = self.connection();
        if self.chain().is_paused() {
            connection.hang_up().await;
        }
        self.ready_within(self.timeout() / 2).await
    }

    /// Opens another connection for the session. Returns false if the session is lost. A server
    /// that stalls costs little time at first, so that another one is asked early.
    async fn reconnect(&self) -> bool {
        let servers: Vec<&str> = self.config.servers.split(',').collect();
        // The clients of a server that failed spread over the others.
        let first = self.id.unsigned_abs() as usize;
        let gives_up = Moment::now() + self.timeout() * 3 / 2;
        let mut stalled = 0;
        for attempt in 0.. {
            let server = servers[first.wrapping_add(attempt) % servers.len()];
            let bound = self.timeout() / 10 * (1 << (stalled / servers.len()).min(2));
            let ends = Moment::now() + bound;
            let reconnected = self.reconnect_to(server, bound).await;
            stalled += usize::from(ends.has_passed());
            match reconnected {
                Ok(Some(connection)) => {
                    self.connection.send_replace(Arc::new(connection));
                    return true;
                }
                Ok(None) if !gives_up.has_passed() => {
                    sleep_between(RECONNECT_PAUSE / 2, RECONNECT_PAUSE).await;
                }
                Ok(None) | Err(Expired) => break,
            }
        }
        false
    }

    /// Opens a connection to this server and sends a heartbeat write on it. Returns `None` if that
    /// fails.
    async fn reconnect_to(
        &self,
        server: &str,
        bound: Duration,
    ) -> Result<Option<Connection>, Expired> {
        // A server that refuses the connection has not taken the session over, so the leases stay.
        if !self.chain().is_paused() {
            let is_there = tokio::time::timeout(bound, TcpStream::connect(server)).await;
            if !matches!(is_there, Ok(Ok(_))) {
                return Ok(None);
            }
        }
        let asked = Moment::now();
        self.chain().asked(asked);
        self.proven.notify_waiters();
        let info = self.connection().client.session().clone();
        let opened = Connection::open(&self.config, server, Some(&info));
        let connection = match tokio::time::timeout(bound, opened).await {
            Ok(Ok(Ok(connection))) => connection,
            Ok(Ok(Err(ZkError::SessionExpired))) => return Err(Expired),
            Ok(Ok(Err(error))) => {
                tracing::debug!(lock.error = %error, "no connection yet");
                return Ok(None);
            }
            Ok(Err(error)) => {
                tracing::warn!(lock.error = %error, "there cannot be another connection");
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        if connection.client.session_id().0 != self.id {
            // The server has replaced the session without an error.
            return Err(Expired);
        }
        let granted = connection.client.session_timeout();
        if granted < self.timeout() {
            warn_of_less(&self.config, granted);
        }
        self.chain().granted(asked, granted);
        // The member may lag behind. After a commit it has caught up.
        let proven = tokio::time::timeout(self.timeout() / 2, commit_nothing(&connection.client));
        let Ok(Ok(proof)) = proven.await else {
            connection.hang_up().await;
            return Ok(None);
        };
        self.chain().proven(proof);
        self.proven.notify_waiters();
        Ok(Some(connection))
    }

    /// Sends one heartbeat write. Returns false unless it is acknowledged on the connection that it
    /// was sent on.
    async fn prove_once(&self, connection: &Connection) -> bool {
        let answer = tokio::select! {
            biased;
            () = connection.lost() => return false,
            answer = commit_nothing(&connection.client) => answer,
            () = sleep(self.timeout() / 2) => {
                // A silent server is noticed sooner, and then the connection changes. This server
                // sends data and no answer: the connection is out of step for good.
                tracing::warn!("the connection to ZooKeeper is out of step, and its session given up");
                self.end();
                return false;
            }
        };
        match answer {
            Ok(proof) => {
                self.chain().proven(proof);
                self.proven.notify_waiters();
                true
            }
            Err(error) => {
                let fault = fault("proving the session", &error);
                let is_refused = !fault.is_transient();
                let why = fault.into_source();
                if is_refused {
                    tracing::warn!(lock.error = %why, "no lock of this session can be held for long");
                } else {
                    tracing::debug!(lock.error = %why, "a proof of the session failed");
                }
                false
            }
        }
    }

    /// Grants the lock to an entry that is first, for a claim that asked at `asked`. Waits for a
    /// heartbeat write if less time is left than one takes.
    pub(crate) async fn grant(
        &self,
        place: &Place,
        ttl: Duration,
        asked: Moment,
    ) -> Result<Grant, Fault> {
        loop {
            let mut proven = pin!(self.proven.notified());
            proven.as_mut().enable();
            if self.is_over() {
                return Err(expired());
            }
            if self.chain().is_good_for_a_grant() {
                break;
            }
            proven.await;
        }
        let mut state = place.state();
        let number = state.node.as_ref().and_then(|node| token(node.czxid));
        let Some(number) = number.filter(|_| !state.gone && !state.leaving) else {
            return Err(Fault::not_applied(FaultKind::Unavailable, "our place in line is gone"));
        };
        // Until now the entry expired as one of a waiter.
        let lapses = match std::mem::replace(&mut state.granted, true) {
            true => state.lapses.max(asked + ttl),
            false => asked + ttl,
        };
        state.lapses = lapses;
        drop(state);
        self.sweep_by(lapses);
        // The lease also has the limit of the session, which moves with each heartbeat write.
        let lease = Lease::For(lapses.saturating_since(asked));
        Ok(Grant::new(lease, asked).with_token(number).with_limit(self.chain().limit()))
    }

    /// Waits for a round trip, after which the client knows of all earlier events on the ensemble.
    /// Watch events precede the answer.
    pub(crate) async fn barrier(&self) -> Result<(), Fault> {
        let number = self.barrier.asked.fetch_add(1, Ordering::SeqCst);
        let _turn = self.barrier.turn.lock().await;
        if self.barrier.done.load(Ordering::SeqCst) > number {
            return Ok(());
        }
        // Renewals that begin together share one request.
        tokio::task::yield_now().await;
        let all = self.barrier.asked.load(Ordering::SeqCst);
        self.client().sync("/").await.map_err(|error| fault("asking the ensemble", &error))?;
        self.barrier.done.store(all, Ordering::SeqCst);
        Ok(())
    }
}

/// Queue entries.
impl Session {
    /// Returns the queue entry of a claim.
    pub(crate) fn place(&self, owner: &OwnerId) -> Option<Arc<Place>> {
        self.places().get(owner).cloned()
    }

    /// Returns the queue entry of a claim, unless its node is gone for good.
    ///
    /// Fails if an operator has removed the node of a waiter. The node goes with its session, too.
    /// A write that commits afterwards shows that this is not the reason.
    pub(crate) async fn usable_place(&self, owner: &OwnerId) -> Result<Option<Arc<Place>>, Fault> {
        let Some(place) = self.place(owner) else { return Ok(None) };
        if !place.is_spent() {
            return Ok(Some(place));
        }
        let has_waited = {
            let state = place.state();
            !state.granted && !state.leaving
        };
        if has_waited {
            let client = self.client();
            let alive = self.meanwhile(async {
                let proof = commit_nothing(&client).await;
                proof.map_err(|error| fault("proving the session", &error))
            });
            let unknown =
                |fault: Fault| Fault::not_applied(FaultKind::Unavailable, fault.into_source());
            alive.await.map_err(unknown)?;
        }
        self.forget(owner, &place);
        if has_waited { Err(removed()) } else { Ok(None) }
    }

    /// Creates the queue entry of a claim that has none.
    pub(crate) fn new_place(&self, owner: OwnerId, lock: String, lapses: Moment) -> Arc<Place> {
        let place = Arc::new(Place::new(lock, self.layout.mint(), lapses));
        self.places().insert(owner, Arc::clone(&place));
        self.used.notify_waiters();
        self.sweep_by(lapses);
        if self.is_over() {
            self.end();
        }
        place
    }

    /// Returns true if the lock was contended at the last request.
    pub(crate) fn is_contended(&self, lock: &str) -> bool {
        self.contended.lock().unwrap_or_else(PoisonError::into_inner).contains(lock)
    }

    /// Remembers whether a lock is contended.
    pub(crate) fn note_contended(&self, lock: &str, is_contended: bool) {
        let mut contended = self.contended.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_contended {
            contended.remove(lock);
        } else if contended.len() < MAX_CONTENDED {
            contended.insert(lock.to_owned());
        } else {
            // A forgotten lock costs one unnecessary node.
            contended.clear();
        }
    }

    /// Drops a queue entry.
    pub(crate) fn forget(&self, owner: &OwnerId, place: &Arc<Place>) {
        let mut places = self.places();
        if places.get(owner).is_some_and(|known| Arc::ptr_eq(known, place)) {
            places.remove(owner);
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.client().session_id())
            .field("timeout", &self.timeout())
            .field("state", &self.client().state())
            .finish_non_exhaustive()
    }
}

/// The client of a connection, which it keeps open.
struct InUse(Arc<Connection>);

impl Deref for InUse {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

/// The session has ended, or the server has replaced it.
struct Expired;

/// Traces a warning that a server granted less than the requested timeout.
pub(crate) fn warn_of_less(config: &Config, granted: Duration) {
    tracing::warn!(
        asked = ?config.session_timeout,
        granted = ?granted,
        "the server grants no longer session than this: it is its maxSessionTimeout, which is twenty ticks unless set; \
         its locks are lost the sooner when its connection breaks"
    );
}

/// Commits a write that changes nothing.
pub(crate) async fn commit_nothing(client: &Client) -> Result<Proof, ZkError> {
    let sent = Moment::now();
    let mut write = client.new_multi_writer();
    write.add_check_version("/", -1)?;
    write.commit().await?;
    Ok(Proof { sent, answered: Moment::now() })
}

/// Returns the fault of a waiter whose node an operator removed.
fn removed() -> Fault {
    let why = "an operator removed this claim's node from the queue: it does not wait any more";
    Fault::not_applied(FaultKind::Invalid, why)
}

/// Returns the fault of a session that has ended.
pub(crate) fn expired() -> Fault {
    Fault::unknown(FaultKind::Unavailable, "the session with the ensemble has ended")
}
