//! Saboteurs: backends that are broken in one way each, around one that is not. A check that does
//! not catch its saboteurs checks nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, FaultKind, Grant, Identity, Lease, LetGo, Listed, LockState, Release,
    Renewal, Wake,
};
use lock_core::clock::Moment;
use lock_core::{Backend, Capabilities, Executor, FencingToken, LockName, OwnerId};

use crate::harness::{Harness, Pace, Script, ServerProcess};
use crate::network::Network;
use crate::simulation::Site;

mod cancellation;
mod exclusion;
mod fencing;
mod inspection;
mod limits;
mod loss;
mod network;
mod outcomes;
mod release;
mod renewal;
mod secrets;
mod server;
mod waiting;

use release::{NeverReleases, RetriesReleasesBlindly};
use renewal::NeverRenews;

/// One way to be broken.
#[derive(Clone, Copy)]
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
    ($how:ident $(, $law:literal)*) => {
        Saboteur {
            name: stringify!($how),
            caught_by: &[$($law),*],
            make: || std::sync::Arc::new($how::default()),
        }
    };
}
use saboteur;

/// All saboteurs.
#[must_use]
pub fn all() -> &'static [Saboteur] {
    &SABOTEURS
}

/// Those that are made for whole runs of many clients: no check is shown them.
#[must_use]
pub fn of_runs() -> &'static [Saboteur] {
    OF_RUNS
}

static OF_RUNS: &[Saboteur] =
    &[saboteur!(RetriesReleasesBlindly), saboteur!(NeverRenews), saboteur!(NeverReleases)];

/// In the order of the laws' chapters.
static SABOTEURS: LazyLock<Vec<Saboteur>> = LazyLock::new(|| {
    let chapters = [
        exclusion::SABOTEURS,
        renewal::SABOTEURS,
        loss::SABOTEURS,
        release::SABOTEURS,
        fencing::SABOTEURS,
        waiting::SABOTEURS,
        cancellation::SABOTEURS,
        outcomes::SABOTEURS,
        inspection::SABOTEURS,
        limits::SABOTEURS,
        secrets::SABOTEURS,
        network::SABOTEURS,
        server::SABOTEURS,
    ];
    chapters.concat()
});

/// What a saboteur changes: every verb does what the inner backend does, unless overridden.
#[async_trait]
trait Sabotage: fmt::Debug + Send + Sync + 'static {
    /// A client is connected, on the runtime of the caller.
    fn connects(&self) {}
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
        self.sabotage.connects();
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
    fn executor(&self) -> Option<Executor> {
        self.inner.executor()
    }

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

fn unavailable() -> Fault {
    Fault::not_applied(FaultKind::Unavailable, "not now")
}
