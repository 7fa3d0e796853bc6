//! A web service in which one request at a time bills an order, in all of its instances.
//!
//! `LOCKS=redis://localhost BILLING=http://localhost:9000 cargo run --bin service`

use std::env;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Router, routing};
use lock_any::{FencingToken, Label, Locker, RunError};
use tokio::net::TcpListener;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Clone)]
struct App {
    locks: Locker,
    http: reqwest::Client,
    billing: String,
}

async fn bill(State(app): State<App>, Path(order): Path<u64>) -> Result<StatusCode, StatusCode> {
    let lock = app.locks.lock(format!("orders/{order}")).map_err(unavailable)?;
    let billed = lock.try_run(async |guard| app.send_bill(order, guard.require_token()?).await);
    match billed.await {
        Ok(Some(())) => Ok(StatusCode::OK),
        Ok(None) => Err(StatusCode::CONFLICT), // another request bills this order
        Err(RunError::Release { value: (), error }) => {
            eprintln!("order {order} is billed: {error}");
            Ok(StatusCode::OK)
        }
        Err(error) => Err(unavailable(error)),
    }
}

impl App {
    /// Sends the bill. The billing service refuses a token lower than one that it has seen.
    async fn send_bill(&self, order: u64, token: FencingToken) -> anyhow::Result<()> {
        let url = format!("{}/bills/{order}?fence={}", self.billing, token.as_i64());
        self.http.put(url).send().await?.error_for_status()?;
        Ok(())
    }
}

/// Logs an error, and returns the answer to its request.
fn unavailable(error: impl std::fmt::Display) -> StatusCode {
    eprintln!("{error:#}");
    StatusCode::SERVICE_UNAVAILABLE
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let label = Label::host_and_pid(); // `lockctl inspect` shows it
    let locks = lock_any::connect_with(&env::var("LOCKS")?, |locks| locks.label(label)).await?;
    // A lock is renewed for as long as its work runs. So the work needs a time limit of its own.
    let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
    let app = App { locks: locks.clone(), http, billing: env::var("BILLING")? };
    let router = Router::new().route("/orders/{order}/bill", routing::post(bill)).with_state(app);
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".into());
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            Ok(()) = ctrl_c() => {}
        }
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?; // ends the last request
    locks.close().await?; // waits for the releases in the background
    Ok(())
}
