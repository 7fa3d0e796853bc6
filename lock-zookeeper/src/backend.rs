//! The `Backend` trait.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Effect, Fault, FaultKind, HoldKind, Holder, Identity, Listed,
    LockState, QUEUE_ENTRY_GRACE, Release, ReleaseMode, Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::{
    Capabilities, Durability, Error, Executor, Fencing, LockName, Order, OwnerId, Reach, Support,
    Takeover, Wakeup,
};
use zookeeper_client::Error as ZkError;

use crate::config::Config;
use crate::fault::fault;
use crate::link::Link;
use crate::names::{Card, Names, token};
use crate::place::{Following, Place};
use crate::session::Session;

/// The client enforces a ttl that is shorter than the session.
const TTL_MIN: Duration = Duration::from_millis(10);
const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The number of times that one attempt creates its node when answers are lost. Core bounds the
/// time.
const ATTEMPTS: u32 = 5;

/// Locks on a ZooKeeper ensemble. Clones share one session.
///
/// See the [crate's documentation](crate) for the guarantees.
#[derive(Clone, Debug)]
pub struct ZooKeeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    names: Names,
    link: Link,
    executor: Executor,
}

impl ZooKeeper {
    /// Opens a session with an ensemble, at a URL as in [`Config::new`] or with a [`Config`].
    ///
    /// When the last clone is dropped, the session is closed. Its locks and queue entries end at
    /// once.
    ///
    /// # Errors
    ///
    /// As [`Config::new`], and
    /// * [`ErrorKind::Unavailable`](lock_core::ErrorKind::Unavailable): no server can be reached,
    ///   or the server has no quorum, refuses another connection, or does not answer;
    /// * [`ErrorKind::Denied`](lock_core::ErrorKind::Denied): wrong credentials, or no right to
    ///   read the chroot (without one, `/`), which heartbeat writes check;
    /// * [`ErrorKind::Invalid`](lock_core::ErrorKind::Invalid): the chroot does not exist, or
    ///   sessions are local to their member (`localSessionsEnabled`) and are not upgraded for
    ///   ephemeral nodes (`localSessionsUpgradingEnabled`).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the attempt.
    pub async fn connect<C>(config: C) -> Result<Self, Error>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let config = config.try_into().map_err(Error::from)?;
        let names = config.names.clone();
        let executor = Executor::current_or_new()?;
        let link = executor.within(Link::open(config)).await?;
        Ok(Self { inner: Arc::new(Inner { names, link, executor }) })
    }
}

#[async_trait]
impl Backend for ZooKeeper {
    fn executor(&self) -> Option<Executor> {
        Some(self.inner.executor.clone())
    }

    fn capabilities(&self) -> Capabilities {
        let timeout = self.inner.link.timeout();
        Capabilities {
            backend: "zookeeper",
            fencing: Fencing::Durable,
            order: Order::Fifo,
            wakeup: Wakeup::HandOff,
            durability: Durability::Durable,
            reach: Reach::Network,
            ttl_min: TTL_MIN,
            ttl_max: TTL_MAX,
            // The session lease includes it.
            margin: Duration::ZERO,
            // The server keeps the lock until the session times out, rounded up to a tick, for any
            // ttl. A timeout has at least two ticks.
            takeover: Takeover::LeasePlus(timeout * 3 / 2),
            detached: Support::Absent,
            minimum_hold: Support::Absent,
            late_attempts_refused: Support::Absent,
            min_token_supported: Support::Absent,
            loss_push: Support::Present,
            inspecting: Support::Present,
            listing: Support::Present,
            breaking: Support::Present,
        }
    }

