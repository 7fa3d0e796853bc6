//! The counter of fencing tokens that outlasts a crash of the machine.
//!
//! Tokens are reserved in blocks. The end of a block is written into a slot of the lock file and
//! synced before the first token of the block is granted. Granted tokens are in the page cache,
//! which outlives every process. After a crash of the machine the rest of the block is skipped.
//!
//! There are two slots, in pages of their own. The one with the lower number is overwritten, so a
//! write that is torn by a power cut leaves the other one.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::clock::wall;

use crate::record::{self, check_sum, with_sum};

/// Offsets of the slots. The first page has the record.
pub(crate) const SLOTS: [u64; 2] = [PAGE, 2 * PAGE];
/// Length limit of a lock file.
pub(crate) const FILE_LEN: u64 = SLOTS[1] + record::LEN as u64;
const PAGE: u64 = 4096;

const MAGIC: &str = "lock-file-counter 1";

/// Length of a block. Tokens are microseconds of the wall clock, so this is also the interval of
/// syncs of a busy lock, and the gap after a crash of the machine. It is about the time of a boot,
/// so that tokens do not run ahead of the clock.
const BLOCK: Duration = Duration::from_secs(60);

/// Returns the number in a slot; `None` if there is none, or if it was torn.
pub(crate) fn parse(slot: &[u8]) -> Option<u64> {
    let number = check_sum(slot)?.strip_prefix(MAGIC)?.strip_prefix("\nreserved ")?.parse().ok()?;
    FencingToken::from_backend(number).map(|_| number)
}

/// The writer of the slots of a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotOrigin {
    /// One of them may be torn.
    Ours,
    Empty,
    Foreign,
}

/// Returns the writer of the slots.
pub(crate) fn origin(slots: &[Vec<u8>; 2]) -> SlotOrigin {
    if slots.iter().any(|slot| slot.starts_with(MAGIC.as_bytes())) {
        return SlotOrigin::Ours;
    }
    let empty = slots.iter().flatten().all(|&byte| byte == 0);
    if empty { SlotOrigin::Empty } else { SlotOrigin::Foreign }
}

pub(crate) fn to_bytes(reserved: u64) -> [u8; record::LEN] {
    with_sum(format!("{MAGIC}\nreserved {reserved}"))
}

/// Returns the token that follows `last` and `min_token`: at least the wall clock in microseconds,
/// so that it grows where the file was lost. Returns `None` if the tokens are used up.
pub(crate) fn next(last: Option<u64>, min_token: Option<FencingToken>) -> Option<FencingToken> {
    let clock = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
    let min_token = min_token.map(FencingToken::backend_number);
    let next = last.max(min_token).map_or(0, |highest| highest + 1);
    FencingToken::from_backend(next.max(clock))
}

/// Returns the end of a block from `next` on.
pub(crate) fn block_from(next: FencingToken) -> u64 {
    let block = u64::try_from(BLOCK.as_micros()).unwrap_or(u64::MAX);
    (next.backend_number() + block).min(FencingToken::MAX_BACKEND_NUMBER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_survives_the_round_trip_and_a_torn_one_is_noticed() {
        for number in [0, 7, FencingToken::MAX_BACKEND_NUMBER] {
            let whole = to_bytes(number);
            assert_eq!(parse(&whole), Some(number));
            let end = whole.iter().rposition(|&byte| byte != b' ' && byte != b'\n').unwrap();
            for at in 0..=end {
                let mut torn = whole;
                torn[at] ^= 1;
                assert_eq!(parse(&torn), None, "byte {at}");
                assert_eq!(parse(&whole[..at]), None, "{at} bytes");
            }
        }
        assert_eq!(parse(&[0; record::LEN]), None);
    }

    #[test]
    fn slots_of_ours_are_told_from_data_of_others() {
        let (whole, zeros) = (to_bytes(7).to_vec(), vec![0; record::LEN]);
        let mut torn = whole.clone();
        torn[..100].fill(0);
        for ours in [[torn.clone(), whole.clone()], [whole, zeros.clone()]] {
            assert_eq!(origin(&ours), SlotOrigin::Ours);
        }
        for empty in [[vec![], vec![]], [zeros, vec![]]] {
            assert_eq!(origin(&empty), SlotOrigin::Empty);
        }
        for others in [b"precious".to_vec(), b"lock-file-counter 2".to_vec(), torn] {
            assert_eq!(origin(&[others, vec![]]), SlotOrigin::Foreign);
        }
    }

    #[test]
    fn blocks_end_where_the_numbers_end() {
        let last = FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER).unwrap();
        assert_eq!(block_from(last), FencingToken::MAX_BACKEND_NUMBER);
        assert_eq!(next(None, Some(last)), None);
    }
}
