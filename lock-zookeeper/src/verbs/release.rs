//! Releasing a lock, or leaving its queue.

use std::error::Error as _;

use lock_core::backend::{Claim, Fault, Release};

use crate::session::manager::SessionManager;

/// Removes the node of a claim.
pub(crate) async fn release(sessions: &SessionManager, claim: &Claim) -> Result<Release, Fault> {
    let Some((session, entry)) = sessions.entry_of(claim) else {
        return Ok(Release::NotHeld);
    };
    session.mark_released(&entry);
    if !session.ready().await? {
        return Ok(Release::NotHeld);
    }
    let was_there = session.until_over(session.remove_entry(&claim.owner, &entry)).await;
    if let Err(refusal) = &was_there
        && !refusal.is_transient()
    {
        tracing::warn!(
            lock.name = claim.name.as_str(),
            lock.error = refusal.source().map(tracing::field::display),
            "the server refuses to remove a released lock, which stays taken for as long as this session"
        );
    }
    let was_there = was_there?;
    let granted = entry.state().granted;
    Ok(if was_there && granted { Release::Released } else { Release::NotHeld })
}
