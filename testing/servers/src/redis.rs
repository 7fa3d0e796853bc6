//! Redis.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::clock::{Clock, Step};
use super::error::ServerError;
use super::handle::{Handle, wait_until_answering};
use super::ports::bus_port;
use super::process::Server;
use super::resp::{Reply, Session};
use lock_conformance::{KeepData, ServerProcess};

/// The bound on the first answer after a start, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(30);

/// The data that a restarted server has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// No data, except those of a [`SAVE`](Redis::command).
    #[default]
    None,
    /// The contents of its append-only file.
    Aof,
}

/// The options with which a Redis is started.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    persistence: Persistence,
    password: Option<String>,
    clock: bool,
    in_cluster: bool,
    pub(super) encryption: Option<TlsFiles>,
    name: Option<String>,
    pub(super) links: bool,
    args: Vec<String>,
}

/// The files of a server that encrypts, in PEM: its certificate, and the authority that it trusts.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// The authority that signs the certificates of the other servers.
    pub authority: PathBuf,
}

impl TlsFiles {
    /// Returns the settings of a server that encrypts on `port`, also towards other servers.
    pub(super) fn settings(&self, port: u16) -> [[String; 2]; 6] {
        let file = |path: &Path| path.to_string_lossy().into_owned();
        [
            ["tls-port".into(), port.to_string()],
            ["tls-cert-file".into(), file(&self.certificate)],
            ["tls-key-file".into(), file(&self.key)],
            ["tls-ca-cert-file".into(), file(&self.authority)],
            ["tls-auth-clients".into(), "no".into()],
            ["tls-replication".into(), "yes".into()],
        ]
    }
}

impl RedisOptions {
    /// Returns the options for no persistence, no password and the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the data that the server writes to disk.
    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Sets a password for the default user. [`Redis::connect`] and [`Redis::command`] send it.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Gives the server a [clock](Clock) of its own, which starts right, for [`Redis::step_clock`]
    /// and [`Redis::run_clock_too_fast_by`].
    #[must_use]
    pub fn clock(mut self) -> Self {
        self.clock = true;
        self
    }

    /// Encrypts a second port, [`Redis::tls_addr`], and the connections to other servers. Tests
    /// inspect the server on the first port.
    #[must_use]
    pub fn encrypted(mut self, files: TlsFiles) -> Self {
        self.encryption = Some(files);
        self
    }

    /// Sets a name for this host that is announced to clients and other servers instead of its
    /// address.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self.setting("replica-announce-ip", name)
    }

    /// Puts a proxy between the members of a cluster, for
    /// [`RedisCluster::cut_off`](super::RedisCluster::cut_off).
    #[must_use]
    pub fn links(mut self) -> Self {
        self.links = true;
        self
    }

    /// Returns the announced name or address.
    pub(super) fn host(&self) -> &str {
        self.name.as_deref().unwrap_or("127.0.0.1")
    }

    /// Returns the URL scheme of such servers for `kind`.
    pub(super) fn scheme(&self, kind: &str) -> String {
        format!("{}+{kind}", if self.encryption.is_some() { "rediss" } else { "redis" })
    }

    /// Makes the server a member of a future cluster, with a reserved port for its bus.
    #[must_use]
    pub fn cluster_member(mut self) -> Self {
        self.in_cluster = true;
        self
    }

    /// Adds a setting as written in `redis.conf`, for example `("maxmemory", "1mb")`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// Adds a second value to the last setting.
    #[must_use]
    pub fn and(mut self, value: &str) -> Self {
        self.args.push(value.to_owned());
        self
    }

    fn command_line(&self, port: u16, socket: &Path) -> Vec<String> {
        let aof = if self.persistence == Persistence::Aof { "yes" } else { "no" };
        let socket = socket.to_string_lossy();
        let tls_port = tls_port(port);
        let (port, bus_port) = (port.to_string(), bus_port(port).to_string());
        let settings = [
            ["--port", &port],
            ["--bind", "127.0.0.1"],
            ["--unixsocket", &socket],
            ["--save", ""],
            ["--appendonly", aof],
            // With the default, an answered write is not yet in the file while the disk is busy.
            ["--appendfsync", "no"],
            ["--enable-debug-command", "local"],
        ];
        let mut line: Vec<String> = settings.concat().into_iter().map(str::to_owned).collect();
        if let Some(password) = &self.password {
            line.extend(["--requirepass".into(), password.clone()]);
        }
        if self.in_cluster {
            let settings = ["--cluster-enabled", "yes", "--cluster-port"];
            line.extend(settings.map(str::to_owned));
            line.push(bus_port);
            if let Some(name) = &self.name {
                line.extend(["--cluster-announce-hostname".into(), name.clone()]);
                let preferred = ["--cluster-preferred-endpoint-type", "hostname"];
                line.extend(preferred.map(str::to_owned));
            }
        }
        if let Some(files) = &self.encryption {
            let settings = files.settings(tls_port).into_iter();
            line.extend(settings.flat_map(|[name, value]| [format!("--{name}"), value]));
            if self.in_cluster {
                line.extend(["--tls-cluster", "yes"].map(str::to_owned));
            }
        }
        line.extend(self.args.iter().cloned());
        line
    }
}

