//! Where the server is and how to talk to it.

use crate::connection::address::{Address, Endpoint, Login, Sentinels};

#[cfg(feature = "tls")]
use crate::connection::tls::Certificates;
#[cfg(feature = "tls")]
use crate::connection::tls::Pem;
use crate::connector::{Connector, ConnectorHandle};
use crate::keys::Keys;
use crate::keys::Names;
use crate::limits::MAX_TTL;
use crate::limits::MIN_TTL;
use lock_core::Error;
use lock_core::ErrorKind;
use lock_core::Order;
use lock_core::url::Authority;
use lock_core::url::Host;
use lock_core::url::Url;
use redis::io::tcp::TcpSettings;
use std::fmt;
use std::time::Duration;

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

/// How long replicas are waited for unless `min_replicas_timeout` says otherwise, and at most.
const REPLICAS_TIMEOUT: Duration = Duration::from_millis(500);
const REPLICAS_TIMEOUT_MAX: Duration = Duration::from_secs(60);

const SHARE_MIN: Duration = Duration::from_millis(10);
const SHARE_MAX: Duration = Duration::from_secs(10);

/// The address of the server, the user there, and the prefix of the locks.
///
/// ```
/// # fn main() -> Result<(), lock_core::Error> {
/// use lock_redis::Config;
///
/// let config = Config::new("redis://127.0.0.1:6379/2")?.prefix("billing:")?;
/// let same = Config::new("redis://127.0.0.1:6379/2?prefix=billing:")?;
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok(()) }
/// ```
///
/// `Debug` shows the address, the options of the locks, the user, and the names of files, but no
/// password and no contents of the files.
#[derive(Clone)]
pub struct Config {
    pub(crate) endpoint: Endpoint,
    /// Members of a cluster, to be asked where its slots are. None: there is one server, and it is
    /// at `endpoint`.
    pub(crate) members: Vec<Host>,
    pub(crate) login: Login,
    pub(crate) database: i64,
    pub(crate) keys: Keys,
    pub(crate) max_ttl: Duration,
    /// `None`: the best that the server offers.
    pub(crate) order: Option<Order>,
    /// How long a release leaves the lock free for clients that poll.
    pub(crate) polling_share: Option<Duration>,
    pub(crate) replicas: Option<MinReplicas>,
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
    /// The way to open streams, unless the Redis library opens them.
    pub(crate) connector: Option<ConnectorHandle>,
    /// Settings of the program's client; this crate fills in the rest.
    pub(crate) tcp: TcpSettings,
}

impl Config {
    /// Reads a URL:
    ///
    /// * `redis://[user:password@]host[:port][/database]`
    /// * `rediss://…`, the same over TLS, with the Cargo feature `tls`
    /// * `redis+unix:///path/of/the/socket`
    /// * `redis+sentinel://[user:password@]host[:port],host[:port],…/name[/database]`, the primary that
    ///   these Sentinels call by that name; their port is 26379 unless given. User and password are
    ///   for the servers.
    /// * `rediss+sentinel://…`, the same over TLS, to the Sentinels too
    /// * `redis+cluster://[user:password@]host[:port],host[:port]…`: some members of a cluster, of which
    ///   one has to answer; and `rediss+cluster://…`
    ///
    /// User and password are percent-decoded; `:password@` is the default user's. Options follow as
    /// `?name=value&…`, percent-encoded:
    ///
    /// | option | with | meaning |
    /// |---|---|---|
    /// | `prefix` | all | a prefix of every key, see [`prefix`](Self::prefix) |
    /// | `names` | all | `encoded`, or `exact` for keys byte by byte, see [`names`](Self::names) |
    /// | `max_ttl` | all | the longest lease, like `1h`, see [`max_ttl`](Self::max_ttl) |
    /// | `order` | all | `fifo`, or `any` for a race, see [`order`](Self::order) |
    /// | `polling_share` | all | how long a release leaves the lock to clients that poll, see [`polling_share`](Self::polling_share) |
    /// | `min_replicas` | all | how many replicas must know of a lock, see [`min_replicas`](Self::min_replicas) |
    /// | `min_replicas_timeout` | with `min_replicas` | how long to wait for them, 500 ms unless given |
    /// | `db`, `user`, `password` | `redis+unix:` | the database, user and password |
    /// | `sentinel_user`, `sentinel_password` | `redis+sentinel:`, `rediss+sentinel:` | the credentials for the Sentinels, if they need any |
    /// | `ca` | `rediss:`, `rediss+sentinel:`, `rediss+cluster:` | a file: the only authorities that may vouch for the server |
    /// | `cert`, `key` | the same | two files: the client's certificate and key, if the server asks for them |
    ///
    /// The files are PEM. Each may hold several certificates; in `cert` the client's own is the
    /// first one, and `cert` and `key` may be one file. They are read for each connection, and not
    /// now: a certificate that was replaced is used from the next connection on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it cannot be understood, [`ErrorKind::Unsupported`] if it asks for
    /// TLS and the feature is off. No error repeats the URL: it may hold a password.
    pub fn new(url: &str) -> Result<Self, Error> {
        Url::parse(url)?.try_into()
    }

