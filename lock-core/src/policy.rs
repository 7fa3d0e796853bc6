//! The policy by which a lock is renewed and kept: [`RenewalPolicy`].

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{Error, ErrorKind};
use crate::runtime_probe::RuntimeProbe;

/// Whether and how long a lock is renewed. The default renews at each third of the lease, for ever.
#[derive(Clone, Default)]
pub struct RenewalPolicy {
    off: bool,
    max_hold: Option<Duration>,
    probe: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    responds_within: Option<Duration>,
    /// Of one acquisition.
    runtime: Option<Arc<RuntimeProbe>>,
}

impl RenewalPolicy {
    /// Disables renewals: the lock ends with its ttl, also on backends without leases, unless
    /// [`extend`](crate::LockGuard::extend) is called.
    ///
    /// A shorter lease, as of a session, is renewed until the ttl is over all the same. A minimum
    /// hold that is kept in this process is renewed until it is over, too. No other request is sent
    /// meanwhile: if the lock is removed, the holder is notified at its deadline.
    #[must_use]
    pub fn off() -> Self {
        Self { off: true, ..Self::default() }
    }

    /// Ends the lock at the latest this long after its grant arrived, in spite of renewals and
    /// extensions.
    #[must_use]
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Asks `probe` before each renewal, and renews no more once it has said `false` or panicked.
    /// The lock then ends with its lease, or at once on backends without leases. It runs on the
    /// [executor](crate::Executor): it must not block.
    #[must_use]
    pub fn only_while(mut self, probe: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.probe = Some(Arc::new(probe));
        self
    }

    /// Renews no more once the runtime on which the lock was won has not run a task for `limit`:
    /// the application hangs, or has dropped that runtime. Without this, a lock is renewed as long
    /// as the process lives and the guard exists.
    ///
    /// Each renewal asks the runtime, and checks whether it has answered the one before. So the
    /// lock ends within `limit`, two intervals of renewals, and a lease; at once after the first
    /// two on backends without leases. An acquisition outside of any tokio runtime is refused.
    #[must_use]
    pub fn while_runtime_responds(mut self, limit: Duration) -> Self {
        self.responds_within = Some(limit);
        self
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.max_hold
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off
    }

    pub(crate) fn allows(&self) -> bool {
        let allows = |probe: &Arc<dyn Fn() -> bool + Send + Sync>| {
            catch_unwind(AssertUnwindSafe(|| probe())).unwrap_or(false)
        };
        self.probe.as_ref().is_none_or(allows)
            && self.runtime.as_ref().is_none_or(|runtime| runtime.responds())
    }
}

impl fmt::Debug for RenewalPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewalPolicy")
            .field("off", &self.off)
            .field("max_hold", &self.max_hold)
            .field("probe", &self.probe.is_some())
            .field("responds_within", &self.responds_within)
            .finish()
    }
}

/// How one hold is to be kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldPolicy {
    pub(crate) renewal: RenewalPolicy,
    pub(crate) min_hold: Option<Duration>,
}

impl HoldPolicy {
    /// Returns these terms for an acquisition on the runtime of the caller.
    pub(crate) fn for_caller(self: &Arc<Self>) -> Result<Arc<Self>, Error> {
        let Some(limit) = self.renewal.responds_within else { return Ok(Arc::clone(self)) };
        let Ok(runtime) = Handle::try_current() else {
            let message = "the policy asks for a runtime that responds, and there is none here";
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let mut policy = Self::clone(self);
        policy.renewal.runtime = Some(Arc::new(RuntimeProbe::new(runtime, limit)));
        Ok(Arc::new(policy))
    }
}
