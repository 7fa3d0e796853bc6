//! Lock names.

mod parse;

use std::fmt;
use std::sync::Arc;

/// The name of a lock: any non-empty UTF-8 text up to 64 KiB.
///
/// Names are compared byte by byte; nothing is normalised, so `é` as one code point and `é` as two
/// are different locks. Cloning is cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64 * 1024;

    /// Returns the name as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    /// Formats the name for messages: quoted, with control characters escaped, and cut to a
    /// readable length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        match self.0.char_indices().nth(SHOWN) {
            None => write!(f, "{:?}", &*self.0),
            Some((end, _)) => write!(f, "{:?}… ({} bytes)", &self.0[..end], self.0.len()),
        }
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockName({self})")
    }
}

impl From<&LockName> for LockName {
    fn from(name: &LockName) -> Self {
        name.clone()
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LockName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
