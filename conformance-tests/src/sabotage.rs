//! Saboteurs: backends that are broken in one way each, around one that is not. A check that does
//! not catch its saboteurs checks nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, FaultKind, Grant, Hold, Identity, Lease, LetGo, Listed, LockState,
    Release, Renewal, Wake,
};
use lock_core::clock::{Moment, sleep};
use lock_core::{
    Backend, Capabilities, Fencing, FencingToken, LockName, OwnerId, Support, Takeover,
};

use crate::harness::{Harness, Pace, Script, ServerProcess};
use crate::network::Network;
use crate::simulation::Site;

/// One way to be broken.
pub struct Saboteur {
    /// What it does.
    pub name: &'static str,
    /// The laws whose checks must catch it.
    pub caught_by: &'static [&'static str],
    make: fn() -> Arc<dyn Sabotage>,
}

impl Saboteur {
    /// Breaks every client of `harness` in this way.
    #[must_use]
    pub fn infiltrate(&self, harness: Box<dyn Harness>) -> Box<dyn Harness> {
        Box::new(Infiltrated { harness, sabotage: (self.make)() })
    }
}

impl fmt::Debug for Saboteur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saboteur({})", self.name)
    }
}

/// `saboteur!(Type, laws)`: the type's name is the saboteur's.
macro_rules! saboteur {
    ($how:ident, $($law:literal),+) => {
        Saboteur { name: stringify!($how), caught_by: &[$($law),+], make: || Arc::new($how::default()) }
    };
}

/// All saboteurs.
#[must_use]
pub fn all() -> &'static [Saboteur] {
    SABOTEURS
}

/// Those that are made for whole runs of many clients: no check is shown them.
#[must_use]
pub fn of_runs() -> &'static [Saboteur] {
    OF_RUNS
}

static OF_RUNS: &[Saboteur] = &[
    Saboteur {
        name: "RetriesReleasesBlindly",
        caught_by: &[],
        make: || Arc::new(RetriesReleasesBlindly),
    },
    Saboteur { name: "NeverRenews", caught_by: &[], make: || Arc::new(NeverRenews) },
    Saboteur { name: "NeverReleases", caught_by: &[], make: || Arc::new(NeverReleases) },
];

static SABOTEURS: &[Saboteur] = &[
    saboteur!(GrantsEveryone, "1.1", "6.5", "14.1"),
    saboteur!(ForgetsItsOwner, "1.2", "8.1"),
    saboteur!(AttemptShortens, "1.2"),
    saboteur!(CountsFromTheReply, "1.3"),
    saboteur!(CountsFromThePush, "1.3"),
    saboteur!(HidesItsLeases, "1.3", "2.1", "2.4", "3.2"),
    saboteur!(LapsesEarly, "1.4", "6.6", "14.8"),
    saboteur!(RenewsInName, "2.1"),
    saboteur!(RenewRecreates, "2.2"),
    saboteur!(RenewAdopts, "2.3", "9.4"),
    saboteur!(RenewShortens, "2.4"),
    saboteur!(AnswersOutOfOrder, "2.5"),
    saboteur!(RenewAlwaysHeld, "3.1", "2.2", "2.3", "14.5"),
    saboteur!(ExaggeratesItsLease, "3.2", "1.4"),
    saboteur!(KeepsTheNewsToItself, "3.3"),
    saboteur!(ReleasesAtTheDeadline, "3.4"),
    saboteur!(ReleasesInName, "4.1", "7.2", "14.3", "14.6"),
    saboteur!(KeepsTheCancelled, "7.1", "7.3"),
    saboteur!(ReleasesAnyone, "4.2", "4.7"),
    saboteur!(AlwaysReleased, "4.3", "4.7", "12.2"),
    saboteur!(LeavesGhostsInLine, "4.4", "7.1"),
    saboteur!(AdmitsLateAttempts, "4.5"),
    saboteur!(ForgetsWhomItKnew, "4.5"),
    saboteur!(IgnoresMinimumHolds, "4.6", "14.7"),
    saboteur!(KeepsTheWholeLease, "4.6"),
    saboteur!(RepeatsTokens, "5.1", "14.2"),
    saboteur!(LosesTokens, "5.1"),
    saboteur!(HandsOverOldTokens, "5.1"),
    saboteur!(RenewsWithoutToken, "5.1"),
    saboteur!(IssuesUndeclaredTokens, "5.1", "5.3"),
    saboteur!(IgnoresFloors, "5.2"),
    saboteur!(UsesLowBits, "5.3"),
    saboteur!(CachesContention, "6.1"),
    saboteur!(NeverWakes, "6.2", "12.8"),
    saboteur!(ServesLastFirst, "6.3", "6.4"),
    saboteur!(QueuesTries, "6.5"),
    saboteur!(NeverLapses, "6.6"),
    saboteur!(KeepsPlaces, "6.7"),
    saboteur!(SwallowsUncertainReleases, "8.1", "12.1", "12.5", "13.1"),
    saboteur!(CallsFaultsContention, "8.2", "12.9"),
    saboteur!(HidesWhatItCan, "9.1", "9.2", "9.3", "9.4"),
    saboteur!(InspectSeesNothing, "9.1"),
    saboteur!(InspectTakesTheLock, "9.1"),
    saboteur!(BreaksAnyone, "9.2"),
    saboteur!(ListsInAnyOrder, "9.3"),
    saboteur!(ListsWithoutLimit, "9.3"),
    saboteur!(ReleasesOnlyWhatItRenewed, "9.4"),
    saboteur!(FoldsCase, "10.1"),
    saboteur!(CutsNames, "10.1"),
    saboteur!(ReadsLongLeasesAsDates, "10.2"),
    saboteur!(RoundsShortLeasesToForever, "10.2"),
    saboteur!(ShowsOwners, "11.1"),
    saboteur!(AssumesItsRenewals, "12.3", "13.2", "14.4"),
    saboteur!(GivesUpAtOnce, "12.4"),
    saboteur!(RepeatsItsLastAnswer, "12.6"),
    saboteur!(NeverReconnects, "12.7", "12.12", "13.3"),
    saboteur!(BlocksItsThread, "12.10"),
    saboteur!(ForgetsFailedReleases, "12.11"),
    saboteur!(CountsFromTheWord, "12.13"),
];

