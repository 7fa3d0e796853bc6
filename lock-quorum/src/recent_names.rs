//! Names of locks that had a property a moment ago.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::LockName;
use lock_core::clock::Moment;

/// The number of names beyond which old ones are removed.
const MANY: usize = 1024;

/// Each name counts for the same time after it was last inserted.
pub(crate) struct RecentNames {
    retention: Duration,
    table: Mutex<NameTable>,
}

#[derive(Default)]
struct NameTable {
    until: HashMap<LockName, Moment>,
    /// The number of names at which the table is cleaned.
    limit: usize,
}

impl RecentNames {
    pub(crate) fn new(retention: Duration) -> Self {
        Self { retention, table: Mutex::default() }
    }

    pub(crate) fn insert(&self, name: &LockName) {
        let mut table = self.table();
        let until = Moment::now() + self.retention;
        if let Some(known) = table.until.get_mut(name) {
            *known = until;
            return;
        }
        if table.until.len() >= table.limit.max(MANY) {
            table.until.retain(|_, until| !until.has_passed());
            table.limit = table.until.len() * 2;
        }
        table.until.insert(name.clone(), until);
    }

    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.table().until.get(name).is_some_and(|until| !until.has_passed())
    }

    fn table(&self) -> MutexGuard<'_, NameTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_counts_for_a_while_and_leaves_nothing() {
        let recent = RecentNames::new(Duration::from_secs(1));
        let name = |nth: usize| LockName::new(nth.to_string()).unwrap();
        recent.insert(&name(0));
        assert!(recent.contains(&name(0)) && !recent.contains(&name(1)));
        for nth in 0..10 * MANY {
            recent.insert(&name(nth));
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!(!recent.contains(&name(0)));
        assert!(recent.table().until.len() <= MANY);
    }
}
