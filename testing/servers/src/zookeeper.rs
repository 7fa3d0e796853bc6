//! ZooKeeper.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::error::ServerError;
use super::handle::{self, Handle};
use super::ports::Ports;
use super::process::Server;
use lock_conformance::proxy::Proxy;
use lock_conformance::{KeepData, ServerProcess};

/// The bound on the first answer after a start, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(60);

/// The path of Debian's server; the jar names its dependencies.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// The logger, without which the server reports no errors.
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";

/// The jars that encrypted connections need, and that the server's jar does not name.
const NETTY: &str = "/usr/share/java/netty-codec.jar:/usr/share/java/netty-resolver.jar";

/// The interpreter of the script that edits a snapshot.
const BEANSHELL: &str = "/usr/share/java/bsh.jar";

/// The number of members of an ensemble.
const MEMBERS: usize = 3;

/// The options with which a ZooKeeper is started.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    tick: Duration,
    settings: Vec<(String, String)>,
    properties: Vec<String>,
    links: bool,
}

impl Default for ZooKeeperOptions {
    fn default() -> Self {
        let tick = Duration::from_millis(200);
        Self { tick, settings: Vec::new(), properties: Vec::new(), links: false }
    }
}

impl ZooKeeperOptions {
    /// Returns a tick of 200 ms, any session timeout from two ticks to a minute, and no other
    /// settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the server's unit of time. Sessions last at least two of them.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Adds a setting as written in `zoo.cfg`, for example `("maxClientCnxns", "3")`. It overrides
    /// the built-in settings.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a Java system property, for example `("readonlymode.enabled", "true")`.
    #[must_use]
    pub fn property(mut self, name: &str, value: &str) -> Self {
        self.properties.push(format!("-D{name}={value}"));
        self
    }

    /// Connects each member of an ensemble to each other one's quorum port through a
    /// [proxy](ZooKeeperEnsemble::link) of its own. Elections bypass it.
    #[must_use]
    pub fn links(mut self) -> Self {
        self.links = true;
        self
    }

    fn config(&self, port: u16, quorum: &str) -> String {
        let tick = self.tick.as_millis().to_string();
        let port = port.to_string();
        let always = [
            ("tickTime", &*tick),
            ("dataDir", "data"),
            ("clientPort", &port),
            ("clientPortAddress", "127.0.0.1"),
            ("maxClientCnxns", "0"),
            ("admin.enableServer", "false"),
            ("maxSessionTimeout", "60000"),
            ("4lw.commands.whitelist", "*"),
            // The data need not survive the machine, so they need not be on its disk.
            ("forceSync", "no"),
            // For ensembles.
            ("initLimit", "10"),
            ("syncLimit", "10"),
            ("standaloneEnabled", if quorum.is_empty() { "true" } else { "false" }),
        ];
        let ours = |name: &str| self.settings.iter().any(|(set, _)| set == name);
        let mut lines: Vec<String> =
            self.settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let kept = always.iter().filter(|(name, _)| !ours(name));
        lines.extend(kept.map(|(name, value)| format!("{name}={value}\n")));
        lines.concat() + quorum
    }
}

/// A ZooKeeper of one test, alone or as a member of an [ensemble](ZooKeeperEnsemble), on a loopback
/// port, with its files in a temporary directory. It ends with this handle, or with the test
/// process.
#[derive(Debug)]
pub struct ZooKeeper {
    handle: Handle,
    properties: Vec<String>,
    is_member: bool,
}

impl ZooKeeper {
    /// Starts a server and waits until it serves.
    ///
    /// # Panics
    ///
    /// There is no Java or no ZooKeeper, or it does not come up. The message says why.
    #[must_use]
    pub fn start(options: &ZooKeeperOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a server and waits until it serves.
    ///
    /// # Errors
    ///
    /// There is no Java or no ZooKeeper, or it does not come up.
    pub fn try_start(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        let ports = Arc::new(Ports::in_a_row(1)?);
        let server = Self::launch(options, ports.first(), &ports, None, "")?;
        server.wait_until_ready()?;
        Ok(server)
    }

    fn launch(
        options: &ZooKeeperOptions,
        port: u16,
        ports: &Arc<Ports>,
        id: Option<usize>,
        quorum: &str,
    ) -> Result<Self, ServerError> {
        let failed =
            |error: io::Error| ServerError::new(format!("no files for ZooKeeper: {error}"));
        let directory = handle::directory("zookeeper")?;
        fs::create_dir(data(directory.path())).map_err(failed)?;
        fs::write(directory.path().join("zoo.cfg"), options.config(port, quorum))
            .map_err(failed)?;
        if let Some(id) = id {
            fs::write(data(directory.path()).join("myid"), id.to_string()).map_err(failed)?;
        }
        let server = run(&options.properties, directory.path())?;
        let handle = Handle::new(server, "zookeeper", port, Arc::clone(ports), directory);
        Ok(Self { handle, properties: options.properties.clone(), is_member: id.is_some() })
    }

    /// Returns `zookeeper://…`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at("", &self.addr())
    }

