//! A lock that is held: [`LockGuard`], and its [`LossSignal`].

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::backend::{Effect, HoldKind, Ticket};
use crate::clock::Moment;
use crate::engine::finish_on_drop::{FinishOnDrop, Interrupted};
use crate::engine::handover::Handover;
use crate::engine::hold::{ClaimState, Hold, RenewingClaim, too_slow};
use crate::engine::release::{ReleaseOnDrop, ReleaseOutcome};
use crate::engine::renewer;
use crate::error::{Error, ErrorKind};
use crate::loss::Loss;
use crate::name::LockName;
use crate::owner::OwnerId;
use crate::token::FencingToken;

/// A held lock. Released when dropped; [`release`](Self::release) also tells whether it was still
/// held.
///
/// A lock is a lease, and a lease can be lost: the backend may restart, the network may part, the
/// process may be stopped. The guard is always notified, at the latest at its own deadline, which
/// comes before the server's: ask [`is_held`](Self::is_held), await [`lost`](Self::lost), or let
/// [`run`](Self::run) drop the work. No lock can undo a write that was already on its way: give
/// [`fencing_token`](Self::fencing_token) to a resource that checks it.
///
/// # Dropping
///
/// Dropping the guard releases the lock in the background, on the [executor](crate::Executor). It
/// never blocks or panics, wherever it happens: outside of a runtime, after its end, while
/// unwinding. In a process that was forked from the holder's, it does nothing.
///
/// # Sharing
///
/// Tasks may share a guard in an `Arc`. The last one releases it and gets the answer:
///
/// ```
/// # use std::sync::Arc;
/// # async fn last(guard: Arc<lock_core::LockGuard>) -> Result<(), lock_core::Error> {
/// match Arc::into_inner(guard) {
///     Some(guard) => guard.release().await,
///     None => Ok(()), // another task still has it
/// }
/// # }
/// ```
///
/// # When the application hangs
///
/// The lock is renewed as long as the process lives and the guard exists, also while the runtime
/// that won it is idle, blocked or gone. A [policy](crate::RenewalPolicy::while_runtime_responds)
/// ends that.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard {
    /// `None` only in between `release` or `detach` and the drop that follows.
    hold: Option<Arc<Hold>>,
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { hold: Some(hold) }
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.hold().name
    }

    /// Returns the owner id of this acquisition: the right to release it. If the lock was [handed
    /// over](crate::LockerBuilder::local_handovers) inside this process, the backend knows that of
    /// the first holder only; [`break_lock`](crate::Locker::break_lock) of the same locker knows
    /// both.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.hold().holder.owner
    }

    /// Returns the number to send along with each write, higher than that of every earlier holder.
    /// `None` exactly if the backend declares [`Fencing::None`](crate::Fencing::None).
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold().token
    }

    /// Returns the fencing token, for resources that must not be written without one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the backend declares [`Fencing::None`](crate::Fencing::None).
    pub fn require_token(&self) -> Result<FencingToken, Error> {
        let hold = self.hold();
        hold.token.ok_or_else(|| {
            let error = Error::new(ErrorKind::Unsupported, "its grants have no fencing tokens");
            hold.engine.explain(error, "get the token of", Some(&hold.name))
        })
    }

    /// Returns true while the lock is certainly held, under the assumptions that the backend
    /// documents.
    ///
    /// Computed from a clock that counts suspended time, not from a flag that some task must set:
    /// right at the first call after a stop, a suspension, or a starved executor.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Returns why the lock is not held any more; `None` while it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.hold().loss()
    }

    /// Returns how long the lock is held if no renewal succeeds any more: zero if it is lost,
    /// `None` if it has no end, as on backends without leases.
    #[must_use]
    pub fn valid_for(&self) -> Option<Duration> {
        if !self.is_held() {
            return Some(Duration::ZERO);
        }
        self.hold().deadline().map(Moment::remaining)
    }

    /// Returns the moment at which the holder stops treating the lock as held if no renewal
    /// succeeds any more. Of a lost lock, the last one that was known; `None` if it has no end, as
    /// on backends without leases.
    ///
    /// An acknowledged renewal moves it later. It moves earlier only where the lease lives in a
    /// session with the server, and the server grants that session less than before.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        self.hold().deadline()
    }

    /// Waits until the lock is lost: at the latest at the deadline, earlier on evidence.
    ///
    /// After the deadline the lock stays shut for the backend's
    /// [`margin`](crate::Capabilities::margin) and one per cent of the lease, as long as the guard
    /// is there. A task that is polled within that time learns of the loss before another client
    /// holds the lock. Drop the guard to let it go earlier.
    ///
    /// After the machine was suspended, the timer behind this may be late by the time until the
    /// next renewal; [`is_held`](Self::is_held) is right at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Loss {
        self.hold().lost().await
    }

    /// Returns a signal for tasks that do not have the guard. It does not keep the lock.
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        LossSignal(Arc::clone(self.hold()))
    }

    /// Runs `work` while the lock is held: if it is lost, `work` is dropped at its next await.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lock was lost before `work` ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`. The lock stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        let mut work = pin!(work);
        let mut lost = pin!(self.hold().lost());
        std::future::poll_fn(|cx| {
            // The clock first: after a stop, no timer has fired yet.
            if self.is_held() && lost.as_mut().poll(cx).is_pending() {
                return work.as_mut().poll(cx).map(Some);
            }
            Poll::Ready(None)
        })
        .await
        .ok_or_else(|| self.hold().loss_error("go on under"))
    }

    /// Asks the backend whether the lock is still ours. It is a renewal that can be waited for.
    ///
    /// After `Ok` a tenth of the ttl is left, or 100 ms if that is less, unless the longest hold
    /// that the policy allows ends before. The lease counts from before the request was sent, and
    /// may be shorter than the ttl: if an answer leaves less, the backend is asked once more.
    /// [`valid_for`](Self::valid_for) tells how much is left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if it is not; any other kind if the backend did not answer in time: the
    /// lock is then still held until its deadline.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the renewal to end in the background. The lock stays held.
    pub async fn verify(&self) -> Result<(), Error> {
        self.renew(self.hold().ttl, "verify").await
    }

    /// Asks for a lease of `ttl` from now, once. Later renewals ask for the original ttl again, and
    /// never shorten what was acknowledged here.
    ///
    /// A backend whose leases are shorter than `ttl` acknowledges a shorter one. It is renewed
    /// until `ttl` is over, unless the policy's probe returns `false`. `Ok` promises the same as
    /// [`verify`](Self::verify) does, for this `ttl`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `ttl` is out of the backend's range; [`ErrorKind::Lost`] if the
    /// lock is not ours any more; any other kind if the backend did not say.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the renewal to end in the background; whether it succeeded shows
    /// in [`valid_for`](Self::valid_for). The lock stays held.
    pub async fn extend(&self, ttl: Duration) -> Result<(), Error> {
        let hold = self.hold();
        hold.engine
            .check_ttl(ttl)
            .map_err(|error| hold.engine.explain(error, "extend", Some(&hold.name)))?;
        self.renew(ttl, "extend").await
    }

    /// Releases the lock and waits for the answer, at most three times the locker's timeout (a
    /// renewal that is under way ends first), plus what is left of a minimum hold that the backend
    /// cannot keep by itself.
    ///
    /// `Ok` exactly if the backend confirmed that this guard held the lock until now; or, with
    /// [local hand-overs](crate::LockerBuilder::local_handovers), if it was left to the next waiter
    /// of this process before its deadline. No request is sent then: a loss that is not known yet
    /// is reported to its successor. If that one has gone by then, or cannot be sure of the lock,
    /// it is released in the background, and a lock that turns out to have been lost is a warning
    /// in the log. Call [`close`](crate::Locker::close) before the process or its runtimes end: a
    /// release that is not sent by then leaves the lock shut until its lease is over. Before this
    /// returns, the caller's task yields once, so that its successor does not wait for the rest of
    /// the caller's work.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Lost`]: it was lost before.
    /// * [`ErrorKind::NotHeld`]: the backend says that it was not ours any more.
    /// * [`ErrorKind::Gone`]: it is gone, but an answer was lost, so the cause is unknown.
    /// * Any other kind: it is not known to be gone. The release goes on in the background, and
    ///   [`free_within`](Error::free_within) bounds how long the lock can stay.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the release to end in the background, as dropping the guard does.
    pub async fn release(mut self) -> Result<(), Error> {
        let Some(hold) = self.hold.take() else {
            return Ok(());
        };
        hold.guard_dropped();
        if hold.loss().is_some() {
            return Err(hold.loss_error("release"));
        }
        if Handover::offer(&hold) {
            // The successor runs first: it does not wait for the rest of the caller's work.
            tokio::task::yield_now().await;
            return Ok(());
        }
        let explained = Arc::clone(&hold);
        let (tasks, runtime) = hold.engine.background();
        // Renewed until then, so its end is not left to a caller that may hang.
        let is_kept_here = hold.kept_here_until().is_some();
        let ending = ReleaseOnDrop::begin(&hold);
        let ending = async move {
            let Some(mut release) = ending.ended().await else {
                return Err(hold.loss_error("release"));
            };
            match release.release_with_timeout().await {
                Ok(ReleaseOutcome::Released) => Ok(()),
                Ok(ReleaseOutcome::NotHeld) => Err(Error::new(
                    ErrorKind::NotHeld,
                    "the backend says that it was not held by us any more",
                )),
                Ok(ReleaseOutcome::Gone) => Err(gone()),
                Err(fault) => {
                    let bound = release.free_within(&fault);
                    hold.engine.spawn(release.release_until_expiry());
                    Err(Error::from_fault(fault).applied(Effect::Unknown).with_free_within(bound))
                }
            }
        };
        let parted = match is_kept_here {
            true => tasks.spawn_on(ending, &runtime).await.map_err(|_| Interrupted),
            false => FinishOnDrop::new(ending, None, tasks, runtime).await,
        };
        parted
            .unwrap_or_else(|interrupted| Err(Error::from(interrupted)))
            .inspect(|()| {
                tracing::debug!(
                    lock.name = explained.name.as_str(),
                    lock.backend = explained.engine.caps.backend,
                    lock.owner = %explained.holder.owner.short(),
                    "released"
                );
            })
            .map_err(|error| explained.engine.explain(error, "release", Some(&explained.name)))
    }

    /// Stops renewing, and leaves the lock to the holder of the returned [`Detached`], until its
    /// lease ends. Needs a lock that was asked for with [`detachable`](crate::Lock::detachable).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if it was not; [`ErrorKind::Lost`] if it is lost. The guard is
    /// dropped then, and the lock with it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock, as dropping the guard does.
    pub async fn detach(mut self) -> Result<Detached, Error> {
        let hold = Arc::clone(self.hold());
        let Some(mut claim_state) = self.claim_state().await else {
            return Err(hold.loss_error("detach"));
        };
        if claim_state.claim.hold != HoldKind::Detached {
            let error =
                Error::new(ErrorKind::Unsupported, "it was not asked for as a detachable lock");
            return Err(hold.engine.explain(error, "detach", Some(&hold.name)));
        }
        if hold.loss().is_some() || !hold.end(Loss::Released) {
            return Err(hold.loss_error("detach"));
        }
        self.hold = None;
        hold.record_duration(Moment::now);
        hold.leave_queue();
        claim_state.claim.ticket = None;
        Ok(Detached {
            name: hold.name.clone(),
            owner: hold.holder.owner,
            token: hold.token,
            ttl: hold.ttl,
        })
    }

    /// Returns the ticket of this grant, for functions of a backend's own crate. `None` if there is
    /// none, or the lock is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn ticket(&self) -> Option<Ticket> {
        self.claim_state().await?.claim.ticket.clone()
    }

    /// Waits for the end of the verb that is under way. `None` if the lock is lost: its release is
    /// under way then, and is repeated for as long as the lease lasts. Within the executor, whose
    /// tasks wake this one.
    async fn claim_state(&self) -> Option<OwnedMutexGuard<ClaimState>> {
        let hold = self.hold();
        if hold.loss().is_some() {
            return None;
        }
        Some(hold.engine.executor().within(Arc::clone(&hold.claim_state).lock_owned()).await)
    }

    async fn renew(&self, ttl: Duration, doing: &'static str) -> Result<(), Error> {
        let hold = Arc::clone(self.hold());
        if hold.loss().is_some() {
            return Err(hold.loss_error(doing));
        }
        // In a task of its own: a caller that polls it and hangs would stop all renewals of the
        // lock.
        let (tasks, runtime) = hold.engine.background();
        let explained = Arc::clone(&hold);
        let (_caller, gone) = oneshot::channel();
        let renewing = tasks.spawn_on(renew_now(hold, ttl, doing, gone), &runtime);
        renewing.await.unwrap_or_else(|_| {
            let error = Error::from(Interrupted);
            Err(explained.engine.explain(error, doing, Some(&explained.name)))
        })
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.hold.as_ref().expect("a guard that was released is not reachable any more")
    }
}

