//! One server: where it is, who we are there, and how a connection to it is set up.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lock_core::url::{Host, Url};
use lock_core::{Error, ErrorKind};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError,
};

use crate::config::Config;
use crate::fault;

/// How long the oldest request may go without answer. Also when the kernel gives up on a peer that does
/// not acknowledge what was sent; on an idle line it asks, with keep-alive probes.
pub(crate) const SILENCE: Duration = Duration::from_secs(5);

const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_PROBES: u32 = 3;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp { host: Host, tls: bool },
    Unix(PathBuf),
}

/// Who we are on a server.
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
    /// What the options of these names say.
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

impl Config {
    /// Looks whether the files that it names are fit for use.
    pub(crate) async fn check_files(&self) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        self.certificates.read_for(self.endpoint.is_encrypted()).await?;
        Ok(())
    }

    /// Clients for a server: one with signals, and one without for servers that have none. The files that are
    /// named are read anew: certificates are replaced while programs run.
    pub(crate) async fn clients(
        &self,
        address: &Address,
        login: &Login,
        database: i64,
    ) -> Result<[Client; 2], Error> {
        #[cfg(feature = "tls")]
        let certificates = self.certificates.read_for(address.is_encrypted()).await?;
        let open = |info: ConnectionInfo| {
            #[cfg(feature = "tls")]
            if let Some(certificates) = &certificates {
                return Client::build_with_tls(info, certificates.clone());
            }
            Client::open(info)
        };
        let client = |protocol| {
            connection_info(address, login, database, protocol)
                .and_then(open)
                .map_err(|error| fault::error(fault::no_connection(address, &error)))
        };
        Ok([client(ProtocolVersion::RESP3)?, client(ProtocolVersion::RESP2)?])
    }
}

fn connection_info(
    address: &Address,
    login: &Login,
    database: i64,
    protocol: ProtocolVersion,
) -> Result<ConnectionInfo, RedisError> {
    let address = match address {
        Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        Address::Tcp { host, tls: false } => ConnectionAddr::Tcp(host.name.clone(), host.port),
        Address::Tcp { host, tls: true } => ConnectionAddr::TcpTls {
            host: host.name.clone(),
            port: host.port,
            insecure: false,
            tls_params: None,
        },
    };
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_PROBES);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    let tcp = tcp.set_user_timeout(SILENCE);
    let mut redis = RedisConnectionInfo::default()
        .set_db(database)
        .set_protocol(protocol)
        .set_skip_set_lib_name();
    if let Some(user) = &login.user {
        redis = redis.set_username(user);
    }
    if let Some(password) = &login.password {
        redis = redis.set_password(password);
    }
    let info = address.into_connection_info()?;
    Ok(info.set_tcp_settings(tcp).set_redis_settings(redis))
}
