//! Removal of the node that a released lock leaves for a while.

use lock_core::{Error, ErrorKind, LockName};
use zookeeper_client::Error as ZkError;

use crate::config::Config;
use crate::fault::fault;
use crate::session::manager::SessionManager;

/// Deletes the node of a lock that no client holds or waits for. A server does so by itself some
/// minutes later.
///
/// # Errors
///
/// As [`ZooKeeper::connect`](crate::ZooKeeper::connect), and if the server does not delete it.
///
/// # Cancel safety
///
/// Dropping the future may leave the node until the server deletes it.
#[doc(hidden)] // for the locks of a diagnosis, and not a public API
pub async fn forget(config: &Config, name: &LockName) -> Result<(), Error> {
    let path = config.names.path(name);
    let executor = lock_core::Executor::current_or_new()?;
    executor
        .within(async {
            let sessions = SessionManager::open(config.clone()).await?;
            let deleted = match sessions.current() {
                Some(session) => session.client().delete(&path, None).await,
                None => Ok(()),
            };
            match deleted {
                Ok(()) | Err(ZkError::NoNode | ZkError::NotEmpty) => Ok(()),
                Err(error) => {
                    let fault = fault("deleting the node of a lock", &error);
                    let message = "cannot delete the node of a lock";
                    Err(Error::new(ErrorKind::from(fault.kind()), message)
                        .with_source(fault.into_source()))
                }
            }
        })
        .await
}
