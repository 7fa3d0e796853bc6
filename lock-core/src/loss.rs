//! The reasons for which a hold ends: [`Loss`].

use std::fmt;

/// Why a lock is not held any more. Terminal: a late acknowledgement never revives a lost lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// The deadline passed and no renewal had been acknowledged in time, or none was to be made.
    Expired,
    /// The backend said that the lock is not held any more: it expired, was broken, or was removed.
    NotHeld,
    /// The longest total hold that the renewal policy allows is over.
    HoldLimit,
    /// Nothing renews the lock: this process is a fork of the one that won it, or the runtime that
    /// was given to the locker was shut down.
    RuntimeGone,
    /// Not a loss: the guard released the lock. Seen by signals that outlive their guard.
    Released,
}

impl Loss {
    /// The reasons for which a lock is lost.
    pub(crate) const CAUSES: [Self; 4] =
        [Self::Expired, Self::NotHeld, Self::HoldLimit, Self::RuntimeGone];

    /// Returns the name of the reason in metrics and traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotHeld => "not_held",
            Self::HoldLimit => "hold_limit",
            Self::RuntimeGone => "runtime_gone",
            Self::Released => "released",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ended before a renewal was acknowledged",
            Self::NotHeld => "the backend says that it is not held by us any more",
            Self::HoldLimit => "the longest hold that was allowed is over",
            Self::RuntimeGone => {
                "what renewed it is gone: this process is a fork, or a runtime was shut down"
            }
            Self::Released => "it was released",
        })
    }
}
