//! Records a history during a run.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_core::backend::Effect;
use lock_core::clock::{Moment, sleep};
use lock_core::{Detached, Error, ErrorKind, Lock, LockGuard, Locker, Loss};
use rustix::time::{ClockId, clock_gettime};

use super::record::{
    Assumption, ClockName, Fault, Header, Heal, Kind, Line, Op, Record, Residue, Trouble, Why,
    nanos_of,
};
use super::timeline::{History, Unreadable};

/// The longest reading of a deadline that is used: a task that stood still meanwhile would seem to
/// have learned an earlier deadline.
const PRECISE: u64 = 1_000_000;

/// The clock of a recorder.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    Core(Moment),
    Raw,
}

impl Clock {
    /// Returns core's clock, which can be paused, counted from now. It is for one process, as other
    /// processes read another clock.
    #[must_use]
    pub fn core() -> Self {
        Self(Source::Core(Moment::now()))
    }

    /// Returns `CLOCK_MONOTONIC_RAW`: it is the same for all processes of a host, and no test steps
    /// or slews it. It is not paused, and stands still while the machine is suspended.
    #[must_use]
    pub fn raw() -> Self {
        Self(Source::Raw)
    }

    /// Returns the nanoseconds on this clock.
    #[must_use]
    pub fn now(self) -> u64 {
        match self.0 {
            Source::Core(start) => nanos_of(Moment::now().saturating_since(start)),
            Source::Raw => {
                let now = clock_gettime(ClockId::MonotonicRaw);
                let secs = u64::try_from(now.tv_sec).unwrap_or(0);
                secs * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
            }
        }
    }

    fn name(self) -> ClockName {
        match self.0 {
            Source::Core(_) => ClockName::Moment,
            Source::Raw => ClockName::MonotonicRaw,
        }
    }
}

/// A recorder of the operations of many tasks and threads. Cheap to clone.
///
/// A record has its time, and is stored, when the call that makes it returns. An invocation is in
/// the history before the call is made, an answer only after it has come. Time and position in the
/// history are assigned in one step, so that the order of lines is the order of time.
///
/// Several processes write to one recorder through a pipe each ([`joining`](Self::joining)), or
/// write files that are merged afterwards, one header first. With [`Clock::raw`], their times
/// compare. Their header says `sequential: false`.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    run: String,
    seed: u64,
    faults: AtomicU64,
    sink: Mutex<Sink>,
}

enum Sink {
    Memory(Vec<Line>),
    Stream(Box<dyn Write + Send>),
    /// A record could not be written.
    Broken(io::Error),
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            Self::Stream(_) => "Stream",
            Self::Broken(_) => "Broken",
        })
    }
}

impl Recorder {
    /// Returns a recorder that keeps the history in memory; see [`history`](Self::history).
    #[must_use]
    pub fn in_memory(clock: Clock, header: Header) -> Self {
        Self::begin(clock, header, Sink::Memory(Vec::new()))
    }

    /// Returns a recorder that writes each line with one call of `write`. Data that a buffered
    /// stream holds are lost if the process is killed.
    pub fn to(clock: Clock, header: Header, stream: impl Write + Send + 'static) -> Self {
        Self::begin(clock, header, Sink::Stream(Box::new(stream)))
    }

    /// Returns a recorder for a process in a run whose header another one writes.
    pub fn joining(
        clock: Clock,
        run: &str,
        seed: u64,
        stream: impl Write + Send + 'static,
    ) -> Self {
        Self::new(clock, run.to_owned(), seed, Sink::Stream(Box::new(stream)))
    }

    fn begin(clock: Clock, mut header: Header, sink: Sink) -> Self {
        header.clock = clock.name();
        let recorder = Self::new(clock, header.run.clone(), header.seed, sink);
        recorder.put(|_| Line::Header(header));
        recorder
    }

    fn new(clock: Clock, run: String, seed: u64, sink: Sink) -> Self {
        let (faults, sink) = (AtomicU64::new(1), Mutex::new(sink));
        Self(Arc::new(Inner { clock, run, seed, faults, sink }))
    }

