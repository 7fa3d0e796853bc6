//! One attempt. As many members as make a majority are asked together, and more of them when one
//! refuses, fails or is late. A majority has to agree on the claim and on its fencing token. The
//! other members are asked when the lock has been held for a short time.
//!
//! The algorithm is Redlock, as the [documentation of Redis] describes it. This adds tokens on
//! which a majority agrees (see the crate's documentation) and one member that breaks ties. Some
//! votes are not counted, and no member is asked without need.
//!
//! [documentation of Redis]:
//! https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::{Attempt, Claim, Fault, FaultKind, Grant, Ticket};
use lock_core::clock::{Moment, sleep_between, sleep_until, wall};

use crate::ballot::{
    Ballot, combined_grant, counts, has_answered, is_against, is_no_vote, just_below,
};
use crate::calls::Calls;
use crate::claim::{Confirmation, QuorumClaim, Vote};
use crate::fault::no_majority;
use crate::member::Member;
use crate::quorum::Inner;
use crate::server::duplicates;

/// How far ahead of the local clock the minimum token is. Members and clients whose clocks differ
/// by less give the same token, and one round is enough.
const HEADROOM: Duration = Duration::from_secs(1);

/// How often the claim with the first member's vote asks members again that refused it.
const MAX_REPEATS: u32 = 3;

/// How often members are asked to store one token. Once is enough where only the holder of a lock
/// draws tokens for it.
const MAX_RAISES: u32 = 32;

/// How far the requested token exceeds all votes once members have drawn other tokens. It doubles
/// each time: members may share one counter among all locks, and it advances meanwhile.
const LEAP: u64 = 16;

/// The shortest time that stragglers get after a majority has answered. They get as long again as
/// the majority took.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

/// The same for members whose votes can still decide the round. A claim that is just being released
/// may have refused this one. While the vote of a straggler is late, that would look like
/// contention.
pub(crate) const DECISIVE_GRACE: Duration = Duration::from_millis(100);

/// How many times the usual duration a majority may take before the other members are asked too.
const HEDGE_FACTOR: u32 = 4;

/// After split votes, a claim backs off for up to twice a round, doubled with each split up to this
/// often.
const MAX_DOUBLINGS: u32 = 5;

/// How long a waiter keeps the vote of the first member while others refuse it. A hand-over takes
/// the time of a release at the others.
pub(crate) const LONGEST_HAND_OVER: Duration = Duration::from_secs(1);

/// A lock that was acquired more recently than this changes hands often.
const RECENT: Duration = Duration::from_millis(5);

/// An attempt in progress.
pub(crate) struct Round<'a> {
    inner: &'a Arc<Inner>,
    quorum_claim: &'a Arc<QuorumClaim>,
    claim: &'a Claim,
    min_token: Option<FencingToken>,
    /// The order in which members are asked; the first one breaks ties.
    order: Vec<usize>,
    first: usize,
    ballots: Vec<Option<Ballot>>,
    asked: Vec<bool>,
    /// When the members that were not needed are asked too.
    hedge_at: Option<Moment>,
    /// The members that were asked for that reason.
    hedged: Vec<usize>,
    /// The token that a majority of the present votes has stored, once there is one.
    token: Option<FencingToken>,
    /// The token that members with a lower one are asked to store, and how often it has changed.
    raised_to: Option<FencingToken>,
    targets: u32,
    began: Moment,
    raises: u32,
    majority_answered_at: Option<Moment>,
    calls: Calls<Ballot>,
}

/// The state of a round.
#[derive(Debug, PartialEq, Eq)]
enum RoundState {
    Won,
    /// These members have to store the token before the grant.
    Raise(Vec<usize>),
    Open,
    Lost,
}

impl<'a> Round<'a> {
    pub(crate) fn new(
        inner: &'a Arc<Inner>,
        quorum_claim: &'a Arc<QuorumClaim>,
        claim: &'a Claim,
    ) -> Self {
        let (size, began) = (inner.members.len(), Moment::now());
        let order = inner.order_for(&claim.name);
        Self {
            min_token: required_min_token(inner, quorum_claim, claim),
            first: order[0],
            order,
            ballots: (0..size).map(|_| None).collect(),
            asked: vec![false; size],
            hedge_at: hedge_at(inner),
            hedged: Vec::new(),
            token: None,
            raised_to: None,
            targets: 0,
            began,
            raises: 0,
            majority_answered_at: None,
            inner,
            quorum_claim,
            claim,
            calls: Calls::new(Ballot::Failed),
        }
    }

