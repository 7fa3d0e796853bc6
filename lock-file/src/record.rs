//! What stands in a lock file: the counter of its fencing tokens, and who holds it.

use std::fmt::Write;
use std::time::Duration;

use lock_core::{FencingToken, Label, OwnerId};

/// A record always fills this many bytes, so that the next one covers it whole: a write needs no
/// truncation, and fits a sector.
pub(crate) const LEN: usize = 512;

/// First line; the number is the version of the format.
const MAGIC: &str = "lock-file 1\n";
const SUM: &str = "\nsum ";

/// What a lock file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The last number given out; `None` if it was never written, or was torn by a crash of the
    /// machine. The wall clock takes over then.
    pub(crate) number: Option<u64>,
    /// Who wrote it, unless the lock was let go. Not erased by a crash: only the kernel knows who
    /// holds the lock.
    pub(crate) holder: Option<HolderRecord>,
}

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderRecord {
    pub(crate) owner: OwnerId,
    pub(crate) pid: u32,
    /// The pid namespace in which `pid` counts; 0 where there is no such thing.
    pub(crate) pid_space: u64,
    /// Wall clock, as time since 1970.
    pub(crate) since: Duration,
    pub(crate) label: Option<Label>,
}

impl Record {
    /// Nothing is known.
    pub(crate) const BLANK: Self = Self { number: None, holder: None };

    /// The record in `bytes`, the beginning of a file; `None` if they are somebody else's data,
    /// which must not be overwritten. Total: any bytes have an answer.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let magic = MAGIC.as_bytes();
        if bytes.starts_with(magic) {
            let record = &bytes[..bytes.len().min(LEN)];
            return Some(Self::parse_own(record).unwrap_or(Self::BLANK));
        }
        // What other users of flock(2) create, and what a crash of the machine leaves of a record.
        let zeroed = bytes.len() <= LEN && bytes.iter().all(|&byte| byte == 0);
        (zeroed || magic.starts_with(bytes)).then_some(Self::BLANK)
    }

    fn parse_own(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = std::str::from_utf8(bytes).ok()?.rsplit_once(SUM)?;
        if u64::from_str_radix(sum.trim_end(), 16).ok()? != checksum(body) {
            return None;
        }
        let field =
            |key: &str| body.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let number = field("number")?.parse().ok()?;
        FencingToken::from_backend(number)?;
        let holder = || {
            let (pid, pid_space) = field("pid")?.split_once(' ')?;
            Some(HolderRecord {
                owner: field("owner")?.parse().ok()?,
                pid: pid.parse().ok()?,
                pid_space: pid_space.parse().ok()?,
                since: Duration::from_micros(field("since")?.parse().ok()?),
                label: field("label").map(Label::new),
            })
        };
        Some(Self { number: Some(number), holder: holder() })
    }

    /// The bytes to write at the start of the file.
    pub(crate) fn to_bytes(&self) -> [u8; LEN] {
        let mut text = String::from(MAGIC.trim_end());
        if let Some(number) = self.number {
            let _ = write!(text, "\nnumber {number}");
        }
        if let Some(holder) = &self.holder {
            let (owner, since) = (holder.owner.expose(), holder.since.as_micros());
            let (pid, space) = (holder.pid, holder.pid_space);
            let _ = write!(text, "\nowner {owner}\npid {pid} {space}\nsince {since}");
            if let Some(label) = &holder.label {
                let _ = write!(text, "\nlabel {label}");
            }
        }
        let sum = checksum(&text);
        let _ = writeln!(text, "{SUM}{sum:016x}");
        // Invariant: the longest label is 120 bytes, and the rest has at most 200.
        assert!(text.len() < LEN, "a record fits its place");
        let mut bytes = [b' '; LEN];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes[LEN - 1] = b'\n';
        bytes
    }
}

/// FNV-1a: against tearing, not against malice.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            number: Some(FencingToken::MAX_BACKEND_NUMBER),
            holder: Some(HolderRecord {
                owner: OwnerId::mint(),
                pid: u32::MAX,
                pid_space: u64::MAX,
                since: Duration::from_micros(u64::MAX),
                label: Some(Label::new(&"sum é".repeat(100))),
            }),
        }
    }

    #[test]
    fn a_record_survives_the_round_trip() {
        for record in [record(), Record { number: Some(0), holder: None }] {
            assert_eq!(Record::parse(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn every_torn_record_is_ours_and_blank() {
        let whole = record().to_bytes();
        for end in 0..whole.len() {
            let cut = Record::parse(&whole[..end]);
            assert!(cut == Some(Record::BLANK) || cut == Record::parse(&whole));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let whole = record().to_bytes();
        let end = whole.iter().rposition(|&byte| byte != b' ' && byte != b'\n');
        for at in MAGIC.len()..=end.unwrap() {
            let mut flipped = whole;
            flipped[at] ^= 1;
            assert_eq!(Record::parse(&flipped), Some(Record::BLANK), "byte {at}");
        }
    }

    #[test]
    fn what_is_not_ours_is_told_apart() {
        let zeros = [0; LEN];
        for blank in ["", "lock", "lock-file 1\n", "lock-file 1\nnumber 7"] {
            assert_eq!(Record::parse(blank.as_bytes()), Some(Record::BLANK));
        }
        assert_eq!(Record::parse(&zeros), Some(Record::BLANK));
        for foreign in ["lock-file 2\nnumber 7", "1234\n", "\u{1f512}", " "] {
            assert_eq!(Record::parse(foreign.as_bytes()), None, "{foreign:?}");
        }
        assert_eq!(Record::parse(&[0; LEN + 1]), None, "a sparse file of data");
        assert_eq!(Record::parse(&[0xff; LEN]), None);
    }
}