    /// Returns a client that makes one call at a time. `process` is its unique name in this run;
    /// the part before the first `/` names the operating system's process.
    #[must_use]
    pub fn client(&self, process: impl Into<String>) -> Client {
        let process = process.into();
        let (recorder, name, next) = (self.clone(), process.clone(), Terms::default());
        Client { recorder, process, name, next, retired: 0, grants: 0 }
    }

    /// Prepares the record of a fault. It is begun before the fault is caused, so that the fault
    /// lies inside the recorded interval, which lasts until [`UnderFault::heal`].
    pub fn fault(&self, what: Trouble) -> FaultNote<'_> {
        let id = self.0.faults.fetch_add(1, Ordering::Relaxed);
        let (process, locks, breaks) = (None, None, Vec::new());
        let fault = Fault { t: 0, id, what, process, locks, breaks, hidden: false };
        FaultNote { recorder: self, fault }
    }

    /// Records an operation or event of another process: with the time of now, or with its own
    /// timestamp on the same clock. The header of such a history says `sequential: false`.
    pub fn note(&self, mut record: Record) {
        let stamped = record.t;
        self.name_run(&mut record);
        self.put(|now| {
            let is_call = record.kind == Kind::Invoke;
            record.t = if is_call { now } else { stamped.min(now) };
            Line::Record(record)
        });
    }

    /// Records the state left on the server after the run.
    pub fn residue(&self, left: Vec<String>) {
        self.put(|t| Line::Residue(Residue { t, left }));
    }

    /// Returns the history kept in memory so far.
    ///
    /// # Errors
    ///
    /// If it cannot be a history, because clients were used wrongly.
    pub fn history(&self) -> Result<History, Unreadable> {
        History::new(self.lines())
    }

    /// Returns the lines kept in memory so far, by their time.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = match &*self.0.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(lines) => lines.clone(),
            Sink::Stream(_) | Sink::Broken(_) => Vec::new(),
        };
        // Records with timestamps of other processes arrive later.
        lines.sort_by_key(Line::t);
        lines
    }

    /// Flushes the stream.
    ///
    /// # Errors
    ///
    /// Some data could not be written: the history is incomplete then.
    pub fn finish(&self) -> io::Result<()> {
        let mut sink = self.0.sink.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *sink {
            Sink::Memory(_) => Ok(()),
            Sink::Stream(stream) => stream.flush(),
            Sink::Broken(error) => Err(io::Error::new(error.kind(), error.to_string())),
        }
    }

    fn put(&self, line: impl FnOnce(u64) -> Line) {
        let mut sink = self.0.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line(self.0.clock.now());
        match &mut *sink {
            Sink::Memory(lines) => lines.push(line),
            Sink::Stream(stream) => {
                if let Err(error) = stream.write_all(line.to_json().as_bytes()) {
                    *sink = Sink::Broken(error);
                }
            }
            Sink::Broken(_) => {}
        }
    }

    fn record(&self, mut record: Record) {
        self.name_run(&mut record);
        self.put(|t| {
            record.t = t;
            Line::Record(record)
        });
    }

    fn name_run(&self, record: &mut Record) {
        record.run.clone_from(&self.0.run);
        record.seed = Some(self.0.seed);
    }

    /// Returns the time up to which a guard is certainly held, on the recorder's clock. Zero if it
    /// may not be held at all, `None` if it has no lease.
    fn valid_until(&self, guard: &LockGuard) -> Option<u64> {
        self.read_precisely(|now| match guard.is_held() {
            true => guard.valid_for().map(|left| now.saturating_add(nanos_of(left))),
            false => Some(0),
        })
    }

    /// Returns a past deadline on the recorder's clock.
    fn at_deadline(&self, deadline: Moment) -> u64 {
        self.read_precisely(|now| {
            now.saturating_sub(nanos_of(Moment::now().saturating_since(deadline)))
        })
    }

    /// Reads a time relative to now, again if that took too long.
    fn read_precisely<T>(&self, read: impl Fn(u64) -> T) -> T {
        loop {
            // The clock is read first: any time that passes in between makes the claim shorter,
            // never longer.
            let now = self.0.clock.now();
            let result = read(now);
            if self.0.clock.now().saturating_sub(now) <= PRECISE {
                return result;
            }
        }
    }
}

/// A fault that is about to be recorded.
#[derive(Debug)]
#[must_use = "nothing is noted before `begin`"]
pub struct FaultNote<'a> {
    recorder: &'a Recorder,
    fault: Fault,
}

