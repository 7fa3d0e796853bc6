//! The campaign's side of its connections to clients: records their operations, and keeps the
//! counters that their locks guard.
//!
//! Each client has one connection. It sends lines and waits for each answer before it continues:
//!
//! | line | answer |
//! |---|---|
//! | a record of a history, as JSON | `invoke`: an empty line, once it is recorded; others: none |
//! | `look LOCK FENCE` | the fenced counter or `refused`, and the unfenced counter |
//! | `write LOCK FENCE VALUE` | `ok` or `refused` |
//! | `put LOCK VALUE` | `ok` |
//! | `says EVENT` | none |
//! | `did VERB` | none; the call is counted |

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use lock_core::{FenceGate, FencingToken};
use lock_history::{Kind, Line, Record, Recorder};

/// The recorder, the guarded counters and the traffic of one run.
#[derive(Debug)]
pub(crate) struct Collector {
    recorder: Recorder,
    guarded: Vec<Guarded>,
    refused: AtomicU64,
    /// The calls of each verb, as clients report them.
    verb_counts: Mutex<BTreeMap<String, u64>>,
    pub(crate) traffic: Traffic,
}

/// The resource that one lock guards, twice: behind a gate that checks fencing tokens and, as in
/// most programs, without one.
#[derive(Debug)]
struct Guarded {
    fenced: FenceGate<Counter>,
    unfenced: Mutex<Counter>,
}

/// A counter that clients read, and write back plus one.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    value: u64,
    writes: u64,
}

impl Counter {
    fn write(&mut self, value: u64) {
        self.value = value;
        self.writes += 1;
    }

    fn lost(self) -> u64 {
        self.writes - self.value.min(self.writes)
    }
}

/// The totals of the guarded counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Effects {
    /// Writes that the fenced counters admitted.
    pub fenced_writes: u64,
    /// Admitted writes that are missing in the fenced counters.
    pub fenced_lost: u64,
    /// Reads and writes that the gates refused, because they had seen a higher token.
    pub refused: u64,
    /// Writes to the unfenced counters.
    pub unfenced_writes: u64,
    /// Writes that are missing in the unfenced counters: lost updates.
    pub unfenced_lost: u64,
}

impl Effects {
    /// Adds the totals of `other`.
    pub fn add(&mut self, other: &Self) {
        self.fenced_writes += other.fenced_writes;
        self.fenced_lost += other.fenced_lost;
        self.refused += other.refused;
        self.unfenced_writes += other.unfenced_writes;
        self.unfenced_lost += other.unfenced_lost;
    }
}

impl Collector {
    pub(crate) fn new(recorder: Recorder, locks: usize) -> Arc<Self> {
        let guarded = (0..locks).map(|_| Guarded {
            fenced: FenceGate::new(Counter::default()),
            unfenced: Mutex::default(),
        });
        let (guarded, refused) = (guarded.collect(), AtomicU64::new(0));
        let verb_counts = Mutex::default();
        Arc::new(Self { recorder, guarded, refused, verb_counts, traffic: Traffic::default() })
    }

    /// Returns the calls of each verb so far, as clients report them.
    pub(crate) fn verb_counts(&self) -> BTreeMap<String, u64> {
        lock(&self.verb_counts).clone()
    }

