//! Renewals, by a majority of the members that have held the lock all the time.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind, Renewal, Ticket};
use lock_core::clock::{Moment, sleep_until};
use lock_core::{Effect, FencingToken};

use crate::ballot::{combined_grant, just_below};
use crate::calls::Calls;
use crate::claim::{Confirmation, MemberRecord, QuorumClaim, Vote};
use crate::fault::{bounded, no_majority};
use crate::quorum::Inner;
use crate::round::DECISIVE_GRACE;
use crate::server::{Origin, duplicates};

/// The answer of one member for one claim.
#[derive(Debug)]
enum MemberRenewal {
    /// The vote, with its new end.
    Held(Vote),
    NotHeld(Origin),
    /// The member has no vote to renew.
    Nothing,
    Failed(Fault),
}

type MemberReply = Result<Vec<MemberRenewal>, Fault>;

/// A batch of renewals in flight at all members.
struct Batch<'a> {
    inner: &'a Arc<Inner>,
    /// When the batch began, before any member was asked.
    began: Moment,
    claims: &'a [&'a Claim],
    quorum_claims: Vec<Arc<QuorumClaim>>,
    /// For each claim, for each member.
    renewals: Vec<Vec<Option<MemberRenewal>>>,
    calls: Calls<MemberReply>,
}

impl Inner {
    /// Renews all `claims`.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut batch = Batch::begin(self, claims);
        while !batch.is_decided() && batch.next_answer().await {}
        batch.await_tokens().await;
        let answers: Vec<_> = (0..claims.len()).map(|claim| batch.answer(claim)).collect();
        batch.repair_minority(&answers);
        answers
    }

    /// Renews all claims at one member with one call.
    async fn renew_at(
        &self,
        member: usize,
        quorum_claims: &[Arc<QuorumClaim>],
        claims: &[Claim],
    ) -> Vec<MemberRenewal> {
        let mut renewals: Vec<MemberRenewal> =
            claims.iter().map(|_| MemberRenewal::Nothing).collect();
        let mut records = Vec::new();
        for (nth, quorum_claim) in quorum_claims.iter().enumerate() {
            // Another verb of the claim is in flight there.
            let Ok(mut record) = quorum_claim.records[member].try_lock() else {
                let why = "an earlier call is not answered yet";
                renewals[nth] = MemberRenewal::Failed(Fault::not_applied(FaultKind::TimedOut, why));
                continue;
            };
            record.doubt_vote();
            if record.vote.is_some()
                || record.may_arrive_late
                || quorum_claim.is_unknown(&claims[nth])
            {
                records.push((nth, record));
            }
        }
        if records.is_empty() {
            return renewals;
        }
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let limit = self.settings.member_timeout.min(shortest);
        let asked: Vec<_> =
            records.iter().map(|(nth, record)| record.claim(&claims[*nth], None)).collect();
        let answers = self.ask_to_renew(member, &asked, limit).await;
        for ((nth, mut record), answer) in records.into_iter().zip(answers) {
            let is_unknown = quorum_claims[nth].is_unknown(&claims[nth]);
            renewals[nth] = record.take_in(answer, is_unknown);
        }
        renewals
    }

    async fn ask_to_renew(
        &self,
        member: usize,
        claims: &[Claim],
        limit: Duration,
    ) -> Vec<Result<(Renewal, Origin), Fault>> {
        let verb = async {
            let connection = self.connection(member, limit).await?;
            let answers = connection.backend.renew(&claims.iter().collect::<Vec<_>>()).await;
            if answers.len() != claims.len() {
                let why = "it answered for another number of claims";
                return Err(Fault::unknown(FaultKind::Broken, why));
            }
            if answers.iter().all(Result::is_err) {
                return Ok(answers.into_iter().filter_map(Result::err).map(Err).collect());
            }
            let origin = connection.origin().await?;
            let told = |answer: Result<_, _>| answer.map(|answer| (answer, origin.clone()));
            Ok(answers.into_iter().map(told).collect())
        };
        match bounded(limit, verb).await {
            Ok(answers) => answers,
            Err(fault) => claims.iter().map(|_| Err(fault.repeated())).collect(),
        }
    }

    /// Attempts the claim in the background at a member without a vote for it: one that was
    /// unreachable, or has forgotten it. The attempt succeeds only if the lock is free there.
    fn regain_vote(
        self: &Arc<Self>,
        quorum_claim: &Arc<QuorumClaim>,
        claim: &Claim,
        member: usize,
        token: Option<FencingToken>,
    ) {
        let (inner, quorum_claim, claim) =
            (Arc::clone(self), Arc::clone(quorum_claim), claim.clone());
        tokio::spawn(async move {
            inner
                .attempt_in_background(
                    &quorum_claim,
                    &claim,
                    member,
                    token,
                    Confirmation::Unconfirmed,
                )
                .await;
        });
    }

    pub(crate) async fn attempt_in_background(
        &self,
        quorum_claim: &QuorumClaim,
        claim: &Claim,
        member: usize,
        token: Option<FencingToken>,
        confirmation: Confirmation,
    ) {
        let Some(_call) = self.members[member].begin() else { return };
        let Ok(mut record) = quorum_claim.records[member].try_lock() else { return };
        if record.vote.is_some() || quorum_claim.status().released {
            return;
        }
        // A vote for a queue entry would have the token of another time.
        if record.queue_entry.is_some()
            && !self.leave_queue_with(quorum_claim, &mut record, member, claim).await
        {
            return;
        }
        let min_token = token.filter(|_| self.has_tokens()).and_then(just_below);
        let ballot = self.attempt(member, &mut record, claim, min_token, confirmation).await;
        drop(ballot);
    }
}

