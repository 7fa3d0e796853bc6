//! `lockctl` as its users see it: real processes, and what can be observed from outside.

#![cfg_attr(
    not(feature = "file"),
    allow(dead_code, unused_imports, reason = "most of it needs locks between processes")
)]

#[cfg(feature = "redis")]
mod fleets;
mod loss;
mod run;
mod signals;
mod support;
mod terminal;
mod usage;
