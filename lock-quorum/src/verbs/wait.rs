//! Waiting for a moment at which another attempt may succeed.
//!
//! Claims queue at the member that breaks ties, if it has a queue. Its release hands its vote to
//! the next one, which then asks the others. Every notification is a hint: the claim asks that
//! member again. If another member is released and the vote does not come, the first one may hang,
//! and the claim asks all members.
//!
//! Without a queue, a release notifies all waiters at once, and one of them gets the lock. A waiter
//! that came too late backs off, longer each time, so that not all of them ask after each release.
//! Many waiters spread out by themselves, and a lone waiter asks at once.

use std::cmp::Reverse;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::backend::{Claim, Fault, FaultKind, LockState, OnContention, Wake};
use lock_core::clock::{Moment, sleep, sleep_between, sleep_until};
use tokio::time::timeout;

use crate::ballot::Ballot;
use crate::claim::{Confirmation, QuorumClaim};
use crate::quorum::Inner;
use crate::round::{LONGEST_HAND_OVER, required_min_token};

/// How much later the first member may notify of a release than another one.
const FIRST_MEMBER_DELAY: Duration = Duration::from_millis(5);

/// The longest backoff of a waiter that came too late, in rounds. It doubles up to `MAX_DOUBLINGS`
/// times.
const BACKOFF_ROUNDS: u32 = 4;
const MAX_DOUBLINGS: u32 = 4;
const SHORTEST_BACKOFF: Duration = Duration::from_millis(4);
const LONGEST_BACKOFF: Duration = Duration::from_millis(500);

/// How long a queued claim listens to the first member alone. After a release at another one, it
/// waits as long again for the vote. This doubles up to the longest time with each claim that the
/// first member serves meanwhile.
const PATIENCE: Duration = Duration::from_millis(50);
const LONGEST_PATIENCE: Duration = Duration::from_millis(400);

/// The member granted the claim when it was to queue there.
struct HasVote;

/// The holder of a lock at a member, if it is held, by its owner id. A foreign one has none.
type SeenHolder = Option<Option<OwnerId>>;

