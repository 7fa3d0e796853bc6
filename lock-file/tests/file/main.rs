//! The file backend, among real processes.

mod common;
mod counter;
mod crashes;
mod detached;
mod directory;
mod kept;
mod leftovers;
mod line;
mod locks;
mod mounts;
mod processes;
mod queue;
mod share;
