//! Where clients tell the campaign what they do, and where the guarded resources are.
//!
//! Each client has one connection. It sends lines and, where there is an answer, waits for it before it
//! does anything else:
//!
//! | line | answer |
//! |---|---|
//! | a record of a history, as JSON | `invoke`: an empty line, once it is recorded; others: none |
//! | `look LOCK FENCE` | the fenced counter or `refused`, and the other counter |
//! | `write LOCK FENCE VALUE` | `ok` or `refused` |
//! | `put LOCK VALUE` | `ok` |
//! | `says WORD` | none |
//! | `did WORD` | none; it is counted |

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use lock_core::{FenceGate, FencingToken};
use lock_history::{Kind, Line, Record, Recorder};

/// How a lock of a run is called. No name is a part of another one: requests are found by it.
#[must_use]
pub(crate) fn lock_name(number: usize) -> String {
    format!("n{number:02}")
}

/// What is written of a resource that checks no fence is recorded under this name.
#[must_use]
pub(crate) fn unfenced(lock: &str) -> String {
    format!("{lock}~unfenced")
}

/// The place in the clients of who is called so: whoever has it, one after the other.
fn place_of(process: &str) -> &str {
    process.split(['.', '/']).next().unwrap_or(process)
}

/// Who has that place now.
fn host_of(process: &str) -> &str {
    process.split('/').next().unwrap_or(process)
}

/// What has happened so far in a run.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    grants: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    /// The grants of each place in the clients, and of each lock.
    of: Mutex<HashMap<String, u64>>,
    calls: Mutex<HashMap<String, Calls>>,
}

/// Of one client.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    made: u64,
    under_way: u64,
}

impl Traffic {
    pub(crate) fn grants(&self) -> u64 {
        self.grants.load(Ordering::SeqCst)
    }

    /// Grants of these places in the clients, or of these locks, together.
    pub(crate) fn grants_of(&self, names: &[String]) -> u64 {
        let of = lock(&self.of);
        names.iter().filter_map(|name| of.get(name)).sum()
    }