impl FaultNote<'_> {
    /// Limits the fault to this process of the operating system.
    pub fn process(mut self, process: &str) -> Self {
        self.fault.process = Some(process.to_owned());
        self
    }

    /// Limits the fault to this lock.
    pub fn lock(self, lock: &str) -> Self {
        self.locks([lock.to_owned()])
    }

    /// Limits the fault to these locks.
    pub fn locks(mut self, locks: impl IntoIterator<Item = String>) -> Self {
        self.fault.locks = Some(locks.into_iter().collect());
        self
    }

    /// Marks an assumption as broken, which the header names as well.
    pub fn breaks(mut self, assumption: Assumption) -> Self {
        self.fault.breaks.push(assumption);
        self
    }

    /// Marks the fault as one that clients need not notice.
    pub fn hidden(mut self) -> Self {
        self.fault.hidden = true;
        self
    }

    /// Records the start: now the fault may be caused.
    pub fn begin(self) -> UnderFault {
        let Self { recorder, mut fault } = self;
        let id = fault.id;
        recorder.put(|t| {
            fault.t = t;
            Line::Fault(fault)
        });
        UnderFault { recorder: recorder.clone(), id }
    }
}

/// A fault in progress. Dropping this does not end it.
#[derive(Debug)]
pub struct UnderFault {
    recorder: Recorder,
    id: u64,
}

impl UnderFault {
    /// Records the end, after the fault is over.
    pub fn heal(self) {
        self.end(true, false);
    }

    /// Records the end of a removal that has certainly removed its lock.
    pub fn has_removed(self) {
        self.end(true, true);
    }

    /// Records that the fault did not happen.
    pub fn never_happened(self) {
        self.end(false, false);
    }

    fn end(self, happened: bool, removed: bool) {
        self.recorder.put(|t| Line::Heal(Heal { t, id: self.id, happened, removed }));
    }
}

/// The name of a grant in a history, for its later records.
#[derive(Clone, Debug)]
pub struct GrantId {
    recorder: Recorder,
    process: Arc<str>,
    lock: Arc<str>,
    id: Arc<str>,
}

impl GrantId {
    /// Records that the holder was notified of its loss, and the deadline, if that had passed.
    pub fn lost(&self, why: Loss, deadline: Option<Moment>) {
        let mut record = self.record(Kind::Event, Op::Lost);
        let deadline = deadline.filter(|deadline| deadline.has_passed());
        record.valid_until = deadline.map(|deadline| self.recorder.at_deadline(deadline));
        record.err = Some(why.into());
        self.recorder.record(record);
    }

    fn record(&self, kind: Kind, op: Op) -> Record {
        let mut record = Record::new(kind, op, &self.process, &self.lock);
        record.grant = Some(self.id.as_ref().to_owned());
        record
    }
}

/// A guard, and the name of its grant.
#[derive(Debug)]
pub struct Held {
    /// The guard.
    pub guard: LockGuard,
    /// The name of its grant.
    pub id: GrantId,
}

impl Held {
    /// Waits until the lock is lost, and records the loss and each new deadline of the guard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future notes no loss.
    pub async fn lost(&self) -> Loss {
        let loss = tokio::select! {
            biased;
            loss = self.guard.lost() => loss,
            () = self.follow() => unreachable!("it has no end"),
        };
        if loss != Loss::Released {
            self.id.lost(loss, self.guard.deadline());
        }
        loss
    }

    /// Sleeps, and records each new deadline of the guard.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn sleep(&self, duration: Duration) {
        tokio::select! {
            biased;
            () = sleep(duration) => {}
            () = self.follow() => unreachable!("it has no end"),
        }
    }

    /// Records the guard's deadline each time that half of the remaining lease is over, so the
    /// history has no gap between two deadlines. A deadline that has moved back is recorded, too.
    async fn follow(&self) {
        let mut noted = self.deadline();
        loop {
            match self.guard.valid_for() {
                Some(left) if !left.is_zero() => sleep(left / 2).await,
                _ => std::future::pending().await,
            }
            let until = self.deadline();
            let is_later = until > noted.map(|noted| noted + PRECISE);
            let is_earlier = until.map(|until| until + PRECISE) < noted && until.is_some();
            if is_later || is_earlier {
                noted = until;
                let mut record = self.id.record(Kind::Event, Op::Renew);
                record.valid_until = until;
                self.id.recorder.record(record);
            }
        }
    }

    /// Returns the time up to which the guard is certainly held, if it is, and if it has a lease.
    fn deadline(&self) -> Option<u64> {
        self.id.recorder.valid_until(&self.guard).filter(|&until| until > 0)
    }
}

