//! The spans and events that core emits are those of the table on the page of `lock_core`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use lock_core::backend::FaultKind;
use lock_core::clock::sleep;
use lock_core::faults::{Call, FaultInjector, Injection, Verb};
use lock_core::{ErrorKind, Locker, Memory, OwnerId, RenewalPolicy};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::support::secs;

const PAGE: &str = include_str!("../../src/lib.rs");

/// Spans and events by name: kind, level, and fields.
type Table = BTreeMap<String, (&'static str, Level, BTreeSet<String>)>;

/// The values of fields by the name of the span or event.
type Values = BTreeMap<String, Vec<BTreeMap<String, String>>>;

#[derive(Clone, Default)]
struct Traces {
    table: Arc<Mutex<Table>>,
    values: Arc<Mutex<Values>>,
    open: Arc<Mutex<BTreeMap<u64, OpenSpan>>>,
    spans: Arc<AtomicU64>,
}

struct OpenSpan {
    name: &'static str,
    values: BTreeMap<String, String>,
    handles: usize,
}

#[derive(Default)]
struct FieldValues(BTreeMap<String, String>);

impl Visit for FieldValues {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        write!(text, "{value:?}").unwrap();
        self.0.insert(field.name().to_owned(), text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Traces {
    /// Adds a row, with all fields that the call site declares.
    fn add(&self, name: &str, kind: &'static str, metadata: &Metadata<'_>) {
        let fields = metadata.fields().iter().map(|field| field.name().to_owned());
        let row = (kind, *metadata.level(), fields.filter(|name| name != "message").collect());
        let before = self.table.lock().unwrap().insert(name.to_owned(), row.clone());
        assert!(before.is_none_or(|before| before == row), "{name} has several forms");
    }

    fn values(&self, name: &str) -> Vec<BTreeMap<String, String>> {
        self.values.lock().unwrap().get(name).cloned().unwrap_or_default()
    }

    fn note(&self, name: &str, values: BTreeMap<String, String>) {
        self.values.lock().unwrap().entry(name.to_owned()).or_default().push(values);
    }
}

impl Subscriber for Traces {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lock_core")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = FieldValues::default();
        span.record(&mut fields);
        self.add(span.metadata().name(), "span", span.metadata());
        let id = self.spans.fetch_add(1, Ordering::Relaxed) + 1;
        let open = OpenSpan { name: span.metadata().name(), values: fields.0, handles: 1 };
        self.open.lock().unwrap().insert(id, open);
        Id::from_u64(id)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut fields = FieldValues::default();
        values.record(&mut fields);
        if let Some(open) = self.open.lock().unwrap().get_mut(&span.into_u64()) {
            open.values.extend(fields.0);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = FieldValues::default();
        event.record(&mut fields);
        let name = fields.0.remove("message").unwrap();
        self.add(&name, "event", event.metadata());
        self.note(&name, fields.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(span) = self.open.lock().unwrap().get_mut(&id.into_u64()) {
            span.handles += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut open = self.open.lock().unwrap();
        let Some(span) = open.get_mut(&id.into_u64()) else { return false };
        span.handles -= 1;
        if span.handles > 0 {
            return false;
        }
        if let Some(span) = open.remove(&id.into_u64()) {
            drop(open);
            self.note(span.name, span.values);
        }
        true
    }
}

/// Returns the texts in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// Returns the table of the page.
fn documented() -> Table {
    let (_, section) = PAGE.split_once("//! # Tracing").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let rows = rows.take_while(|row| !row.is_empty());
    let mut table = Table::new();
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [names, kind, fields] = cells[..] else { panic!("{row}") };
        let (kind, level) = kind.split_once(", ").unwrap();
        let kind = if kind == "span" { "span" } else { "event" };
        let level: Level = level.parse().unwrap();
        for name in quoted(&format!("`{names}")) {
            let before = table.insert(name.clone(), (kind, level, quoted(fields).collect()));
            assert!(before.is_none(), "{name} stands there twice");
        }
    }
    table
}

/// Makes each kind of span and event. Returns the owner ids, which no trace may show.
async fn all_kinds() -> Vec<OwnerId> {
    let mut owners = Vec::new();
    let memory = Memory::new();
    let refused = Arc::new(Mutex::new(None));
    let refuse = |verb: Option<Verb>| *refused.lock().unwrap() = verb;
    let asked = Arc::clone(&refused);
    let script = move |call: &Call<'_>| match *asked.lock().unwrap() == Some(call.verb) {
        true => Injection::Refuse(FaultKind::Unavailable),
        false => Injection::None,
    };
    let backend = FaultInjector::new(Arc::new(memory.clone()), script);
    let locks = Locker::builder(backend).local_handovers(1).build();
    let lock = locks.lock("n").unwrap().ttl(secs(30));
    let mut acquire = async || {
        let guard = lock.acquire().await.unwrap();
        owners.push(*guard.owner());
        guard
    };

    // A long wait, which ends in an outage.
    let other = Locker::new(memory.clone()).lock("n").unwrap().acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let (waited, ()) = tokio::join!(lock.try_acquire_for(secs(60)), async {
        sleep(secs(12)).await;
        refuse(Some(Verb::TryAcquire));
    });
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    refuse(None);
    other.release().await.unwrap();
    sleep(secs(1)).await;

    acquire().await.release().await.unwrap();

    // Renewals that fail until the lock is lost.
    let guard = acquire().await;
    refuse(Some(Verb::Renew));
    guard.lost().await;
    refuse(None);
    drop(guard);
    sleep(secs(1)).await;

    // A release that is never confirmed.
    let guard = acquire().await;
    refuse(Some(Verb::Release));
    drop(guard);
    sleep(secs(120)).await;
    refuse(None);

    // A lock that was left to a waiter that went away, and had been lost by then.
    let guard = acquire().await;
    let mut successor = Box::pin(lock.acquire());
    assert!(successor.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    memory.evict(guard.name());
    guard.release().await.unwrap();
    drop(successor);
    sleep(secs(1)).await;
    owners
}

fn listen(traces: &Traces) -> DefaultGuard {
    // Everywhere: a call site that is first reached in a thread without a subscriber counts as
    // disabled, for all threads.
    let _ = tracing::subscriber::set_global_default(Traces::default());
    tracing::subscriber::set_default(traces.clone())
}

#[tokio::test(start_paused = true)]
async fn the_table_of_the_page_lists_all_spans_and_events_with_their_fields() {
    let traces = Traces::default();
    let _listening = listen(&traces);
    let owners = all_kinds().await;
    let (emitted, documented) = (traces.table.lock().unwrap().clone(), documented());
    assert!(documented.len() > 10, "the table was not found");
    for name in emitted.keys().chain(documented.keys()) {
        assert_eq!(emitted.get(name), documented.get(name), "{name}: emitted, and documented");
    }
    let all = format!("{:?}", traces.values.lock().unwrap());
    assert!(owners.len() >= 4 && owners.iter().all(|owner| all.contains(&owner.short())));
    assert!(owners.iter().all(|owner| !all.contains(&owner.expose())), "an owner id is shown");
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_a_warning_with_its_cause_and_the_lease_that_was_left() {
    let traces = Traces::default();
    let _listening = listen(&traces);
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let lock = locks.lock("n").unwrap().ttl(secs(30));
    let guard = lock.acquire().await.unwrap();
    sleep(secs(5)).await;
    memory.evict(guard.name());
    guard.verify().await.unwrap_err();
    let expires = lock.renewal(RenewalPolicy::off());
    expires.acquire().await.unwrap().lost().await;
    let lost = traces.values("lost");
    let [evicted, expired] = &lost[..] else { panic!("{lost:?}") };
    let left = |lost: &BTreeMap<String, String>| lost["lock.lease_left"].parse::<f64>().unwrap();
    assert_eq!((&*evicted["lock.cause"], &*expired["lock.cause"]), ("not_held", "expired"));
    assert!((24.0..25.0).contains(&left(evicted)), "{evicted:?}");
    assert!(left(expired) < 0.001, "{expired:?}");
}

#[tokio::test(start_paused = true)]
async fn renewals_count_the_claims_that_failed() {
    let traces = Traces::default();
    let _listening = listen(&traces);
    let memory = Memory::new();
    let is_down = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_down);
    let backend = FaultInjector::new(Arc::new(memory.clone()), move |call| {
        match call.verb == Verb::Renew && asked.load(Ordering::Relaxed) {
            true => Injection::Refuse(FaultKind::Unavailable),
            false => Injection::None,
        }
    });
    let locks = Locker::new(backend);
    let lock = |name| locks.lock(name).unwrap().ttl(secs(30));
    let kept = lock("kept").acquire().await.unwrap();
    let evicted = lock("evicted").acquire().await.unwrap();
    sleep(secs(11)).await;
    memory.evict(evicted.name());
    evicted.lost().await;
    is_down.store(true, Ordering::Relaxed);
    sleep(secs(11)).await;
    let mut seen: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for span in traces.values("renew") {
        let failed = span["lock.failed"].clone();
        *seen.entry((failed, span.contains_key("otel.status_code"))).or_default() += 1;
    }
    let seen: Vec<_> = seen.into_keys().collect();
    assert_eq!(seen, [("0".to_owned(), false), ("1".to_owned(), true)]);
    drop(kept);
}

#[tokio::test(start_paused = true)]
async fn outcomes_have_the_names_that_the_metrics_have() {
    let traces = Traces::default();
    let _listening = listen(&traces);
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let lock = locks.lock("n").unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    memory.evict(guard.name());
    guard.release().await.unwrap_err();
    let refuses = FaultInjector::new(Arc::new(memory), |_| Injection::Refuse(FaultKind::Denied));
    Locker::new(refuses).lock("n").unwrap().acquire().await.unwrap_err();
    let outcomes = |name| -> Vec<String> {
        traces.values(name).iter().map(|span| span["lock.outcome"].clone()).collect()
    };
    assert_eq!(outcomes("acquire"), ["acquired", "contended", "failed"]);
    assert_eq!(outcomes("release"), ["not_held"]);
    let failed = &traces.values("acquire")[2];
    assert_eq!((&*failed["error.type"], &*failed["otel.status_code"]), ("denied", "ERROR"));
}