/// What a saboteur changes: every verb does what the inner backend does, unless overridden.
#[async_trait]
trait Sabotage: fmt::Debug + Send + Sync + 'static {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities()
    }
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        inner.try_acquire(claim).await
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        inner.wait(claim).await
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        inner.renew(claims).await
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        inner.release(claim, how).await
    }
    async fn inspect(&self, inner: &dyn Backend, name: &LockName) -> Result<LockState, Fault> {
        inner.inspect(name).await
    }
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        inner.list(prefix, after, limit).await
    }
    async fn break_lock(
        &self,
        inner: &dyn Backend,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        inner.break_lock(name, expected).await
    }
    fn debug(&self, f: &mut fmt::Formatter<'_>, inner: &dyn Backend) -> fmt::Result {
        fmt::Debug::fmt(inner, f)
    }
}

struct Infiltrated {
    harness: Box<dyn Harness>,
    sabotage: Arc<dyn Sabotage>,
}

impl Infiltrated {
    fn sabotaged(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Sabotaged { inner, sabotage: Arc::clone(&self.sabotage) })
    }
}

#[async_trait]
impl Harness for Infiltrated {
    fn pace(&self) -> Pace {
        self.harness.pace()
    }
    async fn client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client().await)
    }
    async fn disturbed_client(&self, script: Script) -> Arc<dyn Backend> {
        // Outside of the faults: a client library that is broken, on a network that is.
        self.sabotaged(self.harness.disturbed_client(script).await)
    }
    async fn client_of(&self, process: usize, script: Script) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client_of(process, script).await)
    }
    fn site(&self) -> Option<&dyn Site> {
        self.harness.site()
    }
    async fn evict(&self, name: &LockName) -> bool {
        self.harness.evict(name).await
    }
    fn can_evict(&self) -> bool {
        self.harness.can_evict()
    }
    async fn lose_data(&self) -> bool {
        self.harness.lose_data().await
    }
    fn network(&self) -> Option<&Network> {
        self.harness.network()
    }
    async fn distant_client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.distant_client().await)
    }
    fn server(&self) -> Option<&dyn ServerProcess> {
        self.harness.server()
    }
}

struct Sabotaged {
    inner: Arc<dyn Backend>,
    sabotage: Arc<dyn Sabotage>,
}

impl fmt::Debug for Sabotaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sabotage.debug(f, &*self.inner)
    }
}

