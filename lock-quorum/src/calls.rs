//! Calls of several members at once. The task that waits for the answers polls them; a background
//! task continues them when nothing waits any more. In the usual case that saves a task for each
//! member.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use lock_core::backend::{Fault, FaultKind};
use tokio::runtime::Handle;

type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Calls in flight.
pub(crate) struct Calls<T: Send + 'static> {
    in_flight: Vec<(usize, Call<T>)>,
    ready: VecDeque<(usize, T)>,
    /// The answer of a call that panicked.
    on_panic: fn(Fault) -> T,
    /// Polled by a background task. If that is dropped, its runtime has ended, and no task can
    /// continue the calls.
    is_background: bool,
}

impl<T: Send + 'static> Calls<T> {
    pub(crate) fn new(on_panic: fn(Fault) -> T) -> Self {
        Self { in_flight: Vec::new(), ready: VecDeque::new(), on_panic, is_background: false }
    }

    /// Starts a call at once, before its answer is awaited: a call that starts later than its undo
    /// is never undone.
    pub(crate) fn begin(&mut self, member: usize, call: impl Future<Output = T> + Send + 'static) {
        let mut call: Call<T> = Box::pin(call);
        // The task that awaits the answer polls it again.
        match poll(&mut call, self.on_panic, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => self.ready.push_back((member, answer)),
            Poll::Pending => self.in_flight.push((member, call)),
        }
    }

    /// Returns the next answer and its member; `None` if no call is in flight.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the calls in flight.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.ready.is_empty()
    }

    /// Polls for one answer. Calls after the first ready one are not polled: the caller may need no
    /// more.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<(usize, T)>> {
        if let Some(answer) = self.ready.pop_front() {
            return Poll::Ready(Some(answer));
        }
        for place in 0..self.in_flight.len() {
            let (member, call) = &mut self.in_flight[place];
            if let Poll::Ready(answer) = poll(call, self.on_panic, cx) {
                let member = *member;
                drop(self.in_flight.remove(place));
                return Poll::Ready(Some((member, answer)));
            }
        }
        match self.in_flight.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    /// Continues the calls in flight in a background task.
    pub(crate) fn continue_in_background(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let in_flight = std::mem::take(&mut self.in_flight);
        let mut rest = Self::new(self.on_panic);
        (rest.in_flight, rest.is_background) = (in_flight, true);
        runtime.spawn(async move { while rest.next().await.is_some() {} });
    }
}

impl<T: Send + 'static> Drop for Calls<T> {
    fn drop(&mut self) {
        if !self.is_background {
            self.continue_in_background();
        }
    }
}

fn poll<T>(call: &mut Call<T>, on_panic: fn(Fault) -> T, cx: &mut Context<'_>) -> Poll<T> {
    catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)))
        .unwrap_or_else(|_| Poll::Ready(on_panic(Fault::unknown(FaultKind::Broken, "it panicked"))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use lock_core::clock::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_come_as_they_are_there_and_a_panic_is_one() {
        let mut calls = Calls::new(Err);
        for (member, late) in [(0, 30), (1, 10), (2, 20)] {
            calls.begin(member, async move {
                sleep(Duration::from_millis(late)).await;
                assert!(member != 2, "it is broken");
                Ok(member)
            });
        }
        assert!(matches!(calls.next().await, Some((1, Ok(1)))));
        assert!(
            matches!(calls.next().await, Some((2, Err(fault))) if fault.kind() == FaultKind::Broken)
        );
        assert!(matches!(calls.next().await, Some((0, Ok(0)))));
        assert!(calls.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_begun_before_anybody_waits_for_it() {
        let begun = Arc::new(AtomicU32::new(0));
        let mut calls = Calls::new(|_| ());
        for member in 0..2 {
            let begun = Arc::clone(&begun);
            calls.begin(member, async move {
                begun.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_secs(member as u64)).await;
            });
        }
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        assert!(calls.next().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_goes_on() {
        let done = Arc::new(AtomicU32::new(0));
        let mut calls = Calls::new(|_| ());
        for member in 0..3 {
            let done = Arc::clone(&done);
            calls.begin(member, async move {
                sleep(Duration::from_secs(member as u64)).await;
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert!(calls.next().await.is_some());
        drop(calls);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(done.load(Ordering::SeqCst), 3);
    }
}
