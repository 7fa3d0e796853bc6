//! Letting go: everywhere, also where nobody knows whether there is anything to let go.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind, Release, ReleaseMode};
use lock_core::clock::{Moment, sleep_between, sleep_until};
use tokio::time::timeout;

use crate::calls::Calls;
use crate::candidacy::{Candidacy, Seat, Standing, Vote};
use crate::origin::{Origin, counted_twice};
use crate::quorum::{Inner, bounded, no_majority};
use crate::round::{GRACE, LAST_WORD};

/// The answer of one member, and the server that gave it, if one was asked.
type Answer = Result<(Release, Option<Origin>), Fault>;

/// The pause after a release that failed doubles from the shortest to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

const LAPSED_MEANWHILE: &str =
    "the lease ended while members were asked, and some may have let the lock go before";
const WON_BACK: &str = "the lock had been lost here, and was won back a moment ago";

/// Releases that are under way at several members.
struct Leave<'a> {
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
        let candidacy = match self.book.find(claim) {
            Some(known) => known,
            None => {
                let candidacy = self.book.find_or_open(claim, self.members.len());
                candidacy.notes().stranger = true;
                candidacy
            }
        };
        candidacy.notes().parted = true;
        let everywhere = (0..self.members.len()).collect();
        let mut leave = Leave::begin(self, &candidacy, claim, everywhere, Some(how));
        let released = |answer: &Answer| matches!(answer, Ok((Release::Released, _)));
        let not_held = |answer: &Answer| matches!(answer, Ok((Release::NotHeld, _)));
        let is_decided = |leave: &Leave<'_>| {
            leave.count(released) >= self.majority || leave.count(not_held) >= self.majority
        };
        while !is_decided(&leave) && leave.hear().await {}
        if !is_decided(&leave) {
            return Err(no_majority(self, leave.faults(), false));
        }
        let answer = match leave.count(released) >= self.majority {
            true => Release::Released,
            false => Release::NotHeld,
        };
        let has_lapsed = std::mem::take(&mut candidacy.notes().lapsed_meanwhile);
        if answer == Release::NotHeld && has_lapsed {
            return Err(Fault::unknown(FaultKind::Unavailable, LAPSED_MEANWHILE));
        }
        self.book.let_go(&candidacy);
        // Whoever comes next finds it free everywhere, also if this process ends now.
        leave.linger().await;
        leave.see_off(&candidacy, claim, how);
        Ok(answer)
    }

    /// Gives back votes that make no majority. True if nothing can be left anywhere. If it is the `last`
    /// that is heard of the claim, late attempts of it are refused where members can do that.
    pub(crate) async fn give_back(
        self: &Arc<Self>,
        candidacy: &Arc<Candidacy>,
        claim: &Claim,
        members: Vec<usize>,
        last: bool,
    ) -> bool {
        if members.is_empty() {
            return true;
        }
        let how = last.then(ReleaseMode::now);
        let mut leave = Leave::begin(self, candidacy, claim, members, how);
        leave.linger().await;
        let is_clean = leave.answers.iter().all(|answer| matches!(answer, Some(Ok(_))));
        if last {
            leave.see_off(candidacy, claim, ReleaseMode::now());
        }
        // What is not refused may land when all has been given back.
        is_clean && !candidacy.may_still_land()
    }

    /// At one member, after what is under way there. `how` is `None` if the claim will be heard of again:
    /// then late attempts of it are not refused. `began` is when the first of the members was asked.
    async fn release_at(
        &self,
        candidacy: &Candidacy,
        member: usize,
        claim: &Claim,
        how: Option<ReleaseMode>,
        began: Moment,
    ) -> Answer {
        let mut seat = candidacy.seats[member].lock().await;
        if candidacy.has_nothing(&seat, how) {
            return Ok((Release::NotHeld, None));
        }
        let uncertain = how.is_some_and(|how| how.expects_late_attempt() || seat.uncertain);
        let mut let_go = how.unwrap_or_default();
        let_go.late_attempt = uncertain.into();
        let asked = seat.claim(claim, None);
        let limit = self.settings.member_timeout;
        let verb = async {
            let reached = self.reach(member, limit).await?;
            let answer = reached.backend.release(&asked, let_go).await?;
            Ok((answer, reached.origin().await?))
        };
        let (answer, origin) = match bounded(limit, verb).await {
            Ok(answer) => answer,
            Err(fault) => {
                seat.asked = true;
                return Err(fault);
            }
        };
        let still_uncertain = seat.uncertain && !uncertain;
        (seat.asked, seat.uncertain) = (still_uncertain, still_uncertain);
        let vote = seat.vote_of(&origin).cloned();
        seat.vote = None;
        match answer {
            Release::Released if candidacy.is_won_back(vote.as_ref()) => {
                return Err(Fault::unknown(FaultKind::Unavailable, WON_BACK));
            }
            Release::NotHeld if vote.is_some_and(|vote| vote.may_have_lapsed_since(began)) => {
                candidacy.notes().lapsed_meanwhile = true;
            }
            _ => {}
        }
        Ok((answer, Some(origin)))
    }
}

