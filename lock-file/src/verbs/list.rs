//! The list of held locks: the files of the directory, one after the other.
//!
//! Left out are names that end in a digest, files that are no locks or not for this user, and locks
//! of a pid namespace into which this process cannot look.

use std::path::Path;

use lock_core::LockName;
use lock_core::backend::{Fault, FaultKind, Listed, LockState};

use crate::config::FileLocks;
use crate::disk_thread::on_disk_thread;
use crate::fault::fault;
use crate::holders::KernelLocks;
use crate::lock_file::{LockFile, is_missing};
use crate::record::Record;

/// The most entries of the directory that a list looks at. Lock files are never deleted.
const MAX_FILES: usize = 50_000;

impl FileLocks {
    /// Returns a page of the held locks.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let (this, prefix, after) = (self.clone(), prefix.to_owned(), after.cloned());
        // Thousands of files take longer than renewals can wait.
        on_disk_thread(move || this.list_among(MAX_FILES, &prefix, after.as_ref(), limit)).await
    }

    /// Lists the locks of a directory with at most `max_files` entries.
    fn list_among(
        &self,
        max_files: usize,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        let is_wanted = |name: &LockName| {
            name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)
        };
        let files = self.file_names(max_files)?;
        let names = files.iter().filter_map(|file_name| self.names().of_file(file_name));
        let mut names: Vec<_> = names.filter(is_wanted).collect();
        names.sort_unstable();
        let locks = KernelLocks::read()?;
        let mut listed = Vec::new();
        for name in names {
            if listed.len() == limit {
                break;
            }
            match self.state_at(&self.path_of(&name), &locks) {
                Ok(state) => listed.extend(state.map(|state| Listed::new(name, state))),
                // The other locks are still listed.
                Err(fault) if is_of_this_file(&fault) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(listed)
    }

    /// Returns the names of the files in the directory.
    fn file_names(&self, max_files: usize) -> Result<Vec<String>, Fault> {
        let failed = |error| fault("read the lock directory", self.directory(), error);
        let entries = match std::fs::read_dir(self.directory()) {
            Ok(entries) => entries,
            // Nothing was locked since it was removed.
            Err(error) if is_missing(&error) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut names = Vec::new();
        for (number, entry) in entries.enumerate() {
            if number == max_files {
                return Err(too_many(self.directory(), max_files));
            }
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.into_string().ok());
        }
        Ok(names)
    }

    /// Returns the state of the lock with this file, or `None` if it is free.
    fn state_at(&self, path: &Path, locks: &KernelLocks) -> Result<Option<LockState>, Fault> {
        let Some(file) = LockFile::look_at(&self.inner.directory, path)? else { return Ok(None) };
        let by_kernel = |record: &Record| locks.holders(file.as_file(), path, record);
        let holders = self.holders_of(&file, by_kernel)?;
        if holders.is_empty() {
            return Ok(None);
        }
        Ok(Some(LockState::new(holders, self.queue_of(path).len())))
    }
}

/// Returns true if the reason is in one file, and not in the directory or the process.
fn is_of_this_file(fault: &Fault) -> bool {
    matches!(fault.kind(), FaultKind::Invalid | FaultKind::Denied | FaultKind::Unsupported)
}

fn too_many(directory: &Path, max_files: usize) -> Fault {
    let message = format!(
        "{} has more than {max_files} entries, at which a list stops, whatever the prefix; inspect \
         a lock by its name, or delete the files while no program uses them",
        directory.display()
    );
    Fault::not_applied(FaultKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_too_many_files_is_not_listed() {
        let scratch = tempfile::tempdir().unwrap();
        let locks = FileLocks::at(scratch.path().join("locks")).unwrap();
        for number in 0..10 {
            std::fs::write(locks.directory().join(format!("n{number}.lock")), "").unwrap();
        }
        assert!(locks.list_among(10, "", None, 100).unwrap().is_empty(), "none is held");
        std::fs::write(locks.directory().join("one more"), "").unwrap();
        let fault = locks.list_among(10, "n1", None, 100).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unsupported);
        let why = fault.into_source().to_string();
        assert!(why.contains("more than 10 entries"), "{why}");
    }
}