    /// Returns the answer to a four-letter word, for example `srvr`, `cons` or `wchs`.
    ///
    /// # Errors
    ///
    /// It does not answer within seconds.
    pub fn word(&self, word: &str) -> io::Result<String> {
        let bound = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&self.addr(), bound)?;
        stream.set_read_timeout(Some(bound))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns its current mode: `standalone`, `leader`, `follower` or `read-only`; `None` while it
    /// does not serve.
    #[must_use]
    pub fn mode(&self) -> Option<String> {
        let answer = self.word("srvr").ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// Kills the process if it still runs, and starts another one on the same port. Waits until it
    /// serves. A member of an ensemble may lack its quorum, so it only has to answer.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self, keep_data: KeepData) {
        self.relaunch(|_, directory| {
            let log = data(directory).join("version-2");
            if keep_data == KeepData::No && log.exists() {
                fs::remove_dir_all(log).expect("a directory of ours can be emptied");
            }
            run(&self.properties, directory)
        });
        self.wait_until_ready().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Restarts the server with its data and another value of a setting. A member of an ensemble is
    /// back when it has a quorum again.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart_with(&self, name: &str, value: &str) {
        let config = self.directory().join("zoo.cfg");
        let text = fs::read_to_string(&config).expect("the configuration is there");
        let old = format!("{name}=");
        let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(&old)).collect();
        let new = format!("{old}{value}");
        lines.push(&new);
        fs::write(&config, lines.join("\n")).expect("the configuration can be written");
        self.restart(KeepData::Yes);
        self.server()
            .wait_until(READY, || self.mode().is_some())
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Kills the server, sets the sequence number of the next child of `node`, and restarts the
    /// server with these data.
    ///
    /// # Panics
    ///
    /// BeanShell is not installed, there is no such node, or the server does not come up.
    pub fn restart_with_sequence(&self, node: &str, next: i32) {
        self.kill();
        let directory = self.directory();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sequence.bsh");
        let edited = Command::new("java")
            .args(["-cp", &format!("{BEANSHELL}:{}", class_path()), "bsh.Interpreter", script])
            .arg(data(directory))
            .args([node, &next.to_string()])
            .output()
            .expect("java runs: apt-get install default-jre-headless");
        assert!(
            edited.stdout.ends_with(b"done\n"),
            "the sequence of {node} is set (apt-get install libbsh-java): {edited:?}"
        );
        self.restart(KeepData::Yes);
    }

    fn wait_until_ready(&self) -> Result<(), ServerError> {
        self.server().wait_until(READY, || match self.is_member {
            true => self.word("srvr").is_ok(),
            false => self.mode().is_some(),
        })
    }
}

impl Deref for ZooKeeper {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl ServerProcess for ZooKeeper {
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
}

/// Three members that elect a leader. Each can be stopped, killed and restarted by itself.
///
/// ```no_run
/// use lock_conformance::proxy::Fault;
/// use test_servers::{ZooKeeperEnsemble, ZooKeeperOptions};
///
/// let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::new().links());
/// let (leader, follower) = (ensemble.leader(), ensemble.follower());
/// ensemble.link(follower, leader).set(Fault::BlackHole); // cut from its leader only
/// ensemble.member(leader).kill();
/// ```
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    members: Vec<ZooKeeper>,
    /// `links[from][to]`.
    links: Vec<Vec<Option<Proxy>>>,
}

