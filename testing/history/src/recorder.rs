//! Writes a history while it happens.

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

/// A deadline is read again if its reading took longer: a task that stood still meanwhile would seem to have learned an
/// earlier one.
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
    /// Core's clock, which can be paused, counted from now. For one process: others read another clock.
    #[must_use]
    pub fn core() -> Self {
        Self(Source::Core(Moment::now()))
    }

    /// `CLOCK_MONOTONIC_RAW`: the same for all processes of a host, and out of reach of whatever steps
    /// or bends their clocks. It is not paused, and stands still while the machine is suspended.
    #[must_use]
    pub fn raw() -> Self {
        Self(Source::Raw)
    }

    /// Nanoseconds on this clock.
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

/// Takes down what many tasks and threads do. Cheap to clone.
///
/// A record has its time, and has been stored, when the call that makes it returns: an invocation is in
/// the history before the call is made, an answer only after it has come. Time and place in the history
/// are given in one step, so that the order of lines is the order of time.
///
/// Several processes write to one recorder through a pipe each ([`joining`](Self::joining)), or write
/// files that are put together afterwards, one header first: with [`Clock::raw`], their times compare.
/// Their header says `sequential: false`.
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
    /// Keeps the history in memory; see [`history`](Self::history).
    #[must_use]
    pub fn in_memory(clock: Clock, header: Header) -> Self {
        Self::begin(clock, header, Sink::Memory(Vec::new()))
    }

    /// Writes a line at a time, with one call of `write`. What is buffered behind that is lost if the
    /// process is killed.
    pub fn to(clock: Clock, header: Header, stream: impl Write + Send + 'static) -> Self {
        Self::begin(clock, header, Sink::Stream(Box::new(stream)))
    }

    /// For a process that takes part in a run whose header another one writes.
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

    /// Somebody who makes one call at a time. `process` names it in this run, and no other: up to the
    /// first `/`, the operating system's process.
    #[must_use]
    pub fn client(&self, process: impl Into<String>) -> Client {
        let process = process.into();
        let name = process.clone();
        let recorder = self.clone();
        let (unrenewed, overtakable, kept, lease) = (false, false, None, None);
        let (retired, grants) = (0, 0);
        Client { recorder, process, name, unrenewed, overtakable, kept, lease, retired, grants }
    }

    /// Notes that something is going to be broken. To be called before it is, so that the fault lies
    /// inside of what is noted. It lasts until [`UnderFault::heal`].
    pub fn fault(&self, what: Trouble) -> FaultNote<'_> {
        let id = self.0.faults.fetch_add(1, Ordering::Relaxed);
        let (process, locks, breaks) = (None, None, Vec::new());
        let fault = Fault { t: 0, id, what, process, locks, breaks, hidden: false };
        FaultNote { recorder: self, fault }
    }

    /// Notes what another process says that it does, at the time of now, or that came of it, at the time that it has
    /// stamped itself, on the same clock. The header of such a history says `sequential: false`.
    pub fn note(&self, mut record: Record) {
        let stamped = record.t;
        self.name_run(&mut record);
        self.put(|now| {
            let is_call = record.kind == Kind::Invoke;
            record.t = if is_call { now } else { stamped.min(now) };
            Line::Record(record)
        });
    }

    /// Notes what is left on the server after the run.
    pub fn residue(&self, left: Vec<String>) {
        self.put(|t| Line::Residue(Residue { t, left }));
    }

    /// What was kept in memory so far.
    ///
    /// # Errors
    ///
    /// If it cannot be a history, because clients were used wrongly.
    pub fn history(&self) -> Result<History, Unreadable> {
        History::new(self.lines())
    }

    /// The lines that were kept in memory so far, by their time.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let mut lines = match &*self.0.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(lines) => lines.clone(),
            Sink::Stream(_) | Sink::Broken(_) => Vec::new(),
        };
        // What other processes have stamped arrives later.
        lines.sort_by_key(Line::t);
        lines
    }

    /// Writes out what may be buffered.
    ///
    /// # Errors
    ///
    /// If anything could not be written: the history is not complete then.
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

    /// Up to when a guard is held at least, on the recorder's clock: zero if it is not known to be held
    /// at all, `None` if it has no lease.
    fn valid_until(&self, guard: &LockGuard) -> Option<u64> {
        loop {
            // The clock first: whatever time passes in between makes the claim shorter, never longer.
            let now = self.0.clock.now();
            let until = match guard.is_held() {
                true => guard.valid_for().map(|left| now.saturating_add(nanos_of(left))),
                false => Some(0),
            };
            if self.0.clock.now().saturating_sub(now) <= PRECISE {
                return until;
            }
        }
    }

    /// A deadline that has passed, on the recorder's clock.
    fn at_deadline(&self, deadline: Moment) -> u64 {
        loop {
            let now = self.0.clock.now();
            let ago = Moment::now().saturating_since(deadline);
            if self.0.clock.now().saturating_sub(now) <= PRECISE {
                return now.saturating_sub(nanos_of(ago));
            }
        }
    }
}

