//! Systems without `inotify(7)`: who waits looks by itself.

use std::convert::Infallible;
use std::path::Path;

/// Whether waiters are woken at all here.
pub(crate) const IS_THERE: bool = false;

/// Never here.
pub(crate) fn can_ring() -> bool {
    false
}

/// There is none.
#[derive(Debug)]
pub(crate) struct Bell(Infallible);

impl Bell {
    pub(crate) fn on_lock(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) fn on_place(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) fn on_removal(_: &Path) -> Option<Self> {
        None
    }

    pub(crate) async fn rung(&self) {
        match self.0 {}
    }
}