    /// Runs the attempt.
    pub(crate) async fn run(mut self) -> Result<Attempt, Fault> {
        let (ask_first_alone, asks_all) = {
            let mut status = self.quorum_claim.status();
            (status.released, status.backoff) = (false, None);
            (std::mem::take(&mut status.ask_first_alone), std::mem::take(&mut status.asks_all))
        };
        let waits_for_first = !asks_all && self.claim.queues() && self.first_has_queue();
        if self.queues_at_once() || ask_first_alone {
            if self.first_member_refuses().await {
                return self.lost(true).await;
            }
            self.hedge_at = hedge_at(self.inner);
        }
        let mut repeats = 0;
        loop {
            if waits_for_first && self.ballots[self.first].as_ref().is_some_and(is_against) {
                return self.lost(true).await;
            }
            self.ask_needed_members();
            match self.state() {
                RoundState::Won => return Ok(Attempt::Acquired(self.granted())),
                RoundState::Raise(members) if self.raises < MAX_RAISES => self.raise(&members),
                RoundState::Raise(members) => self.fail_to_agree(&members),
                RoundState::Open => self.next_answer().await,
                RoundState::Lost if repeats < MAX_REPEATS && self.may_ask_again() => {
                    self.pause_before_repeat(repeats).await;
                    self.ask_again();
                    repeats += 1;
                }
                RoundState::Lost => return self.lost(false).await,
            }
        }
    }

    /// Lets the claim queue with its first request if others wait, or did so a moment ago. Returns
    /// false if it has queued before.
    fn queues_at_once(&self) -> bool {
        let Self { inner, quorum_claim, claim, first, min_token, .. } = *self;
        claim.queues()
            && inner.contended.contains(&claim.name)
            && self.first_has_queue()
            && quorum_claim.records[first]
                .try_lock()
                .is_ok_and(|mut record| quorum_claim.queue_at(first, &mut record, min_token))
    }

    fn first_has_queue(&self) -> bool {
        self.inner.queue_of(&self.claim.name) == Some(self.first)
    }

    /// Asks the first member alone. After a release many waiters ask at once, and one that the
    /// first member refuses takes no votes from others.
    async fn first_member_refuses(&mut self) -> bool {
        self.ask(self.first, self.min_token);
        let usual = self.inner.usual_round().unwrap_or_default();
        let until = Moment::now() + GRACE.max(usual * 2);
        while self.ballots[self.first].is_none() && !until.has_passed() {
            self.next_answer_until(until).await;
        }
        matches!(self.ballots[self.first], Some(Ballot::Against { .. }))
    }

    /// Asks as many members as can make a majority, or can show that there is none. Asks all
    /// members while the usual duration of a round is unknown, and when it is exceeded.
    fn ask_needed_members(&mut self) {
        let is_hedging = self.hedge_at.is_none_or(Moment::has_passed);
        if is_hedging && self.hedge_at.is_some() && self.asked.contains(&false) {
            self.mark_unanswered_slow();
        }
        while let Some(&next) = self.order.iter().find(|&&member| !self.asked[member]) {
            let open = |&member: &usize| self.asked[member] && self.ballots[member].is_none();
            let open = (0..self.ballots.len()).filter(open).count();
            let majority = self.inner.majority;
            let may_win = self.count(counts) + open >= majority;
            let is_hopeless = self.count(is_no_vote) > self.ballots.len() - majority;
            let will_know = self.count(has_answered) + open >= majority;
            let are_enough = will_know && (may_win || is_hopeless);
            if are_enough && !is_hedging {
                return;
            }
            if are_enough && self.hedge_at.is_some() {
                self.hedged.push(next);
            }
            self.ask(next, self.min_token);
        }
    }

