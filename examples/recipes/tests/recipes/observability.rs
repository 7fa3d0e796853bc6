//! Checks of docs/observability.md. Its code is in the programs, and its table lists the metrics of
//! the exporter. The dashboard queries no other metric.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lock_any::clock::{Moment, sleep, wall};
use lock_any::{Lock, LockName, Locker, Memory};
use serde_json::Value;

use crate::{locks_in, program};

#[path = "../../src/bin/metrics.rs"]
#[expect(dead_code, reason = "its main function is not called")]
mod metrics_program;

const PAGE: &str = include_str!("../../../../docs/observability.md");
const DASHBOARD: &str = include_str!("../../../../docs/observability/dashboard.json");

/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["instance", "job"];

/// The labels of a metric with the values that were seen.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// One answer of the exporter.
#[derive(Default)]
struct Scrape {
    types: BTreeMap<String, String>,
    labels: BTreeMap<String, Labels>,
}

impl Scrape {
    fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# TYPE ") {
                let (name, kind) = line.split_once(' ').unwrap();
                scrape.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, labels) = line.split_once('{').expect(line);
                let (labels, _) = labels.split_once('}').expect(line);
                let seen = scrape.labels.entry(name.to_owned()).or_default();
                for (label, value) in matchers(labels) {
                    seen.entry(label.to_owned()).or_default().insert(value.to_owned());
                }
            }
        }
        scrape
    }
}

/// Splits `a="b",c=~"d"` into pairs. No value here has a comma.
fn matchers(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',').map(|pair| {
        let (label, value) = pair.split_once('=').expect(pair);
        (label, value.trim_start_matches('~').trim_matches('"'))
    })
}

/// Makes metrics of each kind, served by the program's own exporter, and scrapes them.
async fn scrape() -> Scrape {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = free.local_addr().unwrap();
    drop(free);
    metrics_program::install(address).unwrap();

    let memory = Memory::new();
    let locks = Locker::builder(memory.clone()).metrics_class(metrics_program::class);
    let locks = locks.local_handovers(1).build();
    let lock = locks.lock("orders/42").unwrap();
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let lock: Lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    let text = poll(address, |scraped| {
        scraped.contains(r#"lock_waiters{backend="memory",class="orders"} 1"#)
    });
    text.await;
    guard.release().await.unwrap(); // to the waiter
    let guard = waiting.await.unwrap();
    guard.verify().await.unwrap();
    memory.evict(&LockName::new("orders/42").unwrap());
    guard.verify().await.unwrap_err(); // it is lost
    lock.acquire().await.unwrap().release().await.unwrap();
    // As lock-redis does at each answer.
    lock_any::metrics::record_server_clock("redis", Moment::now(), wall());
    let lost = r#"lock_losses_total{backend="memory",class="orders",cause="not_held"} 1"#;
    Scrape::parse(&poll(address, |scraped| scraped.contains(lost)).await)
}

/// Scrapes until the answer is as expected.
async fn poll(address: SocketAddr, is_expected: impl Fn(&str) -> bool) -> String {
    let patience = Moment::now() + Duration::from_secs(20);
    let mut last = String::new();
    loop {
        if let Ok(answer) = reqwest::get(format!("http://{address}/metrics")).await {
            last = answer.text().await.unwrap();
            if is_expected(&last) {
                return last;
            }
        }
        assert!(Moment::now() < patience, "not served:\n{last}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the texts in backticks.
fn quoted(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Checks that each metric of the page's table is served, of its type and with its labels, and that
/// no other one is.
fn check_page(scrape: &Scrape) {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `lock_"));
    let mut documented = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let (name, kind) = (cells[0].trim_matches('`'), cells[1]);
        documented.insert(name.to_owned());
        assert_eq!(scrape.types.get(name).map(String::as_str), Some(kind), "the type of {name}");
        let series = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
        let served: BTreeSet<String> = scrape.labels[&series].keys().cloned().collect();
        let mut expected = quoted(cells[2]);
        expected.insert("backend".to_owned());
        if name != "lock_server_clock_offset_seconds" {
            expected.insert("class".to_owned());
        }
        assert_eq!(served, expected, "the labels of {name}");
        if let [label] = &quoted(cells[2]).into_iter().collect::<Vec<_>>()[..] {
            // Histograms have only the values that occurred here.
            let values = &scrape.labels[&series][label];
            let explained = kind == "histogram" || values.is_subset(&quoted(cells[3]));
            assert!(explained, "{name}: {label} has the values {values:?}");
        }
    }
    let served = scrape.types.keys().filter(|name| name.starts_with("lock_"));
    assert_eq!(served.cloned().collect::<BTreeSet<_>>(), documented);
}

/// Returns the queries of the dashboard with their legends.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    targets.map(|target| (text(&target["expr"]), text(&target["legendFormat"]))).collect()
}

/// Checks that a query asks for metrics, labels and values that are served.
fn check_query(query: &str, legend: &str, scrape: &Scrape) -> String {
    let (_, rest) = query.split_once("lock_").expect(query);
    let others = rest.replace("clock_", "");
    assert!(!others.contains("lock_"), "one metric for each query: {query}");
    let (name, rest) = rest.split_once('{').expect(query);
    let name = format!("lock_{name}");
    let labels = scrape.labels.get(&name).unwrap_or_else(|| panic!("no {name}, of {query}"));
    let (selected, _) = rest.split_once('}').expect(query);
    for (label, value) in matchers(selected) {
        let values = labels.get(label).unwrap_or_else(|| panic!("no {label} of {name}"));
        assert!(value.starts_with('$') || values.contains(value), "no {label}={value} of {name}");
    }
    let by = query.split_once("by (").and_then(|(_, by)| by.split_once(')'));
    let grouped: Vec<&str> = by.map_or(Vec::new(), |(by, _)| by.split(", ").collect());
    for label in &grouped {
        assert!(labels.contains_key(*label), "no {label} of {name}, in {query}");
    }
    for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
        let is_there = match grouped.is_empty() {
            true => labels.contains_key(label) || ADDED.contains(&label),
            false => grouped.contains(&label),
        };
        assert!(is_there, "the legend {legend} has a label that {query} drops");
    }
    name
}

fn check_dashboard(scrape: &Scrape) {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let queries = queries(&dashboard);
    let shown: BTreeSet<String> =
        queries.iter().map(|(query, legend)| check_query(query, legend, scrape)).collect();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            let query = variable["query"].as_str().unwrap();
            let (name, label) = query.trim_start_matches("label_values(").split_once(", ").unwrap();
            assert!(scrape.labels[name].contains_key(label.trim_end_matches(')')), "{query}");
        }
    }
    for name in scrape.types.keys().filter(|name| name.starts_with("lock_")) {
        let is_shown = shown.iter().any(|it| it.trim_end_matches("_bucket") == name);
        assert!(is_shown, "no panel shows {name}");
    }
}

