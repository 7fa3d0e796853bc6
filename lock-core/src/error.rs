//! One error type for users of locks.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::fault::{Effect, Fault, FaultKind};
use crate::name::LockName;

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// A failure: its kind, lock and backend, whether it may have been applied, and advice.
///
/// Act on [`kind`](Self::kind), not on the message. `Display` is one line in lower case; the cause
/// from the backend, if there is one, is the [`source`](std::error::Error::source). A request that
/// the backend cannot accept is an exception: `Display` includes its cause, because only that says
/// what to change. Neither holds credentials or whole owner ids. Contention is not an error: the
/// methods that try return `None`.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    effect: Effect,
    doing: Option<&'static str>,
    lock: Option<LockName>,
    backend: Option<&'static str>,
    message: Cow<'static, str>,
    free_within: Option<Duration>,
    retry_after: Option<Duration>,
    source: Option<Source>,
}

/// The kinds of failure, for a program to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Bad input: a name, a duration, an owner id, a URL. Found before anything was sent, or
    /// refused by the backend as it is.
    Invalid,
    /// The backend does not declare the requested capability. Found before anything was sent.
    Unsupported,
    /// The backend cannot be reached, or refuses work for now. Trying again may help.
    Unavailable,
    /// The backend did not answer within the bound of the call. Trying again may help.
    Timeout,
    /// Wrong credentials or missing rights. Trying again does not help.
    Denied,
    /// The lock was lost before this call; the guard was notified (see [`Loss`](crate::Loss)).
    Lost,
    /// The backend says that the lock was not ours any more when it was asked to release it.
    NotHeld,
    /// The lock is gone, but whether this call released it cannot be known: an earlier request went
    /// unanswered, and when it was repeated the lock was not there any more.
    Gone,
    /// The backend issued a fencing token lower than one seen before, or a resource has seen a
    /// higher one than was shown to it. The grant was released.
    FenceRegressed,
    /// More acquisitions are under way at once than the locker allows.
    Exhausted,
    /// The locker was closed.
    Closed,
    /// There is no [`Executor`](crate::Executor): this process is a fork of the one that connected,
    /// or the runtime that was given to the locker has ended.
    NoRuntime,
    /// The backend broke its contract: it panicked, or gave an answer that the trait forbids.
    BackendBroken,
}

impl ErrorKind {
    /// All kinds, each at its own index.
    pub(crate) const ALL: [Self; 13] = [
        Self::Invalid,
        Self::Unsupported,
        Self::Unavailable,
        Self::Timeout,
        Self::Denied,
        Self::Lost,
        Self::NotHeld,
        Self::Gone,
        Self::FenceRegressed,
        Self::Exhausted,
        Self::Closed,
        Self::NoRuntime,
        Self::BackendBroken,
    ];

    /// Returns the name of the kind in metrics and traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Denied => "denied",
            Self::Lost => "lost",
            Self::NotHeld => "not_held",
            Self::Gone => "gone",
            Self::FenceRegressed => "fence_regressed",
            Self::Exhausted => "exhausted",
            Self::Closed => "closed",
            Self::NoRuntime => "no_runtime",
            Self::BackendBroken => "backend_broken",
        }
    }
}

impl From<FaultKind> for ErrorKind {
    fn from(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Unavailable => Self::Unavailable,
            FaultKind::Denied => Self::Denied,
            FaultKind::Unsupported => Self::Unsupported,
            FaultKind::Invalid => Self::Invalid,
            FaultKind::TimedOut => Self::Timeout,
            FaultKind::Broken => Self::BackendBroken,
        }
    }
}

