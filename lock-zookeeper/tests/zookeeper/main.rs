//! The ZooKeeper backend on real servers.

mod cut_off;
mod diagnose;
mod ensemble;
mod interop;
mod locks;
mod outages;
mod refusals;
mod session_timeouts;
mod slow_links;
mod support;
#[cfg(feature = "tls")]
mod tls;
