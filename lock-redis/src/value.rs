//! What stands under the key of a held lock.

use lock_core::{FencingToken, Label, OwnerId};

/// The value of a lock of ours: `<owner> <number>[ <label>]`. A minus sign before it: its owner has let
/// it go, and it stays shut until its minimum hold is over.
///
/// The number is there besides the fence so that a holder keeps its token if the fence is lost, and
/// so that a value of another library, which may well be 32 hex digits, is not taken for ours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) number: u64,
    pub(crate) label: Option<Label>,
}

impl Value {
    /// No value of ours is longer.
    pub(crate) const MAX_LEN: usize = 255;

    /// `None` if somebody else wrote it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (owner, rest) = text.strip_prefix('-').unwrap_or(text).split_once(' ')?;
        let (number, label) = match rest.split_once(' ') {
            Some((number, label)) => (number, Some(Label::new(label))),
            None => (rest, None),
        };
        Some(Self { owner: owner.parse().ok()?, number: number.parse().ok()?, label })
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        FencingToken::from_backend(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn ours_are_told_from_others() {
        for (text, label) in [("1 ", None), ("17", None), ("17 web-1: a b", Some("web-1: a b"))] {
            let parsed = Value::parse(format!("{OWNER} {text}").as_bytes());
            let parsed = parsed.as_ref().map(|v| v.label.as_ref().map_or("", Label::as_str));
            assert_eq!(parsed, Some(label.unwrap_or("")), "{text}");
            assert!(Value::parse(format!("-{OWNER} {text}").as_bytes()).is_some());
        }
        let strange: [&[u8]; 6] = [
            b"",
            OWNER.as_bytes(),
            b"\xff\xfe 1",
            b"1 2",
            b"-",
            b"00112233445566778899aabbccddeeff x",
        ];
        for bytes in strange {
            assert_eq!(Value::parse(bytes), None);
        }
    }
}
