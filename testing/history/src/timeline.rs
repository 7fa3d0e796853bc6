//! Assembled histories: operations with their completions, grants with their later events, faults
//! with their ends. The assembly rejects input that is no history, such as an answer without a
//! call, or time that runs backwards.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{BufRead, Read as _};
use std::ops::{Deref, RangeInclusive};
use std::time::Duration;

use super::record::{
    Assumption, Fault, Header, Kind, Line, Op, Record, Residue, Trouble, Why, nanos_of,
};

/// The longest line that is accepted: an invalid file must not fill the memory.
const LONGEST_LINE: u64 = 1 << 20;

/// A point in time. `seq` orders records with the same `t` where the order of lines is the order of
/// time. Elsewhere it is zero, and records with the same `t` may have happened in either order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Time {
    pub(super) t: u64,
    pub(super) seq: u32,
}

impl Time {
    pub(super) const START: Self = Self::first(0);
    pub(super) const NEVER: Self = Self::last(u64::MAX);

    /// Returns the point before all records at `t`.
    pub(super) const fn first(t: u64) -> Self {
        Self { t, seq: 0 }
    }

    /// Returns the point after all records at `t`.
    pub(super) const fn last(t: u64) -> Self {
        Self { t, seq: u32::MAX }
    }

    /// Returns the latest point that is `by` later.
    pub(super) fn plus(self, by: Duration) -> Self {
        Self::last(self.t.saturating_add(nanos_of(by)))
    }

    /// Returns the earliest point that is `by` earlier.
    pub(super) fn minus(self, by: Duration) -> Self {
        Self::first(self.t.saturating_sub(nanos_of(by)))
    }

    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.t.saturating_sub(earlier.t))
    }
}

/// A span of time with both ends.
pub(super) type Span = RangeInclusive<Time>;

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    Fail,
    Info,
    /// It has no completion in this history.
    Open,
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) op: Op,
    pub(super) process: u32,
    pub(super) invoke: Time,
    /// The invocation. For an acquisition that got its hold by hand-over inside its process: the
    /// invocation that got it from the server.
    pub(super) asked: Time,
    /// The completion, or [`Time::NEVER`] while it is open.
    pub(super) ret: Time,
    pub(super) outcome: Outcome,
    pub(super) fence: Option<u64>,
    pub(super) unrenewed: bool,
    pub(super) overtakable: bool,
    /// It was made through a guard, which knows a deadline.
    pub(super) guarded: bool,
    pub(super) valid_until: Option<u64>,
    pub(super) kept_until: Option<u64>,
    lease: Option<Duration>,
    pub(super) value: Option<u64>,
    pub(super) err: Option<Why>,
    /// The lines of its invocation and its completion; zero if absent.
    pub(super) lines: [u32; 2],
}

/// An acquisition that succeeded, and its later operations. Indices are those of
/// [`LockHistory::calls`].
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) acquire: usize,
    /// The latest known deadline: up to it the lock was certainly held, unless it was released.
    pub(super) valid_until: Option<u64>,
    /// Each recorded deadline: the time of the record, the deadline, and the line.
    pub(super) deadlines: Vec<(Time, u64, u32)>,
    /// The last point at which the guard still reported the lock as held.
    pub(super) known_held: Time,
    pub(super) releases: Vec<usize>,
    /// The operations by which the holder checked or prolonged the hold.
    pub(super) asked: Vec<usize>,
    /// The time, reason and line of the loss notification.
    pub(super) lost: Option<(Time, Why, u32)>,
}

/// All operations on one lock, and on the resource that it guards.
#[derive(Debug, Default)]
pub(super) struct LockHistory {
    pub(super) name: String,
    pub(super) calls: Vec<Operation>,
    pub(super) grants: Vec<Grant>,
}

/// A view of one lock. It also shows the header and the faults of the whole history.
#[derive(Clone, Copy)]
pub(super) struct LockView<'a> {
    pub(super) history: &'a History,
    pub(super) header: &'a Header,
    lock: &'a LockHistory,
}

