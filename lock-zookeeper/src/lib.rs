//! Locks on a ZooKeeper ensemble: fair queues, durable fencing tokens, leases that hold.

mod backend;
mod chain;
mod config;
mod fault;
mod link;
mod names;
mod place;
mod session;

pub use backend::ZooKeeper;
pub use config::Config;
pub use names::Layout;
