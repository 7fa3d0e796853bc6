//! Acquiring a lock: creating the queue entry of a claim, and its grant.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Effect, Fault, FaultKind, HoldKind, QUEUE_ENTRY_GRACE};
use lock_core::clock::{Moment, sleep_between};

use crate::fault::is_throttled;
use crate::names::Names;
use crate::session::manager::SessionManager;
use crate::session::{PredecessorWatch, QueueEntry, Session};
use crate::value::NodeData;

/// The number of times that one attempt creates its node when answers are lost. Core bounds the
/// time.
const ATTEMPTS: u32 = 5;

/// The pause after a request that an overloaded server has dropped.
const THROTTLED_PAUSE: Duration = Duration::from_millis(50);

/// Tries to acquire a lock, and queues a claim that may wait.
pub(crate) async fn try_acquire(
    names: &Names,
    sessions: &SessionManager,
    claim: &Claim,
) -> Result<Attempt, Fault> {
    check(claim)?;
    let asked = Moment::now();
    let mut session = sessions.session().await?;
    if !session.resume().await? {
        session = sessions.session().await?;
    }
    let lock = names.path(&claim.name);
    let entry = match session.usable_entry(&claim.owner).await? {
        Some(entry) => entry,
        // An attempt that does not queue writes nothing where contention is foreseeable, so it
        // does not disturb waiters.
        None if !claim.queues()
            && session.is_contended(&lock)
            && !session.queue(&lock).await?.is_empty() =>
        {
            return Ok(Attempt::Contended { expires_in: None });
        }
        None => session.new_entry(claim.owner, lock, queued_until(claim)),
    };
    let attempt = session.until_over(compete(&session, &entry, claim, asked)).await;
    if attempt.as_ref().is_err_and(|fault| fault.effect() == Effect::NotApplied) {
        // Nothing of a refused attempt may stay.
        session.mark_released(&entry);
        session.until_over(session.remove_entry(&claim.owner, &entry)).await?;
    }
    attempt
}

/// Refuses claims that this backend does not support.
fn check(claim: &Claim) -> Result<(), Fault> {
    if claim.hold == HoldKind::Detached {
        return Err(Fault::unsupported("a detached hold: no other client can take a session over"));
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
    entry: &Arc<QueueEntry>,
    claim: &Claim,
    asked: Moment,
) -> Result<Attempt, Fault> {
    let queue = enter_queue(session, entry, claim).await?;
    if entry.state().is_waiting() {
        return Ok(Attempt::Contended { expires_in: None });
    }
    let others = queue_before(session, entry, claim, queue).await?;
    session.note_contended(&entry.lock, others.is_some());
    let Some(queue) = others else {
        let grant = session.grant(entry, claim.ttl, asked).await?;
        return Ok(Attempt::Acquired(grant));
    };
    if claim.queues() {
        start_watching(session, entry, queue);
    } else {
        session.mark_released(entry);
        session.remove_entry(&claim.owner, entry).await?;
    }
    Ok(Attempt::Contended { expires_in: None })
}

/// Creates the claim's node unless it exists. Returns the queue if the node is new.
async fn enter_queue(
    session: &Arc<Session>,
    entry: &Arc<QueueEntry>,
    claim: &Claim,
) -> Result<Option<Vec<String>>, Fault> {
    // The request of a cancelled attempt may still be on its way.
    entry.until(|state| (!state.creating).then_some(())).await;
    {
        let mut state = entry.state();
        if state.releasing || state.removed {
            let why = "this claim was released before, or its queue entry has expired";
            return Err(Fault::not_applied(FaultKind::Unavailable, why));
        }
        if !state.granted {
            state.expires_at = queued_until(claim);
        }
    }
    let data = NodeData::text(&claim.owner, claim.label.as_ref());
    let mut attempts = 0;
    let created = loop {
        // The lost answer may be the one to the read of the queue that follows the creation.
        if entry.state().node.is_some() {
            return Ok(None);
        }
        if entry.state().late_create_until.is_some() && session.recover_node(entry).await? {
            return Ok(None);
        }
        let created = session.create_entry(entry, data.clone()).await;
        if created.as_ref().is_err_and(|fault| claim.queues() && is_throttled(fault)) {
            sleep_between(THROTTLED_PAUSE / 2, THROTTLED_PAUSE).await;
            continue;
        }
        // The answer was lost with its connection. On the next connection the node is found if it
        // was created. An attempt that does not queue does not wait for that.
        let is_lost = created.as_ref().is_err_and(|fault| fault.effect() == Effect::Unknown);
        attempts += 1;
        let goes_on = is_lost && claim.queues() && attempts < ATTEMPTS;
        if !goes_on || !session.connected().await {
            break created;
        }
    };
    let is_nowhere = {
        let state = entry.state();
        state.node.is_none() && state.late_create_until.is_none()
    };
    if created.is_err() && is_nowhere {
        session.forget(&claim.owner, entry);
    }
    created.map(Some)
}

/// Returns the queue if other nodes are before the claim's node, else `None`.
async fn queue_before(
    session: &Session,
    entry: &QueueEntry,
    claim: &Claim,
    queue: Option<Vec<String>>,
) -> Result<Option<Vec<String>>, Fault> {
    if entry.state().first_since.is_some() {
        return Ok(None);
    }
    let queue = match queue {
        Some(queue) => queue,
        None => read_queue(session, entry, claim).await?,
    };
    let ours = entry.state().node.as_ref().map(|node| node.name.clone());
    if let Some(ours) = &ours {
        session.check_order(&entry.lock, ours, &queue)?;
    }
    match queue.iter().position(|node| Some(node) == ours.as_ref()) {
        Some(0) => {
            entry.mark_first();
            Ok(None)
        }
        Some(_) => Ok(Some(queue)),
        None => {
            entry.mark_removed();
            Err(Fault::not_applied(
                FaultKind::Unavailable,
                "the claim's node was removed from the queue",
            ))
        }
    }
}

/// Reads the queue, again and again for a claim that may wait if an overloaded server drops that
/// request. Core bounds the time.
async fn read_queue(
    session: &Session,
    entry: &QueueEntry,
    claim: &Claim,
) -> Result<Vec<String>, Fault> {
    loop {
        match session.queue(&entry.lock).await {
            Err(fault) if claim.queues() && is_throttled(&fault) => {
                sleep_between(THROTTLED_PAUSE / 2, THROTTLED_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Starts a task that watches the queue for a waiter, unless one runs.
fn start_watching(session: &Arc<Session>, entry: &Arc<QueueEntry>, queue: Vec<String>) {
    let is_watched = std::mem::replace(&mut entry.state().queue_watched, true);
    if !is_watched {
        let following = PredecessorWatch(Arc::clone(entry));
        tokio::spawn(Arc::clone(session).watch_predecessor(following, queue));
    }
}
