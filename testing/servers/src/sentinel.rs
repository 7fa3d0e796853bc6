//! Redis Sentinel: a primary, a replica of it, and three Sentinels that watch over them.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use super::error::ServerError;
use super::handle::{Handle, wait_until_answering};
use super::process::Server;
use super::redis::{Redis, RedisOptions, process_id, tls_port};
use super::resp::{Reply, Session};
use lock_conformance::proxy::Proxy;
use lock_conformance::{KeepData, ServerProcess};

/// The bound on the discovery of all servers, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(30);

/// The number of Sentinels; a majority of them has to agree.
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// The name of the primary at the Sentinels.
const SERVICE: &str = "locks";

/// The time in milliseconds after which a server without an answer counts as down.
const DOWN_AFTER: &str = "1000";

/// The same where failovers are disabled: longer than any test runs.
const NEVER: &str = "3600000";

/// The address from which Sentinels connect, so that a proxy can tell them from clients.
const CALLS_FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 26);

/// The periods of a Sentinel's tasks in milliseconds. They are far shorter than by default, so that
/// a failover takes a second or two. A primary that no Sentinel has announced within four
/// publishing periods is demoted again. A manual failover is announced after a second. While the
/// primary is down, its replica is asked for its state once a second, regardless of the period. An
/// answer that is older than five ping periods is ignored. A busy machine is no reason for TILT
/// mode, which trusts no clock.
const PACE: [&str; 12] = [
    "info-period",
    "100",
    "ping-period",
    "300",
    "ask-period",
    "100",
    "publish-period",
    "500",
    "tilt-trigger",
    "20000",
    "tilt-period",
    "1000",
];

/// The user for replication and for the Sentinels.
const REPLICATION: &str = "repl";
const WATCHER: &str = "watcher";

/// The commands that Sentinels need and tests do not.
const WATCHING: [&str; 4] = ["ping", "info", "multi", "slaveof"];

/// Two Redis servers, of which one is a replica of the other, and three Sentinels that make the
/// replica the primary when the other one is gone for half a second. All are on loopback ports, and
/// end with this handle.
///
/// ```no_run
/// use test_servers::{RedisOptions, SentinelGroup};
///
/// let group = SentinelGroup::start(RedisOptions::new());
/// let old = group.primary();
/// group.server(old).kill();
/// group.wait_until_named(1 - old);
/// ```
#[derive(Debug)]
pub struct SentinelGroup {
    options: RedisOptions,
    servers: [Redis; 2],
    sentinels: Vec<Sentinel>,
}