    /// Reads the configuration out of `url`, and removes its options there.
    fn of(url: &mut Url) -> Result<Self, Error> {
        let mut config = match url.scheme() {
            scheme @ ("rediss" | "rediss+sentinel" | "rediss+cluster")
                if !cfg!(feature = "tls") =>
            {
                let why = format!(
                    "{scheme}: needs the Cargo feature \"tls\" of lock-redis, which is off"
                );
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            "redis" => Self::at_host(url.authority(DEFAULT_PORT)?, false)?,
            "rediss" => Self::at_host(url.authority(DEFAULT_PORT)?, true)?,
            "redis+sentinel" => Self::at_sentinels(url, false)?,
            "rediss+sentinel" => Self::at_sentinels(url, true)?,
            "redis+cluster" => Self::in_cluster(url.authority(DEFAULT_PORT)?, false)?,
            "rediss+cluster" => Self::in_cluster(url.authority(DEFAULT_PORT)?, true)?,
            "redis+unix" => Self::at_socket(url)?,
            _ => {
                return Err(invalid(
                    "write redis://, rediss://, redis+unix://, or one of these with +sentinel or +cluster",
                ));
            }
        };
        config = match url.take("names")?.as_deref() {
            None | Some("encoded") => config,
            Some("exact") => config.names(Names::Exact)?,
            Some(_) => return Err(invalid("the URL option names is encoded or exact")),
        };
        if let Some(prefix) = url.take("prefix")? {
            config = config.prefix(&prefix)?;
        }
        if let Some(max_ttl) = url.take_duration("max_ttl")? {
            config = config.max_ttl(max_ttl)?;
        }
        config = match url.take("order")?.as_deref() {
            None => config,
            Some("fifo") => config.order(Order::Fifo),
            Some("any") => config.order(Order::PerProcess),
            Some(_) => return Err(invalid("the URL option order is fifo or any")),
        };
        if let Some(share) = url.take_duration("polling_share")? {
            config = config.polling_share(share)?;
        }
        if let Some(count) = url.take("min_replicas")? {
            let count = count.parse().map_err(|_| invalid("min_replicas is a number"))?;
            let timeout = url.take_duration("min_replicas_timeout")?;
            config = config.min_replicas(count, timeout.unwrap_or(REPLICAS_TIMEOUT))?;
        }
        let encrypted = match url.scheme() {
            scheme if scheme.contains("sentinel") => "rediss+sentinel",
            scheme if scheme.contains("cluster") => "rediss+cluster",
            _ => "rediss",
        };
        let _files = url.take_certificate_files(encrypted)?;
        #[cfg(feature = "tls")]
        {
            let (ca, identity) = (_files.authorities, _files.identity);
            config.certificates.authorities = ca.map(|path| Pem::file("ca", path));
            config.certificates.identity =
                identity.map(|(cert, key)| (Pem::file("cert", cert), Pem::file("key", key)));
        }
        Ok(config)
    }

    /// Puts `prefix` before every key. It ends in `:` or `/`, and a pair of braces in it makes all
    /// locks of this prefix share a cluster slot. With [`Names::Exact`], chosen before, every
    /// prefix is accepted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the prefix ends in another character, or if its braces are no hash
    /// tag.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        self.keys = Keys::new(self.keys.names(), prefix)?;
        Ok(self)
    }

