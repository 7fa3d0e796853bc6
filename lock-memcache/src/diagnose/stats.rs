//! The statistics of a server.

use lock_core::backend::Fault;
use lock_core::diagnosis::Finding;

use crate::connection::{Connection, stat};

/// The pairs of names and values that a server reports.
pub(super) type Stats = [(String, String)];

/// Returns the statistics, and the settings with names that begin with `settings`.
pub(super) async fn of(connection: &Connection) -> Result<Vec<(String, String)>, Fault> {
    let mut all = connection.stats("").await?;
    let settings = connection.stats("settings").await?;
    all.extend(settings.into_iter().map(|(name, value)| (format!("settings {name}"), value)));
    Ok(all)
}

/// Returns a statistic as a number.
pub(super) fn number(stats: &Stats, name: &str) -> Option<u64> {
    stat(stats, name)?.parse().ok()
}

/// Returns the finding about statistics that the server does not report.
pub(super) fn unseen(check: &'static str) -> Finding {
    Finding::unseen(check, "the server does not report it")
        .remedy("connect to memcached itself, not to a proxy in front of it")
}