/// A fault and its interval.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) from: Time,
    pub(super) until: Time,
    what: Trouble,
    /// The operating system's process; `None` for all.
    host: Option<u32>,
    /// `None` for all.
    locks: Option<Vec<String>>,
    breaks: Vec<Assumption>,
    hidden: bool,
    /// False if the fault did not happen, and explains nothing.
    happened: bool,
    /// True if it has certainly removed its lock.
    removed: bool,
}

impl Window {
    /// Returns true if most members of a quorum are hit. Fewer are hidden from its clients.
    pub(super) fn hits_most_members(&self) -> bool {
        self.host.is_none() && self.locks.is_none() && !self.hidden
    }
}

/// An assembled history. [`check`](super::check) judges it.
#[derive(Debug)]
pub struct History {
    pub(super) header: Header,
    pub(super) locks: Vec<LockHistory>,
    /// Sorted by their start.
    windows: Vec<Window>,
    /// For each window, the latest end of those up to it that do end.
    latest: Vec<Time>,
    /// The windows that never end, as where clients were killed.
    endless: Vec<usize>,
    pub(super) residue: Option<(Vec<String>, u32)>,
    processes: Names,
    /// For each process, the operating system's process that contains it.
    hosts: Vec<u32>,
    kills: HashMap<u32, Time>,
    /// The last known point in time.
    pub(super) end: Time,
}

/// The reason why a file holds no history.
#[derive(Debug)]
pub struct Unreadable {
    /// The line, counted from one.
    pub line: usize,
    message: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for Unreadable {}

impl History {
    /// Reads JSON lines.
    ///
    /// # Errors
    ///
    /// The first line that is not one, or that cannot follow those before it.
    pub fn read(mut from: impl BufRead) -> Result<Self, Unreadable> {
        let mut builder = Builder::default();
        let mut text = Vec::new();
        for line in 1.. {
            let fault = |message| Unreadable { line, message };
            text.clear();
            let read = from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut text);
            if read.map_err(|error| fault(error.to_string()))? == 0 {
                break;
            }
            if text.last() != Some(&b'\n') && text.len() as u64 == LONGEST_LINE {
                return Err(fault(format!("it is longer than {LONGEST_LINE} bytes")));
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            Line::parse(&text).and_then(|parsed| builder.add(line, parsed)).map_err(fault)?;
        }
        builder.finish()
    }

    /// Assembles lines that were kept in memory.
    ///
    /// # Errors
    ///
    /// The first line that cannot follow those before it.
    pub fn new(lines: impl IntoIterator<Item = Line>) -> Result<Self, Unreadable> {
        let mut builder = Builder::default();
        for (index, parsed) in lines.into_iter().enumerate() {
            let line = index + 1;
            builder.add(line, parsed).map_err(|message| Unreadable { line, message })?;
        }
        builder.finish()
    }

    /// Returns a view of each lock.
    pub(super) fn locks(&self) -> impl Iterator<Item = LockView<'_>> {
        self.locks.iter().map(|lock| LockView { history: self, header: &self.header, lock })
    }

    /// Returns each point where a server took writes again, with the fault before it.
    pub(super) fn resumptions(&self) -> impl Iterator<Item = (Time, &str)> {
        let points = self.windows.iter().filter(|window| window.what == Trouble::Resumes);
        points.map(|point| {
            let mut around = self.during(point.from..=point.from);
            let what = around.find_map(|window| match &window.what {
                Trouble::Other(what) if window.host.is_none() => Some(what.as_str()),
                _ => None,
            });
            (point.from, what.unwrap_or_default())
        })
    }

    /// Returns how many processes were silent at some time of a span.
    pub(super) fn count_silent(&self, span: Span) -> u32 {
        let silent = self.during(span).filter(|window| window.happened && window.is_silent());
        let hosts: BTreeSet<_> = silent.map(|window| window.host).collect();
        u32::try_from(hosts.len()).unwrap_or(u32::MAX)
    }