impl Error {
    /// Creates an error with a message of its own. For backends and front ends; it starts in lower
    /// case.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            effect: Effect::NotApplied,
            doing: None,
            lock: None,
            backend: None,
            message: message.into(),
            free_within: None,
            retry_after: None,
            source: None,
        }))
    }

    /// Returns the kind, to decide on.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the operation may have been applied on the backend all the same. The residue
    /// of an [`Effect::Unknown`] is cleaned up in the background.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Returns true if the same call may succeed later. Depends on the kind alone.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Exhausted)
    }

    /// Returns the time after which another client can hold the lock, after a release with unknown
    /// outcome, counted from when the error was made. It includes the backend's
    /// [`takeover`](crate::Capabilities::takeover), since servers may keep a lock for longer than
    /// its lease.
    ///
    /// `None` if nothing is left to wait for, if the backend has no leases, or if it refuses to let
    /// the lock go and keeps it for as long as its session goes on.
    #[must_use]
    pub fn free_within(&self) -> Option<Duration> {
        self.0.free_within
    }

    /// Returns how long the backend is certainly not ready, counted from when the error was made. A
    /// quorum of restarted members has such a time. The same call may succeed after it. `None` if
    /// it is unknown, as in most outages.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns the lock it happened on.
    #[must_use]
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// Returns the name of the backend it happened on.
    #[must_use]
    pub fn backend(&self) -> Option<&'static str> {
        self.0.backend
    }

    /// Attaches the cause: an error, a text, or [the source of a fault](Fault::into_source).
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into().into());
        self
    }

    pub(crate) fn from_fault(fault: Fault) -> Self {
        let message = match fault.kind() {
            FaultKind::Unavailable if fault.retry_after().is_some() => {
                "the backend is not ready yet; wait until it is"
            }
            FaultKind::Unavailable => {
                "the backend is unavailable; check that it runs and is reachable"
            }
            FaultKind::Denied => "the backend refuses access; check credentials and rights",
            FaultKind::Unsupported => "the backend cannot do this",
            FaultKind::Invalid => "the backend cannot accept this request",
            FaultKind::TimedOut => {
                "the backend did not answer in time; it may be down or overloaded"
            }
            FaultKind::Broken => "the backend broke its contract",
        };
        let (effect, retry_after) = (fault.effect(), fault.retry_after());
        let mut error = Self::new(fault.kind().into(), message).applied(effect);
        error.0.retry_after = retry_after;
        error.with_source(fault.into_source())
    }

    pub(crate) fn applied(mut self, effect: Effect) -> Self {
        self.0.effect = effect;
        self
    }

    pub(crate) fn with_free_within(mut self, bound: Option<Duration>) -> Self {
        self.0.free_within = bound;
        self
    }

    /// Adds the operation, the lock and the backend, unless a deeper layer has added them.
    pub(crate) fn during(
        mut self,
        doing: &'static str,
        lock: Option<&LockName>,
        backend: &'static str,
    ) -> Self {
        self.0.doing.get_or_insert(doing);
        self.0.lock = self.0.lock.or_else(|| lock.cloned());
        self.0.backend.get_or_insert(backend);
        self
    }
}

/// Names the verb, the lock, the backend and the reason. `{:#}` adds the causes. The first cause of
/// a refusal is always there: only that says what to change.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, doing, lock, backend, message, .. } = &*self.0;
        if let Some(doing) = doing {
            write!(f, "cannot {doing}")?;
            if let Some(lock) = lock {
                write!(f, " lock {lock}")?;
            }
            if let Some(backend) = backend {
                write!(f, " on {backend}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(message)?;
        let is_refusal = matches!(kind, ErrorKind::Invalid | ErrorKind::Unsupported);
        let mut cause = std::error::Error::source(self).filter(|_| is_refusal || f.alternate());
        while let Some(source) = cause {
            write!(f, ": {source}")?;
            cause = source.source().filter(|_| f.alternate());
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("effect", &self.0.effect)
            .field("message", &self.to_string())
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn display_says_what_where_and_why_and_leaves_the_cause_to_source() {
        let fault = Fault::unknown(FaultKind::Unavailable, "connection reset");
        let name = LockName::new("orders/42").unwrap();
        let error = Error::from_fault(fault).during("acquire", Some(&name), "redis");
        let shown = error.to_string();
        assert!(shown.starts_with("cannot acquire lock \"orders/42\" on redis: "), "{shown}");
        assert!(!shown.contains("connection reset"), "{shown}");
        assert_eq!(format!("{error:#}"), format!("{shown}: connection reset"));
        assert_eq!(error.source().unwrap().to_string(), "connection reset");
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.is_retryable());
    }

    #[test]
    fn a_refusal_is_shown_with_its_cause_and_once() {
        for kind in [FaultKind::Invalid, FaultKind::Unsupported] {
            let error = Error::from_fault(Fault::not_applied(kind, "the quota is used up"));
            let shown = error.to_string();
            assert!(shown.ends_with(": the quota is used up"), "{shown}");
            assert_eq!(format!("{error:#}"), shown);
            assert!(error.source().is_some());
        }
    }

    #[test]
    fn an_outage_of_known_length_says_so() {
        let fault = || Fault::unknown(FaultKind::Unavailable, "restarted");
        let after = Some(Duration::from_secs(9));
        let error = Error::from_fault(fault().with_retry_after(after).repeated());
        assert_eq!(error.retry_after(), after);
        assert!(error.to_string().contains("not ready yet"), "{error}");
        assert_eq!(Error::from_fault(fault()).retry_after(), None);
    }

    #[test]
    fn the_innermost_context_wins() {
        let error = Error::new(ErrorKind::Invalid, "no")
            .during("renew", None, "a")
            .during("release", None, "b");
        assert_eq!(error.to_string(), "cannot renew on a: no");
    }

    #[test]
    fn an_error_is_small_and_travels_between_threads() {
        fn travels<T: Send + Sync + 'static>() {}
        travels::<Error>();
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