#[async_trait]
impl Backend for Sabotaged {
    fn capabilities(&self) -> Capabilities {
        self.sabotage.capabilities(&*self.inner)
    }
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.identity().await
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.sabotage.try_acquire(&*self.inner, claim).await
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.sabotage.wait(&*self.inner, claim).await
    }
    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.sabotage.renew(&*self.inner, claims).await
    }
    async fn release(&self, claim: &Claim, how: LetGo) -> Result<Release, Fault> {
        self.sabotage.release(&*self.inner, claim, how).await
    }
    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.sabotage.inspect(&*self.inner, name).await
    }
    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.sabotage.list(&*self.inner, prefix, after, limit).await
    }
    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.sabotage.break_lock(&*self.inner, name, expected).await
    }
}

/// A grant that no server made, with a token above all that a server would give.
fn forged(lease: Duration) -> Grant {
    static NUMBER: AtomicU64 = AtomicU64::new(1 << 54);
    let token = FencingToken::from_backend(NUMBER.fetch_add(1, Ordering::Relaxed));
    let grant = Grant::new(Lease::For(lease), Moment::now());
    token.map_or(grant.clone(), |token| grant.with_token(token))
}

/// Changes a grant in whatever answer it comes.
fn regrant(
    answer: Result<Attempt, Fault>,
    change: impl Fn(Grant) -> Grant,
) -> Result<Attempt, Fault> {
    answer.map(|attempt| match attempt {
        Attempt::Acquired(grant) => Attempt::Acquired(change(grant)),
        contended @ Attempt::Contended { .. } => contended,
    })
}

fn rewake(answer: Result<Wake, Fault>, change: impl Fn(Grant) -> Grant) -> Result<Wake, Fault> {
    answer.map(|wake| match wake {
        Wake::Granted(grant) => Wake::Granted(change(grant)),
        other => other,
    })
}

fn rerenew(
    answers: Vec<Result<Renewal, Fault>>,
    change: impl Fn(Grant) -> Grant,
) -> Vec<Result<Renewal, Fault>> {
    let each = answers.into_iter().map(|answer| {
        answer.map(|renewal| match renewal {
            Renewal::Held(grant) => Renewal::Held(change(grant)),
            Renewal::NotHeld => Renewal::NotHeld,
        })
    });
    each.collect()
}

async fn holder(inner: &dyn Backend, name: &LockName) -> Option<OwnerId> {
    inner.inspect(name).await.ok()?.holders.first()?.owner
}

/// Locks that a saboteur ends when it is asked anything after their time.
#[derive(Debug, Default)]
struct Lapses(Mutex<HashMap<OwnerId, (LockName, Moment)>>);

impl Lapses {
    fn set(&self, claim: &Claim, at: Moment) {
        self.0.lock().unwrap().insert(claim.owner, (claim.name.clone(), at));
    }

