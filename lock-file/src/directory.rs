//! The directory of the lock files, and whether it can be trusted.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use lock_core::{Error, ErrorKind};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::fault::error;
use crate::share::Share;

/// A directory in which no stranger can replace our files: a real one, not a link, on this host,
/// and in directories from which others cannot move it away. Either of one user, writable by its
/// owner alone, or [of a group](crate::share).
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// Without links in it: the lock space stays where it is when a link is changed.
    path: PathBuf,
    share: Option<Share>,
}

impl Directory {
    /// Opens `path`, created with mode 0700 if it is missing. Its parents are not created: a
    /// mistyped path would make a lock space that no other process uses.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let directory = Self { path: resolve(path)?, share: None };
        directory.prepare()?;
        Ok(directory)
    }

    /// Opens `path`, which must exist, for the members of its group.
    pub(crate) fn of_group(path: &Path) -> Result<Self, Error> {
        let path = resolve(path)?;
        let directory = Self { share: Some(Share::of(&path)?), path };
        directory.prepare()?;
        Ok(directory)
    }

    /// Opens `/run/lock/locks-<uid>`.
    ///
    /// Neither `$XDG_RUNTIME_DIR` nor `$TMPDIR`: sessions have them and cron jobs do not, and each
    /// would have a lock of its own. No other directory replaces one that cannot be created:
    /// services have a `/tmp` of their own, and processes there would not see each other.
    pub(crate) fn of_this_user() -> Result<Self, Error> {
        let path = Self::path_of_this_user();
        match make(&path) {
            Err(why) => Err(no_default(&path, why)),
            Ok(()) => Self::open(&path),
        }
    }

    pub(crate) fn path_of_this_user() -> PathBuf {
        Path::new("/run/lock").join(format!("locks-{}", user()))
    }

    /// Returns the group that shares it, if any.
    pub(crate) fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Opens a file in it, and creates it if `how` says so and it is missing. Non-blocking, because
    /// a named pipe under the name of the file could block.
    pub(crate) fn open_file(&self, path: &Path, how: OFlags) -> Result<File, Errno> {
        let how = how | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
        match &self.share {
            None => rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR).map(File::from),
            Some(share) => share.open_file(&self.path, path, how),
        }
    }

    /// Opens the directory of a queue in it. It must be one that all its users may change.
    pub(crate) fn open_queue(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match &self.share {
            None => rustix::fs::open(path, how, Mode::empty()),
            Some(share) => share.open_queue(&self.path, path, how),
        }
    }

    /// Creates the directory of a queue in it.
    pub(crate) fn make_queue(&self, path: &Path) -> Result<(), Errno> {
        match &self.share {
            None => rustix::fs::mkdir(path, Mode::RWXU),
            Some(share) => share.make_queue(&self.path, path),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that it exists and can be trusted. Repeated when it is gone: runtime directories are
    /// removed when their user logs out.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        match &self.share {
            Some(share) => {
                share.check(&self.path)?;
                self.check_parents()?;
                return self.check_file_system();
            }
            None => make(&self.path).map_err(|e| no_parent(&self.path, e))?,
        }
        let found = std::fs::symlink_metadata(&self.path)
            .map_err(|e| error("examine the lock directory", &self.path, e))?;
        self.check(&found)?;
        self.check_parents()?;
        self.check_file_system()
    }

    fn check(&self, found: &Metadata) -> Result<(), Error> {
        let refuse = |kind, why: &str| {
            let message = format!("the lock directory {} {why}", self.path.display());
            Err(Error::new(kind, message))
        };
        if found.is_symlink() {
            let why = "is a symbolic link; give the directory itself";
            return refuse(ErrorKind::Invalid, why);
        }
        if !found.is_dir() {
            let why = "is not a directory; remove the file or give another directory";
            return refuse(ErrorKind::Invalid, why);
        }
        if let Err(why) = trusts(found, user()) {
            return refuse(ErrorKind::Denied, &why);
        }
        Ok(())
    }

    /// Checks the directories above. A user with write access to one of them can rename its content
    /// and replace the lock directory. A sticky one, as `/tmp`, is safe.
    fn check_parents(&self) -> Result<(), Error> {
        for parent in self.path.ancestors().skip(1) {
            let found = std::fs::symlink_metadata(parent)
                .map_err(|e| error("examine the directory", parent, e))?;
            if lets_others_rename(&found) {
                let message = format!(
                    "the lock directory {} is in {}, which has mode {:04o}: others could move it away; run `chmod go-w` on that or give a directory elsewhere",
                    self.path.display(),
                    parent.display(),
                    found.mode() & 0o7777
                );
                return Err(Error::new(ErrorKind::Denied, message));
            }
        }
        Ok(())
    }

    /// Returns the name of its file system, as in the list of mounts.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn file_system(&self) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        kind_of(&mount_of(&self.path)?, &mounts).map(str::to_owned)
    }

    /// Returns `None`: elsewhere the file system is unknown.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn file_system(&self) -> Option<String> {
        None
    }

    /// False if its files are gone when the machine is.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    pub(crate) fn is_on_disk(&self) -> bool {
        const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6]; // tmpfs, ramfs
        rustix::fs::statfs(&self.path).is_ok_and(|it| !IN_MEMORY.contains(&type_of(&it)))
    }

    /// Returns false: elsewhere the file system is unknown.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    pub(crate) fn is_on_disk(&self) -> bool {
        false
    }

    /// On a network file system, a lock may be kept from this host's processes only, or not at all,
    /// and is lost without a word when its server restarts.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn check_file_system(&self) -> Result<(), Error> {
        let found = rustix::fs::statfs(&self.path)
            .map_err(|e| error("examine the lock directory", &self.path, e.into()))?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mount_of(&self.path).unwrap_or_default();
        match network_file_system(type_of(&found), kind_of(&mount, &mounts)) {
            None => Ok(()),
            Some(name) => {
                let message = format!(
                    "the lock directory {} is on {name}, a network file system; these locks are for one host: give a local directory",
                    self.path.display()
                );
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Elsewhere the type is not looked at.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    fn check_file_system(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Creates the directory, unless it exists.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Resolves links above the last name of `path`, which stays as it is: a link there is refused.
fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let refuse = |why: &str| {
        let message = format!("the lock directory {path:?} {why}");
        Err(Error::new(ErrorKind::Invalid, message))
    };
    if !path.is_absolute() {
        return refuse("must be an absolute path, so that it is the same for every process");
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return refuse("has a NUL byte in its path; no path has");
    }
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return refuse("must have a name: neither / nor a path that ends in ..");
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(parent.join(name)),
        Err(e) => Err(no_parent(path, e)),
    }
}

fn no_default(path: &Path, why: io::Error) -> Error {
    let kind = match why.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        _ => ErrorKind::Unavailable,
    };
    let message = format!(
        "cannot create the default lock directory {}; give a directory that all processes of this user see, as file:///dir",
        path.display()
    );
    Error::new(kind, message).with_source(why)
}

