//! Scripted faults: a backend around a backend that loses replies, hangs, is late, or panics, as a
//! script says. With [`Memory`](crate::Memory) inside and a paused clock, an hour of bad network
//! takes milliseconds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::Capabilities;
use crate::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Identity, Listed, LockState, Release, ReleaseMode,
    Renewal, Wake,
};
use crate::clock::sleep;
use crate::executor::Executor;
use crate::name::LockName;
use crate::owner::OwnerId;

/// The verbs of a backend that a script can disturb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Backend::try_acquire`].
    TryAcquire,
    /// [`Backend::wait`].
    Wait,
    /// [`Backend::wait_lost`].
    WaitLost,
    /// [`Backend::renew`].
    Renew,
    /// [`Backend::release`].
    Release,
}

/// One call of a verb, as a script sees it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// How many calls of this backend, of any verb, came before.
    pub nth: u64,
    /// The claim; the first one of a batch.
    pub claim: &'a Claim,
}

/// The fault to inject into a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Injection {
    /// Nothing.
    #[default]
    None,
    /// Refused: it certainly changes nothing.
    Refuse(FaultKind),
    /// Applied, and the reply is lost at once.
    LoseReply,
    /// Applied, and the reply never comes.
    HangAfter,
    /// Not applied, and no reply ever comes.
    Hang,
    /// Applied after this long, and answered then. Not applied if it is dropped before.
    DelayRequest(Duration),
    /// Applied at once, and answered after this long.
    DelayReply(Duration),
    /// Failed at once with an unknown outcome, and applied after this long: it was still in a
    /// socket. For [`Verb::TryAcquire`], [`Verb::Renew`] and [`Verb::Release`].
    LandLate(Duration),
    /// The backend panics.
    Panic,
}

type Script = dyn Fn(&Call<'_>) -> Injection + Send + Sync;

/// A backend with scripted faults.
#[derive(Clone)]
pub struct FaultInjector {
    inner: Arc<dyn Backend>,
    script: Arc<Script>,
    calls: Arc<AtomicU64>,
}

impl FaultInjector {
    /// Asks `script` before each call.
    pub fn new(
        inner: Arc<dyn Backend>,
        script: impl Fn(&Call<'_>) -> Injection + Send + Sync + 'static,
    ) -> Self {
        Self { inner, script: Arc::new(script), calls: Arc::default() }
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    fn injection(&self, verb: Verb, claim: &Claim) -> Injection {
        let nth = self.calls.fetch_add(1, Ordering::Relaxed);
        (self.script)(&Call { verb, nth, claim })
    }
}

/// Runs `verb` with `injection`; `late` is the same call again, which owns its arguments.
async fn injected<T>(
    injection: Injection,
    verb: impl Future<Output = Result<T, Fault>>,
    late: impl Future<Output = ()> + Send + 'static,
) -> Result<T, Fault> {
    let lost = || Fault::unknown(FaultKind::Unavailable, "the reply was lost");
    match injection {
        Injection::None => verb.await,
        Injection::Refuse(kind) => Err(Fault::not_applied(kind, "refused by the script")),
        Injection::LoseReply => verb.await.and_then(|_| Err(lost())),
        Injection::HangAfter => {
            let _ = verb.await;
            std::future::pending().await
        }
        Injection::Hang => std::future::pending().await,
        Injection::DelayRequest(delay) => {
            sleep(delay).await;
            verb.await
        }
        Injection::DelayReply(delay) => {
            let answer = verb.await;
            sleep(delay).await;
            answer
        }
        Injection::LandLate(delay) => {
            tokio::spawn(async move {
                sleep(delay).await;
                late.await;
            });
            Err(lost())
        }
        Injection::Panic => panic!("the script said so"),
    }
}

#[async_trait]
impl Backend for FaultInjector {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.identity().await
    }

    fn executor(&self) -> Option<Executor> {
        self.inner.executor()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let (inner, owned) = (Arc::clone(&self.inner), claim.clone());
        let late = async move { drop(inner.try_acquire(&owned).await) };
        injected(self.injection(Verb::TryAcquire, claim), self.inner.try_acquire(claim), late).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        injected(self.injection(Verb::Wait, claim), self.inner.wait(claim), async {}).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        injected(self.injection(Verb::WaitLost, claim), self.inner.wait_lost(claim), async {}).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let Some(first) = claims.first() else {
            return Vec::new();
        };
        let (inner, owned) =
            (Arc::clone(&self.inner), claims.iter().map(|&c| c.clone()).collect::<Vec<_>>());
        let late = async move { drop(inner.renew(&owned.iter().collect::<Vec<_>>()).await) };
        let verb = async { Ok(self.inner.renew(claims).await) };
        match injected(self.injection(Verb::Renew, first), verb, late).await {
            Ok(answers) => answers,
            Err(fault) => claims.iter().map(|_| Err(fault.repeated())).collect(),
        }
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        let (inner, owned) = (Arc::clone(&self.inner), claim.clone());
        let late = async move { drop(inner.release(&owned, how).await) };
        injected(self.injection(Verb::Release, claim), self.inner.release(claim, how), late).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.inner.inspect(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.inner.list(prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.inner.break_lock(name, expected).await
    }
}

impl fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultInjector").field("inner", &self.inner).finish_non_exhaustive()
    }
}