/// A client that makes one call at a time.
///
/// The methods that use a lock record all that is needed. For anything else,
/// [`invoke`](Self::invoke) and [`Pending`] record a call by hand.
#[derive(Debug)]
pub struct Client {
    recorder: Recorder,
    process: String,
    /// The current name: a new one after each call with unknown outcome.
    name: String,
    /// The terms of its next acquisitions.
    pub next: Terms,
    retired: u64,
    grants: u64,
}

/// The terms of acquisitions, as far as they matter to the checker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// True if their leases go unrenewed: then their loss needs no other reason.
    pub unrenewed: bool,
    /// True if later acquisitions may overtake them.
    pub overtakable: bool,
    /// Their minimum hold.
    pub min_hold: Option<Duration>,
    /// The lease for which they outlast their process, where others end with theirs.
    pub lease: Option<Duration>,
}

impl Client {
    /// Records [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// Those of the lock.
    ///
    /// # Cancel safety
    ///
    /// As that of the lock; the outcome is noted as unknown.
    pub async fn acquire(&mut self, lock: &Lock) -> Result<Held, Error> {
        let pending = self.invoke(Op::Acquire, lock.name().as_str());
        let result = lock.acquire().await.map(Some);
        pending.seek(result).map(|held| held.expect("waiting for ever ends with a lock"))
    }

    /// Records [`Lock::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of the lock.
    ///
    /// # Cancel safety
    ///
    /// As that of the lock; the outcome is noted as unknown.
    pub async fn try_acquire(&mut self, lock: &Lock) -> Result<Option<Held>, Error> {
        let pending = self.invoke(Op::Try, lock.name().as_str());
        pending.seek(lock.try_acquire().await)
    }

    /// Records [`Lock::try_acquire_for`].
    ///
    /// # Errors
    ///
    /// Those of the lock.
    ///
    /// # Cancel safety
    ///
    /// As that of the lock; the outcome is noted as unknown.
    pub async fn try_acquire_for(
        &mut self,
        lock: &Lock,
        wait: Duration,
    ) -> Result<Option<Held>, Error> {
        let op = if wait.is_zero() { Op::Try } else { Op::Acquire };
        let pending = self.invoke(op, lock.name().as_str());
        pending.seek(lock.try_acquire_for(wait).await)
    }

    /// Records [`LockGuard::verify`].
    ///
    /// # Errors
    ///
    /// Those of the guard.
    ///
    /// # Cancel safety
    ///
    /// As that of the guard; the outcome is noted as unknown.
    pub async fn verify(&mut self, held: &Held) -> Result<(), Error> {
        let pending = self.invoke_on(Op::Renew, &held.id);
        pending.renewed(held.guard.verify().await, &held.guard)
    }

    /// Records [`LockGuard::extend`] as a renewal.
    ///
    /// # Errors
    ///
    /// Those of the guard.
    ///
    /// # Cancel safety
    ///
    /// As that of the guard; the outcome is noted as unknown.
    pub async fn extend(&mut self, held: &Held, ttl: Duration) -> Result<(), Error> {
        let pending = self.invoke_on(Op::Renew, &held.id);
        pending.renewed(held.guard.extend(ttl).await, &held.guard)
    }

    /// Calls [`LockGuard::detach`], and records only a failure: the lock stays held up to its
    /// deadline.
    ///
    /// # Errors
    ///
    /// Those of the guard, which is dropped then.
    ///
    /// # Cancel safety
    ///
    /// As that of the guard; nothing is noted.
    pub async fn detach(&mut self, held: Held) -> Result<(Detached, GrantId), Error> {
        let Held { guard, id } = held;
        let detached = guard.detach().await;
        if detached.is_err() {
            self.invoke_on(Op::Release, &id).info(Why::Dropped);
        }
        detached.map(|detached| (detached, id))
    }