/// Returns the reason why the directory at `path` cannot be created, or its parent not be found.
fn no_parent(path: &Path, why: io::Error) -> Error {
    if why.kind() != io::ErrorKind::NotFound {
        return error("create the lock directory", path, why);
    }
    // procfs says the same of a directory that cannot be made.
    let why_not = match path.parent() {
        Some(parent) if parent.is_dir() => {
            "its parent takes no directories: give one on another file system"
        }
        _ => "its parent directory does not exist: create it first",
    };
    let message = format!("cannot create the lock directory {}; {why_not}", path.display());
    Error::new(ErrorKind::Invalid, message).with_source(why)
}

/// The width of the field differs between architectures; the numbers have 32 bits.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn type_of(file_system: &rustix::fs::StatFs) -> u64 {
    file_system.f_type as u64 & 0xffff_ffff
}

fn lets_others_rename(found: &Metadata) -> bool {
    const STICKY: u32 = 0o1000;
    lets_others_write(found) && found.mode() & STICKY == 0
}

/// Returns true if other users can write to it. A group with no other member, as many systems give
/// to each user with a umask of 002, does not count.
fn lets_others_write(found: &Metadata) -> bool {
    let (of_all, of_group) = (found.mode() & 0o002 != 0, found.mode() & 0o020 != 0);
    of_all || of_group && !(found.uid() == user() && is_private(found.gid()))
}

/// Returns whether `group` is known to have no other member. Only local users and groups are known.
fn is_private(group: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    has_one_member(group, user(), &read("/etc/passwd"), &read("/etc/group"))
}

/// Returns whether only `user` is in `group`, see passwd(5) and group(5).
fn has_one_member(group: u32, user: u32, passwd: &str, groups: &str) -> bool {
    let number = |text: Option<&&str>| text.and_then(|text| text.parse().ok()) == Some(group);
    let users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let with_it: Vec<_> = users.filter(|fields| number(fields.get(3))).collect();
    let [ours] = &with_it[..] else {
        return false;
    };
    let mut entries = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let entry = entries.find(|fields| number(fields.get(2)));
    let members = entry.as_ref().and_then(|fields| fields.get(3));
    ours.get(2).and_then(|uid| uid.parse().ok()) == Some(user)
        && members
            .is_some_and(|members| members.split(',').all(|it| it.is_empty() || it == ours[0]))
}