async fn renew_now(
    hold: Arc<Hold>,
    ttl: Duration,
    doing: &'static str,
    gone: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let engine = Arc::clone(&hold.engine);
    let claim_state = tokio::select! {
        biased;
        // Nothing was sent: nothing has to come to its end.
        _ = gone => return Ok(()),
        claim_state = Arc::clone(&hold.claim_state).lock_owned() => claim_state,
    };
    let mut claim_states = [RenewingClaim::new(Arc::clone(&hold), claim_state)];
    // An answer that leaves too little of the lease is asked for once more.
    let is_enough = ask(&hold, &mut claim_states, ttl, doing).await?
        || ask(&hold, &mut claim_states, ttl, doing).await?;
    match is_enough {
        true => Ok(()),
        false => Err(engine.explain(too_slow(), doing, Some(&hold.name))),
    }
}

/// Renews once. Returns whether the answer leaves enough of the lease.
async fn ask(
    hold: &Arc<Hold>,
    claim_states: &mut [RenewingClaim; 1],
    ttl: Duration,
    doing: &'static str,
) -> Result<bool, Error> {
    let engine = &hold.engine;
    if hold.loss().is_some() {
        return Err(hold.loss_error(doing));
    }
    // No other renewal is sent meanwhile: one that the lock needs must have time afterwards.
    let limit = match hold.needs_renewals() {
        true => renewer::limit(engine, claim_states),
        false => engine.settings.timeout,
    };
    let answers = tokio::select! {
        biased;
        // Lost meanwhile, perhaps with its runtime: no answer counts any more.
        _ = hold.ended.wait() => Vec::new(),
        answers = renewer::renew(engine, claim_states, Some(ttl), limit) => answers,
    };
    let Some(answer) = answers.into_iter().next() else {
        return Err(hold.loss_error(doing));
    };
    let renewed = hold.renewed(&mut claim_states[0].claim, Some(ttl), answer);
    renewed.map_err(|fault| match fault {
        Some(fault) if hold.loss().is_none() => {
            engine.explain(Error::from_fault(fault), doing, Some(&hold.name))
        }
        // Also if the call and the lock ended at once, without an answer.
        _ => hold.loss_error(doing),
    })?;
    Ok(Hold::leaves_enough(engine, &hold.acknowledged(), ttl, Moment::now()))
}

