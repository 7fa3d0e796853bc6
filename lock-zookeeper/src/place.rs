//! A claim's node in the line of its lock, as far as this process knows.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::clock::Moment;
use tokio::sync::Notify;

use crate::session::Watched;

/// What one claim has, or may have, on the server. It belongs to one session.
#[derive(Debug)]
pub(crate) struct Place {
    /// The node of the lock.
    pub(crate) lock: String,
    /// What the node in line is called, but for its number. No other claim ever has the same.
    pub(crate) stem: String,
    state: Mutex<State>,
    /// The state has changed.
    pub(crate) changed: Notify,
}

#[derive(Debug)]
pub(crate) struct State {
    /// A request to create the node is under way. Its end is noted here, whoever still waits for it.
    pub(crate) entering: bool,
    pub(crate) node: Option<Node>,
    /// Such a request went unanswered, and may be carried out until then.
    pub(crate) may_land_until: Option<Moment>,
    /// Somebody sees to it that the end of the node is noted here.
    pub(crate) watched: Option<Arc<Watched>>,
    /// Somebody follows the line for it.
    pub(crate) followed: bool,
    /// All who came before have left; since when we know.
    pub(crate) first: Option<Moment>,
    /// The claim was told that it holds the lock.
    pub(crate) granted: bool,
    /// The node was removed, by us or by others.
    pub(crate) gone: bool,
    /// The claim was let go; what is left of it has to be removed.
    pub(crate) leaving: bool,
    /// Unless the claim is renewed or attempted again, it is let go then.
    pub(crate) lapses: Moment,
}

impl State {
    /// Its turn has not come, and somebody watches for it: nobody has to be asked.
    pub(crate) fn is_awaited(&self) -> bool {
        self.followed && self.first.is_none() && !self.gone && !self.leaving
    }
}

/// A place for which somebody follows the line, until this is dropped, also with its runtime.
pub(crate) struct Following(pub(crate) Arc<Place>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.state().followed = false;
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// The transaction that made it.
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

    /// Changes the state and tells everybody.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// All who came before have left.
    pub(crate) fn is_first(&self) {
        let now = Moment::now();
        self.update(|state| {
            state.first = (!state.gone).then_some(now);
            if let Some(watched) = &state.watched {
                watched.is_first();
            }
        });
    }

    pub(crate) fn is_gone(&self) {
        self.update(|state| {
            state.gone = true;
            state.first = None;
        });
    }

    /// The claim was told that it holds the lock, and has not let it go.
    pub(crate) fn is_held(&self) -> bool {
        let state = self.state();
        state.granted && !state.gone && !state.leaving
    }

    /// The node is gone, and no other will come.
    pub(crate) fn is_spent(&self) -> bool {
        let state = self.state();
        state.gone && !state.entering && state.may_land_until.is_none()
    }

    /// The path of the node in line, if there is one for all we know.
    pub(crate) fn path(&self) -> Option<String> {
        self.state().node.as_ref().map(|node| format!("{}/{}", self.lock, node.name))
    }

    /// Waits until the state is such that `look` says something.
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
