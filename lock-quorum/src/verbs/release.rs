//! Releases, at all members, including those where the outcome of the attempt is unknown.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Effect, Fault, FaultKind, Release, ReleaseMode};
use lock_core::clock::{Moment, sleep_between, sleep_until};
use tokio::time::timeout;

use crate::calls::Calls;
use crate::claim::{Confirmation, MemberRecord, QuorumClaim, Vote};
use crate::fault::{bounded, no_majority};
use crate::quorum::Inner;
use crate::round::{DECISIVE_GRACE, GRACE};
use crate::server::{Origin, duplicates};

/// The answer of one member, and the server that gave it, if one was asked.
type Answer = Result<(Release, Option<Origin>), Fault>;

/// The pauses between retries of a release. They double from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

const EXPIRED_DURING_RELEASE: &str =
    "the lease expired during the release, and some members may have released the lock before";
const REGAINED: &str = "the member had lost the lock and regained it a moment ago";

/// Release calls in flight at several members.
struct ReleaseCalls<'a> {
    inner: &'a Arc<Inner>,
    answers: Vec<Option<Answer>>,
    began: Moment,
    calls: Calls<Answer>,
}

impl Inner {
    /// Releases a claim. Returns [`Released`](Release::Released) if a majority held it until now,
    /// and [`NotHeld`](Release::NotHeld) if no majority can have held it.
    ///
    /// A member that loses the lock during the release did not hold it, even if another member has
    /// released it before. A stray vote of a broken lock looks the same.
    ///
    /// # Errors
    ///
    /// The outcome is unknown if this release itself may have caused the loss: other clients may
    /// have acquired the lock before all answers arrived. Core then asks again, learns that the
    /// lock is not held, and decides.
    pub(crate) async fn release(
        self: &Arc<Self>,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let quorum_claim = match self.registry.find(claim) {
            Some(known) => known,
            None => {
                let quorum_claim = self.registry.find_or_open(claim, self.members.len());
                quorum_claim.status().granted_elsewhere = true;
                quorum_claim
            }
        };
        quorum_claim.status().released = true;
        let everywhere = (0..self.members.len()).collect();
        let mut calls_of_release =
            ReleaseCalls::begin(self, &quorum_claim, claim, everywhere, Some(how));
        let released = |answer: &Answer| matches!(answer, Ok((Release::Released, _)));
        let not_held = |answer: &Answer| matches!(answer, Ok((Release::NotHeld, _)));
        let is_decided = |calls_of_release: &ReleaseCalls<'_>| {
            calls_of_release.count(released) >= self.majority
                || calls_of_release.count(not_held) >= self.majority
        };
        while !is_decided(&calls_of_release) && calls_of_release.next_answer().await {}
        if !is_decided(&calls_of_release) {
            return Err(no_majority(self, calls_of_release.faults(), false));
        }
        let answer = match calls_of_release.count(released) >= self.majority {
            true => Release::Released,
            false => Release::NotHeld,
        };
        let has_expired = std::mem::take(&mut quorum_claim.status().expired_during_release);
        if answer == Release::NotHeld && has_expired {
            return Err(Fault::unknown(FaultKind::Unavailable, EXPIRED_DURING_RELEASE));
        }
        // The next holder finds the lock free at all members, even if this process exits now.
        calls_of_release.await_grace().await;
        self.forget(&quorum_claim);
        calls_of_release.finish_in_background(&quorum_claim, claim, how);
        Ok(answer)
    }

    /// Forgets a claim that is not held, once no unanswered release can arrive any more. Until then
    /// the claim may be attempted again.
    pub(crate) fn forget(&self, quorum_claim: &Arc<QuorumClaim>) {
        if quorum_claim.may_be_released() {
            let end = Moment::now() + self.settings.member_timeout * 2;
            self.registry.retain(quorum_claim, end);
        } else {
            self.registry.stop_retaining(quorum_claim);
        }
    }

    /// Releases votes that make no majority. Returns true if no member can have anything left. With
    /// `last`, the claim is not used again, and members that can do so refuse its late attempts.
    pub(crate) async fn withdraw_votes(
        self: &Arc<Self>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        members: Vec<usize>,
        last: bool,
    ) -> bool {
        quorum_claim.status().released |= last;
        if members.is_empty() {
            return true;
        }
        let how = last.then(ReleaseMode::now);
        let mut calls_of_release = ReleaseCalls::begin(self, quorum_claim, claim, members, how);
        calls_of_release.await_grace().await;
        let is_clean = calls_of_release.answers.iter().all(|answer| matches!(answer, Some(Ok(_))));
        if last {
            calls_of_release.finish_in_background(quorum_claim, claim, ReleaseMode::now());
        }
        // A late attempt that is not refused may be granted after all votes are released.
        is_clean && !quorum_claim.may_still_be_granted()
    }

    /// Releases the claim at one member, after its call in flight there. `how` is `None` if the
    /// claim will be used again: its late attempts are then not refused. `began` is when the first
    /// member was asked.
    async fn release_at(
        &self,
        quorum_claim: &QuorumClaim,
        member: usize,
        claim: &Claim,
        how: Option<ReleaseMode>,
        began: Moment,
    ) -> Answer {
        let mut record = quorum_claim.records[member].lock().await;
        self.release_record(quorum_claim, &mut record, member, claim, how, began).await
    }

    /// Leaves the queue of the member whose vote a granted claim did not need, in the background.
    /// At the head of that queue, it would delay the others.
    pub(crate) fn leave_queue(self: &Arc<Self>, quorum_claim: &Arc<QuorumClaim>, claim: &Claim) {
        let (queued_at, token) = {
            let mut status = quorum_claim.status();
            (status.queued_at.take(), status.token)
        };
        let Some(member) = queued_at else { return };
        if let Ok(mut record) = quorum_claim.records[member].try_lock() {
            if record.vote.as_ref().is_some_and(|vote| vote.token >= token) {
                record.queue_entry = None;
                return;
            }
            // A renewal may begin before the release.
            record.doubt_vote_until(Moment::now() + self.settings.member_timeout * 2);
        }
        let (inner, quorum_claim) = (Arc::clone(self), Arc::clone(quorum_claim));
        let claim = claim.clone();
        tokio::spawn(async move {
            let mut record = quorum_claim.records[member].lock().await;
            if !quorum_claim.status().released {
                inner.leave_queue_with(&quorum_claim, &mut record, member, &claim).await;
            }
        });
    }

    /// Leaves the queue without the lock, and gives the first member's vote back, if the claim has
    /// kept it. Goes on in the background.
    pub(crate) fn stop_queueing(self: &Arc<Self>, quorum_claim: &Arc<QuorumClaim>, claim: &Claim) {
        let Some(member) = quorum_claim.status().queued_at.take() else { return };
        let (inner, quorum_claim) = (Arc::clone(self), Arc::clone(quorum_claim));
        let claim = claim.clone();
        let mut calls = Calls::new(drop);
        // It begins at once: a later attempt comes after it.
        calls.begin(member, async move {
            if let Ok(mut record) = quorum_claim.records[member].try_lock()
                && inner.send_release(&mut record, member, &claim, None).await.is_ok()
            {
                (record.vote, record.queue_entry) = (None, None);
            } else {
                quorum_claim.status().queued_at = Some(member);
            }
        });
    }

    /// Leaves the queue of a member, and releases a vote with a lower token than the grant's.
    /// Returns false if an entry may be left.
    pub(crate) async fn leave_queue_with(
        &self,
        quorum_claim: &QuorumClaim,
        record: &mut MemberRecord,
        member: usize,
        claim: &Claim,
    ) -> bool {
        let token = quorum_claim.status().token;
        let is_low = record.vote.as_ref().is_none_or(|vote| vote.token < token);
        if is_low {
            // Any answer will do: the claim may have been granted the vote meanwhile.
            if self.send_release(record, member, claim, None).await.is_err() {
                return false;
            }
            record.vote = None;
        }
        record.queue_entry = None;
        true
    }

    async fn release_record(
        &self,
        quorum_claim: &QuorumClaim,
        record: &mut MemberRecord,
        member: usize,
        claim: &Claim,
        how: Option<ReleaseMode>,
        began: Moment,
    ) -> Answer {
        if quorum_claim.has_nothing_to_release(record, how) {
            return Ok((Release::NotHeld, None));
        }
        let (answer, origin) = self.send_release(record, member, claim, how).await?;
        let vote = record.vote_of(&origin).cloned();
        record.vote = None;
        match answer {
            Release::Released if quorum_claim.is_regained(vote.as_ref()) => {
                return Err(Fault::unknown(FaultKind::Unavailable, REGAINED));
            }
            Release::NotHeld if vote.is_some_and(|vote| vote.may_have_expired_since(began)) => {
                quorum_claim.status().expired_during_release = true;
            }
            _ => {}
        }
        Ok((answer, Some(origin)))
    }

    /// Asks a member to release the claim, and stores in its record what may still happen there.
    async fn send_release(
        &self,
        record: &mut MemberRecord,
        member: usize,
        claim: &Claim,
        how: Option<ReleaseMode>,
    ) -> Result<(Release, Origin), Fault> {
        // Nothing was sent there since. Another release would only prolong the wait.
        if how.is_none() && record.may_be_released_until().is_some() && !record.may_arrive_late {
            let why = "an earlier release is not answered, and may still arrive";
            return Err(Fault::not_applied(FaultKind::TimedOut, why));
        }
        let may_arrive_late =
            how.is_some_and(|how| how.expects_late_attempt() || record.may_arrive_late);
        let mut let_go = how.unwrap_or_default();
        let_go.late_attempt = may_arrive_late.into();
        let asked = record.claim(claim, None);
        let limit = self.settings.member_timeout;
        let arrives_by = record.release_arrives_by;
        let verb = async {
            let connection = self.connection(member, limit).await?;
            // This holds until there is an answer, and if the call is abandoned.
            record.release_arrives_by = Some(Moment::now() + limit * 2);
            let answer = connection.backend.release(&asked, let_go).await?;
            Ok((answer, connection.origin().await?))
        };
        let answer = bounded(limit, verb).await;
        let may_still_arrive = record.may_arrive_late && !may_arrive_late;
        record.release_arrives_by = match &answer {
            // It arrives within the bound of a call, or never.
            Err(fault) if fault.effect() == Effect::Unknown => Some(Moment::now() + limit),
            _ => arrives_by,
        };
        (record.asked, record.may_arrive_late) = match answer.is_ok() {
            true => (may_still_arrive, may_still_arrive),
            false => (true, record.may_arrive_late),
        };
        answer
    }
}

