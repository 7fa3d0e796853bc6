//! Futures that outlive a caller that drops them.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::wait_progress::WaitProgress;
use crate::backend::Effect;
use crate::error::{Error, ErrorKind};
use crate::executor::shield;

/// Work on the backend that must come to its end. The caller polls it. A task of its own finishes
/// it when the caller drops it half-way.
///
/// This is how "dropping a future cancels nothing on the wire" costs nothing in the common case: no
/// task, no channel, the answer wakes the caller itself.
pub(crate) struct FinishOnDrop<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    progress: Option<Arc<WaitProgress>>,
    tasks: TaskTracker,
    runtime: Handle,
    /// A wait for the tasks includes this one.
    _under_way: TaskTrackerToken,
}

impl<T: Send + 'static> FinishOnDrop<T> {
    /// Wraps `work`. When the caller drops the future, `progress` tells the work to stop waiting;
    /// `None` if the work goes on as before.
    ///
    /// Timers of the work belong to `runtime`, the executor's, wherever it is polled.
    pub(crate) fn new(
        work: impl Future<Output = T> + Send + 'static,
        progress: Option<Arc<WaitProgress>>,
        tasks: TaskTracker,
        runtime: Handle,
    ) -> Self {
        let under_way = tasks.token();
        Self { work: Some(Box::pin(work)), progress, tasks, runtime, _under_way: under_way }
    }
}

/// Why carried work has no answer for its caller: it panicked, because the runtime of the executor
/// was shut down, and its timers with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupted;

impl From<Interrupted> for Error {
    fn from(_: Interrupted) -> Self {
        let message = "the runtime that works for this lock was shut down meanwhile";
        Self::new(ErrorKind::NoRuntime, message).applied(Effect::Unknown)
    }
}

impl<T: Send + 'static> Future for FinishOnDrop<T> {
    type Output = Result<T, Interrupted>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out meanwhile: work that panics is not carried on.
        let mut work = self.work.take().expect("not polled after it was ready");
        let poll = || {
            let _inside = self.runtime.enter();
            work.as_mut().poll(&mut Context::from_waker(&shield(cx)))
        };
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
            Ok(Poll::Pending) => {
                self.work = Some(work);
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(Interrupted)),
        }
    }
}

impl<T: Send + 'static> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if let Some(progress) = &self.progress {
            let _ = progress.gone.set(());
        }
        // On a runtime that is shutting down this drops the work, which is all that can be done.
        self.tasks.spawn_on(async move { drop(work.await) }, &self.runtime);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::SetOnce;

    use super::*;

    #[tokio::test]
    async fn dropped_work_is_finished_by_a_task() {
        let tasks = TaskTracker::new();
        let progress = Arc::<WaitProgress>::default();
        let done = Arc::new(SetOnce::new());
        let work = {
            let (progress, done) = (progress.clone(), done.clone());
            async move {
                progress.gone.wait().await;
                done.set(()).unwrap();
            }
        };
        let mut carried = FinishOnDrop::new(work, Some(progress), tasks.clone(), Handle::current());
        let polled = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut carried).poll(cx))).await;
        assert!(polled.is_pending());
        drop(carried);
        tasks.close();
        tasks.wait().await;
        assert!(done.get().is_some());
    }
}
