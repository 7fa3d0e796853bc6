//! The ZooKeeper backend on real servers.

mod ensemble;
mod fleets;
mod locks;
mod outages;
mod refusals;
mod shrinking;
mod slow;
mod support;
#[cfg(feature = "tls")]
mod tls;