impl QuorumClaim {
    /// Returns true if the member was not asked and can have nothing to release.
    fn has_nothing_to_release(&self, record: &MemberRecord, how: Option<ReleaseMode>) -> bool {
        !record.asked
            && !self.status().granted_elsewhere
            && !how.is_some_and(ReleaseMode::expects_late_attempt)
    }

    /// Returns true if an unanswered attempt may still be granted.
    fn may_still_be_granted(&self) -> bool {
        self.records
            .iter()
            .any(|record| record.try_lock().map_or(true, |record| record.may_arrive_late))
    }

    /// Returns true if a release is in flight or may arrive late.
    fn may_be_released(&self) -> bool {
        self.records.iter().any(|record| {
            record.try_lock().map_or(true, |record| record.may_be_released_until().is_some())
        })
    }

    /// Returns true if the released vote is not one of the majority that granted the lock. An
    /// unknown vote is of a late attempt, unless another process acquired the lock, or none.
    fn is_regained(&self, vote: Option<&Vote>) -> bool {
        vote.map_or(self.status().granted, |vote| vote.confirmation == Confirmation::Unconfirmed)
    }
}

impl<'a> ReleaseCalls<'a> {
    fn begin(
        inner: &'a Arc<Inner>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        members: Vec<usize>,
        how: Option<ReleaseMode>,
    ) -> Self {
        let began = Moment::now();
        let mut calls = Calls::new(Err);
        // The other members have nothing to release.
        let mut answers: Vec<_> =
            inner.members.iter().map(|_| Some(Ok((Release::NotHeld, None)))).collect();
        for member in members {
            let record = quorum_claim.records[member].try_lock();
            if record.is_ok_and(|record| quorum_claim.has_nothing_to_release(&record, how)) {
                continue;
            }
            answers[member] = None;
            let (inner, quorum_claim) = (Arc::clone(inner), Arc::clone(quorum_claim));
            let claim = claim.clone();
            calls.begin(member, async move {
                inner.release_at(&quorum_claim, member, &claim, how, began).await
            });
        }
        Self { inner, answers, began, calls }
    }

