//! The value under the key of a held lock.

use lock_core::backend::Claim;
use lock_core::{FencingToken, Label, OwnerId};

/// The value of a lock of this backend: `<owner> <attempt> <number>[ <label>]`.
///
/// The attempt distinguishes the attempts of one owner: a late one may have taken the lock after it
/// was lost. The number is the fencing token, and `-` until the first renewal, because it is drawn
/// when the lock is taken. Both also distinguish the value from one of another library, which may
/// be 32 hex digits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) attempt: u64,
    pub(crate) number: Option<u64>,
    pub(crate) label: Option<Label>,
}

impl Value {
    /// Longest value.
    pub(crate) const MAX_LEN: usize = 255;

    /// Parses a value; `None` if another library wrote it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (owner, rest) = text.split_once(' ')?;
        let (attempt, rest) = rest.split_once(' ')?;
        let (number, label) = match rest.split_once(' ') {
            Some((number, label)) => (number, Some(Label::new(label))),
            None => (rest, None),
        };
        let number = match number {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        let (owner, attempt) = (owner.parse().ok()?, attempt.parse().ok()?);
        Some(Self { owner, attempt, number, label })
    }

    /// Returns the value that `claim` writes.
    pub(crate) fn format(claim: &Claim, attempt: u64, number: Option<u64>) -> String {
        use std::fmt::Write;

        let mut text = claim.owner.expose();
        let written = match number {
            Some(number) => write!(text, " {attempt} {number}"),
            None => write!(text, " {attempt} -"),
        };
        written.expect("memory can be written to");
        if let Some(label) = &claim.label {
            text.push(' ');
            text.push_str(label.as_str());
        }
        text
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        FencingToken::from_backend(self.number?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lock_core::LockName;

    use super::*;

    #[test]
    fn ours_come_back_as_they_were() {
        let name = LockName::new("n").unwrap();
        let mut claim = Claim::new(name, OwnerId::mint(), Duration::from_secs(1));
        for number in [None, Some(0), Some(u64::MAX)] {
            for label in [None, Some(Label::new("web-1: a b")), Some(Label::new(&"é".repeat(99)))]
            {
                claim.label.clone_from(&label);
                let text = Value::format(&claim, u64::MAX, number);
                assert!(text.len() <= Value::MAX_LEN, "{} bytes", text.len());
                let value = Value::parse(text.as_bytes()).expect("it is ours");
                assert_eq!(value, Value { owner: claim.owner, attempt: u64::MAX, number, label });
            }
        }
    }

    #[test]
    fn others_are_not_taken_for_ours() {
        let owner = "00112233445566778899aabbccddeeff";
        let rests = ["", " ", " 1", " 1 ", " 1 x", " x 1", " - 1", " -", " 1  2"];
        let strange = rests.map(|rest| format!("{owner}{rest}"));
        for text in strange.iter().map(String::as_str).chain(["", "- - -", "1 2 3"]) {
            assert_eq!(Value::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Value::parse(b"\xff\xfe 1 1"), None);
    }
}
