//! The modes of a release, and its answers.

use std::time::Duration;

/// The mode of a release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseMode {
    /// Whether an attempt of this claim may still reach the server.
    pub late_attempt: LateAttempt,
    /// Keep others out for this much longer, and not longer, instead of letting them in now. Only
    /// set where [`Capabilities::minimum_hold`](crate::Capabilities::minimum_hold) declares it.
    pub keep: Option<Duration>,
}

impl ReleaseMode {
    /// Releases at once; no attempt of the claim is under way any more.
    #[must_use]
    pub fn now() -> Self {
        Self::default()
    }

    /// Releases as [`now`](Self::now) does, after an attempt with an unknown outcome.
    #[must_use]
    pub fn after_unknown_outcome() -> Self {
        Self { late_attempt: LateAttempt::Possible, ..Self::default() }
    }

    /// Returns whether an attempt of this claim may still reach the server.
    #[must_use]
    pub fn expects_late_attempt(self) -> bool {
        self.late_attempt == LateAttempt::Possible
    }

    /// Releases after `keep` from now.
    #[must_use]
    pub fn keep_for(keep: Duration) -> Self {
        Self { keep: Some(keep), ..Self::default() }
    }
}

/// Whether an attempt of a released claim may still reach the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LateAttempt {
    /// Each attempt was answered.
    #[default]
    Excluded,
    /// One may arrive later. A backend that can makes sure that it is refused.
    Possible,
}

impl From<bool> for LateAttempt {
    fn from(possible: bool) -> Self {
        if possible { Self::Possible } else { Self::Excluded }
    }
}

/// The answer to a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Release {
    /// This claim held the lock until this call.
    Released,
    /// It did not: it was never granted, expired, was broken, or was released before.
    NotHeld,
}
