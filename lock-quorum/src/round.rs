//! One attempt: as many members as make a majority are asked together, and more of them when one refuses, fails or
//! is late. A majority has to agree, on the claim and on its fencing token. The rest is asked when the lock has been
//! held for a moment.
//!
//! The algorithm is Redlock, as the [documentation of Redis] describes it. What is added: tokens on which a
//! majority agrees (see the crate's documentation), one member that breaks ties, members that are not
//! counted although they voted, and that nobody is asked without need.
//!
//! [documentation of Redis]: https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::{Attempt, Claim, Fault, FaultKind, Grant, Lease, Ticket};
use lock_core::clock::{Moment, sleep_between, sleep_until, wall};
use tokio::sync::MutexGuard;
use tokio::time::timeout;

use crate::calls::Calls;
use crate::candidacy::{Candidacy, Seat, Standing, Vote};
use crate::member::Member;
use crate::origin::{Origin, counted_twice};
use crate::quorum::{Inner, bounded, no_majority};

/// How far ahead of our own clock numbers are asked for: members and clients whose clocks differ by less
/// give the same number, and one round is enough.
const HEADROOM: Duration = Duration::from_secs(1);

/// How often the claim that has the first member's vote asks those again that refused it.
const INSISTS: u32 = 3;

/// How often members are asked to store one number. Once is enough where only the holder of a lock draws
/// numbers for it.
const MAX_RAISES: u32 = 32;

/// How far above all votes the number is that they are asked to store once they have drawn others:
/// doubled each time. Members may have one counter for all locks, and it goes on meanwhile.
const LEAP: u64 = 16;

/// When a majority has answered, the rest has as long again, and at least this long.
pub(crate) const GRACE: Duration = Duration::from_millis(10);

/// The same for those whose votes can still decide it: as long as one of them is late, who was refused by a claim that is
/// just being let go would take that for contention.
pub(crate) const LAST_WORD: Duration = Duration::from_millis(100);

/// How much longer than usual a majority may take before those are asked who were not.
const PATIENCE: u32 = 4;

/// After split votes, a claim keeps away for up to twice a round, doubled with each split up to this often.
const MAX_DOUBLINGS: u32 = 5;

/// A lock that has been taken so lately changes hands often.
const LATELY: Duration = Duration::from_millis(5);

/// What one member says.
#[derive(Debug)]
pub(crate) enum Ballot {
    /// The vote; and why it does not count, if it does not.
    For(Vote, Option<Fault>),
    Against {
        expires_in: Option<Duration>,
        origin: Origin,
    },
    Failed(Fault),
}

/// An attempt that is under way.
pub(crate) struct Round<'a> {
    inner: &'a Arc<Inner>,
    candidacy: &'a Arc<Candidacy>,
    claim: &'a Claim,
    min_token: Option<FencingToken>,
    /// In which order members are asked; the first one breaks ties.
    order: Vec<usize>,
    first: usize,
    cast: Vec<Option<Ballot>>,
    asked: Vec<bool>,
    /// Then those are asked who were not.
    impatient_at: Option<Moment>,
    /// Those who were.
    helpers: Vec<usize>,
    /// The number that a majority of the present votes has stored, once there is one.
    token: Option<FencingToken>,
    /// What members that gave less are asked to store, and how often that has changed.
    raised_to: Option<FencingToken>,
    targets: u32,
    began: Moment,
    raises: u32,
    majority_answered_at: Option<Moment>,
    calls: Calls<Ballot>,
}

/// Where a round stands.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Won,
    /// These have to store the token before it can be given.
    Raise(Vec<usize>),
    Open,
    Lost,
}

impl<'a> Round<'a> {
    pub(crate) fn new(
        inner: &'a Arc<Inner>,
        candidacy: &'a Arc<Candidacy>,
        claim: &'a Claim,
    ) -> Self {
        let (size, began) = (inner.members.len(), Moment::now());
        let order = inner.order_for(&claim.name);
        Self {
            min_token: floor(inner, candidacy, claim),
            first: order[0],
            order,
            cast: (0..size).map(|_| None).collect(),
            asked: vec![false; size],
            impatient_at: inner.usual_round().map(|usual| began + (usual * PATIENCE).max(GRACE)),
            helpers: Vec::new(),
            token: None,
            raised_to: None,
            targets: 0,
            began,
            raises: 0,
            majority_answered_at: None,
            inner,
            candidacy,
            claim,
            calls: Calls::new(Ballot::Failed),
        }
    }