    /// Waits for the next answer. Returns false if none is outstanding.
    async fn next_answer(&mut self) -> bool {
        match self.calls.next().await {
            Some((member, answer)) => {
                self.take_in(member, answer);
                true
            }
            None => false,
        }
    }

    /// Stores an answer. A server that answers by two addresses is counted once. It held the lock
    /// if it says so by one of them.
    fn take_in(&mut self, member: usize, answer: Answer) {
        self.answers[member] = Some(answer);
        let answers = self.answers.iter().map(|answer| match answer {
            Some(Ok((release, Some(origin)))) => Some((origin, *release == Release::Released)),
            _ => None,
        });
        for (duplicate, counted) in duplicates(member, answers) {
            self.answers[duplicate] = Some(Err(self.inner.duplicate_of(counted)));
        }
    }

    /// Waits a short time for the other answers, except those of slow members.
    async fn await_grace(&mut self) {
        let took = Moment::now().saturating_since(self.began);
        let until = Moment::now() + took.clamp(GRACE, DECISIVE_GRACE);
        let waited_for = |calls_of_release: &Self| {
            let open = (0..calls_of_release.answers.len())
                .filter(|&member| calls_of_release.answers[member].is_none());
            open.filter(|&member| !calls_of_release.inner.members[member].is_slow()).count()
        };
        while waited_for(self) > 0 {
            let heard = tokio::select! {
                biased;
                heard = self.next_answer() => heard,
                () = sleep_until(until) => false,
            };
            if !heard {
                break;
            }
        }
        for member in 0..self.answers.len() {
            if self.answers[member].is_none() {
                self.inner.members[member].mark_slow();
            }
        }
    }

