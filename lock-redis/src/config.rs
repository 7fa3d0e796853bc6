//! Where the server is and how to talk to it.

use std::fmt;
use std::path::PathBuf;

use lock_core::{Error, ErrorKind};
use percent_encoding::percent_decode_str;

use crate::keys::Keys;

const DEFAULT_PORT: u16 = 6379;

/// Where the server is, who we are there, and under which prefix its locks stand.
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
/// `Debug` shows the address, the database, the user and the prefix, and no password.
#[derive(Clone)]
pub struct Config {
    pub(crate) place: Place,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    pub(crate) keys: Keys,
    /// In PEM; `None` for those that the system trusts.
    #[cfg(feature = "tls")]
    pub(crate) root_certificates: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl Config {
    /// Reads a URL:
    ///
    /// * `redis://[user:password@]host[:port][/database]`
    /// * `rediss://…`, the same over TLS, with the Cargo feature `tls`
    /// * `redis+unix:///path/of/the/socket`
    ///
    /// User and password are percent-decoded; `:password@` is the default user's. Options follow as
    /// `?name=value&…`: `prefix` is put before every key, and with a socket there are `db`, `user` and
    /// `password`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it cannot be understood, [`ErrorKind::Unsupported`] if it asks for TLS
    /// and the feature is off. No error repeats the URL: it may hold a password.
    pub fn new(url: &str) -> Result<Self, Error> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| invalid("the URL of a Redis server begins with redis://"))?;
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') {
            return Err(invalid("a Redis URL has no fragment; write # as %23"));
        }
        let mut options = Options::parse(query)?;
        let mut config = match scheme.to_ascii_lowercase().as_str() {
            "redis" => Self::at_host(location, false)?,
            "rediss" if cfg!(feature = "tls") => Self::at_host(location, true)?,
            "rediss" => {
                let why = "rediss: needs the Cargo feature \"tls\" of lock-redis, which is off";
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
            "redis+unix" => Self::at_socket(location, &mut options)?,
            _ => return Err(invalid("write redis://, rediss:// or redis+unix://")),
        };
        if let Some(prefix) = options.take("prefix") {
            config = config.prefix(&prefix)?;
        }
        options.no_more()?;
        Ok(config)
    }

    /// Puts `prefix` before every key. It ends in `:` or `/`, and a pair of braces in it makes all
    /// locks of this prefix share a cluster slot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it does not.
    pub fn prefix(mut self, prefix: &str) -> Result<Self, Error> {
        self.keys = Keys::with_prefix(prefix)?;
        Ok(self)
    }

    /// Trusts the authorities in `pem`, and no others, to vouch for the server of a `rediss://` URL.
    /// Without this they are those that the system trusts.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates = Some(pem.into());
        self
    }

    fn at(place: Place) -> Result<Self, Error> {
        Ok(Self {
            place,
            user: None,
            password: None,
            database: 0,
            keys: Keys::with_prefix("")?,
            #[cfg(feature = "tls")]
            root_certificates: None,
        })
    }

    fn at_host(location: &str, tls: bool) -> Result<Self, Error> {
        let (credentials, rest) = match location.rsplit_once('@') {
            Some((credentials, rest)) => (Some(credentials), rest),
            None => (None, location),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = host_and_port(authority)
            .ok_or_else(|| invalid("a Redis URL names one host, an IPv6 address in [brackets]"))?;
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => match port.parse() {
                Ok(port) if port > 0 => port,
                _ => return Err(invalid("the port of a Redis URL is a number up to 65535")),
            },
        };
        let mut config = Self::at(Place::Tcp { host: decode(host)?, port, tls })?;
        if let Some(credentials) = credentials {
            let (user, password) = credentials
                .split_once(':')
                .ok_or_else(|| invalid("before the @ of a Redis URL stands user:password"))?;
            config.user = Some(decode(user)?).filter(|user| !user.is_empty());
            config.password = Some(decode(password)?);
        }
        config.database = database(path)?;
        Ok(config)
    }

    fn at_socket(location: &str, options: &mut Options) -> Result<Self, Error> {
        if !location.starts_with('/') {
            return Err(invalid("a socket is an absolute path: redis+unix:///path"));
        }
        let mut config = Self::at(Place::Unix(PathBuf::from(decode(location)?)))?;
        config.user = options.take("user");
        config.password = options.take("password");
        if config.user.is_some() && config.password.is_none() {
            return Err(invalid("a user needs a password"));
        }
        config.database = database(&options.take("db").unwrap_or_default())?;
        Ok(config)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("place", &self.place)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("prefix", &self.keys.prefix())
            .finish_non_exhaustive()
    }
}