    /// Returns the windows that touch a span, by their start.
    fn during(&self, span: Span) -> impl Iterator<Item = &Window> {
        let (from, until) = span.into_inner();
        let begun = self.windows.partition_point(|window| window.from <= until);
        let over = self.latest.partition_point(|latest| *latest < from).min(begun);
        let endless = self.endless.partition_point(|&index| index < over);
        let endless = self.endless[..endless].iter().map(|&index| &self.windows[index]);
        let others = self.windows[over..begun].iter().filter(move |window| window.until >= from);
        endless.chain(others)
    }
}

impl Deref for LockView<'_> {
    type Target = LockHistory;

    fn deref(&self) -> &LockHistory {
        self.lock
    }
}

impl<'a> LockView<'a> {
    /// Returns the name of the client.
    pub(super) fn name_of(self, call: &Operation) -> &'a str {
        self.history.processes.get(call.process)
    }

    /// Returns true if both are of one process of the operating system.
    pub(super) fn are_together(self, one: &Operation, other: &Operation) -> bool {
        self.host_of(one.process) == self.host_of(other.process)
    }

    fn host_of(self, process: u32) -> u32 {
        self.history.hosts[process as usize]
    }

    /// Returns when the process was killed, if it was.
    pub(super) fn killed(self, process: u32) -> Option<Time> {
        self.history.kills.get(&self.host_of(process)).copied()
    }

    /// Returns the faults that a process met at the lock in a span of time.
    pub(super) fn felt(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        self.near(process, span).filter(|window| !window.hidden)
    }

    /// Returns the faults that may have kept a process from one of several servers. Those include
    /// faults of single servers that others mask, and exclude the actions of an operator.
    pub(super) fn met(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        self.near(process, span).filter(|window| {
            // A fault of one client only: its wall clock, or the lengths of its leases.
            let touches_no_server = window.hidden && window.host.is_some();
            let is_by_force = window.breaks.contains(&Assumption::A3);
            !is_by_force && !touches_no_server
        })
    }

    /// Returns all of these faults, noticed or not.
    fn near(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        let host = self.host_of(process);
        self.during(span).filter(move |window| {
            window.happened
                && !matches!(window.what, Trouble::Foreign | Trouble::Resumes)
                && window.host.is_none_or(|of| of == host)
        })
    }

    /// Returns the windows in which an unrecorded client had the lock.
    pub(super) fn foreign(self) -> impl Iterator<Item = &'a Window> {
        self.history.windows.iter().filter(move |window| {
            let is_foreign = window.what == Trouble::Foreign && window.locks.is_some();
            is_foreign && window.is_about(&self.lock.name)
        })
    }

    /// Returns the removals of the lock that began after the start of a span and were over before
    /// its end.
    pub(super) fn removals(self, span: Span) -> impl Iterator<Item = &'a Window> {
        self.during(span.clone()).filter(move |window| {
            window.removed && window.from > *span.start() && window.until < *span.end()
        })
    }

    /// Returns the faults that kept only this client's operations from its server.
    pub(super) fn silent(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        self.felt(process, span).filter(|window| window.is_silent())
    }

    /// Returns the faults that kept also its renewals from its server.
    pub(super) fn silenced(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        self.silent(process, span).filter(|window| !window.starves())
    }

    /// Returns the faults in which the process or its application did not run.
    pub(super) fn stopped(self, process: u32, span: Span) -> impl Iterator<Item = &'a Window> {
        self.felt(process, span).filter(|window| {
            window.host.is_some() && matches!(window.what, Trouble::Stop | Trouble::Starve)
        })
    }

    /// Returns the faults that broke an assumption of the holders. The span begins with a request:
    /// the faults before it do not count.
    pub(super) fn broken(self, span: Span) -> impl Iterator<Item = &'a Window> {
        self.broken_by(Assumption::guards_holds, span)
    }

    /// Returns the faults that broke an assumption of exclusion.
    pub(super) fn exposed(self, span: Span) -> impl Iterator<Item = &'a Window> {
        self.broken_by(Assumption::guards_exclusion, span)
    }

    /// Returns the faults that broke one of some assumptions.
    pub(super) fn broken_by(
        self,
        of: fn(Assumption) -> bool,
        span: Span,
    ) -> impl Iterator<Item = &'a Window> {
        self.during(span).filter(move |window| window.breaks.iter().any(|&broken| of(broken)))
    }

    /// Returns true if the assumption was broken.
    pub(super) fn breaks(self, broken: Assumption, span: Span) -> bool {
        self.during(span).any(|window| window.breaks.contains(&broken))
    }

    /// Returns the windows of the lock that touch a span.
    fn during(self, span: Span) -> impl Iterator<Item = &'a Window> {
        self.history.during(span).filter(move |window| window.is_about(&self.lock.name))
    }

    /// Returns how long the server keeps the grant of `call` without renewals. `None`: while the
    /// process lives.
    pub(super) fn lease(self, call: &Operation) -> Option<Duration> {
        call.lease.or(self.header.lease)
    }

    /// Returns when no residue of `call` can be left, of all that its process did in a span of
    /// time. Without a holder that takes a lease. After a fault it takes as long as the header
    /// allows.
    pub(super) fn settled(self, call: &Operation, span: Span) -> Time {
        let (from, until) = span.into_inner();
        let quiet = match (self.lease(call), self.header.fades) {
            (lease, Some(fades)) => until.plus(lease.unwrap_or_default() + fades),
            (Some(lease), None) => until.plus(lease + self.header.takeover),
            (None, None) => until.plus(self.header.drain),
        };
        // A background release may meet a fault in turn. A killed process does not recover.
        let healed = self.felt(call.process, from..=quiet).map(|window| match window.what {
            Trouble::Kill => self.lapsed(call, window.from),
            _ => self.healed(call, window),
        });
        healed.fold(quiet, Time::max)
    }

    /// Returns when the waiters of the process of `call` block no others, after it was killed or
    /// fell silent.
    pub(super) fn lapsed(self, call: &Operation, silent: Time) -> Time {
        let each = self.header.absent.unwrap_or_default();
        let count = if each.is_zero() { 0 } else { self.count_queued_with(call.process, silent) };
        let lease = self.lease(call).unwrap_or_default();
        silent.plus(lease + self.header.fading() + each * count)
    }

    /// Returns how many waiters of the same process waited at `at`.
    fn count_queued_with(self, process: u32, at: Time) -> u32 {
        let host = self.host_of(process);
        let begun = self.calls.partition_point(|call| call.invoke <= at);
        let waits = |call: &&Operation| call.op == Op::Acquire && call.ret > at;
        let of_host = |call: &&Operation| self.host_of(call.process) == host;
        let count = self.calls[..begun].iter().filter(waits).filter(of_host).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns when no residue of `call` is left, which met a fault.
    pub(super) fn healed(self, call: &Operation, fault: &Window) -> Time {
        match self.header.fades {
            // Each waiter of that time may be granted the lock once more.
            Some(_) => self.lapsed(call, fault.until),
            None => fault.until.plus(self.header.drain),
        }
    }

    /// Returns when no waiter of the process of `call` is left, if the process was killed. They
    /// expire, unless the servers were disturbed meanwhile.
    pub(super) fn buried(self, call: &Operation) -> Option<Time> {
        let killed = self.killed(call.process)?;
        let lapsed = self.lapsed(call, killed);
        let felt = self.felt(call.process, killed..=lapsed);
        let of_all = felt.filter(|window| window.host.is_none());
        Some(of_all.map(|window| self.healed(call, window)).fold(lapsed, Time::max))
    }
}