    /// Returns `None`: the members share their locks, and no request names the ensemble.
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        check(claim)?;
        let Inner { names, link, .. } = &*self.inner;
        let asked = Moment::now();
        let mut session = link.session().await?;
        if !session.awake().await? {
            session = link.session().await?;
        }
        let lock = names.path(&claim.name);
        let place = match session.usable_place(&claim.owner).await? {
            Some(place) => place,
            // An attempt that does not queue writes nothing where contention is foreseeable, so it
            // does not disturb waiters.
            None if !claim.queues()
                && session.is_contended(&lock)
                && !session.line(&lock).await?.is_empty() =>
            {
                return Ok(Attempt::Contended { expires_in: None });
            }
            None => session.new_place(claim.owner, lock, queued_until(claim)),
        };
        let attempt = session.meanwhile(compete(&session, &place, claim, asked)).await;
        if attempt.as_ref().is_err_and(|fault| fault.effect() == Effect::NotApplied) {
            // Nothing of a refused attempt may stay.
            session.let_go(&place);
            session.meanwhile(session.leave(&claim.owner, &place)).await?;
        }
        attempt
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let Some((session, place)) = self.inner.place_of(claim) else {
            return Ok(Wake::Retry);
        };
        if place.state().first.is_some() {
            return Ok(Wake::Retry);
        }
        let granted = place.until(|state| match (state.gone || state.leaving, state.first) {
            (true, _) => Some(None),
            (_, Some(at)) => Some(Some(at)),
            _ => None,
        });
        match granted.await {
            Some(at) => Ok(Wake::Granted(session.grant(&place, claim.ttl, at).await?)),
            None => Ok(Wake::Retry),
        }
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        if let Some((session, place)) = self.inner.place_of(claim) {
            session.end_of(&place).await;
        }
        Ok(())
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let asked = Moment::now();
        let Some(session) = self.inner.link.present() else {
            return claims.iter().map(|_| Ok(Renewal::NotHeld)).collect();
        };
        let places: Vec<_> = claims.iter().map(|claim| session.place(&claim.owner)).collect();
        let seen = match places.iter().any(Option::is_some) {
            true => session.meanwhile(look_at(&session, places.iter().flatten())).await,
            false => Ok(()),
        };
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, place) in claims.iter().zip(places) {
            let held = place.filter(|place| place.is_held());
            answers.push(match (held, &seen) {
                (None, _) => Ok(Renewal::NotHeld),
                (Some(_), Err(fault)) => Err(fault.repeated()),
                (Some(place), Ok(())) => {
                    session.grant(&place, claim.ttl, asked).await.map(Renewal::Held)
                }
            });
        }
        answers
    }

    async fn release(&self, claim: &Claim, _how: ReleaseMode) -> Result<Release, Fault> {
        let Some((session, place)) = self.inner.place_of(claim) else {
            return Ok(Release::NotHeld);
        };
        session.let_go(&place);
        if !session.ready().await? {
            return Ok(Release::NotHeld);
        }
        let was_there = session.meanwhile(session.leave(&claim.owner, &place)).await;
        if let Err(refusal) = &was_there
            && !refusal.is_transient()
        {
            tracing::warn!(
                lock.name = %claim.name,
                lock.error = refusal.source().map(tracing::field::display),
                "the server refuses to remove a released lock, which stays taken for as long as this session"
            );
        }
        let was_there = was_there?;
        let granted = place.state().granted;
        Ok(if was_there && granted { Release::Released } else { Release::NotHeld })
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let session = self.inner.link.session().await?;
        // The two requests go in order on one connection, without a pause.
        let client = session.client();
        let sync = client.sync("/");
        let lock = self.inner.names.path(name);
        let state = state_of(&session, &lock);
        let (sync, state) = tokio::join!(sync, state);
        sync.map_err(|error| fault("asking the ensemble", &error))?;
        state
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let Inner { names, link, .. } = &*self.inner;
        let session = link.session().await?;
        let elements = match session.client().list_children(names.directory()).await {
            Ok(elements) => elements,
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => return Err(fault("listing locks", &error)),
        };
        let mut wanted: Vec<_> =
            elements.iter().filter_map(|element| names.name(element)).collect();
        wanted.retain(|name| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
        });
        wanted.sort_unstable();
        let (mut listed, mut skipped) = (Vec::new(), 0);
        for name in wanted {
            if listed.len() == limit {
                break;
            }
            match state_of(&session, &names.path(&name)).await {
                Ok(state) if state.holders.is_empty() => {}
                Ok(state) => listed.push(Listed::new(name, state)),
                // The node is used for something else. The other locks are still listed.
                Err(fault) if fault.kind() == FaultKind::Invalid => skipped += 1,
                Err(fault) => return Err(fault),
            }
        }
        if skipped > 0 {
            tracing::warn!(skipped, "not listed: nodes that hold something other than a line");
        }
        Ok(listed)
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let session = self.inner.link.session().await?;
        let lock = self.inner.names.path(name);
        session.barrier().await?;
        let Some(first) = session.line(&lock).await?.into_iter().next() else {
            return Ok(false);
        };
        let path = format!("{lock}/{first}");
        let data = match session.client().get_data(&path).await {
            Ok((data, _)) => data,
            Err(ZkError::NoNode) => return Ok(false),
            Err(error) => return Err(fault("reading the holder's node", &error)),
        };
        if Card::parse(&data).is_none_or(|card| card.owner != *expected) {
            return Ok(false);
        }
        match session.client().delete(&path, None).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(fault("deleting the holder's node", &error)),
        }
    }
}