    /// Calls that were made.
    pub(crate) fn calls(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Calls under way.
    pub(crate) fn under_way(&self) -> u64 {
        self.calls().saturating_sub(self.ended.load(Ordering::SeqCst))
    }

    /// Calls that one client has made.
    pub(crate) fn calls_of(&self, host: &str) -> u64 {
        lock(&self.calls).get(host).map_or(0, |calls| calls.made)
    }

    /// Calls of one client that are under way.
    pub(crate) fn under_way_of(&self, host: &str) -> u64 {
        lock(&self.calls).get(host).map_or(0, |calls| calls.under_way)
    }

    /// A client is dead, and all that it said has been heard: its calls are under way no longer.
    pub(crate) fn is_gone(&self, host: &str) {
        let gone = lock(&self.calls).remove(host).unwrap_or_default();
        self.ended.fetch_add(gone.under_way, Ordering::SeqCst);
    }

    pub(crate) fn note(&self, record: &Record) {
        if record.kind != Kind::Event {
            let mut calls = lock(&self.calls);
            let calls = calls.entry(host_of(&record.process).to_owned()).or_default();
            if record.kind == Kind::Invoke {
                (calls.made, calls.under_way) = (calls.made + 1, calls.under_way + 1);
                self.begun.fetch_add(1, Ordering::SeqCst);
            } else {
                calls.under_way = calls.under_way.saturating_sub(1);
                self.ended.fetch_add(1, Ordering::SeqCst);
            }
        }
        if record.kind == Kind::Ok && record.op.acquires() {
            let mut of = lock(&self.of);
            for name in [place_of(&record.process), &record.lock] {
                *of.entry(name.to_owned()).or_default() += 1;
            }
            self.grants.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// What one lock guards, twice: behind a gate that checks fences, and as most people do it.
#[derive(Debug)]
struct Guarded {
    fenced: FenceGate<Counter>,
    unfenced: Mutex<Counter>,
}

/// A counter that clients read, and write back one higher.
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

/// What became of the guarded counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Effects {
    /// Writes that the fenced resources let pass.
    pub fenced_writes: u64,
    /// Of these, how many are missing in the counters.
    pub fenced_lost: u64,
    /// Reads and writes that they refused, because a higher fence had been there.
    pub refused: u64,
    /// Writes to the resources that check nothing.
    pub unfenced_writes: u64,
    /// Of these, how many are missing in the counters: lost updates.
    pub unfenced_lost: u64,
}

impl Effects {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.fenced_writes += other.fenced_writes;
        self.fenced_lost += other.fenced_lost;
        self.refused += other.refused;
        self.unfenced_writes += other.unfenced_writes;
        self.unfenced_lost += other.unfenced_lost;
    }
}

/// The campaign's side of all connections.
#[derive(Debug)]
pub(crate) struct Collector {
    recorder: Recorder,
    guarded: Vec<Guarded>,
    refused: AtomicU64,
    /// How often clients called each verb, as they say.
    deeds: Mutex<BTreeMap<String, u64>>,
    pub(crate) traffic: Traffic,
}

impl Collector {
    pub(crate) fn new(recorder: Recorder, locks: usize) -> Arc<Self> {
        let guarded = (0..locks).map(|_| Guarded {
            fenced: FenceGate::new(Counter::default()),
            unfenced: Mutex::default(),
        });
        let (guarded, refused) = (guarded.collect(), AtomicU64::new(0));
        let deeds = Mutex::default();
        Arc::new(Self { recorder, guarded, refused, deeds, traffic: Traffic::default() })
    }

    /// How often clients have called each verb so far.
    pub(crate) fn deeds(&self) -> BTreeMap<String, u64> {
        lock(&self.deeds).clone()
    }

    /// How many locks there are.
    pub(crate) fn locks(&self) -> usize {
        self.guarded.len()
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

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

    /// Serves a client until it has gone. What it says besides goes to `said`.
    pub(crate) fn serve(
        self: &Arc<Self>,
        connection: UnixStream,
        said: mpsc::Sender<String>,
    ) -> JoinHandle<io::Result<()>> {
        let collector = Arc::clone(self);
        std::thread::spawn(move || {
            let mut answers = connection.try_clone()?;
            let mut lines = BufReader::new(connection);
            let mut line = Vec::new();
            loop {
                line.clear();
                match lines.read_until(b'\n', &mut line) {
                    // It was killed before it had read its last answer.
                    Err(gone) if gone.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                    read => read?,
                };
                // What has no end was never said: its writer was killed.
                let Some(whole) = line.strip_suffix(b"\n") else { return Ok(()) };
                if let Some(answer) = collector.hear(whole, &said)? {
                    // Who does not want the answer any more was killed; what it has said counts.
                    let _ = answers.write_all(format!("{answer}\n").as_bytes());
                }
            }
        })
    }

    fn hear(&self, line: &[u8], said: &mpsc::Sender<String>) -> io::Result<Option<String>> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if line.starts_with(b"{") {
            return match Line::parse(line).map_err(wrong)? {
                Line::Record(record) => {
                    self.recorder.note(record.clone());
                    self.traffic.note(&record);
                    Ok((record.kind == Kind::Invoke).then(String::new))
                }
                other => Err(wrong(format!("{other:?} is no record"))),
            };
        }
        let text = std::str::from_utf8(line).map_err(|error| wrong(error.to_string()))?;
        let answer = match text.split(' ').collect::<Vec<_>>()[..] {
            ["look", lock, fence] => self.look(lock, fence),
            ["write", lock, fence, value] => self.write(lock, fence, value),
            ["put", lock, value] => self.put(lock, value),
            ["did", word] => {
                *lock(&self.deeds).entry(word.to_owned()).or_default() += 1;
                return Ok(None);
            }
            ["says", word] => {
                // The campaign may have stopped listening.
                let _ = said.send(word.to_owned());
                return Ok(None);
            }
            _ => None,
        };
        answer.map(Some).ok_or_else(|| wrong(format!("{text:?} is not understood")))
    }

    fn look(&self, name: &str, fence: &str) -> Option<String> {
        let guarded = self.guarded(name)?;
        let unfenced = lock(&guarded.unfenced).value;
        let fence = FencingToken::from_u64(fence.parse().ok()?);
        Some(match guarded.fenced.admit(fence, |counter| counter.value) {
            Ok(fenced) => format!("{fenced} {unfenced}"),
            Err(_) => self.refuse(format!("refused {unfenced}")),
        })
    }

    fn write(&self, name: &str, fence: &str, value: &str) -> Option<String> {
        let (fence, value) = (FencingToken::from_u64(fence.parse().ok()?), value.parse().ok()?);
        let admitted = self.guarded(name)?.fenced.admit(fence, |counter| counter.write(value));
        Some(match admitted {
            Ok(()) => "ok".to_owned(),
            Err(_) => self.refuse("refused".to_owned()),
        })
    }

    fn put(&self, name: &str, value: &str) -> Option<String> {
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

/// A client's side of its connection. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CollectorLink(Arc<Mutex<Option<Ends>>>);

#[derive(Debug)]
struct Ends {
    say: UnixStream,
    hear: BufReader<UnixStream>,
}

impl CollectorLink {
    pub(crate) fn new(connection: UnixStream) -> io::Result<Self> {
        let say = connection.try_clone()?;
        Ok(Self(Arc::new(Mutex::new(Some(Ends { say, hear: BufReader::new(connection) })))))
    }

    /// Nothing is said any more, as by one that is dead.
    pub(crate) fn shut(&self) {
        *lock(&self.0) = None;
    }

    /// The fenced counter, unless it refuses the fence, and the other one.
    pub(crate) fn look(&self, lock: &str, fence: u64) -> (Option<u64>, u64) {
        let answer = self.ask(&format!("look {lock} {fence}\n"));
        let (fenced, unfenced) = answer.split_once(' ').unwrap_or_default();
        (fenced.parse().ok(), unfenced.parse().unwrap_or(0))
    }

    /// Whether the fenced counter took it.
    pub(crate) fn write(&self, lock: &str, fence: u64, value: u64) -> bool {
        self.ask(&format!("write {lock} {fence} {value}\n")) == "ok"
    }

    pub(crate) fn put(&self, lock: &str, value: u64) {
        self.ask(&format!("put {lock} {value}\n"));
    }

    pub(crate) fn says(&self, word: &str) {
        self.send(format!("says {word}\n").as_bytes(), false);
    }

    /// It is counted.
    pub(crate) fn did(&self, word: &str) {
        self.send(format!("did {word}\n").as_bytes(), false);
    }

    fn ask(&self, line: &str) -> String {
        self.send(line.as_bytes(), true)
    }

    /// A process whose campaign has gone has nobody left to work for.
    fn send(&self, line: &[u8], answered: bool) -> String {
        let mut ends = lock(&self.0);
        let Some(Ends { say, hear }) = &mut *ends else { return String::new() };
        let mut answer = String::new();
        let done = say.write_all(line).and_then(|()| match answered {
            true => hear.read_line(&mut answer).map(|_| ()),
            false => Ok(()),
        });
        if done.is_err() || (answered && answer.is_empty()) {
            *ends = None;
        }
        answer.trim_end().to_owned()
    }

    /// Whether the campaign is still there, or this side has shut.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.0).is_some()
    }
}

/// A recorder of the client writes its lines here.
impl Write for CollectorLink {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Each call of a recorder is one line, and its kind stands in front.
        self.send(line, line.starts_with(br#"{"kind":"invoke""#));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads orders, a line each, until there are no more. What `parse` does not know is left out.
pub(crate) fn orders<T: Send + 'static>(
    from: impl Read + Send + 'static,
    parse: impl Fn(&str) -> Option<T> + Send + 'static,
) -> tokio::sync::mpsc::UnboundedReceiver<T> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if parse(&line).is_some_and(|order| sender.send(order).is_err()) {
                return;
            }
        }
    });
    receiver
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
    fn the_dead_have_no_calls_under_way() {
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
        assert_eq!((traffic.calls_of("p1.1"), traffic.under_way_of("p1.1")), (3, 2));
        assert_eq!((traffic.calls(), traffic.under_way()), (4, 3));
        traffic.is_gone("p1.1");
        assert_eq!((traffic.calls_of("p1.1"), traffic.under_way_of("p1.1")), (0, 0));
        assert_eq!((traffic.calls(), traffic.under_way()), (4, 1));
        assert_eq!((traffic.calls_of("p1.2"), traffic.under_way_of("p1.2")), (1, 1));
    }

    /// The word of a grant comes 20 ms late, when the lock was given back.
    #[test]
    fn a_delay_on_the_way_hides_no_second_holder() {
        use lock_core::{Locker, Memory};
        use lock_history::{Clock, Header, History, Rule, check};

        let locks = Locker::new(Memory::new());
        let mut header =
            Header::new("late", 1, locks.capabilities(), std::time::Duration::from_secs(30));
        header.sequential = false;
        let collector = Collector::new(Recorder::in_memory(Clock::raw(), header), 1);
        let (said, _hears) = mpsc::channel();
        let hear = |t: u64, kind: &str, who: &str, op: &str, more: &str| {
            let line = format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"{who}/t0","lock":"n00","op":"{op}","grant":"{who}"{more}}}"#
            );
            collector.hear(line.as_bytes(), &said).unwrap();
        };
        let (now, lasts) = (Clock::raw().now(), 20_000_000_000);
        let held = |fence: u64| format!(r#","fence":{fence},"valid_until":{}"#, now + lasts);
        for who in ["p1", "p2"] {
            hear(now, "invoke", who, "acquire", "");
        }
        hear(Clock::raw().now(), "ok", "p1", "acquire", &held(256));
        let granted = Clock::raw().now();
        hear(granted, "invoke", "p1", "release", "");
        hear(Clock::raw().now(), "ok", "p1", "release", "");
        hear(granted, "ok", "p2", "acquire", &held(512));
        let report = check(&History::new(collector.recorder().lines()).unwrap());
        assert!(report.broken.contains_key(&Rule::K1), "{report}");
    }

    #[test]
    fn no_lock_has_a_name_that_is_a_part_of_another_one() {
        let names: Vec<String> = (0..100).map(lock_name).collect();
        for (number, name) in names.iter().enumerate() {
            let like = names.iter().filter(|other| other.contains(name.as_str()));
            assert_eq!(like.count(), 1, "{number}");
        }
    }
}