    fn ask(&mut self, member: usize, min_token: Option<FencingToken>) {
        self.asked[member] = true;
        self.ballots[member] = None;
        // A member that is asked later gets as long as the others.
        self.majority_answered_at = self.majority_answered_at.map(|_| Moment::now());
        let Some(call) = self.inner.members[member].begin() else {
            let why = "too many calls of this member are under way";
            let fault = Fault::not_applied(FaultKind::Unavailable, why);
            self.ballots[member] = Some(Ballot::Failed(fault));
            return;
        };
        let (inner, quorum_claim) = (Arc::clone(self.inner), Arc::clone(self.quorum_claim));
        let claim = self.claim.clone();
        self.calls.begin(member, async move {
            let Some(mut record) = inner.record(&quorum_claim, member, &claim).await else {
                let why = "an earlier call is not answered yet";
                return Ballot::Failed(Fault::not_applied(FaultKind::TimedOut, why));
            };
            let ballot = inner
                .attempt(member, &mut record, &claim, min_token, Confirmation::Confirmed)
                .await;
            drop((record, call));
            ballot
        });
    }

    /// Asks members whose token is too low to store at least the required one.
    fn raise(&mut self, members: &[usize]) {
        let min_token = self.raised_to.and_then(just_below);
        self.raises += 1;
        self.majority_answered_at = None;
        for &member in members {
            self.ask(member, min_token);
        }
    }

    fn fail_to_agree(&mut self, members: &[usize]) {
        for &member in members {
            let token = self.ballots[member].as_ref().and_then(Ballot::token);
            let fault = match token < self.raised_to {
                true => Fault::unknown(FaultKind::Broken, "it does not raise its fencing tokens"),
                false => Fault::unknown(FaultKind::Unavailable, "its fencing tokens run ahead"),
            };
            self.ballots[member] = Some(Ballot::Failed(fault));
        }
    }

    fn ask_again(&mut self) {
        for member in 0..self.ballots.len() {
            if matches!(self.ballots[member], Some(Ballot::Against { .. })) {
                self.ask(member, self.min_token);
            }
        }
        self.majority_answered_at = None;
    }

    /// Returns true if this claim may ask again: with split votes, the claim with the first
    /// member's vote continues, and all others withdraw.
    fn may_ask_again(&self) -> bool {
        matches!(self.ballots[self.first], Some(Ballot::For(_, None)))
            && self.count(is_against) > 0
            && self.count(has_answered) >= self.inner.majority
    }

    async fn pause_before_repeat(&mut self, repeats: u32) {
        let round =
            Moment::now().saturating_since(self.began).clamp(Duration::from_millis(1), GRACE);
        let pause = round * 2_u32.pow(repeats);
        // The calls in flight continue meanwhile.
        self.calls.continue_in_background();
        self.fail_unanswered(false);
        sleep_between(pause / 2, pause).await;
    }

    /// Returns true if only members that were slow in earlier rounds are outstanding.
    fn only_slow_unanswered(&self) -> bool {
        self.unanswered().all(|member| member.was_slow_before(self.began))
    }

    /// Returns the members that were asked and have not answered.
    fn unanswered(&self) -> impl Iterator<Item = &Member> {
        let members = self.inner.members.iter().zip(&self.asked).zip(&self.ballots);
        let unanswered = members.filter(|((_, asked), ballots)| **asked && ballots.is_none());
        unanswered.map(|((member, _), _)| &**member)
    }

    /// Returns when a majority had answered, unless all answers are needed. If no member refuses
    /// and too few votes count, a late vote makes the difference between the lock and an error.
    fn majority_grace_start(&self) -> Option<Moment> {
        let needs_the_rest =
            self.count(is_against) == 0 && self.count(counts) < self.inner.majority;
        self.majority_answered_at.filter(|_| !needs_the_rest)
    }

    async fn next_answer(&mut self) {
        match (self.majority_grace_start(), self.hedge_at) {
            (Some(at), _) => {
                let took = at.saturating_since(self.began);
                let grace = if self.only_slow_unanswered() { GRACE } else { DECISIVE_GRACE };
                self.next_answer_until(at + took.max(grace)).await;
            }
            (None, Some(until)) if self.asked.contains(&false) => {
                self.next_answer_until(until).await;
            }
            (None, _) => {
                // Each call has its time limit.
                let heard = self.calls.next().await;
                self.take_in(heard);
            }
        }
    }

    /// Waits for answers while all agree: there is nothing to do before a majority has answered,
    /// and one timer is enough.
    async fn next_answer_until(&mut self, until: Moment) {
        let mut late = pin!(sleep_until(until));
        loop {
            let heard = tokio::select! {
                biased;
                heard = self.calls.next() => heard,
                () = &mut late => None,
            };
            let agrees = heard.as_ref().is_some_and(|(_, ballot)| counts(ballot));
            self.take_in(heard);
            if !agrees || self.majority_answered_at.is_some() || self.calls.is_empty() {
                return;
            }
        }
    }

