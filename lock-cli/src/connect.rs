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
            Self::Inspecting => (
                "cannot show the holder of a lock",
                &["file:", "redis:", "memcache:", "zookeeper:"],
            ),
            Self::Listing => ("keeps no list of its locks", &["file:", "redis:", "zookeeper:"]),
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

/// Returns the directory of the file backend, because that of other users may differ.
#[cfg(feature = "file")]
pub(crate) fn directory_of(url: &str) -> Option<String> {
    lock_any::directory_of(url).map(|directory| directory.to_string_lossy().into_owned())
}

#[cfg(not(feature = "file"))]
pub(crate) fn directory_of(_: &str) -> Option<String> {
    None
}

/// Connects as a client that others see as `label`.
pub(crate) async fn connect_as(label: Label, url: &str) -> Result<Locker, Failure> {
    Ok(lock_any::connect_with(url, |builder| builder.label(label)).await?)
}

/// Connects for a list of locks, which may take longer than another call.
pub(crate) async fn connect_to_list(url: &str) -> Result<Locker, Failure> {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let _ = Signals::catch(&[])?;
    let locks = lock_any::connect_with(url, |builder| builder.timeout(TIMEOUT)).await?;
    require(&locks, "list the locks", &[Capability::Listing])?;
    Ok(locks)
}

/// Connects for a verb about locks that outlive lockctl. The backend must have all of `needs`.
pub(crate) async fn connect_for(
    verb: &str,
    needs: &[Capability],
    url: &str,
) -> Result<Locker, Failure> {
    // Catches no signal: such a verb dies of a signal, as other programs do.
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
            "cannot {verb}: the locks of the {backend} backend end with the process that \
             acquired them; use a backend whose locks outlive it, such as file: or redis:"
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