impl Inner {
    /// Returns the queue entry of a claim in the current session.
    fn place_of(&self, claim: &Claim) -> Option<(Arc<Session>, Arc<Place>)> {
        let session = self.link.present()?;
        let place = session.place(&claim.owner)?;
        Some((session, place))
    }
}

/// Refuses claims that this backend does not support.
fn check(claim: &Claim) -> Result<(), Fault> {
    if claim.hold == HoldKind::Detached {
        return Err(Fault::unsupported("a detached hold: nobody else can take a session over"));
    }
    claim.must_be_exclusive()?;
    if claim.min_token.is_some() {
        return Err(Fault::unsupported("raising the fencing token"));
    }
    Ok(())
}

/// Returns when a queue entry expires without another attempt.
fn queued_until(claim: &Claim) -> Moment {
    Moment::now() + claim.ttl * 2 + QUEUE_ENTRY_GRACE
}

/// Queues the claim and grants the lock if its node is first.
async fn compete(
    session: &Arc<Session>,
    place: &Arc<Place>,
    claim: &Claim,
    asked: Moment,
) -> Result<Attempt, Fault> {
    let line = stand_in_line(session, place, claim).await?;
    if place.state().is_awaited() {
        return Ok(Attempt::Contended { expires_in: None });
    }
    let others = line_before(session, place, line).await?;
    session.note_contended(&place.lock, others.is_some());
    let Some(line) = others else {
        let grant = session.grant(place, claim.ttl, asked).await?;
        return Ok(Attempt::Acquired(grant));
    };
    if claim.queues() {
        follow(session, place, line);
    } else {
        session.let_go(place);
        session.leave(&claim.owner, place).await?;
    }
    Ok(Attempt::Contended { expires_in: None })
}

/// Creates the claim's node unless it exists. Returns the queue if the node is new.
async fn stand_in_line(
    session: &Arc<Session>,
    place: &Arc<Place>,
    claim: &Claim,
) -> Result<Option<Vec<String>>, Fault> {
    // The request of a cancelled attempt may still be on its way.
    place.until(|state| (!state.entering).then_some(())).await;
    {
        let mut state = place.state();
        if state.leaving || state.gone {
            let why = "this claim was let go before, or its place in line has lapsed";
            return Err(Fault::not_applied(FaultKind::Unavailable, why));
        }
        if !state.granted {
            state.lapses = queued_until(claim);
        }
    }
    let data = Card::text(&claim.owner, claim.label.as_ref());
    let mut attempts = 0;
    let entered = loop {
        // The lost answer may be the one to the read of the queue that follows the creation.
        if place.state().node.is_some() {
            return Ok(None);
        }
        if place.state().may_land_until.is_some() && session.recover(place).await? {
            return Ok(None);
        }
        let entered = session.enter(place, data.clone()).await;
        // The answer was lost with its connection. On the next connection the node is found if it
        // was created. An attempt that does not queue does not wait for that.
        let is_lost = entered.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown);
        attempts += 1;
        let goes_on = is_lost && claim.queues() && attempts < ATTEMPTS;
        if !goes_on || !session.connected().await {
            break entered;
        }
    };
    let is_nowhere = {
        let state = place.state();
        state.node.is_none() && state.may_land_until.is_none()
    };
    if entered.is_err() && is_nowhere {
        session.forget(&claim.owner, place);
    }
    entered.map(Some)
}