    fn take_in(&mut self, heard: Option<(usize, Ballot)>) {
        match heard {
            Some((member, ballot)) => {
                if has_answered(&ballot) {
                    self.inner.members[member].has_answered();
                }
                self.ballots[member] = Some(ballot);
                self.discard_duplicates(member);
                let answered = self.count(has_answered) >= self.inner.majority;
                if answered && self.majority_answered_at.is_none() {
                    let now = Moment::now();
                    self.majority_answered_at = Some(now);
                    // If additional members had to help, the round took as long as the hedge delay.
                    // Recording that would prolong the delay.
                    let was_hedged =
                        |&member: &usize| self.ballots[member].as_ref().is_some_and(has_answered);
                    if !self.hedged.iter().any(was_hedged) {
                        self.inner.record_round_time(now.saturating_since(self.began));
                    }
                }
            }
            // Members without an answer in time are slow.
            None if self.majority_grace_start().is_some() => self.fail_unanswered(true),
            // Members that have not answered yet are not asked again.
            None if self.calls.is_empty() => self.fail_unanswered(false),
            None => {}
        }
    }

    /// Counts a server once that has also answered by the address of another member.
    fn discard_duplicates(&mut self, member: usize) {
        let answers = self.ballots.iter().map(|ballots| Some((ballots.as_ref()?.origin()?, false)));
        for (duplicate, counted) in duplicates(member, answers) {
            self.ballots[duplicate] = Some(Ballot::Failed(self.inner.duplicate_of(counted)));
        }
    }

    fn fail_unanswered(&mut self, are_slow: bool) {
        if are_slow {
            self.mark_unanswered_slow();
        }
        for (ballots, asked) in self.ballots.iter_mut().zip(&self.asked) {
            if *asked && ballots.is_none() {
                let fault =
                    Fault::unknown(FaultKind::TimedOut, "no answer while the others answered");
                *ballots = Some(Ballot::Failed(fault));
            }
        }
    }

    fn mark_unanswered_slow(&self) {
        self.unanswered().for_each(Member::mark_slow);
    }

    fn state(&mut self) -> RoundState {
        let majority = self.inner.majority;
        if self.count(counts) < majority {
            let open = self.ballots.iter().filter(|ballots| ballots.is_none()).count();
            // Until a majority has answered, contention and fault cannot be distinguished.
            let is_known = open == 0 || self.count(has_answered) >= majority;
            let can_win = self.count(counts) + open >= majority;
            return if is_known && !can_win { RoundState::Lost } else { RoundState::Open };
        }
        if !self.inner.has_tokens() {
            return RoundState::Won;
        }
        let mut tokens: Vec<_> = self.votes().map(|vote| vote.token).collect();
        tokens.sort_unstable();
        // If a majority gives the same token, it is this one.
        self.token = tokens[majority - 1];
        if self.token.is_some() && self.votes_for_the_token().count() >= majority {
            return RoundState::Won;
        }
        let highest = tokens.last().copied().flatten().unwrap_or(FencingToken::from_u64(0));
        if self.raised_to < Some(highest) {
            self.raised_to = far_above(highest, self.targets);
            self.targets += 1;
        }
        // A request in flight is not replaced by one with another token, so that all members give
        // the same one.
        let to = self.raised_to;
        let is_low = |ballot: &Ballot| counts(ballot) && ballot.token() < to;
        let low = (0..self.ballots.len()).filter(|&m| self.ballots[m].as_ref().is_some_and(is_low));
        RoundState::Raise(low.collect())
    }

    /// Returns the votes that count.
    fn votes(&self) -> impl Iterator<Item = &Vote> {
        self.ballots.iter().flatten().filter(|ballot| counts(ballot)).filter_map(Ballot::vote)
    }

    /// Returns the votes behind the grant: its token and its lease come from the same ones.
    fn votes_for_the_token(&self) -> impl Iterator<Item = &Vote> {
        self.votes().filter(|vote| self.token.is_none() || vote.token == self.token)
    }