    async fn reap(&self, inner: &dyn Backend) -> Result<(), Fault> {
        let over: Vec<_> = {
            let mut lapses = self.0.lock().unwrap();
            lapses.extract_if(|_, (_, at)| at.has_passed()).collect()
        };
        for (owner, (name, _)) in over {
            inner.break_lock(&name, &owner).await?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct GrantsEveryone;
#[async_trait]
impl Sabotage for GrantsEveryone {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        match inner.try_acquire(claim).await? {
            Attempt::Contended { .. } => Ok(Attempt::Acquired(forged(claim.ttl))),
            acquired => Ok(acquired),
        }
    }
}

#[derive(Debug, Default)]
struct ForgetsItsOwner;
#[async_trait]
impl Sabotage for ForgetsItsOwner {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if holder(inner, &claim.name).await == Some(claim.owner) {
            return Ok(Attempt::Contended { lapses_in: None });
        }
        inner.try_acquire(claim).await
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        // Nor does it know whom it handed the lock to.
        inner.wait(claim).await?;
        Ok(Wake::Look)
    }
}

#[derive(Debug, Default)]
struct AttemptShortens(Lapses);
#[async_trait]
impl Sabotage for AttemptShortens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.reap(inner).await?;
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            self.0.set(claim, Moment::now() + claim.ttl);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct CountsFromThePush;
#[async_trait]
impl Sabotage for CountsFromThePush {
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        rewake(inner.wait(claim).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct CountsFromTheReply;
#[async_trait]
impl Sabotage for CountsFromTheReply {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        rerenew(inner.renew(claims).await, |mut grant| {
            grant.since = Moment::now();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct HidesItsLeases;
#[async_trait]
impl Sabotage for HidesItsLeases {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        Capabilities { takeover: Takeover::AtOnce, ..inner.capabilities() }
    }
}

#[derive(Debug, Default)]
struct LapsesEarly(Lapses);
#[async_trait]
impl Sabotage for LapsesEarly {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.reap(inner).await?;
        match inner.try_acquire(claim).await? {
            Attempt::Acquired(grant) => {
                self.0.set(claim, Moment::now() + claim.ttl / 2);
                Ok(Attempt::Acquired(grant))
            }
            contended @ Attempt::Contended { .. } => Ok(contended),
        }
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        loop {
            self.0.reap(inner).await?;
            let tick = tokio::time::timeout(Duration::from_millis(10), inner.wait(claim));
            if let Ok(wake) = tick.await {
                self.0.set(claim, Moment::now() + claim.ttl / 2);
                return wake;
            }
        }
    }
}

#[derive(Debug, Default)]
struct RenewsInName;
#[async_trait]
impl Sabotage for RenewsInName {
    async fn renew(&self, _: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        claims.iter().map(|claim| Ok(Renewal::Held(forged(claim.ttl)))).collect()
    }
}

#[derive(Debug, Default)]
struct RenewRecreates;
#[async_trait]
impl Sabotage for RenewRecreates {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(inner.try_acquire(claim).await.map(|attempt| match attempt {
                Attempt::Acquired(grant) => Renewal::Held(grant),
                Attempt::Contended { .. } => Renewal::NotHeld,
            }));
        }
        answers
    }
}

#[derive(Debug, Default)]
struct RenewAdopts;
#[async_trait]
impl Sabotage for RenewAdopts {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::new();
        for claim in claims {
            // Exists? Prolong it.
            let mut found = (*claim).clone();
            found.owner = holder(inner, &claim.name).await.unwrap_or(claim.owner);
            answers.extend(inner.renew(&[&found]).await);
        }
        answers
    }
}

#[derive(Debug, Default)]
struct RenewShortens(Lapses);
#[async_trait]
impl Sabotage for RenewShortens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.0.reap(inner).await?;
        inner.try_acquire(claim).await
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        for claim in claims {
            self.0.set(claim, Moment::now() + claim.ttl);
        }
        inner.renew(claims).await
    }
}

#[derive(Debug, Default)]
struct AnswersOutOfOrder;
#[async_trait]
impl Sabotage for AnswersOutOfOrder {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = inner.renew(claims).await;
        answers.sort_by_key(|answer| matches!(answer, Ok(Renewal::NotHeld)));
        answers
    }
}

/// With the token of the grant: another one would be told from it.
#[derive(Debug, Default)]
struct RenewAlwaysHeld(Mutex<HashMap<OwnerId, Grant>>);
impl RenewAlwaysHeld {
    fn note(&self, claim: &Claim, grant: Grant) -> Grant {
        self.0.lock().unwrap().insert(claim.owner, grant.clone());
        grant
    }
}
#[async_trait]
impl Sabotage for RenewAlwaysHeld {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |grant| self.note(claim, grant))
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        rewake(inner.wait(claim).await, |grant| self.note(claim, grant))
    }
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let answers = inner.renew(claims).await.into_iter().zip(claims);
        answers
            .map(|(answer, claim)| match answer {
                Ok(Renewal::NotHeld) => {
                    let mut grant = forged(claim.ttl);
                    if let Some(won) = self.0.lock().unwrap().get(&claim.owner) {
                        grant.token = won.token;
                    }
                    Ok(Renewal::Held(grant))
                }
                other => other,
            })
            .collect()
    }
}

#[derive(Debug, Default)]
struct ExaggeratesItsLease;
impl ExaggeratesItsLease {
    fn exaggerate(mut grant: Grant) -> Grant {
        if let Lease::For(lease) = grant.lease {
            grant.lease = Lease::For(lease * 3);
        }
        grant
    }
}
#[async_trait]
impl Sabotage for ExaggeratesItsLease {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, Self::exaggerate)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        rewake(inner.wait(claim).await, Self::exaggerate)
    }
}