impl Inner {
    /// Waits until another attempt may succeed.
    pub(crate) async fn wait(self: &Arc<Self>, claim: &Claim) -> Result<(), Fault> {
        let quorum_claim = self.registry.find_or_open(claim, self.members.len());
        if claim.queues() && self.wait_in_queue(&quorum_claim, claim).await {
            return Ok(());
        }
        if self.queue_of(&claim.name).is_none() {
            self.stop_queueing(&quorum_claim, claim);
        }
        let (backoff, changes_often, refusals, took, notified_by) = {
            let status = quorum_claim.status();
            let mut notified_by = status.refused_by.clone();
            let others = self.order_for(&claim.name).into_iter();
            notified_by.extend(others.filter(|member| !status.refused_by.contains(member)));
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
        let kept_since = quorum_claim.status().kept_since;
        let mut released = pin!(self.wait_for_release(claim, notified_by));
        let ask_first_alone = tokio::select! {
            biased;
            notified = &mut released => notified?,
            () = sleep_until(kept_since.unwrap_or_else(Moment::now) + LONGEST_HAND_OVER),
                if kept_since.is_some() =>
            {
                self.blocked.insert(&claim.name);
                self.stop_queueing(&quorum_claim, claim);
                released.await?
            }
        };
        quorum_claim.status().ask_first_alone = ask_first_alone;
        if refusals > 1 {
            sleep_between(Duration::ZERO, turn / 4).await;
        }
        Ok(())
    }

    /// Waits in the queue of the first member, if that refused the claim and has one. Returns false
    /// if it does not, or fails.
    async fn wait_in_queue(
        self: &Arc<Self>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
    ) -> bool {
        let order = self.order_for(&claim.name);
        let first = order[0];
        let refused_by = quorum_claim.status().refused_by.clone();
        if !refused_by.contains(&first) || self.queue_of(&claim.name) != Some(first) {
            return false;
        }
        let Some(asked) = self.enter_queue(quorum_claim, first, claim).await else { return false };
        let Ok(asked) = asked else { return true };
        let Ok(backend) = self.backend(first, claim.ttl).await else { return false };
        tokio::select! {
            biased;
            wake = backend.wait(&asked) => match wake {
                Ok(Wake::Granted(grant)) => quorum_claim.status().handed_over = grant.token,
                Ok(_) => quorum_claim.status().ask_first_alone = true,
                Err(_) => return false,
            },
            () = self.first_member_fails(&order, &refused_by, claim) => {
                quorum_claim.status().asks_all = true;
            }
        }
        true
    }

    /// Waits until the first member has granted the claim, or does not serve its queue. Then it
    /// does not answer, or it keeps a holder that has no other vote, while a majority is free or
    /// agrees on another holder.
    async fn first_member_fails(
        self: &Arc<Self>,
        order: &[usize],
        refused_by: &[usize],
        claim: &Claim,
    ) {
        let (first, others) = (order[0], &order[1..]);
        let mut notified_by = others.to_vec();
        notified_by.sort_by_key(|member| !refused_by.contains(member));
        let (mut patience, mut before, mut is_suspect) = (PATIENCE, None, false);
        sleep(patience).await;
        while let Ok(holder) = self.holder_at(first, claim).await {
            if holder == Some(Some(claim.owner)) {
                return;
            }
            if before == Some(holder) {
                let seen = self.holders(claim).await;
                let count = |state| seen.iter().filter(|seen| **seen == Some(state)).count();
                let agree = |member: usize| seen[member].map_or(0, count);
                let has_majority = |&member: &usize| {
                    seen[member] != Some(holder) && agree(member) >= self.majority
                };
                let is_stray =
                    holder.is_some() && count(holder) < 2 && others.iter().any(has_majority);
                if is_stray && is_suspect {
                    break;
                }
                is_suspect = is_stray;
                // Most of them know the same holder, and none is free.
                let is_held = |&member: &usize| seen[member] != Some(None);
                notified_by = others.iter().copied().filter(is_held).collect();
                notified_by.sort_by_key(|&member| Reverse(agree(member)));
            } else {
                (before, is_suspect) = (Some(holder), false);
                patience = (patience * 2).min(LONGEST_PATIENCE);
            }
            if !is_suspect {
                // With the first member, no minority can hide a release.
                notified_by.truncate(self.majority - 1);
                let notified = self.wait_for_release(claim, notified_by.clone()).await;
                if notified.is_err() {
                    sleep(LONGEST_PATIENCE).await;
                }
            }
            sleep(patience).await;
        }
        self.blocked.insert(&claim.name);
    }

    /// Returns the holder at a member. A member that does not answer soon is slow.
    async fn holder_at(&self, member: usize, claim: &Claim) -> Result<SeenHolder, Fault> {
        let asked = async {
            let backend = self.backend(member, claim.ttl).await?;
            backend.inspect(&claim.name).await
        };
        let state = timeout(LONGEST_PATIENCE, asked).await.unwrap_or_else(|_| {
            self.members[member].mark_slow();
            Err(Fault::not_applied(FaultKind::TimedOut, "no answer"))
        });
        state.map(|state| holder_of(&state))
    }

    /// Returns the holder at each member that answers soon.
    async fn holders(self: &Arc<Self>, claim: &Claim) -> Vec<Option<SeenHolder>> {
        let name = claim.name.clone();
        let states =
            self.ask_all(LONGEST_PATIENCE.min(self.settings.member_timeout), move |backend| {
                let name = name.clone();
                async move { backend.inspect(&name).await }
            });
        states.await.iter().map(|state| state.as_ref().ok().map(holder_of)).collect()
    }

    /// Queues the claim at a member, unless it has. Returns the claim as the member knows it, or
    /// that it got the vote; `None` if it failed.
    async fn enter_queue(
        &self,
        quorum_claim: &QuorumClaim,
        member: usize,
        claim: &Claim,
    ) -> Option<Result<Claim, HasVote>> {
        let _call = self.members[member].begin()?;
        let mut record = self.record(quorum_claim, member, claim).await?;
        let min_token = required_min_token(self, quorum_claim, claim);
        if quorum_claim.queue_at(member, &mut record, min_token) {
            let confirmation = Confirmation::Confirmed;
            match self.attempt(member, &mut record, claim, min_token, confirmation).await {
                Ballot::For(..) => return Some(Err(HasVote)),
                Ballot::Against { .. } => {}
                Ballot::Failed(_) => return None,
            }
        }
        Some(Ok(record.claim(claim, None)))
    }

    /// Waits for a notification of the first two of these members, because the state at one of them
    /// may be a stray vote. Returns true if the member that breaks ties has notified.
    async fn wait_for_release(
        self: &Arc<Self>,
        claim: &Claim,
        notified_by: Vec<usize>,
    ) -> Result<bool, Fault> {
        let first = self.order_for(&claim.name)[0];
        let mut notified_by = notified_by.into_iter();
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

fn holder_of(state: &LockState) -> SeenHolder {
    state.holders.first().map(|holder| holder.owner)
}