    /// Records [`Locker::adopt`] as a renewal.
    ///
    /// # Errors
    ///
    /// Those of the locker.
    ///
    /// # Cancel safety
    ///
    /// As that of the locker; the outcome is noted as unknown.
    pub async fn adopt(
        &mut self,
        locks: &Locker,
        (detached, id): (Detached, GrantId),
    ) -> Result<Held, Error> {
        let pending = self.invoke_on(Op::Renew, &id);
        let adopted = locks.adopt(detached).await;
        match &adopted {
            Ok(guard) => pending.still_held(guard),
            Err(error) => pending.failed(error),
        }
        adopted.map(|guard| Held { guard, id })
    }

    /// Records [`Locker::renew_detached`] without its deadline.
    ///
    /// # Errors
    ///
    /// Those of the locker.
    ///
    /// # Cancel safety
    ///
    /// As that of the locker; the outcome is noted as unknown.
    pub async fn renew_detached(
        &mut self,
        locks: &Locker,
        (detached, id): (&Detached, &GrantId),
    ) -> Result<Duration, Error> {
        let pending = self.invoke_on(Op::Renew, id);
        pending.answered(locks.renew_detached(detached).await)
    }

    /// Records [`Locker::release_detached`].
    ///
    /// # Errors
    ///
    /// Those of the locker.
    ///
    /// # Cancel safety
    ///
    /// As that of the locker; the outcome is noted as unknown.
    pub async fn release_detached(
        &mut self,
        locks: &Locker,
        (detached, id): (&Detached, &GrantId),
    ) -> Result<(), Error> {
        let pending = self.invoke_on(Op::Release, id);
        pending.answered(locks.release_detached(detached).await)
    }

    /// Records [`LockGuard::is_held`].
    pub fn check(&mut self, held: &Held) -> bool {
        let pending = self.invoke_on(Op::Check, &held.id);
        let is_held = held.guard.is_held();
        if is_held {
            pending.still_held(&held.guard);
        } else {
            pending.fail(Why::Lost);
        }
        is_held
    }

    /// Records [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of the guard.
    ///
    /// # Cancel safety
    ///
    /// As that of the guard; the outcome is noted as unknown.
    pub async fn release(&mut self, held: Held) -> Result<(), Error> {
        let pending = self.invoke_release(&held);
        // Core releases a lost lock by itself, as soon as it can.
        pending.answered(held.guard.release().await)
    }

    /// Records the drop of the guard, which releases it in the background at some time.
    pub fn drop(&mut self, held: Held) {
        let pending = self.invoke_release(&held);
        drop(held);
        pending.info(Why::Dropped);
    }

    /// Records the invocation of an acquisition or a read.
    pub fn invoke(&mut self, op: Op, lock: &str) -> Pending<'_> {
        let mut record = Record::new(Kind::Invoke, op, &self.name, lock);
        if op.acquires() {
            self.grants += 1;
            record.grant = Some(format!("{}#{}", self.process, self.grants));
            let Terms { unrenewed, overtakable, lease, .. } = self.next;
            record = Record { unrenewed, overtakable, lease, ..record };
        }
        self.begin(record)
    }

    /// Records the invocation of an operation on a grant.
    pub fn invoke_on(&mut self, op: Op, grant: &GrantId) -> Pending<'_> {
        let mut record = grant.record(Kind::Invoke, op);
        record.process.clone_from(&self.name);
        self.begin(record)
    }

    /// Records the end of a hold, with the deadline that its guard knows.
    fn invoke_release(&mut self, held: &Held) -> Pending<'_> {
        let mut record = held.id.record(Kind::Invoke, Op::Release);
        record.process.clone_from(&self.name);
        record.valid_until = held.deadline();
        self.begin(record)
    }

    /// Records the invocation of a write to the guarded resource, with the token that it presents.
    pub fn invoke_write(&mut self, resource: &str, fence: Option<u64>) -> Pending<'_> {
        let mut record = Record::new(Kind::Invoke, Op::Write, &self.name, resource);
        record.fence = fence;
        self.begin(record)
    }

    /// Records the invocation of a read, of a resource that also refuses reads with a low token.
    pub fn invoke_read(&mut self, resource: &str, fence: Option<u64>) -> Pending<'_> {
        let mut record = Record::new(Kind::Invoke, Op::Read, &self.name, resource);
        record.fence = fence;
        self.begin(record)
    }

    fn begin(&mut self, record: Record) -> Pending<'_> {
        self.recorder.record(record.clone());
        // Completions carry the values that are known then.
        Pending { client: self, record: Record { valid_until: None, ..record }, answered: false }
    }
}