impl Window {
    /// Returns true if it affects processes of clients, and no server.
    pub(super) fn is_of_a_client(&self) -> bool {
        self.host.is_some()
    }

    /// Returns true if it blocks the runtime of an application, and no renewal.
    pub(super) fn starves(&self) -> bool {
        self.what == Trouble::Starve
    }

    /// Returns true if no call of a process reaches its server meanwhile.
    fn is_silent(&self) -> bool {
        use Trouble::{Kill, Partition, Starve, Stop};
        self.host.is_some() && matches!(self.what, Stop | Kill | Partition | Starve)
    }

    fn is_about(&self, lock: &str) -> bool {
        self.locks.as_ref().is_none_or(|locks| locks.iter().any(|one| one == lock))
    }
}

impl Grant {
    fn learn(&mut self, at: Time, valid_until: Option<u64>, line: u32, moves_back: bool) {
        let held = valid_until.filter(|&until| until > 0);
        self.valid_until = match held {
            Some(_) if moves_back => held,
            _ => self.valid_until.max(valid_until),
        };
        self.deadlines.extend(held.map(|until| (at, until, line)));
    }
}

impl LockHistory {
    /// Finds the request on the server for each hold that was handed over.
    fn trace_holds(&mut self) {
        let granted = |call: &Operation| call.op.acquires() && call.outcome == Outcome::Ok;
        let calls = self.calls.iter().filter(|call| granted(call));
        let asked: HashMap<u64, Time> = calls.filter_map(|c| Some((c.fence?, c.invoke))).collect();
        for call in self.calls.iter_mut().filter(|call| granted(call)) {
            let first = call.fence.and_then(|fence| asked.get(&(fence & !0xff)));
            call.asked = first.copied().unwrap_or(call.invoke);
        }
    }

