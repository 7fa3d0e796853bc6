//! Checks of a directory of locks, for `lockctl doctor`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use lock_core::diagnosis::Finding;
use lock_core::{Error, ErrorKind, LockName};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

use crate::config::FileLocks;
use crate::fault::error;
use crate::file_watch;
use crate::names::Names;

/// Less free space or fewer free files than this are a warning. A lock takes two blocks and a file.
const FEW_BYTES: u64 = 1 << 20;
const FEW_FILES: u64 = 100;

/// Returns the findings about `directory`, or the directory of this user, as
/// [`FileLocks::for_this_user`] opens it. `of_group` opens it as
/// [`FileLocks::shared_with_group`] does.
///
/// A directory that cannot be used is a finding as well. One that was missing is removed again.
///
/// # Cancel safety
///
/// Dropping the future ends the checks.
pub async fn diagnose(directory: Option<&Path>, of_group: bool) -> Vec<Finding> {
    let path = path_of(directory);
    let was_missing = !path.exists();
    let locks = match (directory, of_group) {
        (None, _) => FileLocks::for_this_user(),
        (Some(directory), false) => FileLocks::at(directory),
        (Some(directory), true) => FileLocks::shared_with_group(directory),
    };
    let locks = match locks {
        Ok(locks) => locks,
        Err(error) => return vec![refused(&error)],
    };
    let mut findings = vec![
        Finding::ok("directory", format!("locks are in {}", locks.directory().display())),
        file_system(&locks, directory.is_none()),
        permissions(locks.directory()),
        reach(&locks),
        space(locks.directory()),
        notifications(locks.directory()),
    ];
    if locks.inner.boot.is_none() {
        let why = "/proc/sys/kernel/random/boot_id cannot be read: there are no detached leases";
        findings
            .push(Finding::warning("boot", why).remedy("mount /proc, or use lockctl run alone"));
    }
    if was_missing {
        // Fails if another process uses it by now.
        let _ = std::fs::remove_dir(&path);
    }
    findings
}

/// Removes the file of a lock that no process uses. A later holder of the lock could get the same
/// token again.
///
/// # Errors
///
/// The file cannot be removed.
#[doc(hidden)] // for the locks of a diagnosis, and not a public API
pub fn forget(directory: Option<&Path>, name: &LockName) -> Result<(), Error> {
    let directory = path_of(directory);
    let path = directory.join(Names::new().file_name(name));
    match std::fs::remove_file(&path) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
            Err(error("remove the lock file", &path, why))
        }
        _ => Ok(()),
    }
}

fn path_of(directory: Option<&Path>) -> PathBuf {
    directory.map_or_else(FileLocks::directory_of_this_user, Path::to_path_buf)
}

/// Returns the finding about a directory that is refused. The error has the remedy.
fn refused(error: &Error) -> Finding {
    let check = match error.kind() {
        ErrorKind::Unsupported => "file system",
        ErrorKind::Denied => "permissions",
        _ => "directory",
    };
    Finding::failure(check, format!("{error:#}"))
}

/// Returns what a restart of the host leaves of the locks. The default directory is in memory on
/// purpose: a directory that was chosen may be expected to last.
fn file_system(locks: &FileLocks, is_default: bool) -> Finding {
    const CHECK: &str = "file system";
    let kind = locks.inner.directory.file_system();
    let kind = kind.as_deref().unwrap_or("a file system without a known name");
    if kind == "overlay" {
        let text = "overlay: the directory is a container's own, and excludes no process outside";
        return Finding::warning(CHECK, text)
            .remedy("mount a directory of the host there, the same in each container");
    }
    if locks.inner.durable {
        return Finding::ok(CHECK, format!("{kind}: fencing tokens grow across restarts"));
    }
    let text = format!(
        "{kind}: a restart of the host ends all locks, and tokens begin with its clock again"
    );
    match is_default {
        true => Finding::ok(CHECK, text),
        false => Finding::warning(CHECK, text)
            .remedy("use a directory on a disk if a resource keeps tokens over a restart"),
    }
}

/// Checks that this process may create and open files there.
fn permissions(directory: &Path) -> Finding {
    const CHECK: &str = "permissions";
    let is_read_only =
        statvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
    if is_read_only {
        let text = format!("{} is on a file system that is mounted read-only", directory.display());
        return Finding::failure(CHECK, text)
            .remedy("mount it for writing, or give a directory elsewhere");
    }
    if let Err(why) = access(directory, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK) {
        let user = rustix::process::geteuid().as_raw();
        let text = format!("user {user} cannot create files in {}: {why}", directory.display());
        return Finding::failure(CHECK, text)
            .remedy(format!("chmod u+rwx {}", directory.display()));
    }
    match std::fs::symlink_metadata(directory) {
        Ok(found) => {
            let (mode, owner) = (found.mode() & 0o7777, found.uid());
            let text = format!("mode {mode:04o}, owner {owner}: no other user replaces its locks");
            Finding::ok(CHECK, text)
        }
        Err(why) => Finding::unseen(CHECK, why),
    }
}

/// Returns which processes the locks exclude.
fn reach(locks: &FileLocks) -> Finding {
    let of = match locks.inner.directory.share() {
        Some(share) => format!("the members of group {}", share.group()),
        None => format!(
            "user {} (and root, if it names the directory)",
            rustix::process::geteuid().as_raw()
        ),
    };
    let text = format!(
        "the processes of {of} on this host; those in containers only where this directory is \
         mounted"
    );
    Finding::ok("reach", text)
}

fn space(directory: &Path) -> Finding {
    const CHECK: &str = "space";
    let found = match statvfs(directory) {
        Ok(found) => found,
        Err(why) => return Finding::unseen(CHECK, why),
    };
    let bytes = found.f_bavail.saturating_mul(found.f_frsize);
    // Some file systems do not count files.
    let files = (found.f_files > 0).then_some(found.f_favail);
    let shown = match files {
        Some(files) => format!("{} MiB and {files} files are free", bytes >> 20),
        None => format!("{} MiB are free", bytes >> 20),
    };
    if bytes == 0 || files == Some(0) {
        let text = format!("{shown}: new locks cannot be acquired");
        return Finding::failure(CHECK, text).remedy("free some space");
    }
    match bytes < FEW_BYTES || files.is_some_and(|files| files < FEW_FILES) {
        true => Finding::warning(CHECK, shown).remedy("free some space before it is used up"),
        false => Finding::ok(CHECK, shown),
    }
}

/// Checks that waiters and holders can watch a lock file. Otherwise they poll.
fn notifications(directory: &Path) -> Finding {
    const CHECK: &str = "inotify";
    // The second limit is that of the user namespace, as of a container.
    let limit = |names: [&str; 2]| {
        let read = |name| std::fs::read_to_string(format!("/proc/sys/{name}")).ok();
        let limits = names.into_iter().filter_map(|name| read(name)?.trim().parse::<u64>().ok());
        limits.min().map_or_else(|| "an unknown number of".to_owned(), |limit| limit.to_string())
    };
    let limits = format!(
        "each user may have {} instances and {} watches",
        limit(["fs/inotify/max_user_instances", "user/max_inotify_instances"]),
        limit(["fs/inotify/max_user_watches", "user/max_inotify_watches"])
    );
    match file_watch::try_out(directory) {
        Ok(()) => Finding::ok(CHECK, format!("one can be had; {limits}")),
        Err(why) => {
            let text = format!(
                "{why}: waiters behind flock(1), and the notice of a removed lock file, take up \
                 to a second; {limits}"
            );
            Finding::warning(CHECK, text).remedy("sysctl fs.inotify.max_user_instances=1024")
        }
    }
}
