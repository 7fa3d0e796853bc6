//! From lock names to file names.

use lock_core::{Encoding, LockName};

const SUFFIX: &str = ".lock";

/// Characters that are not escaped, beside letters and digits: harmless in every shell.
const PUNCTUATION: &str = "-_.:@+=,";

const MAX_FILE_NAME: usize = 200;

/// The encoding of lock names as file names.
#[derive(Debug)]
pub(crate) struct Names(Encoding);

impl Names {
    pub(crate) fn new() -> Self {
        let encoding = Encoding::new(PUNCTUATION, MAX_FILE_NAME - SUFFIX.len());
        Self(encoding.escape_leading_dot())
    }

    /// Returns the name of the lock file of `name`.
    pub(crate) fn file_name(&self, name: &LockName) -> String {
        self.0.encode(name) + SUFFIX
    }

    /// Returns the name of the lock with this file. `None` for another file, and for one whose name
    /// ends in a digest, which cannot be decoded.
    pub(crate) fn of_file(&self, file_name: &str) -> Option<LockName> {
        self.0.decode(file_name.strip_suffix(SUFFIX)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_tells_its_name() {
        let names = Names::new();
        for text in ["n", ".hidden", "a/b", "é 1", "%", "a.lock"] {
            let name = LockName::new(text).unwrap();
            assert_eq!(names.of_file(&names.file_name(&name)), Some(name));
        }
        let long = names.file_name(&LockName::new("x".repeat(300)).unwrap());
        for other in [&long, "n", ".lock", "n.lock.d", "a b.lock", "%41.lock", ".n.lock"] {
            assert_eq!(names.of_file(other), None, "{other}");
        }
    }
}
