//! Renewing the leases of held locks.

use std::sync::Arc;

use lock_core::backend::{Claim, Fault, Renewal};
use lock_core::clock::Moment;

use crate::session::manager::SessionManager;
use crate::session::{QueueEntry, Session};

/// Renews the leases of claims with one round trip.
pub(crate) async fn renew(
    sessions: &SessionManager,
    claims: &[&Claim],
) -> Vec<Result<Renewal, Fault>> {
    let asked = Moment::now();
    let Some(session) = sessions.current() else {
        return claims.iter().map(|_| Ok(Renewal::NotHeld)).collect();
    };
    let entries: Vec<_> = claims.iter().map(|claim| session.entry(&claim.owner)).collect();
    let seen = match entries.iter().any(Option::is_some) {
        true => session.until_over(sync_entries(&session, entries.iter().flatten())).await,
        false => Ok(()),
    };
    let mut answers = Vec::with_capacity(claims.len());
    for (claim, entry) in claims.iter().zip(entries) {
        let held = entry.filter(|entry| entry.is_held());
        answers.push(match (held, &seen) {
            (None, _) => Ok(Renewal::NotHeld),
            (Some(_), Err(fault)) => Err(fault.repeated()),
            (Some(entry), Ok(())) => {
                session.grant(&entry, claim.ttl, asked).await.map(Renewal::Held)
            }
        });
    }
    answers
}

/// Waits until the client knows of all its nodes that were removed before the call.
async fn sync_entries(
    session: &Arc<Session>,
    entries: impl Iterator<Item = &Arc<QueueEntry>> + Clone,
) -> Result<(), Fault> {
    if !session.ready().await? {
        return Ok(());
    }
    for entry in entries.clone() {
        session.watch_entry(entry).await?;
    }
    session.barrier().await?;
    // Watch events precede the answer to the barrier, but the tasks that record them run in any
    // order.
    let watched: Vec<_> = entries.filter_map(|entry| entry.state().watched.clone()).collect();
    let caught_up: Vec<_> = watched.iter().map(|watched| watched.caught_up()).collect();
    for caught_up in caught_up {
        caught_up.await;
    }
    Ok(())
}
