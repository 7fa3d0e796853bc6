//! Limits and durations that several modules share, and their units.

use std::time::Duration;

/// The limit of fencing tokens. Beyond, Lua skips numbers: the scripts have the same limit.
pub(crate) const TOKEN_LIMIT: u64 = 1 << 53;

/// The last tokens before the limit. A claim that is queued does not raise them, so no attempt
/// without a script uses them.
pub(crate) const LAST_TOKENS: u64 = 1000;

/// The least time for which a token key outlives its lock. After that, the server's clock alone
/// keeps the tokens growing.
pub(crate) const TOKEN_RETENTION: Duration = Duration::from_secs(600);

/// Leases are counted in milliseconds, and a round trip takes one or two.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(10);

/// Unless `max_ttl` says less.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns whole milliseconds, rounded up, so that no lease is shorter than requested. Core has
/// checked the limits; a number that the server cannot represent is cut all the same.
pub(crate) fn millis(duration: Duration) -> u64 {
    let whole = duration.min(MAX_TTL).as_nanos().div_ceil(1_000_000);
    u64::try_from(whole).unwrap_or(u64::MAX)
}

/// Converts milliseconds of the server; returns `None` if there is no expiry.
pub(crate) fn duration(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}

/// Making a connection, all of it: enough for a handshake in four round trips over a slow line.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
