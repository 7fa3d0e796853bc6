//! Every random number of this crate comes from here, and here from the operating system: owner
//! ids are unlock rights, and a generator in user space repeats itself after a fork or a snapshot.

use std::time::Duration;

/// Fills `bytes` from the operating system.
///
/// # Panics
///
/// If the system has no randomness to give, which Linux rules out after boot.
pub(crate) fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// A duration drawn evenly from the half-open range `from..to`; `from` if the range is empty.
pub(crate) fn between(from: Duration, to: Duration) -> Duration {
    let span = u64::try_from(to.saturating_sub(from).as_nanos()).unwrap_or(u64::MAX);
    let mut bytes = [0; 8];
    fill(&mut bytes);
    from + Duration::from_nanos(u64::from_le_bytes(bytes).checked_rem(span).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_stays_inside_its_range() {
        let (from, to) = (Duration::from_millis(5), Duration::from_millis(6));
        for _ in 0..1000 {
            assert!((from..to).contains(&between(from, to)));
        }
        assert_eq!(between(to, from), to, "an empty range gives its start");
    }
}
