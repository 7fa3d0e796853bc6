//! Lock files that stay open for a moment after a release, so that the next pair on the same name
//! need neither open nor close them.
//!
//! An open file is no lock, and it may have been deleted or replaced meanwhile. Each attempt checks
//! that after it has locked the file, see [`attempt`](crate::verbs). These are the bounds:
//!
//! * A file is used again for [`KEPT`] after it was opened, and closed within twice that time. So
//!   an idle process does not keep its file system busy.
//! * A process that was forked does not use the files of its parent: both would have one kernel
//!   lock.
//! * At most [`MAX`] files stay open, and none where another open fails for want of descriptors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::LockName;
use lock_core::clock::{Moment, sleep};
use tokio::runtime::Handle;

use crate::lock_file::LockFile;
use crate::record::Written;

/// Time from the opening of a file for which it is used again.
const KEPT: Duration = Duration::from_secs(1);
const MAX: usize = 64;

/// The files of one backend.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles(Mutex<FileTable>);

#[derive(Debug, Default)]
struct FileTable {
    files: HashMap<LockName, (LockFile, Written)>,
    /// The process that has locked them.
    process: u32,
    /// True while a task closes old files.
    is_swept: bool,
}

impl OpenFiles {
    /// Takes out the file of a lock, with its last record.
    pub(crate) fn take(
        &self,
        name: &LockName,
        process: u32,
        now: Moment,
    ) -> Option<(LockFile, Written)> {
        let mut table = self.table();
        table.leave_to_others(process);
        let (file, written) = table.files.remove(name)?;
        (!is_old(&file, now)).then_some((file, written))
    }

    /// Keeps a file that `process` has unlocked, unless there are too many.
    pub(crate) fn keep(
        self: &Arc<Self>,
        name: &LockName,
        process: u32,
        file: LockFile,
        written: Written,
    ) {
        let mut table = self.table();
        table.leave_to_others(process);
        if table.files.len() >= MAX {
            return;
        }
        if !table.is_swept {
            // Without a runtime nothing closes it in time.
            let Ok(runtime) = Handle::try_current() else { return };
            table.is_swept = true;
            let sweeper = Sweeper(Arc::downgrade(self));
            drop(runtime.spawn(sweeper.sweep()));
        }
        table.files.insert(name.clone(), (file, written));
    }

    /// Closes all files. Returns false if there is none.
    pub(crate) fn close(&self) -> bool {
        !std::mem::take(&mut self.table().files).is_empty()
    }

    fn table(&self) -> MutexGuard<'_, FileTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileTable {
    /// Closes the files that another process may lock: the parent of this one.
    fn leave_to_others(&mut self, process: u32) {
        if self.process != process {
            self.files.clear();
            (self.process, self.is_swept) = (process, false);
        }
    }
}

fn is_old(file: &LockFile, now: Moment) -> bool {
    file.opened() + KEPT <= now
}

/// A task that closes old files as long as there are files. If its runtime ends, it closes all.
struct Sweeper(Weak<OpenFiles>);

impl Sweeper {
    async fn sweep(self) {
        loop {
            sleep(KEPT).await;
            let Some(files) = self.0.upgrade() else { return };
            let mut table = files.table();
            let now = Moment::now();
            table.files.retain(|_, (file, _)| !is_old(file, now));
            if table.files.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(files) = self.0.upgrade() {
            let mut table = files.table();
            table.files.clear();
            table.is_swept = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use crate::record::Record;

    /// A test cannot fork: the numbers of the two processes stand for them.
    #[tokio::test]
    async fn a_forked_process_leaves_the_files_to_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let (parent, child, name) = (1, 2, LockName::new("n").unwrap());
        let files = Arc::new(OpenFiles::default());
        let keep = || {
            let file = LockFile::make(&directory, &dir.path().join("n.lock")).unwrap();
            files.keep(&name, parent, file, Record::BLANK.into());
        };
        keep();
        assert!(files.take(&name, parent, Moment::now()).is_some());
        keep();
        assert!(files.take(&name, child, Moment::now()).is_none());
    }
}
