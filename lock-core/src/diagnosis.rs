//! Findings about the servers of a backend: their guarantees, and the limits of these.
//!
//! Each backend checks its own servers. `lock_any::diagnose` calls the checks of the backend that a
//! URL names, and `lockctl doctor` prints their findings.

use std::fmt;
use std::time::Duration;

/// The result of one check of a server.
///
/// ```
/// use lock_core::diagnosis::{Finding, Severity};
///
/// let finding = Finding::warning("eviction", "maxmemory-policy is allkeys-lru: the server may drop locks")
///     .remedy("set maxmemory-policy to noeviction");
/// assert_eq!(finding.severity, Severity::Warning);
/// assert!(finding.to_string().starts_with("warning  eviction: "));
/// ```
///
/// `Display` shows one line. A finding contains no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How the finding bears on the promises of the locks.
    pub severity: Severity,
    /// The server that was checked, where the backend has several: an address, or the place of a
    /// quorum member.
    pub server: Option<String>,
    /// The name of the check, in lower case, the same in every version.
    pub check: &'static str,
    /// The observation, and why it matters.
    pub text: String,
    /// How to mend it.
    pub remedy: Option<String>,
}

/// How a [`Finding`] bears on the promises of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The server does what the backend promises.
    Ok,
    /// A promise is weaker than usual, or the check could not be made.
    Warning,
    /// Locks cannot be acquired, or they exclude nothing.
    Failure,
}

impl Finding {
    /// Returns a finding that the server does what the backend promises.
    #[must_use]
    pub fn ok(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Ok, check, text.into())
    }

    /// Returns a finding that a promise is weaker than usual.
    #[must_use]
    pub fn warning(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Warning, check, text.into())
    }

    /// Returns a finding that locks cannot be acquired, or that they exclude nothing.
    #[must_use]
    pub fn failure(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Severity::Failure, check, text.into())
    }

    /// Returns a warning that a check could not be made, because of `why`.
    #[must_use]
    pub fn unseen(check: &'static str, why: impl fmt::Display) -> Self {
        Self::warning(check, format!("could not be seen: {why}"))
    }

    /// Returns the finding with a way to mend it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// Returns the finding as that of `server`.
    #[must_use]
    pub fn of_server(self, server: impl Into<String>) -> Self {
        Self { server: Some(server.into()), ..self }
    }

    fn new(severity: Severity, check: &'static str, text: String) -> Self {
        Self { severity, server: None, check, text, remedy: None }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7}  ", self.severity.as_str())?;
        if let Some(server) = &self.server {
            write!(f, "{server}: ")?;
        }
        write!(f, "{}: {}", self.check, self.text)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

/// Returns the value that at least `percent` percent of `sorted` do not exceed: a duration that was
/// measured, or zero if none was.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

impl Severity {
    /// Returns the name in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<_> = (1..=50).map(Duration::from_millis).collect();
        assert_eq!(percentile(&sorted, 50), Duration::from_millis(25));
        assert_eq!(percentile(&sorted, 99), Duration::from_millis(50));
        assert_eq!(percentile(&sorted[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 99), Duration::ZERO);
    }
}
