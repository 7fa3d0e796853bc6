//! Every law on every backend.

use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use lock_conformance::{ClockMode, Harness, Suite};
use lock_core::{Backend, Error, LockName};
use lock_file::FileLocks;

mod common;

use common::InMemory;

/// A directory of its own, and a backend of its own for each client: as many processes would have.
struct InFiles {
    directory: tempfile::TempDir,
    is_shared: bool,
}

impl InFiles {
    fn new(is_shared: bool) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        if is_shared {
            let mode = std::fs::Permissions::from_mode(0o3770);
            std::fs::set_permissions(directory.path(), mode).expect("it is ours");
        }
        Self { directory, is_shared }
    }

    fn locks(&self) -> Result<FileLocks, Error> {
        match self.is_shared {
            true => FileLocks::shared_with_group(self.directory.path()),
            false => FileLocks::at(self.directory.path()),
        }
    }
}

#[async_trait]
impl Harness for InFiles {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.locks().expect("the directory is fit for locks"))
    }

    async fn evict(&self, name: &LockName) -> bool {
        // What `rm` does. The names of the checks are plain, so they are the file's.
        std::fs::remove_file(self.directory.path().join(format!("{}.lock", name.as_str()))).is_ok()
    }

    fn can_evict(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    let mut suites = vec![
        Suite::new("memory", || Box::new(InMemory::new())),
        Suite::new("file", || Box::new(InFiles::new(false))),
    ];
    match InFiles::new(true).locks() {
        Err(error) if !cfg!(feature = "__tools") => {
            eprintln!("file-shared is not run, it needs the rights of root: {error}");
        }
        _ => suites.push(Suite::new("file-shared", || Box::new(InFiles::new(true)))),
    }
    lock_conformance::run(&suites)
}
