//! The holders of a locked file, read without locking it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind, Holder};
use lock_core::clock::wall;
use lock_core::{FencingToken, Label};

use crate::fault::fault;
use crate::record::{HolderRecord, Record};
use kernel::Inode;

/// Returns the pid namespace of this process; 0 where there is none.
pub(crate) fn pid_space() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// The pid namespace of the machine itself, see linux/proc_ns.h. There, ended processes keep their
/// pids in records.
const INITIAL: u64 = 0xefff_fffc;

/// Returns the holder by a lease, which lasts for `left`.
pub(crate) fn detached(record: &Record, left: Duration) -> Vec<Holder> {
    let holder = record.holder.iter().map(|ours| {
        let mut holder = described(ours, record);
        holder.expires_in = Some(left);
        holder
    });
    holder.collect()
}

/// Returns the processes that have locked `file`, whose `record` names the last holder of this
/// backend.
///
/// The kernel's list of locks leaves out holders whose pid means nothing in the pid namespace of
/// this process.
pub(crate) fn holders(file: &File, path: &Path, record: &Record) -> Result<Vec<Holder>, Fault> {
    let inode = kernel::inode_of(file).map_err(|e| fault("examine", path, e))?;
    let listed = kernel::holders_of(&inode)?;
    holders_of(&inode, listed, path, record)
}

/// The kernel's list of locks at one time, for a look at many files.
pub(crate) struct KernelLocks(HashMap<u64, Vec<(u32, Inode)>>);

impl KernelLocks {
    pub(crate) fn read() -> Result<Self, Fault> {
        let mut by_number: HashMap<_, Vec<_>> = HashMap::new();
        for (pid, inode) in kernel::all_holders()? {
            by_number.entry(inode.number).or_default().push((pid, inode));
        }
        Ok(Self(by_number))
    }

    /// Returns what [`holders`] returns, as of the time of this list.
    pub(crate) fn holders(
        &self,
        file: &File,
        path: &Path,
        record: &Record,
    ) -> Result<Vec<Holder>, Fault> {
        let number = kernel::number_of(file).map_err(|e| fault("examine", path, e))?;
        let candidates = self.0.get(&number).map_or(&[][..], Vec::as_slice);
        if candidates.is_empty() && record.holder.is_none() {
            return Ok(Vec::new());
        }
        let inode = kernel::inode_of(file).map_err(|e| fault("examine", path, e))?;
        let listed = candidates.iter().filter(|(_, locked)| *locked == inode);
        holders_of(&inode, listed.map(|(pid, _)| *pid).collect(), path, record)
    }
}

/// Returns the holders of a file that the processes `listed` have locked.
fn holders_of(
    inode: &Inode,
    mut listed: Vec<u32>,
    path: &Path,
    record: &Record,
) -> Result<Vec<Holder>, Fault> {
    let here = pid_space();
    let ours = record.holder.as_ref();
    if listed.is_empty() && ours.is_some_and(|ours| ours.pid_space == here && here != INITIAL) {
        // The recorded holder has not released. If it ended, a child may have inherited the lock;
        // the kernel does not name the first holder here.
        listed = kernel::inheritors_of(inode);
    }
    if listed.is_empty()
        && let Some(other) = ours.filter(|ours| ours.pid_space != here)
    {
        let message = format!(
            "{} was locked in another pid namespace (as process {}), into which this process cannot look; ask there",
            path.display(),
            other.pid
        );
        return Err(Fault::not_applied(FaultKind::Unsupported, message));
    }
    let holders = listed.into_iter().map(|pid| {
        // Another pid is that of a holder that writes no records, like flock(1).
        let Some(ours) = ours.filter(|ours| ours.pid == pid && ours.pid_space == here) else {
            let mut holder = Holder::new(None);
            holder.label = Some(Label::new(&format!("pid {pid}")));
            return holder;
        };
        let mut holder = described(ours, record);
        if let Some(inheritor) = kernel::inheritor_of(pid, inode) {
            // The process that signed the record has ended. This one keeps its lock, and is the one
            // to end.
            let of = ours.label.as_ref().map_or("", Label::as_str);
            holder.label = Some(Label::new(&format!("pid {inheritor}, started by {of}")));
        }
        holder
    });
    Ok(holders.collect())
}

fn described(ours: &HolderRecord, record: &Record) -> Holder {
    let mut holder = Holder::new(Some(ours.owner));
    holder.label.clone_from(&ours.label);
    holder.held_for = Some(wall().saturating_sub(ours.since));
    holder.token = record.number.and_then(FencingToken::from_backend);
    holder
}

mod kernel {
    use std::collections::HashMap;
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use lock_core::backend::Fault;

    use crate::fault::fault;

    /// A file as `/proc/locks` names it. On btrfs and overlayfs these numbers differ from those of
    /// stat(2).
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub(super) struct Inode {
        pub(super) major: u32,
        pub(super) minor: u32,
        pub(super) number: u64,
    }

    pub(super) fn inode_of(file: &File) -> io::Result<Inode> {
        let info = info_of(file)?;
        let number = number_in(&info, file)?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let device = field(&info, "mnt_id:").and_then(|id| device_of(&mounts, id));
        let (major, minor) = match device {
            Some(device) => device,
            // A mount that this process cannot see.
            None => {
                let device = file.metadata()?.dev();
                (rustix::fs::major(device), rustix::fs::minor(device))
            }
        };
        Ok(Inode { major, minor, number })
    }

    /// Returns the number alone, which takes less time.
    pub(super) fn number_of(file: &File) -> io::Result<u64> {
        number_in(&info_of(file)?, file)
    }

