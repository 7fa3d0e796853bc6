//! Metrics of the crate `metrics`, behind the feature `metrics`. `docs/observability.md` of the
//! repository lists them, with their labels and their meaning.
//!
//! Core records them for every backend, labelled with the backend and with a class of the lock's
//! name, which the application chooses by `LockerBuilder::metrics_class`. A lock's name is
//! never a label. A backend reports one thing: the [clock of its server](record_server_clock).
//!
//! Without the feature, everything here is empty, so no caller needs a `cfg`. The handles of a
//! class are made when its first lock is, so no event of a claim looks one up. Install the recorder
//! before.

use std::fmt;
use std::sync::Arc;
#[cfg(feature = "metrics")]
use std::sync::OnceLock;
use std::time::Duration;

#[cfg(feature = "metrics")]
use ::metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
#[cfg(not(feature = "metrics"))]
use no_handles::{Counter, Gauge, Histogram};

use crate::backend::{Effect, Fault, Renewal};
use crate::clock::Moment;
use crate::error::ErrorKind;
use crate::loss::Loss;
use crate::name::LockName;

/// The classes that a locker records; all further ones are [`OTHER`]. It bounds the number of time
/// series, also of an application that makes its classes at run time.
#[cfg(feature = "metrics")]
const MAX_CLASSES: usize = 32;

/// The class of all locks, unless the application chooses classes.
#[cfg(feature = "metrics")]
const DEFAULT: &str = "default";

/// The class of the locks beyond [`MAX_CLASSES`].
#[cfg(feature = "metrics")]
const OTHER: &str = "other";

/// Sets the gauge of the clock offset to a server of `backend`. `time` is the server's clock since
/// the Unix epoch, as an answer showed it that has just arrived, to a request sent at `asked`.
///
/// The answer is taken to be made half-way between: the error is at most half of the round trip.
/// For backends; it does nothing without the feature `metrics`.
pub fn record_server_clock(backend: &'static str, asked: Moment, time: Duration) {
    #[cfg(not(feature = "metrics"))]
    let _ = (backend, asked, time);
    #[cfg(feature = "metrics")]
    {
        let made_at =
            crate::clock::wall().saturating_sub(Moment::now().saturating_since(asked) / 2);
        let offset = time.as_secs_f64() - made_at.as_secs_f64();
        gauge!("lock_server_clock_offset_seconds", "backend" => backend).set(offset);
    }
}

/// The application's choice of a class for each lock.
#[derive(Clone, Default)]
pub(crate) struct Classes(Option<Arc<ClassOf>>);

type ClassOf = dyn Fn(&LockName) -> &'static str + Send + Sync;

#[cfg(feature = "metrics")]
impl Classes {
    pub(crate) fn new(of: impl Fn(&LockName) -> &'static str + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(of)))
    }
}

impl fmt::Debug for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Classes").field(&self.0.is_some()).finish()
    }
}

/// The class of a lock: an index into the handles of its locker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Class(#[cfg(feature = "metrics")] u8);

/// The metrics of one locker.
pub(crate) struct Metrics {
    #[cfg(feature = "metrics")]
    backend: &'static str,
    #[cfg(feature = "metrics")]
    classes: Classes,
    /// Filled from the front. Each stays as it was set first, so readers need no lock.
    #[cfg(feature = "metrics")]
    handles: [OnceLock<Box<Handles>>; MAX_CLASSES + 1],
}

/// The metrics of one class of locks.
struct Handles {
    #[cfg(feature = "metrics")]
    class: &'static str,
    acquisitions: [Counter; AcquisitionResult::ANSWERED.len()],
    failed_acquisitions: [Counter; ErrorKind::ALL.len()],
    acquire_duration: [Histogram; AcquisitionResult::ALL.len()],
    waiters: Gauge,
    held: Gauge,
    hold_duration: Histogram,
    handovers: Counter,
    losses: [Counter; Loss::CAUSES.len()],
    renewals: [Counter; RenewalResult::ALL.len()],
    lease_left: Histogram,
    releases: [Counter; ReleaseResult::ALL.len()],
    unknown_outcomes: [Counter; Operation::ALL.len()],
}

/// The outcomes of an acquisition, as its caller sees them.
#[derive(Clone, Copy, Debug)]
enum AcquisitionResult {
    Acquired,
    Contended,
    /// The caller has dropped the future.
    Cancelled,
    Failed,
}

/// The outcomes of the renewal of one claim.
#[derive(Clone, Copy, Debug)]
enum RenewalResult {
    Renewed,
    NotHeld,
    Failed,
    Unknown,
}

