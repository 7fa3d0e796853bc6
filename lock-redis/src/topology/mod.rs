//! The servers that hold the locks: one, the primary that sentinels name, or the members of a
//! cluster.

mod checks;
pub(crate) mod cluster;
pub(crate) mod commands;
mod exclusive;
mod handshake;
pub(crate) mod link;
pub(crate) mod pushes;
pub(crate) mod replicas;
pub(crate) mod request;
pub(crate) mod sentinel;
pub(crate) mod servers;
pub(crate) mod views;
