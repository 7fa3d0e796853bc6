//! Reads: the holder of a lock and the identity of the directory.

use std::os::unix::fs::MetadataExt;

use lock_core::LockName;
use lock_core::backend::{Fault, Holder, Identity, LockState};

use crate::config::FileLocks;
use crate::fault::fault;
use crate::holders;
use crate::lock_file::LockFile;
use crate::record::Record;

impl FileLocks {
    /// Returns the holders of a lock and the length of its queue.
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let path = self.path_of(name);
        let Some(file) = LockFile::look_at(&self.inner.directory, &path)? else {
            return Ok(LockState::new(Vec::new(), Some(0)));
        };
        let by_kernel = |record: &Record| holders::holders(file.as_file(), &path, record);
        let holders = self.holders_of(&file, by_kernel)?;
        Ok(LockState::new(holders, self.queue_of(&path).len()))
    }

    /// Returns the holder by a lease, else those of the kernel lock.
    pub(super) fn holders_of(
        &self,
        file: &LockFile,
        by_kernel: impl FnOnce(&Record) -> Result<Vec<Holder>, Fault>,
    ) -> Result<Vec<Holder>, Fault> {
        // A process that locks a file of foreign data, as flock(1) may, is shown as well.
        let record = file.parse()?.unwrap_or(Record::BLANK);
        match self.live_lease(&record) {
            Some((_, left)) => Ok(holders::detached(&record, left)),
            None => by_kernel(&record),
        }
    }

    /// Returns the boot and the inode of the directory.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let Some(boot) = &self.inner.boot else {
            return Ok(None);
        };
        let directory = std::fs::metadata(self.directory())
            .map_err(|e| fault("examine the lock directory", self.directory(), e))?;
        let id = format!("{boot}/{:x}:{:x}", directory.dev(), directory.ino());
        Ok(Some(Identity::new(id, None)))
    }
}