/// Creates the error of a release whose answer was lost.
pub(crate) fn gone() -> Error {
    let message = "it is gone, but an answer was lost, so whether this call released it is unknown";
    Error::new(ErrorKind::Gone, message).applied(Effect::Unknown)
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        if hold.engine.executor().is_gone() {
            // The parent's: neither the hold nor its parts are dropped here.
            return std::mem::forget(hold);
        }
        // In a thread that ends, the thread-locals of tokio's clock are gone.
        match Handle::try_current() {
            Err(error) if error.is_thread_local_destroyed() => {
                let engine = Arc::clone(&hold.engine);
                engine.spawn(async move { release_or_hand_over(&hold) });
            }
            _ => release_or_hand_over(&hold),
        }
    }
}

/// Releases the lock in the background, or leaves it to the next waiter.
fn release_or_hand_over(hold: &Arc<Hold>) {
    hold.guard_dropped();
    // The loss of a lost lock has released it.
    if hold.loss().is_none() && !Handover::offer(hold) {
        hold.release_in_background();
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockGuard").field(self.hold()).finish()
    }
}

/// Tells when a lock is not held any more. Outlives the guard, does not keep the lock, and resolves
/// with [`Loss::Released`] when the guard releases the lock.
#[derive(Clone)]
pub struct LossSignal(Arc<Hold>);

