//! The promises of core, on the memory backend and on backends made for a test.

mod acquisition;
mod api;
mod cancelled;
mod cleanup;
mod contention;
mod edge_cases;
mod executor;
mod fault_tolerance;
mod fork;
mod guard;
mod handover;
mod loss_watch;
#[cfg(feature = "metrics")]
mod metrics;
mod names;
mod policies;
mod renewals;
mod residue;
mod runtimes;
mod support;
mod threads;
mod traces;
mod urls;
mod work;
