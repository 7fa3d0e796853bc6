//! The checks of the servers that a URL names.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Error;
#[cfg(doc)]
use lock_core::ErrorKind;
use lock_core::diagnosis::{Finding, Severity};
use lock_core::url::Url;

#[cfg(feature = "quorum")]
use crate::quorum_url;
use crate::servers::Servers;
use crate::{round_trip, with_causes};

/// Checks the guarantees of the servers that `url` names, and their limits.
///
/// Servers that do not answer are findings as well. The checks write only under names of their
/// own, and leave nothing behind. They take a few seconds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_any::Error> {
/// for finding in lock_any::diagnose("memory:").await? {
///     println!("{finding}");
/// }
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// * [`ErrorKind::Invalid`] if the URL or one of its options cannot be understood.
/// * [`ErrorKind::Unsupported`] if its scheme needs a Cargo feature that is off.
///
/// # Cancel safety
///
/// Dropping the future ends the checks. A lock that they hold is released in the background, and
/// may leave its fencing token for ten minutes.
pub async fn diagnose(url: &str) -> Result<Vec<Finding>, Error> {
    diagnose_while(url, || true).await
}

/// Checks as [`diagnose`] for as long as `is_wanted` returns true. It is asked before each lock
/// that is acquired, and nothing was written before the first time. For lockctl; not a public API.
#[doc(hidden)]
pub async fn diagnose_while(
    url: &str,
    is_wanted: impl Fn() -> bool,
) -> Result<Vec<Finding>, Error> {
    let (url, common) = crate::parse(url)?;
    let max_ttl = common.max_ttl();
    let servers = servers_of(&url, max_ttl).map_err(|error| with_causes(&error))?;
    let mut findings = check(&url, max_ttl, &servers).await;
    if findings.iter().all(|finding| finding.severity < Severity::Failure) {
        findings.extend(round_trip::check(url, common, &servers, &is_wanted).await);
    }
    Ok(findings)
}

/// Returns the servers of the URL, or those of each member of a quorum. No I/O.
fn servers_of(url: &Url, max_ttl: Option<Duration>) -> Result<Vec<Arc<Servers>>, Error> {
    match url.scheme() {
        #[cfg(feature = "quorum")]
        "quorum" => quorum_url::servers_of(url, max_ttl),
        _ => Ok(vec![Arc::new(Servers::of(url.clone(), max_ttl)?)]),
    }
}

async fn check(url: &Url, max_ttl: Option<Duration>, servers: &[Arc<Servers>]) -> Vec<Finding> {
    #[cfg(not(feature = "quorum"))]
    let _ = max_ttl;
    match (url.scheme(), servers) {
        #[cfg(feature = "quorum")]
        ("quorum", members) => quorum_url::diagnose(url, max_ttl, members).await,
        (_, [servers]) => servers.check().await,
        _ => Vec::new(),
    }
}