    /// Continues the release in the background at members where it has not succeeded.
    fn finish_in_background(
        self,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        how: ReleaseMode,
    ) {
        let is_open = |answer: &Option<Answer>| !matches!(answer, Some(Ok(_)));
        let open: Vec<_> =
            (0..self.answers.len()).filter(|&member| is_open(&self.answers[member])).collect();
        if open.is_empty() {
            return;
        }
        let retry = ReleaseRetry {
            inner: Arc::clone(self.inner),
            quorum_claim: Arc::clone(quorum_claim),
            claim: claim.clone(),
            may_arrive_late: how.expects_late_attempt(),
            keep_until: how.keep.map(|keep| self.began + keep),
        };
        for member in open.into_iter().filter(|&member| self.answers[member].is_some()) {
            retry.clone().spawn_at(member);
        }
        let mut calls = self.calls;
        if calls.is_empty() {
            return;
        }
        tokio::spawn(async move {
            while let Some((member, answer)) = calls.next().await {
                if answer.is_err() {
                    retry.clone().spawn_at(member);
                }
            }
        });
    }

    fn count(&self, is: impl Fn(&Answer) -> bool) -> usize {
        self.answers.iter().flatten().filter(|answer| is(answer)).count()
    }

    fn faults(&mut self) -> Vec<(usize, Fault)> {
        let answers = std::mem::take(&mut self.answers).into_iter().enumerate();
        answers.filter_map(|(member, answer)| Some((member, answer?.err()?))).collect()
    }
}

/// The part of a release that continues after a majority has answered.
#[derive(Clone)]
struct ReleaseRetry {
    inner: Arc<Inner>,
    quorum_claim: Arc<QuorumClaim>,
    claim: Claim,
    may_arrive_late: bool,
    keep_until: Option<Moment>,
}

impl ReleaseRetry {
    /// Retries the release in the background until it succeeds or the lease has expired. Beyond the
    /// maximum of one member, the lease alone ends the vote.
    fn spawn_at(self, member: usize) {
        let retry_slots = &self.inner.members[member].retry_slots;
        let Ok(place) = Arc::clone(retry_slots).try_acquire_owned() else { return };
        tokio::spawn(async move {
            self.retry_until_expiry(member).await;
            drop(place);
        });
    }

    async fn retry_until_expiry(self, member: usize) {
        let settings = &self.inner.settings;
        // The last request arrives within the bound of a call, or never.
        let over = Moment::now() + settings.member_timeout + self.claim.ttl;
        let mut pause = SHORTEST_PAUSE;
        while !over.has_passed() {
            sleep_between(pause / 2, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // A hung member does not delay the releases at others.
            let turn = self.inner.members[member].retry_turns.acquire();
            let Ok(Ok(_turn)) = timeout(over.remaining(), turn).await else { return };
            if over.has_passed() {
                return;
            }
            let keep = self.keep_until.map(Moment::remaining).filter(|keep| !keep.is_zero());
            let mut how = keep.map_or(ReleaseMode::now(), ReleaseMode::keep_for);
            how.late_attempt = self.may_arrive_late.into();
            let Self { inner, quorum_claim, claim, .. } = &self;
            let began = Moment::now();
            let mut record = quorum_claim.records[member].lock().await;
            // The claim may have been attempted again.
            if !quorum_claim.status().released {
                return;
            }
            let how = Some(how);
            let answer =
                inner.release_record(quorum_claim, &mut record, member, claim, how, began).await;
            if answer.is_ok() {
                return;
            }
        }
    }
}