/// A fault that is about to be noted.
#[derive(Debug)]
#[must_use = "nothing is noted before `begin`"]
pub struct FaultNote<'a> {
    recorder: &'a Recorder,
    fault: Fault,
}

impl FaultNote<'_> {
    /// It hits only this process of the operating system.
    pub fn process(mut self, process: &str) -> Self {
        self.fault.process = Some(process.to_owned());
        self
    }

    /// It hits only this lock.
    pub fn lock(self, lock: &str) -> Self {
        self.locks([lock.to_owned()])
    }

    /// It hits only these locks.
    pub fn locks(mut self, locks: impl IntoIterator<Item = String>) -> Self {
        self.fault.locks = Some(locks.into_iter().collect());
        self
    }

    /// It breaks this assumption, which the header names as well.
    pub fn breaks(mut self, assumption: Assumption) -> Self {
        self.fault.breaks.push(assumption);
        self
    }

    /// Clients need not notice it.
    pub fn hidden(mut self) -> Self {
        self.fault.hidden = true;
        self
    }

    /// Notes it: now it may be caused.
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

/// A fault that lasts. Dropping this does not end it.
#[derive(Debug)]
pub struct UnderFault {
    recorder: Recorder,
    id: u64,
}

impl UnderFault {
    /// Notes that it is over. To be called after it is.
    pub fn heal(self) {
        self.end(true, false);
    }

    /// The same of a removal that certainly has removed its lock.
    pub fn has_removed(self) {
        self.end(true, true);
    }

    /// Notes that it came to nothing.
    pub fn never_happened(self) {
        self.end(false, false);
    }

    fn end(self, happened: bool, removed: bool) {
        self.recorder.put(|t| Line::Heal(Heal { t, id: self.id, happened, removed }));
    }
}

/// The name of a grant in a history, to tell of what becomes of it.
#[derive(Clone, Debug)]
pub struct GrantId {
    recorder: Recorder,
    process: Arc<str>,
    lock: Arc<str>,
    id: Arc<str>,
}

impl GrantId {
    /// Notes that the holder was told of its loss, and the deadline that had passed, if it had.
    pub fn lost(&self, why: Loss, deadline: Option<Moment>) {
        let mut record = self.record(Kind::Event, Op::Lost);
        let deadline = deadline.filter(|deadline| deadline.has_passed());
        record.valid_until = deadline.map(|deadline| self.recorder.at_deadline(deadline));
        record.err = Some(why.into());
        self.recorder.record(record);
    }

    fn record(&self, kind: Kind, op: Op) -> Record {
        let mut record = blank(kind, op, &self.process, &self.lock);
        record.grant = Some(self.id.as_ref().to_owned());
        record
    }
}