    /// The verb, but for what has to be cleared away if it is lost.
    pub(crate) async fn run(mut self) -> Result<Attempt, Fault> {
        let called = {
            let mut notes = self.candidacy.notes();
            (notes.parted, notes.keep_away) = (false, None);
            std::mem::take(&mut notes.called)
        };
        if called && self.first_refuses().await {
            return self.lost(true).await;
        }
        let mut insisted = 0;
        loop {
            self.ask_who_is_needed();
            match self.state() {
                State::Won => return Ok(Attempt::Acquired(self.won())),
                State::Raise(members) if self.raises < MAX_RAISES => self.raise(&members),
                State::Raise(members) => self.fail_to_agree(&members),
                State::Open => self.hear().await,
                State::Lost if insisted < INSISTS && self.may_insist() => {
                    self.pause_before_insisting(insisted).await;
                    self.insist();
                    insisted += 1;
                }
                State::Lost => return self.lost(false).await,
            }
        }
    }

    /// After a release many look at once. They ask the first member alone, and whoever is refused there takes
    /// no votes of others away.
    async fn first_refuses(&mut self) -> bool {
        self.ask(self.first, self.min_token);
        let until = Moment::now() + GRACE;
        while self.cast[self.first].is_none() && !until.has_passed() {
            self.hear_until(until).await;
        }
        matches!(self.cast[self.first], Some(Ballot::Against { .. }))
    }

    /// As many as can make a majority, or can show that there is none. All of them while nobody knows how long a round
    /// takes, and when it takes too long.
    fn ask_who_is_needed(&mut self) {
        let is_impatient = self.impatient_at.is_none_or(Moment::has_passed);
        if is_impatient && self.impatient_at.is_some() && self.asked.contains(&false) {
            self.note_who_is_slow();
        }
        while let Some(&next) = self.order.iter().find(|&&member| !self.asked[member]) {
            let open = |&member: &usize| self.asked[member] && self.cast[member].is_none();
            let open = (0..self.cast.len()).filter(open).count();
            let majority = self.inner.majority;
            let may_win = self.count(counts) + open >= majority;
            let is_hopeless = self.count(is_lost) > self.cast.len() - majority;
            let will_know = self.count(has_answered) + open >= majority;
            let are_enough = will_know && (may_win || is_hopeless);
            if are_enough && !is_impatient {
                return;
            }
            if are_enough && self.impatient_at.is_some() {
                self.helpers.push(next);
            }
            self.ask(next, self.min_token);
        }
    }

    fn ask(&mut self, member: usize, min_token: Option<FencingToken>) {
        self.asked[member] = true;
        self.cast[member] = None;
        let Some(call) = self.inner.members[member].begin() else {
            let why = "too many calls of this member are under way";
            let fault = Fault::not_applied(FaultKind::Unavailable, why);
            self.cast[member] = Some(Ballot::Failed(fault));
            return;
        };
        let (inner, candidacy) = (Arc::clone(self.inner), Arc::clone(self.candidacy));
        let claim = self.claim.clone();
        self.calls.begin(member, async move {
            let Some(mut seat) = inner.seat(&candidacy, member, &claim).await else {
                let why = "an earlier call is not answered yet";
                return Ballot::Failed(Fault::not_applied(FaultKind::TimedOut, why));
            };
            let ballot = inner.attempt(member, &mut seat, &claim, min_token, Standing::Full).await;
            drop((seat, call));
            ballot
        });
    }