    fn number_in(info: &str, file: &File) -> io::Result<u64> {
        match field(info, "ino:").and_then(|number| number.parse().ok()) {
            Some(number) => Ok(number),
            // Before Linux 5.14.
            None => Ok(file.metadata()?.ino()),
        }
    }

    fn info_of(file: &File) -> io::Result<String> {
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))
    }

    fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
        info.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
    }

    fn device_of(mounts: &str, id: &str) -> Option<(u32, u32)> {
        let mount = mounts.lines().find(|line| line.split(' ').next() == Some(id))?;
        let (major, minor) = mount.split(' ').nth(2)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Limit of reads of a list that comes in pieces, before the lock is reported as free.
    const PASSES: u32 = 5;

    /// Returns the processes that have locked it with flock(2).
    ///
    /// The kernel gives the list in pieces of a page. Each is exact, but an entry is left out when
    /// one before it vanishes between two pieces. A listed process has the lock; one that is not
    /// listed may have it.
    pub(super) fn holders_of(inode: &Inode) -> Result<Vec<u32>, Fault> {
        let path = Path::new("/proc/locks");
        for _ in 0..PASSES {
            let (locks, pieces) = read(path).map_err(|e| fault("read", path, e))?;
            let mut pids: Vec<u32> = locks
                .lines()
                .filter_map(parse)
                .filter(|(_, locked)| locked == inode)
                .map(|(pid, _)| pid)
                .collect();
            // Or it is listed twice, when one before it is added.
            pids.sort_unstable();
            pids.dedup();
            if !pids.is_empty() || pieces <= 1 {
                return Ok(pids);
            }
        }
        Ok(Vec::new())
    }

    /// Returns all locks by flock(2), with their processes. Of a list in pieces, a later read
    /// counts for the files that it shows.
    pub(super) fn all_holders() -> Result<Vec<(u32, Inode)>, Fault> {
        let path = Path::new("/proc/locks");
        let mut by_file: HashMap<Inode, Vec<u32>> = HashMap::new();
        for _ in 0..PASSES {
            let (locks, pieces) = read(path).map_err(|e| fault("read", path, e))?;
            let mut shown: HashMap<Inode, Vec<u32>> = HashMap::new();
            for (pid, inode) in locks.lines().filter_map(parse) {
                let pids = shown.entry(inode).or_default();
                if !pids.contains(&pid) {
                    pids.push(pid);
                }
            }
            by_file.extend(shown);
            if pieces <= 1 {
                break;
            }
        }
        let pairs = by_file
            .into_iter()
            .flat_map(|(inode, pids)| pids.into_iter().map(move |pid| (pid, inode.clone())));
        Ok(pairs.collect())
    }

    /// Returns the processes that have a descriptor by which it is locked.
    pub(super) fn inheritors_of(inode: &Inode) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|&pid| inherits(pid, inode)).collect()
    }

    /// Returns the oldest process that keeps the lock of `pid`, if that one has closed it.
    pub(super) fn inheritor_of(pid: u32, inode: &Inode) -> Option<u32> {
        if inherits(pid, inode) {
            return None;
        }
        inheritors_of(inode).into_iter().min_by_key(|&inheritor| (started(inheritor), inheritor))
    }

    /// Returns the start time of a process, see proc(5).
    fn started(pid: u32) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The program's name, in parentheses, may hold anything.
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        fields.split(' ').nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(u64::MAX)
    }

    fn inherits(pid: u32, inode: &Inode) -> bool {
        let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
        let mut infos = open.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        infos.any(|info| {
            let mut locks = info.lines().filter_map(|line| parse(line.strip_prefix("lock:")?));
            locks.any(|(_, locked)| locked == *inode)
        })
    }

    /// Reads a text, and returns it with the number of its pieces. The buffer is larger than a
    /// piece can be.
    fn read(path: &Path) -> io::Result<(String, u32)> {
        let mut file = File::open(path)?;
        let mut buffer = vec![0; 1 << 16];
        let mut text = Vec::new();
        let mut pieces = 0;
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    text.extend_from_slice(&buffer[..read]);
                    pieces += 1;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok((String::from_utf8_lossy(&text).into_owned(), pieces))
    }

    /// Parses `7: FLOCK  ADVISORY  WRITE 5038 fe:00:10010780 0 EOF`; waiters have `->` after the
    /// number.
    pub(super) fn parse(line: &str) -> Option<(u32, Inode)> {
        let mut words = line.split_whitespace().skip(1);
        if words.next()? != "FLOCK" {
            return None;
        }
        let mut words = words.skip(2);
        let pid = words.next()?.parse().ok()?;
        let mut parts = words.next()?.split(':');
        let inode = Inode {
            major: u32::from_str_radix(parts.next()?, 16).ok()?,
            minor: u32::from_str_radix(parts.next()?, 16).ok()?,
            number: parts.next()?.parse().ok()?,
        };
        Some((pid, inode))
    }
}

#[cfg(test)]
mod tests {
    use super::kernel::{Inode, parse};

    #[test]
    fn holders_are_told_from_waiters_and_other_locks() {
        let inode = Inode { major: 0xfe, minor: 0, number: 10_010_780 };
        let line = "1: FLOCK  ADVISORY  WRITE 5038 fe:00:10010780 0 EOF";
        assert_eq!(parse(line), Some((5038, inode)));
        assert_eq!(parse("\t1: FLOCK  ADVISORY  WRITE 0 fe:00:1 0 EOF").map(|it| it.0), Some(0));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 5038 fe:00:10010780 0 EOF",
            "2: POSIX  ADVISORY  WRITE 5038 fe:00:10010780 0 EOF",
            "3: OFDLCK ADVISORY  WRITE -1 fe:00:10010780 0 EOF",
            "4: FLOCK  ADVISORY  WRITE 5038 fe:00",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
