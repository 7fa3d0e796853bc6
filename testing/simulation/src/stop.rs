//! Processes that are stopped, as by SIGSTOP, and resume later or never.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use lock_core::clock::{Moment, sleep_until};

/// The time until which a process is stopped.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessState(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    until: Option<Moment>,
    is_dead: bool,
}

impl ProcessState {
    pub(super) fn until(&self, moment: Moment) {
        self.state().until = Some(moment);
    }

    /// Kills the process: it does nothing any more.
    pub(super) fn for_ever(&self) {
        self.state().is_dead = true;
    }

    /// Returns when it resumes, if it is stopped now.
    pub(super) fn ends(&self) -> Option<Moment> {
        self.state().until.filter(|until| !until.has_passed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wraps the work of a task of this process, which pauses while the process is stopped.
    pub(super) fn task<F: Future>(&self, work: F) -> Task<F> {
        Task { stopped: self.clone(), wake: None, work: Box::pin(work) }
    }
}

/// A task of a process that may be stopped.
pub(super) struct Task<F> {
    stopped: ProcessState,
    wake: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.stopped.state().is_dead {
            return Poll::Pending;
        }
        while let Some(until) = self.stopped.ends() {
            let wake = self.wake.insert(Box::pin(sleep_until(until)));
            if wake.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        self.wake = None;
        self.work.as_mut().poll(cx)
    }
}