/// An operation in progress. If it is dropped without a completion, its outcome is unknown.
#[derive(Debug)]
pub struct Pending<'a> {
    client: &'a mut Client,
    record: Record,
    answered: bool,
}

impl Pending<'_> {
    /// Records success.
    pub fn ok(self) {
        self.answer(Kind::Ok, |_| {});
    }

    /// Records success and the new `value` of the counter.
    pub fn ok_value(self, value: u64) {
        self.answer(Kind::Ok, |record| record.value = Some(value));
    }

    /// Records success; the grant has this token and lasts up to this time of the recorder's clock.
    pub fn ok_grant(self, fence: Option<u64>, valid_until: Option<u64>) -> GrantId {
        let id = GrantId {
            recorder: self.client.recorder.clone(),
            process: self.record.process.as_str().into(),
            lock: self.record.lock.as_str().into(),
            id: self.record.grant.as_deref().unwrap_or_default().into(),
        };
        let now = self.client.recorder.0.clock.now();
        let kept_until = self.client.next.min_hold.map(|kept| now + nanos_of(kept));
        self.answer(Kind::Ok, |record| {
            (record.fence, record.valid_until) = (fence, valid_until);
            record.kept_until = kept_until;
        });
        id
    }

    /// Records a failure that certainly changed nothing.
    pub fn fail(self, why: Why) {
        self.answer(Kind::Fail, |record| record.err = Some(why));
    }

    /// Records an unknown outcome. The client continues under a new name.
    pub fn info(self, why: Why) {
        self.answer(Kind::Info, |record| record.err = Some(why));
    }

    fn answered<T>(self, result: Result<T, Error>) -> Result<T, Error> {
        match &result {
            Ok(_) => self.ok(),
            Err(error) => self.failed(error),
        }
        result
    }

    fn renewed(self, result: Result<(), Error>, guard: &LockGuard) -> Result<(), Error> {
        match &result {
            Ok(()) => self.still_held(guard),
            Err(error) => self.failed(error),
        }
        result
    }

    fn still_held(self, guard: &LockGuard) {
        let valid_until = self.client.recorder.valid_until(guard);
        self.answer(Kind::Ok, |record| record.valid_until = valid_until);
    }

    fn seek(self, result: Result<Option<LockGuard>, Error>) -> Result<Option<Held>, Error> {
        match result {
            Ok(Some(guard)) => {
                let valid_until = self.client.recorder.valid_until(&guard);
                let fence = guard.fencing_token().map(lock_core::FencingToken::as_u64);
                let id = self.ok_grant(fence, valid_until);
                Ok(Some(Held { guard, id }))
            }
            Ok(None) => {
                self.fail(Why::Busy);
                Ok(None)
            }
            Err(error) => {
                self.failed(&error);
                Err(error)
            }
        }
    }

    fn failed(self, error: &Error) {
        // `Gone` may be the effect of this call; a grant with a regressed token is released in the
        // background.
        let unsure = matches!(error.kind(), ErrorKind::Gone | ErrorKind::FenceRegressed);
        if error.effect() == Effect::NotApplied && !unsure {
            self.fail(error.into());
        } else {
            self.info(error.into());
        }
    }

    fn answer(mut self, kind: Kind, complete: impl FnOnce(&mut Record)) {
        let mut record = self.record.clone();
        complete(&mut record);
        self.put(kind, record);
    }

    fn put(&mut self, kind: Kind, mut record: Record) {
        record.kind = kind;
        self.answered = true;
        self.client.recorder.record(record);
        if kind == Kind::Info {
            self.client.retired += 1;
            self.client.name = format!("{}+{}", self.client.process, self.client.retired);
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let mut record = self.record.clone();
            record.err = Some(Why::Dropped);
            self.put(Kind::Info, record);
        }
    }
}
