//! The rights that the client's user has below the prefix.
//!
//! A transaction asks for them without an effect: it has a last part that always fails, so the
//! server rejects all of it. An earlier part that fails is a right that is missing.

use lock_core::diagnosis::Finding;
use zookeeper_client::{Client, CreateMode, Error as ZkError, MultiWriteError, MultiWriter};

use super::member::Member;
use crate::config::Config;
use crate::fault::fault;
use crate::session::acls_of;

/// A version that no node has.
const NO_VERSION: i32 = i32::MAX;

/// Returns the deepest node that exists on the path of the directory of the locks.
pub(super) async fn existing_directory(
    config: &Config,
    client: &Client,
) -> Result<String, ZkError> {
    let mut path = config.names.directory();
    while path != "/" && client.check_stat(path).await?.is_none() {
        path = match path.rfind('/') {
            Some(0) | None => "/",
            Some(end) => &path[..end],
        };
    }
    Ok(path.to_owned())
}

/// Returns the finding about the directory of the locks, or the nodes above it that exist.
pub(super) async fn check(config: &Config, member: &Member, own_name: &str) -> Option<Finding> {
    let client = member.client()?;
    let unseen = |error: &ZkError| {
        Finding::unseen("rights", fault("asking for rights", error).into_source())
            .remedy("see the log of the server")
    };
    let directory = match existing_directory(config, client).await {
        Ok(directory) => directory,
        Err(error) => return Some(unseen(&error)),
    };
    let lacks = |right: &str| format!("the user of the URL may not {right} {directory}");
    let grant = |rights: &str| format!("set an ACL on {directory} that gives the user {rights}");
    let denied = match missing_in_directory(config, client, &directory, own_name).await {
        Err(error @ ZkError::QuotaExceeded) => {
            let why = fault("creating a node", &error).into_source().to_string();
            return Some(Finding::failure("quota", why).remedy("raise or remove the quota"));
        }
        Err(error) => return Some(unseen(&error)),
        Ok(Some("create")) => {
            return Some(Finding::failure("rights", lacks("create nodes in")).remedy(grant("cr")));
        }
        Ok(denied) => denied,
    };
    let is_listed = match client.list_children(&directory).await {
        Ok(_) => true,
        Err(ZkError::NoAuth) => false,
        Err(error) => return Some(unseen(&error)),
    };
    Some(if !is_listed {
        let text = format!("{}: locks cannot be listed", lacks("read"));
        Finding::warning("rights", text).remedy(grant("cr"))
    } else if denied.is_some() {
        let text = format!("{}: a lock's node cannot be reset", lacks("delete nodes in"));
        Finding::warning("rights", text).remedy(grant("crd"))
    } else {
        Finding::ok("rights", format!("the user may create, read and delete nodes in {directory}"))
    })
}

/// Returns the right in `directory` that is missing, if any.
async fn missing_in_directory(
    config: &Config,
    client: &Client,
    directory: &str,
    own_name: &str,
) -> Result<Option<&'static str>, ZkError> {
    let lock = format!("{}/{own_name}", directory.trim_end_matches('/'));
    let mut write = client.new_multi_writer();
    write.add_create(&lock, b"", &CreateMode::Container.with_acls(acls_of(config)))?;
    write.add_delete(&lock, None)?;
    missing(write, &["create", "delete"]).await
}

/// Returns the right in the existing node of a lock that a claim needs and the user has not.
pub(super) async fn missing_in_lock(
    config: &Config,
    client: &Client,
    lock: &str,
) -> Result<Option<&'static str>, ZkError> {
    let entry = format!("{lock}/{}", config.names.layout.new_node_name());
    let mut write = client.new_multi_writer();
    write.add_create(&entry, b"", &CreateMode::Ephemeral.with_acls(acls_of(config)))?;
    write.add_set_data(lock, b"", None)?;
    write.add_delete(&entry, None)?;
    missing(write, &["create", "write", "delete"]).await
}

/// Sends a transaction that fails in any case. Its parts need these rights.
async fn missing(
    mut write: MultiWriter<'_>,
    rights: &[&'static str],
) -> Result<Option<&'static str>, ZkError> {
    write.add_check_version("/", NO_VERSION)?;
    match write.commit().await {
        Err(MultiWriteError::OperationFailed { source: ZkError::BadVersion, .. }) => Ok(None),
        Err(MultiWriteError::OperationFailed { index, source: ZkError::NoAuth })
            if index < rights.len() =>
        {
            Ok(Some(rights[index]))
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(ZkError::UnexpectedError("a transaction for no version has passed".into())),
    }
}
