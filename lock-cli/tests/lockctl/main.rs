//! `lockctl` as its users see it: real processes, and what can be observed from outside.

#![cfg_attr(
    not(feature = "file"),
    allow(dead_code, unused_imports, reason = "most of it needs locks between processes")
)]

#[cfg(feature = "redis")]
mod crash;
mod examples;
#[cfg(feature = "file")]
mod files;
#[cfg(feature = "redis")]
mod fleets;
#[cfg(feature = "zookeeper")]
mod line;
mod loss;
mod manual;
#[cfg(feature = "memcache")]
mod memcache;
mod places;
mod refusals;
mod run;
mod scenarios;
mod shell;
mod signals;
mod support;
mod terminal;
mod usage;
mod verbs;