    pub(super) fn acquire_of(&self, grant: &Grant) -> &Operation {
        &self.calls[grant.acquire]
    }

    /// Returns the acquisition by which its process got the lock from the server: `acquire`, or the
    /// first one that the lock was handed over from.
    pub(super) fn before_hand_overs<'a>(&'a self, acquire: &'a Operation) -> &'a Operation {
        let first = acquire.fence.map(|fence| fence & !0xff);
        let is_first = |call: &&Operation| {
            call.op.acquires() && call.fence.is_some_and(|fence| Some(fence) == first)
        };
        self.calls.iter().find(is_first).unwrap_or(acquire)
    }

    pub(super) fn first_release(&self, grant: &Grant) -> Option<&Operation> {
        grant.releases.first().map(|&index| &self.calls[index])
    }
}

/// Names, numbered in the order of their first use.
#[derive(Debug, Default)]
struct Names {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn get(&self, number: u32) -> &str {
        &self.names[number as usize]
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = u32::try_from(self.names.len()).expect("fewer than 2³² names");
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }
}

/// The lock of a grant, and its index among the grants or operations.
struct Acquisition {
    lock: usize,
    grant: Option<usize>,
}

#[derive(Default)]
struct Builder {
    header: Option<Header>,
    locks: Vec<LockHistory>,
    lock_numbers: Names,
    processes: Names,
    /// For each process: the operation in progress, or its retirement.
    states: Vec<ProcessState>,
    grants: HashMap<String, Acquisition>,
    faults: HashMap<u64, usize>,
    windows: Vec<Window>,
    hosts: Names,
    residue: Option<(Vec<String>, u32)>,
    end: Time,
    line: u32,
}

#[derive(Clone)]
enum ProcessState {
    Idle,
    Busy { lock: usize, call: usize, grant: Option<String> },
    Retired,
}

impl Default for Time {
    fn default() -> Self {
        Self::START
    }
}

