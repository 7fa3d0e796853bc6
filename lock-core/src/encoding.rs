//! The encoding that turns lock names into keys, nodes and file names.

use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::owner::hex;

/// The digits and marks of an encoded name never change without this number changing: a change
/// would split a fleet of old and new processes into two lock spaces.
pub const ENCODING_VERSION: u32 = 1;

/// `%` never stands before `~` in an escape, so this opens the digest of an over-long name.
const DIGEST_MARK: &str = "%~";
const DIGEST_LEN: usize = DIGEST_MARK.len() + 64;

/// How a backend writes names into its own alphabet and length: different names give different
/// keys, and a name made of plain ASCII letters, digits, `-`, `_`, `.` stays what it is.
///
/// Bytes of the alphabet stand for themselves, every other byte (and always `%`) as `%XX` in upper
/// case. A longer key is cut after an escape and ends in `%~` and the SHA-256 of the whole name in
/// hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoding {
    punctuation: &'static str,
    max_len: usize,
    prefix: String,
    plain_dot_names: bool,
}

impl Encoding {
    /// Creates an encoding that leaves ASCII letters, digits and `punctuation` as they are and
    /// whose results, prefix included, have at most `max_len` bytes.
    ///
    /// # Panics
    ///
    /// If `punctuation` holds `%`, anything but printable ASCII, or if `max_len` is below 100:
    /// these are constants of a backend, not input.
    #[must_use]
    pub fn new(punctuation: &'static str, max_len: usize) -> Self {
        assert!(
            punctuation.bytes().all(|b| b.is_ascii_graphic() && b != b'%'),
            "printable, without %"
        );
        assert!(max_len >= 100, "a digest and a readable beginning must fit");
        Self { punctuation, max_len, prefix: String::new(), plain_dot_names: true }
    }

    /// Escapes a dot at the start of a name: for file systems and trees in which `.` and `..` mean
    /// something, and a leading dot hides.
    #[must_use]
    pub fn escape_leading_dot(mut self) -> Self {
        self.plain_dot_names = false;
        self
    }

    /// Puts `prefix` before every key. In names, the character that ends the prefix is escaped from
    /// then on, so that a key splits into prefix and name in one way only.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] unless the prefix is empty, or is made of characters that this
    /// encoding leaves as they are, ends in `:` or `/`, and leaves room for names.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, Error> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        if !prefix.is_empty() && !prefix.ends_with([':', '/']) {
            return invalid(format!("the prefix {prefix:?} must end in ':' or '/'"));
        }
        if let Some(odd) = prefix.bytes().find(|&b| !(b.is_ascii_alphanumeric() || self.allows(b)))
        {
            return invalid(format!(
                "the prefix {prefix:?} holds {:?}, which this backend cannot carry",
                odd as char
            ));
        }
        if prefix.len() + 100 > self.max_len {
            return invalid(format!(
                "the prefix is {} bytes long; at most {} fit",
                prefix.len(),
                self.max_len - 100
            ));
        }
        self.prefix = prefix.to_owned();
        Ok(self)
    }

    /// Returns the key for `name`.
    #[must_use]
    pub fn encode(&self, name: &LockName) -> String {
        let room = self.max_len - self.prefix.len();
        let separator = self.prefix.bytes().last();
        // Most names stay what they are.
        let mut key =
            String::with_capacity(self.max_len.min(self.prefix.len() + name.as_str().len()));
        key.push_str(&self.prefix);
        let mut readable_end = key.len();
        for (at, byte) in name.as_str().bytes().enumerate() {
            let hidden = at == 0 && byte == b'.' && !self.plain_dot_names;
            let plain = byte.is_ascii_alphanumeric() || self.allows(byte);
            if plain && Some(byte) != separator && !hidden {
                key.push(char::from(byte));
            } else {
                key.push('%');
                key.push_str(&hex(&[byte]).to_uppercase());
            }
            if key.len() - self.prefix.len() + DIGEST_LEN <= room {
                readable_end = key.len();
            }
            if key.len() - self.prefix.len() > room {
                key.truncate(readable_end);
                key.push_str(DIGEST_MARK);
                key.push_str(&hex(&Sha256::digest(name.as_str().as_bytes())));
                break;
            }
        }
        key
    }

    /// Returns the name of a key of this encoding. `None` for a foreign key, and for a key that
    /// holds a digest, which cannot be decoded.
    #[must_use]
    pub fn decode(&self, key: &str) -> Option<LockName> {
        let mut rest = key.strip_prefix(&self.prefix)?.as_bytes();
        let mut name = Vec::with_capacity(rest.len());
        while let Some((&first, tail)) = rest.split_first() {
            if first == b'%' {
                let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
                name.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &tail[2..];
            } else {
                name.push(first);
                rest = tail;
            }
        }
        let name = LockName::new(String::from_utf8(name).ok()?).ok()?;
        (self.encode(&name) == key).then_some(name)
    }

    fn allows(&self, byte: u8) -> bool {
        self.punctuation.as_bytes().contains(&byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    fn encoding() -> Encoding {
        Encoding::new("-_.:/", 200)
    }

    #[test]
    fn empty_and_huge_names_are_refused() {
        assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::Invalid);
        assert!(LockName::new("x".repeat(LockName::MAX_LEN)).is_ok());
        assert!(LockName::new("x".repeat(LockName::MAX_LEN + 1)).is_err());
    }

    #[test]
    fn shown_names_are_quoted_and_cut() {
        assert_eq!(name("a\nb").to_string(), "\"a\\nb\"");
        let long = name(&"é".repeat(1000)).to_string();
        assert!(long.len() < 200 && long.ends_with("(2000 bytes)"), "{long}");
    }

    #[test]
    fn a_prefix_splits_off_in_one_way() {
        let outer = encoding().with_prefix("a:").unwrap();
        let inner = encoding().with_prefix("a:b:").unwrap();
        assert_ne!(outer.encode(&name("b:c")), inner.encode(&name("c")));
        assert_eq!(outer.encode(&name("b:c")), "a:b%3Ac");
    }

    #[test]
    fn unusable_prefixes_are_refused() {
        for prefix in ["a", "ä:", "a b:", &format!("{}:", "x".repeat(150))] {
            assert!(encoding().with_prefix(prefix).is_err(), "{prefix}");
        }
        assert_eq!(encoding().with_prefix("").unwrap(), encoding());
    }

    #[test]
    fn a_leading_dot_can_be_escaped() {
        let files = encoding().escape_leading_dot();
        assert_eq!(files.encode(&name("..")), "%2E.");
        assert_eq!(files.decode("%2E."), Some(name("..")));
        assert_eq!(files.decode(".."), None, "nobody's key but ours is read as ours");
    }
}