    /// Returns the number of locks.
    pub(crate) fn locks(&self) -> usize {
        self.guarded.len()
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Sums up the guarded counters.
    pub(crate) fn effects(&self) -> Effects {
        let mut effects =
            Effects { refused: self.refused.load(Ordering::SeqCst), ..Effects::default() };
        for guarded in &self.guarded {
            let last = FencingToken::from_u64(u64::MAX);
            let fenced = guarded.fenced.admit(last, |counter| *counter);
            let fenced = fenced.expect("no token is higher");
            let unfenced = *lock(&guarded.unfenced);
            effects.fenced_writes += fenced.writes;
            effects.fenced_lost += fenced.lost();
            effects.unfenced_writes += unfenced.writes;
            effects.unfenced_lost += unfenced.lost();
        }
        effects
    }

    /// Serves a client until its connection ends. Sends the events that it reports to `events`.
    pub(crate) fn serve(
        self: &Arc<Self>,
        connection: UnixStream,
        events: mpsc::Sender<String>,
    ) -> JoinHandle<io::Result<()>> {
        let collector = Arc::clone(self);
        std::thread::spawn(move || {
            let mut answers = connection.try_clone()?;
            let mut lines = BufReader::new(connection);
            let mut line = Vec::new();
            loop {
                line.clear();
                match lines.read_until(b'\n', &mut line) {
                    // The client was killed before it had read its last answer.
                    Err(gone) if gone.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                    read => read?,
                };
                // An incomplete line does not count: the client was killed while it wrote.
                let Some(whole) = line.strip_suffix(b"\n") else { return Ok(()) };
                if let Some(answer) = collector.handle_line(whole, &events)? {
                    // A client that was killed reads no answer, but its line counts.
                    let _ = answers.write_all(format!("{answer}\n").as_bytes());
                }
            }
        })
    }

    /// Handles a line of a client, and returns the answer, if the line has one.
    fn handle_line(
        &self,
        line: &[u8],
        events: &mpsc::Sender<String>,
    ) -> io::Result<Option<String>> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if line.starts_with(b"{") {
            return match Line::parse(line).map_err(invalid)? {
                Line::Record(record) => {
                    self.recorder.note(record.clone());
                    self.traffic.note(&record);
                    Ok((record.kind == Kind::Invoke).then(String::new))
                }
                other => Err(invalid(format!("{other:?} is no record"))),
            };
        }
        let text = std::str::from_utf8(line).map_err(|error| invalid(error.to_string()))?;
        let answer = match text.split(' ').collect::<Vec<_>>()[..] {
            ["look", lock, fence] => self.read_counters(lock, fence),
            ["write", lock, fence, value] => self.write_fenced(lock, fence, value),
            ["put", lock, value] => self.write_unfenced(lock, value),
            ["did", verb] => {
                *lock(&self.verb_counts).entry(verb.to_owned()).or_default() += 1;
                return Ok(None);
            }
            ["says", event] => {
                // The receiver may be dropped already.
                let _ = events.send(event.to_owned());
                return Ok(None);
            }
            _ => None,
        };
        answer.map(Some).ok_or_else(|| invalid(format!("unknown line {text:?}")))
    }

    fn read_counters(&self, name: &str, fence: &str) -> Option<String> {
        let guarded = self.guarded(name)?;
        let unfenced = lock(&guarded.unfenced).value;
        let fence = FencingToken::from_u64(fence.parse().ok()?);
        Some(match guarded.fenced.admit(fence, |counter| counter.value) {
            Ok(fenced) => format!("{fenced} {unfenced}"),
            Err(_) => self.refuse(format!("refused {unfenced}")),
        })
    }

    fn write_fenced(&self, name: &str, fence: &str, value: &str) -> Option<String> {
        let (fence, value) = (FencingToken::from_u64(fence.parse().ok()?), value.parse().ok()?);
        let admitted = self.guarded(name)?.fenced.admit(fence, |counter| counter.write(value));
        Some(match admitted {
            Ok(()) => "ok".to_owned(),
            Err(_) => self.refuse("refused".to_owned()),
        })
    }

    fn write_unfenced(&self, name: &str, value: &str) -> Option<String> {
        lock(&self.guarded(name)?.unfenced).write(value.parse().ok()?);
        Some("ok".to_owned())
    }

    fn refuse(&self, answer: String) -> String {
        self.refused.fetch_add(1, Ordering::SeqCst);
        answer
    }

    fn guarded(&self, name: &str) -> Option<&Guarded> {
        self.guarded.get(name.strip_prefix('n')?.parse::<usize>().ok()?)
    }
}

/// Counts of the grants and calls of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    grants: AtomicU64,
    started: AtomicU64,
    ended: AtomicU64,
    /// The grants to each client slot, and of each lock.
    grants_by_name: Mutex<HashMap<String, u64>>,
    calls_by_host: Mutex<HashMap<String, Calls>>,
}

/// The calls of one client.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    started: u64,
    pending: u64,
}

