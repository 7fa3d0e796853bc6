//! The record at the start of a lock file: the last fencing token and the holder.
//!
//! It is written with every grant and release, and never synced by itself: it describes the state
//! while the machine is up. The token that must be exceeded after a crash of the machine is in
//! [`counter`](crate::counter).

use std::fmt::Write;
use std::time::Duration;

use lock_core::{FencingToken, Label, OwnerId};

/// A record always fills this many bytes, so that the next one covers it whole: a write needs no
/// truncation, and fits a sector.
pub(crate) const LEN: usize = 512;

/// First line; the number is the version of the format.
const MAGIC: &str = "lock-file 1\n";
const SUM: &str = "\nsum ";

/// The content of a lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The last token that was granted; `None` if it was never written, or was torn by a crash of
    /// the machine.
    pub(crate) number: Option<u64>,
    /// The highest token that was synced.
    pub(crate) reserved: Option<Reserved>,
    /// The claim that wrote it, unless the lock was released. A crash does not erase it: of a
    /// guarded hold, only the kernel knows whether it lasts.
    pub(crate) holder: Option<HolderRecord>,
}

/// Tokens that may be granted without another sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    pub(crate) up_to: u64,
    /// The boot in which that was written down: from an earlier one, the record beside it may be
    /// older than the last grant.
    pub(crate) boot: String,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HolderRecord {
    pub(crate) owner: OwnerId,
    pub(crate) pid: u32,
    /// The pid namespace in which `pid` counts; 0 where there is no such thing.
    pub(crate) pid_space: u64,
    /// Wall clock, as time since 1970.
    pub(crate) since: Duration,
    pub(crate) label: Option<Label>,
    /// The lease of a detached hold, which no kernel lock keeps.
    pub(crate) lease: Option<LeaseRecord>,
}

/// The end of a detached hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// Time since the boot.
    pub(crate) until: Duration,
    pub(crate) boot: String,
}

/// A record, and its bytes in the file.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) record: Record,
    pub(crate) bytes: [u8; LEN],
}

impl From<Record> for Written {
    fn from(record: Record) -> Self {
        Self { bytes: record.to_bytes(), record }
    }
}

impl Record {
    /// A record without content.
    pub(crate) const BLANK: Self = Self { number: None, reserved: None, holder: None };

    /// Parses `bytes`, the beginning of a file. Returns `None` for foreign data, which must not be
    /// overwritten. Total: any bytes have an answer.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let magic = MAGIC.as_bytes();
        if bytes.starts_with(magic) {
            let record = &bytes[..bytes.len().min(LEN)];
            return Some(Self::parse_own(record).unwrap_or(Self::BLANK));
        }
        // Files of other users of flock(2), and residue of a record after a crash of the machine.
        let zeroed = bytes.iter().all(|&byte| byte == 0);
        (zeroed || magic.starts_with(bytes)).then_some(Self::BLANK)
    }

    fn parse_own(bytes: &[u8]) -> Option<Self> {
        let body = check_sum(bytes)?;
        let field =
            |key: &str| body.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let number = |text: &str| {
            let number = text.parse().ok()?;
            FencingToken::from_backend(number).map(|_| number)
        };
        let reserved = || {
            let (up_to, boot) = field("reserved")?.split_once(' ')?;
            Some(Reserved { up_to: number(up_to)?, boot: boot_id(boot)? })
        };
        let lease = || {
            let (until, boot) = field("lease")?.split_once(' ')?;
            let until = Duration::from_nanos(until.parse().ok()?);
            Some(LeaseRecord { until, boot: boot_id(boot)? })
        };
        let holder = || {
            let (pid, pid_space) = field("pid")?.split_once(' ')?;
            Some(HolderRecord {
                owner: field("owner")?.parse().ok()?,
                pid: pid.parse().ok()?,
                pid_space: pid_space.parse().ok()?,
                since: Duration::from_micros(field("since")?.parse().ok()?),
                label: field("label").map(Label::new),
                lease: lease(),
            })
        };
        let last = field("number").and_then(number)?;
        Some(Self { number: Some(last), reserved: reserved(), holder: holder() })
    }

    /// Returns the bytes at the start of the file.
    pub(crate) fn to_bytes(&self) -> [u8; LEN] {
        let mut text = String::from(MAGIC.trim_end());
        if let Some(number) = self.number {
            let _ = write!(text, "\nnumber {number}");
        }
        if let Some(Reserved { up_to, boot }) = &self.reserved {
            let _ = write!(text, "\nreserved {up_to} {boot}");
        }
        if let Some(holder) = &self.holder {
            let (owner, since) = (holder.owner.expose(), holder.since.as_micros());
            let (pid, space) = (holder.pid, holder.pid_space);
            let _ = write!(text, "\nowner {owner}\npid {pid} {space}\nsince {since}");
            if let Some(label) = &holder.label {
                let _ = write!(text, "\nlabel {label}");
            }
            if let Some(LeaseRecord { until, boot }) = &holder.lease {
                let _ = write!(text, "\nlease {} {boot}", until.as_nanos());
            }
        }
        with_sum(text)
    }
}