/// The outcomes of a release of a lock that was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseResult {
    Released,
    NotHeld,
    Gone,
    /// Certainly not applied; it is repeated.
    Failed,
    /// Perhaps applied; it is repeated.
    Unknown,
    /// Given up when the lease was over.
    Unconfirmed,
}

/// The requests whose outcome can be unknown.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Acquire,
    Renew,
    Release,
}

impl AcquisitionResult {
    const ALL: [Self; 4] = [Self::Acquired, Self::Contended, Self::Cancelled, Self::Failed];
    /// Without failures, which are counted by their kind.
    const ANSWERED: [Self; 3] = [Self::Acquired, Self::Contended, Self::Cancelled];

    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Contended => "contended",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

impl RenewalResult {
    const ALL: [Self; 4] = [Self::Renewed, Self::NotHeld, Self::Failed, Self::Unknown];

    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Renewed => "renewed",
            Self::NotHeld => "not_held",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl ReleaseResult {
    const ALL: [Self; 6] =
        [Self::Released, Self::NotHeld, Self::Gone, Self::Failed, Self::Unknown, Self::Unconfirmed];

    /// Returns the name of the outcome in metrics and traces.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::NotHeld => "not_held",
            Self::Gone => "gone",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Unconfirmed => "unconfirmed",
        }
    }
}

impl Operation {
    const ALL: [Self; 3] = [Self::Acquire, Self::Renew, Self::Release];

    #[cfg(feature = "metrics")]
    fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
        }
    }
}

#[cfg(not(feature = "metrics"))]
impl Metrics {
    pub(crate) fn new(_: &'static str, _: &Classes) -> Self {
        Self {}
    }

    pub(crate) fn class_of(&self, _: &LockName) -> Class {
        Class()
    }

    fn of(&self, _: Class) -> Option<&Handles> {
        None
    }
}

#[cfg(feature = "metrics")]
impl Metrics {
    pub(crate) fn new(backend: &'static str, classes: &Classes) -> Self {
        let handles = std::array::from_fn(|_| OnceLock::new());
        Self { backend, classes: classes.clone(), handles }
    }

    /// Returns the class of the lock `name`. Makes the handles of a class that is new.
    pub(crate) fn class_of(&self, name: &LockName) -> Class {
        let class = self.classes.0.as_ref().map_or(DEFAULT, |of| of(name));
        let made = |class| Box::new(Handles::new(self.backend, class));
        for (slot, index) in self.handles[..MAX_CLASSES].iter().zip(0..) {
            if slot.get_or_init(|| made(class)).class == class {
                return Class(index);
            }
        }
        self.handles[MAX_CLASSES].get_or_init(|| made(OTHER));
        Class(u8::try_from(MAX_CLASSES).unwrap_or(u8::MAX))
    }

    fn of(&self, class: Class) -> Option<&Handles> {
        self.handles[usize::from(class.0)].get().map(|handles| &**handles)
    }
}

