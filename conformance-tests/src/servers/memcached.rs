//! Memcached.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::process::{Server, ServerError, free_port};
use super::redis::KeepData;
use crate::harness::ServerProcess;

/// How long a server may take to answer after its start, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(30);

/// How often another port is tried.
const ATTEMPTS: usize = 10;

/// How long a server may take to answer one command.
const BOUND: Duration = Duration::from_secs(5);

/// How a memcached is started.
#[derive(Clone, Debug, Default)]
pub struct MemcachedOptions {
    credentials: Option<(String, String)>,
    args: Vec<String>,
}

impl MemcachedOptions {
    /// Its own defaults, and `-M`: at its memory limit it refuses instead of evicting.
    #[must_use]
    pub fn new() -> Self {
        Self { credentials: None, args: vec!["-M".into()] }
    }

    /// At its memory limit it throws away what was used least recently, as it does by default.
    #[must_use]
    pub fn evicting(mut self) -> Self {
        self.args.retain(|arg| arg != "-M");
        self
    }

    /// Adds an argument of its command line, for example `-C`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Has it ask for a user and a password, in its text protocol. [`Memcached::connect`] gives them.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }
}

/// A memcached of a test's own, version 1.6 or newer, on a loopback port. It ends with this handle, or
/// with the test process. It keeps nothing on disk, so each restart is one without its data.
#[derive(Debug)]
pub struct Memcached {
    // Dropped before its directory.
    server: Mutex<Server>,
    options: MemcachedOptions,
    port: u16,
    directory: TempDir,
}

impl Memcached {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// There is no `memcached`, or it does not come up. The message says why.
    #[must_use]
    pub fn start(options: MemcachedOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// There is no `memcached`, or it does not come up.
    pub fn try_start(options: MemcachedOptions) -> Result<Self, ServerError> {
        let directory = tempfile::Builder::new()
            .prefix("memcached-")
            .tempdir()
            .map_err(|error| ServerError::new(format!("no temporary directory: {error}")))?;
        let mut clashes = 0;
        loop {
            let port = free_port();
            match launch(&options, port, directory.path()) {
                Ok(server) => {
                    return Ok(Self { server: Mutex::new(server), options, port, directory });
                }
                Err(Failed::PortTaken(_)) if clashes < ATTEMPTS => clashes += 1,
                Err(Failed::PortTaken(error) | Failed::Otherwise(error)) => return Err(error),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// `memcache://…`, with the credentials if it has some.
    ///
    /// They go in as they are: tests choose ones that need no escaping.
    #[must_use]
    pub fn url(&self) -> String {
        let credentials = self.options.credentials.as_ref();
        let user = credentials.map(|(user, word)| format!("{user}:{word}@")).unwrap_or_default();
        format!("memcache://{user}{}", self.addr())
    }

    /// The process id; another one after each restart.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server().pid()
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

    /// Kills the process if it still runs, and starts another one on the same port.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self) {
        let mut server = self.server();
        server.kill();
        *server = match launch(&self.options, self.port, self.directory.path()) {
            Ok(server) => server,
            Err(Failed::PortTaken(error) | Failed::Otherwise(error)) => panic!("{error}"),
        };
    }

    /// A connection of its own, past every proxy.
    ///
    /// # Errors
    ///
    /// The server is not there, or refuses.
    pub fn connect(&self) -> io::Result<TextSession> {
        connect(&self.options, self.port)
    }

    /// Gives one command on a connection of its own, as an operator would behind everybody's back, and
    /// returns its answer; see [`TextSession::command`].
    ///
    /// # Panics
    ///
    /// The server is not there, or does not answer within seconds.
    #[must_use]
    pub fn command(&self, command: &str) -> String {
        self.connect()
            .and_then(|mut session| session.command(command))
            .unwrap_or_else(|error| panic!("{command:?} was not answered: {error}"))
    }

    /// A line of `stats`.
    ///
    /// # Panics
    ///
    /// The server is not there, or has no such line.
    #[must_use]
    pub fn stat(&self, name: &str) -> String {
        let stats = self.command("stats");
        stat(&stats, name).unwrap_or_else(|| panic!("no {name} in {stats}")).to_owned()
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerProcess for Memcached {
    fn stop(&self) {
        self.stop();
    }
    fn cont(&self) {
        self.cont();
    }
    fn kill(&self) {
        self.kill();
    }
    fn restart(&self, _: KeepData) {
        self.restart();
    }
}

/// A connection to a memcached, in its text protocol. Not the client under test, on purpose.
#[derive(Debug)]
pub struct TextSession(BufReader<TcpStream>);

impl TextSession {
    /// Connects. Each call on the connection is bounded.
    ///
    /// # Errors
    ///
    /// Nobody listens at `addr`.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, BOUND)?;
        stream.set_read_timeout(Some(BOUND))?;
        stream.set_write_timeout(Some(BOUND))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command, with its line of data behind `\r\n` if it has one, and reads one answer: a line,
    /// a line with data, or all lines of `stats`.
    ///
    /// # Errors
    ///
    /// The connection is broken, or the answer is late.
    pub fn command(&mut self, command: &str) -> io::Result<String> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
        let mut answer = self.line()?;
        if answer.starts_with("VA ") {
            answer += &self.line()?;
        }
        while answer.starts_with("STAT ") && !answer.ends_with("END\r\n") {
            answer += &self.line()?;
        }
        Ok(answer.trim_end().to_owned())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        match self.0.read_until(b'\n', &mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(String::from_utf8_lossy(&line).into_owned()),
        }
    }
}

enum Failed {
    PortTaken(ServerError),
    Otherwise(ServerError),
}

fn launch(options: &MemcachedOptions, port: u16, directory: &Path) -> Result<Server, Failed> {
    let port_text = port.to_string();
    // As root it wants to be told whom to become.
    let mut args: Vec<String> =
        ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port_text].map(Into::into).into();
    args.extend(options.args.iter().cloned());
    if let Some((user, password)) = &options.credentials {
        let file = directory.join("users");
        std::fs::write(&file, format!("{user}:{password}\n"))
            .map_err(|error| Failed::Otherwise(ServerError::new(error.to_string())))?;
        args.extend(["-Y".into(), file.to_string_lossy().into_owned()]);
    }
    let server =
        Server::start("memcached", "memcached", args, directory).map_err(Failed::Otherwise)?;
    let mut answering = None;
    let ready = server.wait_until(READY, || {
        answering = connect(options, port)
            .and_then(|mut session| session.command("stats"))
            .ok()
            .and_then(|stats| stat(&stats, "pid")?.parse().ok());
        answering.is_some()
    });
    match ready {
        // Whoever came first on that port may be a memcached, too.
        Ok(()) if answering == Some(server.pid()) => Ok(server),
        Ok(()) => Err(Failed::PortTaken(server.failure("is not who answers on its port"))),
        Err(error) if server.output().contains("Address already in use") => {
            Err(Failed::PortTaken(error))
        }
        Err(error) => Err(Failed::Otherwise(error)),
    }
}

fn connect(options: &MemcachedOptions, port: u16) -> io::Result<TextSession> {
    let mut session = TextSession::connect((Ipv4Addr::LOCALHOST, port).into())?;
    if let Some((user, password)) = &options.credentials {
        let word = format!("{user} {password}");
        let answer = session.command(&format!("set auth 0 0 {}\r\n{word}", word.len()))?;
        if answer != "STORED" {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, answer));
        }
    }
    Ok(session)
}

fn stat<'a>(stats: &'a str, name: &str) -> Option<&'a str> {
    let mut values = stats.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    values.find_map(|(known, value)| (known == name).then_some(value))
}
