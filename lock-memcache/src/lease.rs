//! Leases as expiry times of the server.

use std::time::Duration;

/// A round trip takes one or two milliseconds.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(10);

/// Limit of relative expiry times, in seconds. A server takes more for a date in the past, and the
/// lock would be free at once.
pub(crate) const MAX_EXPTIME: u64 = 30 * 24 * 3600;

/// Longest ttl, with room for the additions of [`exptime`].
pub(crate) const TTL_MAX: Duration = Duration::from_secs(MAX_EXPTIME - 3);

/// Delay of the server's clock ticks that ends no lease early.
const STALL: Duration = Duration::from_millis(250);

/// Longest time for which a lease outlasts its ttl on the server.
pub(crate) const MAX_EXCESS: Duration = Duration::from_millis(3250);

/// Returns the expiry time of a lease in whole seconds, of which the server may take two off.
///
/// Its clock is a number that is set once a second, to the seconds that have passed. So it is
/// behind by less than one for the fraction, and by less than one, and the delay of a tick, for the
/// time since the last tick. The holder therefore always stops first.
pub(crate) fn exptime(lease: Duration) -> u64 {
    let lease = lease.min(TTL_MAX) + STALL;
    lease.as_secs() + u64::from(lease.subsec_nanos() > 0) + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_rounded_up_and_stay_relative() {
        let of = |millis| exptime(Duration::from_millis(millis));
        assert_eq!([1, 500, 750, 751, 1000, 1900, 2000].map(of), [3, 3, 3, 4, 4, 5, 5]);
        for millis in 1..5000 {
            let (asked, lease) = (Duration::from_secs(of(millis)), Duration::from_millis(millis));
            assert!(asked >= lease + STALL + Duration::from_secs(2), "{millis} ms");
            assert!(asked <= lease + MAX_EXCESS, "{millis} ms");
        }
        assert_eq!((exptime(TTL_MAX), exptime(Duration::MAX)), (MAX_EXPTIME, MAX_EXPTIME));
    }
}