impl ZooKeeperEnsemble {
    /// Starts the members and waits until all of them serve.
    ///
    /// # Panics
    ///
    /// There is no Java or no ZooKeeper, or one of them does not come up. The message says why.
    #[must_use]
    pub fn start(options: &ZooKeeperOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the members and waits until all of them serve.
    ///
    /// # Errors
    ///
    /// There is no Java or no ZooKeeper, or one of them does not come up.
    pub fn try_start(options: &ZooKeeperOptions) -> Result<Self, ServerError> {
        let ports = Arc::new(Ports::in_a_row(3 * MEMBERS)?);
        let row: Vec<u16> = (ports.first()..).take(3 * MEMBERS).collect();
        let (clients, peers) = row.split_at(MEMBERS);
        let (quorum, election) = peers.split_at(MEMBERS);
        let links = links(options, quorum)?;
        let launch = |(id, &port): (usize, &u16)| {
            let config = quorum_config(id, &links[id], quorum, election);
            ZooKeeper::launch(options, port, &ports, Some(id), &config)
        };
        let members: Result<Vec<_>, _> = clients.iter().enumerate().map(launch).collect();
        let ensemble = Self { members: members?, links };
        for member in &ensemble.members {
            member.server().wait_until(READY, || member.mode().is_some())?;
        }
        Ok(ensemble)
    }

    /// Returns all members.
    #[must_use]
    pub fn members(&self) -> &[ZooKeeper] {
        &self.members
    }

    /// Returns a member, counted from 0.
    #[must_use]
    pub fn member(&self, number: usize) -> &ZooKeeper {
        &self.members[number]
    }

    /// Returns `zookeeper://…` with all members.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(|member| member.addr().to_string()).collect();
        format!("zookeeper://{}", hosts.join(","))
    }

    /// Returns the current leader.
    ///
    /// # Panics
    ///
    /// There is none.
    #[must_use]
    pub fn leader(&self) -> usize {
        self.find("leader").expect("the ensemble has a leader")
    }

    /// Returns a current follower.
    ///
    /// # Panics
    ///
    /// There is none.
    #[must_use]
    pub fn follower(&self) -> usize {
        self.find("follower").expect("the ensemble has a follower")
    }

    /// Returns the first member that is in this [mode](ZooKeeper::mode) now.
    #[must_use]
    pub fn find(&self, mode: &str) -> Option<usize> {
        self.members.iter().position(|member| member.mode().as_deref() == Some(mode))
    }

    /// Returns the proxy by which member `from` reaches the quorum port of member `to`. It is in
    /// use while `to` leads.
    ///
    /// # Panics
    ///
    /// The ensemble was started without [links](ZooKeeperOptions::links), or the two are the same.
    #[must_use]
    pub fn link(&self, from: usize, to: usize) -> &Proxy {
        self.links[from][to].as_ref().expect("the ensemble was started with links")
    }
}

fn links(
    options: &ZooKeeperOptions,
    quorum: &[u16],
) -> Result<Vec<Vec<Option<Proxy>>>, ServerError> {
    let link = |from: usize, to: usize| {
        let wanted = options.links && from != to;
        wanted.then(|| Proxy::start((Ipv4Addr::LOCALHOST, quorum[to]).into())).transpose()
    };
    let from = |from| (0..MEMBERS).map(|to| link(from, to)).collect::<io::Result<Vec<_>>>();
    let links: io::Result<Vec<_>> = (0..MEMBERS).map(from).collect();
    links.map_err(|error| ServerError::new(format!("no links between the members: {error}")))
}

/// Returns the configuration of the ensemble for member `id`.
fn quorum_config(id: usize, links: &[Option<Proxy>], quorum: &[u16], election: &[u16]) -> String {
    let mut lines = String::new();
    for to in 0..MEMBERS {
        let port = match &links[to] {
            Some(link) if to != id => link.addr().port(),
            _ => quorum[to],
        };
        lines += &format!("server.{to}=127.0.0.1:{port}:{}\n", election[to]);
    }
    lines
}

/// Returns Debian's server, or the one whose jars are in the directory `ZOOKEEPER_JARS`.
fn class_path() -> String {
    match std::env::var("ZOOKEEPER_JARS") {
        Ok(directory) => format!("{directory}/*"),
        Err(_) => format!("{JAR}:{LOGGER}:{NETTY}"),
    }
}

fn run(properties: &[String], directory: &Path) -> Result<Server, ServerError> {
    let class_path = class_path();
    if class_path.starts_with(JAR) && !Path::new(JAR).is_file() {
        let message = format!("{JAR} is missing: run ./test, or apt-get install zookeeper");
        return Err(ServerError::new(message));
    }
    let fixed = [
        "-Xmx128m",
        // The process lives for seconds, so optimisation never pays off.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-Xshare:auto",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
    ];
    let mut args: Vec<String> = fixed.map(str::to_owned).into();
    args.extend(properties.iter().cloned());
    args.extend(["-cp", &class_path].map(str::to_owned));
    args.push("org.apache.zookeeper.server.quorum.QuorumPeerMain".to_owned());
    args.push("zoo.cfg".to_owned());
    Server::start("java", "default-jre-headless", args, directory)
}

fn data(directory: &Path) -> PathBuf {
    directory.join("data")
}
