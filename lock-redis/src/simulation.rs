//! Connections inside of one process, for the simulation of this crate's tests. Not a public API.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::{fmt, io};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// A network that leads to a server, instead of the system's network.
pub trait Network: Send + Sync + 'static {
    /// Makes a connection.
    fn dial(&self) -> Connecting<'_>;
}

/// A connection that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Wire>>> + Send + 'a>>;

/// One end of a connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// The network that a configuration names.
#[derive(Clone)]
pub(crate) struct NetworkHandle(pub(crate) Arc<dyn Network>);

impl fmt::Debug for NetworkHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Way(..)")
    }
}

/// Ends the task of a connection when the last clone of it is dropped, as those that the client
/// library makes itself do.
pub(crate) struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NetworkHandle {
    pub(crate) async fn open(
        &self,
        client: &Client,
        settings: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Arc<Driver>), RedisError> {
        let wire = self.0.dial().await?;
        let info = client.get_connection_info().redis_settings();
        let (redis, work) =
            MultiplexedConnection::new_with_config(info, wire, settings.clone()).await?;
        Ok((redis, Arc::new(Driver(tokio::spawn(work).abort_handle()))))
    }
}