impl Builder {
    fn add(&mut self, line: usize, parsed: Line) -> Result<(), String> {
        self.line = u32::try_from(line).map_err(|_| "there are too many lines".to_owned())?;
        let Some(header) = &self.header else {
            return self.begin(parsed);
        };
        let t = parsed.t().ok_or("a second header; one file holds one run")?;
        let at = Time { t, seq: if header.sequential { self.line } else { 0 } };
        if header.sequential && t < self.end.t {
            return Err(format!("time runs backwards, from {} to {t} ns", self.end.t));
        }
        self.end = self.end.max(at);
        match parsed {
            Line::Header(_) => Ok(()), // has no time, so is refused above
            Line::Record(record) => self.record(at, record),
            Line::Fault(fault) => self.fault(at, fault),
            Line::Heal(heal) => {
                let index = self.faults.remove(&heal.id);
                let index = index.ok_or(format!("no fault {} is under way", heal.id))?;
                self.windows[index].until = at;
                self.windows[index].removed = heal.removed;
                if !heal.happened {
                    self.windows[index].happened = false;
                    self.windows[index].breaks.clear();
                    self.windows[index].hidden = true;
                }
                Ok(())
            }
            Line::Residue(Residue { left, .. }) => {
                self.residue = Some((left, self.line));
                Ok(())
            }
        }
    }

    fn begin(&mut self, first: Line) -> Result<(), String> {
        let Line::Header(header) = first else {
            return Err("the first line must be the header".into());
        };
        if header.version != Header::VERSION {
            let (theirs, ours) = (header.version, Header::VERSION);
            return Err(format!("format {theirs} is not known, only format {ours}"));
        }
        self.header = Some(header);
        Ok(())
    }

    fn fault(&mut self, at: Time, fault: Fault) -> Result<(), String> {
        let declared = self.header.as_ref().map_or(&[][..], |header| &header.breaks);
        if let Some(more) = fault.breaks.iter().find(|broken| !declared.contains(broken)) {
            return Err(format!("the header does not say that this run breaks {more:?}"));
        }
        if self.faults.insert(fault.id, self.windows.len()).is_some() {
            return Err(format!("fault {} is under way already", fault.id));
        }
        self.windows.push(Window {
            from: at,
            until: Time::NEVER,
            what: fault.what,
            host: fault.process.map(|process| self.hosts.number(host_of(&process))),
            locks: fault.locks,
            breaks: fault.breaks,
            hidden: fault.hidden,
            happened: true,
            removed: false,
        });
        Ok(())
    }

    fn record(&mut self, at: Time, record: Record) -> Result<(), String> {
        self.same_run(&record)?;
        let process = self.processes.number(&record.process) as usize;
        if process == self.states.len() {
            self.states.push(ProcessState::Idle);
        }
        let lock = self.lock_numbers.number(&record.lock) as usize;
        if lock == self.locks.len() {
            self.locks.push(LockHistory { name: record.lock.clone(), ..LockHistory::default() });
        }
        match (record.kind, record.op) {
            (Kind::Event, Op::Lost) => self.lost(at, lock, record),
            (Kind::Event, Op::Renew) => self.learned(at, lock, record),
            (Kind::Event, _) | (_, Op::Lost) => {
                Err("`lost` is an event, and no other call is one but `renew`".into())
            }
            (Kind::Invoke, _) => self.invoke(at, process, lock, record),
            (Kind::Ok, _) => self.answer(at, process, lock, record, Outcome::Ok),
            (Kind::Fail, _) => self.answer(at, process, lock, record, Outcome::Fail),
            (Kind::Info, _) => self.answer(at, process, lock, record, Outcome::Info),
        }
    }

    fn same_run(&self, record: &Record) -> Result<(), String> {
        let Some(header) = &self.header else { return Ok(()) };
        let other_run = !record.run.is_empty() && record.run != header.run;
        if other_run || record.seed.is_some_and(|seed| seed != header.seed) {
            return Err(format!("it belongs to run {:?}, not to {:?}", record.run, header.run));
        }
        Ok(())
    }

