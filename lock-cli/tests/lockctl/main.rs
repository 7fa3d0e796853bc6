//! Tests of `lockctl` as a process, by its output, its exit status and its effects.

mod backends;
#[cfg(feature = "redis")]
mod crash;
mod crowd;
mod doctor;
mod examples;
mod files;
#[cfg(feature = "redis")]
mod fleets;
#[cfg(feature = "redis")]
mod hung;
#[cfg(feature = "__tools")]
mod killed;
mod listing;
mod loss;
mod manual;
#[cfg(feature = "memcache")]
mod memcache;
mod progress;
#[cfg(all(feature = "quorum", feature = "redis"))]
mod quorum;
mod refusals;
mod run;
mod scenarios;
mod shell;
mod signals;
mod support;
mod terminal;
mod usage;
mod verbs;
#[cfg(feature = "zookeeper")]
mod zookeeper;
