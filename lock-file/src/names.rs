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
}