impl Metrics {
    /// Begins the record of an acquisition. Dropped without an outcome, it was cancelled.
    pub(crate) fn acquisition(&self, class: Class) -> AcquisitionRecord<'_> {
        AcquisitionRecord(self.of(class))
    }

    /// Counts a waiter until the result is dropped.
    pub(crate) fn waiter(&self, class: Class) -> CountedWaiter {
        let waiters = self.of(class).map(|handles| handles.waiters.clone());
        waiters.iter().for_each(|waiters| waiters.increment(1.0));
        CountedWaiter(waiters)
    }

    /// Counts a hold. [`unheld`](Self::unheld) has to follow.
    pub(crate) fn held(&self, class: Class) {
        if let Some(handles) = self.of(class) {
            handles.held.increment(1.0);
        }
    }

    /// Counts a hold no more.
    pub(crate) fn unheld(&self, class: Class) {
        if let Some(handles) = self.of(class) {
            handles.held.decrement(1.0);
        }
    }

    /// Records how long a hold has lasted.
    pub(crate) fn held_for(&self, class: Class, time: impl FnOnce() -> Duration) {
        if let Some(handles) = self.of(class) {
            handles.hold_duration.record(time());
        }
    }

    pub(crate) fn handed_over(&self, class: Class) {
        if let Some(handles) = self.of(class) {
            handles.handovers.increment(1);
        }
    }

    pub(crate) fn lost(&self, class: Class, loss: Loss) {
        let index = Loss::CAUSES.iter().position(|&cause| cause == loss);
        if let (Some(handles), Some(index)) = (self.of(class), index) {
            handles.losses[index].increment(1);
        }
    }

    /// Counts an attempt to acquire whose outcome is unknown.
    pub(crate) fn attempted(&self, class: Class, fault: &Fault) {
        self.answered(class, Operation::Acquire, fault);
    }

    pub(crate) fn renewed(&self, class: Class, answer: &Result<Renewal, Fault>) {
        let Some(handles) = self.of(class) else { return };
        let outcome = match answer {
            Ok(Renewal::Held(_)) => RenewalResult::Renewed,
            Ok(Renewal::NotHeld) => RenewalResult::NotHeld,
            Err(fault) if fault.effect() == Effect::Unknown => RenewalResult::Unknown,
            Err(_) => RenewalResult::Failed,
        };
        handles.renewals[outcome as usize].increment(1);
        if let Err(fault) = answer {
            self.answered(class, Operation::Renew, fault);
        }
    }

    /// Records the time until the deadline that a renewal is about to move.
    pub(crate) fn lease_left(&self, class: Class, deadline: impl FnOnce() -> Option<Moment>) {
        if let Some(handles) = self.of(class)
            && let Some(deadline) = deadline()
        {
            handles.lease_left.record(deadline.remaining());
        }
    }

    /// Counts a release of a lock that was held.
    pub(crate) fn released(&self, class: Class, outcome: ReleaseResult) {
        if let Some(handles) = self.of(class) {
            handles.releases[outcome as usize].increment(1);
        }
    }

    /// Counts a release whose outcome is unknown, of any claim.
    pub(crate) fn release_failed(&self, class: Class, fault: &Fault) {
        self.answered(class, Operation::Release, fault);
    }

    fn answered(&self, class: Class, operation: Operation, fault: &Fault) {
        if let Some(handles) = self.of(class)
            && fault.effect() == Effect::Unknown
        {
            handles.unknown_outcomes[operation as usize].increment(1);
        }
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// When an acquisition has begun: at its first attempt, or when it was queued.
///
/// The acquisition has read the clock there anyway. Reading it once more would be the largest cost
/// of all metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Began(#[cfg(feature = "metrics")] Option<Moment>);

impl Began {
    /// Sets it to the result of `at`, if it is not set.
    #[cfg(feature = "metrics")]
    pub(crate) fn set(&mut self, at: impl FnOnce() -> Moment) {
        self.0.get_or_insert_with(at);
    }

    /// Does nothing, without the feature.
    #[cfg(not(feature = "metrics"))]
    pub(crate) fn set(&mut self, _: impl FnOnce() -> Moment) {}

    #[cfg(feature = "metrics")]
    fn get(self) -> Option<Moment> {
        self.0
    }

    #[cfg(not(feature = "metrics"))]
    fn get(self) -> Option<Moment> {
        None
    }
}

/// An acquisition whose outcome is not known yet.
///
/// `None` once the outcome is recorded.
pub(crate) struct AcquisitionRecord<'a>(Option<&'a Handles>);

impl AcquisitionRecord<'_> {
    /// Records a grant that arrived at `granted_at`, to this claim or to the holder before it.
    pub(crate) fn acquired(mut self, began: Began, granted_at: Moment) {
        self.end(AcquisitionResult::Acquired, began, || granted_at);
    }

    pub(crate) fn contended(mut self, began: Began) {
        self.end(AcquisitionResult::Contended, began, Moment::now);
    }

    pub(crate) fn failed(mut self, kind: ErrorKind, began: Began) {
        if let Some(handles) = self.0 {
            handles.failed_acquisitions[kind as usize].increment(1);
        }
        self.end(AcquisitionResult::Failed, began, Moment::now);
    }

    fn end(&mut self, outcome: AcquisitionResult, began: Began, ended_at: impl FnOnce() -> Moment) {
        let Some(handles) = self.0.take() else { return };
        if let Some(count) = handles.acquisitions.get(outcome as usize) {
            count.increment(1);
        }
        if let Some(began) = began.get() {
            handles.acquire_duration[outcome as usize].record(ended_at().saturating_since(began));
        }
    }
}

impl Drop for AcquisitionRecord<'_> {
    fn drop(&mut self) {
        self.end(AcquisitionResult::Cancelled, Began::default(), Moment::now);
    }
}

/// A waiter that the gauge counts until this is dropped.
pub(crate) struct CountedWaiter(Option<Gauge>);

impl Drop for CountedWaiter {
    fn drop(&mut self) {
        self.0.iter().for_each(|waiters| waiters.decrement(1.0));
    }
}