/// A Redis of one test, version 7 or newer, on a loopback port and a Unix socket, with its files in
/// a temporary directory. It ends with this handle, or with the test process.
#[derive(Debug)]
pub struct Redis {
    handle: Handle,
    options: RedisOptions,
    clock: Option<Clock>,
}

impl Redis {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// There is no `redis-server`, or it does not come up. The message says why.
    #[must_use]
    pub fn start(options: RedisOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// There is no `redis-server`, or it does not come up.
    pub fn try_start(options: RedisOptions) -> Result<Self, ServerError> {
        let clock = options.clock.then(Clock::new).transpose()?;
        let handle = Handle::launch("redis", |port, directory| {
            launch(&options, port, clock.as_ref(), directory)
        })?;
        Ok(Self { handle, options, clock })
    }

    /// Returns the encrypted address of a server that encrypts.
    #[must_use]
    pub fn tls_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, tls_port(self.addr().port())).into()
    }

    /// Returns the port on which clients and other servers reach it.
    pub(super) fn service_port(&self) -> u16 {
        let addr = if self.options.encryption.is_some() { self.tls_addr() } else { self.addr() };
        addr.port()
    }

    /// Returns the path of its Unix socket.
    #[must_use]
    pub fn unix_socket(&self) -> PathBuf {
        socket(self.directory())
    }

    /// Returns `redis://…`, with the password if there is one.
    ///
    /// The password goes in as it is: tests choose ones that need no escaping.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.options.password.as_ref();
        let user = password.map(|password| format!(":{password}@")).unwrap_or_default();
        self.url_at(&user, &self.addr())
    }

    /// Kills the process if it still runs, and starts another one on the same port.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self, keep_data: KeepData) {
        self.relaunch(|port, directory| {
            if keep_data == KeepData::No {
                empty(directory).expect("a directory of ours can be emptied");
            }
            launch(&self.options, port, self.clock.as_ref(), directory)
        });
    }

    /// Steps the server's clock, running or not.
    ///
    /// # Panics
    ///
    /// It was started without [a clock of its own](RedisOptions::clock).
    pub fn step_clock(&self, step: Step) {
        self.clock().step(step);
    }

    /// Makes the server's clock run too fast by this many thousandths, or too slowly if they are
    /// negative.
    ///
    /// # Panics
    ///
    /// It was started without [a clock of its own](RedisOptions::clock).
    pub fn run_clock_too_fast_by(&self, thousandths: i32) {
        self.clock().run_too_fast_by(thousandths);
    }

    /// Returns the number of bytes in its append-only file. Answered writes are included.
    ///
    /// # Panics
    ///
    /// It has none.
    #[must_use]
    pub fn aof_len(&self) -> u64 {
        fs::metadata(self.aof()).expect("a file of ours can be looked at").len()
    }

    /// Truncates the append-only file of a killed server to `len` bytes, as after a power failure
    /// before the rest was on the disk.
    ///
    /// # Panics
    ///
    /// The server runs, has no such file, or never wrote so much to it.
    pub fn truncate_aof(&self, len: u64) {
        assert!(self.server().has_ended(), "it would go on writing");
        let cut = || {
            let file = File::options().write(true).open(self.aof())?;
            assert!(len <= file.metadata()?.len(), "it never wrote so much");
            file.set_len(len)
        };
        cut().expect("a file of ours can be cut");
    }

    /// Returns the part of its append-only file that grows.
    fn aof(&self) -> PathBuf {
        let directory = self.directory().join("appendonlydir");
        let mut parts: Vec<_> = fs::read_dir(directory)
            .expect("it was started with Persistence::Aof")
            .map(|entry| entry.expect("a directory of ours can be read").path())
            .filter(|path| path.to_string_lossy().ends_with(".incr.aof"))
            .collect();
        assert_eq!(parts.len(), 1, "it is rewriting its file: {parts:?}");
        parts.remove(0)
    }

    fn clock(&self) -> &Clock {
        self.clock.as_ref().expect("it was started without a clock of its own")
    }

    /// Waits until `is_ready` returns true.
    pub(super) fn wait_until(
        &self,
        bound: Duration,
        is_ready: impl FnMut() -> bool,
    ) -> Result<(), ServerError> {
        self.server().wait_until(bound, is_ready)
    }

    /// Opens a connection that bypasses every proxy.
    ///
    /// # Errors
    ///
    /// The server is not there, or refuses.
    pub fn connect(&self) -> io::Result<Session> {
        connect(&self.options, self.addr())
    }

    /// Sends one command on a connection of its own, as an operator would without the clients'
    /// knowledge. Refusals of the server are [replies](Reply::Error).
    ///
    /// # Panics
    ///
    /// The server is not there, or does not answer within seconds.
    pub fn command(&self, words: &[&str]) -> Reply {
        self.connect()
            .and_then(|mut session| session.command(words))
            .unwrap_or_else(|error| panic!("{words:?} was not answered: {error}"))
    }
}

