//! The link to a server: one connection for all verbs, replaced when it fails.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::sleep;
use lock_core::dial::{Dialer, Epoch};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tracing::instrument::WithSubscriber;

use super::pipeline::Connection;
use crate::config::Credentials;
use crate::fault;

/// Limit of the time to connect, authenticate and check the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Keepalive of an idle connection: the time to the first probe, between probes, and their number.
/// Without it, only the next request detects a peer that vanished.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;

/// The link to one server.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: Arc<Endpoint>,
    dialer: Dialer<Connection>,
}

/// The address of a server, and the credentials for it.
#[derive(Debug)]
pub(crate) struct Endpoint {
    address: String,
    credentials: Option<Credentials>,
    /// Its settings have been checked.
    is_known: AtomicBool,
}

impl Endpoint {
    pub(crate) fn new(address: &str, credentials: Option<&Credentials>) -> Self {
        let (address, credentials) = (address.to_owned(), credentials.cloned());
        Self { address, credentials, is_known: AtomicBool::new(false) }
    }
}

impl Link {
    pub(crate) fn to(endpoint: Endpoint) -> Self {
        Self { endpoint: Arc::new(endpoint), dialer: Dialer::default() }
    }

    pub(crate) fn address(&self) -> &str {
        &self.endpoint.address
    }

    /// Returns the connection, or connects, with one attempt that all verbs share. A server on
    /// which locks cannot be kept apart is refused.
    pub(crate) async fn connection(&self) -> Result<Connection, Fault> {
        let dial = || connect(Arc::clone(&self.endpoint)).with_current_subscriber();
        self.dialer.get(Connection::is_open, dial).await
    }

    /// Returns the time for which verbs use this connection.
    pub(crate) fn epoch_of(&self, connection: &Connection) -> Epoch {
        self.dialer.epoch_of(|current| current.id() == connection.id())
    }
}

async fn connect(endpoint: Arc<Endpoint>) -> Result<Connection, Fault> {
    let connecting = async {
        // A server that demands no login takes credentials for an item, and stores them where every
        // client can read them. So they are for a server that refuses a client without them.
        let connection = match (open(&endpoint, None).await, &endpoint.credentials) {
            (Err(fault), Some(credentials)) if fault.kind() == FaultKind::Denied => {
                open(&endpoint, Some(credentials)).await?
            }
            (opened, _) => opened?,
        };
        if !endpoint.is_known.load(Ordering::Relaxed) {
            connection.warn_of_eviction().await?;
            endpoint.is_known.store(true, Ordering::Relaxed);
        }
        Ok(connection)
    };
    tokio::select! {
        biased;
        connection = connecting => connection,
        () = sleep(CONNECT_TIMEOUT) => Err(fault::no_connection(&endpoint.address, "no answer")),
    }
}

async fn open(endpoint: &Endpoint, credentials: Option<&Credentials>) -> Result<Connection, Fault> {
    let unreachable =
        |error: io::Error| fault::no_connection(&endpoint.address, &error.to_string());
    let stream = TcpStream::connect(&endpoint.address).await.map_err(unreachable)?;
    set_up(&stream).map_err(unreachable)?;
    let connection = Connection::over(stream, &endpoint.address);
    connection.authenticate(credentials).await?;
    Ok(connection)
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}
