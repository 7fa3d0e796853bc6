//! One session with the ensemble: its proofs, its places in line, and what has to be cleared away.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Effect, Fault, FaultKind, Grant, Lease};
use lock_core::clock::{Moment, sleep, sleep_until};
use tokio::sync::{Notify, SetOnce};
use zookeeper_client::{
    Acls, Client, CreateMode, Error as ZkError, EventType, OneshotWatcher, SessionState,
    StateWatcher,
};

use crate::chain::Chain;
use crate::fault::fault;
use crate::names::{Layout, OddLine, token};
use crate::place::{Node, Place};

/// Resolves when a node has left the line; `None` if nobody will ever tell.
type Leaving<'a> = Pin<Box<dyn Future<Output = Option<()>> + Send + 'a>>;

/// How often the lock's node is made anew when it vanishes under our hands.
const ATTEMPTS: u32 = 5;

/// How long a release may try by itself before what it leaves is cleared away behind its back.
const GRACE: Duration = Duration::from_secs(1);

/// Locks that are remembered as contended.
const MAX_CONTENDED: usize = 1000;

/// From one try to clear something away to the next.
const SWEEP_PAUSE: Duration = Duration::from_millis(200);

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
        let mut line = Line::of(&self.client);
        let mut next = Moment::now();
        loop {
            tokio::select! {
                biased;
                () = line.changed() => {}
                () = sleep_until(next) => {}
            }
            match line.look() {
                Look::Over => return,
                Look::Down => {
                    line.changed().await;
                    next = Moment::now();
                }
                Look::Anew(not_before) => {
                    self.chain().reconnected(not_before);
                    next = Moment::now();
                }
                Look::Same if next.has_passed() => {
                    if self.prove_once(&mut line).await {
                        next = Moment::now() + self.chain().spacing();
                    } else {
                        next = Moment::now() + self.chain().spacing() / 4;
                    }
                }
                Look::Same => {}
            }
        }
    }

    /// One committed write that changes nothing. False unless it was acknowledged on the connection that
    /// it was sent on.
    async fn prove_once(&self, line: &mut Line) -> bool {
        let sent = Moment::now();
        let mut write = self.client.new_multi_writer();
        if write.add_check_version("/", -1).is_err() {
            return false;
        }
        let answer = tokio::select! {
            biased;
            () = line.changed() => return false,
            answer = write.commit() => answer,
            () = sleep(self.timeout / 2) => {
                // A silent server is noticed sooner, and then the connection changes. This one talks, and
                // does not answer: it is out of step for good.
                tracing::warn!("the connection to ZooKeeper is out of step, and its session given up");
                self.end();
                return false;
            }
        };
        if line.has_changed() {
            return false;
        }
        match answer {
            Ok(_) => {
                self.chain().proven(sent);
                self.proven.notify_waiters();
                true
            }
            Err(error) => {
                tracing::debug!(zookeeper.error = %error, "a proof of the session failed");
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

    /// Puts the node of `place` into the line, and returns the line. Goes on by itself if nobody waits for
    /// it any more, so that its outcome is always noted.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        place: &Arc<Place>,
        data: String,
    ) -> Result<Vec<String>, Fault> {
        place.state().entering = true;
        let (session, entering) = (Arc::clone(self), Arc::clone(place));
        let work = tokio::spawn(async move {
            let answer = tokio::select! {
                answer = session.create(&entering, data.as_bytes()) => answer,
                () = session.over() => Err(expired()),
            };
            entering.update(|state| state.entering = false);
            answer
        });
        work.await.unwrap_or_else(|_| {
            Err(Fault::unknown(FaultKind::Unavailable, "the runtime was shut down"))
        })
    }

    async fn create(&self, place: &Place, data: &[u8]) -> Result<Vec<String>, Fault> {
        let path = format!("{}/{}", place.lock, place.stem);
        let options = CreateMode::EphemeralSequential.with_acls(self.acls);
        for _ in 0..ATTEMPTS {
            // One after the other on the connection, without waiting in between.
            let create = self.client.create(&path, data, &options);
            let list = self.client.list_children(&place.lock);
            match create.await {
                Ok((stat, sequence)) if stat.ephemeral_owner == self.id => {
                    let name = format!("{}{sequence}", place.stem);
                    place.update(|state| state.node = Some(Node { name, czxid: stat.czxid }));
                    return self.in_order(&place.lock, list.await);
                }
                Ok(_) => {
                    // A server that replaces sessions behind our back.
                    self.end();
                    return Err(expired());
                }
                Err(ZkError::NoNode) => self.make_lock(&place.lock).await?,
                Err(error) => {
                    let fault = fault("entering the line", &error);
                    if fault.effect() == Effect::Unknown {
                        // An old connection may still deliver it, until the server closes that for its
                        // silence.
                        let until = Moment::now() + self.timeout * 3 / 2;
                        place.update(|state| state.may_land_until = Some(until));
                    }
                    return Err(fault);
                }
            }
        }
        let why = "the node of the lock is removed again and again";
        Err(Fault::not_applied(FaultKind::Unavailable, why))
    }

    /// Makes the node of a lock and those above it: containers, which the server removes when they are
    /// empty.
    async fn make_lock(&self, lock: &str) -> Result<(), Fault> {
        let options = CreateMode::Container.with_acls(self.acls);
        let failed = |error: ZkError| match fault("making the node of the lock", &error) {
            // Nothing of the claim is there.
            fault if fault.is_transient() => {
                Fault::not_applied(FaultKind::Unavailable, fault.into_source())
            }
            fault => fault,
        };
        self.client.mkdir(lock, &options).await.map_err(failed)
    }

    /// The line before a lock, first come first; empty if there is none.
    pub(crate) async fn line(&self, lock: &str) -> Result<Vec<String>, Fault> {
        self.in_order(lock, self.client.list_children(lock).await)
    }

    fn in_order(
        &self,
        lock: &str,
        children: Result<Vec<String>, ZkError>,
    ) -> Result<Vec<String>, Fault> {
        let children = match children {
            Ok(children) => children,
            Err(ZkError::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(fault("looking at the line", &error)),
        };
        self.layout.line(children).map_err(|odd| match odd {
            OddLine::Wrapped => Fault::not_applied(
                FaultKind::Invalid,
                format!("the numbers of the line {lock} have passed the end of 32 bits, so nobody can say who is first: let its holder finish, then delete the node"),
            ),
            OddLine::Stranger(node) => Fault::not_applied(
                FaultKind::Invalid,
                format!("the node {lock} holds {node:?}, which is no place in a line: what else uses it?"),
            ),
        })
    }

    /// The nodes of `place` on the server. There may be two if a request was carried out late.
    async fn find(&self, place: &Place) -> Result<Vec<String>, Fault> {
        // In this order on the connection; the first makes the second one see everything.
        let sync = self.client.sync(&place.lock);
        let list = self.client.list_children(&place.lock);
        match sync.await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(fault("looking for our node", &error)),
        }
        match list.await {
            Ok(mut nodes) => {
                nodes.retain(|node| node.starts_with(&place.stem));
                nodes.sort_unstable();
                Ok(nodes)
            }
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(fault("looking for our node", &error)),
        }
    }

    /// Finds a node again whose creation went unanswered.
    pub(crate) async fn recover(&self, place: &Place) -> Result<bool, Fault> {
        let Some(name) = self.find(place).await?.into_iter().next() else {
            return Ok(false);
        };
        let stat = self.client.check_stat(&format!("{}/{name}", place.lock)).await;
        match stat.map_err(|error| fault("looking at our node", &error))? {
            Some(stat) if stat.ephemeral_owner == self.id => {
                place.update(|state| state.node = Some(Node { name, czxid: stat.czxid }));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Removes everything that a claim has in line. True if its node was still there.
    pub(crate) async fn leave(&self, owner: &OwnerId, place: &Arc<Place>) -> Result<bool, Fault> {
        place.until(|state| (!state.entering).then_some(())).await;
        let mut was_there = false;
        if let Some(path) = place.path() {
            was_there = self.delete(&path).await?;
            place.is_gone();
        }
        let may_land_until = place.state().may_land_until;
        if let Some(until) = may_land_until {
            let settled = until.has_passed();
            for node in self.find(place).await? {
                was_there |= self.delete(&format!("{}/{node}", place.lock)).await?;
            }
            place.update(|state| {
                state.gone = true;
                state.may_land_until = (!settled).then_some(until);
            });
        }
        if place.state().may_land_until.is_none() {
            self.forget(owner, place);
        }
        Ok(was_there)
    }

    async fn delete(&self, path: &str) -> Result<bool, Fault> {
        match self.client.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(fault("leaving the line", &error)),
        }
    }

    /// From now on the claim's node is to go; here, or behind the back of whoever fails to remove it.
    pub(crate) fn let_go(&self, place: &Place) {
        let lapses = Moment::now() + GRACE;
        place.update(|state| {
            state.leaving = true;
            state.lapses = lapses;
        });
        self.sweep_by(lapses);
    }

    fn sweep_by(&self, at: Moment) {
        let sweeps_at = *self.sweeps_at();
        if sweeps_at.is_none_or(|sweeps_at| at < sweeps_at) {
            self.sweep.notify_one();
        }
    }

    /// Clears away claims that were let go and are still there, and those that nobody renews.
    async fn sweep(&self) {
        loop {
            let now = Moment::now();
            let places: Vec<_> =
                self.places().iter().map(|(owner, place)| (*owner, Arc::clone(place))).collect();
            let mut next: Option<Moment> = None;
            for (owner, place) in places {
                let lapses = place.state().lapses;
                let look = if lapses > now {
                    lapses
                } else {
                    self.clear(&owner, &place).await;
                    place.state().lapses
                };
                next = Some(next.map_or(look, |next| next.min(look)));
            }
            let next = next.map(|next| next.max(now + SWEEP_PAUSE / 10));
            *self.sweeps_at() = next;
            let at = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = at => {}
                () = self.sweep.notified() => {}
            }
        }
    }

    async fn clear(&self, owner: &OwnerId, place: &Arc<Place>) {
        place.update(|state| state.leaving = true);
        // A creation without an answer ends with its connection at the latest, and others are waiting.
        let is_idle = !place.state().entering;
        if is_idle && self.client.state() == SessionState::SyncConnected {
            let bound = self.timeout / 3;
            let _ = tokio::time::timeout(bound, self.leave(owner, place)).await;
        }
        place.state().lapses = Moment::now() + SWEEP_PAUSE;
    }
}

/// Watching.
impl Session {
    /// Sees to it that the end of our own node is noted, from before this returns.
    pub(crate) async fn watch_own(self: &Arc<Self>, place: &Arc<Place>) -> Result<(), Fault> {
        let Some(path) = place.path().filter(|_| !place.state().watched) else {
            return Ok(());
        };
        let Some(end) = self.watch(&path).await? else {
            place.is_gone();
            return Ok(());
        };
        place.state().watched = true;
        let (session, place) = (Arc::clone(self), Arc::clone(place));
        tokio::spawn(async move { session.note_end(&place, &path, end).await });
        Ok(())
    }

    async fn note_end(&self, place: &Place, path: &str, mut end: OneshotWatcher) {
        loop {
            let event = tokio::select! {
                event = end.changed() => event,
                () = self.over() => return,
            };
            match event.event_type {
                EventType::NodeDeleted | EventType::Session => break,
                // Somebody wrote to it.
                _ => match self.insist(|| self.watch(path)).await {
                    Some(Some(again)) => end = again,
                    _ => break,
                },
            }
        }
        place.is_gone();
    }

    /// Follows the line until our node is the first one, and notes that and its end.
    pub(crate) async fn follow(self: Arc<Self>, place: Arc<Place>) {
        let ours = async {
            self.insist(|| self.watch_own(&place)).await?;
            self.advance(&place).await
        };
        let gone = place.until(|state| state.gone.then_some(()));
        let is_first = tokio::select! {
            () = gone => return,
            () = self.over() => return,
            first = ours => first,
        };
        match is_first {
            Some(()) => place.is_first(),
            None => place.is_gone(),
        }
    }

    /// Waits until all who came before have left; `None` if our node is not in line any more. Two of them
    /// are watched: when the nearer one leaves, and the farther one has left before, nobody is left, and
    /// nobody has to be asked.
    async fn advance(&self, place: &Place) -> Option<()> {
        let node = place.state().node.clone()?;
        let mut watched: Option<(String, Leaving<'_>)> = None;
        loop {
            let line = self.insist(|| self.line(&place.lock)).await?;
            let at = line.iter().position(|other| *other == node.name)?;
            let Some(nearer) = at.checked_sub(1).map(|at| &line[at]) else {
                return Some(());
            };
            if watched.as_ref().is_none_or(|(name, _)| name != nearer) {
                match self.leaving(place, nearer).await? {
                    Some(leaving) => watched = Some((nearer.clone(), leaving)),
                    None => continue,
                }
            }
            let (_, nearer) = watched.as_mut()?;
            let farther = match at.checked_sub(2) {
                Some(at) => self.leaving(place, &line[at]).await?,
                None => None,
            };
            if let Some(farther) = farther {
                tokio::select! {
                    biased;
                    left = farther => left?,
                    left = nearer.as_mut() => {
                        left?;
                        watched = None;
                        continue;
                    }
                }
            }
            // Whoever stood before the farther one may be there still.
            if at <= 2 {
                return nearer.as_mut().await;
            }
        }
    }

    /// Resolves when a node that is in line now has left it; `None` if it has left already.
    async fn leaving(&self, place: &Place, node: &str) -> Option<Option<Leaving<'_>>> {
        let path = format!("{}/{node}", place.lock);
        let mut watch = self.insist(|| self.watch(&path)).await?;
        if watch.is_none() {
            return Some(None);
        }
        Some(Some(Box::pin(async move {
            while let Some(armed) = watch {
                match armed.changed().await.event_type {
                    EventType::NodeDeleted => break,
                    EventType::Session => return None,
                    // Somebody wrote to it.
                    _ => watch = self.insist(|| self.watch(&path)).await?,
                }
            }
            Some(())
        })))
    }

    /// A watch on a node that is there. By reading it: a watch on what is not there would stay behind.
    async fn watch(&self, path: &str) -> Result<Option<OneshotWatcher>, Fault> {
        match self.client.get_and_watch_data(path).await {
            Ok((_, _, watch)) => Ok(Some(watch)),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(fault("watching the line", &error)),
        }
    }

    /// Asks until there is an answer; `None` if there will be none.
    async fn insist<T, F>(&self, mut ask: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        loop {
            if !self.connected().await {
                return None;
            }
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(fault) if fault.is_transient() => sleep(Duration::from_millis(20)).await,
                Err(fault) => {
                    tracing::warn!(lock.error = %fault, "a place in line cannot be watched");
                    return None;
                }
            }
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

pub(crate) fn expired() -> Fault {
    Fault::unknown(FaultKind::Unavailable, "the session with the ensemble has ended")
}

/// The connection of a session: whether it is still the same one.
struct Line {
    states: StateWatcher,
    state: SessionState,
    /// At that moment it was the same as now, or as before it went down: no other had been asked for.
    same_at: Moment,
    has_changed: bool,
}

enum Look {
    Same,
    /// Another one, which was not asked for before then.
    Anew(Moment),
    Down,
    Over,
}

impl Line {
    fn of(client: &Client) -> Self {
        let same_at = Moment::now();
        let states = client.state_watcher();
        // What the watcher has not seen comes as a change.
        let state = client.state();
        Self { states, state, same_at, has_changed: state != SessionState::SyncConnected }
    }

    /// Resolves when the connection is lost or made.
    async fn changed(&mut self) {
        self.state = self.states.changed().await;
        self.has_changed = true;
    }

    /// True if the connection was lost or made since it was last seen connected.
    fn has_changed(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        while pin!(self.changed()).poll(&mut context).is_ready() {}
        self.has_changed
    }

    fn look(&mut self) -> Look {
        let now = Moment::now();
        let has_changed = self.has_changed();
        match self.state {
            state if state.is_terminated() => Look::Over,
            SessionState::SyncConnected => {
                self.has_changed = false;
                let same_at = std::mem::replace(&mut self.same_at, now);
                if has_changed { Look::Anew(same_at) } else { Look::Same }
            }
            _ => Look::Down,
        }
    }
}
