//! Every law on every backend.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{Harness, Pace, Suite};
use lock_core::{Backend, LockName};
use lock_file::FileLocks;

mod common;

use common::InMemory;

/// A directory of its own, and a backend of its own for each client: as many processes would have.
struct InFiles(tempfile::TempDir);

impl InFiles {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory can be made"))
    }
}

#[async_trait]
impl Harness for InFiles {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(FileLocks::at(self.0.path()).expect("the directory is fit for locks"))
    }

    async fn evict(&self, name: &LockName) -> bool {
        // What `rm` does. The names of the checks are plain, so they are the file's.
        std::fs::remove_file(self.0.path().join(format!("{}.lock", name.as_str()))).is_ok()
    }

    fn can_evict(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    conformance_tests::run(&[
        Suite::new("memory", || Box::new(InMemory::new())),
        Suite::new("file", || Box::new(InFiles::new())),
    ])
}