impl Candidacy {
    /// True if nothing can be there to let go: it was not asked.
    fn has_nothing(&self, seat: &Seat, how: Option<ReleaseMode>) -> bool {
        !seat.asked && !self.notes().stranger && !how.is_some_and(ReleaseMode::expects_late_attempt)
    }

    /// True if an attempt that nobody has heard of may be granted yet.
    fn may_still_land(&self) -> bool {
        self.seats.iter().any(|seat| seat.try_lock().map_or(true, |seat| seat.uncertain))
    }

    /// True if what a member let go is no vote of the majority that won. One that we did not know of has landed late, unless
    /// the claim was won elsewhere, or nowhere.
    fn is_won_back(&self, vote: Option<&Vote>) -> bool {
        vote.map_or(self.notes().won, |vote| vote.standing == Standing::New)
    }
}

impl<'a> Leave<'a> {
    fn begin(
        inner: &'a Arc<Inner>,
        candidacy: &Arc<Candidacy>,
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
            let seat = candidacy.seats[member].try_lock();
            if seat.is_ok_and(|seat| candidacy.has_nothing(&seat, how)) {
                continue;
            }
            answers[member] = None;
            let (inner, candidacy) = (Arc::clone(inner), Arc::clone(candidacy));
            let claim = claim.clone();
            calls.begin(member, async move {
                inner.release_at(&candidacy, member, &claim, how, began).await
            });
        }
        Self { inner, answers, began, calls }
    }

    /// False if there is nothing more to hear.
    async fn hear(&mut self) -> bool {
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
        for (twin, counted) in counted_twice(member, answers) {
            self.answers[twin] = Some(Err(self.inner.is_counted_as(counted)));
        }
    }

    /// Hears the rest as well, unless it is behind.
    async fn linger(&mut self) {
        let took = Moment::now().saturating_since(self.began);
        let until = Moment::now() + took.clamp(GRACE, LAST_WORD);
        let waited_for = |leave: &Self| {
            let open = (0..leave.answers.len()).filter(|&member| leave.answers[member].is_none());
            open.filter(|&member| !leave.inner.members[member].is_slow()).count()
        };
        while waited_for(self) > 0 {
            let heard = tokio::select! {
                biased;
                heard = self.hear() => heard,
                () = sleep_until(until) => false,
            };
            if !heard {
                break;
            }
        }
        for member in 0..self.answers.len() {
            if self.answers[member].is_none() {
                self.inner.members[member].was_slow();
            }
        }
    }

    /// Goes on in the background where it has not worked yet.
    fn see_off(self, candidacy: &Arc<Candidacy>, claim: &Claim, how: ReleaseMode) {
        let is_open = |answer: &Option<Answer>| !matches!(answer, Some(Ok(_)));
        let open: Vec<_> =
            (0..self.answers.len()).filter(|&member| is_open(&self.answers[member])).collect();
        if open.is_empty() {
            return;
        }
        let rest = Rest {
            inner: Arc::clone(self.inner),
            candidacy: Arc::clone(candidacy),
            claim: claim.clone(),
            uncertain: how.expects_late_attempt(),
            keep_until: how.keep.map(|keep| self.began + keep),
        };
        for member in open.into_iter().filter(|&member| self.answers[member].is_some()) {
            rest.clone().repeat_at(member);
        }
        let mut calls = self.calls;
        if calls.is_empty() {
            return;
        }
        tokio::spawn(async move {
            while let Some((member, answer)) = calls.next().await {
                if answer.is_err() {
                    rest.clone().repeat_at(member);
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
struct Rest {
    inner: Arc<Inner>,
    candidacy: Arc<Candidacy>,
    claim: Claim,
    uncertain: bool,
    keep_until: Option<Moment>,
}

impl Rest {
    /// In the background, until it has worked or the leases are over. What is too much for one member is left to its lease.
    fn repeat_at(self, member: usize) {
        let leftovers = &self.inner.members[member].leftovers;
        let Ok(place) = Arc::clone(leftovers).try_acquire_owned() else { return };
        tokio::spawn(async move {
            self.persist(member).await;
            drop(place);
        });
    }

    async fn persist(self, member: usize) {
        let settings = &self.inner.settings;
        // What was sent last lands within the bound of a call, or never.
        let over = Moment::now() + settings.member_timeout + self.claim.ttl;
        let mut pause = SHORTEST_PAUSE;
        while !over.has_passed() {
            sleep_between(pause / 2, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            // One that hangs keeps nobody from asking the others.
            let turn = self.inner.members[member].cleaners.acquire();
            let Ok(Ok(_turn)) = timeout(over.remaining(), turn).await else { return };
            if over.has_passed() {
                return;
            }
            let keep = self.keep_until.map(Moment::remaining).filter(|keep| !keep.is_zero());
            let mut how = keep.map_or(ReleaseMode::now(), ReleaseMode::keep_for);
            how.late_attempt = self.uncertain.into();
            let Self { inner, candidacy, claim, .. } = &self;
            let began = Moment::now();
            if inner.release_at(candidacy, member, claim, Some(how), began).await.is_ok() {
                return;
            }
        }
    }
}