    fn invoke(&mut self, at: Time, process: usize, lock: usize, r: Record) -> Result<(), String> {
        match &self.states[process] {
            ProcessState::Idle => {}
            ProcessState::Busy { lock, call, .. } => {
                let earlier = self.locks[*lock].calls[*call].lines[0];
                return Err(format!("{} has a call under way since line {earlier}", r.process));
            }
            ProcessState::Retired => {
                return Err(format!("{} goes on after `info`; it needs a new name", r.process));
            }
        }
        let of_a_grant = matches!(r.op, Op::Renew | Op::Check | Op::Release);
        match &r.grant {
            Some(grant) if r.op.acquires() => {
                let acquisition = Acquisition { lock, grant: None };
                if self.grants.insert(grant.clone(), acquisition).is_some() {
                    return Err(format!("there is a grant {grant} already"));
                }
            }
            Some(grant) if of_a_grant => {
                let grant = self.known(grant, lock)?;
                let moves_back = self.moves_back();
                self.locks[lock].grants[grant].learn(at, r.valid_until, self.line, moves_back);
            }
            None if of_a_grant || r.op.acquires() => return Err("it names no grant".into()),
            _ => {}
        }
        let calls = &mut self.locks[lock].calls;
        calls.push(Operation {
            op: r.op,
            process: u32::try_from(process).expect("processes are counted in 32 bits"),
            invoke: at,
            asked: at,
            ret: Time::NEVER,
            outcome: Outcome::Open,
            fence: r.fence,
            unrenewed: r.unrenewed,
            overtakable: r.overtakable,
            guarded: r.valid_until.is_some(),
            valid_until: None,
            kept_until: None,
            lease: r.lease,
            value: None,
            err: None,
            lines: [self.line, 0],
        });
        self.states[process] = ProcessState::Busy { lock, call: calls.len() - 1, grant: r.grant };
        Ok(())
    }

    fn answer(
        &mut self,
        at: Time,
        process: usize,
        lock: usize,
        r: Record,
        outcome: Outcome,
    ) -> Result<(), String> {
        let after =
            if outcome == Outcome::Info { ProcessState::Retired } else { ProcessState::Idle };
        let ProcessState::Busy { lock: called, call: index, grant } =
            std::mem::replace(&mut self.states[process], after)
        else {
            return Err(format!("an answer to {}, which has called nothing", r.process));
        };
        let call = &mut self.locks[called].calls[index];
        if called != lock || call.op != r.op || (r.grant.is_some() && r.grant != grant) {
            return Err(format!("an answer to something else than line {} asked", call.lines[0]));
        }
        if at < call.invoke {
            return Err(format!("an answer before line {} asked", call.lines[0]));
        }
        (call.ret, call.outcome, call.lines[1]) = (at, outcome, self.line);
        (call.valid_until, call.value, call.err) = (r.valid_until, r.value, r.err);
        (call.fence, call.kept_until) = (call.fence.or(r.fence), r.kept_until);
        match grant {
            Some(grant) => self.tell_grant(&grant, lock, index),
            None => Ok(()),
        }
    }

    /// Adds a completed operation to its grant.
    fn tell_grant(&mut self, name: &str, lock: usize, index: usize) -> Result<(), String> {
        let moves_back = self.moves_back();
        let line = &mut self.locks[lock];
        let call = &line.calls[index];
        if call.op.acquires() {
            if call.outcome == Outcome::Ok {
                let acquisition = self.grants.get_mut(name).expect("it was named by the call");
                acquisition.grant = Some(line.grants.len());
                let mut grant = Grant {
                    acquire: index,
                    valid_until: None,
                    deadlines: Vec::new(),
                    known_held: call.invoke,
                    releases: Vec::new(),
                    asked: Vec::new(),
                    lost: None,
                };
                grant.learn(call.ret, call.valid_until, call.lines[1], moves_back);
                line.grants.push(grant);
            }
            return Ok(());
        }
        if !matches!(call.op, Op::Renew | Op::Check | Op::Release) {
            return Ok(());
        }
        let grant = self.known(name, lock)?;
        let line = &mut self.locks[lock];
        let (call, grant) = (&line.calls[index], &mut line.grants[grant]);
        if call.op == Op::Release {
            grant.releases.push(index);
            return Ok(());
        }
        grant.asked.push(index);
        if call.outcome == Outcome::Ok {
            grant.known_held = grant.known_held.max(call.invoke);
            grant.learn(call.ret, call.valid_until, call.lines[1], moves_back);
        }
        Ok(())
    }

