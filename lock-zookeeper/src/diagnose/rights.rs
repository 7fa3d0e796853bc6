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

/// Returns the directory of the locks and the nodes above it, the deepest first. A write shows
/// which of them exist. Newer servers, as 3.9.5, answer a read only if the user may read them.
pub(super) fn directories(config: &Config) -> impl Iterator<Item = &str> {
    let deepest = config.names.directory();
    std::iter::successors(Some(deepest), |path| match path.rfind('/') {
        Some(0) if path.len() == 1 => None,
        Some(0) | None => Some("/"),
        Some(end) => Some(&path[..end]),
    })
}

/// Returns the finding about the directory of the locks, or the deepest node above it that exists.
pub(super) async fn check(config: &Config, member: &Member, own_name: &str) -> Option<Finding> {
    let client = member.client()?;
    for directory in directories(config) {
        return Some(match missing_in_directory(config, client, directory, own_name).await {
            Err(ZkError::NoNode) => continue,
            Err(error @ ZkError::QuotaExceeded) => {
                let why = fault("creating a node", &error).into_source().to_string();
                Finding::failure("quota", why).remedy("raise or remove the quota")
            }
            Err(error) => unseen(&error),
            Ok(missing) => match client.list_children(directory).await {
                Ok(_) => finding(directory, missing, true),
                Err(ZkError::NoAuth) => finding(directory, missing, false),
                Err(error) => unseen(&error),
            },
        });
    }
    None
}

fn unseen(error: &ZkError) -> Finding {
    Finding::unseen("rights", fault("asking for rights", error).into_source())
        .remedy("see the log of the server")
}

/// Returns the finding about a directory in which this right to change it is missing.
fn finding(directory: &str, missing: Option<&str>, is_readable: bool) -> Finding {
    let lacks = |right: &str| format!("the user of the URL may not {right} {directory}");
    let grant = |rights: &str| format!("set an ACL on {directory} that gives the user {rights}");
    match (missing, is_readable) {
        (Some("create"), _) => {
            Finding::failure("rights", lacks("create nodes in")).remedy(grant("cr"))
        }
        (_, false) => {
            Finding::warning("rights", format!("{}: locks cannot be listed", lacks("read")))
                .remedy(grant("cr"))
        }
        (Some(_), true) => {
            let text = format!("{}: a lock's node cannot be reset", lacks("delete nodes in"));
            Finding::warning("rights", text).remedy(grant("crd"))
        }
        (None, true) => {
            let text = format!("the user may create, read and delete nodes in {directory}");
            Finding::ok("rights", text)
        }
    }
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