    /// Chooses how names become keys. All clients of one lock need the same choice, also those in
    /// the members of a quorum.
    ///
    /// [`Names::Exact`] is for locks that clients of other libraries share: the key is the prefix
    /// and the name, byte for byte, however long. An attempt on one of these names fails as
    /// [`ErrorKind::Invalid`], before any request:
    ///
    /// * a name whose braces leave no companion key in its cluster slot: `a}b`, `{}a`. A pair of
    ///   braces with text in it is a hash tag: `{user}:1`;
    /// * the companion key of another lock: `{a}%token`, `{a}%:queue`;
    /// * a name that begins with `%~rights`.
    ///
    /// A client with exact names and one with encoded names may use one key for two names: the
    /// exact name `a%7Db` and the encoded name `a}b`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the prefix does not fit [`Names::Encoded`].
    pub fn names(mut self, names: Names) -> Result<Self, Error> {
        self.keys = Keys::new(names, self.keys.prefix())?;
        Ok(self)
    }

    /// Declares a shorter longest lease ([`Capabilities::ttl_max`]) than 365 days. A lock that is
    /// taken for longer than that is warned about, because no client with this setting has taken it
    /// so: its key came back when the server's clock was set back, say.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not from 10 ms to 365 days, or too short for
    /// [`min_replicas`](Self::min_replicas).
    ///
    /// [`Capabilities::ttl_max`]: lock_core::Capabilities::ttl_max
    pub fn max_ttl(mut self, ttl: Duration) -> Result<Self, Error> {
        if !(MIN_TTL..=MAX_TTL).contains(&ttl) {
            return Err(invalid("max_ttl is out of range; with redis it is from 10ms to 365days"));
        }
        self.max_ttl = ttl;
        self.with_room_for_renewals()
    }

    /// Sets the order in which waiters are served. [`Order::Fifo`], first come, first served, hands
    /// the lock over inside the release. It needs a server that can send messages of its own accord
    /// (RESP3). With [`Order::PerProcess`] a release wakes all processes, and the first request
    /// wins. The default is the former where the server can do that, and else the latter;
    /// [`Capabilities::order`] says which.
    ///
    /// [`Capabilities::order`]: lock_core::Capabilities::order
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Leaves the lock free for `time` now and then, although claims are queued, so that clients of
    /// other libraries get their turn. They poll, and would never see a lock free that goes from
    /// one queued claim to the next. Write the pause between two of their polls, or a little more.
    ///
    /// A release leaves the lock free if none has done so within ten times as long: at most a tenth
    /// of the time. Meanwhile all clients with this setting leave it alone. Then the first in the
    /// queue gets it, which keeps its order. A hand-off lasts that much longer, and a round trip.
    /// Give all clients of a lock the same value: one without it takes the lock, for the first in
    /// the queue, at once.
    ///
    /// Needs [`Order::Fifo`], which is then required of the server. A quorum refuses it. Off by
    /// default.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not from 10 ms to 10 s. Connecting fails so if it is longer
    /// than [`max_ttl`](Self::max_ttl), or if the order is another one.
    pub fn polling_share(mut self, time: Duration) -> Result<Self, Error> {
        if !(SHARE_MIN..=SHARE_MAX).contains(&time) {
            return Err(invalid("polling_share is out of range; it is from 10ms to 10s"));
        }
        self.polling_share = Some(time);
        Ok(self)
    }