    fn moves_back(&self) -> bool {
        self.header.as_ref().is_some_and(|header| header.moves_back)
    }

    fn learned(&mut self, at: Time, lock: usize, r: Record) -> Result<(), String> {
        let grant = self.known(&r.grant.ok_or("it names no grant")?, lock)?;
        let moves_back = self.moves_back();
        self.locks[lock].grants[grant].learn(at, r.valid_until, self.line, moves_back);
        Ok(())
    }

    fn lost(&mut self, at: Time, lock: usize, r: Record) -> Result<(), String> {
        let name = r.grant.ok_or("it names no grant")?;
        let grant = self.known(&name, lock)?;
        let why = r.err.unwrap_or(Why::Expired);
        let (line, moves_back) = (self.line, self.moves_back());
        let grant = &mut self.locks[lock].grants[grant];
        if moves_back && grant.lost.is_none() && r.valid_until.is_some() {
            // No deadline moves back behind a moment at which the holder was told that it holds.
            grant.valid_until = r.valid_until.max(Some(grant.known_held.t));
        }
        grant.lost.get_or_insert((at, why, line));
        Ok(())
    }

    fn known(&self, name: &str, lock: usize) -> Result<usize, String> {
        let known = self.grants.get(name).filter(|acquisition| acquisition.lock == lock);
        known
            .and_then(|acquisition| acquisition.grant)
            .ok_or(format!("no grant {name} of this lock is known"))
    }

    fn finish(mut self) -> Result<History, Unreadable> {
        let header = self.header.take();
        let header = header.ok_or(Unreadable { line: 1, message: "there is no header".into() })?;
        // Operations without a completion belong to their grant, too.
        for state in std::mem::take(&mut self.states) {
            if let ProcessState::Busy { lock, call, grant: Some(name) } = state {
                let told = self.tell_grant(&name, lock, call);
                told.map_err(|message| Unreadable { line: self.line as usize, message })?;
            }
        }
        self.windows.sort_by_key(|window| window.from);
        if header.passes_on {
            self.locks.iter_mut().for_each(LockHistory::trace_holds);
        }
        let hosts = self.processes.names.iter().map(|name| self.hosts.number(host_of(name)));
        let hosts = hosts.collect();
        // A fault that did not happen was taken back.
        let has_killed = |window: &&Window| window.what == Trouble::Kill && !window.hidden;
        let kills = self.windows.iter().rev().filter(has_killed);
        let is_endless = |window: &Window| window.until == Time::NEVER;
        let latest = self.windows.iter().scan(Time::START, |latest, window| {
            *latest = if is_endless(window) { *latest } else { window.until.max(*latest) };
            Some(*latest)
        });
        let endless = (0..self.windows.len()).filter(|&index| is_endless(&self.windows[index]));
        Ok(History {
            latest: latest.collect(),
            endless: endless.collect(),
            header,
            locks: self.locks,
            hosts,
            kills: kills.filter_map(|window| Some((window.host?, window.from))).collect(),
            windows: self.windows,
            residue: self.residue,
            processes: self.processes,
            end: self.end,
        })
    }
}

/// Returns the operating system's process that a name belongs to.
fn host_of(process: &str) -> &str {
    process.split_once('/').map_or(process, |(host, _)| host)
}
