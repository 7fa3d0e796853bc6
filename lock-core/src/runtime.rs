//! The runtimes that won locks: each is watched, so that its end is noticed wherever its locks are
//! renewed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::wheel::Wheel;

/// The runtimes that won the locks of one engine. It forgets those that have ended.
#[derive(Debug, Default)]
pub(crate) struct Runtimes(Mutex<Vec<Arc<WatchedRuntime>>>);

/// A runtime, and whether it has ended.
#[derive(Debug)]
pub(crate) struct WatchedRuntime {
    handle: Handle,
    has_ended: AtomicBool,
    /// Ends the watch when the last lock and the engine are gone.
    unwatched: Arc<Notify>,
}

impl Runtimes {
    /// Watches `handle` from now on, if it is not watched yet. `wheel` has the locks of the engine.
    pub(crate) fn watch(&self, handle: Handle, wheel: &Arc<Wheel>) -> Arc<WatchedRuntime> {
        let id = handle.id();
        let mut runtimes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_watched = |it: &&Arc<WatchedRuntime>| it.handle.id() == id;
        if let Some(watched) = runtimes.iter().find(is_watched) {
            return Arc::clone(watched);
        }
        runtimes.retain(|runtime| !runtime.has_ended());
        let (has_ended, unwatched) = (AtomicBool::new(false), Arc::default());
        let runtime = Arc::new(WatchedRuntime { handle, has_ended, unwatched });
        runtimes.push(Arc::clone(&runtime));
        drop(runtimes);
        runtime.begin_watch(wheel);
        runtime
    }
}

impl WatchedRuntime {
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Spawns a task that is dropped by the runtime when that shuts down: before its timers end, and at
    /// once if it has shut down already.
    fn begin_watch(self: &Arc<Self>, wheel: &Arc<Wheel>) {
        let watch = Watch { runtime: Arc::downgrade(self), wheel: Arc::downgrade(wheel) };
        let unwatched = Arc::clone(&self.unwatched);
        self.handle.spawn(async move {
            let _watch = watch;
            unwatched.notified().await;
        });
    }
}

impl Drop for WatchedRuntime {
    fn drop(&mut self) {
        self.unwatched.notify_one();
    }
}

struct Watch {
    runtime: Weak<WatchedRuntime>,
    wheel: Weak<Wheel>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.upgrade() else { return };
        // Before the wheel is searched: a hold that it is given from here on is looked at, at once.
        runtime.has_ended.store(true, Ordering::SeqCst);
        if let Some(wheel) = self.wheel.upgrade() {
            wheel.lose_all_of(&runtime);
        }
    }
}
