//! The options of a client.

use std::fmt;
use std::time::Duration;

use lock_core::url::{Host, Url};
use lock_core::{Error, ErrorKind};

use crate::names::{Layout, Names};
#[cfg(feature = "tls")]
use crate::tls::Certificates;

/// The port of a server without one. With it, equal addresses look equal.
const DEFAULT_PORT: u16 = 2181;

/// The requested timeout. The servers have limits of their own.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(3600);

/// The servers of an ensemble, the credentials for it, and the node that contains the locks.
///
/// ```
/// # fn main() -> Result<(), lock_core::Error> {
/// use lock_zookeeper::Config;
///
/// let config = Config::new("zookeeper://zk1:2181,zk2:2181,zk3:2181/app")?.prefix("locks/")?;
/// let same = Config::new("zookeeper://zk1,zk2,zk3/app?prefix=locks/")?;
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Config {
    /// `host:port`, with commas in between.
    pub(crate) servers: String,
    /// Empty, or an absolute path.
    pub(crate) chroot: String,
    /// `user:password`
    pub(crate) credentials: Option<String>,
    pub(crate) session_timeout: Duration,
    pub(crate) names: Names,
    /// `None` in the clear.
    #[cfg(feature = "tls")]
    pub(crate) certificates: Option<Certificates>,
}

impl Config {
    /// Reads a URL: `zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]`, or
    /// `zookeeper+tls://…`, the same over TLS, with the Cargo feature `tls`.
    ///
    /// The hosts are the members of one ensemble. The default port is 2181, and an IPv6 address is
    /// in brackets. All paths are below the chroot, which must exist. User and password are
    /// percent-decoded and sent with the scheme `digest`. All nodes that the client creates then
    /// belong to that user alone. Without them nodes belong to the world. Options follow as
    /// `?name=value&…`, percent-encoded:
    ///
    /// | option | meaning |
    /// |---|---|
    /// | `prefix` | the path below which locks are, see [`prefix`](Self::prefix) |
    /// | `session_timeout` | a duration like `10s`, see [`session_timeout`](Self::session_timeout) |
    /// | `layout` | `curator` or `kazoo`, see [`layout`](Self::layout) |
    /// | `ca` | required with `zookeeper+tls:`, the file with the trusted authorities |
    /// | `cert`, `key` | with `zookeeper+tls:`, two files with the client's certificate and key |
    ///
    /// The files are PEM. Each may hold several certificates. In `cert` the client's own is the
    /// first one, and `cert` and `key` may be one file. They are read whenever a connection is
    /// opened, and not now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the URL is malformed, and [`ErrorKind::Unsupported`] if it needs
    /// the feature `tls` and that is off. No error repeats the URL, which may hold a password.
    pub fn new(url: &str) -> Result<Self, Error> {
        Url::parse(url)?.try_into()
    }

    /// Takes the options of this backend out of `url`.
    fn of(url: &mut Url) -> Result<Self, Error> {
        let is_encrypted = match url.scheme() {
            "zookeeper" => false,
            "zookeeper+tls" if cfg!(feature = "tls") => true,
            "zookeeper+tls" => {
                let why = "zookeeper+tls: needs the Cargo feature \"tls\" of lock-zookeeper, which is off";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            _ => return Err(invalid("write zookeeper:// or zookeeper+tls://")),
        };
        let authority = url.authority(DEFAULT_PORT)?;
        let servers: Vec<String> = authority.hosts.iter().map(Host::to_string).collect();
        let mut config = Self {
            servers: servers.join(","),
            chroot: checked_chroot(&authority.path)?,
            credentials: authority.credentials.map(checked_credentials).transpose()?,
            session_timeout: SESSION_TIMEOUT,
            names: Names::new("", Layout::default())?,
            #[cfg(feature = "tls")]
            certificates: None,
        };
        if let Some(prefix) = url.take("prefix")? {
            config = config.prefix(&prefix)?;
        }
        if let Some(timeout) = url.take_duration("session_timeout")? {
            config = config.session_timeout(timeout)?;
        }
        if let Some(layout) = url.take("layout")? {
            config = config.layout(layout_called(&layout)?);
        }
        let files = url.take_certificate_files("zookeeper+tls")?;
        if is_encrypted {
            let Some(_ca) = files.authorities else {
                let why = "zookeeper+tls: needs the URL option ca: the file with the authorities that servers are checked against";
                return Err(invalid(why));
            };
            #[cfg(feature = "tls")]
            {
                let identity = files.identity.as_ref().map(|(cert, key)| (&**cert, &**key));
                config.certificates = Some(Certificates::new(&_ca, identity));
            }
        }
        Ok(config)
    }

    /// Puts all locks below this path, which ends in `/`: `locks/` makes `orders` the node
    /// `/locks/orders`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not a path that ends in `/`.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        self.names = Names::new(prefix, self.names.layout)?;
        Ok(self)
    }