/// A guard, and the name of its grant.
#[derive(Debug)]
pub struct Held {
    /// The guard.
    pub guard: LockGuard,
    /// Its grant.
    pub id: GrantId,
}

impl Held {
    /// Waits until the lock is lost, and notes it and each deadline that the guard learns meanwhile.
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

    /// Sleeps, and notes each deadline that the guard learns meanwhile.
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

    /// Records the guard's deadline each time that half of the remaining lease is over, so the history has
    /// no gap between two deadlines. A deadline that has moved back is recorded, too.
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

    /// Up to when the guard is held at least, if it is, and if it has a lease.
    fn deadline(&self) -> Option<u64> {
        self.id.recorder.valid_until(&self.guard).filter(|&until| until > 0)
    }
}

/// Somebody who makes one call at a time.
///
/// The methods that call a lock do all that is needed. For anything else,
/// [`invoke`](Self::invoke) and [`Pending`] note a call by hand.
#[derive(Debug)]
pub struct Client {
    recorder: Recorder,
    process: String,
    /// The name that is used now: a new one after each call with unknown outcome.
    name: String,
    /// Leases that it asks for from now on are not renewed.
    unrenewed: bool,
    /// Later acquisitions may be served before its acquisitions from now on.
    overtakable: bool,
    /// The minimum hold of its acquisitions from now on.
    kept: Option<Duration>,
    /// The lease of its acquisitions from now on, where locks without one end with their process.
    lease: Option<Duration>,
    retired: u64,
    grants: u64,
}

impl Client {
    /// Notes that leases which it asks for from now on are not renewed, or that they are: who loses such a lock needs no
    /// other reason.
    pub fn leaves_unrenewed(&mut self, yes: bool) {
        self.unrenewed = yes;
    }

    /// Notes the minimum hold of the acquisitions that follow.
    pub fn keeps_for(&mut self, minimum: Option<Duration>) {
        self.kept = minimum;
    }

    /// Notes that later acquisitions may be served before those that follow, or that they may not.
    pub fn may_be_overtaken(&mut self, yes: bool) {
        self.overtakable = yes;
    }

    /// Notes that the acquisitions that follow outlast their process for a lease, where others end with
    /// theirs.
    pub fn outlives_its_process(&mut self, lease: Option<Duration>) {
        self.lease = lease;
    }

    /// [`Lock::acquire`], recorded.
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