    /// Has a lock, and each renewal of it, count only if `count` replicas have acknowledged it
    /// within `timeout`.
    ///
    /// A grant that they have not acknowledged is undone, and the attempt fails as unavailable; a
    /// renewal that they have not acknowledged prolongs nothing, and the holder gives up in time.
    /// It makes a failover that loses locks rarer, and does not rule it out: see the crate's
    /// documentation, also for the cost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if `count` is 0, or `timeout` is not from 1 ms to a minute, or the
    /// shortest lease, six times the timeout and 10 ms, is longer than [`max_ttl`](Self::max_ttl).
    pub fn min_replicas(mut self, count: u32, timeout: Duration) -> Result<Self, Error> {
        if count == 0 {
            return Err(invalid("min_replicas is at least 1; leave it out to wait for none"));
        }
        if !(Duration::from_millis(1)..=REPLICAS_TIMEOUT_MAX).contains(&timeout) {
            return Err(invalid("min_replicas_timeout is out of range; it is from 1ms to 1m"));
        }
        self.replicas = Some(MinReplicas { count, timeout });
        self.with_room_for_renewals()
    }

    /// Trusts the authorities in `pem`, and no others, to vouch for the server of a `rediss://`
    /// URL. Without this they are those that the system trusts. Wins over the option `ca`.
    ///
    /// A malformed certificate is found at the first connection.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authorities = Some(Pem::given("root_certificates", pem));
        self
    }

    /// Identifies the client to the server of a `rediss://` URL: by a certificate, followed by
    /// those between it and its authority, and its private key, both in PEM. Overrides the options
    /// `cert` and `key`.
    ///
    /// A malformed certificate or key, or a key of another certificate, is an error when
    /// connecting.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_identity(
        mut self,
        certificate_chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let name = "client_identity";
        self.certificates.identity =
            Some((Pem::given(name, certificate_chain), Pem::given(name, key)));
        self
    }

    /// Has `connector` open the streams to all servers: through a tunnel, over another kind of
    /// socket, or to a server of a test. It gets the addresses of this configuration, and those
    /// that Sentinels and clusters name. See [`Connector`] for its duties.
    #[must_use]
    pub fn connector(mut self, connector: impl Connector) -> Self {
        self.connector = Some(ConnectorHandle::new(connector));
        self
    }

    /// Requires the order without which a lock has no share for others.
    pub(crate) fn in_order_if_shared(mut self) -> Result<Self, Error> {
        match (self.polling_share, self.order) {
            (None, _) => {}
            (Some(share), _) if share > self.max_ttl => {
                return Err(invalid("polling_share is longer than max_ttl, the longest lease"));
            }
            (Some(_), None | Some(Order::Fifo)) => self.order = Some(Order::Fifo),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "polling_share needs order=fifo: without a queue, no release can let another client go first",
                ));
            }
        }
        Ok(self)
    }

    /// Returns the shortest lease. Core abandons a renewal after half of the renewal interval, a
    /// sixth of the lease, and the wait for replicas has to fit into that.
    pub(crate) fn min_ttl(&self) -> Duration {
        MIN_TTL + self.replicas.map_or(Duration::ZERO, |min_replicas| min_replicas.timeout * 6)
    }

    fn with_room_for_renewals(self) -> Result<Self, Error> {
        if self.max_ttl < self.min_ttl() {
            return Err(invalid(
                "max_ttl is too short for min_replicas_timeout: renewals wait for replicas within a sixth of \
                 the lease, so it is at least six times the timeout and 10ms",
            ));
        }
        Ok(self)
    }

    pub(crate) fn at(endpoint: Endpoint) -> Result<Self, Error> {
        Ok(Self {
            endpoint,
            members: Vec::new(),
            login: Login::default(),
            database: 0,
            keys: Keys::new(Names::default(), "")?,
            max_ttl: MAX_TTL,
            order: None,
            polling_share: None,
            replicas: None,
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
            connector: None,
            tcp: TcpSettings::default(),
        })
    }

    fn at_host(authority: Authority, tls: bool) -> Result<Self, Error> {
        let Ok([host]) = <[Host; 1]>::try_from(authority.hosts) else {
            return Err(invalid("a Redis URL names one host"));
        };
        let mut config = Self::at(Endpoint::Fixed(Address::Tcp { host, tls }))?;
        config.login = authority.credentials.map(Login::from).unwrap_or_default();
        config.database = database(&authority.path)?;
        Ok(config)
    }

    fn at_sentinels(url: &mut Url, tls: bool) -> Result<Self, Error> {
        let Authority { credentials, hosts, path } = url.authority(DEFAULT_SENTINEL_PORT)?;
        let (service, number) = path.split_once('/').unwrap_or((&path, ""));
        if service.is_empty() {
            return Err(invalid(
                "name what the sentinels watch: redis+sentinel://host,host,host/name",
            ));
        }
        let login = Login::take_from(url, "sentinel_user", "sentinel_password")?;
        let service = service.to_owned();
        let mut config = Self::at(Endpoint::Sentinel(Sentinels { hosts, service, tls, login }))?;
        config.login = credentials.map(Login::from).unwrap_or_default();
        config.database = database(number)?;
        Ok(config)
    }

    fn in_cluster(authority: Authority, tls: bool) -> Result<Self, Error> {
        let members = authority.hosts.clone();
        let first = authority.hosts.into_iter().take(1).collect();
        let config = Self::at_host(Authority { hosts: first, ..authority }, tls)?;
        match config.database {
            0 => Ok(Self { members, ..config }),
            _ => Err(invalid("a cluster has no other database than 0")),
        }
    }

    /// Returns the same configuration for one member of the cluster.
    pub(crate) fn at_member(&self, host: Host) -> Self {
        let tls = self.endpoint.is_encrypted();
        let endpoint = Endpoint::Fixed(Address::Tcp { host, tls });
        Self { endpoint, members: Vec::new(), ..self.clone() }
    }

    fn at_socket(url: &mut Url) -> Result<Self, Error> {
        let path = url.path()?.ok_or_else(|| invalid("write redis+unix:///path/of/the/socket"))?;
        let mut config = Self::at(Endpoint::Fixed(Address::Unix(path.into())))?;
        config.login = Login::take_from(url, "user", "password")?;
        config.database = database(&url.take("db")?.unwrap_or_default())?;
        Ok(config)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        shown.field("place", &self.endpoint).field("user", &self.login.user);
        if !self.members.is_empty() {
            shown.field("members", &self.members);
        }
        shown.field("database", &self.database).field("prefix", &self.keys.prefix());
        shown.field("names", &self.keys.names());
        shown.field("max_ttl", &self.max_ttl).field("order", &self.order);
        shown.field("polling_share", &self.polling_share);
        shown.field("replicas", &self.replicas);
        #[cfg(feature = "tls")]
        shown.field("certificates", &self.certificates);
        shown.field("connector", &self.connector);
        shown.finish_non_exhaustive()
    }
}

