//! Streams to servers that the program opens: tunnels, other kinds of sockets, tests.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::connection::address::Address;

/// The address of a server or of a sentinel, for a [`Connector`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerAddress {
    /// A host and a port.
    Tcp {
        /// A name, or an IP address without brackets, as the configuration, a sentinel or a
        /// cluster writes it. Nothing has resolved it yet.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A way to open streams to servers, for [`Config::connector`](crate::Config::connector).
///
/// * **Addresses.** A connector is called for every connection: at first, after each loss, for each
///   Sentinel and for the primary that the Sentinels name, for each member of a cluster, and for
///   the connections of `min_replicas`. Calls may overlap. It has to lead each address to one
///   server, the same for all clients of a lock.
/// * **Encryption.** The stream carries what a TCP connection to the server would. With a `redis:`
///   URL that is plain text; a connector that encrypts by itself belongs there. With `rediss:`,
///   `lock-redis` adds TLS inside the stream, and checks the certificate against the host of the
///   address. TCP settings are the connector's: `lock-redis` sets none.
/// * **Errors.** An error, or a panic, is a failed attempt to connect: unavailable, and certainly
///   without effect on a lock. Its text is the source of the [`Error`](lock_core::Error), which
///   `{:#}` shows, and must hold no secret. Waiters try again by themselves, so a connector need
///   not repeat anything.
/// * **Time limit.** It is not the connector's task. A connection has 3 s in all, one to a sentinel
///   1 s, including the handshake.
/// * **Cancel safety.** The future is dropped when that limit passes, or when the attempt has no
///   caller any more; a reconnect goes on to its limit. It runs in a task of the locks' own
///   runtime, and must not block it.
/// * **Identity.** A server that answers on a new stream is checked as on any other connection.
///
/// ```
/// use std::io;
///
/// use lock_redis::{Connector, ServerAddress};
/// use tokio::net::TcpStream;
///
/// /// Sends everything to the near end of a tunnel.
/// struct Tunnel;
///
/// impl Connector for Tunnel {
///     type Stream = TcpStream;
///
///     async fn connect(&self, _: &ServerAddress) -> io::Result<TcpStream> {
///         TcpStream::connect("127.0.0.1:16379").await
///     }
/// }
///
/// # fn main() -> Result<(), lock_core::Error> {
/// let config = lock_redis::Config::new("redis://redis.internal")?.connector(Tunnel);
/// # let _ = config; Ok(()) }
/// ```
pub trait Connector: Send + Sync + 'static {
    /// A stream of bytes in both directions. Dropping it closes it.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Opens a stream to the server at `address`.
    ///
    /// # Errors
    ///
    /// Any error: this attempt to connect fails with it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has to close whatever it has opened.
    fn connect(
        &self,
        address: &ServerAddress,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A stream of any kind.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(crate) type BoxedStream = Box<dyn Stream>;

type Opening<'a> = Pin<Box<dyn Future<Output = io::Result<BoxedStream>> + Send + 'a>>;

/// A connector of any kind.
trait AnyConnector: Send + Sync {
    fn open<'a>(&'a self, address: &'a ServerAddress) -> Opening<'a>;
}

impl<C: Connector> AnyConnector for C {
    fn open<'a>(&'a self, address: &'a ServerAddress) -> Opening<'a> {
        Box::pin(async move { Ok(Box::new(self.connect(address).await?) as BoxedStream) })
    }
}

/// The connector of a configuration.
#[derive(Clone)]
pub(crate) struct ConnectorHandle(Arc<dyn AnyConnector>);

impl ConnectorHandle {
    pub(crate) fn new(connector: impl Connector) -> Self {
        Self(Arc::new(connector))
    }

    pub(crate) async fn open(&self, address: &ServerAddress) -> io::Result<BoxedStream> {
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("the connector failed: {error}"))
        };
        self.0.open(address).await.map_err(failed)
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl From<&Address> for ServerAddress {
    fn from(address: &Address) -> Self {
        match address {
            Address::Tcp { host, .. } => Self::Tcp { host: host.name.clone(), port: host.port },
            Address::Unix(path) => Self::Unix(path.clone()),
        }
    }
}

impl fmt::Debug for ConnectorHandle {
    /// Shows nothing of the connector, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(given)")
    }
}
