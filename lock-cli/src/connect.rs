//! Connections to a backend that supports a verb.

use std::time::Duration;

use lock_any::{Capabilities, Label, Locker, Reach, Support};

use crate::exit::Failure;
use crate::signals::Signals;

/// The lease that core asks for by default.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The capabilities that some backends lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capability {
    Detached,
    Inspecting,
    Listing,
    Breaking,
}

impl Capability {
    fn support(self, capabilities: &Capabilities) -> Support {
        match self {
            Self::Detached => capabilities.detached,
            Self::Inspecting => capabilities.inspecting,
            Self::Listing => capabilities.listing,
            Self::Breaking => capabilities.breaking,
        }
    }

    /// Returns the text for a missing capability, and the backends that have it. For advice only:
    /// the declared capabilities decide. Tests compare the two.
    fn missing(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Detached => ("has no detached leases", &["file:", "redis:", "memcache:"]),
            Self::Inspecting => {
                ("cannot show who holds a lock", &["file:", "redis:", "memcache:", "zookeeper:"])
            }
            Self::Listing => ("does not know all of its locks", &["zookeeper:"]),
            Self::Breaking => (
                "cannot end the hold of another client",
                &["file:", "redis:", "memcache:", "zookeeper:"],
            ),
        }
    }
}

/// Returns the lease to ask for: the option's, else the URL's, else the default.
pub(crate) fn ttl(url: &str, option: Option<Duration>) -> Result<Duration, Failure> {
    let from_url = lock_any::ttl_of(url)?;
    Ok(option.or(from_url).unwrap_or(DEFAULT_TTL))
}

/// Returns the directory of the locks of the file backend: other users may have another one.
#[cfg(feature = "file")]
pub(crate) fn directory_of(url: &str) -> Option<String> {
    lock_any::directory_of(url).map(|directory| directory.to_string_lossy().into_owned())
}

#[cfg(not(feature = "file"))]
pub(crate) fn directory_of(_: &str) -> Option<String> {
    None
}

/// Connects; other clients see `label` as the holder.
pub(crate) async fn connect_as(label: Label, url: &str) -> Result<Locker, Failure> {
    Ok(lock_any::connect_with(url, |builder| builder.label(label)).await?)
}

/// Connects for a verb about locks that outlive lockctl, which needs all of `needs`.
pub(crate) async fn connect_for(
    verb: &str,
    needs: &[Capability],
    url: &str,
) -> Result<Locker, Failure> {
    // No signal is caught: a verb that only reads dies of a signal as other programs do.
    let _ = Signals::catch(&[])?;
    let locks = connect_as(Label::host_and_pid(), url).await?;
    require(&locks, verb, needs)?;
    Ok(locks)
}

/// Refuses a backend without the capabilities that a verb needs.
pub(crate) fn require(locks: &Locker, verb: &str, needs: &[Capability]) -> Result<(), Failure> {
    let capabilities = locks.capabilities();
    let backend = capabilities.backend;
    if capabilities.reach == Reach::Process {
        return Err(Failure::usage(format!(
            "cannot {verb}: the locks of the {backend} backend end with the process that took \
             them; use one that outlives it, as file: and redis: do"
        )));
    }
    let Some(lacking) = needs.iter().find(|need| need.support(capabilities) == Support::Absent)
    else {
        return Ok(());
    };
    let (missing, elsewhere) = lacking.missing();
    let advice = match elsewhere {
        [] => String::new(),
        able => format!("; backends that can: {}", able.join(", ")),
    };
    Err(Failure::usage(format!("cannot {verb}: the {backend} backend {missing}{advice}")))
}
