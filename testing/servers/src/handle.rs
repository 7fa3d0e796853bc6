//! The operations that the handles of all servers share.

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

/// The ports of each server: its own, the one of a cluster's bus, and the encrypted one.
const PORTS: usize = 3;

/// The bound on the answer to one command.
const BOUND: Duration = Duration::from_secs(5);

/// A server of one test on a loopback port, with its files in a temporary directory.
/// [`Redis`](super::Redis), [`Memcached`](super::Memcached) and [`ZooKeeper`](super::ZooKeeper)
/// share these operations. The server ends with this handle, or with the test process.
#[derive(Debug)]
pub struct Handle {
    // Dropped before its directory.
    server: Mutex<Server>,
    scheme: &'static str,
    port: u16,
    /// The ports of an ensemble are kept for all of its members together.
    _ports: Arc<Ports>,
    directory: TempDir,
}

impl Handle {
    /// Wraps a server that was started on one of the ports.
    pub(super) fn new(
        server: Server,
        scheme: &'static str,
        port: u16,
        ports: Arc<Ports>,
        directory: TempDir,
    ) -> Self {
        Self { server: Mutex::new(server), scheme, port, _ports: ports, directory }
    }

    /// Starts a server with `launch`, which gets the first of [`PORTS`] ports that it may use.
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

    /// Kills the server if it still runs, and replaces it with the one that `launch` starts.
    pub(super) fn relaunch(&self, launch: impl FnOnce(u16, &Path) -> Result<Server, ServerError>) {
        let mut server = self.server();
        server.kill();
        *server = launch(self.port, self.directory()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Starts a proxy to the server, and returns it with its URL, without credentials.
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

    /// Returns the directory with the server's files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the process id, which changes with each restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server().pid()
    }

    /// Returns the last lines that the server has printed since its start.
    #[must_use]
    pub fn output(&self) -> String {
        self.server().output()
    }

    /// Stops the process with SIGSTOP and returns when it has stopped. Its connections stay open.
    ///
    /// # Panics
    ///
    /// The server is not running.
    pub fn stop(&self) {
        self.server().stop();
    }

    /// Resumes the stopped process.
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

/// Waits until this server answers on its port. `answering_pid` returns the process id of the
/// server that answers, once there is an answer.
pub(super) fn wait_until_answering(
    server: Server,
    bound: Duration,
    mut answering_pid: impl FnMut() -> Option<u32>,
) -> Result<Server, ServerError> {
    let mut answering = None;
    server.wait_until(bound, || {
        answering = answering_pid();
        answering.is_some()
    })?;
    match answering == Some(server.pid()) {
        true => Ok(server),
        false => Err(server.failure("does not answer on its port: another process does")),
    }
}

/// Creates a temporary directory.
pub(super) fn directory(name: &str) -> Result<TempDir, ServerError> {
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir()
        .map_err(|error| ServerError::new(format!("no temporary directory: {error}")))
}

/// Opens a connection on which each call is bounded.
pub(super) fn connect(addr: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&addr, BOUND)?;
    stream.set_read_timeout(Some(BOUND))?;
    stream.set_write_timeout(Some(BOUND))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}
