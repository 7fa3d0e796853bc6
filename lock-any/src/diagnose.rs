//! The checks of the servers that a URL names.

#[cfg(feature = "file")]
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use lock_core::Error;
#[cfg(doc)]
use lock_core::ErrorKind;
use lock_core::diagnosis::{Finding, Severity};
use lock_core::url::Url;

use crate::{backends, round_trip, with_causes};

/// Checks the servers that `url` names: what they guarantee, and what they do not.
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
/// Dropping the future ends the checks. A lock that they hold is released in the background.
pub async fn diagnose(url: &str) -> Result<Vec<Finding>, Error> {
    let (url, common) = crate::parse(url)?;
    let servers = check_servers(url.clone(), common.max_ttl());
    let mut findings = servers.await.map_err(|error| with_causes(&error))?;
    if findings.iter().all(|finding| finding.severity < Severity::Failure) {
        findings.push(round_trip::check(url, common).await);
    }
    Ok(findings)
}

async fn check_servers(url: Url, max_ttl: Option<Duration>) -> Result<Vec<Finding>, Error> {
    match url.scheme() {
        #[cfg(feature = "quorum")]
        "quorum" => crate::quorum_url::diagnose(url, max_ttl).await,
        #[cfg(not(feature = "quorum"))]
        "quorum" => Err(backends::feature_is_off("quorum", "quorum")),
        _ => Ok(checks_of(url, max_ttl)?.await),
    }
}

/// The checks of the servers of one backend.
pub(crate) type Checks = Pin<Box<dyn Future<Output = Vec<Finding>> + Send>>;

/// Returns the checks of a backend other than a quorum. No I/O before they are awaited.
pub(crate) fn checks_of(url: Url, max_ttl: Option<Duration>) -> Result<Checks, Error> {
    #[cfg(not(feature = "redis"))]
    let _ = max_ttl;
    Ok(match url.scheme() {
        "memory" => {
            backends::memory(url)?;
            Box::pin(async { vec![memory()] })
        }
        #[cfg(feature = "file")]
        "file" => {
            let (directory, of_group) = backends::file_place(url)?;
            Box::pin(async move {
                lock_file::diagnose(directory.as_deref().map(Path::new), of_group).await
            })
        }
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            let config = backends::redis_config(url, max_ttl)?;
            Box::pin(async move { lock_redis::diagnose(&config).await })
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zookeeper+tls" => {
            let config = lock_zookeeper::Config::try_from(url)?;
            Box::pin(async move { lock_zookeeper::diagnose(&config).await })
        }
        #[cfg(feature = "memcache")]
        "memcache" => {
            let config = lock_memcache::Config::try_from(url)?;
            Box::pin(async move { lock_memcache::diagnose(&config).await })
        }
        missing => return Err(backends::missing_backend(missing)),
    })
}

fn memory() -> Finding {
    let text = "the locks exclude the tasks of one process, and end with it";
    Finding::warning("reach", text)
        .remedy("use a backend that other processes share, such as file: or redis:")
}
