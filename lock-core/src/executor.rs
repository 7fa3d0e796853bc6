//! The runtime of the work that no caller waits for: [`Executor`].
//!
//! A lock outlives the call that won it. Its renewals, the notification of its loss, its release in
//! the background, and the connection that all of these use must not depend on the runtime of any
//! one caller: that may be idle, blocked or gone. So they run on a thread of their own.

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::sync::SetOnce;
use tracing::dispatcher::{self, Dispatch};
use tracing::subscriber::NoSubscriber;

use crate::clock::{self, Moment, sleep};
use crate::error::{Error, ErrorKind};

/// How long the thread goes on after its last user has gone, if tasks still run: a connection says
/// goodbye.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A runtime for connections, renewals, notifications of losses, and background releases.
///
/// A backend with tasks makes one when it connects, connects [within](Self::within) it, and returns
/// it from [`Backend::executor`](crate::Backend::executor). Core makes one for a backend that has
/// none. Core polls every verb within it: each task, socket and timer of a verb belongs to the
/// executor, although the caller's task polls the verb. So a verb costs no change of threads.
///
/// The executor has one thread, `lock-core`, which sleeps while there is nothing to do. It ends
/// with the last clone; tasks that are left then have a second to end. A backend that blocks the
/// thread delays its own lockers and no others.
///
/// A process that was forked has no such thread. [`is_gone`](Self::is_gone) tells, the locks of the
/// parent are lost there, and the parent's connections are left alone.
#[derive(Clone)]
pub struct Executor(Arc<Shared>);

struct Shared {
    handle: Handle,
    process: u32,
    /// Ends the thread. `None`: the runtime was given, and is another's to end.
    stop: Option<Arc<SetOnce<()>>>,
}

/// All executors of this process, for [`Executor::current_or_new`].
static KNOWN: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Executor {
    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the system has no thread or no descriptors for it.
    pub fn new() -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| no(&e))?;
        let runtime = Owned(Some(runtime));
        let handle = runtime.get().handle().clone();
        let stop = Arc::<SetOnce<()>>::default();
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("lock-core".to_owned());
        let subscriber = dispatcher::get_default(Dispatch::clone);
        let drive = move || match subscriber.is::<NoSubscriber>() {
            true => runtime.drive(&stopped),
            // One of this thread alone, perhaps.
            false => dispatcher::with_default(&subscriber, || runtime.drive(&stopped)),
        };
        thread.spawn(drive).map_err(|e| no(&e))?;
        Ok(Self::known(handle, Some(stop)))
    }

    /// Uses a runtime of the caller's, which has timers and, if the backend has sockets, I/O. For
    /// tests: everything depends on that runtime then, and its locks are lost when it ends.
    #[must_use]
    pub fn of(runtime: Handle) -> Self {
        Self::known(runtime, None)
    }

    /// Returns the executor that this call is made within, if any. In a runtime whose clock is
    /// paused, that runtime: no other one has its time. Otherwise starts a thread.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn current_or_new() -> Result<Self, Error> {
        let Ok(here) = Handle::try_current() else { return Self::new() };
        let is_here = |it: &Arc<Shared>| it.handle.id() == here.id();
        let within = known().iter().filter_map(Weak::upgrade).find(is_here);
        match within {
            Some(inner) => Ok(Self(inner)),
            None if clock::is_paused() => Ok(Self::of(here)),
            None => Self::new(),
        }
    }

    /// Returns the runtime, to spawn on.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// Polls `work` in the context of the executor: its spawned tasks run there, and its timers and
    /// sockets belong there. `work` itself is polled by the caller, on any runtime or none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, in the context of the executor, too.
    pub async fn within<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(Some(work));
        let mut within = Within { work: work.as_mut(), handle: self.handle() };
        std::future::poll_fn(|cx| within.poll(cx)).await
    }

    /// Returns true in a process that was forked from the one that made the executor: nothing runs
    /// there.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.process != std::process::id()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.is_gone() {
            return Ok(());
        }
        let message = "this process is a fork of the one that connected; connect in this one";
        Err(Error::new(ErrorKind::NoRuntime, message))
    }

    fn known(handle: Handle, stop: Option<Arc<SetOnce<()>>>) -> Self {
        let inner = Arc::new(Shared { handle, process: std::process::id(), stop });
        let mut known = known();
        known.retain(|it| it.strong_count() > 0);
        known.push(Arc::downgrade(&inner));
        Self(inner)
    }
}

fn known() -> MutexGuard<'static, Vec<Weak<Shared>>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no(error: &io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("there is no thread for the locks: {error}"))
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A fork shares the parent's wake-up descriptor.
        if let Some(stop) = self.stop.as_ref().filter(|_| self.process == std::process::id()) {
            let _ = stop.set(());
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Executor").field(&self.0.handle.id()).finish()
    }
}

/// Enters `runtime`. `None` in a thread that ends, which has no context any more.
fn enter(runtime: &Handle) -> Option<EnterGuard<'_>> {
    let here = Handle::try_current();
    let is_over = here.is_err_and(|error| error.is_thread_local_destroyed());
    (!is_over).then(|| runtime.enter())
}

struct Within<'a, F> {
    /// `None` once it has ended.
    work: Pin<&'a mut Option<F>>,
    handle: &'a Handle,
}

impl<F: Future> Within<'_, F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let work = self.work.as_mut().as_pin_mut().expect("not polled after it was ready");
        let _inside = self.handle.enter();
        let answer = work.poll(&mut Context::from_waker(&shield(cx)));
        if answer.is_ready() {
            self.work.set(None);
        }
        answer
    }
}

impl<F> Drop for Within<'_, F> {
    fn drop(&mut self) {
        if self.work.is_some() {
            let _inside = enter(self.handle);
            self.work.set(None);
        }
    }
}

/// Returns the waker of a caller for use within an executor: its panic is not the executor's, whose
/// timers it would end.
pub(crate) fn shield(cx: &Context<'_>) -> Waker {
    Waker::from(Arc::new(Shield(cx.waker().clone())))
}

struct Shield(Waker);

impl Wake for Shield {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.wake_by_ref()));
    }
}

/// A runtime that may be dropped anywhere.
struct Owned(Option<Runtime>);

impl Owned {
    fn get(&self) -> &Runtime {
        self.0.as_ref().expect("there until it is dropped")
    }

    /// Runs tasks until the last executor is dropped.
    fn drive(self, stop: &SetOnce<()>) {
        let runtime = self.get();
        let ends = async {
            stop.wait().await;
            let end = Moment::now() + SHUTDOWN_GRACE;
            while runtime.metrics().num_alive_tasks() > 0 && !end.has_passed() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        // A panic of a task ends that task, and one of a caller's waker is kept from here.
        runtime.block_on(ends);
    }
}

impl Drop for Owned {
    /// Waits for nothing: dropping a runtime inside of another one would panic.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executors_that_ended_are_forgotten() {
        let runtime = Builder::new_current_thread().build().unwrap();
        for _ in 0..100 {
            drop(Executor::of(runtime.handle().clone()));
        }
        let ended = known().iter().filter(|it| it.strong_count() == 0).count();
        assert!(ended < 50, "{ended} are kept");
    }
}
