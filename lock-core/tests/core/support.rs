//! Support for the tests: a backend around a backend whose capabilities and grants a test alters.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Claim, Fault, Grant, Identity, Listed, LockState, Release, ReleaseMode, Renewal, Wake,
};
use lock_core::clock::sleep;
use lock_core::{Backend, Capabilities, Executor, LockName, Order, OwnerId, Wakeup};
use tokio::runtime::{Builder, Runtime};

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Lets time pass, and blocks this thread meanwhile.
#[expect(clippy::disallowed_methods, reason = "no runtime is driven meanwhile")]
pub(crate) fn pass(duration: Duration) {
    std::thread::sleep(duration);
}

/// A runtime with one worker thread.
pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// A backend that forwards every verb to another one.
pub(crate) struct Altered {
    inner: Arc<dyn Backend>,
    caps: fn(&mut Capabilities),
    grant: Box<dyn Fn(Grant) -> Grant + Send + Sync>,
    release: Box<Releases>,
    renewal: Box<Renewals>,
    executor: Option<Executor>,
}

type Releases = dyn Fn(&Claim, ReleaseMode) + Send + Sync;
type Renewals = dyn Fn(&[&Claim], Answers) -> Answers + Send + Sync;
type Answers = Vec<Result<Renewal, Fault>>;

impl Altered {
    pub(crate) fn new(inner: impl Backend, caps: fn(&mut Capabilities)) -> Self {
        let (grant, release) = (Box::new(|grant| grant), Box::new(|_: &Claim, _| ()));
        let renewal = Box::new(|_: &[&Claim], answers| answers);
        Self { inner: Arc::new(inner), caps, grant, release, renewal, executor: None }
    }

    /// Without a queue on the backend: waiters poll.
    pub(crate) fn polled(inner: impl Backend) -> Self {
        Self::new(inner, |caps| {
            caps.order = Order::PerProcess;
            caps.wakeup = Wakeup::Poll;
        })
    }

    /// Alters each grant: of attempts, of renewals, and pushed.
    pub(crate) fn grants(mut self, alter: impl Fn(Grant) -> Grant + Send + Sync + 'static) -> Self {
        self.grant = Box::new(alter);
        self
    }

    /// Alters the answers to each batch of renewals.
    pub(crate) fn renewals(
        mut self,
        alter: impl Fn(&[&Claim], Answers) -> Answers + Send + Sync + 'static,
    ) -> Self {
        self.renewal = Box::new(alter);
        self
    }

    /// Its tasks run there.
    pub(crate) fn within(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    /// Shows each release before it is forwarded.
    pub(crate) fn releases(
        mut self,
        show: impl Fn(&Claim, ReleaseMode) + Send + Sync + 'static,
    ) -> Self {
        self.release = Box::new(show);
        self
    }
}

impl std::fmt::Debug for Altered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Altered").field(&self.inner).finish()
    }
}

#[async_trait]
impl Backend for Altered {
    fn capabilities(&self) -> Capabilities {
        let mut caps = self.inner.capabilities();
        (self.caps)(&mut caps);
        caps
    }
    fn executor(&self) -> Option<Executor> {
        self.executor.clone()
    }
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.inner.identity().await
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match self.inner.try_acquire(claim).await? {
            Attempt::Acquired(grant) => Attempt::Acquired((self.grant)(grant)),
            contended @ Attempt::Contended { .. } => contended,
        })
    }
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        if self.capabilities().wakeup == Wakeup::Poll {
            sleep(millis(20)).await;
            return Ok(Wake::Retry);
        }
        Ok(match self.inner.wait(claim).await? {
            Wake::Granted(grant) => Wake::Granted((self.grant)(grant)),
            other => other,
        })
    }
    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.inner.wait_lost(claim).await
    }
    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let answers = self.inner.renew(claims).await.into_iter();
        let altered = answers.map(|answer| match answer {
            Ok(Renewal::Held(grant)) => Ok(Renewal::Held((self.grant)(grant))),
            other => other,
        });
        (self.renewal)(claims, altered.collect())
    }
    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        (self.release)(claim, how);
        self.inner.release(claim, how).await
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