impl LossSignal {
    /// Returns why the lock is not held any more; `None` while it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.0.loss()
    }

    /// Returns the same as [`LockGuard::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        self.0.deadline()
    }

    /// Waits until the lock is not held any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Loss {
        self.0.lost().await
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LossSignal").field(&self.0).finish()
    }
}

/// A lock that is held without a guard. With this value, a process can
/// [`adopt`](crate::Locker::adopt) it, in this process or another, or
/// [renew](crate::Locker::renew_detached) and [release](crate::Locker::release_detached) it as it
/// is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Detached {
    /// The lock.
    pub name: LockName,
    /// The right to renew and release it.
    pub owner: OwnerId,
    /// The fencing token of the grant, if it is known. Pass it on where you can: not every backend
    /// can tell it later.
    pub token: Option<FencingToken>,
    /// The lease that renewals ask for.
    pub ttl: Duration,
}

impl Detached {
    /// Creates it from the values that another process passed on.
    #[must_use]
    pub fn new(name: LockName, owner: OwnerId, ttl: Duration) -> Self {
        Self { name, owner, token: None, ttl }
    }
}

impl Hold {
    pub(crate) fn loss_error(self: &Arc<Self>, doing: &'static str) -> Error {
        let why = self.loss().unwrap_or(Loss::Released);
        let error = Error::new(ErrorKind::Lost, format!("it was lost: {why}"));
        self.engine.explain(error, doing, Some(&self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Claim, Fault, Renewal};
    use crate::faults::{FaultInjector, Injection, Verb};

    fn sendable<T: Send>(value: T) -> T {
        value
    }

    #[tokio::test]
    async fn the_futures_of_a_guard_can_be_spawned() {
        let locks = crate::Locker::new(crate::Memory::new());
        let guard = sendable(locks.lock("n").unwrap().acquire()).await.unwrap();
        sendable(guard.verify()).await.unwrap();
        sendable(guard.extend(Duration::from_secs(60))).await.unwrap();
        sendable(guard.run(async {})).await.unwrap();
        drop(sendable(guard.lost()));
        sendable(guard.release()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_slept_past_the_deadline_finds_the_lock_lost() {
        let locks = crate::Locker::new(crate::Memory::new());
        let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(30));
        let guard = lock.acquire().await.unwrap();
        crate::clock::pretend_suspended(Duration::from_secs(20));
        assert!(guard.is_held(), "not past the deadline yet");
        crate::clock::pretend_suspended(Duration::from_secs(20));
        // No timer has fired, no task has run.
        assert!(!guard.is_held());
        assert_eq!(guard.lost().await, Loss::Expired);
        assert!(guard.run(async {}).await.is_err());
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guard_that_was_dropped_in_time_let_go_however_late_the_backend_hears_of_it() {
        let locks = crate::Locker::new(crate::Memory::new());
        let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(30));
        let guard = lock.acquire().await.unwrap();
        let signal = guard.loss_signal();
        drop(guard);
        crate::clock::pretend_suspended(Duration::from_secs(40));
        // No task has run since.
        assert_eq!(signal.loss(), Some(Loss::Released));
    }

    #[tokio::test(start_paused = true)]
    async fn an_acknowledgement_that_comes_after_the_deadline_revives_nothing() {
        let slow = FaultInjector::new(Arc::new(crate::Memory::new()), |call| match call.verb {
            Verb::Renew => Injection::DelayReply(Duration::from_secs(1)),
            _ => Injection::None,
        });
        let locks = crate::Locker::new(slow);
        let lock = locks.lock("n").unwrap().ttl(Duration::from_secs(30));
        let guard = lock.renewal(crate::RenewalPolicy::off()).acquire().await.unwrap();
        crate::clock::sleep(Duration::from_secs(20)).await;
        let (verified, ()) = tokio::join!(guard.verify(), async {
            // The renewal is applied, for thirty seconds more; but its answer comes too late.
            crate::clock::pretend_suspended(Duration::from_secs(15));
        });
        assert_eq!(verified.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.loss(), Some(Loss::Expired));
    }

    /// A backend whose machine sleeps while the answer to a renewal is on its way.
    #[derive(Debug)]
    struct SleepsAfterRenewals;

    #[async_trait::async_trait]
    impl crate::layer::Layer for SleepsAfterRenewals {
        async fn renew(
            &self,
            inner: &dyn Backend,
            claims: &[&Claim],
        ) -> Vec<Result<Renewal, Fault>> {
            let answers = inner.renew(claims).await;
            crate::clock::pretend_suspended(Duration::from_secs(15));
            answers
        }
    }

    /// Nothing else looks at the hold before.
    #[tokio::test(start_paused = true)]
    async fn an_acknowledgement_that_is_the_first_event_after_the_deadline_revives_nothing() {
        let memory = Arc::new(crate::Memory::new());
        let slept = crate::layer::Layered::new(memory, SleepsAfterRenewals);
        let lock = crate::Locker::new(slept).lock("n").unwrap().ttl(Duration::from_secs(30));
        let guard = lock.renewal(crate::RenewalPolicy::off()).acquire().await.unwrap();
        crate::clock::sleep(Duration::from_secs(20)).await;
        assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(guard.loss(), Some(Loss::Expired));
    }
}