impl TryFrom<&str> for Config {
    type Error = Error;

    fn try_from(url: &str) -> Result<Self, Error> {
        Self::new(url)
    }
}

impl TryFrom<String> for Config {
    type Error = Error;

    fn try_from(url: String) -> Result<Self, Error> {
        Self::new(&url)
    }
}

/// What stands behind the question mark.
struct Options(Vec<(String, String)>);

impl Options {
    fn parse(query: &str) -> Result<Self, Error> {
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(invalid("an option of a Redis URL has no value"));
            };
            if options.iter().any(|(known, _)| known == name) {
                return Err(invalid(format!("the URL option {name:?} is given twice")));
            }
            options.push((name.to_owned(), decode(value)?));
        }
        Ok(Self(options))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn no_more(self) -> Result<(), Error> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(invalid(format!("the redis: backend has no URL option {name:?}")))
            }
        }
    }
}

fn host_and_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_one = !host.is_empty() && !host.contains([',', '[', ']']);
    is_one.then_some((host, port))
}

fn database(text: &str) -> Result<i64, Error> {
    match text {
        "" => Ok(0),
        _ => text
            .parse::<u32>()
            .map(i64::from)
            .map_err(|_| invalid("the database of a Redis URL is a number, as in redis://host/2")),
    }
}

fn decode(text: &str) -> Result<String, Error> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| invalid("a Redis URL must be UTF-8 after percent-decoding"))
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Place {
        Place::Tcp { host: host.into(), port, tls: false }
    }

    #[test]
    fn urls_are_understood() {
        for (url, place, user, password, database, prefix) in [
            ("redis://h", tcp("h", 6379), None, None, 0, ""),
            ("redis://h/", tcp("h", 6379), None, None, 0, ""),
            ("REDIS://10.0.0.1:7/3?prefix=a%3Ab%2F", tcp("10.0.0.1", 7), None, None, 3, "a:b/"),
            ("redis://[::1]", tcp("::1", 6379), None, None, 0, ""),
            ("redis://[::1]:7", tcp("::1", 7), None, None, 0, ""),
            ("redis://:p%40ss@h", tcp("h", 6379), None, Some("p@ss"), 0, ""),
            ("redis://u:p:q@h:1/1", tcp("h", 1), Some("u"), Some("p:q"), 1, ""),
            ("redis+unix:///a%20b", Place::Unix("/a b".into()), None, None, 0, ""),
            (
                "redis+unix:///s?db=2&user=u&password=p&prefix=x/",
                Place::Unix("/s".into()),
                Some("u"),
                Some("p"),
                2,
                "x/",
            ),
        ] {
            let config = Config::new(url).unwrap_or_else(|error| panic!("{url}: {error}"));
            assert_eq!(config.place, place, "{url}");
            assert_eq!(config.user.as_deref(), user, "{url}");
            assert_eq!(config.password.as_deref(), password, "{url}");
            assert_eq!((config.database, config.keys.prefix()), (database, prefix), "{url}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_without_being_repeated() {
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
        ] {
            let error = Config::new(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let config = Config::new("redis://u:hunter2@h?prefix=a:").unwrap();
        let shown = format!("{config:?}");
        assert!(!shown.contains("hunter2") && shown.contains("a:"), "{shown}");
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let error = Config::new("rediss://h").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("\"tls\""), "{error}");
    }
}
