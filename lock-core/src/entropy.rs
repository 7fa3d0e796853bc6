//! Every random number of this crate comes from here. Owner ids are unlock rights, so they come
//! from the operating system: a generator in user space repeats itself after a fork or a snapshot.
//! Pauses are no rights: they come from a generator of the thread, which a simulation may repeat.

use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// The state from which the next pause of this thread is drawn.
    static PAUSES: Cell<u64> = Cell::new(seed());
}

/// Fills `bytes` from the operating system.
///
/// # Panics
///
/// If the system has no randomness to give, which Linux rules out after boot.
pub(crate) fn fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system gives random bytes");
}

/// Draws a duration evenly from the half-open range `from..to`; `from` if the range is empty.
pub(crate) fn between(from: Duration, to: Duration) -> Duration {
    let span = u64::try_from(to.saturating_sub(from).as_nanos()).unwrap_or(u64::MAX);
    from + Duration::from_nanos(draw().checked_rem(span).unwrap_or(0))
}

/// Implements [`clock::repeat_pauses`](crate::clock::repeat_pauses).
pub(crate) fn repeat(seed: u64) {
    PAUSES.set(seed);
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Draws by SplitMix64, by Steele, Lea and Flood.
fn draw() -> u64 {
    let state = PAUSES.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    PAUSES.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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

    #[test]
    fn pauses_repeat_with_their_seed() {
        let (from, to) = (Duration::ZERO, Duration::from_secs(1));
        let drawn = |seed| {
            std::thread::spawn(move || {
                repeat(seed);
                [(); 5].map(|()| between(from, to))
            })
        };
        let [one, again, other] = [1, 1, 2].map(|seed| drawn(seed).join().unwrap());
        assert_eq!(one, again);
        assert_ne!(one, other);
    }
}
