//! The line inside one process: waiters of one name are served first come, first served, and only
//! the head of the line talks to a backend that keeps no line of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::name::LockName;

/// The lines of one locker. A name has an entry only while somebody stands in its line.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<HashMap<LockName, Arc<Semaphore>>>);

impl Lines {
    /// Waits until this caller is the head of the line.
    ///
    /// Cancel safe: dropping the future leaves the line, and loses the place in it.
    pub(crate) async fn enter(self: &Arc<Self>, name: &LockName) -> Place {
        let visit = self.visit(name);
        let permit = Arc::clone(&visit.line).acquire_owned().await.expect("lines are never closed");
        Place { _head: permit, _visit: visit }
    }

    /// Becomes the head of the line if nobody else is.
    pub(crate) fn try_enter(self: &Arc<Self>, name: &LockName) -> Option<Place> {
        let visit = self.visit(name);
        match Arc::clone(&visit.line).try_acquire_owned() {
            Ok(permit) => Some(Place { _head: permit, _visit: visit }),
            Err(TryAcquireError::NoPermits) => None,
            Err(TryAcquireError::Closed) => unreachable!("lines are never closed"),
        }
    }

    fn visit(self: &Arc<Self>, name: &LockName) -> Visit {
        let mut lines = self.map();
        let line = lines.entry(name.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        Visit { lines: Arc::clone(self), name: name.clone(), line: Arc::clone(line) }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<LockName, Arc<Semaphore>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The head of a line. Dropping it lets the next one move up. Fields drop in this order.
#[derive(Debug)]
pub(crate) struct Place {
    _head: OwnedSemaphorePermit,
    _visit: Visit,
}

/// Somebody who stands in a line, or looks at it.
#[derive(Debug)]
struct Visit {
    lines: Arc<Lines>,
    name: LockName,
    line: Arc<Semaphore>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut lines = self.lines.map();
        // The map's own and this one: nobody else is in the line, and nobody can enter meanwhile.
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_line_is_served_in_order_and_leaves_nothing_behind() {
        let lines = Arc::new(Lines::default());
        let name = LockName::new("n").unwrap();
        let head = lines.try_enter(&name).unwrap();
        assert!(lines.try_enter(&name).is_none());

        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for i in 0..5 {
            let (lines, name, served) = (Arc::clone(&lines), name.clone(), Arc::clone(&served));
            waiting.push(tokio::spawn(async move {
                let _place = lines.enter(&name).await;
                served.lock().unwrap().push(i);
            }));
            tokio::task::yield_now().await;
        }
        waiting.remove(2).abort();
        drop(head);
        for task in waiting {
            task.await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), [0, 1, 3, 4]);
        assert!(lines.map().is_empty());
    }
}