impl MemberRecord {
    fn take_in(
        &mut self,
        answer: Result<(Renewal, Origin), Fault>,
        is_unknown: bool,
    ) -> MemberRenewal {
        let counts = |vote: &Vote| vote.confirmation == Confirmation::Confirmed;
        match answer {
            Ok((Renewal::Held(grant), origin)) => {
                let vote = match self.vote_of(&origin) {
                    Some(vote) if grant.token.is_none() || vote.token == grant.token => {
                        vote.renewed(&grant, origin)
                    }
                    // Only the process that acquired the lock knows which votes are old.
                    None if is_unknown => Vote::of(&grant, origin, Confirmation::Confirmed),
                    // Another token is another grant: the vote was lost, and a late attempt was
                    // granted.
                    _ => {
                        let mut vote = Vote::of(&grant, origin, Confirmation::Unconfirmed);
                        // A release may end it until then.
                        let end = self.release_arrives_by.unwrap_or(vote.known_since);
                        vote.known_since = vote.known_since.max(end);
                        vote
                    }
                };
                self.asked = true;
                self.vote = Some(vote.clone());
                MemberRenewal::Held(vote)
            }
            Ok((Renewal::NotHeld, origin)) => {
                (self.asked, self.vote) = (self.may_arrive_late, None);
                MemberRenewal::NotHeld(origin)
            }
            // The member may still hold the vote.
            Err(fault) if is_unknown || self.vote.as_ref().is_some_and(counts) => {
                MemberRenewal::Failed(fault)
            }
            Err(_) => MemberRenewal::Nothing,
        }
    }
}

