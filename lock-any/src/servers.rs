//! The servers that a URL names, for their checks.

#[cfg(feature = "file")]
use std::path::PathBuf;
use std::time::Duration;

use lock_core::diagnosis::Finding;
use lock_core::url::Url;
use lock_core::{Error, LockName};

use crate::backends;

/// The servers of one backend other than a quorum. Their URL is understood.
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
}

impl Servers {
    /// Reads the URL. No server is asked.
    pub(crate) fn of(url: Url, max_ttl: Option<Duration>) -> Result<Self, Error> {
        #[cfg(not(feature = "redis"))]
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
            missing => return Err(backends::missing_backend(missing)),
        })
    }

    /// Checks the servers.
    pub(crate) async fn check(&self) -> Vec<Finding> {
        match self {
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
        }
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
            _ => {
                let _ = name;
                Ok(())
            }
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