impl SentinelGroup {
    /// Starts the servers and waits until all know each other. Both servers have these `options`.
    ///
    /// # Panics
    ///
    /// There is no `redis-server`, or one of them does not come up. The message says why.
    #[must_use]
    pub fn start(options: RedisOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts the servers; see [`start`](Self::start).
    ///
    /// # Errors
    ///
    /// There is no `redis-server`, or one of them does not come up.
    pub fn try_start(options: RedisOptions) -> Result<Self, ServerError> {
        let user = |options: RedisOptions, name: &str| {
            let options = options.setting("user", name).and("on").and(&format!(">{name}"));
            options.and("+@all").and("~*").and("&*")
        };
        let options = user(user(options, REPLICATION), WATCHER)
            // Protected mode refuses connections from the Sentinels' address.
            .setting("protected-mode", "no")
            .setting("masteruser", REPLICATION)
            .setting("masterauth", REPLICATION)
            .setting("repl-diskless-sync-delay", "0");
        let primary = Redis::try_start(options.clone())?;
        let port = primary.service_port().to_string();
        let follower = options.clone().setting("replicaof", options.host()).and(&port);
        let replica = Redis::try_start(follower)?;
        let sentinels = (0..SENTINELS).map(|_| Sentinel::try_start(&options));
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        let group = Self { options, servers: [primary, replica], sentinels };
        group.server(1).server().wait_until(READY, || group.is_replicated())?;
        group.server(0).server().wait_until(READY, || is_acknowledged(group.server(0)))?;
        for sentinel in &group.sentinels {
            sentinel.watch(SERVICE, group.options.host(), group.server(0).service_port());
        }
        for sentinel in &group.sentinels {
            sentinel.server().wait_until(READY, || sentinel.knows_all())?;
        }
        Ok(group)
    }

    /// Returns one of the two servers: 0 is the initial primary.
    #[must_use]
    pub fn server(&self, number: usize) -> &Redis {
        &self.servers[number]
    }

    /// Returns one of the three Sentinels.
    #[must_use]
    pub fn sentinel(&self, number: usize) -> &Sentinel {
        &self.sentinels[number]
    }

    /// Returns all Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Returns the server that is the primary by its own account: the first one if both are.
    ///
    /// # Panics
    ///
    /// None is.
    #[must_use]
    pub fn primary(&self) -> usize {
        let is_primary = |server: &Redis| role(server).as_deref() == Some("master");
        self.servers.iter().position(is_primary).expect("there is a primary")
    }

    /// Returns the primary on which most Sentinels and both servers agree, once the other server is
    /// up to date.
    #[must_use]
    pub fn settled(&self) -> Option<usize> {
        let primary = (0..2).find(|number| {
            let port = Some(self.server(*number).service_port());
            self.sentinels.iter().filter(|it| it.named() == port).count() >= QUORUM
        })?;
        let is = |number: usize, what| role(self.server(number)).as_deref() == Some(what);
        (is(primary, "master") && is(1 - primary, "slave") && self.is_replicated())
            .then_some(primary)
    }

    /// Returns true if the other server has replaced `lost`, which may be silent: by its own
    /// account and that of most Sentinels.
    #[must_use]
    pub fn has_replaced(&self, lost: usize) -> bool {
        let next = self.server(1 - lost);
        let port = Some(next.service_port());
        self.sentinels.iter().filter(|it| it.named() == port).count() >= QUORUM
            && role(next).as_deref() == Some("master")
    }

    /// Returns `redis+sentinel://…`, or `rediss+sentinel://…`, with all Sentinels, for the default
    /// user.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("")
    }

    /// Returns the same URL for a `user:password`, or without a user if empty.
    #[must_use]
    pub fn url_for(&self, user: &str) -> String {
        let (scheme, host) = (self.options.scheme("sentinel"), self.options.host());
        let encrypts = self.options.encryption.is_some();
        let port = |sentinel: &Sentinel| {
            let port = sentinel.addr().port();
            if encrypts { tls_port(port) } else { port }
        };
        let place = |sentinel| format!("{host}:{}", port(sentinel));
        let hosts: Vec<_> = self.sentinels.iter().map(place).collect();
        let at = if user.is_empty() { "" } else { "@" };
        format!("{scheme}://{user}{at}{}/{SERVICE}", hosts.join(","))
    }

    /// Returns the name of the primary at the Sentinels.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// Disables failovers, for any length of silence.
    ///
    /// # Panics
    ///
    /// A Sentinel is not there.
    pub fn disable_failover(&self) {
        self.sentinels.iter().for_each(|sentinel| sentinel.have_patience(SERVICE));
    }

    /// Adds another name for the first server, reached through a `network`. The Sentinels never
    /// replace it under that name, and the network does not disturb their answers.
    ///
    /// # Panics
    ///
    /// A Sentinel is not there.
    pub fn name_beyond(&self, service: &str, network: &Proxy) {
        network.spare(CALLS_FROM.into());
        let addr = network.addr();
        for sentinel in &self.sentinels {
            sentinel.watch(service, &addr.ip().to_string(), addr.port());
            sentinel.have_patience(service);
        }
    }

    /// Removes a name that [`name_beyond`](Self::name_beyond) has added. For each name, a Sentinel
    /// asks the replica ten times a second how it is: a hundred names keep it from its work.
    pub fn forget(&self, service: &str) {
        for sentinel in &self.sentinels {
            // One that is gone asks nothing.
            let _ = Session::connect(sentinel.addr())
                .and_then(|mut session| session.command(&["SENTINEL", "REMOVE", service]));
        }
    }

