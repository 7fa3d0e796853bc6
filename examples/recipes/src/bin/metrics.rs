//! A worker that serves its metrics to Prometheus.
//!
//! `LOCKS=redis://localhost METRICS=127.0.0.1:9000 cargo run --bin metrics`

use std::env;
use std::net::SocketAddr;
use std::time::Duration;

use lock_any::{LockName, Locker};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// Holds and waits last from milliseconds to minutes.
const BUCKETS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0];

/// Serves the metrics. Without buckets, the exporter makes summaries, which cannot be added up.
pub fn install(address: SocketAddr) -> Result<(), BuildError> {
    let builder = PrometheusBuilder::new().with_http_listener(address);
    builder.set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)?.install()
}

/// Returns the label `class` of a lock: `orders` for `orders/42`, never the name itself.
pub fn class(name: &LockName) -> &'static str {
    match name.as_str().split_once('/') {
        Some(("orders", _)) => "orders",
        Some(("reports", _)) => "reports",
        _ => "other",
    }
}

async fn work(locks: &Locker) -> Result<(), lock_any::Error> {
    let guard = locks.lock("reports/nightly")?.acquire().await?;
    lock_any::clock::sleep(Duration::from_millis(100)).await; // stands for the report
    guard.release().await
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // Before the first lock: it keeps the recorder that it finds.
    install(env::var("METRICS")?.parse()?)?;
    let url = env::var("LOCKS")?;
    let locks = lock_any::connect_with(&url, |locks| locks.metrics_class(class)).await?;
    loop {
        work(&locks).await?;
        lock_any::clock::sleep(Duration::from_secs(1)).await;
    }
}
