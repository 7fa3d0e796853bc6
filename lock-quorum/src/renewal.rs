//! Renewals: by a majority of those who have held all the time.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind, Renewal, Ticket};
use lock_core::clock::Moment;
use lock_core::{Effect, FencingToken};

use crate::calls::Calls;
use crate::candidacy::{Candidacy, Seat, Standing, Vote};
use crate::origin::{Origin, counted_twice};
use crate::quorum::{Inner, bounded, no_majority};
use crate::round::{just_below, together};

/// What one member says of one claim.
#[derive(Debug)]
enum Word {
    /// The vote as it was counted, with its new end.
    Held(Vote),
    NotHeld(Origin),
    /// It has no vote that could be renewed.
    Nothing,
    Failed(Fault),
}

type Heard = Result<Vec<Word>, Fault>;

/// A batch that is under way at all members.
struct Batch<'a> {
    inner: &'a Arc<Inner>,
    /// Before anybody was asked.
    began: Moment,
    claims: &'a [&'a Claim],
    candidacies: Vec<Arc<Candidacy>>,
    /// For each claim, for each member.
    words: Vec<Vec<Option<Word>>>,
    calls: Calls<Heard>,
}

impl Inner {
    /// The verb.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut batch = Batch::begin(self, claims);
        while !batch.is_decided() && batch.hear().await {}
        let answers: Vec<_> = (0..claims.len()).map(|claim| batch.answer(claim)).collect();
        batch.go_on_behind(&answers);
        answers
    }

    /// One call for all claims at one member.
    async fn renew_at(
        &self,
        member: usize,
        candidacies: &[Arc<Candidacy>],
        claims: &[Claim],
    ) -> Vec<Word> {
        let mut words: Vec<Word> = claims.iter().map(|_| Word::Nothing).collect();
        let mut seats = Vec::new();
        for (nth, candidacy) in candidacies.iter().enumerate() {
            // A verb of the claim is under way there.
            let Ok(seat) = candidacy.seats[member].try_lock() else {
                let why = "an earlier call is not answered yet";
                words[nth] = Word::Failed(Fault::not_applied(FaultKind::TimedOut, why));
                continue;
            };
            if seat.vote.is_some() || seat.uncertain || candidacy.is_unknown(&claims[nth]) {
                seats.push((nth, seat));
            }
        }
        if seats.is_empty() {
            return words;
        }
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let limit = self.settings.member_timeout.min(shortest);
        let asked: Vec<_> =
            seats.iter().map(|(nth, seat)| seat.claim(&claims[*nth], None)).collect();
        let answers = self.ask_to_renew(member, &asked, limit).await;
        for ((nth, mut seat), answer) in seats.into_iter().zip(answers) {
            let is_unknown = candidacies[nth].is_unknown(&claims[nth]);
            words[nth] = seat.take_in(answer, is_unknown);
        }
        words
    }

    async fn ask_to_renew(
        &self,
        member: usize,
        claims: &[Claim],
        limit: Duration,
    ) -> Vec<Result<(Renewal, Origin), Fault>> {
        let verb = async {
            let reached = self.reach(member, limit).await?;
            let answers = reached.backend.renew(&claims.iter().collect::<Vec<_>>()).await;
            if answers.len() != claims.len() {
                let why = "it answered for another number of claims";
                return Err(Fault::unknown(FaultKind::Broken, why));
            }
            if answers.iter().all(Result::is_err) {
                return Ok(answers.into_iter().filter_map(Result::err).map(Err).collect());
            }
            let origin = reached.origin().await?;
            let told = |answer: Result<_, _>| answer.map(|answer| (answer, origin.clone()));
            Ok(answers.into_iter().map(told).collect())
        };
        match bounded(limit, verb).await {
            Ok(answers) => answers,
            Err(fault) => claims.iter().map(|_| Err(fault.repeated())).collect(),
        }
    }

    /// Asks a member that has no vote for the claim whether it has one now: one that was away, or has forgotten it.
    /// Only a lock that is free there can be had.
    fn win_back(
        self: &Arc<Self>,
        candidacy: &Arc<Candidacy>,
        claim: &Claim,
        member: usize,
        token: Option<FencingToken>,
    ) {
        let (inner, candidacy, claim) = (Arc::clone(self), Arc::clone(candidacy), claim.clone());
        tokio::spawn(async move {
            inner.ask_behind(&candidacy, &claim, member, token, Standing::New).await;
        });
    }

    pub(crate) async fn ask_behind(
        &self,
        candidacy: &Candidacy,
        claim: &Claim,
        member: usize,
        token: Option<FencingToken>,
        standing: Standing,
    ) {
        let Some(_call) = self.members[member].begin() else { return };
        let Ok(mut seat) = candidacy.seats[member].try_lock() else { return };
        if seat.vote.is_some() || candidacy.notes().parted {
            return;
        }
        let min_token = token.filter(|_| self.has_tokens()).and_then(just_below);
        let ballot = self.attempt(member, &mut seat, claim, min_token, standing).await;
        drop(ballot);
    }
}

