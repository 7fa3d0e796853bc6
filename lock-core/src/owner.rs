//! The holder of a lock: [`OwnerId`], secret enough to be the right to unlock, and [`Label`], made
//! for people to read.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::entropy;
use crate::error::{Error, ErrorKind};

const BYTES: usize = 16;

/// The identity of one acquisition: 128 random bits from the operating system.
///
/// Knowledge of it is the right to release the lock, so `Debug` shows its first eight hex digits
/// only; [`expose`](Self::expose) gives all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId([u8; BYTES]);

impl OwnerId {
    /// Creates a new owner id, unlike any other.
    #[must_use]
    pub fn mint() -> Self {
        let mut bytes = [0; BYTES];
        entropy::fill(&mut bytes);
        Self(bytes)
    }

    /// Returns the whole id as 32 lower-case hex digits, as stored on the server: the right to
    /// unlock.
    #[must_use]
    pub fn expose(&self) -> String {
        hex(&self.0)
    }

    /// Returns the first eight hex digits: enough to tell owners apart in a log, not enough to
    /// unlock.
    #[must_use]
    pub fn short(&self) -> String {
        hex(&self.0[..4])
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
    let digits = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]);
    // Large enough from the start, which it would not know itself.
    let mut text = Vec::with_capacity(2 * bytes.len());
    text.extend(digits);
    String::from_utf8(text).unwrap_or_default()
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({}…)", self.short())
    }
}

impl FromStr for OwnerId {
    type Err = Error;

    /// Parses the output of [`expose`](Self::expose).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not 32 hex digits. The text itself is not repeated.
    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::new(ErrorKind::Invalid, "an owner id is 32 hex digits");
        if text.len() != 2 * BYTES || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).map_err(|_| bad())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
        }
        Ok(Self(bytes))
    }
}

/// The label of a holder that `inspect` shows. It is opt-in, because host names and process ids
/// would leak to every reader of the backend. At most 120 bytes, without control characters.
/// Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Label(Arc<str>);

impl Label {
    /// The longest label, in bytes.
    pub const MAX_LEN: usize = 120;

    /// Creates a label. Control characters become `?`; a longer text is cut.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut label = String::new();
        for c in text.chars().map(|c| if c.is_control() { '?' } else { c }) {
            if label.len() + c.len_utf8() > Self::MAX_LEN {
                break;
            }
            label.push(c);
        }
        Self(label.into())
    }

    /// Returns the label `host:pid` of this process.
    #[must_use]
    pub fn host_and_pid() -> Self {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy();
        Self::new(&format!("{host}:{}", std::process::id()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for OwnerId {
    /// Serialises the exposed hex digits: a serialised owner id is meant to pass the right on.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.expose())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for OwnerId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_survives_the_round_trip_through_text() {
        let owner = OwnerId::mint();
        assert_eq!(owner.expose().parse::<OwnerId>().unwrap(), owner);
        assert_eq!(owner.expose().len(), 32);
    }

    #[test]
    fn debug_shows_eight_digits_and_no_more() {
        let owner = OwnerId::mint();
        let shown = format!("{owner:?}");
        assert!(shown.contains(&owner.short()));
        assert!(!shown.contains(&owner.expose()[..9]), "{shown}");
    }

    #[test]
    fn malformed_owners_are_refused_without_being_repeated() {
        for text in
            ["", "xyz", "g0000000000000000000000000000000", "é000000000000000000000000000000"]
        {
            let error = text.parse::<OwnerId>().unwrap_err();
            assert!(text.is_empty() || !error.to_string().contains(text));
        }
    }

    #[test]
    fn labels_are_printable_and_bounded() {
        assert_eq!(Label::new("a\nb\u{1b}[2J").as_str(), "a?b?[2J");
        assert!(Label::new(&"é".repeat(500)).as_str().len() <= Label::MAX_LEN);
    }
}
