//! The state of a client that orders change.

use std::sync::atomic::AtomicBool;

use super::ambient_faults::AmbientFaults;

#[derive(Debug)]
pub(super) struct ClientState {
    /// True once the tasks may start no more operations.
    pub(super) quits: AtomicBool,
    /// True while new leases are not renewed.
    pub(super) unrenewed: AtomicBool,
    pub(super) ambient_faults: AmbientFaults,
}