/// Lets a lock go as soon as the deadline of its first lease has passed.
#[derive(Debug, Default)]
struct ReleasesAtTheDeadline(Lapses);
#[async_trait]
impl Sabotage for ReleasesAtTheDeadline {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let attempt = inner.try_acquire(claim).await?;
        if let Attempt::Acquired(grant) = &attempt {
            let margin = claim.ttl / 100 + inner.capabilities().margin;
            self.0.set(claim, grant.since + claim.ttl.saturating_sub(margin));
        }
        Ok(attempt)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        loop {
            self.0.reap(inner).await?;
            let tick = tokio::time::timeout(Duration::from_millis(1), inner.wait(claim));
            if let Ok(wake) = tick.await {
                return wake;
            }
        }
    }
}

#[derive(Debug, Default)]
struct ReleasesInName;
#[async_trait]
impl Sabotage for ReleasesInName {
    async fn release(&self, _: &dyn Backend, _: &Claim, _: LetGo) -> Result<Release, Fault> {
        Ok(Release::Released)
    }
}

/// Answers the release of a claim that was granted a moment ago, and leaves it to its lease.
#[derive(Debug, Default)]
struct KeepsTheCancelled(Mutex<HashMap<OwnerId, Moment>>);
#[async_trait]
impl Sabotage for KeepsTheCancelled {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let answer = inner.try_acquire(claim).await?;
        self.0.lock().unwrap().insert(claim.owner, Moment::now());
        Ok(answer)
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        let asked = self.0.lock().unwrap().remove(&claim.owner);
        if asked.is_some_and(|at| !(at + Duration::from_millis(10)).has_passed()) {
            return Ok(Release::Released);
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct ReleasesAnyone;
#[async_trait]
impl Sabotage for ReleasesAnyone {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        let answer = inner.release(claim, how).await?;
        if let (Release::NotHeld, Some(owner)) = (answer, holder(inner, &claim.name).await) {
            inner.break_lock(&claim.name, &owner).await?;
            return Ok(Release::Released);
        }
        Ok(answer)
    }
}

#[derive(Debug)]
struct NeverRenews;
#[async_trait]
impl Sabotage for NeverRenews {
    async fn renew(&self, _: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        claims.iter().map(|_| Err(unavailable())).collect()
    }
}

#[derive(Debug)]
struct NeverReleases;
#[async_trait]
impl Sabotage for NeverReleases {
    async fn release(&self, _: &dyn Backend, _: &Claim, _: LetGo) -> Result<Release, Fault> {
        Err(unavailable())
    }
}

fn unavailable() -> Fault {
    Fault::not_applied(FaultKind::Unavailable, "not now")
}

/// A release that was not answered may have been done, and somebody else may have the lock by now.
#[derive(Debug)]
struct RetriesReleasesBlindly;
#[async_trait]
impl Sabotage for RetriesReleasesBlindly {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        let failed = match inner.release(claim, how).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        match holder(inner, &claim.name).await {
            Some(owner) if inner.break_lock(&claim.name, &owner).await? => Ok(Release::Released),
            _ => Err(failed),
        }
    }
}

#[derive(Debug, Default)]
struct AlwaysReleased;
#[async_trait]
impl Sabotage for AlwaysReleased {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        inner.release(claim, how).await.map(|_| Release::Released)
    }
}

#[derive(Debug, Default)]
struct LeavesGhostsInLine;
#[async_trait]
impl Sabotage for LeavesGhostsInLine {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        if holder(inner, &claim.name).await == Some(claim.owner) {
            return inner.release(claim, how).await;
        }
        Ok(Release::NotHeld)
    }
}

#[derive(Debug, Default)]
struct AdmitsLateAttempts;
#[async_trait]
impl Sabotage for AdmitsLateAttempts {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: LetGo,
    ) -> Result<Release, Fault> {
        how.uncertain = false;
        inner.release(claim, how).await
    }
}