    /// Sets the session timeout that the client requests; 10 s by default. The servers grant a
    /// timeout within their limits, from two to twenty ticks by default, and the granted timeout
    /// counts.
    ///
    /// A crashed holder is replaced after that time. A holder that is partitioned stops within half
    /// of it, sometimes within a tenth.
    ///
    /// Choose four ticks or more, for the reasons in the [crate's documentation](crate#leases).
    /// Servers do not tell clients their tick. But a grant of more than the request is their
    /// minimum, two ticks by default, and traces a warning.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not from 100 ms to an hour.
    pub fn session_timeout(mut self, timeout: Duration) -> Result<Self, Error> {
        if !(SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).contains(&timeout) {
            return Err(invalid("session_timeout is out of range; it is from 100ms to 1h"));
        }
        self.session_timeout = timeout;
        Ok(self)
    }

    /// Names nodes as another library does, so that the two exclude each other.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.names.layout = layout;
        self
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Config");
        #[cfg(feature = "tls")]
        shown.field("certificates", &self.certificates);
        shown
            .field("servers", &self.servers)
            .field("chroot", &self.chroot)
            .field("prefix", &self.names.prefix())
            .field("session_timeout", &self.session_timeout)
            .field("layout", &self.names.layout)
            .finish_non_exhaustive()
    }
}

lock_core::config_from_url!(Config);

/// Returns the credentials in the form of the scheme `digest`.
fn checked_credentials((user, password): (String, String)) -> Result<String, Error> {
    if user.is_empty() || user.contains(':') {
        return Err(invalid("a user's name is not empty and has no colon"));
    }
    Ok(format!("{user}:{password}"))
}

/// Returns the chroot as an absolute path, or an empty string.
fn checked_chroot(chroot: &str) -> Result<String, Error> {
    if chroot.is_empty() {
        return Ok(String::new());
    }
    let odd = |element: &str| {
        matches!(element, "" | "." | "..") || element.chars().any(|c| c.is_control() || c == ',')
    };
    if chroot.split('/').any(odd) {
        return Err(invalid("the chroot of a ZooKeeper URL is a path: /app or /app/locks"));
    }
    Ok(format!("/{chroot}"))
}

/// Returns the layout with this name.
fn layout_called(name: &str) -> Result<Layout, Error> {
    match name {
        "curator" => Ok(Layout::Curator),
        "kazoo" => Ok(Layout::Kazoo),
        _ => Err(invalid("the URL option layout is curator or kazoo")),
    }
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let config = Config::new(
            "zookeeper://user:s%40c:ret@zk1,zk2:2182,[::1]:2183/a/b?prefix=locks/&session_timeout=4s&layout=kazoo",
        )
        .unwrap();
        assert_eq!(config.servers, "zk1:2181,zk2:2182,[::1]:2183");
        assert_eq!(config.chroot, "/a/b");
        assert_eq!(config.credentials.as_deref(), Some("user:s@c:ret"));
        assert_eq!(config.session_timeout, Duration::from_secs(4));
        assert_eq!((config.names.layout, &*config.names.prefix()), (Layout::Kazoo, "locks/"));
        let shown = format!("{config:?}");
        assert!(!shown.contains("cret") && !shown.contains("user"), "{shown}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn encryption_needs_its_files() {
        let config = Config::new("zookeeper+tls://zk1?ca=/a%20b&cert=/c&key=/d").unwrap();
        let shown = format!("{config:?}");
        for path in ["/a b", "/c", "/d"] {
            assert!(shown.contains(path), "{shown}");
        }
        for (url, hint) in [
            ("zookeeper+tls://zk1", "option ca"),
            ("zookeeper+tls://zk1?ca=/a&key=/d", "go together"),
            ("zookeeper://zk1?ca=/a", "use zookeeper+tls://"),
        ] {
            let error = Config::new(url).unwrap_err();
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let error = Config::new("zookeeper+tls://zk1?ca=/a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("\"tls\""), "{error}");
    }

    #[test]
    fn bad_urls_are_refused_and_not_repeated() {
        for url in [
            "zk1:2181",
            "redis://zk1",
            "zookeeper://",
            "zookeeper://zk1,,zk2",
            "zookeeper://zk1:0",
            "zookeeper://zk1:x",
            "zookeeper://zk 1",
            "zookeeper://secret@zk1",
            "zookeeper://:secret@zk1",
            "zookeeper://us%3Aer:secret@zk1",
            "zookeeper://zk1/a//b",
            "zookeeper://zk1/../b",
            "zookeeper://zk1#secret",
            "zookeeper://u:se?cret@zk1",
            "zookeeper://zk1?prefix=secret",
            "zookeeper://zk1?layout=secret",
            "zookeeper://zk1?session_timeout=1ms",
            "zookeeper://zk1?session_timeout=secret",
            "zookeeper://zk1?colour=red",
            "zookeeper://zk1?layout=kazoo&layout=kazoo",
        ] {
            let error = Config::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            let is_prefix = url.contains("prefix");
            assert!(is_prefix || !error.to_string().contains("secret"), "{error}");
        }
    }
}
