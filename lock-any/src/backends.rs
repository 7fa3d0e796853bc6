//! Connections to the backends other than a quorum, chosen by the scheme of a URL.

use std::time::Duration;

use lock_core::url::Url;
use lock_core::{Error, ErrorKind, Locker, LockerBuilder, Memory};

/// The schemes that are understood, whether or not their features are on.
pub(crate) const KNOWN: &[&str] = &[
    "memory:",
    "file:",
    "redis:",
    "rediss:",
    "redis+unix:",
    "redis+sentinel:",
    "rediss+sentinel:",
    "redis+cluster:",
    "rediss+cluster:",
    "zookeeper:",
    "zookeeper+tls:",
    "memcache:",
    "quorum:",
];

/// Connects to the backend that the scheme of `url` names.
pub(crate) async fn connect(url: Url, max_ttl: Option<Duration>) -> Result<LockerBuilder, Error> {
    Ok(match url.scheme() {
        "memory" => memory(url)?,
        #[cfg(feature = "file")]
        "file" => file(url)?,
        #[cfg(not(feature = "file"))]
        "file" => return Err(feature_is_off("file", "file")),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => redis(url, max_ttl).await?,
        #[cfg(not(feature = "redis"))]
        scheme @ ("redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster") => {
            let _ = max_ttl;
            return Err(feature_is_off(scheme, "redis"));
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zookeeper+tls" => zookeeper(url).await?,
        #[cfg(not(feature = "zookeeper"))]
        scheme @ ("zookeeper" | "zookeeper+tls") => {
            return Err(feature_is_off(scheme, "zookeeper"));
        }
        #[cfg(feature = "memcache")]
        "memcache" => Locker::builder(lock_memcache::Memcached::connect(url).await?),
        #[cfg(not(feature = "memcache"))]
        "memcache" => return Err(feature_is_off("memcache", "memcache")),
        unknown => return Err(unknown_backend(unknown)),
    })
}

fn memory(mut url: Url) -> Result<LockerBuilder, Error> {
    use std::sync::LazyLock;

    // The same URL names the same locks, as with every other backend.
    static SPACE: LazyLock<Memory> = LazyLock::new(Memory::new);

    let private = url.take("private")?;
    url.no_more_options()?;
    if !matches!(url.location(), "" | "//") {
        let why = "nothing goes between the scheme and the options: write memory:";
        return Err(Error::new(ErrorKind::Invalid, why));
    }
    match private.as_deref() {
        None => Ok(Locker::builder(SPACE.clone())),
        Some("yes") => Ok(Locker::builder(Memory::new())),
        Some(_) => Err(Error::new(ErrorKind::Invalid, "the URL option private is yes")),
    }
}

#[cfg(feature = "file")]
fn file(mut url: Url) -> Result<LockerBuilder, Error> {
    let share = url.take("share")?;
    url.no_more_options()?;
    let backend = match (url.path()?, share.as_deref()) {
        (Some(dir), None) => lock_file::FileLocks::at(dir)?,
        (None, None) => lock_file::FileLocks::for_this_user()?,
        (Some(dir), Some("group")) => lock_file::FileLocks::shared_with_group(dir)?,
        _ => {
            let why =
                "the URL option share is group, and needs a directory: file:///dir?share=group";
            return Err(Error::new(ErrorKind::Invalid, why));
        }
    };
    Ok(Locker::builder(backend))
}

#[cfg(feature = "redis")]
async fn redis(url: Url, max_ttl: Option<Duration>) -> Result<LockerBuilder, Error> {
    let scheme = url.scheme().to_owned();
    let mut config = lock_redis::Config::try_from(url).map_err(|error| match error.kind() {
        // The missing feature is switched on in this test.
        ErrorKind::Unsupported => feature_is_off(&scheme, "tls"),
        _ => error,
    })?;
    if let Some(max_ttl) = max_ttl {
        config = config.max_ttl(max_ttl)?;
    }
    Ok(Locker::builder(lock_redis::Redis::connect(config).await?))
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: Url) -> Result<LockerBuilder, Error> {
    Ok(Locker::builder(lock_zookeeper::ZooKeeper::connect(url).await?))
}

pub(crate) fn unknown_backend(scheme: &str) -> Error {
    let message = format!("unknown backend {scheme:?}; known are {}", KNOWN.join(", "));
    Error::new(ErrorKind::Invalid, message)
}

pub(crate) fn feature_is_off(scheme: &str, feature: &str) -> Error {
    let message =
        format!("{scheme}: needs the Cargo feature {feature:?} of lock-any, which is off");
    Error::new(ErrorKind::Unsupported, message)
}
