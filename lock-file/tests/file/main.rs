//! The file backend, among real processes.

mod common;
mod counter;
mod crashes;
mod detached;
mod directory;
mod listing;
mod locks;
mod mounts;
mod processes;
mod queue;
mod residue;
mod reuse;
mod share;
mod waiting;