/// Returns an error if other users than `user` and root can replace files in the directory.
fn trusts(found: &Metadata, user: u32) -> Result<(), String> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != user && owner != 0 {
        return Err(format!(
            "belongs to user {owner}, which could replace locks of user {user}; give a directory of your own"
        ));
    }
    if lets_others_write(found) {
        return Err(format!(
            "has mode {mode:04o}: others could replace its locks; run `chmod go-w` on it or give a directory of your own"
        ));
    }
    Ok(())
}

/// The name of a file system that is shared with other hosts, by its number and, for those that all
/// have the number of FUSE, by the name in the list of mounts.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn network_file_system(number: u64, kind: Option<&str>) -> Option<String> {
    let named = NETWORK_FILE_SYSTEMS.iter().find(|&&(of, _)| of == number);
    let kind = kind.filter(|kind| NETWORK_FUSE.contains(&kind.trim_start_matches("fuse.")));
    named.map(|&(_, name)| name.to_owned()).or_else(|| kind.map(str::to_owned))
}

/// The number of the mount that has `path`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mount_of(path: &Path) -> Option<String> {
    use std::os::fd::AsRawFd;

    let directory = File::open(path).ok()?;
    let info = format!("/proc/self/fdinfo/{}", directory.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(id.trim().to_owned())
}

/// Returns the file system in a line of `/proc/self/mountinfo`, see proc(5).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn kind_of<'a>(mount: &str, mounts: &'a str) -> Option<&'a str> {
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(mount))?;
    line.split_once(" - ")?.1.split(' ').next()
}

/// From statfs(2) and linux/magic.h; the file systems of clusters as well.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORK_FILE_SYSTEMS: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x564c, "NCP"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0102_1997, "9P"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
];

/// FUSE does not name the storage behind it. These are known; others exclude the processes of the
/// same mount, as documented.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORK_FUSE: &[&str] = &[
    "afp",
    "beegfs",
    "ceph",
    "ceph-fuse",
    "curlftpfs",
    "davfs",
    "davfs2",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "google-drive-ocamlfuse",
    "httpfs",
    "juicefs",
    "JuiceFS",
    "moosefs",
    "mfs",
    "mount-s3",
    "quobyte",
    "rclone",
    "s3fs",
    "s3ql",
    "seaweedfs",
    "smbnetfs",
    "sshfs",
    "virtiofs",
    "vmhgfs-fuse",
];

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_private_if_it_is_known_to_have_one_member() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/:/bin/sh\ncy:x:1002:100::/:/bin/sh\ndi:x:1003:100::/:/bin/sh\n";
        let groups = "root:x:0:\nusers:x:100:\nann:x:1000:\nbob:x:1001:ann\nann2:x:2000:ann\n";
        let is_private = |group, user| has_one_member(group, user, passwd, groups);
        assert!(is_private(1000, 1000) && is_private(0, 0));
        assert!(!is_private(1000, 1001), "another user's");
        assert!(!is_private(1001, 1001), "ann is in it");
        assert!(!is_private(100, 1002), "that of di as well");
        assert!(!is_private(2000, 1000), "nobody's first group: its members are not all known");
        assert!(!is_private(4000, 1000), "unknown");
        assert!(!has_one_member(1000, 1000, passwd, "") && !has_one_member(1000, 1000, "", groups));
        let with_herself = "ann:x:1000:ann\n";
        assert!(has_one_member(1000, 1000, passwd, with_herself));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn file_systems_are_known_by_number_or_name() {
        for (number, kind, refused) in [
            (0x6969, "nfs4", Some("NFS")),
            (0x0102_1997, "9p", Some("9P")),
            (0xff53_4d42, "cifs", Some("CIFS")),
            (0x6573_5546, "fuse.sshfs", Some("fuse.sshfs")),
            (0x6573_5546, "fuse.glusterfs", Some("fuse.glusterfs")),
            (0x6573_5546, "virtiofs", Some("virtiofs")),
            (0x6573_5546, "fuse.fuse-overlayfs", None),
            (0x6573_5546, "fuseblk", None),
            (0xef53, "ext4", None),
            (0x0102_1994, "tmpfs", None),
        ] {
            assert_eq!(
                network_file_system(number, Some(kind)),
                refused.map(str::to_owned),
                "{kind}"
            );
        }
        assert_eq!(network_file_system(0x6969, None), Some("NFS".to_owned()));
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn the_kind_of_a_mount_is_found_in_the_list_of_mounts() {
        let mounts = "22 27 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n36 35 98:0 /mnt1 /mnt2 rw,noatime - fuse.sshfs me@host: rw\n";
        assert_eq!(kind_of("36", mounts), Some("fuse.sshfs"));
        assert_eq!(kind_of("22", mounts), Some("sysfs"));
        assert_eq!(kind_of("2", mounts), None);
    }
}
