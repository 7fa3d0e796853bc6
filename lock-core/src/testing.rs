//! Backends for tests: locks in memory, injected faults, and layers around other backends.

pub mod faults;
pub mod layer;
mod memory;

pub use memory::Memory;
