//! The queue entry of a claim, as far as this process knows it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::clock::Moment;
use tokio::sync::Notify;

use crate::session::Watched;

/// The queue entry of one claim, which exists or may exist on the server. It belongs to one
/// session.
#[derive(Debug)]
pub(crate) struct Place {
    /// The path of the lock's node.
    pub(crate) lock: String,
    /// The name of the queue entry without its sequence number. No other claim has the same.
    pub(crate) stem: String,
    state: Mutex<State>,
    /// The state has changed.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct State {
    /// A request to create the node is under way. Its task clears this, also for a cancelled
    /// attempt.
    pub(crate) entering: bool,
    pub(crate) node: Option<Node>,
    /// Such a request went unanswered, and may be applied until this moment.
    pub(crate) may_land_until: Option<Moment>,
    /// The watch that records the end of the node here.
    pub(crate) watched: Option<Arc<Watched>>,
    /// A task watches the queue for this entry.
    pub(crate) followed: bool,
    /// The moment since which no node is before this one.
    pub(crate) first: Option<Moment>,
    /// The claim was granted the lock.
    pub(crate) granted: bool,
    /// The node was removed, by this client or another one.
    pub(crate) gone: bool,
    /// The claim was released, and its node has to be removed.
    pub(crate) leaving: bool,
    /// The claim is released then unless it is renewed or attempted again.
    pub(crate) lapses: Moment,
}

impl State {
    /// Returns true if the claim waits and a task watches the queue, so no request is necessary.
    pub(crate) fn is_awaited(&self) -> bool {
        self.followed && self.first.is_none() && !self.gone && !self.leaving
    }
}

/// A queue entry for which a task watches the queue. Dropping it, also with its runtime, ends that.
pub(crate) struct Following(pub(crate) Arc<Place>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.state().followed = false;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// The transaction that created it.
    pub(crate) czxid: i64,
}

impl Place {
    pub(crate) fn new(lock: String, stem: String, lapses: Moment) -> Self {
        let state = State {
            entering: false,
            node: None,
            may_land_until: None,
            watched: None,
            followed: false,
            first: None,
            granted: false,
            gone: false,
            leaving: false,
            lapses,
        };
        Self { lock, stem, state: Mutex::new(state), changed: Notify::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and notifies all waiting tasks.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Records that no node is before this one.
    pub(crate) fn is_first(&self) {
        let now = Moment::now();
        self.update(|state| {
            state.first = (!state.gone).then_some(now);
            if let Some(watched) = &state.watched {
                watched.is_first();
            }
        });
    }

    /// Records that the node was removed.
    pub(crate) fn is_gone(&self) {
        self.update(|state| {
            state.gone = true;
            state.first = None;
        });
    }

    /// Returns true if the claim was granted the lock and was not released.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.state();
        state.granted && !state.gone && !state.leaving
    }

    /// Returns true if the node was removed and no late creation can follow.
    pub(crate) fn is_spent(&self) -> bool {
        let state = self.state();
        state.gone && !state.entering && state.may_land_until.is_none()
    }

    /// Returns the path of the node if it is known to exist.
    pub(crate) fn path(&self) -> Option<String> {
        self.state().node.as_ref().map(|node| format!("{}/{}", self.lock, node.name))
    }

    /// Waits until `check` returns a value for the state.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(seen) = look(&self.state()) {
                return seen;
            }
            changed.await;
        }
    }
}
