//! A fault campaign: real servers, client processes, and all kinds of faults at once.
//!
//! The laws check one property at a time, and a simulation checks one process on a clock that
//! jumps. A campaign has real servers, client processes that it can stop and kill, and a network
//! that it can break; a seed draws the faults. It records all operations of the clients as a
//! [history](lock_history), which a checker judges. It also judges two counters that each lock
//! guards: one checks fencing tokens, and one does not.
//!
//! `lock-campaign run redis --for 10m` runs one seed after the other, stores one result each, and
//! continues an interrupted campaign. `lock-campaign report` makes a page of the results.
//!
//! # A further backend
//!
//! [`main`] takes the backends. A program that adds a [`BackendSpec`](sites::BackendSpec), with
//! the [`Site`](sites::Site) that it starts, can run the whole campaign on it:
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
mod fault_traffic;
mod kind;
mod lines;
mod lock_names;
mod nemesis;
mod orders;
mod outcome;
pub mod report;
mod run;
pub mod sites;
mod times;
mod verdict;
mod worker;

pub use cli::main;
pub use collector::Effects;
pub use fault_traffic::FaultTraffic;
pub use kind::{FaultSupport, Kind, Scope};
pub use outcome::{Bound, Outcome, Prompt, Settings};
pub use run::{Run, on, run};
pub use times::{Losses, Spread, start_of};
pub use verdict::VERDICT;