    /// [`Lock::try_acquire`], recorded.
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
        let result = lock.try_acquire().await;
        pending.seek(result)
    }

    /// [`Lock::try_acquire_for`], recorded.
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
        let result = lock.try_acquire_for(wait).await;
        pending.seek(result)
    }

    /// [`LockGuard::verify`], recorded.
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
        let result = held.guard.verify().await;
        pending.renewed(result, &held.guard)
    }

    /// [`LockGuard::extend`], recorded as a renewal.
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
        let result = held.guard.extend(ttl).await;
        pending.renewed(result, &held.guard)
    }

    /// [`LockGuard::detach`]. Nothing is noted of it but that it failed: the lock stays held up to its deadline.
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

    /// [`Locker::adopt`], recorded as a renewal.
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
        let result = locks.adopt(detached).await;
        match result {
            Ok(guard) => {
                pending.still_held(&guard);
                Ok(Held { guard, id })
            }
            Err(error) => {
                pending.failed(&error);
                Err(error)
            }
        }
    }

    /// [`Locker::renew_detached`], recorded without its deadline.
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

    /// [`Locker::release_detached`], recorded.
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

    /// [`LockGuard::is_held`], recorded.
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

    /// [`LockGuard::release`], recorded.
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
        // Core lets go of a lost lock by itself, whenever it can.
        pending.answered(held.guard.release().await)
    }

    /// Drops the guard, recorded: it is released in the background, some time.
    pub fn drop(&mut self, held: Held) {
        let pending = self.invoke_release(&held);
        drop(held);
        pending.info(Why::Dropped);
    }

    /// Notes a call that is about to be made: an acquisition, or a read.
    pub fn invoke(&mut self, op: Op, lock: &str) -> Pending<'_> {
        let mut record = blank(Kind::Invoke, op, &self.name, lock);
        if op.acquires() {
            self.grants += 1;
            record.grant = Some(format!("{}#{}", self.process, self.grants));
            (record.unrenewed, record.lease) = (self.unrenewed, self.lease);
            record.overtakable = self.overtakable;
        }
        self.begin(record)
    }

    /// Notes a call about a grant that is about to be made.
    pub fn invoke_on(&mut self, op: Op, grant: &GrantId) -> Pending<'_> {
        let mut record = grant.record(Kind::Invoke, op);
        record.process.clone_from(&self.name);
        self.begin(record)
    }

    /// The same for the end of a hold, with the deadline that its guard knows.
    fn invoke_release(&mut self, held: &Held) -> Pending<'_> {
        let mut record = held.id.record(Kind::Invoke, Op::Release);
        record.process.clone_from(&self.name);
        record.valid_until = held.deadline();
        self.begin(record)
    }

    /// Notes a write to the resource that a lock guards, with the fence that is shown to it.
    pub fn invoke_write(&mut self, resource: &str, fence: Option<u64>) -> Pending<'_> {
        let mut record = blank(Kind::Invoke, Op::Write, &self.name, resource);
        record.fence = fence;
        self.begin(record)
    }

    /// The same for a read, of a resource that also refuses readers whose fence is too low.
    pub fn invoke_read(&mut self, resource: &str, fence: Option<u64>) -> Pending<'_> {
        let mut record = blank(Kind::Invoke, Op::Read, &self.name, resource);
        record.fence = fence;
        self.begin(record)
    }

    fn begin(&mut self, record: Record) -> Pending<'_> {
        self.recorder.record(record.clone());
        // Answers say themselves what is known then.
        Pending { client: self, record: Record { valid_until: None, ..record }, answered: false }
    }
}

/// A call that is being made. Dropped without an answer, its outcome is unknown.
#[derive(Debug)]
pub struct Pending<'a> {
    client: &'a mut Client,
    record: Record,
    answered: bool,
}

impl Pending<'_> {
    /// It succeeded.
    pub fn ok(self) {
        self.answer(Kind::Ok, |_| {});
    }

    /// It succeeded, and the counter is now `value`.
    pub fn ok_value(self, value: u64) {
        self.answer(Kind::Ok, |record| record.value = Some(value));
    }

    /// It succeeded; the grant has this fence and lasts up to this point of the recorder's clock.
    pub fn ok_grant(self, fence: Option<u64>, valid_until: Option<u64>) -> GrantId {
        let id = GrantId {
            recorder: self.client.recorder.clone(),
            process: self.record.process.as_str().into(),
            lock: self.record.lock.as_str().into(),
            id: self.record.grant.as_deref().unwrap_or_default().into(),
        };
        let now = self.client.recorder.0.clock.now();
        let kept_until = self.client.kept.map(|kept| now + nanos_of(kept));
        self.answer(Kind::Ok, |record| {
            (record.fence, record.valid_until) = (fence, valid_until);
            record.kept_until = kept_until;
        });
        id
    }

    /// It certainly changed nothing.
    pub fn fail(self, why: Why) {
        self.answer(Kind::Fail, |record| record.err = Some(why));
    }

    /// Nobody knows. The client goes on under a new name.
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
        // `Gone` may have been this call; a grant with a regressed token is given back in the background.
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

fn blank(kind: Kind, op: Op, process: &str, lock: &str) -> Record {
    Record {
        kind,
        t: 0,
        process: process.to_owned(),
        lock: lock.to_owned(),
        op,
        grant: None,
        unrenewed: false,
        overtakable: false,
        fence: None,
        valid_until: None,
        kept_until: None,
        lease: None,
        value: None,
        err: None,
        run: String::new(),
        seed: None,
    }
}
