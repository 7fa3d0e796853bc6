//! The file backend, among real processes.

mod common;
mod counter;
#[cfg(feature = "__tools")]
mod crashes;
mod detached;
mod directory;
mod listing;
mod locks;
#[cfg(feature = "__tools")]
mod mounts;
mod processes;
mod queue;
mod residue;
mod reuse;
#[cfg(feature = "__tools")]
mod share;
mod waiting;