    /// Returns true if the replica is up to date with the primary.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        let says = |server: &Redis, line: &str| {
            let info = server.connect().and_then(|mut s| s.command(&["INFO", "replication"]));
            info.is_ok_and(|info| info.text().lines().any(|said| said.trim() == line))
        };
        self.servers.iter().any(|server| says(server, "master_link_status:up"))
    }

    /// Waits until one Sentinel names this server as the primary. The other Sentinels may not know
    /// it yet.
    ///
    /// # Panics
    ///
    /// None does within half a minute, or the first one has ended.
    pub fn wait_until_decided(&self, number: usize) {
        let port = Some(self.server(number).service_port());
        let decided = || self.sentinels.iter().any(|sentinel| sentinel.named() == port);
        let decided = self.sentinel(0).server().wait_until(READY, decided);
        decided.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until each Sentinel that was not killed names this server as the primary.
    ///
    /// # Panics
    ///
    /// They do not within half a minute.
    pub fn wait_until_named(&self, number: usize) {
        let port = self.server(number).service_port();
        for sentinel in self.sentinels.iter().filter(|it| !it.server().has_ended()) {
            let named = sentinel.server().wait_until(READY, || sentinel.named() == Some(port));
            named.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Waits until this server is a replica, by its own account, and has all that the primary has.
    ///
    /// # Panics
    ///
    /// It is not within half a minute.
    pub fn wait_until_replica(&self, number: usize) {
        let server = self.server(number);
        let follows = || role(server).as_deref() == Some("slave") && self.is_replicated();
        server.server().wait_until(READY, follows).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Stops replication from this primary, until [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// The server is not there.
    pub fn cut_from_replica(&self, number: usize) {
        let server = self.server(number);
        server.command(&["ACL", "SETUSER", REPLICATION, "off"]);
        server.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Makes this server unreachable for the Sentinels only, until [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// The server is not there.
    pub fn hide_from_sentinels(&self, number: usize) {
        let server = self.server(number);
        server.command(&["ACL", "SETUSER", WATCHER, "off"]);
        // A refused connection continues as the default user.
        let mut rights = vec!["ACL".to_owned(), "SETUSER".to_owned(), "default".to_owned()];
        rights.extend(WATCHING.map(|right| format!("-{right}")));
        server.command(&rights.iter().map(String::as_str).collect::<Vec<_>>());
        server.command(&["CLIENT", "KILL", "USER", WATCHER]);
    }

    /// Ends the partition of this server.
    ///
    /// # Panics
    ///
    /// The server is not there.
    pub fn heal(&self, number: usize) {
        let server = self.server(number);
        for user in [REPLICATION, WATCHER] {
            server.command(&["ACL", "SETUSER", user, "on"]);
        }
        server.command(&["ACL", "SETUSER", "default", "+@all"]);
    }
}

/// A Redis Sentinel of one test, on a loopback port. It ends with this handle, or with the test
/// process.
#[derive(Debug)]
pub struct Sentinel(Handle);

impl Sentinel {
    /// Starts a Sentinel that knows no other Sentinel and treats this server as the primary: one of
    /// another group, or of an earlier time.
    ///
    /// # Panics
    ///
    /// There is no `redis-server`, or it does not come up. The message says why.
    #[must_use]
    pub fn alone(primary: &Redis) -> Self {
        let sentinel = Self::try_start(&RedisOptions::new());
        let sentinel = sentinel.unwrap_or_else(|error| panic!("{error}"));
        sentinel.watch(SERVICE, "127.0.0.1", primary.addr().port());
        sentinel
    }

    /// Starts a Sentinel for servers with these options.
    fn try_start(options: &RedisOptions) -> Result<Self, ServerError> {
        let handle = Handle::launch("redis", |port, directory| {
            let mut config = format!(
                "port {port}\nbind 127.0.0.1\nbind-source-addr {CALLS_FROM}\ndir {}\n\
                 sentinel announce-ip 127.0.0.1\nsentinel resolve-hostnames yes\n\
                 sentinel announce-hostnames yes\n",
                directory.display()
            );
            for [name, value] in
                options.encryption.iter().flat_map(|files| files.settings(tls_port(port)))
            {
                config += &format!("{name} {value}\n");
            }
            fs::write(config_file(directory), config)
                .map_err(|error| ServerError::new(format!("no file for Sentinel: {error}")))?;
            launch(port, directory)
        })?;
        Ok(Self(handle))
    }

    /// Kills the process if it still runs, and starts another one on the same port with the same
    /// state.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self) {
        self.relaunch(launch);
        self.keep_pace();
    }

    /// Sends one command on a connection of its own.
    ///
    /// # Panics
    ///
    /// The Sentinel is not there, or does not answer within seconds.
    pub fn command(&self, words: &[&str]) -> Reply {
        Session::connect(self.addr())
            .and_then(|mut session| session.command(words))
            .unwrap_or_else(|error| panic!("{words:?} was not answered: {error}"))
    }

    /// Returns the port of the server that it names as the primary; `None` if it does not answer.
    #[must_use]
    pub fn named(&self) -> Option<u16> {
        let mut session = Session::connect(self.addr()).ok()?;
        let answer = session.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()?;
        answer.text().lines().nth(1)?.parse().ok()
    }

    fn watch(&self, service: &str, host: &str, port: u16) {
        self.keep_pace();
        let (port, quorum) = (port.to_string(), QUORUM.to_string());
        self.command(&["SENTINEL", "MONITOR", service, host, &port, &quorum]);
        self.set(service, "auth-user", WATCHER);
        self.set(service, "auth-pass", WATCHER);
        self.set(service, "down-after-milliseconds", DOWN_AFTER);
        self.set(service, "failover-timeout", "3000");
    }

    /// Disables the failover of the primary of that name, regardless of its silence and its
    /// replica's reports.
    fn have_patience(&self, service: &str) {
        self.set(service, "down-after-milliseconds", NEVER);
        self.set(service, "failover-timeout", NEVER);
    }

    fn set(&self, service: &str, option: &str, value: &str) {
        let reply = self.command(&["SENTINEL", "SET", service, option, value]);
        assert_eq!(reply.text(), "OK", "{service}: {option} {value}");
    }

    fn keep_pace(&self) {
        let mut words = vec!["SENTINEL", "DEBUG"];
        words.extend(PACE);
        self.command(&words);
    }

    fn knows_all(&self) -> bool {
        let known = self.command(&["SENTINEL", "MASTER", SERVICE]).text();
        let known: Vec<_> = known.lines().collect();
        let says = |name: &str, value: usize| {
            known.chunks(2).any(|pair| pair == [name, &value.to_string()])
        };
        says("num-slaves", 1) && says("num-other-sentinels", SENTINELS - 1)
    }
}

impl ServerProcess for Sentinel {
    fn stop(&self) {
        self.0.stop();
    }
    fn cont(&self) {
        self.0.cont();
    }
    fn kill(&self) {
        self.0.kill();
    }
    /// Restarts with its full state: a Sentinel has no other data.
    fn restart(&self, _: KeepData) {
        self.restart();
    }
}

impl Deref for Sentinel {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.0
    }
}

fn launch(port: u16, directory: &Path) -> Result<Server, ServerError> {
    let args = [config_file(directory).into_os_string(), "--sentinel".into()];
    let server = Server::start("redis-server", "redis-server", args, directory)?;
    let addr = (Ipv4Addr::LOCALHOST, port).into();
    wait_until_answering(server, READY, || {
        Session::connect(addr).and_then(|mut session| process_id(&mut session)).ok()
    })
}

fn config_file(directory: &Path) -> std::path::PathBuf {
    directory.join("sentinel.conf")
}

/// Returns true if a replica acknowledges the writes to this server. A replica may report itself up
/// to date before the server knows it.
fn is_acknowledged(server: &Redis) -> bool {
    let asking = server.connect().and_then(|mut session| {
        // It changes nothing, and is replicated.
        session.command(&["PUBLISH", "replicas", "are there"])?;
        session.command(&["WAIT", "1", "100"])
    });
    asking.is_ok_and(|known_by| known_by == Reply::Integer(1))
}

/// Returns the role that a server reports; `None` if it does not answer.
fn role(server: &Redis) -> Option<String> {
    let answer = server.connect().and_then(|mut session| session.command(&["ROLE"])).ok()?;
    answer.text().lines().next().map(str::to_owned)
}
