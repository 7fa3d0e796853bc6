//! The checks of the servers that a URL names.

#[cfg(feature = "file")]
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lock_core::ErrorKind;
use lock_core::diagnosis::{Finding, Severity};
use lock_core::url::Url;
use lock_core::{Error, LockName};

#[cfg(feature = "quorum")]
use crate::quorum_url;
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
    let servers =
        Servers::of(url.clone(), common.max_ttl()).map_err(|error| with_causes(&error))?;
    let servers = Arc::new(servers);
    let mut findings = Arc::clone(&servers).check().await;
    if findings.iter().all(|finding| finding.severity < Severity::Failure) {
        findings.extend(round_trip::check(url, common, &servers).await);
    }
    Ok(findings)
}

/// The servers that a URL names. The URL is understood.
pub(crate) enum Servers {
    Memory,
    #[cfg(feature = "file")]
    File {
        directory: Option<PathBuf>,
        of_group: bool,
        was_missing: bool,
    },
    #[cfg(feature = "redis")]
    Redis(Box<lock_redis::Config>),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(Box<lock_zookeeper::Config>),
    #[cfg(feature = "memcache")]
    Memcached(Box<lock_memcache::Config>),
    #[cfg(feature = "quorum")]
    Quorum {
        url: Url,
        max_ttl: Option<Duration>,
        members: Vec<Arc<Self>>,
    },
}

pub(crate) type Checks = Pin<Box<dyn Future<Output = Vec<Finding>> + Send>>;

impl Servers {
    /// Reads the URL, and those of the members of a quorum. No I/O.
    pub(crate) fn of(url: Url, max_ttl: Option<Duration>) -> Result<Self, Error> {
        #[cfg(not(any(feature = "redis", feature = "quorum")))]
        let _ = max_ttl;
        Ok(match url.scheme() {
            "memory" => backends::memory(url).map(|_| Self::Memory)?,
            #[cfg(feature = "file")]
            "file" => {
                let (directory, of_group) = backends::file_place(url)?;
                let directory = directory.map(PathBuf::from);
                let was_missing = !path_of(directory.as_ref()).exists();
                Self::File { directory, of_group, was_missing }
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
            | "redis+cluster" | "rediss+cluster" => {
                Self::Redis(Box::new(backends::redis_config(url, max_ttl)?))
            }
            #[cfg(feature = "zookeeper")]
            "zookeeper" | "zookeeper+tls" => Self::ZooKeeper(Box::new(url.try_into()?)),
            #[cfg(feature = "memcache")]
            "memcache" => Self::Memcached(Box::new(url.try_into()?)),
            #[cfg(feature = "quorum")]
            "quorum" => {
                Self::Quorum { members: quorum_url::servers_of(&url, max_ttl)?, url, max_ttl }
            }
            missing => return Err(backends::missing_backend(missing)),
        })
    }

    /// Checks the servers. Boxed: those of a quorum contain those of its members.
    pub(crate) fn check(self: Arc<Self>) -> Checks {
        Box::pin(async move {
            match &*self {
                Self::Memory => vec![memory()],
                #[cfg(feature = "file")]
                Self::File { directory, of_group, .. } => {
                    lock_file::diagnose(directory.as_deref(), *of_group).await
                }
                #[cfg(feature = "redis")]
                Self::Redis(config) => lock_redis::diagnose(config).await,
                #[cfg(feature = "zookeeper")]
                Self::ZooKeeper(config) => lock_zookeeper::diagnose(config).await,
                #[cfg(feature = "memcache")]
                Self::Memcached(config) => lock_memcache::diagnose(config).await,
                #[cfg(feature = "quorum")]
                Self::Quorum { url, max_ttl, members } => {
                    quorum_url::diagnose(url, *max_ttl, members).await
                }
            }
        })
    }

    /// Removes the residue of a lock that no client uses any more, which would expire otherwise.
    pub(crate) async fn forget(&self, name: &LockName) -> Result<(), Error> {
        match self {
            #[cfg(feature = "file")]
            Self::File { directory, was_missing, .. } => {
                lock_file::forget(directory.as_deref(), name)?;
                if *was_missing {
                    // Fails if another process uses it by now.
                    let _ = std::fs::remove_dir(path_of(directory.as_ref()));
                }
                Ok(())
            }
            #[cfg(feature = "redis")]
            Self::Redis(config) => lock_redis::forget(config, name).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config) => lock_zookeeper::forget(config, name).await,
            #[cfg(feature = "quorum")]
            Self::Quorum { members, .. } => {
                for member in members {
                    // There are findings about a member that is away.
                    let _ = Box::pin(member.forget(name)).await;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(feature = "file")]
fn path_of(directory: Option<&PathBuf>) -> PathBuf {
    directory.cloned().unwrap_or_else(lock_file::FileLocks::directory_of_this_user)
}

fn memory() -> Finding {
    let text = "the locks exclude the tasks of one process, and end with it";
    Finding::warning("reach", text)
        .remedy("use a backend that other processes share, such as file: or redis:")
}
