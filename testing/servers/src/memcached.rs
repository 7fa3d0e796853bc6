//! Memcached.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::clock::Clock;
use super::error::ServerError;
use super::handle::{self, Handle, wait_until_answering};
use super::process::Server;
use lock_conformance::KeepData;
use lock_conformance::ServerProcess;

/// The bound on the first answer after a start, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(30);

/// The options with which a memcached is started.
#[derive(Clone, Debug, Default)]
pub struct MemcachedOptions {
    credentials: Option<(String, String)>,
    args: Vec<String>,
    clocks: bool,
}

impl MemcachedOptions {
    /// Returns memcached's defaults with `-M`: at its memory limit it refuses instead of evicting.
    #[must_use]
    pub fn new() -> Self {
        Self { args: vec!["-M".into()], ..Self::default() }
    }

    /// Makes the server evict the least recently used items at its memory limit, as it does by
    /// default.
    #[must_use]
    pub fn evicting(mut self) -> Self {
        self.args.retain(|arg| arg != "-M");
        self
    }

    /// Adds an argument to its command line, for example `-C`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Gives the server [clocks](Clock) of its own, which start right: [`Memcached::wall_clock`]
    /// and [`Memcached::monotonic_clock`].
    #[must_use]
    pub fn clocks(mut self) -> Self {
        self.clocks = true;
        self
    }

    /// Requires a user and a password, in the text protocol. [`Memcached::connect`] sends them.
    #[must_use]
    pub fn credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.credentials = Some((user.into(), password.into()));
        self
    }
}

/// A memcached of one test, version 1.6 or newer, on a loopback port. It ends with this handle, or
/// with the test process. It keeps nothing on disk, so each restart loses its data.
#[derive(Debug)]
pub struct Memcached {
    handle: Handle,
    options: MemcachedOptions,
    /// The wall clock and the monotonic one.
    clocks: Option<[Clock; 2]>,
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
        let clocks = match options.clocks {
            true => Some([Clock::new()?, Clock::monotonic()?]),
            false => None,
        };
        let handle = Handle::launch("memcache", |port, directory| {
            launch(&options, port, clocks.as_ref(), directory)
        })?;
        Ok(Self { handle, options, clocks })
    }

    /// Returns `memcache://…`, with the credentials if there are any.
    ///
    /// They go in as they are: tests choose ones that need no escaping.
    #[must_use]
    pub fn url(&self) -> String {
        let credentials = self.options.credentials.as_ref();
        let user = credentials.map(|(user, word)| format!("{user}:{word}@")).unwrap_or_default();
        self.url_at(&user, &self.addr())
    }

    /// Kills the process if it still runs, and starts another one on the same port.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self) {
        let clocks = self.clocks.as_ref();
        self.relaunch(|port, directory| launch(&self.options, port, clocks, directory));
    }

    /// Returns its clock for the time of day, from which it derives the time of its start.
    ///
    /// # Panics
    ///
    /// It was started without [clocks of its own](MemcachedOptions::clocks).
    #[must_use]
    pub fn wall_clock(&self) -> &Clock {
        &self.clocks()[0]
    }

    /// Returns its clock for the seconds since its start.
    ///
    /// # Panics
    ///
    /// It was started without [clocks of its own](MemcachedOptions::clocks).
    #[must_use]
    pub fn monotonic_clock(&self) -> &Clock {
        &self.clocks()[1]
    }

    fn clocks(&self) -> &[Clock; 2] {
        self.clocks.as_ref().expect("it was started without clocks of its own")
    }

    /// Opens a connection that bypasses every proxy.
    ///
    /// # Errors
    ///
    /// The server is not there, or refuses.
    pub fn connect(&self) -> io::Result<TextSession> {
        connect(&self.options, self.addr())
    }

    /// Sends one command on a connection of its own, as an operator would without the clients'
    /// knowledge, and returns the answer; see [`TextSession::command`].
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

    /// Returns a value of `stats`.
    ///
    /// # Panics
    ///
    /// The server is not there, or has no such line.
    #[must_use]
    pub fn stat(&self, name: &str) -> String {
        let stats = self.command("stats");
        stat(&stats, name).unwrap_or_else(|| panic!("no {name} in {stats}")).to_owned()
    }

    /// Returns the value under a key, if there is one.
    ///
    /// # Panics
    ///
    /// The server is not there.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<String> {
        let answer = self.command(&format!("mg {key} v"));
        answer.split_once("\r\n").map(|(_, value)| value.to_owned())
    }
}

impl Deref for Memcached {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl ServerProcess for Memcached {
    fn stop(&self) {
        self.handle.stop();
    }
    fn cont(&self) {
        self.handle.cont();
    }
    fn kill(&self) {
        self.handle.kill();
    }
    fn restart(&self, _: KeepData) {
        self.restart();
    }
}

/// A connection to a memcached in its text protocol. It does not use the client under test, on
/// purpose.
#[derive(Debug)]
pub struct TextSession(BufReader<TcpStream>);

impl TextSession {
    /// Opens a connection. Each call on the connection is bounded.
    ///
    /// # Errors
    ///
    /// No server listens at `addr`.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        handle::connect(addr).map(Self)
    }

    /// Sends a command, with its data after `\r\n` if it has any, and reads one answer: a line, a
    /// line with data, or all lines of `stats`.
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

fn launch(
    options: &MemcachedOptions,
    port: u16,
    clocks: Option<&[Clock; 2]>,
    directory: &Path,
) -> Result<Server, ServerError> {
    let port_text = port.to_string();
    // As root it needs the name of a user to run as.
    let mut args: Vec<String> =
        ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port_text].map(Into::into).into();
    args.extend(options.args.iter().cloned());
    if let Some((user, password)) = &options.credentials {
        let file = directory.join("users");
        std::fs::write(&file, format!("{user}:{password}\n"))
            .map_err(|error| ServerError::new(error.to_string()))?;
        args.extend(["-Y".into(), file.to_string_lossy().into_owned()]);
    }
    let clocks = clocks.into_iter().flatten();
    let server = Server::start_with("memcached", "memcached", args, directory, clocks)?;
    let addr = (Ipv4Addr::LOCALHOST, port).into();
    wait_until_answering(server, READY, || {
        let stats = connect(options, addr).and_then(|mut session| session.command("stats"));
        stat(&stats.ok()?, "pid")?.parse().ok()
    })
}

fn connect(options: &MemcachedOptions, addr: SocketAddr) -> io::Result<TextSession> {
    let mut session = TextSession::connect(addr)?;
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