    /// The members that are too low store at least the token.
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
            let token = self.cast[member].as_ref().and_then(Ballot::token);
            let fault = match token < self.raised_to {
                true => Fault::unknown(FaultKind::Broken, "it does not raise its fencing tokens"),
                false => Fault::unknown(FaultKind::Unavailable, "its fencing tokens run ahead"),
            };
            self.cast[member] = Some(Ballot::Failed(fault));
        }
    }

    fn insist(&mut self) {
        for member in 0..self.cast.len() {
            if matches!(self.cast[member], Some(Ballot::Against { .. })) {
                self.ask(member, self.min_token);
            }
        }
        self.majority_answered_at = None;
    }

    /// Who has the first member's vote goes on where votes are split; all others step back.
    fn may_insist(&self) -> bool {
        matches!(self.cast[self.first], Some(Ballot::For(_, None)))
            && self.count(is_against) > 0
            && self.count(has_answered) >= self.inner.majority
    }

    async fn pause_before_insisting(&mut self, insisted: u32) {
        let round =
            Moment::now().saturating_since(self.began).clamp(Duration::from_millis(1), GRACE);
        let pause = round * 2_u32.pow(insisted);
        // What is still under way goes on meanwhile.
        self.calls.carry_on();
        self.give_up_on_the_rest(false);
        sleep_between(pause / 2, pause).await;
    }

    /// True if nobody is to be heard but who was behind in earlier rounds.
    fn hears_only_slow_ones(&self) -> bool {
        self.silent().all(|member| member.was_slow_before(self.began))
    }

    /// Those that were asked and have not answered.
    fn silent(&self) -> impl Iterator<Item = &Member> {
        let members = self.inner.members.iter().zip(&self.asked).zip(&self.cast);
        let silent = members.filter(|((_, asked), cast)| **asked && cast.is_none());
        silent.map(|((member, _), _)| &**member)
    }

    /// When a majority had answered, unless the rest has to be heard in full: where nobody refuses, and too few of those
    /// who answered are counted, a vote that is late makes the difference between the lock and an error.
    fn has_heard_enough(&self) -> Option<Moment> {
        let needs_the_rest =
            self.count(is_against) == 0 && self.count(counts) < self.inner.majority;
        self.majority_answered_at.filter(|_| !needs_the_rest)
    }

    async fn hear(&mut self) {
        match (self.has_heard_enough(), self.impatient_at) {
            (Some(at), _) => {
                let took = at.saturating_since(self.began);
                let grace = if self.hears_only_slow_ones() { GRACE } else { LAST_WORD };
                self.hear_until(at + took.max(grace)).await;
            }
            (None, Some(until)) if self.asked.contains(&false) => self.hear_until(until).await,
            (None, _) => {
                // Each call has its bound.
                let heard = self.calls.next().await;
                self.take_in(heard);
            }
        }
    }

    /// Goes on while all agree: nothing is to be done before a majority has answered, and one timer is enough.
    async fn hear_until(&mut self, until: Moment) {
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
                self.cast[member] = Some(ballot);
                self.count_once(member);
                let answered = self.count(has_answered) >= self.inner.majority;
                if answered && self.majority_answered_at.is_none() {
                    let now = Moment::now();
                    self.majority_answered_at = Some(now);
                    // Where others had to help out, it took as long as we had patience. That must not make us more patient.
                    let helped =
                        |&helper: &usize| self.cast[helper].as_ref().is_some_and(has_answered);
                    if !self.helpers.iter().any(helped) {
                        self.inner.round_took(now.saturating_since(self.began));
                    }
                }
            }
            // Whoever is not heard in time is behind.
            None if self.has_heard_enough().is_some() => self.give_up_on_the_rest(true),
            // Whoever is still to be heard is not asked by us any more.
            None if self.calls.is_empty() => self.give_up_on_the_rest(false),
            None => {}
        }
    }

    /// Counts a server once that has answered by the address of another member, too.
    fn count_once(&mut self, member: usize) {
        let answers = self.cast.iter().map(|cast| Some((cast.as_ref()?.origin()?, false)));
        for (twin, counted) in counted_twice(member, answers) {
            self.cast[twin] = Some(Ballot::Failed(self.inner.is_counted_as(counted)));
        }
    }

    fn give_up_on_the_rest(&mut self, are_slow: bool) {
        if are_slow {
            self.note_who_is_slow();
        }
        for (cast, asked) in self.cast.iter_mut().zip(&self.asked) {
            if *asked && cast.is_none() {
                let fault =
                    Fault::unknown(FaultKind::TimedOut, "no answer while the others answered");
                *cast = Some(Ballot::Failed(fault));
            }
        }
    }

    fn note_who_is_slow(&self) {
        self.silent().for_each(Member::was_slow);
    }

    fn state(&mut self) -> State {
        let majority = self.inner.majority;
        if self.count(counts) < majority {
            let open = self.cast.iter().filter(|cast| cast.is_none()).count();
            // Until a majority has answered, nobody knows whether it is contention or a fault.
            let is_known = open == 0 || self.count(has_answered) >= majority;
            let can_win = self.count(counts) + open >= majority;
            return if is_known && !can_win { State::Lost } else { State::Open };
        }
        if !self.inner.has_tokens() {
            return State::Won;
        }
        let mut tokens: Vec<_> = self.votes().map(|vote| vote.token).collect();
        tokens.sort_unstable();
        // If a majority gives the same number, it is this one.
        self.token = tokens[majority - 1];
        if self.token.is_some() && self.votes_for_the_token().count() >= majority {
            return State::Won;
        }
        let highest = tokens.last().copied().flatten().unwrap_or(FencingToken::from_u64(0));
        if self.raised_to < Some(highest) {
            self.raised_to = far_above(highest, self.targets);
            self.targets += 1;
        }
        // What is on its way to members is not asked for anew, so that all give the same number.
        let to = self.raised_to;
        let is_low = |ballot: &Ballot| counts(ballot) && ballot.token() < to;
        let low = (0..self.cast.len()).filter(|&m| self.cast[m].as_ref().is_some_and(is_low));
        State::Raise(low.collect())
    }

    /// Returns the votes that count.
    fn votes(&self) -> impl Iterator<Item = &Vote> {
        self.cast.iter().flatten().filter(|ballot| counts(ballot)).filter_map(Ballot::vote)
    }

    /// Returns the votes that a grant rests on: its token and its lease come from the same ones.
    fn votes_for_the_token(&self) -> impl Iterator<Item = &Vote> {
        self.votes().filter(|vote| self.token.is_none() || vote.token == self.token)
    }

    fn count(&self, is: impl Fn(&Ballot) -> bool) -> usize {
        self.cast.iter().flatten().filter(|ballot| is(ballot)).count()
    }

    fn won(&self) -> Grant {
        {
            let mut notes = self.candidacy.notes();
            (notes.token, notes.won) = (self.token, true);
            (notes.stranger, notes.splits, notes.refusals) = (false, 0, 0);
            notes.refused_by.clear();
        }
        self.inner.book.let_go(self.candidacy);
        let not_asked: Vec<_> =
            self.order.iter().copied().filter(|&member| !self.asked[member]).collect();
        if !not_asked.is_empty() {
            self.inner.ask_later(self.candidacy, self.claim, self.token, not_asked);
        }
        let grant = together(self.votes_for_the_token(), self.inner.majority);
        let grant = grant.with_ticket(Ticket::new(Arc::clone(self.candidacy)));
        match self.token {
            Some(token) => grant.with_token(token),
            None => grant,
        }
    }

    /// Gives back what was won, and says why it was not enough.
    async fn lost(mut self, at_the_first: bool) -> Result<Attempt, Fault> {
        // A release comes after the attempt that it undoes.
        self.calls.carry_on();
        let answered_at = self.majority_answered_at.unwrap_or_else(Moment::now);
        let answered = self.count(has_answered) >= self.inner.majority;
        let is_contended = at_the_first || (answered && self.count(is_against) > 0);
        let split = !at_the_first && is_contended && self.missing_lapses() == 0;
        let expires_in = if at_the_first { self.shortest_lapse() } else { self.expires_in() };
        let is_clean = self.withdraw(is_contended).await;
        let mut notes = self.candidacy.notes();
        let before = std::mem::take(&mut notes.refused_by);
        let refuses =
            |&member: &usize| self.is_against(member) || (at_the_first && before.contains(&member));
        notes.refused_by = self.order.iter().copied().filter(refuses).collect();
        if is_contended {
            notes.refusals += 1;
            notes.took = answered_at.saturating_since(self.began);
            let age = expires_in.and_then(|expires_in| self.claim.ttl.checked_sub(expires_in));
            notes.changes_hands = !split && age.is_some_and(|age| age < LATELY.max(notes.took * 4));
            if !split {
                notes.splits = 0;
                return Ok(Attempt::Contended { expires_in });
            }
            let round = Moment::now().saturating_since(self.began).max(Duration::from_millis(1));
            let at_most = round * 2_u32.pow(1 + notes.splits.min(MAX_DOUBLINGS));
            notes.splits += 1;
            notes.keep_away = Some(at_most);
            return Ok(Attempt::Contended { expires_in: Some(at_most) });
        }
        drop(notes);
        let faults = self.cast.drain(..).enumerate().filter_map(|(member, cast)| match cast {
            Some(Ballot::Failed(fault) | Ballot::For(_, Some(fault))) => Some((member, fault)),
            _ => None,
        });
        Err(no_majority(self.inner, faults.collect(), is_clean))
    }

    /// How many of those that refuse have to let us in before there is a majority.
    fn missing_lapses(&self) -> usize {
        (self.count(is_against) + self.inner.majority).saturating_sub(self.cast.len())
    }

    /// When so many of the leases that are in the way are over.
    fn expires_in(&self) -> Option<Duration> {
        let mut lapses: Vec<_> = self.lapses().collect();
        lapses.sort_unstable_by_key(|expires_in| expires_in.unwrap_or(Duration::MAX));
        let last = self.missing_lapses().checked_sub(1)?;
        lapses.get(last).copied().flatten()
    }

    fn shortest_lapse(&self) -> Option<Duration> {
        self.lapses().flatten().min()
    }

    fn lapses(&self) -> impl Iterator<Item = Option<Duration>> {
        self.cast.iter().flatten().filter_map(|ballot| match ballot {
            Ballot::Against { expires_in, .. } => Some(*expires_in),
            _ => None,
        })
    }

    /// True if nothing of it can be left anywhere.
    async fn withdraw(&mut self, is_contended: bool) -> bool {
        let waits = is_contended && self.claim.queues();
        // By then core has asked again, or what is left has landed and lapsed.
        let end = Moment::now() + (self.claim.ttl + self.inner.settings.member_timeout) * 2;
        self.inner.book.keep(self.candidacy, end);
        // Also where it was asked before and is still asked, by an attempt that was given up.
        let may_be_there = |&member: &usize| !self.is_against(member);
        let left = (0..self.cast.len()).filter(may_be_there);
        let is_last = is_contended && !waits;
        let is_clean =
            self.inner.give_back(self.candidacy, self.claim, left.collect(), is_last).await;
        // Otherwise core lets it go.
        if !waits && (is_clean || is_contended) {
            self.inner.book.let_go(self.candidacy);
        }
        is_clean
    }

    fn is_against(&self, member: usize) -> bool {
        self.cast[member].as_ref().is_some_and(is_against)
    }
}

