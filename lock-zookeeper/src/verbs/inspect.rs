//! Inspecting, listing and breaking locks.

use lock_core::backend::{Fault, FaultKind, Holder, Listed, LockState};
use lock_core::{LockName, OwnerId};
use zookeeper_client::Error as ZkError;

use crate::fault::fault;
use crate::names::Names;
use crate::session::Session;
use crate::session::manager::SessionManager;
use crate::value::{NodeData, token};

/// Returns the holders and the number of waiters of a lock.
pub(crate) async fn inspect(
    names: &Names,
    sessions: &SessionManager,
    name: &LockName,
) -> Result<LockState, Fault> {
    let session = sessions.session().await?;
    // The two requests go in order on one connection, without a pause.
    let client = session.client();
    let sync = client.sync("/");
    let lock = names.path(name);
    let state = state_of(&session, &lock);
    let (sync, state) = tokio::join!(sync, state);
    sync.map_err(|error| fault("asking the ensemble", &error))?;
    state
}

/// Returns the held locks with names that start with `prefix`, in order.
pub(crate) async fn list(
    names: &Names,
    sessions: &SessionManager,
    prefix: &str,
    after: Option<&LockName>,
    limit: usize,
) -> Result<Vec<Listed>, Fault> {
    let session = sessions.session().await?;
    let elements = match session.client().list_children(names.directory()).await {
        Ok(elements) => elements,
        Err(ZkError::NoNode) => Vec::new(),
        Err(error) => return Err(fault("listing locks", &error)),
    };
    let mut wanted: Vec<_> = elements.iter().filter_map(|element| names.name(element)).collect();
    wanted
        .retain(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after));
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
        tracing::warn!(skipped, "not listed: nodes that contain something other than a queue");
    }
    Ok(listed)
}

/// Deletes the node of the first holder if it has the expected owner.
pub(crate) async fn break_lock(
    names: &Names,
    sessions: &SessionManager,
    name: &LockName,
    expected: &OwnerId,
) -> Result<bool, Fault> {
    let session = sessions.session().await?;
    let lock = names.path(name);
    session.barrier().await?;
    let Some(first) = session.queue(&lock).await?.into_iter().next() else {
        return Ok(false);
    };
    let path = format!("{lock}/{first}");
    let data = match session.client().get_data(&path).await {
        Ok((data, _)) => data,
        Err(ZkError::NoNode) => return Ok(false),
        Err(error) => return Err(fault("reading the holder's node", &error)),
    };
    if NodeData::parse(&data).is_none_or(|card| card.owner != *expected) {
        return Ok(false);
    }
    match session.client().delete(&path, None).await {
        Ok(()) => Ok(true),
        Err(ZkError::NoNode) => Ok(false),
        Err(error) => Err(fault("deleting the holder's node", &error)),
    }
}

/// Returns the holders and the number of waiters of a lock.
async fn state_of(session: &Session, lock: &str) -> Result<LockState, Fault> {
    loop {
        let queue = session.queue(lock).await?;
        let first = session.possible_holders(&queue);
        let mut holders = Vec::with_capacity(first.len());
        for node in first {
            holders.extend(holder_of(session, &format!("{lock}/{node}")).await?);
        }
        // If all of them have left, other nodes are first now.
        if !holders.is_empty() || queue.is_empty() {
            let waiting = u64::try_from(queue.len() - first.len()).unwrap_or(u64::MAX);
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
    let card = NodeData::parse(&data);
    let mut holder = Holder::new(card.as_ref().map(|card| card.owner));
    holder.label = card.and_then(|card| card.label);
    holder.token = token(stat.czxid);
    Ok(Some(holder))
}
