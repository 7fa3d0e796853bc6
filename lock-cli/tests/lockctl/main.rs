//! `lockctl` as its users see it: real processes, and what can be observed from outside.

#[cfg(feature = "redis")]
mod crash;
mod crowd;
mod examples;
mod files;
#[cfg(feature = "redis")]
mod fleets;
#[cfg(feature = "redis")]
mod hung;
mod loss;
mod manual;
#[cfg(feature = "memcache")]
mod memcache;
mod places;
mod progress;
#[cfg(feature = "zookeeper")]
mod queue;
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
