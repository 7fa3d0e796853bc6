//! Saboteurs: backends that are broken in one way each, around one that works.
//!
//! A check that does not catch its saboteurs checks nothing.

mod cancellation;
mod exclusion;
mod fencing;
mod inspection;
mod limits;
mod loss;
mod network;
mod outcomes;
mod release;
mod renewal;
mod saboteur;
mod secrets;
mod server;
mod table;
mod tools;
mod waiting;

pub use saboteur::Saboteur;
pub use table::{all, of_runs};