/// Remembers only those claims as let go that it never knew.
#[derive(Debug, Default)]
struct ForgetsWhomItKnew;
#[async_trait]
impl Sabotage for ForgetsWhomItKnew {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: LetGo,
    ) -> Result<Release, Fault> {
        how.uncertain &= holder(inner, &claim.name).await != Some(claim.owner);
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct IgnoresMinimumHolds;
#[async_trait]
impl Sabotage for IgnoresMinimumHolds {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mut how: LetGo,
    ) -> Result<Release, Fault> {
        how.keep = None;
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct KeepsTheWholeLease;
#[async_trait]
impl Sabotage for KeepsTheWholeLease {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        if how.keep.is_some() {
            return Ok(Release::Released);
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct RepeatsTokens(OnceLock<Option<FencingToken>>);
#[async_trait]
impl Sabotage for RepeatsTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |mut grant| {
            grant.token = *self.0.get_or_init(|| grant.token);
            grant
        })
    }
}

#[derive(Debug, Default)]
struct HandsOverOldTokens(Mutex<Option<FencingToken>>);
#[async_trait]
impl Sabotage for HandsOverOldTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |grant| {
            *self.0.lock().unwrap() = grant.token;
            grant
        })
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        rewake(inner.wait(claim).await, |mut grant| {
            grant.token = *self.0.lock().unwrap();
            grant
        })
    }
}

#[derive(Debug, Default)]
struct RenewsWithoutToken;
#[async_trait]
impl Sabotage for RenewsWithoutToken {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        rerenew(inner.renew(claims).await, |mut grant| {
            grant.token = None;
            grant
        })
    }
}

#[derive(Debug, Default)]
struct LosesTokens;
#[async_trait]
impl Sabotage for LosesTokens {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |mut grant| {
            grant.token = None;
            grant
        })
    }
}

#[derive(Debug, Default)]
struct IssuesUndeclaredTokens;
#[async_trait]
impl Sabotage for IssuesUndeclaredTokens {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        Capabilities { fencing: Fencing::None, raisable: Support::Absent, ..inner.capabilities() }
    }
}

#[derive(Debug, Default)]
struct IgnoresFloors;
#[async_trait]
impl Sabotage for IgnoresFloors {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.floor = None;
        inner.try_acquire(&claim).await
    }
}

#[derive(Debug, Default)]
struct UsesLowBits;
#[async_trait]
impl Sabotage for UsesLowBits {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        regrant(inner.try_acquire(claim).await, |mut grant| {
            grant.token = grant.token.map(|token| FencingToken::from_u64(token.as_u64() | 1));
            grant
        })
    }
}

#[derive(Debug, Default)]
struct CachesContention(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Sabotage for CachesContention {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if self.0.lock().unwrap().contains(&claim.owner) {
            return Ok(Attempt::Contended { lapses_in: None });
        }
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Contended { .. }) {
            self.0.lock().unwrap().insert(claim.owner);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct NeverWakes;
#[async_trait]
impl Sabotage for NeverWakes {
    async fn wait(&self, _: &dyn Backend, _: &Claim) -> Result<Wake, Fault> {
        std::future::pending().await
    }
}

#[derive(Debug, Default)]
struct KeepsTheNewsToItself;
#[async_trait]
impl Sabotage for KeepsTheNewsToItself {
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        match claim.held {
            true => std::future::pending().await,
            false => inner.wait(claim).await,
        }
    }
}

#[derive(Debug, Default)]
struct ServesLastFirst(Mutex<Vec<OwnerId>>);
#[async_trait]
impl Sabotage for ServesLastFirst {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        {
            let mut line = self.0.lock().unwrap();
            if claim.queue && !line.contains(&claim.owner) {
                line.push(claim.owner);
            }
            if line.last().is_some_and(|last| *last != claim.owner) {
                return Ok(Attempt::Contended { lapses_in: None });
            }
        }
        let mut claim = claim.clone();
        claim.queue = false;
        inner.try_acquire(&claim).await
    }
    async fn wait(&self, _: &dyn Backend, _: &Claim) -> Result<Wake, Fault> {
        sleep(Duration::from_millis(10)).await;
        Ok(Wake::Look)
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        self.0.lock().unwrap().retain(|owner| *owner != claim.owner);
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct QueuesTries;
#[async_trait]
impl Sabotage for QueuesTries {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.queue = true;
        inner.try_acquire(&claim).await
    }
}

/// Whoever has waited once waits for ever.
#[derive(Debug, Default)]
struct KeepsPlaces(Mutex<Vec<Claim>>);
#[async_trait]
impl Sabotage for KeepsPlaces {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if claim.queue {
            self.0.lock().unwrap().push(claim.clone());
        }
        inner.try_acquire(claim).await
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap());
        for waiting in &waiting {
            inner.try_acquire(waiting).await?;
        }
        inner.release(claim, how).await
    }
}

