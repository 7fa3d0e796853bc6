//! The fault campaign: everything at once.
//!
//! The laws check one thing at a time, and a simulation checks one process on a clock that jumps. Here are
//! real servers, client processes that can be stopped and killed, and a network that can be broken; a seed
//! draws what happens to them. All that the clients do is recorded and judged as a
//! [history](lock_history), together with two counters that each lock guards, one that
//! checks fencing tokens and one that does not.
//!
//! `lock-campaign run redis --for 10m` runs seed after seed, one result each, and goes on where it
//! was interrupted; `lock-campaign report` turns the files into a page.
//!
//! # A backend of one's own
//!
//! [`main`] takes what it can be run on. A program that adds a [`BackendSpec`](sites::BackendSpec), with the
//! [`Site`](sites::Site) that it starts, has the whole campaign for it:
//!
//! ```no_run
//! # use lock_campaign::sites::{BackendSpec, ConnectFuture, Site};
//! # fn start() -> Box<dyn Site> { unreachable!() }
//! # fn connect(_: &str) -> ConnectFuture<'_> { unreachable!() }
//! fn main() -> std::process::ExitCode {
//!     lock_campaign::main(&[BackendSpec { name: "mine", start, connect }])
//! }
//! ```

pub mod bugs;
mod cli;
mod clients;
mod collector;
mod draws;
mod kind;
mod lines;
mod nemesis;
mod outcome;
pub mod report;
mod run;
pub mod sites;
mod times;
mod verdict;
mod worker;

pub use cli::main;
pub use collector::Effects;
pub use kind::{FaultSupport, Kind, Scope};
pub use nemesis::Around;
pub use outcome::{Bound, Outcome, Prompt, Settings};
pub use run::{Run, on, run};
pub use times::{Losses, Spread, start_of};
pub use verdict::VERDICT;
