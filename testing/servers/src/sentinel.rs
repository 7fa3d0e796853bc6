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

/// How long it may take until all know each other, on a machine that is busy with other tests.
const READY: Duration = Duration::from_secs(30);

/// How many watch, and how many of them have to agree.
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// What the Sentinels call the primary.
const SERVICE: &str = "locks";

/// After how long without an answer a server counts as down, in milliseconds.
const DOWN_AFTER: &str = "1000";

/// The same, where nobody is to be replaced: longer than any test runs.
const NEVER: &str = "3600000";

/// From where Sentinels call others, so that a network can tell them from clients.
const CALLS_FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 26);

/// What a Sentinel does from time to time, in milliseconds: far more often than by default, so that a failover takes
/// a second or two. A primary that nobody has announced within four times the period of publishing is made a replica
/// again, and in a failover by hand it is announced after a second. While the primary is down its replica is asked
/// once a second how it is, whatever the period, and an answer that is older than five periods of pinging is none.
/// A busy machine is no reason to trust no clock.
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

/// Who the servers are to each other, and the Sentinels to them.
const REPLICATION: &str = "repl";
const WATCHER: &str = "watcher";

/// What Sentinels need, and tests do not.
const WATCHING: [&str; 4] = ["ping", "info", "multi", "slaveof"];

/// Two Redis servers, of which one is a replica of the other, and three Sentinels that make the replica the
/// primary when the other one is gone for half a second. All are on loopback ports, and end with this handle.
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
    /// Starts them, and waits until all know each other. Both servers have these `options`.
    ///
    /// # Panics
    ///
    /// There is no `redis-server`, or one of them does not come up. The message says why.
    #[must_use]
    pub fn start(options: RedisOptions) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`start`](Self::start).
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
            // Who calls from where Sentinels do is a stranger otherwise.
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

    /// One of the two servers: 0 is the primary at first.
    #[must_use]
    pub fn server(&self, number: usize) -> &Redis {
        &self.servers[number]
    }

    /// One of the three Sentinels.
    #[must_use]
    pub fn sentinel(&self, number: usize) -> &Sentinel {
        &self.sentinels[number]
    }

    /// All Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Sentinel] {
        &self.sentinels
    }

    /// Which server is the primary, by its own account. The first one, if both say so.
    ///
    /// # Panics
    ///
    /// None is.
    #[must_use]
    pub fn primary(&self) -> usize {
        let is_primary = |server: &Redis| role(server).as_deref() == Some("master");
        self.servers.iter().position(is_primary).expect("there is a primary")
    }

    /// Which server is the primary, when all agree: most Sentinels, and the two, by their own account; and the other
    /// one has all that it has.
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

    /// True if the other one is the primary instead of `lost`, which may be silent: most Sentinels say so, and it does.
    #[must_use]
    pub fn has_replaced(&self, lost: usize) -> bool {
        let next = self.server(1 - lost);
        let port = Some(next.service_port());
        self.sentinels.iter().filter(|it| it.named() == port).count() >= QUORUM
            && role(next).as_deref() == Some("master")
    }

    /// `redis+sentinel://…`, or `rediss+sentinel://…`, with all Sentinels, for the default user.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("")
    }

    /// The same, for a `user:password`, or nobody in particular.
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

    /// What the Sentinels call the primary.
    #[must_use]
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// From now on nobody is replaced, however long it is silent.
    ///
    /// # Panics
    ///
    /// A Sentinel is not there.
    pub fn replace_nobody(&self) {
        self.sentinels.iter().for_each(|sentinel| sentinel.have_patience(SERVICE));
    }

    /// Another name for the first server, as it is found beyond a `network`. By that name it is replaced by nobody; and
    /// nothing happens in that network to what Sentinels say.
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

    /// True if the replica has all that the primary has.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        let says = |server: &Redis, line: &str| {
            let info = server.connect().and_then(|mut s| s.command(&["INFO", "replication"]));
            info.is_ok_and(|info| info.text().lines().any(|said| said.trim() == line))
        };
        self.servers.iter().any(|server| says(server, "master_link_status:up"))
    }

    /// Waits until a Sentinel names this server as the primary. The others may not have heard of it.
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

    /// From now on the replica hears nothing more of what is written to this primary, until
    /// [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// The server is not there.
    pub fn cut_from_replica(&self, number: usize) {
        let server = self.server(number);
        server.command(&["ACL", "SETUSER", REPLICATION, "off"]);
        server.command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// From now on this server is gone for the Sentinels, and for nobody else, until [`heal`](Self::heal).
    ///
    /// # Panics
    ///
    /// The server is not there.
    pub fn hide_from_sentinels(&self, number: usize) {
        let server = self.server(number);
        server.command(&["ACL", "SETUSER", WATCHER, "off"]);
        // Who is refused goes on as nobody in particular.
        let mut rights = vec!["ACL".to_owned(), "SETUSER".to_owned(), "default".to_owned()];
        rights.extend(WATCHING.map(|right| format!("-{right}")));
        server.command(&rights.iter().map(String::as_str).collect::<Vec<_>>());
        server.command(&["CLIENT", "KILL", "USER", WATCHER]);
    }

    /// This server is cut off from nobody any more.
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

/// A Redis Sentinel of a test's own, on a loopback port. It ends with this handle, or with the test process.
#[derive(Debug)]
pub struct Sentinel(Handle);

impl Sentinel {
    /// One that knows nobody else, and counts this server as the primary: one of another group, or of another time.
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

    /// One for servers with these options.
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

    /// Kills the process if it still runs, and starts another one on the same port, with all that it knew.
    ///
    /// # Panics
    ///
    /// The new one does not come up.
    pub fn restart(&self) {
        self.relaunch(launch);
        self.keep_pace();
    }

    /// Gives one command on a connection of its own.
    ///
    /// # Panics
    ///
    /// The Sentinel is not there, or does not answer within seconds.
    pub fn command(&self, words: &[&str]) -> Reply {
        Session::connect(self.addr())
            .and_then(|mut session| session.command(words))
            .unwrap_or_else(|error| panic!("{words:?} was not answered: {error}"))
    }

    /// The port of the server that it names as the primary; `None` if it does not answer.
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

    /// However long the primary of that name is silent, and whatever its replica says of it.
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
    /// With all that it knew: it has nothing else.
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

/// True if a replica acknowledges what is written to this server. One that says that it has all of it need not be heard
/// of there yet.
fn is_acknowledged(server: &Redis) -> bool {
    let asking = server.connect().and_then(|mut session| {
        // It changes nothing, and replicas get it.
        session.command(&["PUBLISH", "replicas", "are there"])?;
        session.command(&["WAIT", "1", "100"])
    });
    asking.is_ok_and(|known_by| known_by == Reply::Integer(1))
}

/// What a server says it is; `None` if it does not answer.
fn role(server: &Redis) -> Option<String> {
    let answer = server.connect().and_then(|mut session| session.command(&["ROLE"])).ok()?;
    answer.text().lines().next().map(str::to_owned)
}
