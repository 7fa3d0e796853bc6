//! The failure of a verb: [`Fault`].

use std::fmt;
use std::time::Duration;

/// Whether a failed operation may have changed something on the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// It certainly changed nothing, now or later.
    NotApplied,
    /// It may have changed something, or may still do so.
    Unknown,
}

/// Why a verb failed. Contention is not a fault, and a fault is never reported as contention.
#[derive(Debug)]
pub struct Fault {
    effect: Effect,
    kind: FaultKind,
    retry_after: Option<Duration>,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// Unreachable, or refusing work for now: a waiter goes on trying.
    Unavailable,
    /// Wrong credentials, missing rights: trying again does not help.
    Denied,
    /// The backend does not do this.
    Unsupported,
    /// The server cannot take the request as it is.
    Invalid,
    /// No answer within the bound. Usually core's own finding.
    TimedOut,
    /// The backend broke its contract. Usually core's own finding: it caught a panic.
    Broken,
}

impl Fault {
    /// Creates a failure that certainly changed nothing.
    #[must_use]
    pub fn not_applied(
        kind: FaultKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { effect: Effect::NotApplied, kind, retry_after: None, source: source.into() }
    }

    /// Creates a failure after which the request may have been applied, or may still be.
    #[must_use]
    pub fn unknown(
        kind: FaultKind,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { effect: Effect::Unknown, kind, retry_after: None, source: source.into() }
    }

    /// Creates the fault of a verb that the backend does not declare.
    #[must_use]
    pub fn unsupported(what: &'static str) -> Self {
        Self::not_applied(FaultKind::Unsupported, what)
    }

    /// Adds how long the fault certainly lasts, for a server that will take requests by itself.
    #[must_use]
    pub fn with_retry_after(self, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..self }
    }

    /// Returns how long the fault certainly lasts, if that is known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns whether something may have changed.
    #[must_use]
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Returns the kind of the fault.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        self.kind
    }

    /// Returns the cause, in the backend's own words, without credentials.
    #[must_use]
    pub fn into_source(self) -> Box<dyn std::error::Error + Send + Sync> {
        self.source
    }

    /// Returns the same fault again, for another claim of the batch.
    #[must_use]
    pub fn repeated(&self) -> Self {
        let source = self.source.to_string().into();
        Self { effect: self.effect, kind: self.kind, retry_after: self.retry_after, source }
    }

    /// Returns true if waiting and asking again may help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, FaultKind::Unavailable | FaultKind::TimedOut)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = match self.effect {
            Effect::NotApplied => "not applied",
            Effect::Unknown => "outcome unknown",
        };
        write!(f, "{:?}, {effect}", self.kind)
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.source)
    }
}
