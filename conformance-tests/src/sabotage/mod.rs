//! Saboteurs: backends that are broken in one way each, around one that is not. A check that does
//! not catch its saboteurs checks nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, FaultKind, Grant, Lease, Renewal, Wake};
use lock_core::clock::Moment;
use lock_core::layer::{Layer, Layered};
use lock_core::{Backend, FencingToken, LockName, OwnerId};

use crate::harness::{ClockMode, Harness, Script, ServerProcess};
use crate::network::Network;

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
    make: fn() -> Arc<dyn Layer>,
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

struct Infiltrated {
    harness: Box<dyn Harness>,
    sabotage: Arc<dyn Layer>,
}

impl Infiltrated {
    fn sabotaged(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Layered::<dyn Layer>::new(inner, Arc::clone(&self.sabotage)))
    }
}

#[async_trait]
impl Harness for Infiltrated {
    fn clock_mode(&self) -> ClockMode {
        self.harness.clock_mode()
    }
    async fn client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client().await)
    }
    async fn client_with_faults(&self, script: Script) -> Arc<dyn Backend> {
        // Outside of the faults: a client library that is broken, on a network that is.
        self.sabotaged(self.harness.client_with_faults(script).await)
    }
    async fn client_of(&self, process: usize, script: Script) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client_of(process, script).await)
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
    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.proxied_client().await)
    }
    fn server(&self) -> Option<&dyn ServerProcess> {
        self.harness.server()
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