lock_core::config_from_url!(Config);

fn database(text: &str) -> Result<i64, Error> {
    match text {
        "" => Ok(0),
        _ => text
            .parse::<u32>()
            .map(i64::from)
            .map_err(|_| invalid("the database of a Redis URL is a number, as in redis://host/2")),
    }
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

/// How many replicas have to know of a lock, and for how long they are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MinReplicas {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: Host { name: host.into(), port }, tls: false }
    }

    #[test]
    fn urls_are_understood() {
        for (url, endpoint, user, password, database, prefix) in [
            ("redis://h", tcp("h", 6379), None, None, 0, ""),
            ("redis://h/", tcp("h", 6379), None, None, 0, ""),
            ("REDIS://10.0.0.1:7/3?prefix=a%3Ab%2F", tcp("10.0.0.1", 7), None, None, 3, "a:b/"),
            ("redis://[::1]", tcp("::1", 6379), None, None, 0, ""),
            ("redis://[::1]:7", tcp("::1", 7), None, None, 0, ""),
            ("redis://:p%40ss@h", tcp("h", 6379), None, Some("p@ss"), 0, ""),
            ("redis://u:p:q@h:1/1", tcp("h", 1), Some("u"), Some("p:q"), 1, ""),
            ("redis+unix:///a%20b", Address::Unix("/a b".into()), None, None, 0, ""),
            (
                "redis+unix:///s?db=2&user=u&password=p&prefix=x/",
                Address::Unix("/s".into()),
                Some("u"),
                Some("p"),
                2,
                "x/",
            ),
        ] {
            let config = Config::new(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(config.endpoint, Endpoint::Fixed(endpoint), "{url}");
            assert_eq!(config.login.user.as_deref(), user, "{url}");
            assert_eq!(config.login.password.as_deref(), password, "{url}");
            assert_eq!((config.database, config.keys.prefix()), (database, prefix), "{url}");
        }
    }

    #[test]
    fn sentinels_are_understood() {
        let url = "redis+sentinel://u:p@a,[::1]:7/my-primary/3?sentinel_user=s&sentinel_password=q";
        let config = Config::new(url).unwrap();
        let hosts = [("a", DEFAULT_SENTINEL_PORT), ("::1", 7)];
        let hosts = hosts.map(|(name, port)| Host { name: name.into(), port }).to_vec();
        let login = Login { user: Some("s".into()), password: Some("q".into()) };
        let service = "my-primary".to_owned();
        let endpoint = Endpoint::Sentinel(Sentinels { hosts, service, tls: false, login });
        assert_eq!((config.endpoint, config.database), (endpoint, 3));
        assert_eq!(config.login.user.as_deref(), Some("u"));
        let alone = Config::new("redis+sentinel://a/name").unwrap();
        assert_eq!((alone.login, alone.database), (Login::default(), 0));
    }

    #[test]
    fn malformed_urls_are_refused_and_not_repeated() {
        for url in [
            "",
            "redis:h",
            "http://hunter2",
            "redis://",
            "redis://u:hunter2@",
            "redis://hunter2@h",
            "redis://u:hunter2@h:0",
            "redis://u:hunter2@h:65536",
            "redis://u:hunter2@a,b:1,c",
            "redis://u:hunter2@::1",
            "redis://u:hunter2@[::1",
            "redis://u:hunter2@[::1]7",
            "redis://u:hunter2@[]",
            "redis://u:hunter2@a,b",
            "redis://u:hunter2@h/x",
            "redis://u:hunter2@h/-1",
            "redis://u:hunter2@h/0/1",
            "redis://u:hunter2@h#x",
            "redis://u:hunter2@h?prefix",
            "redis://u:hunter2@h?prefix=x",
            "redis://u:hunter2@h?prefix=a:&prefix=b:",
            "redis://u:hunter2@h?colour=red",
            "redis://u:hunter2@h?db=1",
            "redis://u:%ff@h",
            "redis+unix://hunter2/x",
            "redis+unix:///x?user=hunter2",
            "redis://u:12?colour=hunter2@h",
            "redis://u:12?hunter2=@h",
            "rediss://u:12?ca=hunter2@h",
            "redis://h?min_replicas=0",
            "redis://h?min_replicas=hunter2",
            "redis://h?min_replicas_timeout=1s",
            "redis://h?min_replicas=1&min_replicas_timeout=2m",
            "redis://h?max_ttl=3s&min_replicas=1",
            "redis://h?ca=/x",
            "redis://h?key=/x",
            "redis+unix:///x?cert=/x&key=/x",
            "redis+sentinel://hunter2",
            "redis+sentinel://a,b/",
            "redis+sentinel://u:hunter2@a,b//2",
            "redis+sentinel://u:hunter2@a,b/name/two",
            "redis+sentinel://a/name?sentinel_user=hunter2",
            "redis+sentinel://a/name?ca=/x",
            "redis://h?sentinel_password=hunter2",
            "redis+cluster://hunter2@h",
            "redis+cluster://u:hunter2@h/1",
            "redis+cluster://u:hunter2@h,",
            "redis+cluster://h?ca=/x",
            "redis://h?order=hunter2",
            "redis://h?max_ttl=hunter2",
            "redis://h?max_ttl=9ms",
            "redis://h?max_ttl=366days",
        ] {
            let error = Config::new(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn a_cluster_url_names_its_members() {
        let host = |name: &str, port| Host { name: name.into(), port };
        let config = Config::new("redis+cluster://u:p@a,b:7,[::1]:8?prefix=x:&order=any").unwrap();
        assert_eq!(config.members, [host("a", 6379), host("b", 7), host("::1", 8)]);
        assert_eq!((config.keys.prefix(), config.order), ("x:", Some(Order::PerProcess)));
        let member = config.at_member(host("c", 9));
        assert_eq!(member.endpoint, Endpoint::Fixed(tcp("c", 9)));
        assert_eq!(member.login.password.as_deref(), Some("p"));
        assert_eq!(Config::new("redis+cluster://a/0").unwrap().members.len(), 1);
        assert!(Config::new("redis://a").unwrap().members.is_empty());
    }

    #[test]
    fn debug_shows_no_password() {
        let config = Config::new("redis://u:hunter2@h?prefix=a:").unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2") && shown.contains("a:"), "{shown}");
    }

    #[test]
    fn the_longest_lease_is_within_limits() {
        let of = |url: &str| Config::new(url).unwrap().max_ttl;
        assert_eq!(of("redis://h"), MAX_TTL);
        assert_eq!(of("redis://h?max_ttl=1h%2030m"), Duration::from_secs(5400));
        assert_eq!(of("redis+unix:///s?max_ttl=10ms"), MIN_TTL);
        let config = Config::new("redis://h").unwrap();
        for wrong in [Duration::ZERO, MIN_TTL / 2, MAX_TTL + MIN_TTL, Duration::MAX] {
            let error = config.clone().max_ttl(wrong).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("10ms to 365days"), "{error}");
        }
        assert_eq!(config.max_ttl(MAX_TTL).unwrap().max_ttl, MAX_TTL);
    }

    #[test]
    fn the_order_is_one_of_two() {
        let of = |url: &str| Config::new(url).unwrap().order;
        assert_eq!(of("redis://h"), None);
        assert_eq!(of("redis+unix:///s?order=fifo"), Some(Order::Fifo));
        assert_eq!(of("redis://h?order=any"), Some(Order::PerProcess));
    }

    #[test]
    fn min_replicas_is_an_option() {
        let of = |url: &str| Config::new(url).unwrap().replicas;
        let min_replicas = |count, timeout| Some(MinReplicas { count, timeout });
        assert_eq!(of("redis://h"), None);
        assert_eq!(of("redis://h?min_replicas=2"), min_replicas(2, REPLICAS_TIMEOUT));
        let second = Duration::from_secs(1);
        assert_eq!(of("redis://h?min_replicas_timeout=1s&min_replicas=1"), min_replicas(1, second));
        let of_cluster = Config::new("redis+cluster://h?min_replicas=1").unwrap();
        let member = of_cluster.at_member(Host { name: "a".into(), port: 1 });
        assert_eq!(member.replicas, min_replicas(1, REPLICAS_TIMEOUT));
        let shortest = |url: &str| Config::new(url).unwrap().min_ttl().as_millis();
        assert_eq!(shortest("redis://h"), 10);
        assert_eq!(
            shortest("redis://h?min_replicas=1&min_replicas_timeout=50ms&max_ttl=310ms"),
            310
        );
    }

    #[test]
    fn certificates_need_encryption() {
        for option in ["ca", "cert", "key"] {
            let error = Config::new(&format!("redis://h?{option}=/x")).unwrap_err().to_string();
            assert!(error.contains(option) && error.contains("rediss://"), "{error}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_certificate_and_its_key_go_together() {
        for option in ["cert", "key"] {
            let error = Config::new(&format!("rediss://h?{option}=/x")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("cert and key go together"), "{error}");
        }
        assert!(Config::new("rediss+sentinel://h/name?ca=d").unwrap().endpoint.is_encrypted());
        let config = Config::new("rediss://h?cert=/a%20b&key=/c&ca=d").unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains(r#""/a b""#) && shown.contains(r#""d""#), "{shown}");
        let config = config.client_identity("hunter2", "hunter2").root_certificates("hunter2");
        let shown = format!("{config:?}");
        assert!(shown.contains("client_identity") && !shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("104, 117"), "not as numbers either: {shown}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        for url in ["rediss://h", "rediss+sentinel://h/name"] {
            let error = Config::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("\"tls\""), "{error}");
        }
    }
}
