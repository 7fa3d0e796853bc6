//! Connections of the Redis library, opened as the configuration says.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Error;
#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError,
};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::config::Config;
use crate::connection::address::{Address, Login, SILENCE};
use crate::connector::{ConnectorHandle, ServerAddress};
use crate::fault;

const KEEPALIVE_PROBES: u32 = 3;
const KEEPALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);

/// The settings for connections to one server.
pub(crate) struct Opener {
    /// One with signals, and one without for servers that have none.
    clients: [Client; 2],
    address: Address,
    connector: Option<ConnectorHandle>,
    #[cfg(feature = "tls")]
    certificates: Option<TlsCertificates>,
}

/// An open connection.
pub(crate) struct Opened {
    pub(crate) redis: MultiplexedConnection,
    pub(crate) driver: Driver,
}

/// Ends the task of a connection when the last clone is dropped. The library does that by itself
/// for streams that it opens.
pub(crate) type Driver = Option<Arc<DriverTask>>;

/// Ends a task when it is dropped.
pub(crate) struct DriverTask(AbortHandle);

impl Config {
    /// Looks whether the files that it names are fit for use.
    pub(crate) async fn check_files(&self) -> Result<(), Error> {
        #[cfg(feature = "tls")]
        self.certificates.read_for(self.endpoint.is_encrypted()).await?;
        Ok(())
    }

    /// Returns the settings for connections to a server. The files that are named are read anew:
    /// certificates are replaced while programs run.
    pub(crate) async fn opener(
        &self,
        address: &Address,
        login: &Login,
        database: i64,
    ) -> Result<Opener, Error> {
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
                .map(|info| info.set_tcp_settings(with_ours(self.tcp.clone())))
                .and_then(open)
                .map_err(|error| fault::error(fault::no_connection(address, &error)))
        };
        Ok(Opener {
            clients: [client(ProtocolVersion::RESP3)?, client(ProtocolVersion::RESP2)?],
            address: address.clone(),
            connector: self.connector.clone(),
            #[cfg(feature = "tls")]
            certificates,
        })
    }
}

impl Opener {
    /// Opens a connection on which the server can send messages of its own accord.
    pub(crate) async fn with_pushes(
        &self,
        settings: &AsyncConnectionConfig,
    ) -> Result<Opened, RedisError> {
        self.open(&self.clients[0], settings).await
    }

    /// Opens a connection to a server that may not know how to send such messages.
    pub(crate) async fn without_pushes(
        &self,
        settings: &AsyncConnectionConfig,
    ) -> Result<Opened, RedisError> {
        self.open(&self.clients[1], settings).await
    }

    async fn open(
        &self,
        client: &Client,
        settings: &AsyncConnectionConfig,
    ) -> Result<Opened, RedisError> {
        let Some(connector) = &self.connector else {
            let redis = client.get_multiplexed_async_connection_with_config(settings).await?;
            return Ok(Opened { redis, driver: None });
        };
        let (connector, address) = (connector.clone(), self.address.clone());
        let info = client.get_connection_info().redis_settings().clone();
        let settings = settings.clone();
        #[cfg(feature = "tls")]
        let certificates = self.certificates.clone();
        // A task of its own, which ends with this future: a panic of the connector stays there.
        let mut opening = JoinSet::new();
        opening.spawn(async move {
            let stream = connector.open(&ServerAddress::from(&address)).await?;
            #[cfg(feature = "tls")]
            let stream = match (&certificates, &address) {
                (Some(certificates), Address::Tcp { host, .. }) => {
                    crate::connection::tls::encrypt(stream, &host.name, certificates).await?
                }
                _ => stream,
            };
            let (redis, work) =
                MultiplexedConnection::new_with_config(&info, stream, settings).await?;
            let driver = DriverTask::of(&tokio::spawn(work));
            Ok(Opened { redis, driver: Some(Arc::new(driver)) })
        });
        match opening.join_next().await {
            Some(Ok(opened)) => opened,
            Some(Err(error)) if error.is_panic() => {
                Err(io::Error::other("the connector panicked, or its stream").into())
            }
            _ => Err(io::Error::other("the runtime of the connector has ended").into()),
        }
    }
}

impl DriverTask {
    pub(crate) fn of<T>(task: &JoinHandle<T>) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        self.0.abort();
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
    Ok(address.into_connection_info()?.set_redis_settings(redis))
}

/// Returns the settings of the program's client, with ours where it leaves a choice. It cannot
/// choose to delay small writes: its default is to delay them, and renewals cannot wait.
fn with_ours(theirs: TcpSettings) -> TcpSettings {
    let tcp = theirs.set_nodelay(true);
    let tcp = match tcp.keepalive() {
        Some(_) => tcp,
        None => tcp.set_keepalive(
            TcpKeepalive::new()
                .with_time(KEEPALIVE_AFTER)
                .with_interval(KEEPALIVE_EVERY)
                .with_retries(KEEPALIVE_PROBES),
        ),
    };
    #[cfg(any(target_os = "android", target_os = "linux"))]
    if tcp.user_timeout().is_none() {
        return tcp.set_user_timeout(SILENCE);
    }
    tcp
}

#[cfg(all(test, feature = "redis-1", target_os = "linux"))]
mod tests {
    use super::*;

    async fn tcp_settings_with(theirs: TcpSettings) -> TcpSettings {
        let info = ("h", 1).into_connection_info().unwrap().set_tcp_settings(theirs);
        let config = Config::from_connection_info(info).unwrap();
        let (host, tls) = (lock_core::url::Host { name: "h".into(), port: 1 }, false);
        let opener = config.opener(&Address::Tcp { host, tls }, &config.login, 0).await.unwrap();
        opener.clients[0].get_connection_info().tcp_settings().clone()
    }

    #[tokio::test]
    async fn tcp_settings_of_a_client_are_kept_and_completed() {
        let ours = tcp_settings_with(TcpSettings::default()).await;
        assert!(ours.nodelay() && ours.keepalive().is_some());
        assert_eq!(ours.user_timeout(), Some(SILENCE));
        let (keepalive, timeout) =
            (TcpKeepalive::new().with_time(KEEPALIVE_AFTER * 7), SILENCE * 7);
        let theirs = TcpSettings::default().set_keepalive(keepalive.clone());
        let kept = tcp_settings_with(theirs.set_user_timeout(timeout)).await;
        assert_eq!(format!("{:?}", kept.keepalive()), format!("{:?}", Some(&keepalive)));
        assert_eq!(kept.user_timeout(), Some(timeout));
        assert!(kept.nodelay(), "renewals do not wait");
    }
}