/// Each look of somebody else prolongs the lock, as a TTL that is refreshed by reading does.
#[derive(Debug, Default)]
struct NeverLapses(Mutex<HashMap<LockName, Claim>>);
#[async_trait]
impl Sabotage for NeverLapses {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let held = self.0.lock().unwrap().get(&claim.name).cloned();
        if let Some(mut held) = held {
            held.ttl = Duration::from_secs(3600);
            let _ = inner.renew(&[&held]).await;
        }
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            let mut held = claim.clone();
            held.ttl = Duration::from_secs(3600);
            let _ = inner.renew(&[&held]).await;
            self.0.lock().unwrap().insert(claim.name.clone(), held);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct SwallowsUncertainReleases;
#[async_trait]
impl Sabotage for SwallowsUncertainReleases {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        if how.uncertain {
            return Ok(Release::NotHeld);
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct CallsFaultsContention;
#[async_trait]
impl Sabotage for CallsFaultsContention {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(inner.try_acquire(claim).await.unwrap_or(Attempt::Contended { lapses_in: None }))
    }
}

#[derive(Debug, Default)]
struct HidesWhatItCan;
#[async_trait]
impl Sabotage for HidesWhatItCan {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        Capabilities {
            detached: Support::Absent,
            inspecting: Support::Absent,
            listing: Support::Absent,
            breaking: Support::Absent,
            ..inner.capabilities()
        }
    }
}

#[derive(Debug, Default)]
struct InspectSeesNothing;
#[async_trait]
impl Sabotage for InspectSeesNothing {
    async fn inspect(&self, _: &dyn Backend, _: &LockName) -> Result<LockState, Fault> {
        Ok(LockState::default())
    }
}

#[derive(Debug, Default)]
struct InspectTakesTheLock;
#[async_trait]
impl Sabotage for InspectTakesTheLock {
    async fn inspect(&self, inner: &dyn Backend, name: &LockName) -> Result<LockState, Fault> {
        // The usual way to ask a kernel lock: try it.
        let state = inner.inspect(name).await?;
        inner
            .try_acquire(&Claim::new(name.clone(), OwnerId::mint(), Duration::from_secs(60)))
            .await?;
        Ok(state)
    }
}

#[derive(Debug, Default)]
struct BreaksAnyone;
#[async_trait]
impl Sabotage for BreaksAnyone {
    async fn break_lock(
        &self,
        inner: &dyn Backend,
        name: &LockName,
        _: &OwnerId,
    ) -> Result<bool, Fault> {
        match holder(inner, name).await {
            Some(owner) => inner.break_lock(name, &owner).await,
            None => Ok(false),
        }
    }
}

#[derive(Debug, Default)]
struct ListsInAnyOrder;
#[async_trait]
impl Sabotage for ListsInAnyOrder {
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let mut lines = inner.list(prefix, after, limit).await?;
        lines.reverse();
        Ok(lines)
    }
}

#[derive(Debug, Default)]
struct ListsWithoutLimit;
#[async_trait]
impl Sabotage for ListsWithoutLimit {
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        _: usize,
    ) -> Result<Vec<Listed>, Fault> {
        inner.list(prefix, after, usize::MAX).await
    }
}

/// Changes the name in every claim.
async fn under(
    change: fn(&str) -> String,
    inner: &dyn Backend,
    claim: &Claim,
) -> Result<Attempt, Fault> {
    let mut claim = claim.clone();
    claim.name = LockName::new(change(claim.name.as_str())).expect("still a name");
    inner.try_acquire(&claim).await
}

/// What it needs for the release of a detached lock, it has learned from a renewal.
#[derive(Debug, Default)]
struct ReleasesOnlyWhatItRenewed(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Sabotage for ReleasesOnlyWhatItRenewed {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.0.lock().unwrap().extend(claims.iter().map(|claim| claim.owner));
        inner.renew(claims).await
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        if claim.hold == Hold::Detached && !self.0.lock().unwrap().contains(&claim.owner) {
            return Ok(Release::NotHeld);
        }
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct FoldsCase;
#[async_trait]
impl Sabotage for FoldsCase {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        under(str::to_lowercase, inner, claim).await
    }
}

#[derive(Debug, Default)]
struct CutsNames;
#[async_trait]
impl Sabotage for CutsNames {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        under(|name| name.chars().take(250).collect(), inner, claim).await
    }
}