/// Returns the queue if other nodes are before the claim's node, else `None`.
async fn line_before(
    session: &Session,
    place: &Place,
    line: Option<Vec<String>>,
) -> Result<Option<Vec<String>>, Fault> {
    if place.state().first.is_some() {
        return Ok(None);
    }
    let line = match line {
        Some(line) => line,
        None => session.line(&place.lock).await?,
    };
    let ours = place.state().node.as_ref().map(|node| node.name.clone());
    if let Some(ours) = &ours {
        session.must_be_ordered(&place.lock, ours, &line)?;
    }
    match line.iter().position(|node| Some(node) == ours.as_ref()) {
        Some(0) => {
            place.is_first();
            Ok(None)
        }
        Some(_) => Ok(Some(line)),
        None => {
            place.is_gone();
            Err(Fault::not_applied(FaultKind::Unavailable, "our node was removed from the line"))
        }
    }
}

/// Starts a task that watches the queue for a waiter, unless one runs.
fn follow(session: &Arc<Session>, place: &Arc<Place>, line: Vec<String>) {
    let is_followed = std::mem::replace(&mut place.state().followed, true);
    if !is_followed {
        let following = Following(Arc::clone(place));
        tokio::spawn(Arc::clone(session).follow(following, line));
    }
}

/// Waits until the client knows of all its nodes that were removed before the call.
async fn look_at(
    session: &Arc<Session>,
    places: impl Iterator<Item = &Arc<Place>> + Clone,
) -> Result<(), Fault> {
    if !session.ready().await? {
        return Ok(());
    }
    for place in places.clone() {
        session.watch_own(place).await?;
    }
    session.barrier().await?;
    // Watch events precede the answer to the barrier, but the tasks that record them run in any
    // order.
    let watched: Vec<_> = places.filter_map(|place| place.state().watched.clone()).collect();
    let heard: Vec<_> = watched.iter().map(|watched| watched.heard()).collect();
    for heard in heard {
        heard.await;
    }
    Ok(())
}

/// Returns the holders and the number of waiters of a lock.
async fn state_of(session: &Session, lock: &str) -> Result<LockState, Fault> {
    loop {
        let line = session.line(lock).await?;
        let first = session.first(&line);
        let mut holders = Vec::with_capacity(first.len());
        for node in first {
            holders.extend(holder_of(session, &format!("{lock}/{node}")).await?);
        }
        // If all of them have left, other nodes are first now.
        if !holders.is_empty() || line.is_empty() {
            let waiting = u64::try_from(line.len() - first.len()).unwrap_or(u64::MAX);
            return Ok(LockState::new(holders, Some(waiting)));
        }
    }
}

/// Reads the node of a holder. Returns `None` if it was removed.
async fn holder_of(session: &Session, path: &str) -> Result<Option<Holder>, Fault> {
    let (data, stat) = match session.client().get_data(path).await {
        Ok(seen) => seen,
        Err(ZkError::NoNode) => return Ok(None),
        Err(error) => return Err(fault("reading the holder's node", &error)),
    };
    // Data in another format has no owner id.
    let card = Card::parse(&data);
    let mut holder = Holder::new(card.as_ref().map(|card| card.owner));
    holder.label = card.and_then(|card| card.label);
    holder.token = token(stat.czxid);
    Ok(Some(holder))
}