impl<'a> Batch<'a> {
    fn begin(inner: &'a Arc<Inner>, claims: &'a [&'a Claim]) -> Self {
        let (size, began) = (inner.members.len(), Moment::now());
        let quorum_claims: Vec<_> = claims.iter().map(|claim| open(inner, claim)).collect();
        let mut calls = Calls::new(Err);
        for member in 0..size {
            Self::ask(inner, member, &quorum_claims, claims, &mut calls);
        }
        let renewals = claims.iter().map(|_| (0..size).map(|_| None).collect()).collect();
        Self { inner, began, claims, quorum_claims, renewals, calls }
    }

    fn ask(
        inner: &Arc<Inner>,
        member: usize,
        quorum_claims: &[Arc<QuorumClaim>],
        claims: &[&Claim],
        calls: &mut Calls<MemberReply>,
    ) {
        let Some(call) = inner.members[member].begin() else {
            let why = "too many calls of this member are under way";
            let fault = Fault::not_applied(FaultKind::Unavailable, why);
            return calls.begin(member, std::future::ready(Err(fault)));
        };
        let (inner, quorum_claims) = (Arc::clone(inner), quorum_claims.to_vec());
        let claims: Vec<_> = claims.iter().map(|&claim| claim.clone()).collect();
        calls.begin(member, async move {
            let renewals = inner.renew_at(member, &quorum_claims, &claims).await;
            drop(call);
            Ok(renewals)
        });
    }

    /// Waits for the next answer. Returns false if none is outstanding.
    async fn next_answer(&mut self) -> bool {
        let Some((member, renewals)) = self.calls.next().await else { return false };
        match renewals {
            Ok(renewals) => {
                for (claim, renewal) in renewals.into_iter().enumerate() {
                    self.renewals[claim][member] = Some(renewal);
                    self.discard_duplicates(claim, member);
                }
            }
            Err(fault) => {
                for renewals in &mut self.renewals {
                    renewals[member] = Some(MemberRenewal::Failed(fault.repeated()));
                }
            }
        }
        true
    }

    /// Counts a server once that has also answered by the address of another member. Only one of
    /// the two members knows its old vote.
    fn discard_duplicates(&mut self, claim: usize, member: usize) {
        let renewals = &mut self.renewals[claim];
        let answers = renewals.iter().map(|renewal| {
            let renewal = renewal.as_ref()?;
            Some((renewal.origin()?, renewal.confirmed_vote().is_some()))
        });
        for (duplicate, counted) in duplicates(member, answers) {
            renewals[duplicate] = Some(MemberRenewal::Failed(self.inner.duplicate_of(counted)));
        }
    }

    fn is_decided(&self) -> bool {
        (0..self.claims.len()).all(|claim| {
            let Tally { held, failed, open } = self.count(claim);
            held >= self.inner.majority || held + failed + open < self.inner.majority
        })
    }

    /// Waits a short time for members that may tell the token of a lock that another process
    /// acquired. A vote that came too late for the grant may have another token.
    async fn await_tokens(&mut self) {
        let until = Moment::now() + DECISIVE_GRACE;
        while (0..self.claims.len()).any(|claim| self.may_learn_token(claim)) {
            let heard = tokio::select! {
                biased;
                heard = self.next_answer() => heard,
                () = sleep_until(until) => false,
            };
            if !heard {
                return;
            }
        }
    }

    fn may_learn_token(&self, claim: usize) -> bool {
        if !self.inner.has_tokens() || !self.quorum_claims[claim].is_unknown(self.claims[claim]) {
            return false;
        }
        let Tally { held, open, .. } = self.count(claim);
        held >= self.inner.majority && open > 0 && self.token(claim).is_none()
    }

    /// Returns held if a majority has held the lock all the time, and not held if there can be no
    /// such majority.
    fn answer(&mut self, claim: usize) -> Result<Renewal, Fault> {
        let Tally { held, failed, open } = self.count(claim);
        if held >= self.inner.majority {
            return Ok(self.held(claim));
        }
        if held + failed + open < self.inner.majority {
            return Ok(Renewal::NotHeld);
        }
        let renewals = std::mem::take(&mut self.renewals[claim]).into_iter().enumerate();
        let faults = renewals.filter_map(|(member, renewal)| match renewal {
            Some(MemberRenewal::Failed(fault)) => Some((member, fault)),
            _ => None,
        });
        let faults: Vec<_> = faults.collect();
        let is_clean = held == 0 && faults.iter().all(|(_, f)| f.effect() == Effect::NotApplied);
        Err(no_majority(self.inner, faults, is_clean))
    }

    fn held(&self, claim: usize) -> Renewal {
        let grant = combined_grant(self.votes(claim), self.inner.majority);
        let grant = grant.with_ticket(Ticket::new(Arc::clone(&self.quorum_claims[claim])));
        Renewal::Held(match self.token(claim) {
            Some(token) => grant.with_token(token),
            None => grant,
        })
    }

    /// Repairs the minorities of held claims, including answers that are still outstanding.
    fn repair_minority(self, answers: &[Result<Renewal, Fault>]) {
        let held =
            (0..answers.len()).filter(|&claim| matches!(answers[claim], Ok(Renewal::Held(_))));
        let repairs: Vec<_> = held
            .map(|nth| {
                let (quorum_claim, claim) =
                    (Arc::clone(&self.quorum_claims[nth]), self.claims[nth].clone());
                let inner = Arc::clone(self.inner);
                let token = self.token(nth).or_else(|| self.highest_token(nth));
                let began = self.began;
                (nth, MinorityRepair { inner, began, quorum_claim, claim, token })
            })
            .collect();
        for (nth, repair) in &repairs {
            for (member, renewal) in self.renewals[*nth].iter().enumerate() {
                repair.repair(member, renewal.as_ref());
            }
        }
        let is_open =
            |(nth, _): &(usize, MinorityRepair)| self.renewals[*nth].iter().any(Option::is_none);
        if !repairs.iter().any(is_open) {
            return;
        }
        let mut calls = self.calls;
        tokio::spawn(async move {
            while let Some((member, renewals)) = calls.next().await {
                let Ok(renewals) = renewals else { continue };
                for (nth, repair) in &repairs {
                    repair.repair(member, renewals.get(*nth));
                }
            }
        });
    }

    /// Returns the token of the grant, if this process acquired the lock. For a claim that another
    /// process acquired, returns the token on which a majority agrees. Once it is adopted, its
    /// holder knows the token, and votes that are won back may agree on another one.
    fn token(&self, claim: usize) -> Option<FencingToken> {
        if !self.inner.has_tokens() {
            return None;
        }
        let quorum_claim = &self.quorum_claims[claim];
        if !quorum_claim.is_unknown(self.claims[claim]) {
            return quorum_claim.status().token;
        }
        let agree = |token| self.votes(claim).filter(|vote| vote.token == token).count();
        let mut tokens = self.votes(claim).map(|vote| vote.token);
        tokens.find(|&token| agree(token) >= self.inner.majority).flatten()
    }

    /// Returns the highest token of the votes. The grant's is no higher: one of these members has
    /// stored it.
    fn highest_token(&self, claim: usize) -> Option<FencingToken> {
        self.votes(claim).filter_map(|vote| vote.token).max()
    }

    fn votes(&self, claim: usize) -> impl Iterator<Item = &Vote> {
        self.renewals[claim].iter().flatten().filter_map(MemberRenewal::confirmed_vote)
    }

    fn count(&self, claim: usize) -> Tally {
        let mut count = Tally::default();
        for renewal in &self.renewals[claim] {
            match renewal {
                Some(MemberRenewal::Held(vote)) if vote.confirmation == Confirmation::Confirmed => {
                    count.held += 1;
                }
                Some(
                    MemberRenewal::Held(_) | MemberRenewal::NotHeld(_) | MemberRenewal::Nothing,
                ) => {}
                Some(MemberRenewal::Failed(_)) => count.failed += 1,
                None => count.open += 1,
            }
        }
        count
    }
}

/// The number of answers of each kind.
#[derive(Default)]
struct Tally {
    held: usize,
    failed: usize,
    open: usize,
}

impl MemberRenewal {
    fn confirmed_vote(&self) -> Option<&Vote> {
        match self {
            Self::Held(vote) if vote.confirmation == Confirmation::Confirmed => Some(vote),
            _ => None,
        }
    }

    fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Held(vote) => Some(&vote.origin),
            Self::NotHeld(origin) => Some(origin),
            _ => None,
        }
    }
}

/// The repair of members that took no part in a renewal.
struct MinorityRepair {
    inner: Arc<Inner>,
    began: Moment,
    quorum_claim: Arc<QuorumClaim>,
    claim: Claim,
    token: Option<FencingToken>,
}

impl MinorityRepair {
    fn repair(&self, member: usize, renewal: Option<&MemberRenewal>) {
        match renewal {
            // The vote existed before the majority was asked, and exists now: both have held
            // together. A vote that arrived since may have arrived after the majority was lost.
            Some(MemberRenewal::Held(vote))
                if vote.confirmation == Confirmation::Unconfirmed
                    && vote.known_since < self.began =>
            {
                self.confirm(member, vote);
            }
            // The next renewal must know a regained vote as such. A process that only renews the
            // claim would take all votes for old ones.
            Some(MemberRenewal::NotHeld(_) | MemberRenewal::Nothing)
                if !self.quorum_claim.is_unknown(&self.claim) =>
            {
                self.inner.regain_vote(&self.quorum_claim, &self.claim, member, self.token);
            }
            _ => {}
        }
    }

    fn confirm(&self, member: usize, confirmed: &Vote) {
        // If a verb is in flight there, the next renewal confirms it.
        if let Ok(mut record) = self.quorum_claim.records[member].try_lock()
            && let Some(vote) = record.vote.as_mut()
            && vote.known_since == confirmed.known_since
        {
            vote.confirmation = Confirmation::Confirmed;
        }
    }
}

fn open(inner: &Inner, claim: &Claim) -> Arc<QuorumClaim> {
    match inner.registry.find(claim) {
        Some(known) => known,
        None => {
            let quorum_claim = inner.registry.find_or_open(claim, inner.members.len());
            quorum_claim.status().granted_elsewhere = true;
            quorum_claim
        }
    }
}