    fn count(&self, is: impl Fn(&Ballot) -> bool) -> usize {
        self.ballots.iter().flatten().filter(|ballot| is(ballot)).count()
    }

    fn granted(&self) -> Grant {
        {
            let mut status = self.quorum_claim.status();
            (status.token, status.granted, status.kept_since) = (self.token, true, None);
            (status.granted_elsewhere, status.split_votes, status.refusals) = (false, 0, 0);
            status.refused_by.clear();
        }
        self.inner.registry.stop_retaining(self.quorum_claim);
        self.inner.leave_queue(self.quorum_claim, self.claim);
        let not_asked: Vec<_> =
            self.order.iter().copied().filter(|&member| !self.asked[member]).collect();
        if !not_asked.is_empty() {
            self.inner.defer_attempts(self.quorum_claim, self.claim, self.token, not_asked);
        }
        let grant = combined_grant(self.votes_for_the_token(), self.inner.majority);
        let grant = grant.with_ticket(Ticket::new(Arc::clone(self.quorum_claim)));
        match self.token {
            Some(token) => grant.with_token(token),
            None => grant,
        }
    }

    /// Withdraws the votes, and returns why they were not enough.
    async fn lost(mut self, by_first_member: bool) -> Result<Attempt, Fault> {
        // A release comes after the attempt that it undoes.
        self.calls.continue_in_background();
        let answered_at = self.majority_answered_at.unwrap_or_else(Moment::now);
        let answered = self.count(has_answered) >= self.inner.majority;
        let is_contended = by_first_member || (answered && self.count(is_against) > 0);
        let split = !by_first_member && is_contended && self.missing_expiries() == 0;
        let expires_in = if by_first_member { self.first_expiry() } else { self.expires_in() };
        let is_clean = self.withdraw(is_contended).await;
        let mut status = self.quorum_claim.status();
        let before = std::mem::take(&mut status.refused_by);
        let refuses = |&member: &usize| {
            self.is_against(member) || (by_first_member && before.contains(&member))
        };
        status.refused_by = self.order.iter().copied().filter(refuses).collect();
        if is_contended {
            if self.claim.queues() {
                self.inner.contended.insert(&self.claim.name);
            }
            status.refusals += 1;
            status.took = answered_at.saturating_since(self.began);
            let age = expires_in.and_then(|expires_in| self.claim.ttl.checked_sub(expires_in));
            status.changes_often =
                !split && age.is_some_and(|age| age < RECENT.max(status.took * 4));
            if !split {
                status.split_votes = 0;
                return Ok(Attempt::Contended { expires_in });
            }
            let round = Moment::now().saturating_since(self.began).max(Duration::from_millis(1));
            let at_most = round * 2_u32.pow(1 + status.split_votes.min(MAX_DOUBLINGS));
            status.split_votes += 1;
            status.backoff = Some(at_most);
            return Ok(Attempt::Contended { expires_in: Some(at_most) });
        }
        drop(status);
        let retry_after = self.retry_after();
        let faults =
            self.ballots.drain(..).enumerate().filter_map(|(member, ballots)| match ballots {
                Some(Ballot::Failed(fault) | Ballot::For(_, Some(fault))) => Some((member, fault)),
                _ => None,
            });
        Err(no_majority(self.inner, faults.collect(), is_clean).with_retry_after(retry_after))
    }

    /// Returns how long too few members are counted, if the others are only too fresh for it.
    fn retry_after(&self) -> Option<Duration> {
        let missing = self.inner.majority.saturating_sub(self.count(counts));
        let mut fresh: Vec<_> = self
            .ballots
            .iter()
            .flatten()
            .filter_map(|ballot| match ballot {
                Ballot::For(_, Some(fault)) => fault.retry_after(),
                _ => None,
            })
            .collect();
        fresh.sort_unstable();
        fresh.get(missing.checked_sub(1)?).copied()
    }

    /// Returns how many of the refusing members have to grant the claim before there is a majority.
    fn missing_expiries(&self) -> usize {
        (self.count(is_against) + self.inner.majority).saturating_sub(self.ballots.len())
    }

    /// Returns when that many of the leases in the way have expired.
    fn expires_in(&self) -> Option<Duration> {
        let mut expiries: Vec<_> = self.expiries().collect();
        expiries.sort_unstable_by_key(|expires_in| expires_in.unwrap_or(Duration::MAX));
        let last = self.missing_expiries().checked_sub(1)?;
        expiries.get(last).copied().flatten()
    }