#[cfg(feature = "metrics")]
impl Handles {
    fn new(backend: &'static str, class: &'static str) -> Self {
        /// Makes a handle with the labels of all metrics, and perhaps some more.
        macro_rules! handle {
            ($kind:ident, $name:literal $(, $label:literal => $value:expr)*) => {
                $kind!($name, "backend" => backend, "class" => class $(, $label => $value)*)
            };
        }

        describe();
        Self {
            class,
            acquisitions: AcquisitionResult::ANSWERED.map(|outcome| {
                handle!(counter, "lock_acquisitions_total", "outcome" => outcome.as_str(), "error" => "")
            }),
            failed_acquisitions: ErrorKind::ALL.map(|kind| {
                let failed = AcquisitionResult::Failed.as_str();
                handle!(counter, "lock_acquisitions_total", "outcome" => failed, "error" => kind.as_str())
            }),
            acquire_duration: AcquisitionResult::ALL.map(|outcome| {
                handle!(histogram, "lock_acquire_duration_seconds", "outcome" => outcome.as_str())
            }),
            waiters: handle!(gauge, "lock_waiters"),
            held: handle!(gauge, "lock_held"),
            hold_duration: handle!(histogram, "lock_hold_duration_seconds"),
            handovers: handle!(counter, "lock_handovers_total"),
            losses: Loss::CAUSES
                .map(|cause| handle!(counter, "lock_losses_total", "cause" => cause.as_str())),
            renewals: RenewalResult::ALL.map(|outcome| {
                handle!(counter, "lock_renewals_total", "outcome" => outcome.as_str())
            }),
            lease_left: handle!(histogram, "lock_renewal_lease_left_seconds"),
            releases: ReleaseResult::ALL.map(|outcome| {
                handle!(counter, "lock_releases_total", "outcome" => outcome.as_str())
            }),
            unknown_outcomes: Operation::ALL.map(|operation| {
                handle!(counter, "lock_unknown_outcomes_total", "operation" => operation.as_str())
            }),
        }
    }
}

/// Describes the metrics to the recorder.
#[cfg(feature = "metrics")]
fn describe() {
    let (count, seconds) = (Unit::Count, Unit::Seconds);
    describe_counter!("lock_acquisitions_total", count, "Acquisitions that have ended.");
    describe_histogram!("lock_acquire_duration_seconds", seconds, "The time to acquire a lock.");
    describe_gauge!("lock_waiters", count, "Acquisitions that wait for another holder.");
    describe_gauge!("lock_held", count, "Locks that this process holds.");
    describe_histogram!(
        "lock_hold_duration_seconds",
        seconds,
        "The time for which locks were held."
    );
    describe_counter!("lock_handovers_total", count, "Locks passed on inside this process.");
    describe_counter!("lock_losses_total", count, "Locks that were lost.");
    describe_counter!("lock_renewals_total", count, "Renewals of single locks.");
    describe_histogram!(
        "lock_renewal_lease_left_seconds",
        seconds,
        "The time left until the deadline when a renewal was acknowledged."
    );
    describe_counter!("lock_releases_total", count, "Answers to releases of held locks.");
    describe_counter!("lock_unknown_outcomes_total", count, "Requests that may have been applied.");
    describe_gauge!(
        "lock_server_clock_offset_seconds",
        seconds,
        "By how much the server's clock is ahead of this host's."
    );
}

/// Handles that do nothing.
#[cfg(not(feature = "metrics"))]
mod no_handles {
    use std::time::Duration;

    pub(super) struct Counter;

    impl Counter {
        pub(super) fn increment(&self, _: u64) {}
    }

    #[derive(Clone)]
    pub(super) struct Gauge;

    impl Gauge {
        pub(super) fn increment(&self, _: f64) {}
        pub(super) fn decrement(&self, _: f64) {}
    }

    pub(super) struct Histogram;

    impl Histogram {
        pub(super) fn record(&self, _: Duration) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes are indices.
    #[test]
    fn each_outcome_is_at_its_index() {
        assert!(AcquisitionResult::ALL.iter().enumerate().all(|(index, &it)| it as usize == index));
        assert!(
            AcquisitionResult::ANSWERED.iter().enumerate().all(|(index, &it)| it as usize == index)
        );
        assert!(RenewalResult::ALL.iter().enumerate().all(|(index, &it)| it as usize == index));
        assert!(ReleaseResult::ALL.iter().enumerate().all(|(index, &it)| it as usize == index));
        assert!(Operation::ALL.iter().enumerate().all(|(index, &it)| it as usize == index));
        assert!(ErrorKind::ALL.iter().enumerate().all(|(index, &it)| it as usize == index));
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn a_locker_has_at_most_32_classes() {
        let of = |name: &LockName| &*String::leak(name.as_str().to_owned());
        let metrics = Metrics::new("memory", &Classes::new(of));
        let class = |i: usize| {
            let class = metrics.class_of(&LockName::new(i.to_string()).unwrap());
            metrics.of(class).unwrap().class
        };
        for _ in 0..2 {
            (0..32).for_each(|i| assert_eq!(class(i), i.to_string()));
            (32..100).for_each(|i| assert_eq!(class(i), OTHER));
        }
    }
}