#[derive(Debug, Default)]
struct ReadsLongLeasesAsDates;
#[async_trait]
impl Sabotage for ReadsLongLeasesAsDates {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let answer = inner.try_acquire(claim).await?;
        if claim.ttl > Duration::from_secs(30 * 24 * 3600) {
            inner.break_lock(&claim.name, &claim.owner).await?;
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct RoundsShortLeasesToForever;
#[async_trait]
impl Sabotage for RoundsShortLeasesToForever {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        if claim.ttl < Duration::from_secs(1) {
            claim.ttl = inner.capabilities().ttl_max;
        }
        inner.try_acquire(&claim).await
    }
}

#[derive(Debug, Default)]
struct ShowsOwners(Mutex<Option<OwnerId>>);
#[async_trait]
impl Sabotage for ShowsOwners {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        *self.0.lock().unwrap() = Some(claim.owner);
        inner.try_acquire(claim).await
    }
    fn debug(&self, f: &mut fmt::Formatter<'_>, inner: &dyn Backend) -> fmt::Result {
        let last = self.0.lock().unwrap().map(|owner| owner.expose());
        write!(f, "{inner:?}, last asked by {last:?}")
    }
}

#[derive(Debug, Default)]
struct AssumesItsRenewals;
#[async_trait]
impl Sabotage for AssumesItsRenewals {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let since = Moment::now();
        match tokio::time::timeout(Duration::from_millis(200), inner.renew(claims)).await {
            Ok(answers) => answers,
            Err(_) => {
                let held = |claim: &&Claim| {
                    let grant = Grant::new(Lease::For(claim.ttl), since);
                    Ok(Renewal::Held(match &claim.ticket {
                        Some(ticket) => grant.with_ticket(ticket.clone()),
                        None => grant,
                    }))
                };
                claims.iter().map(held).collect()
            }
        }
    }
}

#[derive(Debug, Default)]
struct GivesUpAtOnce;
#[async_trait]
impl Sabotage for GivesUpAtOnce {
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let answers = inner.renew(claims).await.into_iter();
        answers.map(|answer| Ok(answer.unwrap_or(Renewal::NotHeld))).collect()
    }
}

/// As a connection that is out of step.
#[derive(Debug, Default)]
struct RepeatsItsLastAnswer {
    last: Mutex<Option<Release>>,
}
#[async_trait]
impl Sabotage for RepeatsItsLastAnswer {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        let answer = inner.release(claim, how).await?;
        let last = self.last.lock().expect("nobody panics here").replace(answer);
        Ok(last.unwrap_or(answer))
    }
}

#[derive(Debug, Default)]
struct NeverReconnects {
    broken: AtomicBool,
}
impl NeverReconnects {
    fn pass(&self) -> Result<(), Fault> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Fault::not_applied(FaultKind::Unavailable, "the connection is gone"));
        }
        Ok(())
    }

    fn note<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if answer.is_err() {
            self.broken.store(true, Ordering::SeqCst);
        }
        answer
    }
}
#[async_trait]
impl Sabotage for NeverReconnects {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        self.pass()?;
        self.note(inner.try_acquire(claim).await)
    }
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        self.pass()?;
        self.note(inner.wait(claim).await)
    }
}

#[derive(Debug, Default)]
struct BlocksItsThread;
#[async_trait]
impl Sabotage for BlocksItsThread {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        match tokio::time::timeout(Duration::from_secs(1), inner.try_acquire(claim)).await {
            Ok(answer) => answer,
            Err(_) => {
                #[expect(clippy::disallowed_methods, reason = "that is the sabotage")]
                std::thread::sleep(Duration::from_secs(8));
                Err(Fault::unknown(FaultKind::TimedOut, "at last"))
            }
        }
    }
}

#[derive(Debug, Default)]
struct CountsFromTheWord;
#[async_trait]
impl Sabotage for CountsFromTheWord {
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        let mut wake = inner.wait(claim).await?;
        if let Wake::Granted(grant) = &mut wake {
            grant.since = Moment::now();
        }
        Ok(wake)
    }
}

#[derive(Debug, Default)]
struct ForgetsFailedReleases;
#[async_trait]
impl Sabotage for ForgetsFailedReleases {
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: LetGo,
    ) -> Result<Release, Fault> {
        match tokio::time::timeout(Duration::from_millis(200), inner.release(claim, how)).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Ok(Release::Released),
        }
    }
}
