//! Waiting for a moment at which another attempt may succeed. Claims queue at no member, and
//! notifications are hints.
//!
//! A release notifies all waiters at once, and one of them gets the lock. A waiter that came too
//! late backs off, longer each time, so that not all of them ask after each release. Many waiters
//! spread out by themselves, and a lone waiter asks at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, OnContention};
use lock_core::clock::{sleep, sleep_between};

use crate::quorum::Inner;

/// How much later the first member may notify of a release than another one.
const FIRST_MEMBER_DELAY: Duration = Duration::from_millis(5);

/// The longest backoff of a waiter that came too late, in rounds. It doubles up to `MAX_DOUBLINGS`
/// times.
const BACKOFF_ROUNDS: u32 = 4;
const MAX_DOUBLINGS: u32 = 4;
const SHORTEST_BACKOFF: Duration = Duration::from_millis(4);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);

impl Inner {
    /// Waits until another attempt may succeed.
    pub(crate) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<(), Fault> {
        let quorum_claim = self.registry.find_or_open(claim, self.members.len());
        let (backoff, changes_often, refusals, took, notified_by) = {
            let status = quorum_claim.status();
            let notified_by = status.refused_by.clone();
            (status.backoff, status.changes_often, status.refusals, status.took, notified_by)
        };
        if let Some(at_most) = backoff {
            sleep_between(Duration::ZERO, at_most).await;
            return Ok(());
        }
        let turn = (took * BACKOFF_ROUNDS).max(SHORTEST_BACKOFF);
        let turn = turn * 2_u32.pow(refusals.saturating_sub(1).min(MAX_DOUBLINGS));
        let turn = turn.min(LONGEST_BACKOFF);
        if changes_often {
            // The lock may be free before a notification arrives.
            sleep_between(Duration::ZERO, turn).await;
            quorum_claim.status().ask_first_alone = true;
            return Ok(());
        }
        let ask_first_alone = self.wait_for_release(claim, notified_by).await?;
        quorum_claim.status().ask_first_alone = ask_first_alone;
        if refusals > 1 {
            sleep_between(Duration::ZERO, turn / 4).await;
        }
        Ok(())
    }

    /// Waits for a notification of two members that refused the claim: the state at one of them may
    /// be a stray vote. Returns true if the first member notified.
    async fn wait_for_release(
        self: &Arc<Self>,
        claim: &Claim,
        refused_by: Vec<usize>,
    ) -> Result<bool, Fault> {
        let order = self.order_for(&claim.name);
        let first = order[0];
        let others = order.into_iter().filter(|member| !refused_by.contains(member));
        let mut notified_by = refused_by.iter().copied().chain(others);
        let Some(nearest) = notified_by.next() else { return Ok(false) };
        let mut one = pin!(self.wait_at(nearest, claim));
        let Some(second) = notified_by.next() else {
            return one.await.map(|()| nearest == first);
        };
        let mut other = pin!(self.wait_at(second, claim));
        let nearest_notified = tokio::select! {
            biased;
            notified = &mut one => match notified {
                Ok(()) => true,
                Err(_) => {
                    other.await?;
                    false
                }
            },
            notified = &mut other => match notified {
                Ok(()) => tokio::select! {
                    biased;
                    notified = &mut one => notified.is_ok(),
                    () = sleep(FIRST_MEMBER_DELAY) => false,
                },
                Err(_) => {
                    one.await?;
                    true
                }
            },
        };
        Ok(nearest_notified && nearest == first)
    }

    /// Waits until another attempt may succeed at this member.
    async fn wait_at(self: &Arc<Self>, member: usize, claim: &Claim) -> Result<(), Fault> {
        let backend = self.backend(member, claim.ttl).await?;
        let mut asked = claim.clone();
        asked.on_contention = OnContention::Return;
        (asked.ticket, asked.min_token) = (None, None);
        backend.wait(&asked).await.map(|_| ())
    }
}