impl Traffic {
    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::SeqCst)
    }

    /// Returns the sum of the grants to these client slots, or of these locks.
    pub(crate) fn grants_of(&self, names: &[String]) -> u64 {
        let grants = lock(&self.grants_by_name);
        names.iter().filter_map(|name| grants.get(name)).sum()
    }

    /// Returns the number of calls that clients have started.
    pub(crate) fn calls(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }

    /// Returns the number of calls without a result so far.
    pub(crate) fn pending(&self) -> u64 {
        self.calls().saturating_sub(self.ended.load(Ordering::SeqCst))
    }

    /// Returns the number of calls that one client has started.
    pub(crate) fn calls_of(&self, host: &str) -> u64 {
        lock(&self.calls_by_host).get(host).map_or(0, |calls| calls.started)
    }

    /// Returns the number of calls of one client without a result so far.
    pub(crate) fn pending_of(&self, host: &str) -> u64 {
        lock(&self.calls_by_host).get(host).map_or(0, |calls| calls.pending)
    }

    /// Ends the pending calls of a client that was killed, once all its lines have been handled.
    pub(crate) fn remove_client(&self, host: &str) {
        let removed = lock(&self.calls_by_host).remove(host).unwrap_or_default();
        self.ended.fetch_add(removed.pending, Ordering::SeqCst);
    }

    /// Counts the call or the grant of a record.
    pub(crate) fn note(&self, record: &Record) {
        if record.kind != Kind::Event {
            let mut calls = lock(&self.calls_by_host);
            let calls = calls.entry(host_of(&record.process).to_owned()).or_default();
            if record.kind == Kind::Invoke {
                (calls.started, calls.pending) = (calls.started + 1, calls.pending + 1);
                self.started.fetch_add(1, Ordering::SeqCst);
            } else {
                calls.pending = calls.pending.saturating_sub(1);
                self.ended.fetch_add(1, Ordering::SeqCst);
            }
        }
        if record.kind == Kind::Ok && record.op.acquires() {
            let mut grants = lock(&self.grants_by_name);
            for name in [slot_of(&record.process), &record.lock] {
                *grants.entry(name.to_owned()).or_default() += 1;
            }
            self.grants.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Returns the client slot of a task. All clients of a slot, one after the other, share its name.
fn slot_of(process: &str) -> &str {
    process.split(['.', '/']).next().unwrap_or(process)
}

/// Returns the client of a task.
fn host_of(process: &str) -> &str {
    process.split('/').next().unwrap_or(process)
}

/// A client's side of its connection. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CollectorLink(Arc<Mutex<Option<Ends>>>);

#[derive(Debug)]
struct Ends {
    writer: UnixStream,
    reader: BufReader<UnixStream>,
}

impl CollectorLink {
    pub(crate) fn new(connection: UnixStream) -> io::Result<Self> {
        let writer = connection.try_clone()?;
        Ok(Self(Arc::new(Mutex::new(Some(Ends { writer, reader: BufReader::new(connection) })))))
    }

    /// Closes this side: later calls send nothing, as if the client were dead.
    pub(crate) fn close(&self) {
        *lock(&self.0) = None;
    }

    /// Reads the counters of a lock: the fenced one, unless its gate refuses the token, and the
    /// unfenced one.
    pub(crate) fn read_counters(&self, lock: &str, fence: u64) -> (Option<u64>, u64) {
        let answer = self.ask(&format!("look {lock} {fence}\n"));
        let (fenced, unfenced) = answer.split_once(' ').unwrap_or_default();
        (fenced.parse().ok(), unfenced.parse().unwrap_or(0))
    }

    /// Writes the fenced counter. Returns false if its gate refuses the token.
    pub(crate) fn write_fenced(&self, lock: &str, fence: u64, value: u64) -> bool {
        self.ask(&format!("write {lock} {fence} {value}\n")) == "ok"
    }

    pub(crate) fn write_unfenced(&self, lock: &str, value: u64) {
        self.ask(&format!("put {lock} {value}\n"));
    }

    /// Reports an event to the campaign.
    pub(crate) fn report(&self, event: &str) {
        self.send(format!("says {event}\n").as_bytes(), false);
    }

    /// Reports a call of a verb, to be counted.
    pub(crate) fn count_verb(&self, verb: &str) {
        self.send(format!("did {verb}\n").as_bytes(), false);
    }

    fn ask(&self, line: &str) -> String {
        self.send(line.as_bytes(), true)
    }

    /// Sends a line, and waits for the answer if there is one. Closes this side if the campaign is
    /// gone.
    fn send(&self, line: &[u8], answered: bool) -> String {
        let mut ends = lock(&self.0);
        let Some(Ends { writer, reader }) = &mut *ends else { return String::new() };
        let mut answer = String::new();
        let done = writer.write_all(line).and_then(|()| match answered {
            true => reader.read_line(&mut answer).map(|_| ()),
            false => Ok(()),
        });
        if done.is_err() || (answered && answer.is_empty()) {
            *ends = None;
        }
        answer.trim_end().to_owned()
    }

    /// Returns false if this side is closed or the campaign is gone.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// The output of the client's recorder.
impl Write for CollectorLink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A recorder writes one line with each call, and the line begins with its kind.
        self.send(line, line.starts_with(br#"{"kind":"invoke""#));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(traffic: &Traffic, kind: &str, process: &str) {
        let line = format!(
            r#"{{"kind":"{kind}","t":1,"proc":"{process}","lock":"n01","op":"acquire","grant":"a"}}"#
        );
        let Ok(Line::Record(record)) = Line::parse(line.as_bytes()) else { panic!("{line}") };
        traffic.note(&record);
    }

    #[test]
    fn killed_clients_have_no_pending_calls() {
        let traffic = Traffic::default();
        for (kind, process) in [
            ("invoke", "p1.1/t0"),
            ("invoke", "p1.1/t1"),
            ("invoke", "p1.2/t0"),
            ("ok", "p1.1/t1"),
            ("invoke", "p1.1/t1"),
        ] {
            note(&traffic, kind, process);
        }
        assert_eq!((traffic.calls_of("p1.1"), traffic.pending_of("p1.1")), (3, 2));
        assert_eq!((traffic.calls(), traffic.pending()), (4, 3));
        traffic.remove_client("p1.1");
        assert_eq!((traffic.calls_of("p1.1"), traffic.pending_of("p1.1")), (0, 0));
        assert_eq!((traffic.calls(), traffic.pending()), (4, 1));
        assert_eq!((traffic.calls_of("p1.2"), traffic.pending_of("p1.2")), (1, 1));
    }

    /// The report of a grant arrives late, after the release of the lock.
    #[test]
    fn late_reports_hide_no_second_holder() {
        use lock_core::{Locker, Memory};
        use lock_history::{Clock, Header, History, Rule, check};

        let locks = Locker::new(Memory::new());
        let mut header =
            Header::new("late", 1, locks.capabilities(), std::time::Duration::from_secs(30));
        header.sequential = false;
        let collector = Collector::new(Recorder::in_memory(Clock::raw(), header), 1);
        let (events, _receiver) = mpsc::channel();
        let handle = |t: u64, kind: &str, host: &str, op: &str, more: &str| {
            let line = format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"{host}/t0","lock":"n00","op":"{op}","grant":"{host}"{more}}}"#
            );
            collector.handle_line(line.as_bytes(), &events).unwrap();
        };
        let (now, lease) = (Clock::raw().now(), 20_000_000_000);
        let held = |fence: u64| format!(r#","fence":{fence},"valid_until":{}"#, now + lease);
        for host in ["p1", "p2"] {
            handle(now, "invoke", host, "acquire", "");
        }
        handle(Clock::raw().now(), "ok", "p1", "acquire", &held(256));
        let granted = Clock::raw().now();
        handle(granted, "invoke", "p1", "release", "");
        handle(Clock::raw().now(), "ok", "p1", "release", "");
        handle(granted, "ok", "p2", "acquire", &held(512));
        let report = check(&History::new(collector.recorder().lines()).unwrap());
        assert!(report.broken.contains_key(&Rule::K1), "{report}");
    }
}
