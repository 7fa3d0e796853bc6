//! The value under the key of a held lock.

use std::fmt::Write;

use lock_core::{FencingToken, Label, OwnerId};

/// The value of a lock of ours: `<owner> <token>[ <label>]`. A minus sign before it marks a
/// released lock that stays held until its minimum hold is over. A space after it marks that a
/// waiter exists.
///
/// The token stands here besides the token key, so that a holder keeps its token if that key is
/// lost. It also tells our values from those of another library, which may be 32 hex digits as
/// well.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) owner: OwnerId,
    pub(crate) token: u64,
    pub(crate) label: Option<Label>,
    pub(crate) is_marked: bool,
}

impl Value {
    /// No value of ours is longer.
    pub(crate) const MAX_LEN: usize = 255;

    /// Parses a value, or returns `None` if a foreign client wrote it.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= Self::MAX_LEN)?;
        let unmarked = text.strip_suffix(' ');
        let (text, is_marked) = (unmarked.unwrap_or(text), unmarked.is_some());
        let (owner, rest) = text.strip_prefix('-').unwrap_or(text).split_once(' ')?;
        let (token, label) = match rest.split_once(' ') {
            Some((token, label)) => (token, Some(Label::new(label))),
            None => (rest, None),
        };
        let is_number =
            |text: &&str| text.len() <= 16 && text.bytes().all(|it| it.is_ascii_digit());
        let token = token.parse().ok().filter(|_| is_number(&token))?;
        let owner = owner.parse().ok()?;
        Some(Self { owner, token, label, is_marked })
    }

    /// Returns the value that the acquiring script writes: see [`shown`].
    pub(crate) fn text(owner: &OwnerId, token: u64, label: Option<&Label>) -> String {
        let mut text = owner.expose();
        // Strings take everything.
        let _ = write!(text, " {token}");
        let label = shown(label);
        if !label.is_empty() {
            text.push(' ');
            text.push_str(label);
        }
        text
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        FencingToken::from_backend(self.token)
    }
}

/// Returns the label as servers store it, without an end that looks like a mark.
pub(crate) fn shown(label: Option<&Label>) -> &str {
    label.map_or("", |label| label.as_str().trim_end_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: &str = "00112233445566778899aabbccddeeff";

    #[test]
    fn a_mark_is_no_part_of_the_label() {
        let owner: OwnerId = OWNER.parse().unwrap();
        for label in [None, Some(Label::new("web-1: a b"))] {
            let text = Value::text(&owner, 17, label.as_ref());
            let value = Value { owner, token: 17, label, is_marked: false };
            assert_eq!(Value::parse(text.as_bytes()).as_ref(), Some(&value));
            let marked = Value { is_marked: true, ..value };
            assert_eq!(Value::parse(format!("{text} ").as_bytes()), Some(marked));
        }
    }

    #[test]
    fn foreign_values_are_not_parsed() {
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