impl Ballot {
    fn token(&self) -> Option<FencingToken> {
        self.vote().filter(|_| counts(self))?.token
    }

    fn vote(&self) -> Option<&Vote> {
        match self {
            Self::For(vote, _) => Some(vote),
            _ => None,
        }
    }

    fn origin(&self) -> Option<&Origin> {
        match self {
            Self::For(vote, _) => Some(&vote.origin),
            Self::Against { origin, .. } => Some(origin),
            Self::Failed(_) => None,
        }
    }
}

fn counts(ballot: &Ballot) -> bool {
    matches!(ballot, Ballot::For(_, None))
}

fn is_against(ballot: &Ballot) -> bool {
    matches!(ballot, Ballot::Against { .. })
}

fn is_lost(ballot: &Ballot) -> bool {
    !counts(ballot)
}

fn has_answered(ballot: &Ballot) -> bool {
    !matches!(ballot, Ballot::Failed(_))
}

/// What the votes are worth together: they last until one too many of them has ended for a majority, and
/// count from before the first of them was asked for.
pub(crate) fn together<'v>(votes: impl Iterator<Item = &'v Vote>, majority: usize) -> Grant {
    let mut votes: Vec<_> = votes.map(|vote| (vote.ends, vote.since)).collect();
    // Those without an end last longest.
    votes.sort_unstable_by_key(|&(ends, _)| (ends.is_some(), std::cmp::Reverse(ends)));
    votes.truncate(majority);
    let since = votes.iter().map(|&(_, since)| since).min().unwrap_or_else(Moment::now);
    let lease = match votes.last().and_then(|&(ends, _)| ends) {
        Some(ends) => Lease::For(ends.saturating_since(since)),
        None => Lease::WhileProcessLives,
    };
    Grant::new(lease, since)
}

