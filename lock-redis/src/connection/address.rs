//! Addresses of servers and sentinels, and the credentials for them.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lock_core::url::{Host, Url};
use lock_core::{Error, ErrorKind};

/// How long the oldest request may go without an answer. The kernel, too, abandons a peer that does
/// not acknowledge sent data for this long. On an idle connection it sends keep-alive probes.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: Host, tls: bool },
    Unix(PathBuf),
}

/// The user and password on a server.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Address {
    pub(crate) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tcp { tls: true, .. })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, .. } => host.fmt(f),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Login {
    /// Takes the credentials from the options with these names.
    pub(crate) fn take_from(url: &mut Url, user: &str, password: &str) -> Result<Self, Error> {
        let login = Self { user: url.take(user)?, password: url.take(password)? };
        if login.user.is_some() && login.password.is_none() {
            return Err(Error::new(ErrorKind::Invalid, "a user needs a password"));
        }
        Ok(login)
    }
}

/// Shows no password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The user may be empty, for the default one.
impl From<(String, String)> for Login {
    fn from((user, password): (String, String)) -> Self {
        Self { user: Some(user).filter(|user| !user.is_empty()), password: Some(password) }
    }
}

/// How the server is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// It is known where it is.
    Fixed(Address),
    /// The sentinels know.
    Sentinel(Sentinels),
}

impl Endpoint {
    pub(crate) fn is_encrypted(&self) -> bool {
        match self {
            Self::Fixed(address) => address.is_encrypted(),
            Self::Sentinel(sentinels) => sentinels.tls,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => address.fmt(f),
            Self::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}

/// The sentinels that watch over a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Host>,
    /// The name of the primary and its replicas.
    pub(crate) service: String,
    /// Of the sentinels and of the servers.
    pub(crate) tls: bool,
    /// The credentials for the sentinels.
    pub(crate) login: Login,
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}, named by the sentinels {}", self.service, hosts.join(","))
    }
}

/// Where a server is, and how new that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerLocation {
    pub(crate) address: Address,
    /// The count of the sentinels; `None` if the address is a fixed one.
    pub(crate) epoch: Option<u64>,
}