/// Returns the id of a boot, which may be empty. A longer text would leave no room for the next
/// holder: in a shared directory, other users write records.
fn boot_id(text: &str) -> Option<String> {
    let is_id = text.len() <= 36 && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_id.then(|| text.to_owned())
}

/// Returns `text` with its checksum, padded with blanks.
///
/// # Panics
///
/// Panics if it does not fit. The longest label is 120 bytes, and the rest of a record has at most
/// 330.
pub(crate) fn with_sum(mut text: String) -> [u8; LEN] {
    let sum = checksum(&text);
    let _ = writeln!(text, "{SUM}{sum:016x}");
    assert!(text.len() < LEN, "a record fits its place");
    let mut bytes = [b' '; LEN];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes[LEN - 1] = b'\n';
    bytes
}

/// Returns the text in front of the checksum, if that is right.
pub(crate) fn check_sum(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes.trim_ascii_end()).ok()?;
    let (body, sum) = text.split_at(text.rfind('\n')?);
    let sum = u64::from_str_radix(sum.strip_prefix(SUM)?, 16).ok()?;
    (sum == checksum(body)).then_some(body)
}

/// Computes FNV-1a: against tearing, not against malice.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let boot = "b".repeat(36);
        let number = FencingToken::MAX_BACKEND_NUMBER;
        Record {
            number: Some(number),
            reserved: Some(Reserved { up_to: number, boot: boot.clone() }),
            holder: Some(HolderRecord {
                owner: OwnerId::mint(),
                pid: u32::MAX,
                pid_space: u64::MAX,
                since: Duration::from_micros(u64::MAX),
                label: Some(Label::new(&"sum é".repeat(100))),
                lease: Some(LeaseRecord { until: Duration::from_nanos(u64::MAX), boot }),
            }),
        }
    }

    #[test]
    fn a_record_survives_the_round_trip() {
        let mut guarded = record();
        guarded.holder.as_mut().unwrap().lease = None;
        let free = Record { number: Some(0), ..Record::BLANK };
        for record in [record(), guarded, free] {
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
    fn a_planted_record_leaves_room_for_the_next_holder() {
        for boot in ["b".repeat(400), "b".repeat(37), "b\r\r".to_owned(), "é".to_owned()] {
            let owner = OwnerId::mint().expose();
            let planted = format!(
                "lock-file 1\nnumber 7\nreserved 9 {boot}\nowner {owner}\npid 1 1\nsince 1"
            );
            let mut read = Record::parse(&with_sum(planted)).unwrap();
            assert_eq!((read.number, &read.reserved), (Some(7), &None), "{boot}");
            read.holder = record().holder;
            assert_eq!(Record::parse(&read.to_bytes()), Some(read));
        }
        let leased =
            format!("lock-file 1\nnumber 7\nowner {}\npid 1 1\nsince 1\nlease 9 ", "0".repeat(32));
        let read = Record::parse(&with_sum(leased + &"b".repeat(300))).unwrap();
        assert_eq!(read.holder.and_then(|holder| holder.lease), None);
    }

    #[test]
    fn foreign_records_are_recognized() {
        let zeros = [0; LEN];
        for blank in ["", "lock", "lock-file 1\n", "lock-file 1\nnumber 7"] {
            assert_eq!(Record::parse(blank.as_bytes()), Some(Record::BLANK));
        }
        assert_eq!(Record::parse(&zeros), Some(Record::BLANK));
        for foreign in ["lock-file 2\nnumber 7", "1234\n", "\u{1f512}", " "] {
            assert_eq!(Record::parse(foreign.as_bytes()), None, "{foreign:?}");
        }
        assert_eq!(Record::parse(&[0xff; LEN]), None);
    }
}
