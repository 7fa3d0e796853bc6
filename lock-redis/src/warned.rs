//! The locks that this client has warned of.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most locks whose warnings are remembered. Beyond it, no other lock is warned of.
const MAX_WARNED: usize = 1000;

/// The keys of the locks that were warned of. Each is warned of once, until this client gets it.
#[derive(Debug, Default)]
pub(crate) struct WarnedLocks(Mutex<HashSet<String>>);

impl WarnedLocks {
    /// Records the key. Returns false if it was warned of, or if the table is full.
    pub(crate) fn is_new(&self, key: &str) -> bool {
        let mut keys = self.keys();
        keys.len() < MAX_WARNED && keys.insert(key.to_owned())
    }

    pub(crate) fn forget(&self, key: &str) {
        let mut keys = self.keys();
        // Nearly always empty.
        if !keys.is_empty() {
            keys.remove(key);
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
