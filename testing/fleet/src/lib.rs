//! Lock clients of other languages beside ours, on the same Redis keys.
//!
//! Each client has a worker process that speaks the protocol of `testing/bench/PROTOCOL.md`, and so
//! has this library. A check is written once, for a holder and a waiter, and runs both ways. The
//! test program `matrix` runs the checks; `docs/interop.md` shows the recorded results.

mod clients;
pub mod page;
mod promises;
mod seen;

pub use clients::{CLIENTS, Client, Debian, Extent, Program, Renewal, Servers};
pub use promises::{PROMISES, Promise, STOPPED_WAITERS};
pub use seen::{Record, Seen, Side};
