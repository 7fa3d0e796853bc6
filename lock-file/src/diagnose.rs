//! Checks of a directory of locks, for `lockctl doctor`.

use std::path::Path;

use lock_core::diagnosis::Finding;

use crate::config::FileLocks;

/// Returns the findings about `directory`, or the directory of this user, as
/// [`FileLocks::for_this_user`] opens it. `of_group` opens it as
/// [`FileLocks::shared_with_group`] does.
///
/// A directory that cannot be used is a finding as well.
///
/// # Cancel safety
///
/// Dropping the future ends the checks.
pub async fn diagnose(directory: Option<&Path>, of_group: bool) -> Vec<Finding> {
    let locks = match (directory, of_group) {
        (None, _) => FileLocks::for_this_user(),
        (Some(directory), false) => FileLocks::at(directory),
        (Some(directory), true) => FileLocks::shared_with_group(directory),
    };
    vec![match locks {
        Ok(locks) => Finding::ok("directory", format!("locks in {}", locks.directory().display())),
        Err(error) => Finding::failure("directory", format!("{error:#}")),
    }]
}