impl Deref for Redis {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl ServerProcess for Redis {
    fn stop(&self) {
        self.handle.stop();
    }
    fn cont(&self) {
        self.handle.cont();
    }
    fn kill(&self) {
        self.handle.kill();
    }
    fn restart(&self, keep_data: KeepData) {
        self.restart(keep_data);
    }
    /// Returns true if a restart loads the result of `SAVE`. It ignores that where an append-only
    /// file exists.
    fn can_save(&self) -> bool {
        self.options.persistence == Persistence::None
    }
    fn save(&self) {
        assert_eq!(
            self.command(&["SAVE"]),
            Reply::Simple("OK".into()),
            "the server saves its data"
        );
    }
}

fn launch(
    options: &RedisOptions,
    port: u16,
    clock: Option<&Clock>,
    directory: &Path,
) -> Result<Server, ServerError> {
    let args = options.command_line(port, &socket(directory));
    let server = Server::start_with("redis-server", "redis-server", args, directory, clock)?;
    let addr = (Ipv4Addr::LOCALHOST, port).into();
    wait_until_answering(server, READY, || {
        connect(options, addr).and_then(|mut session| process_id(&mut session)).ok()
    })
}

/// Returns the process id of the server once it answers PING, which it does not before its data are
/// loaded.
pub(super) fn process_id(session: &mut Session) -> io::Result<u32> {
    if session.command(&["PING"])?.text() != "PONG" {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    let info = session.command(&["INFO", "server"])?.text();
    let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
    line.and_then(|id| id.trim().parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn connect(options: &RedisOptions, addr: SocketAddr) -> io::Result<Session> {
    let mut session = Session::connect(addr)?;
    if let Some(password) = &options.password {
        let reply = session.command(&["AUTH", password])?;
        if let Reply::Error(error) = reply {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
        }
    }
    Ok(session)
}

/// Returns the reserved port for encrypted connections.
pub(super) fn tls_port(port: u16) -> u16 {
    port + 2
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

/// Deletes the data, except what a cluster member knows of itself and the others.
fn empty(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != "nodes.conf" {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