#[tokio::test]
async fn the_page_and_the_dashboard_name_what_the_exporter_serves() {
    let scrape = scrape().await;
    check_page(&scrape);
    check_dashboard(&scrape);
}

#[test]
fn the_spans_of_a_lock_are_exported_as_children_of_the_callers() {
    let directory = tempfile::tempdir().unwrap();
    let mut traces = program(env!("CARGO_BIN_EXE_traces"), &locks_in(directory.path()));
    let output = traces.env("RUST_LOG", "info,lock_core=debug").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut spans = BTreeMap::new();
    for span in text.split("Span #").skip(1) {
        // The scope comes first, which has a name as well.
        let (_, span) = span.split_once("\n\n").unwrap();
        let value = |key: &str| {
            let line = span.lines().find_map(|line| line.trim().strip_prefix(key));
            line.map(|value| value.trim_start_matches([' ', ':']).to_owned())
        };
        spans.insert(value("Name").unwrap(), (value("SpanId"), value("ParentSpanId"), span));
    }
    for name in ["acquire", "renew", "release"] {
        assert!(spans.contains_key(name), "no span {name}:\n{text}");
    }
    assert_eq!(spans["acquire"].1, spans["job"].0, "{text}");
    for attribute in ["lock.name", "lock.backend", "lock.outcome", "lock.token: I64("] {
        assert!(spans["acquire"].2.contains(attribute), "no {attribute}:\n{text}");
    }
}

#[test]
fn the_code_on_the_page_is_that_of_the_programs() {
    let programs =
        [include_str!("../../src/bin/metrics.rs"), include_str!("../../src/bin/traces.rs")];
    let code: Vec<&str> =
        PAGE.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(code.len() >= 3);
    for block in code {
        assert!(programs.iter().any(|program| program.contains(block)), "no program has\n{block}");
    }
}
