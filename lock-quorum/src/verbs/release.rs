//! Letting go: everywhere, also where nobody knows whether there is anything to let go.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind, Release, ReleaseMode};
use lock_core::clock::{Moment, sleep_between, sleep_until};
use tokio::time::timeout;

use crate::calls::Calls;
use crate::claim::{Confirmation, MemberRecord, QuorumClaim, Vote};
use crate::quorum::{Inner, bounded, no_majority};
use crate::round::{DECISIVE_GRACE, GRACE};
use crate::server::{Origin, duplicates};

/// The answer of one member, and the server that gave it, if one was asked.
type Answer = Result<(Release, Option<Origin>), Fault>;

/// The pause after a release that failed doubles from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

const EXPIRED_DURING_RELEASE: &str =
    "the lease ended while members were asked, and some may have let the lock go before";
const REGAINED: &str = "the lock had been lost here, and was won back a moment ago";

/// Releases that are under way at several members.
struct ReleaseCalls<'a> {
    inner: &'a Arc<Inner>,
    answers: Vec<Option<Answer>>,
    began: Moment,
    calls: Calls<Answer>,
}

impl Inner {
    /// The verb: [`Released`](Release::Released) if a majority had it until now, and
    /// [`NotHeld`](Release::NotHeld) if so many had not that no majority can have. A member that
    /// forgets the lock during the release had not, though another one has let it go before: a vote
    /// may be left of a lock that was broken, too, and the two look alike. It is unknown if that may
    /// come of this release itself, of which others may have made use before the rest was heard of.
    /// Core asks again then, hears that it is not held, and knows what to make of it.
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
        self.registry.stop_retaining(&quorum_claim);
        // Whoever comes next finds it free everywhere, also if this process ends now.
        calls_of_release.await_grace().await;
        calls_of_release.finish_in_background(&quorum_claim, claim, how);
        Ok(answer)
    }

    /// Gives back votes that make no majority. True if nothing can be left anywhere. If it is the `last`
    /// that is heard of the claim, late attempts of it are refused where members can do that.
    pub(crate) async fn withdraw_votes(
        self: &Arc<Self>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        members: Vec<usize>,
        last: bool,
    ) -> bool {
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
        // What is not refused may land when all has been given back.
        is_clean && !quorum_claim.may_still_be_granted()
    }

    /// At one member, after what is under way there. `how` is `None` if the claim will be heard of again:
    /// then late attempts of it are not refused. `began` is when the first of the members was asked.
    async fn release_at(
        &self,
        quorum_claim: &QuorumClaim,
        member: usize,
        claim: &Claim,
        how: Option<ReleaseMode>,
        began: Moment,
    ) -> Answer {
        let mut record = quorum_claim.records[member].lock().await;
        if quorum_claim.has_nothing_to_release(&record, how) {
            return Ok((Release::NotHeld, None));
        }
        let may_arrive_late =
            how.is_some_and(|how| how.expects_late_attempt() || record.may_arrive_late);
        let mut let_go = how.unwrap_or_default();
        let_go.late_attempt = may_arrive_late.into();
        let asked = record.claim(claim, None);
        let limit = self.settings.member_timeout;
        let verb = async {
            let connection = self.connection(member, limit).await?;
            let answer = connection.backend.release(&asked, let_go).await?;
            Ok((answer, connection.origin().await?))
        };
        let (answer, origin) = match bounded(limit, verb).await {
            Ok(answer) => answer,
            Err(fault) => {
                record.asked = true;
                return Err(fault);
            }
        };
        let may_still_arrive = record.may_arrive_late && !may_arrive_late;
        (record.asked, record.may_arrive_late) = (may_still_arrive, may_still_arrive);
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
}

impl QuorumClaim {
    /// True if nothing can be there to let go: it was not asked.
    fn has_nothing_to_release(&self, record: &MemberRecord, how: Option<ReleaseMode>) -> bool {
        !record.asked
            && !self.status().granted_elsewhere
            && !how.is_some_and(|how| how.expects_late_attempt())
    }

    /// True if an attempt that nobody has heard of may be granted yet.
    fn may_still_be_granted(&self) -> bool {
        self.records
            .iter()
            .any(|record| record.try_lock().map_or(true, |record| record.may_arrive_late))
    }

    /// True if what a member let go is no vote of the majority that won. One that we did not know of has landed late, unless
    /// the claim was won elsewhere, or nowhere.
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
        // There is nothing at the others.
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

    /// False if there is nothing more to hear.
    async fn next_answer(&mut self) -> bool {
        match self.calls.next().await {
            Some((member, answer)) => {
                self.take_in(member, answer);
                true
            }
            None => false,
        }
    }

    /// A server that answers by two addresses is counted once. It has held the lock if it says so
    /// by one of them.
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

    /// Hears the rest as well, unless it is behind.
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

    /// Goes on in the background where it has not worked yet.
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

/// What is left of a release that a majority has answered.
#[derive(Clone)]
struct ReleaseRetry {
    inner: Arc<Inner>,
    quorum_claim: Arc<QuorumClaim>,
    claim: Claim,
    may_arrive_late: bool,
    keep_until: Option<Moment>,
}

impl ReleaseRetry {
    /// In the background, until it has worked or the leases are over. What is too much for one member is left to its lease.
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
        // What was sent last lands within the bound of a call, or never.
        let over = Moment::now() + settings.member_timeout + self.claim.ttl;
        let mut pause = SHORTEST_PAUSE;
        while !over.has_passed() {
            sleep_between(pause / 2, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // One that hangs keeps nobody from asking the others.
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
            if inner.release_at(quorum_claim, member, claim, Some(how), began).await.is_ok() {
                return;
            }
        }
    }
}
