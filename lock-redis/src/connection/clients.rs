//! Clients of the Redis library, made from the configuration.

use std::time::Duration;

use lock_core::Error;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError,
};

use crate::config::Config;
use crate::connection::address::{Address, Login, SILENCE};
use crate::fault;

const KEEPALIVE_PROBES: u32 = 3;
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
impl Config {
    /// Looks whether the files that it names are fit for use.
    pub(crate) async fn check_files(&self) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        self.certificates.read_for(self.endpoint.is_encrypted()).await?;
        Ok(())
    }

    /// Clients for a server: one with signals, and one without for servers that have none. The
    /// files that are named are read anew: certificates are replaced while programs run.
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
