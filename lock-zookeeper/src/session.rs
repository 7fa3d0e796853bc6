//! One session with the ensemble: its proofs, and the places that its claims have in line.

mod connection;
mod follow;
mod janitor;
mod line;
mod watched;

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Fault, FaultKind, Grant, Lease};
use lock_core::clock::{Moment, sleep, sleep_until};
use tokio::sync::{Notify, SetOnce};
use zookeeper_client::{Acls, Client, Error as ZkError, SessionState};

use self::connection::{Connection, Look};
pub(crate) use self::watched::Watched;
use self::watched::Watches;
use crate::chain::Chain;
use crate::fault::fault;
use crate::names::{Layout, token};
use crate::place::Place;

/// Locks that are remembered as contended.
const MAX_CONTENDED: usize = 1000;

/// A session and everything in it. Over when the server has expired it, or nobody uses it any more.
pub(crate) struct Session {
    client: Client,
    id: i64,
    timeout: Duration,
    layout: Layout,
    acls: Acls<'static>,
    chain: Mutex<Chain>,
    /// The chain has grown.
    proven: Notify,
    places: Mutex<HashMap<OwnerId, Arc<Place>>>,
    /// There is something to clear away, sooner than thought.
    sweep: Notify,
    /// When it is looked for that next; `None`: not before there is a place.
    sweeps_at: Mutex<Option<Moment>>,
    over: SetOnce<()>,
    barrier: Barrier,
    /// Locks that were held by others when they were looked at last. A hint.
    contended: Mutex<HashSet<String>>,
    /// Nodes of locks that have been seen to hold no data, in kazoo's layout.
    without_data: Mutex<HashSet<String>>,
    watches: Watches,
}

/// One round trip for all who ask for one at the same time.
#[derive(Debug, Default)]
struct Barrier {
    turn: tokio::sync::Mutex<()>,
    asked: AtomicU64,
    done: AtomicU64,
}

