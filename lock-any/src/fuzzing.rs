//! An entry point of the fuzz targets. Not a public API.

use lock_core::Error;

use crate::quorum_url::members_of;

/// Parses a URL as [`connect`](crate::connect) does, without any I/O. Returns the text that errors
/// and logs may show of it.
///
/// # Errors
///
/// The URL cannot be understood.
pub fn parse(url: &str) -> Result<String, Error> {
    let (url, common) = crate::parse(url)?;
    match url.scheme() {
        "quorum" => members_of(url, common.max_ttl()).map(|members| format!("{members:?}")),
        _ => Ok(format!("{url:?}")),
    }
}
