//! The Redis backend on real servers.

#[cfg(feature = "tls")]
mod certificates;
mod clocks;
mod cluster;
mod cluster_faults;
mod connector;
mod crash;
mod diagnose;
mod exact_names;
mod fleets;
mod foreign_types;
mod fork;
#[cfg(feature = "tls")]
mod groups_tls;
mod least_rights;
mod listing;
mod locks;
mod managed;
mod newer;
mod outages;
#[cfg(feature = "redis-1")]
mod own_client;
mod persistence;
mod queue;
mod refusals;
mod replicas;
mod requests;
mod rights;
mod sentinel;
mod share;
mod soak;
mod stale;
mod standstill;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod uncontended;
mod waiting;
