//! The context of a check: clients, bounds and helpers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, Grant, OnContention, ReleaseMode};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Call, Injection};
use lock_core::{Backend, Capabilities, Error, LockName, Locker, LockerBuilder, OwnerId, Takeover};

use crate::harness::{ClockMode, CrashableClient, Harness, Script, ServerProcess, TestEnv};
use crate::network::Network;

/// A broken promise, as a sentence about the observed behaviour.
#[derive(Debug)]
pub struct Violation(pub String);

/// The outcome of a check.
pub type Verdict = Result<(), Violation>;

/// Ends a check unless the condition holds; the message states the violation.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Violation(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// Ends a check; the message states the violation.
macro_rules! violated {
    ($($message:tt)+) => {
        return Err($crate::Violation(format!($($message)+)))
    };
}
pub(crate) use violated;

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Violation {
    fn from(error: Error) -> Self {
        Self(format!("an operation failed: {error:#}"))
    }
}

impl From<Fault> for Violation {
    fn from(fault: Fault) -> Self {
        Self(format!("a verb failed: {}", with_causes(&fault)))
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A lock space under check.
pub struct Ctx {
    harness: Box<dyn Harness>,
    /// The capabilities that the backend declares.
    pub caps: Capabilities,
    pub(crate) env: TestEnv,
}

impl Ctx {
    /// Makes a context. A first client tells the declared capabilities.
    pub async fn new(harness: Box<dyn Harness>) -> Self {
        let env = TestEnv::of(&*harness).await;
        Self { harness, caps: env.caps, env }
    }

    /// Returns a client with a connection of its own.
    pub async fn client(&self) -> Arc<dyn Backend> {
        self.harness.client().await
    }

    /// Returns a client that can crash.
    pub async fn crashable_client(&self) -> CrashableClient {
        self.harness.crashable_client().await
    }

    /// Returns a locker on a client of its own.
    pub async fn locker(&self) -> Locker {
        self.on(self.client().await).build()
    }

    /// Returns the builder of a locker whose calls fail as `script` says.
    pub async fn with_faults(
        &self,
        script: impl Fn(&Call<'_>) -> Injection + Send + Sync + 'static,
    ) -> LockerBuilder {
        let script: Script = Box::new(script);
        self.on(self.harness.client_with_faults(script).await)
    }

    /// Returns a client whose connection goes through the [network](Self::network).
    pub async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.harness.proxied_client().await
    }

    /// Returns a locker on a proxied client whose connection is established.
    pub async fn proxied_locker(&self) -> Result<Locker, Violation> {
        let locks = self.on(self.proxied_client().await).build();
        locks.lock("first use")?.acquire().await?.release().await?;
        Ok(locks)
    }

    /// Returns the network of the proxied clients.
    ///
    /// # Panics
    ///
    /// Panics if the law does not declare that it needs one.
    #[must_use]
    pub fn network(&self) -> &Network {
        self.harness.network().expect("the law asks for a network")
    }

    /// Returns the server's process.
    ///
    /// # Panics
    ///
    /// Panics if the law does not declare that it needs one.
    #[must_use]
    pub fn server(&self) -> &dyn ServerProcess {
        self.harness.server().expect("the law asks for a server")
    }

    fn on(&self, backend: Arc<dyn Backend>) -> LockerBuilder {
        Locker::builder_from(backend).timeout(self.timeout()).default_ttl(self.ttl())
    }

    /// Returns the bound of one call in these checks.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Returns a lease that is short for this backend.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        match self.harness.clock_mode() {
            ClockMode::Paused => Duration::from_secs(10),
            // Long enough that a stall of a loaded machine is not an expiry.
            ClockMode::Real if self.has_leases() => Duration::from_secs(3),
            ClockMode::Real => Duration::from_secs(1),
        }
        .max(self.caps.ttl_min)
    }

    /// Returns whether holds end by themselves.
    #[must_use]
    pub fn has_leases(&self) -> bool {
        self.caps.takeover != Takeover::AtOnce
    }

    /// Returns the time after which the lock of a crashed holder is free.
    ///
    /// It counts from the holder's last renewal.
    #[must_use]
    pub fn takeover_bound(&self) -> Duration {
        match self.caps.takeover {
            Takeover::AtOnce => Duration::ZERO,
            Takeover::LeasePlus(slack) => self.ttl() + slack,
        }
    }

    /// Returns the time that a loaded machine may add to a bound. No promise is about speed.
    #[must_use]
    pub fn slack(&self) -> Duration {
        match self.harness.clock_mode() {
            ClockMode::Paused => Duration::from_millis(50),
            ClockMode::Real => Duration::from_secs(2),
        }
    }

    /// Makes a claim with a new owner id. It is queued if it `waits`.
    #[must_use]
    pub fn claim(&self, name: &LockName, waits: bool) -> Claim {
        let mut claim = Claim::new(name.clone(), OwnerId::mint(), self.ttl());
        claim.on_contention = if waits { OnContention::Queue } else { OnContention::Return };
        claim
    }

    /// Acquires a free lock for `claim`.
    pub async fn win(&self, backend: &dyn Backend, claim: &mut Claim) -> Result<Grant, Violation> {
        match backend.try_acquire(claim).await? {
            Attempt::Acquired(grant) => {
                claim.ticket.clone_from(&grant.ticket);
                Ok(grant)
            }
            Attempt::Contended { .. } => {
                Err(Violation(format!("an attempt on the free lock {} was contended", claim.name)))
            }
        }
    }

    /// Returns whether another client finds the lock free. It acquires and releases it.
    pub async fn is_free(&self, name: &LockName) -> Result<bool, Violation> {
        let other = self.client().await;
        let claim = self.claim(name, false);
        match other.try_acquire(&claim).await? {
            Attempt::Contended { .. } => Ok(false),
            Attempt::Acquired(grant) => {
                let mut claim = claim;
                claim.ticket = grant.ticket;
                other.release(&claim, ReleaseMode::now()).await?;
                Ok(true)
            }
        }
    }

    /// Waits until another client finds the lock free. Returns false after `bound`.
    pub async fn becomes_free(&self, name: &LockName, bound: Duration) -> Result<bool, Violation> {
        let end = Moment::now() + bound;
        loop {
            if self.is_free(name).await? {
                return Ok(true);
            }
            if end.has_passed() {
                return Ok(false);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Removes a held lock without its holder. Returns false if there is no way.
    pub async fn take_away(&self, name: &LockName, owner: &OwnerId) -> Result<bool, Violation> {
        if self.harness.can_evict() {
            return Ok(self.harness.evict(name).await);
        }
        if self.caps.breaking == lock_core::Support::Present {
            return Ok(self.client().await.break_lock(name, owner).await?);
        }
        Ok(false)
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx").field("caps", &self.caps).finish_non_exhaustive()
    }
}
