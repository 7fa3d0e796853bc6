//! Waiting for a grant, and for the loss of a lock.

use lock_core::backend::{Claim, Fault, Wake};

use crate::session::manager::SessionManager;

/// Waits until no node is before the claim, and grants it the lock.
pub(crate) async fn wait(sessions: &SessionManager, claim: &Claim) -> Result<Wake, Fault> {
    let Some((session, entry)) = sessions.entry_of(claim) else {
        return Ok(Wake::Retry);
    };
    if entry.state().first_since.is_some() {
        return Ok(Wake::Retry);
    }
    let granted =
        entry.until(|state| match (state.removed || state.releasing, state.first_since) {
            (true, _) => Some(None),
            (_, Some(at)) => Some(Some(at)),
            _ => None,
        });
    match granted.await {
        Some(at) => Ok(Wake::Granted(session.grant(&entry, claim.ttl, at).await?)),
        None => Ok(Wake::Retry),
    }
}

/// Waits until the node of the claim is removed.
pub(crate) async fn wait_lost(sessions: &SessionManager, claim: &Claim) -> Result<(), Fault> {
    if let Some((session, entry)) = sessions.entry_of(claim) {
        session.wait_removed(&entry).await;
    }
    Ok(())
}