/// What the numbers have to exceed: the same for all, so that all give the same one.
fn floor(inner: &Inner, candidacy: &Candidacy, claim: &Claim) -> Option<FencingToken> {
    if !inner.has_tokens() {
        return None;
    }
    let granted = candidacy.notes().token.filter(|&token| claim.min_token < Some(token));
    if let Some(token) = granted {
        // The same acquisition has the same token.
        return just_below(token);
    }
    let clock = u64::try_from((wall() + HEADROOM).as_micros()).ok();
    claim.min_token.max(clock.and_then(FencingToken::from_backend))
}

/// Returns the number that members are asked to store, after so many others that were not enough.
fn far_above(token: FencingToken, targets: u32) -> Option<FencingToken> {
    // The second one may be due to a vote that came late.
    let leap = if targets < 2 { 0 } else { LEAP << targets.min(MAX_RAISES) };
    FencingToken::from_backend(token.backend_number().saturating_add(leap)).or(Some(token))
}

pub(crate) fn just_below(token: FencingToken) -> Option<FencingToken> {
    FencingToken::from_backend(token.backend_number().checked_sub(1)?)
}

impl Inner {
    /// The seat of a claim at a member, once what is under way there is over; `None` if that takes too long.
    async fn seat<'c>(
        &self,
        candidacy: &'c Candidacy,
        member: usize,
        claim: &Claim,
    ) -> Option<MutexGuard<'c, Seat>> {
        let lane = &candidacy.seats[member];
        if let Ok(seat) = lane.try_lock() {
            return Some(seat);
        }
        let limit = self.settings.member_timeout.min(claim.ttl);
        timeout(limit, lane.lock()).await.ok()
    }

    /// Asks one member, and notes in its seat what is known then.
    pub(crate) async fn attempt(
        &self,
        member: usize,
        seat: &mut Seat,
        claim: &Claim,
        min_token: Option<FencingToken>,
        standing: Standing,
    ) -> Ballot {
        let asked = seat.claim(claim, min_token);
        let before = (seat.asked, seat.uncertain);
        let limit = self.settings.member_timeout.min(claim.ttl);
        let mut began = Moment::now();
        let verb = bounded(limit, async {
            let reached = self.reach(member, limit).await?;
            began = Moment::now();
            // Until there is an answer, and if nobody hears it.
            (seat.asked, seat.uncertain) = (true, true);
            let answer = reached.backend.try_acquire(&asked).await?;
            Ok((answer, reached.origin().await?))
        });
        match verb.await {
            Ok((Attempt::Acquired(grant), origin)) => {
                let is_young = self.young(&origin, began);
                (seat.asked, seat.uncertain) = (true, before.1);
                let standing = if is_young.is_some() { Standing::New } else { standing };
                // A vote that is confirmed stays what it was.
                let vote = match seat.vote_of(&origin) {
                    Some(vote) if vote.token == grant.token => vote.renewed(&grant, origin),
                    _ => Vote::of(&grant, origin, standing),
                };
                seat.vote = Some(vote.clone());
                Ballot::For(vote, is_young)
            }
            Ok((Attempt::Contended { expires_in }, origin)) => {
                *seat = Seat { asked: before.1, uncertain: before.1, vote: None };
                Ballot::Against { expires_in, origin }
            }
            Err(fault) => {
                if fault.effect() == lock_core::Effect::NotApplied {
                    (seat.asked, seat.uncertain) = before;
                }
                Ballot::Failed(fault)
            }
        }
    }

    /// Says why a vote is not counted: the member had been started lately when it was asked, and
    /// may have forgotten what it had granted. No server is started again on the same connection,
    /// so it tells only once for each.
    fn young(&self, origin: &Origin, asked: Moment) -> Option<Fault> {
        let (longest, up_for) = (self.settings.longest_lease?, origin.up_for_at(asked)?);
        // As everywhere, clocks may differ by one per cent.
        let stays_out = (longest + longest / 100).saturating_sub(up_for);
        if stays_out.is_zero() {
            return None;
        }
        let (up_for, stays_out) = (up_for.as_secs(), stays_out.as_secs_f64().ceil());
        let why = format!(
            "it was started {up_for} s ago and may have forgotten locks; it is counted in {stays_out} s"
        );
        Some(Fault::unknown(FaultKind::Unavailable, why))
    }
}
