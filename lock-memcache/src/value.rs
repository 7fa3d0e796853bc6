//! What stands under the key of a held lock.

use lock_core::{FencingToken, Label, OwnerId};

/// The value of a lock of ours: `<owner> <number>[ <label>]`.
///
/// The number is that of the fencing token, and `-` until the first renewal: it is drawn when the lock
/// is taken already. It is there also so that a value of another library, which may well be 32 hex
/// digits, is not taken for ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) number: Option<u64>,
    pub(crate) label: Option<Label>,
}

impl Value {
    /// No value of ours is longer.
    pub(crate) const MAX_LEN: usize = 255;

    /// `None` if somebody else wrote it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (owner, rest) = text.split_once(' ')?;
        let (number, label) = match rest.split_once(' ') {
            Some((number, label)) => (number, Some(Label::new(label))),
            None => (rest, None),
        };
        let number = match number {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        Some(Self { owner: owner.parse().ok()?, number, label })
    }

    pub(crate) fn format(owner: &OwnerId, number: Option<u64>, label: Option<&Label>) -> String {
        let mut text = owner.expose();
        text.push(' ');
        match number {
            Some(number) => text.push_str(&number.to_string()),
            None => text.push('-'),
        }
        if let Some(label) = label {
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
    use super::*;

    #[test]
    fn ours_come_back_as_they_were() {
        let owner = OwnerId::mint();
        for number in [None, Some(0), Some(u64::MAX)] {
            for label in [None, Some(Label::new("web-1: a b")), Some(Label::new(&"é".repeat(99)))]
            {
                let text = Value::format(&owner, number, label.as_ref());
                assert!(text.len() <= Value::MAX_LEN, "{} bytes", text.len());
                let value = Value::parse(text.as_bytes()).expect("it is ours");
                assert_eq!(value, Value { owner, number, label });
            }
        }
    }

    #[test]
    fn others_are_not_taken_for_ours() {
        let owner = "00112233445566778899aabbccddeeff";
        let strange = [owner, "", "- -", "1 2", &format!("{owner} x"), &format!("{owner} ")];
        for text in strange {
            assert_eq!(Value::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Value::parse(b"\xff\xfe 1"), None);
    }
}
