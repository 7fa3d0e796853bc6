//! One attempt at one member.

use lock_core::FencingToken;
use lock_core::backend::{Attempt, Claim, Effect, Fault, FaultKind};
use lock_core::clock::Moment;
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use crate::ballot::Ballot;
use crate::claim::{Confirmation, MemberRecord, QuorumClaim, Vote};
use crate::fault::bounded;
use crate::quorum::Inner;
use crate::server::{Origin, not_counted_for};

impl Inner {
    /// Returns the record of a claim at a member, once the call in flight there has ended; `None`
    /// if that takes too long.
    pub(crate) async fn record<'c>(
        &self,
        quorum_claim: &'c QuorumClaim,
        member: usize,
        claim: &Claim,
    ) -> Option<MutexGuard<'c, MemberRecord>> {
        let mutex = &quorum_claim.records[member];
        if let Ok(record) = mutex.try_lock() {
            return Some(record);
        }
        let limit = self.settings.member_timeout.min(claim.ttl);
        timeout(limit, mutex.lock()).await.ok()
    }

    /// Attempts the claim at one member, and stores the outcome in its record.
    pub(crate) async fn attempt(
        &self,
        member: usize,
        record: &mut MemberRecord,
        claim: &Claim,
        min_token: Option<FencingToken>,
        confirmation: Confirmation,
    ) -> Ballot {
        if record.may_be_released_until().is_some() {
            let why = "an earlier release is not answered, and may still arrive";
            return Ballot::Failed(Fault::not_applied(FaultKind::TimedOut, why));
        }
        let asked = record.claim(claim, min_token);
        let before = (record.asked, record.may_arrive_late);
        let limit = self.settings.member_timeout.min(claim.ttl);
        let mut began = Moment::now();
        let verb = bounded(limit, async {
            let connection = self.connection(member, limit).await?;
            began = Moment::now();
            // This holds until there is an answer, and if the call is abandoned.
            (record.asked, record.may_arrive_late) = (true, true);
            let answer = connection.backend.try_acquire(&asked).await?;
            Ok((answer, connection.origin().await?))
        });
        match verb.await {
            Ok((Attempt::Acquired(grant), origin)) => {
                let restarted = self.restarted_lately(&origin, began);
                (record.asked, record.may_arrive_late) = (true, before.1);
                let confirmation =
                    if restarted.is_some() { Confirmation::Unconfirmed } else { confirmation };
                // A vote that is confirmed keeps its confirmation.
                let mut vote = match record.vote_of(&origin) {
                    Some(vote) if vote.token == grant.token => vote.renewed(&grant, origin),
                    _ => Vote::of(&grant, origin, confirmation),
                };
                if confirmation == Confirmation::Confirmed {
                    vote.confirmation = confirmation;
                }
                record.vote = Some(vote.clone());
                Ballot::For(vote, restarted)
            }
            Ok((Attempt::Contended { expires_in }, origin)) => {
                // A queue entry has to be released, too.
                record.asked = before.1 || asked.queues();
                (record.may_arrive_late, record.vote) = (before.1, None);
                Ballot::Against { expires_in, origin }
            }
            Err(fault) => {
                if fault.effect() == Effect::NotApplied {
                    (record.asked, record.may_arrive_late) = before;
                }
                Ballot::Failed(fault)
            }
        }
    }

    /// Returns why a vote is not counted: the member was restarted shortly before and may have
    /// forgotten its grants. No server restarts on the same connection, so it is asked once for
    /// each.
    fn restarted_lately(&self, origin: &Origin, asked: Moment) -> Option<Fault> {
        let (longest, up_for) = (self.settings.longest_lease?, origin.up_for_at(asked)?);
        let stays_out = not_counted_for(longest, up_for);
        if stays_out.is_zero() {
            return None;
        }
        let retry_after = Some(stays_out);
        let (up_for, stays_out) = (up_for.as_secs(), stays_out.as_secs_f64().ceil());
        let why = format!(
            "it was started {up_for} s ago and may have forgotten locks; it is counted in {stays_out} s"
        );
        Some(Fault::unknown(FaultKind::Unavailable, why).with_retry_after(retry_after))
    }
}
