//! The connection of a session, as far as proofs have to know it.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use lock_core::clock::Moment;
use zookeeper_client::{Client, SessionState, StateWatcher};

/// Whether it is still the same one.
pub(super) struct Connection {
    states: StateWatcher,
    state: SessionState,
    /// At that moment it was the same as now, or as before it went down: no other had been asked for.
    same_at: Moment,
    has_changed: bool,
}

pub(super) enum Look {
    Same,
    /// Another one, which was not asked for before then.
    Anew(Moment),
    Down,
    Over,
}

impl Connection {
    pub(super) fn of(client: &Client) -> Self {
        let same_at = Moment::now();
        let states = client.state_watcher();
        // What the watcher has not seen comes as a change.
        let state = client.state();
        Self { states, state, same_at, has_changed: state != SessionState::SyncConnected }
    }

    /// Resolves when the connection is lost or made.
    pub(super) async fn changed(&mut self) {
        self.state = self.states.changed().await;
        self.has_changed = true;
    }

    /// True if the connection was lost or made since it was last seen connected.
    pub(super) fn has_changed(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        while pin!(self.changed()).poll(&mut context).is_ready() {}
        self.has_changed
    }

    pub(super) fn look(&mut self) -> Look {
        let now = Moment::now();
        let has_changed = self.has_changed();
        match self.state {
            state if state.is_terminated() => Look::Over,
            SessionState::SyncConnected => {
                self.has_changed = false;
                let same_at = std::mem::replace(&mut self.same_at, now);
                if has_changed { Look::Anew(same_at) } else { Look::Same }
            }
            _ => Look::Down,
        }
    }
}
