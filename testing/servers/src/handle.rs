//! What the handles of all servers can do.

use std::io::BufReader;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use tempfile::TempDir;

use super::error::ServerError;
use super::ports::Ports;
use super::process::Server;
use lock_conformance::proxy::Proxy;

/// Of every server: its own port, that of a cluster's bus, and the one on which it encrypts.
const PORTS: usize = 3;

/// How long a server may take to answer one command.
const BOUND: Duration = Duration::from_secs(5);

/// A server of a test's own on a loopback port, with its files in a temporary directory: what every
/// [`Redis`](super::Redis), [`Memcached`](super::Memcached) and [`ZooKeeper`](super::ZooKeeper) can do.
/// It ends with this handle, or with the test process.
#[derive(Debug)]
pub struct Handle {
    // Dropped before its directory.
    server: Mutex<Server>,
    scheme: &'static str,
    port: u16,
    /// An ensemble's are kept for all of its members together.
    _ports: Arc<Ports>,
    directory: TempDir,
}

impl Handle {
    /// A server that was started on one of the ports.
    pub(super) fn new(
        server: Server,
        scheme: &'static str,
        port: u16,
        ports: Arc<Ports>,
        directory: TempDir,
    ) -> Self {
        Self { server: Mutex::new(server), scheme, port, _ports: ports, directory }
    }

    /// `launch` starts a server on the port, and may use [`PORTS`] from there.
    pub(super) fn launch(
        scheme: &'static str,
        launch: impl FnOnce(u16, &Path) -> Result<Server, ServerError>,
    ) -> Result<Self, ServerError> {
        let directory = directory(scheme)?;
        let ports = Arc::new(Ports::in_a_row(PORTS)?);
        let port = ports.first();
        let server = launch(port, directory.path())?;
        Ok(Self::new(server, scheme, port, ports, directory))
    }

    /// Kills the server if it still runs, and puts the one that `launch` starts in its place.
    pub(super) fn relaunch(&self, launch: impl FnOnce(u16, &Path) -> Result<Server, ServerError>) {
        let mut server = self.server();
        server.kill();
        *server = launch(self.port, self.directory()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Where clients reach it.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A way to it that can be disturbed, and the URL of that, without credentials.
    ///
    /// # Panics
    ///
    /// The system has no more ports.
    #[must_use]
    pub fn proxied(&self) -> (Proxy, String) {
        let proxy = Proxy::start(self.addr()).expect("a proxy can be started");
        let url = self.url_at("", &proxy.addr());
        (proxy, url)
    }

    pub(super) fn url_at(&self, user: &str, place: &dyn fmt::Display) -> String {
        format!("{}://{user}{place}", self.scheme)
    }

    /// The directory with its files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process id; another one after each restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server().pid()
    }

    /// The last lines that the server has printed since its start.
    #[must_use]
    pub fn output(&self) -> String {
        self.server().output()
    }

    /// Stops the process with SIGSTOP; returns when it has stopped. Its connections stay open.
    ///
    /// # Panics
    ///
    /// The server is not running.
    pub fn stop(&self) {
        self.server().stop();
    }

    /// Lets the stopped process go on.
    ///
    /// # Panics
    ///
    /// The server is not running.
    pub fn cont(&self) {
        self.server().cont();
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub fn kill(&self) {
        self.server().kill();
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until `who_answers` on its port is this server. It tells the process id, once there is an answer.
pub(super) fn wait_until_answering(
    server: Server,
    bound: Duration,
    mut who_answers: impl FnMut() -> Option<u32>,
) -> Result<Server, ServerError> {
    let mut answering = None;
    server.wait_until(bound, || {
        answering = who_answers();
        answering.is_some()
    })?;
    match answering == Some(server.pid()) {
        true => Ok(server),
        false => Err(server.failure("is not who answers on its port")),
    }
}

/// A temporary one.
pub(super) fn directory(name: &str) -> Result<TempDir, ServerError> {
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir()
        .map_err(|error| ServerError::new(format!("no temporary directory: {error}")))
}

/// A connection on which each call is bounded.
pub(super) fn connect(addr: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&addr, BOUND)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}
