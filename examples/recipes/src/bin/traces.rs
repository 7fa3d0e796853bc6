//! A job that exports the spans and events of its locks by OpenTelemetry.
//!
//! `LOCKS=redis://localhost RUST_LOG=info,lock_core=debug cargo run --bin traces`

use std::env;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Exports spans to stdout. In production, the exporter is that of `opentelemetry-otlp`.
fn install() -> SdkTracerProvider {
    let exporter = opentelemetry_stdout::SpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("job"));
    // The spans of the locks are at the level DEBUG.
    tracing_subscriber::registry().with(EnvFilter::from_default_env()).with(layer).init();
    provider
}

#[tracing::instrument(skip_all)]
async fn job(locks: &lock_any::Locker) -> Result<(), lock_any::Error> {
    let guard = locks.lock("reports/nightly")?.acquire().await?; // a child of the span `job`
    guard.verify().await?;
    guard.release().await
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let provider = install();
    let locks = lock_any::connect(&env::var("LOCKS")?).await?;
    job(&locks).await?;
    locks.close().await?;
    provider.shutdown()?;
    Ok(())
}