    fn first_expiry(&self) -> Option<Duration> {
        self.expiries().flatten().min()
    }

    fn expiries(&self) -> impl Iterator<Item = Option<Duration>> {
        self.ballots.iter().flatten().filter_map(|ballot| match ballot {
            Ballot::Against { expires_in, .. } => Some(*expires_in),
            _ => None,
        })
    }

    /// Withdraws the votes. Returns true if no member can have anything left.
    async fn withdraw(&mut self, is_contended: bool) -> bool {
        let waits = is_contended && self.claim.queues();
        let keeps = waits && self.keeps_first_vote();
        // By then core has asked again, or a late attempt has arrived and expired.
        let end = Moment::now() + (self.claim.ttl + self.inner.settings.member_timeout) * 2;
        self.inner.registry.retain(self.quorum_claim, end);
        // This includes members with an attempt in flight that was abandoned.
        let kept = keeps.then_some(self.first);
        let may_be_there = |&member: &usize| !self.is_against(member) && Some(member) != kept;
        let left = (0..self.ballots.len()).filter(may_be_there);
        let is_last = is_contended && !waits;
        let is_clean =
            self.inner.withdraw_votes(self.quorum_claim, self.claim, left.collect(), is_last).await;
        // A refused claim may be queued.
        let is_clean = is_clean && (waits || self.quorum_claim.status().queued_at.is_none());
        // Otherwise core releases it.
        if !waits && (is_clean || is_contended) {
            self.inner.forget(self.quorum_claim);
        }
        is_clean
    }

    /// Returns true if the claim keeps the vote of the first member, whose queue has sent it: it is
    /// the next one. Otherwise each waiter is granted that vote in turn, and refused by the others.
    ///
    /// If the others refuse it for long, the lock is held without that vote, and its holder has to
    /// regain it. Nor does the vote of a member do any good that is not counted.
    fn keeps_first_vote(&self) -> bool {
        let mut status = self.quorum_claim.status();
        let since = status.kept_since.take().unwrap_or_else(Moment::now);
        if !self.first_has_queue() {
            return false;
        }
        match &self.ballots[self.first] {
            Some(Ballot::For(_, None)) if !(since + LONGEST_HAND_OVER).has_passed() => {
                (status.kept_since, status.queued_at) = (Some(since), Some(self.first));
                true
            }
            Some(Ballot::For(..)) => {
                self.inner.blocked.insert(&self.claim.name);
                false
            }
            _ => false,
        }
    }

    fn is_against(&self, member: usize) -> bool {
        self.ballots[member].as_ref().is_some_and(is_against)
    }
}

/// Returns when more members are asked, if those that are asked now do not answer by then.
fn hedge_at(inner: &Inner) -> Option<Moment> {
    inner.usual_round().map(|usual| Moment::now() + (usual * HEDGE_FACTOR).max(GRACE))
}

/// Returns the token that the members' tokens have to exceed: the same for all, so that all give
/// the same token.
pub(crate) fn required_min_token(
    inner: &Inner,
    quorum_claim: &QuorumClaim,
    claim: &Claim,
) -> Option<FencingToken> {
    if !inner.has_tokens() {
        return None;
    }
    let granted = quorum_claim.status().token.filter(|&token| claim.min_token < Some(token));
    if let Some(token) = granted {
        // The same acquisition has the same token.
        return just_below(token);
    }
    let micros = |time: Duration| u64::try_from(time.as_micros()).ok();
    let token = |time| micros(time).and_then(FencingToken::from_backend);
    // The other members have this token too, if it is ahead of their clocks.
    let handed_over = quorum_claim.status().handed_over.and_then(just_below);
    let is_ahead = handed_over > claim.min_token.max(token(wall()));
    if is_ahead { handed_over } else { claim.min_token.max(token(wall() + HEADROOM)) }
}

/// Returns the token that members are asked to store after `targets` others that were not enough.
fn far_above(token: FencingToken, targets: u32) -> Option<FencingToken> {
    // The second target may be due to a late vote.
    let leap = if targets < 2 { 0 } else { LEAP << targets.min(MAX_RAISES) };
    FencingToken::from_backend(token.backend_number().saturating_add(leap)).or(Some(token))
}
