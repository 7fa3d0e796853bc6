//! Where the servers are.

use std::fmt;

use lock_core::url::Url;
use lock_core::{Error, ErrorKind};

use crate::keys::Keys;

const DEFAULT_PORT: u16 = 11211;

/// Limit of servers in a URL.
const MAX_SERVERS: usize = 100;

/// Addresses, credentials and key prefix.
///
/// ```
/// # fn main() -> Result<(), lock_core::Error> {
/// use lock_memcache::Config;
///
/// let config = Config::new("memcache://10.0.0.1,10.0.0.2:11212")?.prefix("billing:")?;
/// let same = Config::new("memcache://10.0.0.2:11212,10.0.0.1:11211?prefix=billing:")?;
/// # assert_eq!(format!("{config:?}"), format!("{same:?}"));
/// # Ok(()) }
/// ```
///
/// `Debug` shows no password.
#[derive(Clone)]
pub struct Config {
    /// As `host:port`, sorted.
    pub(crate) servers: Vec<String>,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) keys: Keys,
}

/// The credentials of a server that was started with `-Y`.
#[derive(Clone)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Config {
    /// Parses a URL: `memcache://[user:password@]host[:port][,host[:port]…]`, with the option
    /// [`prefix`](Self::prefix) as `?prefix=…`. An IPv6 address stands in brackets. User, password
    /// and prefix are percent-decoded.
    ///
    /// Of several servers, each has its share of the locks. The server of a lock depends on the
    /// spelling of the servers here, in any order: all clients must write them alike.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it cannot be parsed. No error repeats the URL: it may hold a
    /// password.
    pub fn new(url: &str) -> Result<Self, Error> {
        Url::parse(url)?.try_into()
    }

    /// Parses `url` and takes its options out.
    fn of(url: &mut Url) -> Result<Self, Error> {
        if url.scheme() != "memcache" {
            return Err(invalid("the URL of memcached servers begins with memcache://"));
        }
        let authority = url.authority(DEFAULT_PORT)?;
        if !authority.path.is_empty() {
            return Err(invalid("a memcached URL has no path"));
        }
        // As they are looked up, and as they are hashed.
        let written = authority.hosts.iter().map(|host| host.to_string().to_ascii_lowercase());
        let mut servers: Vec<String> = written.collect();
        servers.sort_unstable();
        servers.dedup();
        let count = authority.hosts.len();
        if servers.len() < count || count > MAX_SERVERS {
            return Err(invalid("a memcached URL names up to 100 servers, each of them once"));
        }
        let credentials = authority.credentials.map(Credentials::new).transpose()?;
        let config = Self { servers, credentials, keys: Keys::with_prefix("")? };
        match url.take("prefix")? {
            Some(prefix) => config.prefix(&prefix),
            None => Ok(config),
        }
    }

    /// Puts `prefix` before every key. It ends in `:` or `/`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it does not.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        self.keys = Keys::with_prefix(prefix)?;
        Ok(self)
    }
}

impl Credentials {
    /// Checks both. The server takes them in one line, with a blank between them.
    fn new((user, password): (String, String)) -> Result<Self, Error> {
        let is_odd = |c: char| c.is_control() || c == ' ' || c == ':';
        if user.is_empty() || user.contains(is_odd) || password.contains(char::is_control) {
            let why = "a memcached user is a word, and a password holds no control characters";
            return Err(invalid(why));
        }
        if user.len() + password.len() > 255 {
            return Err(invalid("the user and password of a memcached URL are too long"));
        }
        Ok(Self { user, password })
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("servers", &self.servers)
            .field("user", &self.credentials.as_ref().map(|credentials| &credentials.user))
            .field("prefix", &self.keys.prefix())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

lock_core::config_from_url!(Config);

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_understood() {
        for (url, servers, user, prefix) in [
            ("memcache://h", &["h:11211"][..], None, ""),
            ("MEMCACHE://H:7/", &["h:7"], None, ""),
            ("memcache://b,a:2?prefix=x%2F", &["a:2", "b:11211"], None, "x/"),
            ("memcache://[::1],[::1]:7", &["[::1]:11211", "[::1]:7"], None, ""),
            ("memcache://u:p%40:%20@h", &["h:11211"], Some(("u", "p@: ")), ""),
        ] {
            let config = Config::new(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(
                (config.servers.as_slice(), config.keys.prefix()),
                (servers_of(servers).as_slice(), prefix),
                "{url}"
            );
            let found = config.credentials.as_ref().map(|c| (c.user.as_str(), c.password.as_str()));
            assert_eq!(found, user, "{url}");
        }
    }

    fn servers_of(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    #[test]
    fn invalid_urls_are_refused_without_being_repeated() {
        for url in [
            "",
            "memcache:h",
            "http://hunter2",
            "memcache://",
            "memcache://hunter2@h",
            "memcache://u:hunter2@",
            "memcache://u:hunter2@h:0",
            "memcache://u:hunter2@h:65536",
            "memcache://u:hunter2@h,",
            "memcache://u:hunter2@h,h:11211",
            "memcache://u:hunter2@::1",
            "memcache://u:hunter2@[::1",
            "memcache://u:hunter2@h/x",
            "memcache://u:hunter2@h#x",
            "memcache://u:hunter2@h%20x",
            "memcache://u:hunter2@h?prefix",
            "memcache://u:hunter2@h?prefix=x",
            "memcache://u:hunter2@h?prefix=a:&prefix=b:",
            "memcache://u:hunter2@h?colour=red",
            "memcache://u:hunter2@h?=",
            "memcache://u:hunter2%0d%0a@h",
            "memcache://a%20b:hunter2@h",
            "memcache://:hunter2@h",
            "memcache://u:12?colour=hunter2@h",
            "memcache://u:%ff@h",
        ] {
            let error = Config::new(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let config = Config::new("memcache://u:hunter2@h?prefix=a:").unwrap();
        let shown = format!("{config:?} {:?}", config.credentials);
        assert!(!shown.contains("hunter2") && shown.contains("a:"), "{shown}");
    }
}
