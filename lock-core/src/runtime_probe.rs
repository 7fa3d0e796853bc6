//! Whether an application's runtime still runs tasks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::clock::Moment;

/// Asks a runtime to run a task, and how long ago that was if it has not.
#[derive(Debug)]
pub(crate) struct RuntimeProbe {
    runtime: Handle,
    limit: Duration,
    unanswered: Arc<Mutex<Option<Moment>>>,
}

impl RuntimeProbe {
    pub(crate) fn new(runtime: Handle, limit: Duration) -> Self {
        Self { runtime, limit, unanswered: Arc::default() }
    }

    /// Returns false if a task that was spawned at least the limit ago has not run. Spawns the next
    /// one if it has.
    pub(crate) fn responds(&self) -> bool {
        let mut unanswered = lock(&self.unanswered);
        if let Some(since) = *unanswered {
            return !(since + self.limit).has_passed();
        }
        *unanswered = Some(Moment::now());
        drop(unanswered);
        let answer = Arc::clone(&self.unanswered);
        // A runtime that has ended drops it.
        self.runtime.spawn(async move { *lock(&answer) = None });
        true
    }
}

fn lock(unanswered: &Mutex<Option<Moment>>) -> MutexGuard<'_, Option<Moment>> {
    unanswered.lock().unwrap_or_else(PoisonError::into_inner)
}
