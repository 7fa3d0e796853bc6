//! The queue entry of a claim, as far as this process knows it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lock_core::clock::Moment;
use tokio::sync::{Notify, SetOnce, mpsc, oneshot};

/// The queue entry of one claim, which exists or may exist on the server. It belongs to one
/// session.
#[derive(Debug)]
pub(crate) struct QueueEntry {
    /// The path of the lock's node.
    pub(crate) lock: String,
    /// The name of the queue entry without its sequence number. No other claim has the same.
    pub(crate) name_prefix: String,
    state: Mutex<EntryState>,
    /// The state has changed.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct EntryState {
    /// A request to create the node is under way. Its task clears this, also for a cancelled
    /// attempt.
    pub(crate) creating: bool,
    pub(crate) node: Option<EntryNode>,
    /// The data of the node.
    pub(crate) data: Option<String>,
    /// Such a request went unanswered, and may be applied until this moment.
    pub(crate) late_create_until: Option<Moment>,
    /// The watch that records the end of the node here.
    pub(crate) watched: Option<Arc<NodeWatch>>,
    /// A task watches the queue for this entry.
    pub(crate) queue_watched: bool,
    /// The moment since which no node is before this one.
    pub(crate) first_since: Option<Moment>,
    /// The claim was granted the lock.
    pub(crate) granted: bool,
    /// The node was removed, by this client or another one.
    pub(crate) removed: bool,
    /// The claim was released, and its node has to be removed.
    pub(crate) releasing: bool,
    /// The claim is released then unless it is renewed or attempted again.
    pub(crate) expires_at: Moment,
}

impl EntryState {
    /// Returns true if the claim waits and a task watches the queue, so no request is necessary.
    pub(crate) fn is_waiting(&self) -> bool {
        self.queue_watched && self.first_since.is_none() && !self.removed && !self.releasing
    }
}

/// A queue entry for which a task watches the queue. Dropping it, also with its runtime, ends that.
pub(crate) struct PredecessorWatch(pub(crate) Arc<QueueEntry>);

impl Drop for PredecessorWatch {
    fn drop(&mut self) {
        self.0.state().queue_watched = false;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct EntryNode {
    pub(crate) name: String,
    /// The transaction that created it.
    pub(crate) czxid: i64,
}

impl QueueEntry {
    pub(crate) fn new(lock: String, name_prefix: String, expires_at: Moment) -> Self {
        let state = EntryState {
            creating: false,
            node: None,
            data: None,
            late_create_until: None,
            watched: None,
            queue_watched: false,
            first_since: None,
            granted: false,
            removed: false,
            releasing: false,
            expires_at,
        };
        Self { lock, name_prefix, state: Mutex::new(state), changed: Notify::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and notifies all waiting tasks.
    pub(crate) fn update(&self, change: impl FnOnce(&mut EntryState)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Records that no node is before this one.
    pub(crate) fn mark_first(&self) {
        let now = Moment::now();
        self.update(|state| {
            state.first_since = (!state.removed).then_some(now);
            if let Some(watched) = &state.watched {
                watched.mark_first();
            }
        });
    }

    /// Records that the node was removed.
    pub(crate) fn mark_removed(&self) {
        self.update(|state| {
            state.removed = true;
            state.first_since = None;
        });
    }

    /// Returns true if the claim was granted the lock and was not released.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.state();
        state.granted && !state.removed && !state.releasing
    }

    /// Returns true if the node was removed and no late creation can follow.
    pub(crate) fn is_finished(&self) -> bool {
        let state = self.state();
        state.removed && !state.creating && state.late_create_until.is_none()
    }

    /// Returns the path of the node if it is known to exist.
    pub(crate) fn path(&self) -> Option<String> {
        self.state().node.as_ref().map(|node| format!("{}/{}", self.lock, node.name))
    }

    /// Waits until `check` returns a value for the state.
    pub(crate) async fn until<T>(&self, mut check: impl FnMut(&EntryState) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(seen) = check(&self.state()) {
                return seen;
            }
            changed.await;
        }
    }
}

/// The watched nodes, by path.
pub(super) type NodeWatches = Mutex<HashMap<String, Weak<NodeWatch>>>;

/// A watched node. When its last user drops it, the watch is cancelled.
#[derive(Debug)]
pub(crate) struct NodeWatch {
    pub(super) end: SetOnce<NodeEnd>,
    /// True if it is a node of this session, and no node was before it.
    pub(super) was_first: AtomicBool,
    /// The session that owns the node.
    pub(super) owner: i64,
    /// Its data named no owner id when the watch was set.
    pub(super) was_overwritten: AtomicBool,
    /// The queue entry of the node, if it is one of this session.
    pub(super) entry: Mutex<Weak<QueueEntry>>,
    /// Queries whether the watch task has caught up. The task ends when this is dropped.
    pub(super) query: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

/// The queries to a watch task.
pub(super) type Queries = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

/// The end of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeEnd {
    Removed,
    /// The end cannot be known any more.
    Unknown,
}

impl NodeWatch {
    /// Waits until the node is removed. Returns `None` if that cannot be known any more.
    pub(super) async fn removed(&self) -> Option<()> {
        (*self.end.wait().await == NodeEnd::Removed).then_some(())
    }

    /// Waits until the watch task has recorded all events that reached this process before the
    /// call.
    pub(crate) fn caught_up(&self) -> impl Future<Output = ()> + use<> {
        let (answer, caught_up) = oneshot::channel();
        let is_sent = self.query.send(answer);
        async move {
            // A task that does not answer has ended, and has recorded its events before.
            if is_sent.is_ok() {
                drop(caught_up.await);
            }
        }
    }

    /// Records that no node is before this one.
    pub(crate) fn mark_first(&self) {
        self.was_first.store(true, Ordering::Release);
    }

    /// Returns true if no node was before this one.
    pub(super) fn was_first(&self) -> bool {
        self.was_first.load(Ordering::Acquire)
    }

    pub(super) fn entry(&self) -> MutexGuard<'_, Weak<QueueEntry>> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
