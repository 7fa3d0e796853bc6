//! Entry points of the fuzz targets. Not a public API. Each panics on a broken property.

use std::time::Duration;

use lock_core::{FencingToken, Label, LockName, OwnerId};

use crate::counter::{self, SlotOrigin, origin};
use crate::names::Names;
use crate::record::{HolderRecord, LEN, LeaseRecord, Record, with_sum};

/// The longest text that fits a record with its checksum.
const MAX_TEXT: usize = LEN - 24;

/// Parses the beginning of a lock file: as it is, and as the text of a record with the right
/// checksum. Each record survives a rewrite, also by the next holder.
pub fn record(data: &[u8]) {
    rewrite(data);
    if let Some(text) = checked_text("lock-file 1\n", data) {
        rewrite(&with_sum(text));
    }
}

fn rewrite(bytes: &[u8]) {
    let Some(mut record) = Record::parse(bytes) else { return };
    assert_eq!(Record::parse(&record.to_bytes()).as_ref(), Some(&record));
    record.number = Some(FencingToken::MAX_BACKEND_NUMBER);
    record.holder = Some(HolderRecord {
        owner: OwnerId::mint(),
        pid: u32::MAX,
        pid_space: u64::MAX,
        since: Duration::from_micros(u64::MAX),
        label: Some(Label::new(&"x".repeat(Label::MAX_LEN))),
        lease: Some(LeaseRecord { until: Duration::from_nanos(u64::MAX), boot: "b".repeat(36) }),
    });
    assert_eq!(Record::parse(&record.to_bytes()), Some(record));
}

/// Parses a slot of the counter: as it is, and as a text with the right checksum.
pub fn slot(data: &[u8]) {
    reread(data);
    if let Some(text) = checked_text("lock-file-counter 1\n", data) {
        reread(&with_sum(text));
    }
}

fn reread(bytes: &[u8]) {
    let Some(number) = counter::parse(bytes) else { return };
    assert_eq!(counter::parse(&counter::to_bytes(number)), Some(number));
    assert_eq!(origin(&[Vec::new(), bytes.to_vec()]), SlotOrigin::Ours);
}

fn checked_text(magic: &str, data: &[u8]) -> Option<String> {
    let text = [magic, std::str::from_utf8(data).ok()?].concat();
    (text.len() <= MAX_TEXT).then_some(text)
}

/// Returns the name of the file of a lock.
#[must_use]
pub fn file_name(name: &LockName) -> String {
    Names::new().file_name(name)
}
