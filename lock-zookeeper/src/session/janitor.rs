//! Removes the residue of claims: nodes of released claims, and queue entries that expired.

use std::sync::Arc;
use std::time::Duration;

use lock_core::OwnerId;
use lock_core::clock::{Moment, sleep_until};

use super::Session;
use crate::place::Place;

/// The time that a release has before the cleanup task removes its node.
const GRACE: Duration = Duration::from_secs(1);

/// The pause between two attempts to remove a node.
const SWEEP_PAUSE: Duration = Duration::from_millis(200);

impl Session {
    /// Marks the claim's node for removal, by the caller or else by the cleanup task.
    pub(crate) fn let_go(&self, place: &Place) {
        let lapses = Moment::now() + GRACE;
        place.update(|state| {
            state.leaving = true;
            state.lapses = lapses;
        });
        self.sweep_by(lapses);
    }

    /// Schedules a cleanup at `at` or sooner.
    pub(super) fn sweep_by(&self, at: Moment) {
        let sweeps_at = *self.sweeps_at();
        if sweeps_at.is_none_or(|sweeps_at| at < sweeps_at) {
            self.sweep.notify_one();
        }
    }

    /// Cleans up for as long as the session lives.
    pub(super) async fn sweep(&self) {
        loop {
            let now = Moment::now();
            // An entry that is added meanwhile is checked as well.
            *self.sweeps_at() = None;
            let places: Vec<_> =
                self.places().iter().map(|(owner, place)| (*owner, Arc::clone(place))).collect();
            let mut next: Option<Moment> = None;
            for (owner, place) in places {
                let lapses = place.state().lapses;
                let look = if lapses > now {
                    lapses
                } else {
                    self.clear(&owner, &place).await;
                    place.state().lapses
                };
                next = Some(next.map_or(look, |next| next.min(look)));
            }
            let next = next.map(|next| next.max(now + SWEEP_PAUSE / 10));
            *self.sweeps_at() = next;
            let at = async {
                match next {
                    Some(next) => sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = at => {}
                () = self.sweep.notified() => {}
            }
        }
    }

    /// Removes an entry that has expired or was released.
    async fn clear(&self, owner: &OwnerId, place: &Arc<Place>) {
        // It is checked again, because it may have been renewed meanwhile.
        place.update(|state| state.leaving |= state.lapses.has_passed());
        if !place.state().leaving {
            return;
        }
        // A creation without an answer ends with its connection at the latest. Other entries are
        // waiting.
        let is_idle = !place.state().entering;
        if is_idle && self.is_connected() {
            let bound = self.timeout() / 3;
            let _ = tokio::time::timeout(bound, self.leave(owner, place)).await;
        }
        place.state().lapses = Moment::now() + SWEEP_PAUSE;
    }
}
