//! Processes that are stopped, as by SIGSTOP, and go on later.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use lock_core::clock::{Moment, sleep_until};

/// Until when a process is stopped.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopped(Arc<Mutex<Option<Moment>>>);

impl Stopped {
    pub(super) fn until(&self, moment: Moment) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// When it goes on, if it is stopped now.
    pub(super) fn ends(&self) -> Option<Moment> {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| !until.has_passed())
    }

    /// What a task of this process does: nothing while it is stopped.
    pub(super) fn task<F: Future>(&self, work: F) -> Task<F> {
        Task { stopped: self.clone(), wake: None, work: Box::pin(work) }
    }
}

/// A task of a process that may be stopped.
pub(super) struct Task<F> {
    stopped: Stopped,
    wake: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for Task<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
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
