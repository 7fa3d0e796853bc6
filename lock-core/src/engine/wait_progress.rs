//! The progress of an acquisition, as its caller sees it when a bounded wait ends.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, SetOnce};

use super::handover::Handover;
use super::local_queue::{HeadStatus, QueueTicket};
use crate::backend::{Effect, Fault, FaultKind};
use crate::clock::{Moment, sleep_until};
use crate::error::Error;
use crate::metrics::Began;

/// The progress that an acquisition reports to its caller.
#[derive(Debug, Default)]
pub(crate) struct WaitProgress {
    /// Set when the caller does not wait for the result any more.
    pub(crate) gone: SetOnce<()>,
    state: Mutex<ProgressState>,
    /// Notifies of each change of the progress.
    changed: Notify,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// The local queue that the claim waits in.
    queue: Option<QueueTicket<Handover>>,
    /// When the attempt was sent that has no answer yet.
    unanswered_since: Option<Moment>,
    /// The backend has answered the first attempt, with any answer.
    answered: bool,
    began: Began,
    /// The fault that keeps a waiter from being served; `None` while it is contention.
    outage: Option<Error>,
    /// The caller waits for changes.
    is_watched: bool,
}

/// How a bounded wait ends without the lock.
enum WaitOutcome {
    Contended,
    Failed(Error),
    /// The request that was sent then has to be answered first; without an answer, it is this
    /// error.
    Unknown {
        since: Moment,
        unanswered: Error,
    },
}

impl WaitProgress {
    /// Returns how a wait ends that is over: `Ok` if it is contention. If the backend has not
    /// answered anything yet, it gets as long as any call gets, so that even the shortest wait is
    /// one whole attempt; and silence is no contention.
    pub(crate) async fn finish_wait(&self, timeout: Duration) -> Result<(), Error> {
        self.state().is_watched = true;
        let mut limit = None;
        loop {
            let queue = self.state().queue.as_ref().map(QueueTicket::reissue);
            // Before the verdict: no change is missed.
            let changed = self.changed.notified();
            let queue_changed = queue.as_ref().map(QueueTicket::head_changed);
            let (since, unanswered) = match self.outcome(timeout) {
                WaitOutcome::Contended => return Ok(()),
                WaitOutcome::Failed(error) => return Err(error),
                WaitOutcome::Unknown { since, unanswered } => (since, unanswered),
            };
            let limit = *limit.get_or_insert(since + timeout);
            tokio::select! {
                biased;
                () = changed => {}
                Some(()) = async { queue_changed?.await; Some(()) } => {}
                () = sleep_until(limit) => return Err(unanswered),
            }
        }
    }

    fn outcome(&self, timeout: Duration) -> WaitOutcome {
        let state = self.state();
        if let Some(queue) = &state.queue {
            // Nothing was sent for this one.
            let not_sent = |error: Error| error.applied(Effect::NotApplied);
            return match queue.head_status() {
                (HeadStatus::Outage(_, error), _) => WaitOutcome::Failed(not_sent(error)),
                (HeadStatus::Unknown, since) => WaitOutcome::Unknown {
                    since: since.unwrap_or_else(Moment::now),
                    unanswered: not_sent(unanswered()),
                },
                (_, Some(since)) if is_silent(since, timeout) => {
                    WaitOutcome::Failed(not_sent(unanswered()))
                }
                (HeadStatus::Held | HeadStatus::Contended, _) => WaitOutcome::Contended,
            };
        }
        match (state.unanswered_since, &state.outage) {
            (_, Some(error)) => WaitOutcome::Failed(error.clone()),
            (Some(since), None) if !state.answered => {
                WaitOutcome::Unknown { since, unanswered: unanswered() }
            }
            (Some(since), None) if is_silent(since, timeout) => WaitOutcome::Failed(unanswered()),
            (_, None) => WaitOutcome::Contended,
        }
    }

    /// Returns when the acquisition has begun, for metrics.
    pub(crate) fn began(&self) -> Began {
        self.state().began
    }

    pub(super) fn set_queue(&self, queue: Option<QueueTicket<Handover>>) {
        let before = self.update(|state| {
            state.began.set(Moment::now);
            std::mem::replace(&mut state.queue, queue)
        });
        // Outside of the lock on the progress.
        drop(before);
    }

    pub(super) fn set_unanswered_since(&self, since: Option<Moment>) {
        self.update(|state| {
            state.unanswered_since = since;
            since.iter().for_each(|&since| state.began.set(|| since));
        });
    }

    /// Records the answer to an attempt. Returns true if it was the first one.
    pub(super) fn record_answer(&self) -> bool {
        self.update(|state| !std::mem::replace(&mut state.answered, true))
    }

    pub(super) fn set_outage(&self, outage: Option<Error>) {
        self.update(|state| state.outage = outage);
    }

    fn update<T>(&self, change: impl FnOnce(&mut ProgressState) -> T) -> T {
        let (result, is_watched) = {
            let mut state = self.state();
            (change(&mut state), state.is_watched)
        };
        if is_watched {
            self.changed.notify_waiters();
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if a contended lock has been silent for so long that it is a fault.
pub(super) fn is_silent(since: Moment, timeout: Duration) -> bool {
    (since + timeout / 2).has_passed()
}

fn unanswered() -> Error {
    Error::from_fault(Fault::unknown(FaultKind::TimedOut, "no answer by the end of the wait"))
}
