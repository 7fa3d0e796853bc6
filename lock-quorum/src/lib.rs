//! Locks on a majority of independent backends.

mod backend;
mod candidacy;
mod capabilities;
mod letting_go;
mod look;
mod member;
mod quorum;
mod renewal;
mod round;

pub use quorum::{Quorum, QuorumBuilder};
