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
    #[cfg(not(feature = "redis"))]
    let _ = max_ttl;
    Ok(match url.scheme() {
        "memory" => memory(url)?,
        #[cfg(feature = "file")]
        "file" => file(url)?,
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => redis(url, max_ttl).await?,
        #[cfg(feature = "zookeeper")]
        "zookeeper" | "zookeeper+tls" => zookeeper(url).await?,
        #[cfg(feature = "memcache")]
        "memcache" => Locker::builder(lock_memcache::Memcached::connect(url).await?),
        missing => return Err(missing_backend(missing)),
    })
}

pub(crate) fn memory(mut url: Url) -> Result<LockerBuilder, Error> {
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
fn file(url: Url) -> Result<LockerBuilder, Error> {
    let backend = match file_place(url)? {
        (Some(dir), false) => lock_file::FileLocks::at(dir)?,
        (Some(dir), true) => lock_file::FileLocks::shared_with_group(dir)?,
        (None, _) => lock_file::FileLocks::for_this_user()?,
    };
    Ok(Locker::builder(backend))
}

/// Returns the directory, which is that of this user if the URL names none, and whether a group
/// shares it.
#[cfg(feature = "file")]
pub(crate) fn file_place(mut url: Url) -> Result<(Option<String>, bool), Error> {
    let share = url.take("share")?;
    url.no_more_options()?;
    match (url.path()?, share.as_deref()) {
        (directory, None) => Ok((directory, false)),
        (Some(directory), Some("group")) => Ok((Some(directory), true)),
        _ => {
            let why =
                "the URL option share is group, and needs a directory: file:///dir?share=group";
            Err(Error::new(ErrorKind::Invalid, why))
        }
    }
}

#[cfg(feature = "redis")]
async fn redis(url: Url, max_ttl: Option<Duration>) -> Result<LockerBuilder, Error> {
    Ok(Locker::builder(lock_redis::Redis::connect(redis_config(url, max_ttl)?).await?))
}

#[cfg(feature = "redis")]
pub(crate) fn redis_config(
    url: Url,
    max_ttl: Option<Duration>,
) -> Result<lock_redis::Config, Error> {
    let scheme = url.scheme().to_owned();
    let config = lock_redis::Config::try_from(url).map_err(|error| match error.kind() {
        // The missing feature is switched on in this test.
        ErrorKind::Unsupported => feature_is_off(&scheme, "tls"),
        _ => error,
    })?;
    match max_ttl {
        Some(max_ttl) => config.max_ttl(max_ttl),
        None => Ok(config),
    }
}

#[cfg(feature = "zookeeper")]
async fn zookeeper(url: Url) -> Result<LockerBuilder, Error> {
    Ok(Locker::builder(lock_zookeeper::ZooKeeper::connect(url).await?))
}

/// Returns the error of a scheme that this build does not have.
pub(crate) fn missing_backend(scheme: &str) -> Error {
    if !KNOWN.iter().any(|known| known.strip_suffix(':') == Some(scheme)) {
        return unknown_backend(scheme);
    }
    let feature = scheme.split('+').next().unwrap_or_default();
    feature_is_off(scheme, if feature == "rediss" { "redis" } else { feature })
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
