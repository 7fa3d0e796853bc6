//! Systems without `inotify(7)`: waiters poll.

use std::convert::Infallible;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Whether waiters are woken on this system.
pub(crate) const IS_SUPPORTED: bool = false;

/// Returns why no file can be watched.
pub(crate) fn try_out(_: &Path) -> Result<(), String> {
    Err("this system has no inotify".to_owned())
}

/// A watch that does not exist on this system.
#[derive(Debug)]
pub(crate) struct FileWatch(Infallible);

impl FileWatch {
    pub(crate) fn on_lock(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) fn on_pipe(_: &Arc<File>) -> Option<Self> {
        None
    }

    pub(crate) fn on_removal(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) async fn changed(&self) {
        match self.0 {}
    }
}
