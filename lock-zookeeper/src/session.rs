//! One session with the ensemble: its lease, and the queue entries of its claims.

mod cleanup;
mod connection;
mod heartbeats;
pub(crate) mod manager;
mod node_watches;
mod queue;
mod queue_entry;
mod session_lease;
mod watch_predecessor;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Fault, FaultKind, Grant, Lease};
use lock_core::clock::{Moment, sleep_until};
use tokio::sync::{Notify, SetOnce, watch};
use zookeeper_client::{Acls, Client};

pub(crate) use self::connection::Connection;
pub(crate) use self::heartbeats::commit_no_op;
use self::queue_entry::NodeWatches;
pub(crate) use self::queue_entry::{PredecessorWatch, QueueEntry};
use self::session_lease::{HeartbeatWrite, SessionLease};
use crate::config::Config;
use crate::fault::fault;
use crate::names::Layout;
use crate::value::token;

/// The number of locks that are remembered as contended.
const MAX_CONTENDED: usize = 1000;

/// A session and its state. It is over when the server has expired it, or when the client ends it.
pub(crate) struct Session {
    /// The connection in use, or the last one.
    connection: watch::Sender<Arc<Connection>>,
    config: Config,
    id: i64,
    layout: Layout,
    acls: Acls<'static>,
    lease: Mutex<SessionLease>,
    /// The lease has changed.
    lease_changed: Notify,
    /// The moment of the last acquisition, or of the last claim.
    last_used: Mutex<Moment>,
    /// An acquisition has begun.
    used: Notify,
    entries: Mutex<HashMap<OwnerId, Arc<QueueEntry>>>,
    /// There is something to clean up, sooner than planned.
    cleanup_due: Notify,
    /// The moment of the next cleanup; `None` until there is a queue entry.
    next_cleanup: Mutex<Option<Moment>>,
    over: SetOnce<()>,
    barrier: Barrier,
    /// Locks that were contended at the last request. A hint.
    contended: Mutex<HashSet<String>>,
    /// Nodes of locks that hold no data, in kazoo's layout.
    without_data: Mutex<HashSet<String>>,
    watches: NodeWatches,
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
    /// and has `heartbeats`.
    pub(crate) fn new(
        connection: Connection,
        asked: Moment,
        heartbeats: &[HeartbeatWrite],
        config: Config,
        acls: Acls<'static>,
    ) -> Arc<Self> {
        let client = &connection.client;
        let mut lease = SessionLease::new(client.session_timeout(), asked);
        heartbeats.iter().for_each(|heartbeat| lease.record(*heartbeat));
        Arc::new(Self {
            id: client.session_id().0,
            lease: Mutex::new(lease),
            connection: watch::Sender::new(Arc::new(connection)),
            layout: config.names.layout,
            config,
            acls,
            lease_changed: Notify::new(),
            last_used: Mutex::new(Moment::now()),
            used: Notify::new(),
            entries: Mutex::default(),
            cleanup_due: Notify::new(),
            next_cleanup: Mutex::default(),
            over: SetOnce::new(),
            barrier: Barrier::default(),
            contended: Mutex::default(),
            without_data: Mutex::default(),
            watches: NodeWatches::default(),
        })
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.connection.borrow())
    }

    /// Returns the client of the connection in use, or of the last one. Requests in order take the
    /// same one.
    pub(crate) fn client(&self) -> impl Deref<Target = Client> + use<> {
        ClientInUse(self.connection())
    }

    /// Returns the shortest timeout that the servers have granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.lease().timeout()
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

    async fn ready_within(&self, bound: Duration) -> Result<bool, Fault> {
        let connected = tokio::time::timeout(bound, self.connected()).await;
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
    pub(crate) async fn until_over<T>(
        &self,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.over() => Err(expired()),
        }
    }

    /// Keeps the session alive and removes residue, until the session is over. Returns false if it
    /// ends because no server answers or knows it.
    pub(crate) async fn run(&self) -> bool {
        tokio::select! {
            () = self.send_heartbeats() => {}
            () = self.clean_up() => {}
            () = self.over() => {}
        }
        let is_answered = self.over.get().is_some();
        self.end();
        is_answered
    }

    /// Closes the session at the server, if that can be reached, for the sake of the waiters. Waits
    /// for the deadline of the lease first: until then its holders rely on the session.
    pub(crate) async fn close(self: Arc<Self>) {
        let until = self.lease().deadline();
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
        let entries = std::mem::take(&mut *self.entries());
        entries.values().for_each(|entry| entry.mark_removed());
        self.lease_changed.notify_waiters();
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<OwnerId, Arc<QueueEntry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_cleanup(&self) -> MutexGuard<'_, Option<Moment>> {
        self.next_cleanup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_used(&self) -> MutexGuard<'_, Moment> {
        self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lease(&self) -> MutexGuard<'_, SessionLease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Grants.
impl Session {
    /// Grants the lock to an entry that is first, for a claim that asked at `asked`. Waits for a
    /// heartbeat write if less time is left than one takes.
    pub(crate) async fn grant(
        &self,
        entry: &QueueEntry,
        ttl: Duration,
        asked: Moment,
    ) -> Result<Grant, Fault> {
        loop {
            let mut changed = pin!(self.lease_changed.notified());
            changed.as_mut().enable();
            if self.is_over() {
                return Err(expired());
            }
            if self.lease().allows_grant() {
                break;
            }
            changed.await;
        }
        let mut state = entry.state();
        let number = state.node.as_ref().and_then(|node| token(node.czxid));
        let Some(number) = number.filter(|_| !state.removed && !state.releasing) else {
            return Err(Fault::not_applied(
                FaultKind::Unavailable,
                "the claim's queue entry is gone",
            ));
        };
        // Until now the entry expired as one of a waiter.
        let expires_at = match std::mem::replace(&mut state.granted, true) {
            true => state.expires_at.max(asked + ttl),
            false => asked + ttl,
        };
        state.expires_at = expires_at;
        drop(state);
        self.clean_up_by(expires_at);
        // The lease also has the limit of the session, which moves with each heartbeat write.
        let lease = Lease::For(expires_at.saturating_since(asked));
        Ok(Grant::new(lease, asked).with_token(number).with_limit(self.lease().limit()))
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
    pub(crate) fn entry(&self, owner: &OwnerId) -> Option<Arc<QueueEntry>> {
        self.entries().get(owner).cloned()
    }

    /// Creates the queue entry of a claim that has none.
    pub(crate) fn new_entry(
        &self,
        owner: OwnerId,
        lock: String,
        expires_at: Moment,
    ) -> Arc<QueueEntry> {
        let entry = Arc::new(QueueEntry::new(lock, self.layout.new_node_name(), expires_at));
        self.entries().insert(owner, Arc::clone(&entry));
        self.used.notify_waiters();
        self.clean_up_by(expires_at);
        if self.is_over() {
            self.end();
        }
        entry
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
    pub(crate) fn forget(&self, owner: &OwnerId, entry: &Arc<QueueEntry>) {
        let mut entries = self.entries();
        if entries.get(owner).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            entries.remove(owner);
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
struct ClientInUse(Arc<Connection>);

impl Deref for ClientInUse {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

/// Returns the rights to the nodes that a client creates.
pub(crate) fn acls_of(config: &Config) -> Acls<'static> {
    match config.credentials {
        Some(_) => Acls::creator_all(),
        None => Acls::anyone_all(),
    }
}

/// Returns the fault of a session that has ended.
pub(crate) fn expired() -> Fault {
    Fault::unknown(FaultKind::Unavailable, "the session with the ensemble has ended")
}