impl Seat {
    fn take_in(&mut self, answer: Result<(Renewal, Origin), Fault>, is_unknown: bool) -> Word {
        let counts = |vote: &Vote| vote.standing == Standing::Full;
        match answer {
            Ok((Renewal::Held(grant), origin)) => {
                let vote = match self.vote_of(&origin) {
                    Some(vote) if grant.token.is_none() || vote.token == grant.token => {
                        vote.renewed(&grant, origin)
                    }
                    // Which votes were old is known to whoever won it, and not here.
                    None if is_unknown => Vote::of(&grant, origin, Standing::Full),
                    // Another number is another grant: it was lost, and an attempt has landed late.
                    _ => Vote::of(&grant, origin, Standing::New),
                };
                self.asked = true;
                self.vote = Some(vote.clone());
                Word::Held(vote)
            }
            Ok((Renewal::NotHeld, origin)) => {
                (self.asked, self.vote) = (self.uncertain, None);
                Word::NotHeld(origin)
            }
            // It may still hold, if it did.
            Err(fault) if is_unknown || self.vote.as_ref().is_some_and(counts) => {
                Word::Failed(fault)
            }
            Err(_) => Word::Nothing,
        }
    }
}

impl<'a> Batch<'a> {
    fn begin(inner: &'a Arc<Inner>, claims: &'a [&'a Claim]) -> Self {
        let (size, began) = (inner.members.len(), Moment::now());
        let candidacies: Vec<_> = claims.iter().map(|claim| open(inner, claim)).collect();
        let mut calls = Calls::new(Err);
        for member in 0..size {
            Self::ask(inner, member, &candidacies, claims, &mut calls);
        }
        let words = claims.iter().map(|_| (0..size).map(|_| None).collect()).collect();
        Self { inner, began, claims, candidacies, words, calls }
    }

    fn ask(
        inner: &Arc<Inner>,
        member: usize,
        candidacies: &[Arc<Candidacy>],
        claims: &[&Claim],
        calls: &mut Calls<Heard>,
    ) {
        let Some(call) = inner.members[member].begin() else {
            let why = "too many calls of this member are under way";
            let fault = Fault::not_applied(FaultKind::Unavailable, why);
            return calls.begin(member, std::future::ready(Err(fault)));
        };
        let (inner, candidacies) = (Arc::clone(inner), candidacies.to_vec());
        let claims: Vec<_> = claims.iter().map(|&claim| claim.clone()).collect();
        calls.begin(member, async move {
            let words = inner.renew_at(member, &candidacies, &claims).await;
            drop(call);
            Ok(words)
        });
    }

    /// False if there is nothing more to hear.
    async fn hear(&mut self) -> bool {
        let Some((member, words)) = self.calls.next().await else { return false };
        match words {
            Ok(words) => {
                for (claim, word) in words.into_iter().enumerate() {
                    self.words[claim][member] = Some(word);
                    self.count_once(claim, member);
                }
            }
            Err(fault) => {
                for words in &mut self.words {
                    words[member] = Some(Word::Failed(fault.repeated()));
                }
            }
        }
        true
    }

    /// Counts a server once that has spoken of the claim by the address of another member, too: its
    /// vote of old is known by one of them only.
    fn count_once(&mut self, claim: usize, member: usize) {
        let words = &mut self.words[claim];
        let answers = words.iter().map(|word| {
            let word = word.as_ref()?;
            Some((word.origin()?, word.full_vote().is_some()))
        });
        for (twin, counted) in counted_twice(member, answers) {
            words[twin] = Some(Word::Failed(self.inner.is_counted_as(counted)));
        }
    }

    fn is_decided(&self) -> bool {
        (0..self.claims.len()).all(|claim| {
            let Count { held, failed, open } = self.count(claim);
            held >= self.inner.majority || held + failed + open < self.inner.majority
        })
    }

    /// Held if a majority holds it that has done so all the time; not held if there can be none.
    fn answer(&mut self, claim: usize) -> Result<Renewal, Fault> {
        let Count { held, failed, open } = self.count(claim);
        if held >= self.inner.majority {
            return Ok(self.held(claim));
        }
        if held + failed + open < self.inner.majority {
            return Ok(Renewal::NotHeld);
        }
        let words = std::mem::take(&mut self.words[claim]).into_iter().enumerate();
        let faults = words.filter_map(|(member, word)| match word {
            Some(Word::Failed(fault)) => Some((member, fault)),
            _ => None,
        });
        let faults: Vec<_> = faults.collect();
        let is_clean = held == 0 && faults.iter().all(|(_, f)| f.effect() == Effect::NotApplied);
        Err(no_majority(self.inner, faults, is_clean))
    }

    fn held(&self, claim: usize) -> Renewal {
        let votes = self.words[claim].iter().flatten().filter_map(Word::full_vote);
        let grant = together(votes, self.inner.majority);
        let grant = grant.with_ticket(Ticket::new(Arc::clone(&self.candidacies[claim])));
        Renewal::Held(match self.token(claim) {
            Some(token) => grant.with_token(token),
            None => grant,
        })
    }

    /// Looks after the minorities of what is held: also of what is not heard yet, for which nobody waits.
    fn go_on_behind(self, answers: &[Result<Renewal, Fault>]) {
        let held =
            (0..answers.len()).filter(|&claim| matches!(answers[claim], Ok(Renewal::Held(_))));
        let cares: Vec<_> = held
            .map(|nth| {
                let (candidacy, claim) =
                    (Arc::clone(&self.candidacies[nth]), self.claims[nth].clone());
                let inner = Arc::clone(self.inner);
                let (began, token) = (self.began, self.token(nth));
                (nth, Care { inner, began, candidacy, claim, token })
            })
            .collect();
        for (nth, care) in &cares {
            for (member, word) in self.words[*nth].iter().enumerate() {
                care.look_after(member, word.as_ref());
            }
        }
        let is_open = |(nth, _): &(usize, Care)| self.words[*nth].iter().any(Option::is_none);
        if !cares.iter().any(is_open) {
            return;
        }
        let mut calls = self.calls;
        tokio::spawn(async move {
            while let Some((member, words)) = calls.next().await {
                let Ok(words) = words else { continue };
                for (nth, care) in &cares {
                    care.look_after(member, words.get(*nth));
                }
            }
        });
    }

    /// That of the grant; of a claim that was won elsewhere, the number on which a majority agrees.
    fn token(&self, claim: usize) -> Option<FencingToken> {
        if !self.inner.has_tokens() {
            return None;
        }
        let known = self.candidacies[claim].notes().token;
        known.or_else(|| {
            let votes = || self.words[claim].iter().flatten().filter_map(Word::full_vote);
            let agree = |token| votes().filter(|vote| vote.token == token).count();
            let agreed = votes().map(|vote| vote.token).find(|&t| agree(t) >= self.inner.majority);
            agreed.flatten()
        })
    }

    fn count(&self, claim: usize) -> Count {
        let mut count = Count::default();
        for word in &self.words[claim] {
            match word {
                Some(Word::Held(vote)) if vote.standing == Standing::Full => count.held += 1,
                Some(Word::Held(_) | Word::NotHeld(_) | Word::Nothing) => {}
                Some(Word::Failed(_)) => count.failed += 1,
                None => count.open += 1,
            }
        }
        count
    }
}

/// How the members' words stand.
#[derive(Default)]
struct Count {
    held: usize,
    failed: usize,
    open: usize,
}

impl Word {
    fn full_vote(&self) -> Option<&Vote> {
        match self {
            Self::Held(vote) if vote.standing == Standing::Full => Some(vote),
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

/// What is done about a member that had no part in a renewal.
struct Care {
    inner: Arc<Inner>,
    began: Moment,
    candidacy: Arc<Candidacy>,
    claim: Claim,
    token: Option<FencingToken>,
}

impl Care {
    fn look_after(&self, member: usize, word: Option<&Word>) {
        match word {
            // It was there before the majority was asked, and is now: both have held together. What has landed since
            // may have done so when the majority had lost it already.
            Some(Word::Held(vote))
                if vote.standing == Standing::New && vote.known_since < self.began =>
            {
                self.confirm(member, vote);
            }
            // A vote that is won back must be known as such to the next renewal: the one of who only renews it now and
            // then takes all for old ones.
            Some(Word::NotHeld(_) | Word::Nothing) if !self.candidacy.is_unknown(&self.claim) => {
                self.inner.win_back(&self.candidacy, &self.claim, member, self.token);
            }
            _ => {}
        }
    }

    fn confirm(&self, member: usize, confirmed: &Vote) {
        // If a verb is under way there, it is confirmed by the next renewal.
        if let Ok(mut seat) = self.candidacy.seats[member].try_lock()
            && let Some(vote) = seat.vote.as_mut()
            && vote.known_since == confirmed.known_since
        {
            vote.standing = Standing::Full;
        }
    }
}

fn open(inner: &Inner, claim: &Claim) -> Arc<Candidacy> {
    match inner.book.find(claim) {
        Some(known) => known,
        None => {
            let candidacy = inner.book.find_or_open(claim, inner.members.len());
            candidacy.notes().stranger = true;
            candidacy
        }
    }
}