impl Session {
    /// A session that `client` has opened; it was asked for at `asked`.
    pub(crate) fn new(
        client: Client,
        asked: Moment,
        layout: Layout,
        acls: Acls<'static>,
    ) -> Arc<Self> {
        let timeout = client.session_timeout();
        Arc::new(Self {
            id: client.session_id().0,
            client,
            timeout,
            layout,
            acls,
            chain: Mutex::new(Chain::new(timeout, asked)),
            proven: Notify::new(),
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

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// As negotiated, whatever was asked for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some() || self.client.state().is_terminated()
    }

    /// Waits for a connection to a server; false if there will be none.
    pub(crate) async fn connected(&self) -> bool {
        let mut states = self.client.state_watcher();
        let mut state = self.client.state();
        loop {
            if self.is_over() || state.is_terminated() {
                return false;
            }
            if state == SessionState::SyncConnected {
                return true;
            }
            tokio::select! {
                changed = states.changed() => state = changed,
                () = self.over() => return false,
            }
        }
    }

    /// Waits for a connection, and not for long: an outage is an error, not a wait. True if the session
    /// goes on.
    pub(crate) async fn ready(&self) -> Result<bool, Fault> {
        let patience = self.timeout / 20;
        let connected = tokio::time::timeout(patience, self.connected()).await;
        connected.map_err(|_| {
            let why = "there is no connection to a server that has a quorum";
            Fault::not_applied(FaultKind::Unavailable, why)
        })
    }

    pub(crate) async fn over(&self) {
        self.over.wait().await;
    }

    /// What comes of `work`, unless the session ends before.
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

    /// Until then its locks may be taken for held.
    pub(crate) fn deadline(&self) -> Moment {
        self.chain().deadline()
    }

    /// Keeps the session proven and tidy, until it is over.
    pub(crate) async fn run(&self) {
        tokio::select! {
            () = self.prove() => {}
            () = self.sweep() => {}
            () = self.over() => {}
        }
        self.end();
    }

    /// Every lock of it is lost, and nothing of it is taken for ours again.
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

    fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Proofs.
impl Session {
    async fn prove(&self) {
        let mut connection = Connection::of(&self.client);
        let mut next = Moment::now();
        loop {
            tokio::select! {
                biased;
                () = connection.changed() => {}
                () = sleep_until(next) => {}
            }
            match connection.look() {
                Look::Over => return,
                Look::Down => {
                    connection.changed().await;
                    next = Moment::now();
                }
                Look::Anew(not_before) => {
                    self.chain().reconnected(not_before);
                    next = Moment::now();
                }
                Look::Same if next.has_passed() => {
                    if self.prove_once(&mut connection).await {
                        next = Moment::now() + self.chain().spacing();
                    } else {
                        next = Moment::now() + self.chain().spacing() / 4;
                    }
                }
                Look::Same => {}
            }
        }
    }

    /// [Commits nothing](commit_nothing), once. False unless it was acknowledged on the connection that
    /// it was sent on.
    async fn prove_once(&self, connection: &mut Connection) -> bool {
        let sent = Moment::now();
        let answer = tokio::select! {
            biased;
            () = connection.changed() => return false,
            answer = commit_nothing(&self.client) => answer,
            () = sleep(self.timeout / 2) => {
                // A silent server is noticed sooner, and then the connection changes. This one talks, and
                // does not answer: it is out of step for good.
                tracing::warn!("the connection to ZooKeeper is out of step, and its session given up");
                self.end();
                return false;
            }
        };
        if connection.has_changed() {
            return false;
        }
        match answer {
            Ok(_) => {
                self.chain().proven(sent);
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

    /// The grant of a place that is first, to a claim that asked at `asked`. Waits for a proof if there is
    /// none that is young enough.
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
            if !self.chain().deadline().has_passed() {
                break;
            }
            proven.await;
        }
        let mut state = place.state();
        let number = state.node.as_ref().and_then(|node| token(node.czxid));
        let Some(number) = number.filter(|_| !state.gone && !state.leaving) else {
            return Err(Fault::not_applied(FaultKind::Unavailable, "our place in line is gone"));
        };
        // Until now it was a place in line, and lapsed as such.
        let lapses = match std::mem::replace(&mut state.granted, true) {
            true => state.lapses.max(asked + ttl),
            false => asked + ttl,
        };
        state.lapses = lapses;
        drop(state);
        self.sweep_by(lapses);
        Ok(self.lease_until(lapses, asked).with_token(number))
    }

    /// From `asked` until `lapses` or the session's own deadline, whichever comes first. Core gives a
    /// hundredth of it up.
    fn lease_until(&self, lapses: Moment, asked: Moment) -> Grant {
        let proven = self.chain().deadline().saturating_since(asked) * 100 / 99;
        let lease = lapses.saturating_since(asked).min(proven);
        Grant::new(Lease::For(lease), asked)
    }

    /// A round trip after which everything is known that had happened on the ensemble before it: the events
    /// of watches come before the answer.
    pub(crate) async fn barrier(&self) -> Result<(), Fault> {
        let number = self.barrier.asked.fetch_add(1, Ordering::SeqCst);
        let _turn = self.barrier.turn.lock().await;
        if self.barrier.done.load(Ordering::SeqCst) > number {
            return Ok(());
        }
        let all = self.barrier.asked.load(Ordering::SeqCst);
        self.client.sync("/").await.map_err(|error| fault("asking the ensemble", &error))?;
        self.barrier.done.store(all, Ordering::SeqCst);
        Ok(())
    }
}

/// Places.
impl Session {
    pub(crate) fn place(&self, owner: &OwnerId) -> Option<Arc<Place>> {
        self.places().get(owner).cloned()
    }

    /// As [`place`](Self::place), unless all that there was of it is gone.
    pub(crate) fn usable_place(&self, owner: &OwnerId) -> Option<Arc<Place>> {
        let place = self.place(owner)?;
        if place.is_spent() {
            self.forget(owner, &place);
            return None;
        }
        Some(place)
    }

    /// A place for a claim that has none yet.
    pub(crate) fn new_place(&self, owner: OwnerId, lock: String, lapses: Moment) -> Arc<Place> {
        let place = Arc::new(Place::new(lock, self.layout.mint(), lapses));
        self.places().insert(owner, Arc::clone(&place));
        self.sweep_by(lapses);
        if self.is_over() {
            self.end();
        }
        place
    }

    /// Whether a lock was held by others when we looked last.
    pub(crate) fn is_contended(&self, lock: &str) -> bool {
        self.contended.lock().unwrap_or_else(PoisonError::into_inner).contains(lock)
    }

    pub(crate) fn note_contended(&self, lock: &str, is_contended: bool) {
        let mut contended = self.contended.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_contended {
            contended.remove(lock);
        } else if contended.len() < MAX_CONTENDED {
            contended.insert(lock.to_owned());
        } else {
            // Nothing worse comes of it than a node that is made in vain.
            contended.clear();
        }
    }

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
            .field("id", &self.client.session_id())
            .field("timeout", &self.timeout)
            .field("state", &self.client.state())
            .finish_non_exhaustive()
    }
}

/// A write that changes nothing, and is committed as any other.
pub(crate) async fn commit_nothing(client: &Client) -> Result<(), ZkError> {
    let mut write = client.new_multi_writer();
    write.add_check_version("/", -1)?;
    write.commit().await?;
    Ok(())
}

pub(crate) fn expired() -> Fault {
    Fault::unknown(FaultKind::Unavailable, "the session with the ensemble has ended")
}
